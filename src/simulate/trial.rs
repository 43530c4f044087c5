//! One configuration on trial: requests go through its routes, callers and limits in virtual time,
//! by the functions that live requests go through.
//!
//! ```text
//! Entry ── arrive ──► Arrival   who and where to: numbers, and nothing of the text
//!                        │  in the order of time
//!                     judge ──► Outcome   bans ► exempt ► claim ► charge_all ► penalties
//!                        └─ until the request's end: places in flight, costs to settle
//! ```
//!
//! Nobody is forwarded: overload, upstreams and what operators said of single callers are left out.

mod arrive;
mod ends;

use super::callers::Callers;
use super::routes::Ways;
use super::usage::{Counted, Subjects};
use crate::clock::Micros;
use crate::config::model::{Attribute, Config, Cost, Measure, SettledCost};
use crate::limit::Quota;
use crate::metrics::Metrics;
use crate::overrides::Bans;
use crate::proxy::claims::{Claims, Judged, Known, Parts, charge, claim};
use crate::snapshot::{Lasting, Limit, Snapshot};
use crate::store::{self, Charge, Memory, Part, Store, Subject};
use crate::upstream::names::{Names, Resolver};
use http::HeaderName;
use smallvec::SmallVec;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

pub use arrive::Arrival;
use ends::{End, end};

/// What is the same for all configurations on trial.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// The host of requests whose line does not tell it.
    pub host: Option<String>,
    /// API keys that the file does not know are taken for good, with the default plan.
    pub accept_any_key: bool,
    /// Headers that limits of any of the files count by.
    pub headers: Vec<HeaderName>,
    /// Limits of any of the files whose cost is known only later.
    pub costs: Vec<String>,
    /// Whether it matters to any of them how long requests take, ...
    pub lengths: bool,
    /// ... and how large they and their answers are.
    pub sizes: bool,
}

impl Terms {
    /// Adds what a configuration wants to know.
    pub fn want(&mut self, config: &Config) {
        let limits = || config.limits.iter().chain(config.routes.iter().flat_map(|r| &r.limits));
        for attribute in limits().flat_map(|limit| limit.by.iter().chain(&limit.unless)) {
            if let Attribute::Header(name) = attribute
                && !self.headers.contains(name)
            {
                self.headers.push(name.clone());
            }
        }
        for limit in limits() {
            self.lengths |= limit.cost.is_settled() || holds(limit.quotas.all());
            if let Cost::Settled(SettledCost { by, .. }) = &limit.cost {
                self.sizes |= matches!(by, Measure::RequestBytes(_) | Measure::ResponseBytes(_));
                if !self.costs.contains(&limit.name) {
                    self.costs.push(limit.name.clone());
                }
            }
        }
    }
}

/// A configuration on trial.
#[derive(Debug)]
pub struct Trial {
    snapshot: Snapshot,
    store: Store,
    bans: Bans,
    /// Who asks.
    pub callers: Callers,
    /// Every limit once.
    pub limits: Vec<Tried>,
    /// For each route, and for what has none, which of the limits guard it.
    guards: Vec<Box<[u32]>>,
    /// Of each of those, whether anything of a request is left until its end.
    outlives: Vec<bool>,
    terms: Arc<Terms>,
    /// What ends at some moment.
    ends: BinaryHeap<End>,
    /// Requests so far.
    judged: u64,
    /// The host that was read last, as it is written and as routes match it.
    last_host: (Vec<u8>, Option<String>),
    ways: Ways,
}

/// A limit, and what it has said.
#[derive(Debug)]
pub struct Tried {
    /// As it is used.
    pub limit: Arc<Limit>,
    /// The routes it guards; none are named if it guards all.
    pub routes: Option<Vec<String>>,
    /// Into how many parts a shared store splits it.
    pub shards: u16,
    /// What it has said in all.
    pub counted: Counted,
    /// And to whom.
    pub subjects: Subjects,
}

/// What comes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No limit rejects it.
    Passed,
    /// No limit applies to its caller.
    Exempt,
    /// It was turned away for want of room, and no limit was asked.
    Shed,
    /// A limit rejects it: the first of them.
    Rejected(u32),
    /// Its caller has ignored too many rejects of this limit.
    Banned(u32),
}

