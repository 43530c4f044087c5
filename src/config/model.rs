//! What a valid `gateway.yaml` says, as types. Knows nothing of the runtime; nothing in here can
//! still turn out to be wrong.

use crate::json_path::JsonPath;
use crate::limit::{Period, Quota, Rate};
use crate::tls::{Certificate, client};
use crate::token::Verifier;
use http::{HeaderName, HeaderValue, Method};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// `store.memory.snapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The file.
    pub path: PathBuf,
    /// How often it is written; it is when the gateway stops, too.
    pub every: Duration,
}

/// `store.redis`, and what happens while it is away.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedStore {
    /// Where it is.
    pub servers: RedisServers,
    /// Certificates for `rediss://`.
    pub tls: Option<RedisTls>,
    /// How its keys begin.
    pub prefix: String,
    /// How long a decision may take.
    pub timeout: Duration,
    /// After so many failures in a row it is not asked any more, ...
    pub failures: u32,
    /// ... until a probe succeeds, one in so long.
    pub probe_after: Duration,
    /// What limits do while it is away that do not say so themselves.
    pub on_failure: OnFailure,
    /// The share of each limit that this gateway enforces meanwhile.
    pub local_share: f64,
    /// How many callers it remembers meanwhile.
    pub max_keys: usize,
}

impl SharedStore {
    /// With everything else as it is by default.
    pub fn at(servers: RedisServers) -> Self {
        Self {
            servers,
            tls: None,
            prefix: "sluice".to_owned(),
            timeout: Duration::from_millis(50),
            failures: 5,
            probe_after: Duration::from_secs(1),
            on_failure: OnFailure::default(),
            local_share: 0.2,
            max_keys: 1_000_000,
        }
    }
}

/// Where Redis is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisServers {
    /// One server.
    One(RedisUrl),
    /// A cluster, known by some of its nodes.
    Cluster(Vec<RedisUrl>),
    /// Whatever these say is the primary.
    Sentinel(Sentinel),
}

/// An address with, perhaps, a password: it is not written to logs.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// An address that has been looked at.
    pub fn new(url: &str) -> Self {
        Self(url.to_owned())
    }

    /// All of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.rsplit_once('@').map_or(&self.0, |(_, host)| host))
    }
}

/// `store.redis.sentinel`.
#[derive(Clone, PartialEq, Eq)]
pub struct Sentinel {
    /// What the Sentinels call the primary.
    pub master: String,
    /// Where they are; user and password in an address are for the Sentinel.
    pub nodes: Vec<RedisUrl>,
    /// For the primary.
    pub username: Option<String>,
    /// For the primary.
    pub password: Option<String>,
    /// On the primary.
    pub database: i64,
    /// Whether the primary speaks TLS.
    pub tls: bool,
}

impl std::fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} by {:?}", self.master, self.nodes)
    }
}

/// Certificates, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisTls {
    /// Who is believed; otherwise whom the system believes.
    pub ca: Option<Vec<u8>>,
    /// A certificate of our own, and its key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

/// What a limit does while the store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// This gateway enforces its share.
    #[default]
    Local,
    /// Requests pass.
    Allow,
    /// Requests are turned away.
    Reject,
}

/// How a limit's counters are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Every decision is the store's.
    #[default]
    Exact,
    /// Allowance is taken from the store in advance.
    Leased,
}

/// The whole file.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where callers connect.
    pub listen: Vec<Listener>,
    /// Metrics and health.
    pub admin: Option<Admin>,
    /// The memory store's cap.
    pub max_keys: usize,
    /// Where its counters survive a restart.
    pub saved: Option<Saved>,
    /// The store that others share; otherwise counters live in memory.
    pub shared: Option<SharedStore>,
    /// Who callers are.
    pub identity: Identity,
    /// Plans in the order of the file; limits refer to them by index.
    pub plans: Vec<Plan>,
    /// The plan of those who have none.
    pub default_plan: usize,
    /// Who is not limited.
    pub exempt: Exempt,
    /// Limits that guard every request.
    pub limits: Vec<Limit>,
    /// Backends; routes refer to them by index.
    pub upstreams: Vec<Upstream>,
    /// In the order of the file, which does not matter.
    pub routes: Vec<Route>,
    /// What callers are told.
    pub headers: Headers,
    /// The guards of the edge.
    pub server: Server,
    /// When the gateway itself has too much to do.
    pub overload: Overload,
    /// The access log, unless it is off.
    pub access_log: Option<AccessLog>,
    /// What is traced, and where spans go.
    pub telemetry: Telemetry,
    /// The file as it is written, without its secrets.
    pub shown: serde_json::Value,
    /// Every file this was made of, for the watcher.
    pub files: Vec<PathBuf>,
}

