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

use super::callers::{Callers, Principal};
use super::routes::Ways;
use super::usage::{Counted, Subjects};
use crate::clock::Micros;
use crate::config::model::{Attribute, Config, Cost, Measure};
use crate::limit::Quota;
use crate::metrics::Metrics;
use crate::overrides::Bans;
use crate::path::normalise;
use crate::proxy::claims::{Claims, Known, Parts, charge, claim, penalise};
use crate::proxy::destination::host_name;
use crate::proxy::identify::satisfy;
use crate::proxy::settle::units;
use crate::snapshot::{Found, Lasting, Limit, Snapshot};
use crate::store::{self, Charge, Hold, Memory, Part, Store, Subject};
use crate::traffic::{Chunk, Entry, Extra};
use crate::upstream::names::{Names, Resolver};
use http::{HeaderName, Method};
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

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
            if let Cost::Settled { by, .. } = &limit.cost {
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
    /// What it has said in all.
    pub counted: Counted,
    /// And to whom.
    pub subjects: Subjects,
}

/// A request as a configuration sees it.
#[derive(Debug, Default)]
pub struct Arrival {
    address: u32,
    person: u32,
    /// The route's index; one beyond for what has none.
    pub way: u32,
    /// What the gateway itself would answer once no limit rejects it; 0: nothing.
    pub refused: u16,
    /// Nothing but the address is believed.
    ip_only: bool,
    /// No limit was asked when it was there, and none is now.
    shed: bool,
    /// What matters once it is over; nothing if nothing does.
    end: Option<Box<Ending>>,
}

/// How a request ended.
#[derive(Debug, Default)]
struct Ending {
    /// The backend failed.
    failed: bool,
    duration: Micros,
    bytes: Option<u64>,
    request_bytes: Option<u64>,
    /// What limits counted it as, by their place among those whose cost is known only later.
    costs: SmallVec<[(u16, u32); 2]>,
}

impl Ending {
    #[cold]
    fn of(chunk: &Chunk, entry: &Entry) -> Self {
        let costs = chunk.extras(entry).iter().filter_map(|extra| match extra {
            Extra::Cost(which, cost) => Some((*which, *cost)),
            Extra::Header(..) => None,
        });
        Self {
            failed: entry.status >= 500,
            duration: entry.duration.unwrap_or(0),
            bytes: entry.bytes,
            request_bytes: entry.request_bytes,
            costs: costs.collect(),
        }
    }
}

