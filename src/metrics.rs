//! What the gateway counts, and how it is written for Prometheus.
//!
//! Routes and limits get their counters by name once, when a snapshot is built, and keep them over
//! reloads; a request only adds to numbers it holds already. What every request counts is counted by
//! worker ([`ByWorker`]), without a locked instruction, and added up by whoever reads. No caller is
//! ever a label; names that no snapshot uses any more are forgotten.

pub mod families;
mod histogram;
mod page;
mod process;

pub use histogram::{Distribution, Histogram};
pub use page::{EndpointReading, Format, Readings};
pub use process::Process;

use crate::clock::micros;
use crate::config::model::Priority;
use crate::limit::Verdict;
use crate::overload::Shed;
use crate::upstream::Fault;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// So many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// One more, said by the one thread that does: no locked instruction is needed.
    #[inline]
    pub fn bump(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// What it stands at.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of something for each worker, on cache lines of its own. Only the worker writes to it.
#[derive(Debug)]
pub struct ByWorker<T>(Box<[Alone<T>]>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Alone<T>(T);

impl<T: Default> ByWorker<T> {
    /// For so many workers.
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Alone::default()).collect())
    }
}

impl<T> ByWorker<T> {
    /// The worker's own.
    #[inline]
    pub fn of(&self, worker: usize) -> &T {
        &self.0[worker].0
    }

    /// Everybody's, to be added up.
    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.0.iter().map(|Alone(own)| own)
    }
}

/// Requests of one route: how many, by status, and how long they took.
#[derive(Debug)]
pub struct RouteMetrics(ByWorker<Answers>);

/// One worker's part of them. Most routes are not asked for on most days: room is made when one is.
#[derive(Debug, Default)]
pub struct Answers {
    /// One hundred counters a class of status.
    classes: [OnceLock<Box<[Counter]>>; 10],
    duration: OnceLock<Box<Histogram>>,
}

impl Answers {
    /// One more answer with this status.
    pub fn count(&self, status: http::StatusCode) {
        let code = usize::from(status.as_u16());
        let class = self.classes[code / 100 % 10]
            .get_or_init(|| std::iter::repeat_with(Counter::default).take(100).collect());
        class[code % 100].bump();
    }

    /// It took so long.
    pub fn took(&self, time: u64) {
        self.duration.get_or_init(Box::default).record(time);
    }
}

impl RouteMetrics {
    /// A worker's part.
    pub fn of(&self, worker: usize) -> &Answers {
        self.0.of(worker)
    }

    /// How many answers there were, by status.
    pub fn statuses(&self) -> BTreeMap<usize, u64> {
        let mut statuses = BTreeMap::new();
        for (class, code) in (0..10).flat_map(|class| (0..100).map(move |code| (class, code))) {
            let of =
                |answers: &Answers| answers.classes[class].get().map_or(0, |c| c[code].value());
            let count: u64 = self.0.iter().map(of).sum();
            if count > 0 {
                statuses.insert(class * 100 + code, count);
            }
        }
        statuses
    }

    /// How long they took.
    pub fn duration(&self) -> Distribution {
        let parts = self.0.iter().filter_map(|answers| answers.duration.get());
        Distribution::of(parts.map(|histogram| &**histogram))
    }
}

/// Decisions of one limit on callers of one plan.
#[derive(Debug)]
pub struct LimitMetrics {
    decisions: ByWorker<Decisions>,
    /// Answers that did not tell what the request cost.
    pub unsettled: Counter,
}

/// One worker's part of them.
#[derive(Debug, Default)]
pub struct Decisions {
    /// Charged to requests that passed.
    pub allowed: Counter,
    /// Requests this limit rejected.
    pub rejected: Counter,
    /// Requests it would have rejected, were it not a shadow.
    pub shadow_rejected: Counter,
    /// Requests whose caller it would have banned, were it not a shadow.
    pub shadow_banned: Counter,
    /// Requests of callers that no limit applies to.
    pub exempt: Counter,
    /// Requests that passed without the word of a shared store.
    pub degraded: Counter,
    /// Requests of callers who are banned for ignoring this limit.
    pub banned: Counter,
    pressure: Pressure,
}

