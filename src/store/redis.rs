//! Counters that a fleet shares: in Redis, in a Cluster, or behind Sentinel.
//!
//! ```text
//! charges ──► denials: known to be rejected? ──► leases: is there a block of it here?
//!                                                    │ no
//!                        breaker: is the store there?
//!                          │ yes                     │ no, or it fails
//!             link ── decide.lua ──► Answer      on_failure: local share · allow · reject
//!                          │                         │
//!                  verdicts, holds               owed: charged when the store is back
//! ```
//!
//! One decision is one round trip. The script computes first and writes only if every layer allows;
//! it answers with what each layer held before, and the verdicts that callers are told are worked
//! out of that here, by the same functions as the memory store's. Time is the store's own.
//!
//! In a Cluster the layers live in different slots: each is charged where it lives, all at once, and
//! what a rejected request had taken is given back.
//!
//! What does not have to wait is done by a thread of its own (`background`): places and costs are
//! given back, leases end, this gateway says that it is alive, an outage is reconciled.

mod background;
mod breaker;
mod denials;
mod fallback;
mod held;
mod keys;
mod leased;
mod leases;
mod link;
mod operated;
mod owed;
mod scattered;
mod script;
mod wire;

use super::key::Seed;
use super::memory::{Memory, Registry};
use super::{Charge, Decision, Hold, LimitId, NoMore, Settled, StoreError};
use crate::clock::{Clock, Micros, micros};
use crate::config::model::{RedisServers, SharedStore};
use crate::limit::{Quota, Seen};
use crate::metrics::StoreMetrics;
use crate::overrides::Overrides;
use arc_swap::ArcSwap;
use background::{Amendment, Background, Change};
use breaker::Breaker;
use denials::{Denials, skew};
use leases::Leases;
use link::Link;
use owed::Owed;
use parking_lot::Mutex;
use script::{Decide, Scripts};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use wire::Answer;

/// Links of each worker.
const LINKS: usize = 2;

thread_local! {
    /// Which worker this thread is: its decisions go over links of its own.
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// Says which worker this thread is.
pub fn on_worker(index: usize) {
    WORKER.set(index);
}

/// Why the store gave no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Not within the deadline.
    Late,
    /// It was not even tried: the last attempt to connect has just failed, or the breaker is open.
    Untried,
    /// No connection.
    Unreachable,
    /// The connection broke: whether it had been done nobody knows.
    Broken,
    /// A primary that was demoted.
    ReadOnly,
    /// It has just started.
    Loading,
    /// It has no memory left.
    Full,
    /// Anything else it says.
    Refused,
}

impl Trouble {
    /// Whether what was asked may have been done all the same.
    pub(super) fn in_doubt(self) -> bool {
        matches!(self, Self::Late | Self::Broken)
    }

    /// What metrics and logs call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Late => "timeout",
            Self::Untried | Self::Unreachable | Self::Broken => "unreachable",
            Self::ReadOnly => "readonly",
            Self::Loading => "loading",
            Self::Full => "out_of_memory",
            Self::Refused => "error",
        }
    }
}

/// The shared store.
pub struct Redis {
    shared: Arc<Shared>,
    background: Mutex<Option<Background>>,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("prefix", &self.shared.options.prefix).finish_non_exhaustive()
    }
}

/// What decisions and the background have in common.
struct Shared {
    options: Arc<SharedStore>,
    /// This process's time.
    clock: Clock,
    /// It is the store's as well; otherwise the store has its own.
    own_time: bool,
    /// This process, among those that share the store.
    name: String,
    seed: Seed,
    /// What each gateway enforces by itself while the store is away; counts of rejects, always.
    local: Memory,
    /// By limit: how its keys begin. Those of limits that are in force are looked up without a lock.
    names: Mutex<Vec<Arc<[u8]>>>,
    prefixes: ArcSwap<Vec<Arc<[u8]>>>,
    /// Quotas in force, to tell whether a hold still means what it meant.
    registry: ArcSwap<Registry>,
    scripts: Scripts,
    links: Box<[Arc<Link>]>,
    breaker: Breaker,
    /// It was said that something is wrong.
    troubled: AtomicBool,
    denials: Denials,
    leases: Leases,
    owed: Owed,
    /// Requests in flight, by the counter they are in.
    flying: Mutex<HashMap<Box<[u8]>, Flying>>,
    flights: AtomicU64,
    /// How far the store's clock was from ours, last time.
    skew: AtomicI64,
    queue: background::Queue,
    metrics: Arc<StoreMetrics>,
    /// What operators have said of single callers, on any gateway.
    overrides: Arc<Overrides>,
}