impl Outcome {
    /// Whether a limit turns it away.
    pub fn is_rejection(self) -> bool {
        matches!(self, Self::Rejected(_) | Self::Banned(_))
    }

    /// The limit that turns it away.
    pub fn limit(self) -> Option<u32> {
        match self {
            Self::Rejected(limit) | Self::Banned(limit) => Some(limit),
            Self::Passed | Self::Exempt | Self::Shed => None,
        }
    }
}

/// How often callers who are whole are let go of: in so many requests, and in a store that is full.
const SWEEP: u64 = 1 << 16;
const SWEEP_CROWDED: u64 = 1 << 10;

impl Trial {
    /// Puts a configuration on trial.
    pub fn new(config: Config, terms: Arc<Terms>) -> Self {
        // A shared store has no cap of its own.
        let max_keys = if config.shared.is_some() { usize::MAX } else { config.max_keys };
        let (store, metrics) = (Store::Memory(Memory::new(max_keys)), Metrics::new(1));
        let names = Names::new(Resolver::System);
        let bans = Bans::default();
        let lasting = Lasting {
            store: &store,
            bans: &bans,
            metrics: &metrics,
            names: &names,
            previous: None,
        };
        let shards = shards(&config);
        let snapshot = Snapshot::build(config, 0, lasting);
        store.adopt(snapshot.registry(&[]));
        bans.adopt(snapshot.penalties());
        let tried = |(limit, routes): (&Arc<Limit>, Option<Vec<&str>>)| Tried {
            limit: Arc::clone(limit),
            routes: routes.map(|routes| routes.into_iter().map(str::to_owned).collect()),
            shards: shards.get(&limit.name).copied().unwrap_or(1),
            counted: Counted::default(),
            subjects: Subjects::new(limit.by.len()),
        };
        let limits: Vec<Tried> = snapshot.each_limit().into_iter().map(tried).collect();
        let number = |limit: &Arc<Limit>| {
            limits.iter().position(|tried| tried.limit.id == limit.id).unwrap_or_default() as u32
        };
        let all = snapshot.routes.iter().map(|route| &route.limits).chain([&snapshot.guards]);
        let guards = all.clone().map(|limits| limits.iter().map(number).collect()).collect();
        let outlives = |limit: &Arc<Limit>| limit.cost.is_settled() || holds(limit.quotas());
        let outlives = all.map(|limits| limits.iter().any(outlives)).collect();
        Self {
            callers: Callers::new(&snapshot, terms.headers.clone(), terms.accept_any_key),
            ways: Ways::new(),
            store,
            bans,
            limits,
            guards,
            outlives,
            terms,
            ends: BinaryHeap::new(),
            judged: 0,
            last_host: (Vec::new(), None),
            snapshot,
        }
    }

    /// What it runs on.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// What limits count by, as the admin API writes it: by the numbers of a subject.
    pub fn written(&self, limit: usize, who: &[u32]) -> String {
        let by = self.limits[limit].limit.by.iter().zip(who);
        let parts: Vec<String> = by.map(|(by, who)| self.callers.written(by, *who)).collect();
        if parts.is_empty() { "*".to_owned() } else { parts.join(", ") }
    }

    /// Judges a request. They come in the order of time.
    pub fn judge(&mut self, time: Micros, arrival: &Arrival) -> Outcome {
        if self.ends.peek().is_some_and(|end| end.at <= time) {
            self.end_until(time);
        }
        self.judged += 1;
        if self.judged.is_multiple_of(SWEEP_CROWDED) {
            self.sweep(time);
        }
        if arrival.shed {
            return Outcome::Shed;
        }
        if let Some(limit) = self.banned(time, arrival) {
            return Outcome::Banned(limit);
        }
        self.decide(time, arrival)
    }