/// The largest share of a limit that somebody had used, lately. Shares are positive numbers, so
/// their bits compare as they do.
#[derive(Debug, Default)]
struct Pressure {
    now: AtomicU32,
    before: AtomicU32,
}

impl Decisions {
    /// What somebody has left of the limit.
    #[inline]
    pub fn note_pressure(&self, verdict: &Verdict) {
        // A limit that says nothing says nothing of this either.
        if verdict.is_silent() {
            return;
        }
        let left = verdict.unused as f32 / verdict.capacity.max(1) as f32;
        let used = (1.0 - left).max(0.0).to_bits();
        if used > self.pressure.now.load(Ordering::Relaxed) {
            self.pressure.now.store(used, Ordering::Relaxed);
        }
    }
}

impl LimitMetrics {
    fn new(workers: usize) -> Self {
        Self { decisions: ByWorker::new(workers), unsettled: Counter::default() }
    }

    /// What verdicts are called.
    pub const VERDICTS: [&'static str; 7] =
        ["allowed", "rejected", "shadow_rejected", "shadow_banned", "exempt", "degraded", "banned"];

    /// A worker's part.
    #[inline]
    pub fn of(&self, worker: usize) -> &Decisions {
        self.decisions.of(worker)
    }

    /// How many decisions there were, by verdict, in the order of their names.
    pub fn verdicts(&self) -> [u64; 7] {
        let mut all = [0; 7];
        for part in self.decisions.iter() {
            let counters = [
                &part.allowed,
                &part.rejected,
                &part.shadow_rejected,
                &part.shadow_banned,
                &part.exempt,
                &part.degraded,
                &part.banned,
            ];
            all.iter_mut().zip(counters).for_each(|(sum, counter)| *sum += counter.value());
        }
        all
    }

    /// How many decisions had this verdict.
    pub fn total(&self, verdict: &str) -> u64 {
        let named = Self::VERDICTS.iter().zip(self.verdicts());
        named.filter(|(name, _)| **name == verdict).map(|(_, count)| count).sum()
    }

    /// The largest share that somebody had used, in the last seconds.
    pub fn pressure(&self) -> f32 {
        let both = |p: &Pressure| [&p.now, &p.before].map(|bits| bits.load(Ordering::Relaxed));
        let most = self.decisions.iter().flat_map(|part| both(&part.pressure)).max();
        f32::from_bits(most.unwrap_or_default())
    }

    /// A second has passed.
    fn turn(&self) {
        for Decisions { pressure, .. } in self.decisions.iter() {
            let now = pressure.now.swap(0, Ordering::Relaxed);
            pressure.before.store(now, Ordering::Relaxed);
        }
    }
}

/// What happened on the way to one upstream.
#[derive(Debug, Default)]
pub struct UpstreamMetrics {
    /// Failed requests, by what was wrong.
    pub faults: [Counter; Fault::ALL.len()],
    /// Requests that were sent once more.
    pub retries: Counter,
    /// Requests that were not, because too many were already.
    pub over_budget: Counter,
    /// Requests for which there was nobody to ask.
    pub unavailable: Counter,
    /// Endpoints that were left alone for a while.
    pub ejections: Counter,
    /// Checks that failed.
    pub checks_failed: Counter,
    /// How long it took to be answered.
    duration: OnceLock<ByWorker<Histogram>>,
}

impl UpstreamMetrics {
    /// Somebody was asked for so long.
    #[inline]
    pub fn took(&self, worker: usize, time: u64) {
        if let Some(duration) = self.duration.get() {
            duration.of(worker).record(time);
        }
    }