/// A place where callers connect.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Where.
    pub address: SocketAddr,
    /// How to encrypt; otherwise everything is in the clear.
    pub tls: Option<ListenerTls>,
    /// Whether a balancer says first whom it connects.
    pub proxy_protocol: bool,
}

/// The TLS of a listener.
#[derive(Clone, Debug)]
pub struct ListenerTls {
    /// Callers are shown the one of the name they ask for, or the first.
    pub certificates: Vec<Certificate>,
    /// PEM of those who vouch for callers; callers then must show a certificate.
    pub client_ca: Option<Arc<[u8]>>,
}

/// The admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Where it listens.
    pub address: SocketAddr,
    /// What callers must present, but for health.
    pub token: Option<String>,
    /// Where bans and grants survive a restart, unless a shared store keeps them; beside the
    /// configuration if it is not given.
    pub overrides: Option<PathBuf>,
}

/// Who callers are.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Peers whose word on the caller's address (and user) counts.
    pub trusted_proxies: Vec<IpNet>,
    /// Which of their headers names the caller's address.
    pub client_ip: AddressSource,
    /// IPv6 callers are one caller per prefix of this length.
    pub ipv6_prefix: u8,
    /// How users are known.
    pub user: Option<UserSource>,
    /// How API keys are known.
    pub api_key: Option<ApiKeys>,
}

impl Identity {
    /// Whether trusted proxies say in this header who the user is.
    pub fn is_user_header(&self, name: &HeaderName) -> bool {
        matches!(&self.user, Some(UserSource::Header(user)) if user == name)
    }

    /// Whether callers present their API key in this header.
    pub fn is_key_header(&self, name: &HeaderName) -> bool {
        let place = self.api_key.as_ref().map(|keys| &keys.place);
        matches!(place, Some(KeyPlace::Header(key)) if key == name)
    }

    /// Whether only a trusted proxy may set this header: it names the user or the caller's address.
    pub fn is_proxy_header(&self, name: &HeaderName) -> bool {
        self.is_user_header(name)
            || matches!(&self.client_ip, AddressSource::Header(source) if source == name)
    }
}

/// The one header in which trusted proxies name the caller's address. The others are not forwarded:
/// a proxy that writes one of them passes on what its client wrote into the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressSource {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// A header with a single address, such as `CF-Connecting-IP`.
    Header(HeaderName),
}

impl AddressSource {
    /// The header's name.
    pub fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::Header(name) => name.as_str(),
        }
    }
}

/// How users are known.
#[derive(Clone, Debug)]
pub enum UserSource {
    /// A verified bearer token.
    Jwt(Arc<Verifier>),
    /// A header that only trusted proxies can set.
    Header(HeaderName),
}

/// How API keys are known.
#[derive(Clone, Debug)]
pub struct ApiKeys {
    /// Where a caller puts the key.
    pub place: KeyPlace,
    /// All keys, by the SHA-256 of the key.
    pub keys: BTreeMap<[u8; 32], ApiKey>,
}

/// Where a caller puts an API key.
#[derive(Clone, Debug)]
pub enum KeyPlace {
    /// In a header.
    Header(HeaderName),
    /// In a query parameter.
    Query(String),
}

/// One API key.
#[derive(Clone, Debug)]
pub struct ApiKey {
    /// What it is called in limits, logs and metrics.
    pub id: Arc<str>,
    /// Index of its plan.
    pub plan: Option<usize>,
}

/// A named set of rates.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// `rate`, `quota`, or whatever the file calls them.
    pub rates: BTreeMap<String, WrittenRate>,
    /// The bucket's size for `rate: plan`.
    pub burst: Option<u32>,
    /// Of its callers' requests, where the route says nothing.
    pub priority: Option<Priority>,
}

/// A rate, and the calendar's unit if it was written with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenRate {
    /// N per W.
    pub rate: Rate,
    /// `day`, `week` or `month`, which a fixed window takes from the calendar.
    pub period: Option<Period>,
}

/// Callers that no limit applies to.
#[derive(Clone, Debug, Default)]
pub struct Exempt {
    /// By address.
    pub ips: Vec<IpNet>,
    /// By API key id.
    pub api_keys: Vec<String>,
}

impl Exempt {
    /// Whether the caller with this API key is exempt.
    pub fn has_key(&self, id: &str) -> bool {
        self.api_keys.iter().any(|exempt| exempt == id)
    }
}