/// This gateway's part of a concurrency limit's counter.
#[derive(Debug)]
struct Flying {
    /// Each by its number, and how many places it has.
    flights: HashMap<u64, u32>,
    quota: Quota,
}

/// A decision by the store.
struct Asked {
    answer: Answer,
    /// What the request is called while it is in flight.
    flight: u64,
}

/// Keys of one decision in this process's tables.
type Keys = SmallVec<[u64; 4]>;

impl Redis {
    /// A store on these servers, for so many workers. They need not be there yet.
    pub fn new(
        options: SharedStore,
        workers: usize,
        clock: Clock,
        metrics: Arc<StoreMetrics>,
        overrides: Arc<Overrides>,
    ) -> Self {
        Self::with_scripts(options, workers, clock, metrics, overrides, str::to_owned)
    }

    /// The same with scripts that have been edited: what a test does to see that it would notice.
    #[doc(hidden)]
    pub fn with_scripts(
        options: SharedStore,
        workers: usize,
        clock: Clock,
        metrics: Arc<StoreMetrics>,
        overrides: Arc<Overrides>,
        edit: impl Fn(&str) -> String,
    ) -> Self {
        // A clock that is moved by hand is meant to be the only one.
        let own_time = matches!(clock, Clock::Manual(_));
        let (queue, jobs) = background::queue();
        let complaint = link::Complaint::default();
        let probe_after = micros(options.probe_after);
        let shared = Arc::new(Shared {
            clock,
            own_time,
            name: format!("{:016x}", fastrand::u64(..)),
            seed: Seed::random(),
            local: Memory::new(options.max_keys),
            names: Mutex::default(),
            prefixes: ArcSwap::default(),
            registry: ArcSwap::default(),
            scripts: Scripts::new(edit),
            // The background has links of its own, and so has whoever looks for an operator.
            links: (0..(workers + 2) * LINKS).map(|_| Arc::new(Link::new(&complaint))).collect(),
            breaker: Breaker::new(options.failures, probe_after),
            troubled: AtomicBool::new(false),
            denials: Denials::new(),
            leases: Leases::new(),
            owed: Owed::default(),
            flying: Mutex::default(),
            flights: AtomicU64::new(1),
            skew: AtomicI64::new(0),
            queue,
            metrics,
            overrides,
            options: Arc::new(options),
        });
        let background = Background::start(Arc::clone(&shared), jobs, workers);
        Self { shared, background: Mutex::new(background) }
    }