    /// How long it took to be answered.
    pub fn duration(&self) -> Distribution {
        Distribution::of(self.duration.get().into_iter().flat_map(ByWorker::iter))
    }
}

/// Gauges of one worker, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerMetrics {
    /// What the gateway itself adds to requests.
    pub overhead: Histogram,
    in_flight: AtomicU64,
    connections: AtomicU64,
    /// How late it came to its work the last time, in microseconds.
    pub lag: Gauge,
    /// The level of what it refuses, in thousandths.
    pub level: Gauge,
    /// How often it has come to its work.
    pub ticks: Counter,
}

impl WorkerMetrics {
    /// How late it came to its work, and what it refuses for that.
    #[expect(clippy::cast_sign_loss, reason = "no level is less than nothing")]
    pub fn note_pressure(&self, lag: Duration, level: f64) {
        self.ticks.bump();
        self.lag.set(micros(lag));
        self.level.set((level * 1000.0).round() as u64);
    }

    /// Requests under way, one more or one less. Only the worker itself says so, so no locked
    /// instruction is needed.
    pub fn add_in_flight(&self, by: i64) {
        let now = self.in_flight.load(Ordering::Relaxed).wrapping_add_signed(by);
        self.in_flight.store(now, Ordering::Relaxed);
    }

    /// A connection is the worker's from now on, whoever accepted it.
    pub fn assign_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection has ended.
    pub fn end_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Open connections, and those on their way to the worker.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// It stands at this now.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// What it stands at.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How a shared store is doing.
#[derive(Debug)]
pub struct StoreMetrics {
    /// Whether it is asked: not while the breaker is open.
    pub up: Gauge,
    /// Scripts called.
    pub calls: Counter,
    /// Decisions known to be rejects without asking.
    pub recalled: Counter,
    /// Decisions made without it.
    pub fallbacks: Counter,
    /// Counters that will be charged when it is back.
    pub owed: Gauge,
    /// Rejects that are remembered.
    pub denials: Gauge,
    /// Counters of which this process holds allowance.
    pub leases: Gauge,
    /// Decisions served from it.
    pub leased: Counter,
    /// How often the breaker opened.
    pub opened: Counter,
    failures: Mutex<BTreeMap<&'static str, u64>>,
    /// How long scripts took: those of workers, the background's and an operator's last.
    duration: ByWorker<Histogram>,
}

impl StoreMetrics {
    /// For so many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            up: Gauge::default(),
            calls: Counter::default(),
            recalled: Counter::default(),
            fallbacks: Counter::default(),
            owed: Gauge::default(),
            denials: Gauge::default(),
            leases: Gauge::default(),
            leased: Counter::default(),
            opened: Counter::default(),
            failures: Mutex::default(),
            duration: ByWorker::new(workers + 2),
        }
    }

    /// A script took so long.
    pub fn took(&self, worker: usize, time: u64) {
        self.duration.of(worker % self.duration.0.len()).record(time);
    }

    /// How long scripts took.
    pub fn duration(&self) -> Distribution {
        Distribution::of(self.duration.iter())
    }

    /// What failed, by reason.
    pub fn failures(&self) -> BTreeMap<&'static str, u64> {
        self.failures.lock().clone()
    }

    /// A decision, or something that was to be told it, failed.
    pub fn fail(&self, why: &'static str) {
        *self.failures.lock().entry(why).or_default() += 1;
    }
}

/// Which guard of the edge refused a connection or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// `max_connections` was reached.
    TooManyConnections,
    /// `max_connections_per_ip` was reached.
    TooManyConnectionsPerIp,
    /// No PROXY header, or no TLS, within its time-out.
    Handshake,
    /// The head of a request took too long.
    HeaderTimeout,
    /// What was sent is not HTTP, can be understood in two ways, or is too large to be read.
    BadRequest,
    /// The target is too long.
    UriTooLong,
    /// The head has too many fields.
    TooManyHeaders,
    /// The body is too large.
    BodyTooLarge,
    /// The body took too long.
    BodyTimeout,
    /// The caller did not take what was sent.
    NotTaken,
    /// An HTTP/2 connection was busy with frames that ask for nothing.
    Flood,
    /// The request had been here already.
    Loop,
    /// Heads that came in part were too large together.
    UnfinishedHeads,
}

