//! What is counted, as text for Prometheus.

use super::families::{self, Family, Kind};
use super::{Distribution, LimitMetrics, Metrics, Process, StoreMetrics, UpstreamMetrics};
use crate::overload::gate::Reading;
use crate::upstream::Fault;
use std::fmt::{Display, Write as _};

/// The two text formats that scrapers ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own, version 0.0.4.
    Classic,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// What the scraper's Accept header asks for.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Classic
        }
    }

    /// The content type of the answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Numbers that live elsewhere and are read when somebody scrapes.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    /// When the process began, in seconds since 1970.
    pub started: f64,
    /// How many configurations have been in force.
    pub generation: u64,
    /// When the one in force was loaded, in seconds since 1970.
    pub loaded_at: f64,
    /// When the file was read last, and whether it could be used.
    pub reloaded_at: f64,
    /// See `reloaded_at`.
    pub reload_ok: bool,
    /// Callers the memory store remembers.
    pub memory_keys: usize,
    /// How many it may remember.
    pub max_keys: usize,
    /// Callers who are banned.
    pub bans: usize,
    /// Callers who are granted other rates.
    pub grants: usize,
    /// Every endpoint there is.
    pub endpoints: Vec<EndpointReading>,
    /// Which share of its memory the process has, where there is a limit to it.
    pub memory_used: Option<f64>,
    /// Places in this process, where they are limited.
    pub gate: Option<Reading>,
    /// Places at upstreams, where they are limited.
    pub gates: Vec<(String, Reading)>,
    /// Where callers are shown a certificate, for whom, and until when it is valid.
    pub certificates: Vec<(String, String, i64)>,
    /// What the system says.
    pub process: Process,
    /// File descriptors the process may have.
    pub max_files: u64,
}

/// How an endpoint is doing.
#[derive(Clone, Debug)]
pub struct EndpointReading {
    /// Its upstream's name.
    pub upstream: String,
    /// Its own.
    pub name: String,
    /// It gets requests.
    pub in_service: bool,
    /// Requests under way.
    pub in_flight: u32,
}

type Pick = fn(&UpstreamMetrics) -> u64;
type ReadGate = fn(&Reading) -> u64;

impl Metrics {
    /// Everything as text.
    pub fn render(&self, format: Format, readings: &Readings) -> String {
        let mut page = Page { out: String::with_capacity(16 << 10), format };
        self.render_routes(&mut page);
        self.render_limits(&mut page);
        let mut refused = page.family(&families::REFUSED);
        self.refusals().for_each(|(reason, count)| refused.put(&[reason], count));
        self.render_upstreams(&mut page, &readings.endpoints);
        self.render_overload(&mut page, readings);
        if let Some(store) = self.store.get() {
            store.render(&mut page);
        }
        self.render_config(&mut page, readings);
        self.render_process(&mut page, readings);
        if format == Format::OpenMetrics {
            page.out.push_str("# EOF\n");
        }
        page.out
    }

    fn render_routes(&self, page: &mut Page) {
        let routes = self.routes();
        let mut requests = page.family(&families::REQUESTS);
        for (name, route) in &routes {
            for (status, count) in route.statuses() {
                requests.put(&[name, &status.to_string()], count);
            }
        }
        let mut durations = page.family(&families::REQUEST_DURATION);
        for (name, route) in &routes {
            durations.distribution(&[name], &route.duration());
        }
        let mut durations = page.family(&families::UPSTREAM_DURATION);
        for (name, upstream) in self.upstreams() {
            durations.distribution(&[&name], &upstream.duration());
        }
        page.family(&families::OVERHEAD_DURATION).distribution(&[], &self.overhead());
    }