    /// Decides one request's charges: all are charged, or none is.
    pub(super) async fn charge_all(
        &self,
        charges: &mut [Charge<'_>],
        now: Micros,
    ) -> Result<Decision, StoreError> {
        self.shared.charge_all(charges, now).await
    }

    /// Counts in this process alone, as the memory store does.
    pub(super) fn local(&self) -> &Memory {
        &self.shared.local
    }

    pub(super) fn limit_id(&self, name: &str) -> LimitId {
        let id = self.shared.local.limit_id(name);
        let mut names = self.shared.names.lock();
        if names.len() <= id.0 as usize {
            names.resize(id.0 as usize + 1, Arc::default());
        }
        if names[id.0 as usize].is_empty() {
            names[id.0 as usize] = keys::of_limit(&self.shared.options.prefix, name).into();
        }
        id
    }

    pub(super) fn adopt(&self, registry: Registry) {
        let share = self.shared.options.local_share;
        let mine = |quotas: &[Quota]| quotas.iter().map(|quota| quota.share(share, 1)).collect();
        let local = registry.iter().map(|(id, quotas)| (*id, mine(quotas))).collect();
        self.shared.local.adopt(local);
        self.shared.prefixes.store(Arc::new(self.shared.names.lock().clone()));
        self.shared.registry.store(Arc::new(registry));
        // Blocks were taken by the numbers before, and a limit that counts otherwise begins anew.
        self.shared.end_leases(None);
        self.shared.denials.clear();
    }

    pub(super) fn sweep(&self, now: Micros) {
        self.shared.local.sweep(16, now);
        self.shared.denials.sweep(now);
        self.shared.metrics.owed.set(self.shared.owed.len() as u64);
        self.shared.metrics.denials.set(self.shared.denials.len() as u64);
        self.shared.metrics.leases.set(self.shared.leases.len() as u64);
    }

    pub(super) fn release(&self, hold: &Hold) {
        self.shared.release(hold);
    }

    pub(super) fn settle(&self, hold: &Hold, actual: u32, now: Micros) -> Settled {
        self.shared.settle(hold, actual, now).unwrap_or_default()
    }

    /// Charges more to an admitted request, if there is so much.
    pub(super) async fn extend(
        &self,
        hold: &mut Hold,
        more: u32,
        now: Micros,
    ) -> Result<(), NoMore> {
        self.shared.extend(hold, more, now).await
    }

    /// Gives a charge back that was taken for nothing.
    pub(super) fn refund(&self, charge: &Charge<'_>, now: Micros) -> Settled {
        self.shared.refund(charge, now)
    }

    pub(super) fn deadline(&self) -> Duration {
        self.shared.options.timeout
    }

    /// Connects this worker, so that its first decision need not wait for that.
    pub(super) fn warm(&self) {
        let now = self.shared.clock.now();
        for link in self.shared.links() {
            let (link, options) = (Arc::clone(link), Arc::clone(&self.shared.options));
            tokio::spawn(async move { drop(link.wire(&options, now).await) });
        }
    }

    /// What the store has rejected lately it would reject again.
    pub fn foresee(&self, charges: &mut [Charge<'_>], now: Micros) -> Decision {
        let keys: Keys = charges.iter().map(|charge| self.shared.key(charge)).collect();
        let recalled = self.shared.denials.recall(charges, &keys, now);
        if recalled.is_some() {
            self.shared.metrics.recalled.increment();
        }
        recalled.unwrap_or_default()
    }

    /// What the limits say to a caller; nothing is charged.
    pub(super) async fn peek(
        &self,
        charges: &mut [Charge<'_>],
        now: Micros,
    ) -> Result<(), StoreError> {
        self.shared.peek(charges, now).await.map_err(|_| StoreError::Away)
    }

    /// Forgets what a caller has used of a limit.
    pub(super) async fn reset(&self, charge: &Charge<'_>, now: Micros) -> Result<(), StoreError> {
        self.shared.local.reset(charge);
        self.shared.forget(charge, now).await.map_err(|_| StoreError::Away)
    }

    /// Forgets whom the store has rejected: the next decision is the store's own.
    pub fn forget(&self) {
        self.shared.denials.clear();
    }

    /// Whether the store has been told everything that it is to be told in the background.
    pub fn is_idle(&self) -> bool {
        self.shared.queue.is_empty()
    }

    /// Gives back what can be given back, and ends. It takes a moment, and not much longer.
    pub fn close(&self) {
        self.shared.end_leases(None);
        if let Some(background) = self.background.lock().take() {
            background.stop();
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    async fn charge_all(
        self: &Arc<Self>,
        charges: &mut [Charge<'_>],
        now: Micros,
    ) -> Result<Decision, StoreError> {
        if charges.is_empty() {
            return Ok(Decision::default());
        }
        let keys: Keys = charges.iter().map(|charge| self.key(charge)).collect();
        if let Some(decision) = self.denials.recall(charges, &keys, now) {
            self.metrics.recalled.increment();
            return Ok(decision);
        }
        let deadline = Instant::now() + self.options.timeout;
        let decided = if charges.iter().any(|charge| charge.leased) {
            self.charge_leased(charges, &keys, now, deadline).await
        } else {
            self.charge_exact(charges, &keys, now, deadline).await
        };
        match decided {
            Ok(decision) => {
                self.take_off(&decision.holds);
                Ok(decision)
            }
            Err(_) => self.fall_back(charges, now),
        }
    }

    /// In this process's tables; another one for each shard.
    fn key(&self, charge: &Charge<'_>) -> u64 {
        let key = self.seed.key(charge.limit.0, &charge.subject);
        key ^ u64::from(charge.shard.map_or(0, |shard| shard + 1))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// What the counter is called in the store.
    fn write_name(&self, charge: &Charge<'_>, name: &mut Vec<u8>) {
        if let Some(prefix) = self.prefixes.load().get(charge.limit.0 as usize) {
            name.extend_from_slice(prefix);
        }
        keys::write(name, &charge.subject, charge.shard);
    }

    fn name_of(&self, charge: &Charge<'_>) -> Box<[u8]> {
        let mut name = Vec::with_capacity(64);
        self.write_name(charge, &mut name);
        name.into()
    }

    /// One round trip, or one for each of a cluster's slots at the same time.
    async fn charge_exact(
        self: &Arc<Self>,
        charges: &mut [Charge<'_>],
        keys: &[u64],
        now: Micros,
        deadline: Instant,
    ) -> Result<Decision, Trouble> {
        if matches!(self.options.servers, RedisServers::Cluster(_)) && charges.len() > 1 {
            return self.charge_scattered(charges, now, deadline).await;
        }
        let returns = self.denials.returns();
        let asked = self.ask(charges, now, deadline).await?;
        let skew = skew(asked.answer.now, now);
        let decision = self.decided(charges, &asked, skew);
        let answer = asked.answer;
        let gives_back = matches!(self.options.servers, RedisServers::Cluster(_));
        if decision.rejected_by.is_some() && !gives_back {
            self.denials.remember(charges, keys, answer.before.into_vec(), (now, skew), returns);
        }
        Ok(decision)
    }

    /// Asks the store for a decision on these charges.
    async fn ask(
        &self,
        charges: &[Charge<'_>],
        now: Micros,
        deadline: Instant,
    ) -> Result<Asked, Trouble> {
        let flies = charges.iter().any(|charge| charge.quota.is_concurrency());
        let flight = if flies { self.flights.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let name = if flies { self.flight_name(flight) } else { String::new() };
        let mut command = Decide::new(charges.len(), &name, self.own_time.then_some(now));
        for charge in charges {
            self.write_name(charge, command.key());
            let flags = if charge.shadow { wire::SHADOW } else { 0 };
            let (cost, taken, now) = (charge.cost, charge.taken(), self.store_now(now));
            command.layer(wire::layer_taking(charge.quota, flags, cost, taken, now));
        }
        let run = self.run(&self.scripts.decide, command.finish(), now);
        let reply = self.guarded(now, deadline, run).await?;
        let answer = Answer::read(&reply, charges).ok_or(Trouble::Refused)?;
        self.skew.store(skew(answer.now, now), Ordering::Relaxed);
        Ok(Asked { answer, flight })
    }

    /// What a request in flight is called; nobody else's is.
    fn flight_name(&self, flight: u64) -> String {
        format!("{}:{flight:x}", self.name)
    }

    /// About what the store's clock says.
    fn store_now(&self, now: Micros) -> Micros {
        now.saturating_add_signed(self.skew.load(Ordering::Relaxed))
    }

    /// Writes the verdicts, and says what they come to.
    fn decided(&self, charges: &mut [Charge<'_>], asked: &Asked, skew: i64) -> Decision {
        let (answer, flight) = (&asked.answer, asked.flight);
        let mut decision = Decision::default();
        for (index, (charge, before)) in charges.iter_mut().zip(&answer.before).enumerate() {
            let said = charge.quota.check(before, answer.now, charge.cost);
            charge.verdict = said.by_store();
            if !said.allowed && !charge.shadow && decision.rejected_by.is_none() {
                decision.rejected_by = Some(index);
            }
        }
        if answer.admitted {
            // Its word counts: it has charged them.
            decision.rejected_by = None;
            for (index, charge) in charges.iter_mut().enumerate() {
                if charge.verdict.allowed {
                    charge.verdict = charge.verdict.taking(charge.taken());
                }
                decision.holds.extend(self.hold(index, charge, skew, flight));
            }
        } else {
            for (charge, before) in charges.iter_mut().zip(&answer.before) {
                take_nothing(charge, before.seen());
            }
        }
        decision
    }

    /// This worker's links.
    fn links(&self) -> &[Arc<Link>] {
        let worker = WORKER.get() % (self.links.len() / LINKS);
        &self.links[worker * LINKS..(worker + 1) * LINKS]
    }

    /// The least busy of them.
    fn link(&self) -> &Arc<Link> {
        let mine = self.links();
        mine.iter().min_by_key(|link| link.waiting()).unwrap_or(&mine[0])
    }
}

/// A rejected request charges no layer: one that would have allowed it says what it holds without.
fn take_nothing(charge: &mut Charge<'_>, before: Seen<'_>) {
    let said = charge.quota.untaken_if_allowed(charge.verdict, before);
    charge.verdict = said.by_store();
}