impl Refused {
    const NAMES: [&str; 13] = [
        "too_many_connections",
        "too_many_connections_per_ip",
        "handshake",
        "header_timeout",
        "bad_request",
        "uri_too_long",
        "too_many_headers",
        "body_too_large",
        "body_timeout",
        "not_taken",
        "flood",
        "loop",
        "unfinished_heads",
    ];
}

/// What became of requests whose client left while a limit or a permit depended on their answer.
#[derive(Debug, Default)]
pub struct ClientsLeft {
    /// The gateway reads the answer on, within bounds.
    pub finished: Counter,
    /// They were broken off.
    pub cancelled: Counter,
}

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    routes: Mutex<BTreeMap<String, Arc<RouteMetrics>>>,
    /// By name, and the plan of the caller where that has a say.
    limits: Mutex<BTreeMap<(String, String), Arc<LimitMetrics>>>,
    upstreams: Mutex<BTreeMap<String, Arc<UpstreamMetrics>>>,
    /// By worker.
    pub workers: Box<[WorkerMetrics]>,
    /// Requests that matched no route.
    pub unrouted: Arc<RouteMetrics>,
    /// Requests of callers whom the operator has banned.
    pub operator: Arc<LimitMetrics>,
    refused: [Counter; Refused::NAMES.len()],
    /// By reason and priority.
    shed: [[Counter; Priority::ALL.len()]; Shed::ALL.len()],
    /// Reloads that took effect.
    pub reloads_ok: Counter,
    /// Reloads that were refused.
    pub reloads_failed: Counter,
    /// Requests whose token names a plan that nobody defined.
    pub unknown_plans: Counter,
    /// Lines of the access log that were dropped because its reader is too slow.
    pub log_lines_dropped: Arc<Counter>,
    /// Clients that left while a limit or a permit depended on their answer.
    pub clients_left: ClientsLeft,
    /// Spans that the collector has taken.
    pub spans_exported: Counter,
    /// Spans that it has not.
    pub spans_dropped: Counter,
    /// Requests to the admin listener that had a wrong token.
    pub admin_refused: Counter,
    /// The shared store's, if there is one.
    pub store: OnceLock<Arc<StoreMetrics>>,
}

impl Metrics {
    /// What metrics and logs name as the limit of those whom the operator has banned.
    pub const OPERATOR: &'static str = "operator";

    /// Nothing counted yet.
    pub fn new(workers: usize) -> Self {
        let operator = Arc::new(LimitMetrics::new(workers));
        // A limit that the file calls so has the same counters: no name is told twice.
        let name = (Self::OPERATOR.to_owned(), String::new());
        Self {
            routes: Mutex::default(),
            limits: Mutex::new([(name, Arc::clone(&operator))].into()),
            upstreams: Mutex::default(),
            workers: (0..workers).map(|_| WorkerMetrics::default()).collect(),
            unrouted: Arc::new(RouteMetrics(ByWorker::new(workers))),
            operator,
            refused: Default::default(),
            shed: Default::default(),
            reloads_ok: Counter::default(),
            reloads_failed: Counter::default(),
            unknown_plans: Counter::default(),
            log_lines_dropped: Arc::default(),
            spans_exported: Counter::default(),
            clients_left: ClientsLeft::default(),
            spans_dropped: Counter::default(),
            admin_refused: Counter::default(),
            store: OnceLock::new(),
        }
    }

    /// The counters of a route, the same ones as long as there is such a route.
    pub fn route(&self, name: &str) -> Arc<RouteMetrics> {
        let workers = self.workers.len();
        let new = || Arc::new(RouteMetrics(ByWorker::new(workers)));
        Arc::clone(self.routes.lock().entry(name.to_owned()).or_insert_with(new))
    }