    fn render_limits(&self, page: &mut Page) {
        let limits = self.limits();
        let mut decisions = page.family(&families::DECISIONS);
        for ((name, plan), limit) in &limits {
            for (verdict, count) in LimitMetrics::VERDICTS.iter().zip(limit.verdicts()) {
                decisions.put(&[name, plan, verdict], count);
            }
        }
        // Plans are parts of one limit.
        let of_name = |name: &str| {
            let parts = limits.iter().filter(|((of, _), _)| of == name).map(|(_, limit)| limit);
            parts.fold((0.0_f32, 0), |(pressure, unsettled), limit| {
                (pressure.max(limit.pressure()), unsettled + limit.unsettled.value())
            })
        };
        let mut names: Vec<&str> = limits.iter().map(|((name, _), _)| name.as_str()).collect();
        names.dedup();
        let read: Vec<_> = names.iter().map(|name| (*name, of_name(name))).collect();
        let mut pressures = page.family(&families::PRESSURE);
        for (name, (pressure, _)) in &read {
            pressures.put(&[name], pressure);
        }
        let mut unsettled = page.family(&families::UNSETTLED);
        for (name, (_, count)) in &read {
            unsettled.put(&[name], count);
        }
    }

    fn render_upstreams(&self, page: &mut Page, endpoints: &[EndpointReading]) {
        let upstreams = self.upstreams();
        let mut failures = page.family(&families::UPSTREAM_FAILURES);
        for (name, upstream) in &upstreams {
            for ((_, reason), count) in Fault::ALL.iter().zip(&upstream.faults) {
                failures.put(&[name, reason], count.value());
            }
        }
        let counters: [(Family, Pick); 5] = [
            (families::UPSTREAM_RETRIES, |u| u.retries.value()),
            (families::UPSTREAM_RETRIES_REFUSED, |u| u.over_budget.value()),
            (families::UPSTREAM_UNAVAILABLE, |u| u.unavailable.value()),
            (families::UPSTREAM_EJECTIONS, |u| u.ejections.value()),
            (families::CHECKS_FAILED, |u| u.checks_failed.value()),
        ];
        for (family, pick) in counters {
            let mut family = page.family(&family);
            for (name, upstream) in &upstreams {
                family.put(&[name], pick(upstream));
            }
        }
        let mut in_service = page.family(&families::ENDPOINT_IN_SERVICE);
        for endpoint in endpoints {
            let labels = [endpoint.upstream.as_str(), endpoint.name.as_str()];
            in_service.put(&labels, u8::from(endpoint.in_service));
        }
        let mut in_flight = page.family(&families::ENDPOINT_IN_FLIGHT);
        for endpoint in endpoints {
            let labels = [endpoint.upstream.as_str(), endpoint.name.as_str()];
            in_flight.put(&labels, endpoint.in_flight);
        }
    }

    fn render_overload(&self, page: &mut Page, readings: &Readings) {
        let gauges: [(Family, ReadGate); 3] = [
            (families::PLACES, |g| g.places.into()),
            (families::PLACES_TAKEN, |g| g.taken.into()),
            (families::WAITING, |g| g.waiting as u64),
        ];
        for (family, read) in gauges {
            let mut family = page.family(&family);
            readings.gates.iter().for_each(|(name, gate)| family.put(&[name], read(gate)));
        }
        let mut shed = page.family(&families::SHED);
        for (reason, priority, count) in self.sheds() {
            shed.put(&[reason, priority.name()], count);
        }
        if let Some(gate) = &readings.gate {
            page.family(&families::MAX_IN_FLIGHT).put(&[], gate.places);
        }
        let mut lag = page.family(&families::WORKER_LAG);
        for (index, worker) in self.workers.iter().enumerate() {
            lag.put(&[&index.to_string()], worker.lag.value() as f64 / 1e6);
        }
        let mut level = page.family(&families::OVERLOAD_LEVEL);
        for (index, worker) in self.workers.iter().enumerate() {
            level.put(&[&index.to_string()], worker.level.value() as f64 / 1e3);
        }
        if let Some(used) = readings.memory_used {
            page.family(&families::MEMORY_USED).put(&[], used);
        }
    }

