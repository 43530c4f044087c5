//! What is counted, as text for Prometheus.

use super::{Counter, Metrics, Refused, StoreMetrics, UpstreamMetrics};
use crate::config::model::Priority;
use crate::overload::Shed;
use crate::overload::gate::Reading;
use crate::upstream::Fault;
use std::fmt::{Display, Write as _};
use std::sync::Arc;

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
    /// How many configurations have been in force.
    pub generation: u64,
    /// When the one in force was loaded, in seconds since 1970.
    pub loaded_at: u64,
    /// Callers the memory store remembers.
    pub memory_keys: usize,
    /// Callers who are banned.
    pub bans: usize,
    /// Every endpoint there is.
    pub endpoints: Vec<EndpointReading>,
    /// Which share of its memory the process has, where there is a limit to it.
    pub memory_used: Option<f64>,
    /// Places in this process, where they are limited.
    pub gate: Option<Reading>,
    /// Places at upstreams, where they are limited.
    pub gates: Vec<(String, Reading)>,
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

type Pick = fn(&UpstreamMetrics) -> &Counter;
type Read = fn(&EndpointReading) -> u64;
type ReadGate = fn(&Reading) -> u64;

impl Metrics {
    /// Everything as text.
    pub fn render(&self, format: Format, readings: &Readings) -> String {
        let mut page = Page { out: String::with_capacity(4096), format };
        page.family("sluice_requests", "counter", "Requests answered, by route and status.");
        let routes = self.routes.lock();
        let unrouted = [(String::new(), Arc::clone(&self.unrouted))];
        for (name, route) in routes.iter().chain(unrouted.iter().map(|(n, r)| (n, r))) {
            for (status, count) in route.statuses() {
                let status = status.to_string();
                page.counter("sluice_requests", &[("route", name), ("status", &status)], count);
            }
        }
        page.family("sluice_limit_decisions", "counter", "Decisions, by limit and verdict.");
        for (name, limit) in self.limits.lock().iter() {
            let verdicts = [
                ("allowed", &limit.allowed),
                ("rejected", &limit.rejected),
                ("shadow_rejected", &limit.shadow_rejected),
                ("exempt", &limit.exempt),
                ("banned", &limit.banned),
            ];
            for (verdict, count) in verdicts {
                let labels = [("limit", name.as_str()), ("verdict", verdict)];
                page.counter("sluice_limit_decisions", &labels, count.value());
            }
        }
        page.family(
            "sluice_limit_unsettled",
            "counter",
            "Answers that did not tell their cost: what was reserved stays charged.",
        );
        for (name, limit) in self.limits.lock().iter() {
            let labels = [("limit", name.as_str())];
            page.counter("sluice_limit_unsettled", &labels, limit.unsettled.value());
        }
        page.family(
            "sluice_refused",
            "counter",
            "Connections and requests that the guards of the edge refused, by reason.",
        );
        for (reason, count) in Refused::NAMES.iter().zip(&self.refused) {
            page.counter("sluice_refused", &[("reason", reason)], count.value());
        }
        self.render_upstreams(&mut page, &readings.endpoints);
        self.render_overload(&mut page, readings);
        if let Some(store) = self.store.get() {
            store.render(&mut page);
        }
        self.render_process(&mut page, readings);
        if format == Format::OpenMetrics {
            page.out.push_str("# EOF\n");
        }
        page.out
    }

    fn render_upstreams(&self, page: &mut Page, endpoints: &[EndpointReading]) {
        let upstreams = self.upstreams.lock();
        page.family(
            "sluice_upstream_failures",
            "counter",
            "Requests that an endpoint failed, by upstream and reason.",
        );
        for (name, upstream) in upstreams.iter() {
            for ((_, reason), count) in Fault::ALL.iter().zip(&upstream.faults) {
                let labels = [("upstream", name.as_str()), ("reason", *reason)];
                page.counter("sluice_upstream_failures", &labels, count.value());
            }
        }
        let families: [(&str, &str, Pick); 5] = [
            ("sluice_upstream_retries", "Requests sent once more, to another endpoint.", |u| {
                &u.retries
            }),
            (
                "sluice_upstream_retries_refused",
                "Requests not sent again for want of budget.",
                |u| &u.over_budget,
            ),
            ("sluice_upstream_unavailable", "Requests for which no endpoint was left.", |u| {
                &u.unavailable
            }),
            ("sluice_upstream_ejections", "Endpoints left alone for a while.", |u| &u.ejections),
            ("sluice_health_checks_failed", "Health checks that failed.", |u| &u.checks_failed),
        ];
        for (family, help, pick) in families {
            page.family(family, "counter", help);
            for (name, upstream) in upstreams.iter() {
                page.counter(family, &[("upstream", name.as_str())], pick(upstream).value());
            }
        }
        let families: [(&str, &str, Read); 2] = [
            (
                "sluice_endpoint_in_service",
                "1 if the endpoint gets requests, 0 if it is out.",
                |e| u64::from(e.in_service),
            ),
            ("sluice_endpoint_requests_in_flight", "Requests under way at an endpoint.", |e| {
                u64::from(e.in_flight)
            }),
        ];
        for (family, help, read) in families {
            page.family(family, "gauge", help);
            for endpoint in endpoints {
                let labels = [
                    ("upstream", endpoint.upstream.as_str()),
                    ("endpoint", endpoint.name.as_str()),
                ];
                page.sample(family, &labels, read(endpoint));
            }
        }
    }

