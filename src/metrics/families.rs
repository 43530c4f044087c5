//! Every metric there is, in the order of the page: its name, its kind, its labels, what it says.
//! What is written for scrapers, the reference and the shipped alerts and dashboards go by this list.

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Without the endings that its samples have.
    pub name: &'static str,
    /// What kind of number it is.
    pub kind: Kind,
    /// What it is told apart by. No caller ever is.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Lengths of time, in buckets.
    Histogram,
}

impl Kind {
    /// What scrapers call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Family {
    /// What its samples are called, as queries name them.
    pub fn samples(&self) -> Vec<String> {
        let endings: &[&str] = match self.kind {
            Kind::Counter => &["_total"],
            Kind::Gauge => &[""],
            Kind::Histogram => &["_bucket", "_sum", "_count"],
        };
        endings.iter().map(|ending| format!("{}{ending}", self.name)).collect()
    }
}

macro_rules! families {
    ($($id:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub(super) const $id: Family = Family {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// All of them.
        pub const ALL: &[Family] = &[$($id),*];
    };
}

families! {
    REQUESTS: Counter "sluice_requests" ["route", "status"]
        "Requests answered, by route and status.";
    REQUEST_DURATION: Histogram "sluice_request_duration_seconds" ["route"]
        "From the head of a request to the end of its answer, tunnels to the end of its head.";
    UPSTREAM_DURATION: Histogram "sluice_upstream_duration_seconds" ["upstream"]
        "From asking an endpoint to the head of its answer, or until it is given up.";
    OVERHEAD_DURATION: Histogram "sluice_overhead_duration_seconds" []
        "What the gateway itself adds to a request before the head of its answer is out.";
    DECISIONS: Counter "sluice_limit_decisions" ["limit", "plan", "verdict"]
        "Decisions, by limit, the caller's plan and verdict.";
    PRESSURE: Gauge "sluice_limit_pressure_ratio" ["limit"]
        "The largest used share of the limit that any caller had in the last seconds.";
    UNSETTLED: Counter "sluice_limit_unsettled" ["limit"]
        "Answers that did not tell their cost: what was reserved stays charged.";
    REFUSED: Counter "sluice_refused" ["reason"]
        "Connections and requests that the guards of the edge refused, by reason.";
    UPSTREAM_FAILURES: Counter "sluice_upstream_failures" ["upstream", "reason"]
        "Requests that an endpoint failed, by upstream and reason.";
    UPSTREAM_RETRIES: Counter "sluice_upstream_retries" ["upstream"]
        "Requests sent once more, to another endpoint.";
    UPSTREAM_RETRIES_REFUSED: Counter "sluice_upstream_retries_refused" ["upstream"]
        "Requests not sent again for want of budget.";
    UPSTREAM_UNAVAILABLE: Counter "sluice_upstream_unavailable" ["upstream"]
        "Requests for which no endpoint was left.";
    UPSTREAM_EJECTIONS: Counter "sluice_upstream_ejections" ["upstream"]
        "Endpoints left alone for a while.";
    CHECKS_FAILED: Counter "sluice_health_checks_failed" ["upstream"]
        "Health checks that failed.";
    ENDPOINT_IN_SERVICE: Gauge "sluice_endpoint_in_service" ["upstream", "endpoint"]
        "1 if the endpoint gets requests, 0 if it is out.";
    ENDPOINT_IN_FLIGHT: Gauge "sluice_endpoint_requests_in_flight" ["upstream", "endpoint"]
        "Requests under way at an endpoint.";
    PLACES: Gauge "sluice_upstream_places" ["upstream"]
        "Requests that an upstream is given at once.";
    PLACES_TAKEN: Gauge "sluice_upstream_places_taken" ["upstream"]
        "Requests that an upstream has.";
    WAITING: Gauge "sluice_upstream_waiting" ["upstream"]
        "Requests that wait for a place.";
    SHED: Counter "sluice_shed" ["reason", "priority"]
        "Requests refused for want of capacity, by reason and priority.";
    MAX_IN_FLIGHT: Gauge "sluice_max_in_flight" []
        "Requests that may be under way.";
    WORKER_LAG: Gauge "sluice_worker_lag_seconds" ["worker"]
        "How late a worker comes to its work.";
    OVERLOAD_LEVEL: Gauge "sluice_overload_level" ["worker"]
        "What a worker refuses: 0 nothing, 1 sheddable, 2 normal, 3 critical requests.";
    MEMORY_USED: Gauge "sluice_memory_used_ratio" []
        "Share of the memory that is used.";
    STORE_UP: Gauge "sluice_store_up" []
        "1 while the shared store is asked; 0 while its breaker is open.";
    STORE_DURATION: Histogram "sluice_store_duration_seconds" []
        "How long the shared store takes for a script.";
    STORE_CALLS: Counter "sluice_store_calls" []
        "Scripts that the shared store was asked to run.";
    STORE_FAILURES: Counter "sluice_store_failures" ["reason"]
        "Failures of the store, by reason.";
    STORE_BREAKER_OPENED: Counter "sluice_store_breaker_opened" []
        "How often the store was given up until it is back.";
    STORE_FALLBACKS: Counter "sluice_store_fallbacks" []
        "Decisions made without the store, as 'on_failure' says.";
    STORE_RECALLED: Counter "sluice_store_recalled" []
        "Rejects that were known without asking the store.";
    STORE_DENIALS: Gauge "sluice_store_denials" []
        "Rejects that are remembered so that the store need not be asked.";
    STORE_LEASES: Gauge "sluice_store_leases" []
        "Counters of which this gateway holds allowance.";
    STORE_LEASED: Counter "sluice_store_leased" []
        "Decisions served from allowance that was here already.";
    STORE_OWED: Gauge "sluice_store_owed" []
        "Counters to be charged when it is back.";
    RELOADS: Counter "sluice_config_reloads" ["result"]
        "Reloads of the configuration, by result.";
    RELOAD_OK: Gauge "sluice_config_last_reload_success" []
        "1 if the file, as it was read last, is in force.";
    RELOADED_AT: Gauge "sluice_config_last_reload_timestamp_seconds" []
        "When the file was read last.";
    GENERATION: Gauge "sluice_config_generation" []
        "Configurations that have been in force.";
    LOADED_AT: Gauge "sluice_config_loaded_timestamp_seconds" []
        "When the configuration in force was loaded.";
    CERTIFICATE_EXPIRY: Gauge "sluice_certificate_expiry_timestamp_seconds" ["listener", "name"]
        "When a certificate that callers are shown expires.";
    UNKNOWN_PLANS: Counter "sluice_unknown_plans" []
        "Tokens that name a plan nobody defined.";
    LOG_DROPPED: Counter "sluice_access_log_dropped" []
        "Lines of the access log that could not be written, or not in time.";
    CLIENTS_LEFT: Counter "sluice_clients_left" ["outcome"]
        "Clients that left while a limit or a permit depended on their answer, by what became of the request: finished or cancelled.";
    SPANS_EXPORTED: Counter "sluice_spans_exported" []
        "Spans that the collector has taken.";
    SPANS_DROPPED: Counter "sluice_spans_dropped" []
        "Spans that it has not, or that there was no room for.";
    IN_FLIGHT: Gauge "sluice_requests_in_flight" []
        "Requests under way.";
    CONNECTIONS: Gauge "sluice_connections" []
        "Open connections of callers.";
    MEMORY_KEYS: Gauge "sluice_memory_keys" []
        "Counters the memory store holds.";
    MAX_KEYS: Gauge "sluice_memory_keys_max" []
        "Counters it may hold.";
    BANS: Gauge "sluice_bans" []
        "Callers who are banned.";
    GRANTS: Gauge "sluice_grants" []
        "Callers who are granted other rates for a while.";
    ADMIN_REFUSED: Counter "sluice_admin_refused" []
        "Requests to the admin listener with a wrong token, or after too many of them.";
    BUILD: Gauge "sluice_build_info" ["version"]
        "1; which version this is.";
    CPU: Counter "process_cpu_seconds" []
        "Processor time, of user and system.";
    RESIDENT: Gauge "process_resident_memory_bytes" []
        "Memory that is resident.";
    OPEN_FILES: Gauge "process_open_fds" []
        "Open file descriptors.";
    MAX_FILES: Gauge "process_max_fds" []
        "File descriptors there may be.";
    STARTED: Gauge "process_start_time_seconds" []
        "When the process began.";
}