    fn render_config(&self, page: &mut Page, readings: &Readings) {
        let mut reloads = page.family(&families::RELOADS);
        reloads.put(&["ok"], self.reloads_ok.value());
        reloads.put(&["error"], self.reloads_failed.value());
        page.one(&families::RELOAD_OK, u8::from(readings.reload_ok));
        page.one(&families::RELOADED_AT, readings.reloaded_at);
        page.one(&families::GENERATION, readings.generation);
        page.one(&families::LOADED_AT, readings.loaded_at);
        let mut expiry = page.family(&families::CERTIFICATE_EXPIRY);
        for (listener, name, until) in &readings.certificates {
            expiry.put(&[listener, name], until);
        }
    }

    fn render_process(&self, page: &mut Page, readings: &Readings) {
        page.one(&families::UNKNOWN_PLANS, self.unknown_plans.value());
        page.one(&families::LOG_DROPPED, self.log_lines_dropped.value());
        let mut left = page.family(&families::CLIENTS_LEFT);
        left.put(&["finished"], self.clients_left.finished.value());
        left.put(&["cancelled"], self.clients_left.cancelled.value());
        page.one(&families::SPANS_EXPORTED, self.spans_exported.value());
        page.one(&families::SPANS_DROPPED, self.spans_dropped.value());
        page.one(&families::IN_FLIGHT, self.in_flight());
        page.one(&families::CONNECTIONS, self.connections());
        page.one(&families::MEMORY_KEYS, readings.memory_keys);
        page.one(&families::MAX_KEYS, readings.max_keys);
        page.one(&families::BANS, readings.bans);
        page.one(&families::GRANTS, readings.grants);
        page.one(&families::ADMIN_REFUSED, self.admin_refused.value());
        page.family(&families::BUILD).put(&[env!("CARGO_PKG_VERSION")], 1);
        let Process { cpu_seconds, resident_bytes, open_files } = readings.process;
        if let Some(seconds) = cpu_seconds {
            page.one(&families::CPU, seconds);
        }
        if let Some(bytes) = resident_bytes {
            page.one(&families::RESIDENT, bytes);
        }
        if let Some(count) = open_files {
            page.one(&families::OPEN_FILES, count);
        }
        page.one(&families::MAX_FILES, readings.max_files);
        page.one(&families::STARTED, readings.started);
    }
}

impl StoreMetrics {
    fn render(&self, page: &mut Page) {
        page.one(&families::STORE_UP, self.up.value());
        page.family(&families::STORE_DURATION).distribution(&[], &self.duration());
        page.one(&families::STORE_CALLS, self.calls.value());
        let mut failures = page.family(&families::STORE_FAILURES);
        self.failures().iter().for_each(|(why, count)| failures.put(&[why], count));
        page.one(&families::STORE_BREAKER_OPENED, self.opened.value());
        page.one(&families::STORE_FALLBACKS, self.fallbacks.value());
        page.one(&families::STORE_RECALLED, self.recalled.value());
        page.one(&families::STORE_DENIALS, self.denials.value());
        page.one(&families::STORE_LEASES, self.leases.value());
        page.one(&families::STORE_LEASED, self.leased.value());
        page.one(&families::STORE_OWED, self.owed.value());
    }
}

struct Page {
    out: String,
    format: Format,
}

/// A metric whose samples are being written.
struct Samples<'p> {
    out: &'p mut String,
    family: Family,
}

impl Page {
    /// OpenMetrics names a family of counters without the `_total` of its samples.
    fn family(&mut self, family: &Family) -> Samples<'_> {
        let Family { name, kind, help, .. } = family;
        let counter = *kind == Kind::Counter && self.format == Format::Classic;
        let (end, kind) = (if counter { "_total" } else { "" }, kind.name());
        let _ = writeln!(self.out, "# HELP {name}{end} {help}\n# TYPE {name}{end} {kind}");
        Samples { out: &mut self.out, family: *family }
    }

    /// A metric that is one number.
    fn one(&mut self, family: &Family, value: impl Display) {
        self.family(family).put(&[], value);
    }
}