/// What callers are told apart by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// The caller's address.
    Ip,
    /// The verified user.
    User,
    /// The API key's id.
    ApiKey,
    /// A header's value.
    Header(HeaderName),
}

impl Attribute {
    /// As it is written.
    pub fn name(&self) -> String {
        match self {
            Self::Ip => "ip".to_owned(),
            Self::User => "user".to_owned(),
            Self::ApiKey => "api_key".to_owned(),
            Self::Header(name) => format!("header:{name}"),
        }
    }
}

/// What a limit counts by, as it is written: `api_key+ip`, or `global` for nothing.
pub fn by_name(by: &[Attribute]) -> String {
    if by.is_empty() {
        return "global".to_owned();
    }
    by.iter().map(Attribute::name).collect::<Vec<_>>().join("+")
}

/// The order in which layers are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// By ip alone.
    Ip,
    /// By user alone.
    User,
    /// By API key alone.
    ApiKey,
    /// By headers and combinations.
    Other,
    /// One counter for everybody.
    Global,
}

/// One limit.
#[derive(Clone, Debug)]
pub struct Limit {
    /// What headers, logs and metrics call it, and what its counters are keyed by.
    pub name: String,
    /// What it counts by; nothing for a global limit.
    pub by: Vec<Attribute>,
    /// In whose presence it does not apply.
    pub unless: Vec<Attribute>,
    /// How much it allows.
    pub quotas: Quotas,
    /// What the file calls its algorithm; `concurrency` if it counts requests in flight.
    pub algorithm: &'static str,
    /// Tokens a request takes.
    pub cost: Cost,
    /// Counts and reports, but never rejects.
    pub shadow: bool,
    /// What happens to callers who ignore its rejects.
    pub penalty: Option<Penalty>,
    /// What it does while a shared store is away.
    pub on_failure: OnFailure,
    /// How a shared store counts it.
    pub consistency: Consistency,
    /// Over how many keys of a shared store it is spread.
    pub shards: u16,
}

/// Tokens a request takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Always so many.
    Fixed(u32),
    /// As many as the answer, or the bytes that pass, say.
    Settled(SettledCost),
}

/// A cost that is known only after the request was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledCost {
    /// What is taken at admission.
    pub reserve: u32,
    /// What is charged where the number is missing because the client left or a bound was reached.
    pub max: Option<u32>,
    /// What a complete answer without a number costs.
    pub unreported: Unreported,
    /// What tells the cost.
    pub by: Measure,
}

/// How many times the reserve a request costs whose number never came, unless `max` says it.
const MISSING_FACTOR: u32 = 10;

impl SettledCost {
    /// What a request costs whose number is missing because the client left or a bound was reached:
    /// never less than the reserve, never more than the limit can hold, unless more was reserved.
    pub fn missing(&self, capacity: u32) -> u32 {
        let max = self.max.unwrap_or(self.reserve.saturating_mul(MISSING_FACTOR));
        max.min(capacity).max(self.reserve)
    }
}

/// What a complete answer costs that does not say what it costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unreported {
    /// What was reserved.
    #[default]
    Reserve,
    /// Nothing.
    Free,
}

impl Cost {
    /// Whether it is known only later.
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Settled(_))
    }

    /// What is taken when a request is admitted.
    pub fn up_front(&self) -> u32 {
        match self {
            Self::Fixed(cost) => *cost,
            Self::Settled(settled) => settled.reserve,
        }
    }
}

/// What tells how much a request has cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Measure {
    /// A header of the response.
    ResponseHeader(HeaderName),
    /// A number in the response's body.
    ResponseJson(JsonPath),
    /// The request's body: so many bytes are a token.
    RequestBytes(u64),
    /// The response's body: so many bytes are a token.
    ResponseBytes(u64),
}

/// A ban for callers who ignore rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// How many rejects, in how long, are tolerated.
    pub tolerated: Quota,
    /// How long the ban lasts.
    pub lasts: Duration,
}

impl Limit {
    /// Whether those it counts have a plan.
    pub fn has_plans(&self) -> bool {
        self.by.iter().any(|by| matches!(by, Attribute::User | Attribute::ApiKey))
    }

    /// Where in the order of layers it is decided.
    pub fn layer(&self) -> Layer {
        match self.by.as_slice() {
            [] => Layer::Global,
            [Attribute::Ip] => Layer::Ip,
            [Attribute::User] => Layer::User,
            [Attribute::ApiKey] => Layer::ApiKey,
            _ => Layer::Other,
        }
    }
}