    fn banned(&mut self, time: Micros, arrival: &Arrival) -> Option<u32> {
        let (address, person) =
            (self.callers.address(arrival.address), self.callers.of(arrival.person));
        let known = !arrival.ip_only;
        if address.exempt || person.caller.exempt && known {
            return None;
        }
        let parts = [
            Some(Part::Ip(address.counted)),
            person.caller.user.as_deref().filter(|_| known).map(Part::User),
            person.caller.api_key.as_deref().filter(|_| known).map(Part::ApiKey),
        ];
        let ban = parts.into_iter().flatten().find_map(|part| self.bans.find(part, time))?;
        let limit = self.limits.iter().position(|tried| tried.limit.name == ban.why.limit())?;
        self.limits[limit].counted.banned += 1;
        Some(limit as u32)
    }

    fn decide(&mut self, time: Micros, arrival: &Arrival) -> Outcome {
        let Self { snapshot, store, callers, limits: tried, guards, bans, .. } = self;
        let memory = store.local();
        let (address, person) = (callers.address(arrival.address), callers.of(arrival.person));
        let numbers = &guards[arrival.way as usize];
        if address.exempt || (person.caller.exempt && !arrival.ip_only) {
            return Outcome::Exempt;
        }
        let route = snapshot.routes.get(arrival.way as usize);
        let limits = route.map_or(&snapshot.guards, |route| &route.limits);
        let known = Known {
            ip: Some(address.counted),
            caller: &person.caller,
            headers: &person.headers,
            ip_only: arrival.ip_only,
        };
        let (mut parts, mut claims) = (Parts::new(), Claims::new());
        claim(limits, &known, &mut parts, &mut claims);
        let announced =
            arrival.end.as_ref().and_then(|end| end.announced(limits, &self.terms.costs));
        let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
        for claim in &claims {
            let subject = Subject(&parts[claim.parts.clone()]);
            charges.push(charge(&limits[claim.limit], claim, &known, subject, None, announced));
        }
        let decision = memory.charge_all(&mut charges, time);
        let rejects = |charge: &Charge<'_>| !charge.verdict.allowed && !charge.shadow;
        let rejecting = match decision.rejected_by {
            Some(_) => charges.iter().filter(|charge| rejects(charge)).count(),
            None => 0,
        };
        for (claim, charge) in claims.iter().zip(&charges) {
            let tried = &mut tried[numbers[claim.limit] as usize];
            let numbers = tried
                .limit
                .by
                .iter()
                .map(|attribute| callers.attribute(attribute, arrival.address, arrival.person));
            let usage = tried.subjects.of(numbers, claim.quota as u16);
            usage.note(&charge.verdict, charge.shadow, rejecting);
            tried.counted.note(&charge.verdict, charge.shadow, rejecting);
        }
        if limits.penal && charges.iter().any(|charge| !charge.verdict.allowed) {
            let judged = Judged {
                limits,
                claims: &claims,
                charges: &charges,
                admitted: decision.rejected_by.is_none(),
                by_proxy: address.proxy,
                is_shared: false,
            };
            judged.penalise(memory, bans, time);
        }
        if let Some(index) = decision.rejected_by {
            return Outcome::Rejected(numbers[claims[index].limit]);
        }
        if let (false, Some(ending)) = (decision.holds.is_empty(), &arrival.end) {
            let at = time + store::delay(&charges) + ending.duration;
            for hold in decision.holds {
                let which = claims[hold.charge].limit;
                match end(&hold, &limits[which], ending, &self.terms.costs) {
                    Some(actual) => {
                        self.ends.push(End { at, number: self.judged, hold, actual });
                    }
                    None if hold.is_queue() => {}
                    None => tried[numbers[which] as usize].counted.untold += 1,
                }
            }
        }
        Outcome::Passed
    }

    fn sweep(&self, time: Micros) {
        let crowded = self.store.keys() > self.store.max_keys() / 2;
        if crowded || self.judged.is_multiple_of(SWEEP) {
            self.store.sweep(time);
            self.bans.sweep(time);
        }
    }
}

/// Limits that a shared store splits, and into how many parts.
fn shards(config: &Config) -> HashMap<String, u16> {
    let limits = config.limits.iter().chain(config.routes.iter().flat_map(|route| &route.limits));
    let split = limits.filter(|limit| config.shared.is_some() && limit.shards > 1);
    split.map(|limit| (limit.name.clone(), limit.shards)).collect()
}

/// Whether requests have places that they give back.
fn holds(quotas: &[Quota]) -> bool {
    quotas.iter().any(Quota::holds)
}