impl Samples<'_> {
    fn put(&mut self, labels: &[&str], value: impl Display) {
        let end = if self.family.kind == Kind::Counter { "_total" } else { "" };
        self.sample(end, labels, None, value);
    }

    /// A distribution of nothing is left out.
    fn distribution(&mut self, labels: &[&str], read: &Distribution) {
        let count = read.count();
        if count == 0 {
            return;
        }
        for (bound, within) in read.cumulative() {
            self.sample("_bucket", labels, Some(&bound.to_string()), within);
        }
        self.sample("_bucket", labels, Some("+Inf"), count);
        self.sample("_sum", labels, None, read.seconds());
        self.sample("_count", labels, None, count);
    }

    /// A label without a value is none.
    fn sample(&mut self, end: &str, labels: &[&str], bound: Option<&str>, value: impl Display) {
        let _ = write!(self.out, "{}{end}", self.family.name);
        let named = self.family.labels.iter().copied().zip(labels.iter().copied());
        let optional = |(label, text): &(&str, &str)| *label != "plan" || !text.is_empty();
        let mut open = '{';
        for (label, text) in named.filter(optional).chain(bound.map(|bound| ("le", bound))) {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.out, "{open}{label}=\"{text}\"");
            open = ',';
        }
        let close = if open == ',' { "}" } else { "" };
        let _ = writeln!(self.out, "{close} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_say_the_same_in_their_own_way() {
        let metrics = Metrics::new(1);
        let (route, limit) = (metrics.route("a\"b"), metrics.limit("per-ip", ""));
        let free = metrics.limit("quota", "free");
        route.of(0).count(http::StatusCode::OK);
        route.of(0).took(20);
        limit.of(0).rejected.bump();
        free.of(0).allowed.bump();
        let classic = metrics.render(Format::Classic, &Readings::default());
        for line in [
            "# TYPE sluice_requests_total counter",
            "sluice_requests_total{route=\"a\\\"b\",status=\"200\"} 1",
            "sluice_request_duration_seconds_bucket{route=\"a\\\"b\",le=\"0.000016\"} 0",
            "sluice_request_duration_seconds_bucket{route=\"a\\\"b\",le=\"0.000032\"} 1",
            "sluice_request_duration_seconds_bucket{route=\"a\\\"b\",le=\"+Inf\"} 1",
            "sluice_request_duration_seconds_sum{route=\"a\\\"b\"} 0.00002",
            "sluice_limit_decisions_total{limit=\"per-ip\",verdict=\"rejected\"} 1",
            "sluice_limit_decisions_total{limit=\"quota\",plan=\"free\",verdict=\"allowed\"} 1",
            "sluice_connections 0",
        ] {
            assert!(classic.lines().any(|l| l == line), "{line} in\n{classic}");
        }
        let open = metrics.render(Format::OpenMetrics, &Readings::default());
        assert!(open.contains("# TYPE sluice_requests counter\n"));
        assert!(open.ends_with("# EOF\n"));
    }

    #[test]
    fn a_limit_called_operator_is_told_once() {
        let metrics = Metrics::new(1);
        let told = || {
            let page = metrics.render(Format::Classic, &Readings::default());
            page.lines().filter(|line| line.contains("verdict=\"banned\"")).count()
        };
        assert_eq!(told(), 0, "nobody was banned, nor is there such a limit");
        let limit = metrics.limit(Metrics::OPERATOR, "");
        assert_eq!(told(), 1);
        metrics.operator.of(0).banned.bump();
        assert_eq!((told(), limit.total("banned")), (1, 1));
        drop(limit);
        assert_eq!(told(), 1);
    }

    #[test]
    fn names_that_nobody_uses_any_more_are_forgotten() {
        let metrics = Metrics::new(1);
        let stays = metrics.route("stays");
        metrics.route("goes").of(0).count(http::StatusCode::OK);
        stays.of(0).count(http::StatusCode::OK);
        let names: Vec<_> = metrics.routes().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["stays", ""]);
        assert_eq!(metrics.route("goes").statuses().len(), 0, "it begins anew");
    }
}