    /// The counters of a limit for callers of a plan, the same ones as long as there is such a limit.
    pub fn limit(&self, name: &str, plan: &str) -> Arc<LimitMetrics> {
        let workers = self.workers.len();
        let new = || Arc::new(LimitMetrics::new(workers));
        let key = (name.to_owned(), plan.to_owned());
        Arc::clone(self.limits.lock().entry(key).or_insert_with(new))
    }

    /// The counters of an upstream, the same ones as long as there is such an upstream.
    pub fn upstream(&self, name: &str) -> Arc<UpstreamMetrics> {
        let mut upstreams = self.upstreams.lock();
        let upstream = Arc::clone(upstreams.entry(name.to_owned()).or_default());
        upstream.duration.get_or_init(|| ByWorker::new(self.workers.len()));
        upstream
    }

    /// All routes by name; those that matched none last, without one.
    pub fn routes(&self) -> Vec<(String, Arc<RouteMetrics>)> {
        let mut all = in_use(&self.routes);
        all.push((String::new(), Arc::clone(&self.unrouted)));
        all
    }

    /// All limits by name and plan; bans by the operator are counted as one of them.
    pub fn limits(&self) -> Vec<((String, String), Arc<LimitMetrics>)> {
        let mut all = in_use(&self.limits);
        // The map's, the operator's own and the one in the list; the file's limits have one more.
        let is_used = |limit: &Arc<LimitMetrics>| {
            Arc::strong_count(limit) > 3 || limit.verdicts().iter().any(|count| *count > 0)
        };
        all.retain(|(_, limit)| !Arc::ptr_eq(limit, &self.operator) || is_used(limit));
        all
    }

    /// All upstreams by name.
    pub fn upstreams(&self) -> Vec<(String, Arc<UpstreamMetrics>)> {
        in_use(&self.upstreams)
    }

    /// A second has passed.
    pub fn tick(&self) {
        self.limits.lock().values().for_each(|limit| limit.turn());
    }

    /// A guard of the edge refused something.
    pub fn refuse(&self, why: Refused) {
        self.refused[why as usize].increment();
    }

    /// How often a guard refused for this reason.
    pub fn refused(&self, reason: &str) -> u64 {
        self.refusals().find(|(name, _)| *name == reason).map_or(0, |(_, count)| count)
    }

    /// What the guards refused, by reason.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Refused::NAMES.into_iter().zip(self.refused.iter().map(Counter::value))
    }

    /// Too much was to be done, and this was not done.
    pub fn shed(&self, why: Shed, priority: Priority) {
        self.shed[why as usize][priority as usize].increment();
    }

    /// What was not done, by reason and priority.
    pub fn sheds(&self) -> impl Iterator<Item = (&'static str, Priority, u64)> {
        let counts = Shed::ALL.iter().zip(&self.shed);
        counts.flat_map(|((_, reason), counts)| {
            let each = Priority::ALL.into_iter().zip(counts);
            each.map(|(priority, count)| (*reason, priority, count.value()))
        })
    }

    /// What the gateway itself adds to requests.
    pub fn overhead(&self) -> Distribution {
        Distribution::of(self.workers.iter().map(|worker| &worker.overhead))
    }

    /// Open connections of all workers.
    pub fn connections(&self) -> u64 {
        self.workers.iter().map(WorkerMetrics::connections).sum()
    }

    /// Requests under way in all workers.
    pub fn in_flight(&self) -> u64 {
        self.workers.iter().map(|worker| worker.in_flight.load(Ordering::Relaxed)).sum()
    }
}

/// Those that something still counts in; the others are forgotten, so that names which come and go
/// with reloads do not pile up.
fn in_use<K: Clone + Ord, V>(all: &Mutex<BTreeMap<K, Arc<V>>>) -> Vec<(K, Arc<V>)> {
    let mut all = all.lock();
    all.retain(|_, value| Arc::strong_count(value) > 1);
    all.iter().map(|(key, value)| (key.clone(), Arc::clone(value))).collect()
}
