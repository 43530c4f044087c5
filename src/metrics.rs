//! What the gateway counts, and how it is written for Prometheus.
//!
//! Routes and limits get their counters by name once, when a snapshot is built, and keep them over
//! reloads; a request only adds to numbers it holds already. No caller is ever a label.

mod page;

pub use page::{EndpointReading, Format, Readings};

use crate::clock::micros;
use crate::config::model::Priority;
use crate::overload::Shed;
use crate::upstream::Fault;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
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

    /// What it stands at.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Requests of one route, by status.
#[derive(Debug, Default)]
pub struct RouteMetrics {
    /// One hundred counters a class of status, made when the class is first seen.
    classes: [OnceLock<Box<[Counter]>>; 10],
}

impl RouteMetrics {
    /// One more answer with this status.
    pub fn count(&self, status: http::StatusCode) {
        let code = usize::from(status.as_u16());
        let class = self.classes[code / 100 % 10]
            .get_or_init(|| std::iter::repeat_with(Counter::default).take(100).collect());
        class[code % 100].increment();
    }

    fn statuses(&self) -> impl Iterator<Item = (usize, u64)> {
        let codes = |(class, counters): (usize, &OnceLock<Box<[Counter]>>)| {
            let counters = counters.get().map(|c| c.iter()).into_iter().flatten();
            counters
                .enumerate()
                .map(|(code, c)| (class * 100 + code, c.value()))
                .collect::<Vec<_>>()
        };
        self.classes.iter().enumerate().flat_map(codes).filter(|&(_, count)| count > 0)
    }
}

/// Decisions of one limit.
#[derive(Debug, Default)]
pub struct LimitMetrics {
    /// Charged to requests that passed.
    pub allowed: Counter,
    /// Requests this limit rejected.
    pub rejected: Counter,
    /// Requests it would have rejected, were it not a shadow.
    pub shadow_rejected: Counter,
    /// Requests of callers that no limit applies to.
    pub exempt: Counter,
    /// Requests of callers who are banned for ignoring this limit.
    pub banned: Counter,
    /// Answers that did not tell what the request cost.
    pub unsettled: Counter,
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
}

/// Gauges of one worker, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerMetrics {
    in_flight: AtomicU64,
    connections: AtomicU64,
    /// How late it came to its work the last time, in microseconds.
    pub lag: Gauge,
    /// The level of what it refuses, in thousandths.
    pub level: Gauge,
}

impl WorkerMetrics {
    /// How late it came to its work, and what it refuses for that.
    #[expect(clippy::cast_sign_loss, reason = "no level is less than nothing")]
    pub fn note_pressure(&self, lag: Duration, level: f64) {
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
#[derive(Debug, Default)]
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
    failures: Mutex<BTreeMap<&'static str, u64>>,
}

impl StoreMetrics {
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
}

impl Refused {
    const NAMES: [&str; 11] = [
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
    ];
}

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    routes: Mutex<BTreeMap<String, Arc<RouteMetrics>>>,
    limits: Mutex<BTreeMap<String, Arc<LimitMetrics>>>,
    upstreams: Mutex<BTreeMap<String, Arc<UpstreamMetrics>>>,
    /// By worker.
    pub workers: Box<[WorkerMetrics]>,
    /// Requests that matched no route.
    pub unrouted: Arc<RouteMetrics>,
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
    /// The shared store's, if there is one.
    pub store: OnceLock<Arc<StoreMetrics>>,
}

impl Metrics {
    /// Nothing counted yet.
    pub fn new(workers: usize) -> Self {
        Self {
            routes: Mutex::default(),
            limits: Mutex::default(),
            upstreams: Mutex::default(),
            workers: (0..workers).map(|_| WorkerMetrics::default()).collect(),
            unrouted: Arc::default(),
            refused: Default::default(),
            shed: Default::default(),
            reloads_ok: Counter::default(),
            reloads_failed: Counter::default(),
            unknown_plans: Counter::default(),
            log_lines_dropped: Arc::default(),
            store: OnceLock::new(),
        }
    }

    /// The counters of a route, the same ones as long as the process lives.
    pub fn route(&self, name: &str) -> Arc<RouteMetrics> {
        Arc::clone(self.routes.lock().entry(name.to_owned()).or_default())
    }

    /// The counters of a limit, the same ones as long as the process lives.
    pub fn limit(&self, name: &str) -> Arc<LimitMetrics> {
        Arc::clone(self.limits.lock().entry(name.to_owned()).or_default())
    }

    /// The counters of an upstream, the same ones as long as the process lives.
    pub fn upstream(&self, name: &str) -> Arc<UpstreamMetrics> {
        Arc::clone(self.upstreams.lock().entry(name.to_owned()).or_default())
    }

    /// A guard of the edge refused something.
    pub fn refuse(&self, why: Refused) {
        self.refused[why as usize].increment();
    }

    /// Too much was to be done, and this was not done.
    pub fn shed(&self, why: Shed, priority: Priority) {
        self.shed[why as usize][priority as usize].increment();
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