    fn render_overload(&self, page: &mut Page, readings: &Readings) {
        page.family(
            "sluice_shed",
            "counter",
            "Requests refused for want of capacity, by reason and priority.",
        );
        for ((_, reason), counts) in Shed::ALL.iter().zip(&self.shed) {
            for (priority, count) in Priority::ALL.iter().zip(counts) {
                let labels = [("reason", *reason), ("priority", priority.name())];
                page.counter("sluice_shed", &labels, count.value());
            }
        }
        let families: [(&str, &str, ReadGate); 3] = [
            ("sluice_upstream_places", "Requests that an upstream is given at once.", |g| {
                g.places.into()
            }),
            ("sluice_upstream_places_taken", "Requests that an upstream has.", |g| g.taken.into()),
            ("sluice_upstream_waiting", "Requests that wait for a place.", |g| g.waiting as u64),
        ];
        for (family, help, read) in families {
            page.family(family, "gauge", help);
            for (name, gate) in &readings.gates {
                page.sample(family, &[("upstream", name)], read(gate));
            }
        }
        if let Some(gate) = &readings.gate {
            page.family("sluice_max_in_flight", "gauge", "Requests that may be under way.");
            page.sample("sluice_max_in_flight", &[], gate.places);
        }
        page.family("sluice_worker_lag_seconds", "gauge", "How late a worker comes to its work.");
        for (index, worker) in self.workers.iter().enumerate() {
            let lag = worker.lag.value() as f64 / 1e6;
            page.sample("sluice_worker_lag_seconds", &[("worker", &index.to_string())], lag);
        }
        page.family(
            "sluice_overload_level",
            "gauge",
            "What a worker refuses: 0 nothing, 1 sheddable, 2 normal, 3 critical requests.",
        );
        for (index, worker) in self.workers.iter().enumerate() {
            let level = worker.level.value() as f64 / 1e3;
            page.sample("sluice_overload_level", &[("worker", &index.to_string())], level);
        }
        if let Some(used) = readings.memory_used {
            page.family("sluice_memory_used_ratio", "gauge", "Share of the memory that is used.");
            page.sample("sluice_memory_used_ratio", &[], used);
        }
    }

    fn render_process(&self, page: &mut Page, readings: &Readings) {
        page.family("sluice_config_reloads", "counter", "Reloads of the configuration, by result.");
        page.counter("sluice_config_reloads", &[("result", "ok")], self.reloads_ok.value());
        page.counter("sluice_config_reloads", &[("result", "error")], self.reloads_failed.value());
        let counters = [
            (
                "sluice_unknown_plans",
                "Tokens that name a plan nobody defined.",
                &self.unknown_plans,
            ),
            (
                "sluice_access_log_dropped",
                "Lines of the access log that could not be written, or not in time.",
                &*self.log_lines_dropped,
            ),
        ];
        for (name, help, count) in counters {
            page.family(name, "counter", help);
            page.counter(name, &[], count.value());
        }
        let gauges = [
            ("sluice_requests_in_flight", "Requests under way.", self.in_flight()),
            ("sluice_connections", "Open connections of callers.", self.connections()),
            (
                "sluice_config_generation",
                "Configurations that have been in force.",
                readings.generation,
            ),
            (
                "sluice_config_loaded_timestamp_seconds",
                "When the configuration in force was loaded.",
                readings.loaded_at,
            ),
            ("sluice_memory_keys", "Counters the memory store holds.", readings.memory_keys as u64),
        ];
        let bans = ("sluice_bans", "Callers who are banned.", readings.bans as u64);
        for (name, help, value) in gauges.into_iter().chain([bans]) {
            page.family(name, "gauge", help);
            page.sample(name, &[], value);
        }
    }
}

impl StoreMetrics {
    fn render(&self, page: &mut Page) {
        let gauges = [
            ("sluice_store_up", "1 while the shared store is asked; 0 while it is away.", &self.up),
            ("sluice_store_owed", "Counters to be charged when it is back.", &self.owed),
        ];
        for (name, help, gauge) in gauges {
            page.family(name, "gauge", help);
            page.sample(name, &[], gauge.value());
        }
        let counters = [
            ("sluice_store_calls", "Scripts that the shared store was asked to run.", &self.calls),
            (
                "sluice_store_recalled",
                "Rejects that were known without asking the store.",
                &self.recalled,
            ),
            (
                "sluice_store_fallbacks",
                "Decisions made without the store, as 'on_failure' says.",
                &self.fallbacks,
            ),
        ];
        for (name, help, counter) in counters {
            page.family(name, "counter", help);
            page.counter(name, &[], counter.value());
        }
        page.family("sluice_store_failures", "counter", "Failures of the store, by reason.");
        for (why, count) in self.failures.lock().iter() {
            page.counter("sluice_store_failures", &[("reason", why)], *count);
        }
    }
}

struct Page {
    out: String,
    format: Format,
}

impl Page {
    /// OpenMetrics names a family of counters without the `_total` of its samples.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let suffix =
            if kind == "counter" && self.format == Format::Classic { "_total" } else { "" };
        let _ = writeln!(self.out, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}");
    }

    fn counter(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.sample(&format!("{name}_total"), labels, value);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.out.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.out.push(if index == 0 { '{' } else { ',' });
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.out, "{label}=\"{text}\"");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.out, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_say_the_same_in_their_own_way() {
        let metrics = Metrics::new(1);
        metrics.route("a\"b").count(http::StatusCode::OK);
        metrics.limit("per-ip").rejected.increment();
        let classic = metrics.render(Format::Classic, &Readings::default());
        assert!(classic.contains("# TYPE sluice_requests_total counter\n"));
        assert!(classic.contains("sluice_requests_total{route=\"a\\\"b\",status=\"200\"} 1\n"));
        assert!(classic.contains("{limit=\"per-ip\",verdict=\"rejected\"} 1\n"));
        let open = metrics.render(Format::OpenMetrics, &Readings::default());
        assert!(open.contains("# TYPE sluice_requests counter\n"));
        assert!(open.ends_with("# EOF\n"));
    }
}