/// How much a limit allows.
#[derive(Clone, Debug, PartialEq)]
pub enum Quotas {
    /// The same for everybody.
    Fixed(Quota),
    /// What the caller's plan says, by the plan's index.
    ByPlan(Vec<Quota>),
}

impl Quotas {
    /// Each of them.
    pub fn all(&self) -> &[Quota] {
        match self {
            Self::Fixed(quota) => std::slice::from_ref(quota),
            Self::ByPlan(quotas) => quotas,
        }
    }
}

/// A backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// Its name.
    pub name: String,
    /// Where it runs.
    pub endpoints: Vec<Endpoint>,
    /// How requests are spread.
    pub balance: Balance,
    /// How endpoints are asked whether they are well.
    pub health: Option<Health>,
    /// When an endpoint that fails is left alone for a while.
    pub eject: Option<Eject>,
    /// How long an endpoint that is back takes to get its full share.
    pub slow_start: Duration,
    /// When a request is sent once more, to another endpoint.
    pub retries: Retries,
    /// How long each step may take.
    pub timeouts: Timeouts,
    /// How often names are looked up anew.
    pub resolve: Duration,
    /// How backends prove who they are; otherwise everything is in the clear.
    pub tls: Option<client::Tls>,
    /// Whether they are spoken to in HTTP/2.
    pub http2: bool,
    /// How many requests they get at once.
    pub concurrency: Option<Concurrency>,
    /// What becomes of a request whose client leaves, where a limit or a permit depends on its answer.
    pub on_leave: OnLeave,
}

/// What becomes of a request whose client leaves before its answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLeave {
    /// The gateway reads the answer on, within bounds.
    #[default]
    Finish,
    /// The request is broken off.
    Cancel,
}

/// How many requests may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// How many.
    pub places: Places,
    /// How many may wait for one; half as many as may be under way unless it is given.
    pub queue: Option<u32>,
    /// How long they may wait.
    pub max_wait: Duration,
}

/// How many requests may be under way at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// So many.
    Fixed(u32),
    /// As many as turns out to be good, within bounds.
    Adaptive {
        /// Never fewer, but for the blink of an eye in which it is found out what is good.
        min: u32,
        /// Never more.
        max: u32,
    },
}

/// Who goes first when there is not enough for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Refused last.
    Critical,
    /// Neither.
    #[default]
    Normal,
    /// Refused first.
    Sheddable,
}

impl Priority {
    /// The most important first.
    pub const ALL: [Self; 3] = [Self::Critical, Self::Normal, Self::Sheddable];

    /// What files, logs and metrics call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Normal => "normal",
            Self::Sheddable => "sheddable",
        }
    }
}

/// When requests are refused because the gateway itself has too much to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overload {
    /// How many requests may be under way in this process.
    pub max_in_flight: Option<u32>,
    /// The share of places that only critical requests may have, here and at every upstream.
    pub reserve: f64,
    /// How late a worker may come to its work.
    pub max_lag: Option<Duration>,
    /// The share of its cgroup's memory that the process may have.
    pub max_memory: Option<f64>,
}

/// One address of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Through TLS.
    pub https: bool,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Its share of requests, relative to the others'.
    pub weight: u32,
}

/// How requests are spread over endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// In turn.
    RoundRobin,
    /// The less busy of two picked at random.
    #[default]
    LeastRequests,
    /// A caller's address always goes to the same one, as long as it is there.
    HashIp,
}

/// Asks endpoints whether they are well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// What is asked for.
    pub path: String,
    /// What the check calls the endpoint; its own address if not given.
    pub host: Option<String>,
    /// How often.
    pub every: Duration,
    /// How long one check may take.
    pub timeout: Duration,
    /// So many failed checks in a row take an endpoint out.
    pub unhealthy_after: u32,
    /// So many passed checks in a row bring it back.
    pub healthy_after: u32,
}

/// Leaves endpoints alone that fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eject {
    /// So many failures in a row.
    pub after: u32,
    /// For so long.
    pub lasts: Duration,
    /// The share of endpoints that stays, if they can be reached at all.
    pub keep: f64,
}

/// Sends requests once more that may be sent twice.
#[derive(Clone, Debug, PartialEq)]
pub struct Retries {
    /// How often a request may be sent, the first time included.
    pub attempts: u32,
    /// Where no connection came about, or it broke before the first byte of an answer.
    pub connect_failure: bool,
    /// Where no answer came in time.
    pub timeout: bool,
    /// Where this was the answer.
    pub statuses: Vec<u16>,
    /// The share of requests that may be sent again.
    pub budget: f64,
}