impl Arrival {
    /// Whom it is put down to.
    pub fn principal(&self, callers: &Callers) -> Principal {
        callers.principal(self.address, self.person)
    }
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

/// What a request has until its end.
#[derive(Debug)]
struct End {
    at: Micros,
    /// What ends first began first.
    number: u64,
    hold: Hold,
    /// What it came to; otherwise it is given back.
    actual: Option<u32>,
}

impl PartialEq for End {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for End {}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The first to end is the greatest.
impl Ord for End {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
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
        let lasting = Lasting { store: &store, metrics: &metrics, names: &names, previous: None };
        let snapshot = Snapshot::build(config, 0, lasting);
        store.adopt(snapshot.registry(&[]));
        let tried = |(limit, routes): (&Arc<Limit>, Option<Vec<&str>>)| Tried {
            limit: Arc::clone(limit),
            routes: routes.map(|routes| routes.into_iter().map(str::to_owned).collect()),
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
            bans: Bans::default(),
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

    /// What a line's request is to this configuration. `own`: the log is the gateway's own.
    pub fn arrive(&mut self, chunk: &Chunk, entry: &Entry, own: bool) -> Arrival {
        let (address, person) = self.callers.find(&self.snapshot, chunk, entry, own);
        let (way, refused) = self.way(chunk, entry);
        let malformed = way as usize == self.snapshot.routes.len() && refused == 400;
        let who = self.callers.of(person);
        let require = self.snapshot.routes.get(way as usize).map(|route| route.require);
        let lacks = satisfy(require.unwrap_or_default(), &who.caller).is_err();
        Arrival {
            address,
            person,
            way,
            refused: if !malformed && (who.refused || lacks) { 401 } else { refused },
            ip_only: malformed || who.refused || lacks,
            shed: entry.shed,
            end: self.outlives[way as usize].then(|| Box::new(Ending::of(chunk, entry))),
        }
    }

    /// The route, and what the gateway answers where there is none.
    fn way(&mut self, chunk: &Chunk, entry: &Entry) -> (u32, u16) {
        let (method, target) = (chunk.bytes(entry.method), chunk.bytes(entry.target));
        let host = chunk.bytes(entry.host);
        if let Some(known) = self.ways.known(method, host, target) {
            return known;
        }
        let way = self.look_up(method, host, target).unwrap_or((self.nowhere(), 400));
        self.ways.learn(method, host, target, way);
        way
    }

    fn nowhere(&self) -> u32 {
        self.snapshot.routes.len() as u32
    }

    /// The same without a memory. Nothing: the request is malformed.
    fn look_up(&mut self, method: &[u8], host: &[u8], target: &[u8]) -> Option<(u32, u16)> {
        let target = str::from_utf8(target).ok().filter(|target| !target.is_empty())?;
        let method =
            if method.is_empty() { Method::GET } else { Method::from_bytes(method).ok()? };
        if matches!(method, Method::CONNECT | Method::TRACE) {
            return None;
        }
        // A URL has its own host.
        let absolute = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
        let (host, target) = match absolute {
            Some(rest) => {
                let (host, _) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
                (host.as_bytes(), &rest[host.len()..])
            }
            None => (host, target),
        };
        if target.len() > self.snapshot.server.max_uri_bytes {
            return None;
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if !query.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let path = normalise(if path.is_empty() { "/" } else { path }).ok()?;
        let nowhere = self.nowhere();
        self.read_host(host);
        // A line that does not tell it has the one that the user names.
        let host = match host {
            [] => self.terms.host.as_deref().unwrap_or_default(),
            _ => self.last_host.1.as_deref()?,
        };
        Some(match self.snapshot.router.find(host, &path, &method) {
            Found::Route(index) => (index as u32, 0),
            Found::MethodNotAllowed(_) => (nowhere, 405),
            Found::Nothing => (nowhere, 404),
        })
    }

    /// Reads a host as routes match it.
    fn read_host(&mut self, written: &[u8]) {
        if self.last_host.0 != written {
            let host = str::from_utf8(written).ok().and_then(|host| host_name(host).ok());
            self.last_host = (written.to_vec(), host);
        }
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
        let announced = arrival.end.as_ref().and_then(|end| end.request_bytes);
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
        if let Some(index) = decision.rejected_by {
            if claims.iter().any(|claim| limits[claim.limit].penalty.is_some()) {
                penalise(memory, bans, limits, &claims, &charges, time);
            }
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

    /// What happens to a hold at the request's end: it is given back, or settled by what it came to;
    /// or nothing, as nobody knows what it came to.
    fn end_until(&mut self, time: Micros) {
        while let Some(end) = self.ends.peek().filter(|end| end.at <= time) {
            match end.actual {
                Some(actual) => drop(self.store.settle(&end.hold, actual, end.at)),
                None => self.store.release(&end.hold, end.at),
            }
            self.ends.pop();
        }
    }

    fn sweep(&self, time: Micros) {
        let crowded = self.store.keys() > self.store.max_keys() / 2;
        if crowded || self.judged.is_multiple_of(SWEEP) {
            self.store.sweep(time);
        }
    }
}

/// Whether requests have places that they give back.
fn holds(quotas: &[Quota]) -> bool {
    quotas.iter().any(Quota::holds)
}

/// What a hold comes to: `None` for nothing, otherwise what it is settled by, or that it is given
/// back.
#[expect(clippy::option_option, reason = "nothing, given back, or settled by a number")]
fn end(hold: &Hold, limit: &Limit, ending: &Ending, names: &[String]) -> Option<Option<u32>> {
    let Cost::Settled { by, .. } = &limit.cost else {
        return (!hold.is_queue()).then_some(None);
    };
    let told = ending.costs.iter().find_map(|(which, cost)| {
        // A candidate is charged what its limit is.
        let name = &names[usize::from(*which)];
        let same = *name == limit.name || limit.name.strip_suffix("/candidate") == Some(name);
        same.then_some(*cost)
    });
    let measured = || match by {
        Measure::ResponseBytes(unit) => ending.bytes.map(|bytes| units(bytes, *unit)),
        Measure::RequestBytes(unit) => ending.request_bytes.map(|bytes| units(bytes, *unit)),
        Measure::ResponseHeader(_) | Measure::ResponseJson(_) => ending.failed.then_some(0),
    };
    told.or_else(measured).map(Some)
}
