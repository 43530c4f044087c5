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
mod keys;
mod leased;
mod leases;
mod link;
mod owed;
mod script;
mod wire;

use super::key::Seed;
use super::memory::{Memory, Registry};
use super::{Charge, Decision, Hold, LimitId, Settled, StoreError};
use crate::clock::{Clock, Micros, micros};
use crate::config::model::{RedisServers, SharedStore};
use crate::limit::{Quota, Seen, Verdict};
use crate::metrics::StoreMetrics;
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
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::oneshot;
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
    /// No connection, or it broke.
    Unreachable,
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
    /// What metrics and logs call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Late => "timeout",
            Self::Unreachable => "unreachable",
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
    /// By limit: how its keys begin.
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
    queue: background::Queue,
    metrics: Arc<StoreMetrics>,
}

/// This gateway's part of a concurrency limit's counter.
#[derive(Debug)]
struct Flying {
    count: u32,
    quota: Quota,
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
    ) -> Self {
        Self::with_scripts(options, workers, clock, metrics, str::to_owned)
    }

    /// The same with scripts that have been edited: what a test does to see that it would notice.
    #[doc(hidden)]
    pub fn with_scripts(
        options: SharedStore,
        workers: usize,
        clock: Clock,
        metrics: Arc<StoreMetrics>,
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
            prefixes: ArcSwap::default(),
            registry: ArcSwap::default(),
            scripts: Scripts::new(edit),
            links: (0..(workers + 1) * LINKS).map(|_| Arc::new(Link::new(&complaint))).collect(),
            breaker: Breaker::new(options.failures, probe_after),
            troubled: AtomicBool::new(false),
            denials: Denials::new(),
            leases: Leases::new(),
            owed: Owed::default(),
            flying: Mutex::default(),
            queue,
            metrics,
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
        let prefix: Arc<[u8]> = keys::of_limit(&self.shared.options.prefix, name).into();
        self.shared.prefixes.rcu(|prefixes| {
            let mut prefixes = Vec::clone(prefixes);
            if prefixes.len() <= id.0 as usize {
                prefixes.resize(id.0 as usize + 1, Arc::default());
            }
            prefixes[id.0 as usize] = Arc::clone(&prefix);
            prefixes
        });
        id
    }

    pub(super) fn adopt(&self, registry: Registry) {
        let share = self.shared.options.local_share;
        let mine = |quotas: &[Quota]| quotas.iter().map(|quota| quota.share(share, 1)).collect();
        let local = registry.iter().map(|(id, quotas)| (*id, mine(quotas))).collect();
        self.shared.local.adopt(local);
        self.shared.registry.store(Arc::new(registry));
        // Blocks were taken by the numbers before.
        self.shared.end_leases(None);
    }

    pub(super) fn sweep(&self, now: Micros) {
        self.shared.local.sweep(16, now);
        self.shared.denials.sweep(now);
        self.shared.metrics.owed.set(self.shared.owed.len() as u64);
    }

    pub(super) fn release(&self, hold: &Hold) {
        self.shared.release(hold);
    }

    pub(super) fn settle(&self, hold: &Hold, actual: u32, now: Micros) -> Settled {
        self.shared.settle(hold, actual, now).unwrap_or_default()
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
        let decided = if charges.iter().any(|charge| charge.leased) {
            self.charge_leased(charges, &keys, now).await
        } else {
            self.charge_exact(charges, &keys, now).await
        };
        match decided {
            Ok(decision) => Ok(decision),
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
    ) -> Result<Decision, Trouble> {
        if matches!(self.options.servers, RedisServers::Cluster(_)) && charges.len() > 1 {
            return self.charge_scattered(charges, now).await;
        }
        let answer = self.ask(charges, now).await?;
        let skew = skew(answer.now, now);
        let decision = self.decided(charges, &answer, skew);
        let gives_back = matches!(self.options.servers, RedisServers::Cluster(_));
        if decision.rejected_by.is_some() && !gives_back {
            self.denials.remember(charges, keys, answer.before.into_vec(), (now, skew));
        }
        Ok(decision)
    }

    /// Asks the store for a decision on these charges.
    async fn ask(&self, charges: &[Charge<'_>], now: Micros) -> Result<Answer, Trouble> {
        let mut command = Decide::new(charges.len(), &self.name, self.own_time.then_some(now));
        for charge in charges {
            self.write_name(charge, command.key());
            let flags = if charge.shadow { wire::SHADOW } else { 0 };
            command.layer(wire::layer(charge.quota, flags, charge.cost, now));
        }
        let reply =
            self.guarded(now, self.run(&self.scripts.decide, command.finish(), now)).await?;
        Answer::read(&reply, charges).ok_or(Trouble::Refused)
    }

    /// Writes the verdicts, and says what they come to.
    fn decided(&self, charges: &mut [Charge<'_>], answer: &Answer, skew: i64) -> Decision {
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
            for (index, charge) in charges.iter().enumerate() {
                decision.holds.extend(self.hold(index, charge, skew));
            }
        } else {
            for (charge, before) in charges.iter_mut().zip(&answer.before) {
                take_nothing(charge, before.seen());
            }
        }
        decision
    }

    /// What an admitted charge must give back, or settle.
    fn hold(&self, index: usize, charge: &Charge<'_>, skew: i64) -> Option<Hold> {
        let quota = charge.quota;
        let at_once = quota.is_queue() && charge.verdict.delay() == 0;
        if !charge.verdict.allowed || at_once || !(charge.settles || quota.holds()) {
            return None;
        }
        let name = self.name_of(charge);
        if quota.is_concurrency() {
            let mut flying = self.flying.lock();
            let flying = flying
                .entry(name.clone())
                .or_insert_with(|| Flying { count: 0, quota: quota.clone() });
            flying.count += charge.cost;
        }
        Some(Hold {
            charge: index,
            limit: charge.limit,
            key: 0,
            quota: quota.clone(),
            admitted: charge.verdict,
            overflow: false,
            shared: Some((name, skew)),
        })
    }

    /// Each layer is charged where it lives; what a rejected request had taken is given back.
    async fn charge_scattered(
        self: &Arc<Self>,
        charges: &mut [Charge<'_>],
        now: Micros,
    ) -> Result<Decision, Trouble> {
        let answers =
            script::all(charges.iter().map(|charge| self.ask(std::slice::from_ref(charge), now)))
                .await;
        let failed = answers.iter().find_map(|answer| answer.as_ref().err().copied());
        let mut decision = Decision::default();
        for (index, (charge, answer)) in charges.iter_mut().zip(&answers).enumerate() {
            let Ok(answer) = answer else { continue };
            let skew = skew(answer.now, now);
            let own = self.decided(std::slice::from_mut(charge), answer, skew);
            if own.rejected_by.is_some() && decision.rejected_by.is_none() {
                decision.rejected_by = Some(index);
            }
            decision.holds.extend(own.holds.into_iter().map(|hold| Hold { charge: index, ..hold }));
        }
        if decision.rejected_by.is_none() && failed.is_none() {
            return Ok(decision);
        }
        for hold in decision.holds.drain(..) {
            self.release_flight(&hold);
        }
        for (charge, answer) in charges.iter_mut().zip(&answers) {
            let Ok(answer) = answer else { continue };
            if charge.verdict.allowed {
                self.undo(charge, now);
                take_nothing(charge, answer.before[0].seen());
            }
        }
        match failed {
            Some(trouble) if decision.rejected_by.is_none() => Err(trouble),
            _ => {
                // Layers that could not be asked say nothing.
                for (charge, answer) in charges.iter_mut().zip(&answers) {
                    if answer.is_err() {
                        charge.verdict = Verdict::SILENT;
                    }
                }
                Ok(decision)
            }
        }
    }

    /// Takes back what a charge has taken.
    fn undo(&self, charge: &Charge<'_>, now: Micros) {
        let (quota, verdict) = (charge.quota, &charge.verdict);
        let change = match verdict.state() {
            _ if quota.is_concurrency() => Change::Land,
            Some(after) if quota.is_queue() => Change::Leave(after),
            Some(after) => Change::Undo(after),
            None => Change::Strike(verdict.at),
        };
        let layer = wire::layer(quota, 0, charge.cost, now);
        self.queue.put(Amendment { key: self.name_of(charge), layer, change, done: None });
    }

    /// The tally of what this gateway has in flight.
    fn release_flight(&self, hold: &Hold) {
        let Some((name, _)) = &hold.shared else { return };
        if hold.quota.is_concurrency() {
            let mut flying = self.flying.lock();
            if let Some(here) = flying.get_mut(name) {
                here.count = here.count.saturating_sub(hold.admitted.cost);
                if here.count == 0 {
                    flying.remove(name);
                }
            }
        }
    }

    fn release(&self, hold: &Hold) {
        let Some((name, _)) = &hold.shared else { return };
        self.release_flight(hold);
        let change = match hold.admitted.state() {
            _ if hold.quota.is_concurrency() => Change::Land,
            Some(after) if hold.quota.is_queue() && self.is_in_force(hold) => Change::Leave(after),
            _ => return,
        };
        let layer = wire::layer(&hold.quota, 0, hold.admitted.cost, hold.admitted.at);
        self.queue.put(Amendment { key: name.clone(), layer, change, done: None });
    }

    /// Whether the limit still has the numbers by which the request was admitted.
    fn is_in_force(&self, hold: &Hold) -> bool {
        let registry = self.registry.load();
        registry.get(&hold.limit).is_some_and(|quotas| quotas.contains(&hold.quota))
    }

    /// The store is told in the background; what the caller hears is what the limit holds then, as
    /// far as this gateway knows.
    fn settle(&self, hold: &Hold, actual: u32, now: Micros) -> Option<Settled> {
        let (name, skew) = hold.shared.as_ref()?;
        let in_force = self.is_in_force(hold);
        let Hold { quota, admitted, .. } = hold;
        let counted = admitted.state()?;
        let flags = if in_force { 0 } else { wire::ELSEWHERE };
        let change = Change::Settle { actual, at: admitted.at, counted: counted.stamp };
        let layer = wire::layer(quota, flags, admitted.cost, now);
        let (done, told) = oneshot::channel();
        let amendment = Amendment { key: name.clone(), layer, change, done: Some(done) };
        self.queue.put(amendment);
        let now = now.saturating_add_signed(*skew).max(admitted.at);
        let state = quota.settle(Some(counted), admitted, now, actual).filter(|_| in_force);
        let verdict =
            state.map(|state| quota.peek(Seen::State(state), now, admitted.cost).by_store());
        Some(Settled { verdict, told: Some(told) })
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