/// How long each step towards a backend may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To connect, TLS included.
    pub connect: Duration,
    /// From the request until the head of its response.
    pub response: Duration,
    /// How long the body of a response may be silent.
    pub body: Duration,
    /// How long an unused connection is kept.
    pub idle: Duration,
    /// How long a tunnel may be silent in both directions.
    pub tunnel: Duration,
}

/// One route.
#[derive(Clone, Debug)]
pub struct Route {
    /// What logs and metrics call it.
    pub name: String,
    /// Host names; none means any.
    pub hosts: Vec<Host>,
    /// Which paths.
    pub path: PathPattern,
    /// Which methods; none means any.
    pub methods: Vec<Method>,
    /// Index of the upstream.
    pub upstream: usize,
    /// Of its requests; otherwise the caller's plan tells.
    pub priority: Option<Priority>,
    /// What callers must present.
    pub require: Require,
    /// Limits of this route, beside those for all.
    pub limits: Vec<Limit>,
    /// Taken off the path before it is forwarded.
    pub strip_prefix: Option<String>,
    /// Set on the forwarded request.
    pub set_headers: Vec<(HeaderName, HeaderValue)>,
    /// Removed from the forwarded request.
    pub remove_headers: Vec<HeaderName>,
    /// The largest body of a request.
    pub max_body_bytes: Option<u64>,
}

/// A host a route answers to, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// This very name.
    Exact(String),
    /// Any name below this one: `example.com` for `*.example.com`.
    Below(String),
}

/// The paths of a route, normalised.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathPattern {
    /// This very path.
    Exact(String),
    /// This path and everything below it; the empty string covers everything.
    Prefix(String),
}

/// What callers must present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Require {
    /// A user.
    pub user: bool,
    /// An API key.
    pub api_key: bool,
    /// One of the two is enough.
    pub either: bool,
}

/// What callers are told of their limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Headers {
    /// `X-RateLimit-*`.
    pub x_ratelimit: bool,
    /// `RateLimit` and `RateLimit-Policy`.
    pub ietf: bool,
    /// The largest share that is added to `Retry-After`.
    pub retry_jitter: f64,
}

/// The guards of the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// From the connection until it is encrypted, and until a balancer has said whom it connects.
    pub handshake_timeout: Duration,
    /// From a request's first byte until its last header.
    pub header_timeout: Duration,
    /// How long the next piece of a request's body may take.
    pub body_timeout: Duration,
    /// How long a connection may lie idle between requests, or a caller may leave what we send
    /// untaken.
    pub idle_timeout: Duration,
    /// Header lines of a request.
    pub max_headers: usize,
    /// Bytes of a request's head.
    pub max_header_bytes: usize,
    /// Bytes of a request's target.
    pub max_uri_bytes: usize,
    /// Bytes of a request's body.
    pub max_body_bytes: Option<u64>,
    /// Connections in all.
    pub max_connections: usize,
    /// Connections of one address.
    pub max_connections_per_ip: PerIp,
    /// How long requests in flight may take after a signal to stop.
    pub shutdown_grace: Duration,
}

/// How many connections one address may have, unless it is a trusted proxy's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PerIp {
    /// Half of all.
    #[default]
    Half,
    /// So many.
    Most(usize),
    /// As many as there are.
    Any,
}

/// `telemetry`: what is traced, and where spans are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// The collector of spans, OTLP over HTTP; without one there are none.
    pub otlp: Option<Collector>,
    /// The share of traces that is recorded, unless a trusted proxy has decided.
    pub sample: f64,
    /// Whether a trace begins here that nobody has begun before.
    pub begin: bool,
    /// What the spans say that they are of.
    pub service_name: String,
    /// Sent with every batch of spans; values may be secrets.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Default for Telemetry {
    fn default() -> Self {
        let service_name = "sluice".to_owned();
        Self { otlp: None, sample: 1.0, begin: true, service_name, headers: Vec::new() }
    }
}

/// Where spans are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Collector {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// What is asked for there.
    pub path: String,
    /// How it proves who it is; otherwise everything is in the clear.
    pub tls: Option<client::Tls>,
}

/// How a line of the access log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object.
    #[default]
    Json,
    /// Words for people.
    Text,
}

/// The access log.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// How a line is written.
    pub format: LogFormat,
    /// The share of admitted requests that is logged.
    pub allowed: f64,
    /// The share of rejected requests that is logged.
    pub rejected: f64,
    /// Headers of requests that are logged.
    pub headers: Vec<HeaderName>,
}
