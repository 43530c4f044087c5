//! One immutable generation that requests run on.
//!
//! Built from a [`Config`] once per reload, with everything a request would otherwise have to look
//! up or work out: which limits guard a route and in which order, which counters they add to, what
//! the headers say about them.

mod router;

use crate::clock::{Micros, micros};
use crate::config::model::{
    self, AccessLog, Attribute, Concurrency, Config, Consistency, Cost, Exempt, Headers, Identity,
    Layer, OnFailure, Overload, Places, Priority, Quotas, Require, Saved, Server, Telemetry,
};
use crate::limit::Quota;
use crate::metrics::{LimitMetrics, Metrics, RouteMetrics};
use crate::overload::gate::Gate;
use crate::overrides::Bans;
use crate::store::{LimitId, Registry, Store};
use crate::told;
use crate::upstream::Upstream;
use crate::upstream::names::Names;
use http::{HeaderName, HeaderValue};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use router::{Found, Mismatch, Router, why_not};

/// Everything a request needs to know.
#[derive(Debug)]
pub struct Snapshot {
    /// Counts up with every reload.
    pub generation: u64,
    /// When it came into force.
    pub loaded_at: Micros,
    /// Host, path and method → route.
    pub router: Router,
    /// By the router's index.
    pub routes: Box<[Route]>,
    /// The limits of a request that matches no route.
    pub guards: Limits,
    /// Who callers are.
    pub identity: Identity,
    /// The plans, for tokens that name one.
    pub plans: Box<[Plan]>,
    /// Whether a plan has a say in how important a request is.
    pub plans_prioritise: bool,
    /// Index of the plan of those who have none.
    pub default_plan: usize,
    /// Who is not limited.
    pub exempt: Exempt,
    /// By the routes' index.
    pub upstreams: Box<[Arc<Upstream>]>,
    /// What callers are told.
    pub headers: Headers,
    /// The guards of the edge.
    pub server: Server,
    /// When the gateway itself has too much to do.
    pub overload: Overload,
    /// Places for requests in this process, where they are limited.
    pub gate: Option<Arc<Gate>>,
    /// Whether places are limited anywhere.
    pub gated: bool,
    /// The access log, unless it is off.
    pub access_log: Option<AccessLog>,
    /// Where counters survive a restart.
    pub saved: Option<Saved>,
    /// The configuration as it may be shown.
    pub shown: serde_json::Value,
    /// What is traced, and where spans go.
    pub telemetry: Telemetry,
    /// Where callers are shown a certificate, for whom, and until when it is valid.
    pub certificates: Box<[(String, String, i64)]>,
}

/// What a plan says beside its rates.
#[derive(Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Of its callers' requests, where the route says nothing.
    pub priority: Option<Priority>,
}

/// A route, ready to be used.
#[derive(Debug)]
pub struct Route {
    /// What logs and metrics call it.
    pub name: String,
    /// Index of the upstream.
    pub upstream: usize,
    /// Of its requests; otherwise the caller's plan tells.
    pub priority: Option<Priority>,
    /// Its number among the routes whose answers the upstream's gate watches.
    pub pace: usize,
    /// What callers must present.
    pub require: Require,
    /// All limits that guard it.
    pub limits: Limits,
    /// Taken off the path before it is forwarded.
    pub strip_prefix: Option<String>,
    /// Set on the forwarded request.
    pub set_headers: Vec<(HeaderName, HeaderValue)>,
    /// Removed from the forwarded request.
    pub remove_headers: Vec<HeaderName>,
    /// The largest body of a request.
    pub max_body_bytes: Option<u64>,
    /// Its counters.
    pub metrics: Arc<RouteMetrics>,
}

impl Route {
    /// Whether it sets or removes a header of the forwarded request.
    pub fn edits(&self, name: &HeaderName) -> bool {
        self.remove_headers.contains(name) || self.set_headers.iter().any(|(set, _)| set == name)
    }
}

/// A limit, ready to be used.
#[derive(Debug)]
pub struct Limit {
    /// Whose counters in the store.
    pub id: LimitId,
    /// What headers, logs and metrics call it.
    pub name: String,
    /// Where in the order it is decided.
    pub layer: Layer,
    /// What it counts by.
    pub by: Vec<Attribute>,
    /// In whose presence it does not apply.
    pub unless: Vec<Attribute>,
    /// What the file calls its algorithm.
    pub algorithm: &'static str,
    /// What it allows: one quota, or one for each plan.
    quotas: Box<[Quota]>,
    by_plan: bool,
    /// `RateLimit-Policy`'s item, and N, for each quota.
    policies: Box<[String]>,
    counts: Box<[HeaderValue]>,
    /// Tokens a request takes.
    pub cost: Cost,
    /// Counts and reports, but never rejects.
    pub shadow: bool,
    /// Its counters, by the caller's plan where that is known; otherwise there is one.
    metrics: Box<[Arc<LimitMetrics>]>,
    /// What happens to callers who ignore its rejects.
    pub penalty: Option<Penalty>,
    /// What it does while a shared store is away.
    pub on_failure: OnFailure,
    /// A shared store's blocks of allowance are used for it.
    pub leased: bool,
    /// What each part of it allows, where a shared store has split it.
    pub shards: Box<[Quota]>,
}

/// A ban for callers who ignore rejects.
#[derive(Debug)]
pub struct Penalty {
    /// Under which number rejects are counted.
    pub id: LimitId,
    /// How many rejects are tolerated.
    pub tolerated: Quota,
    /// How long the ban lasts.
    pub lasts: Micros,
}

impl Limit {
    fn new(limit: &model::Limit, plans: &[model::Plan], lasting: Lasting<'_>) -> Self {
        let Lasting { store, metrics, .. } = lasting;
        let (quotas, by_plan): (Box<[Quota]>, bool) = match &limit.quotas {
            Quotas::Fixed(quota) => ([quota.clone()].into(), false),
            Quotas::ByPlan(quotas) => (quotas.as_slice().into(), true),
        };
        Self {
            id: store.limit_id(&limit.name),
            name: limit.name.clone(),
            layer: limit.layer(),
            by: limit.by.clone(),
            unless: limit.unless.clone(),
            policies: quotas.iter().map(|quota| told::policy(&limit.name, quota)).collect(),
            counts: quotas.iter().map(|quota| quota.rate().count.into()).collect(),
            shards: match &*quotas {
                [quota] if store.is_shared() && limit.shards > 1 => {
                    let of = u32::from(limit.shards);
                    (0..of).map(|index| quota.part(index, of)).collect()
                }
                _ => Box::default(),
            },
            on_failure: limit.on_failure,
            leased: store.is_shared() && limit.consistency == Consistency::Leased,
            quotas,
            by_plan,
            cost: limit.cost.clone(),
            shadow: limit.shadow,
            metrics: if limit.has_plans() && !plans.is_empty() {
                plans.iter().map(|plan| metrics.limit(&limit.name, &plan.name)).collect()
            } else {
                [metrics.limit(&limit.name, "")].into()
            },
            algorithm: limit.algorithm,
            penalty: limit.penalty.as_ref().map(|penalty| Penalty {
                id: lasting.bans.limit_id(&limit.name),
                tolerated: penalty.tolerated.clone(),
                lasts: micros(penalty.lasts),
            }),
        }
    }

    /// Which quota holds for a caller of this plan; the other methods take it.
    pub fn quota_index(&self, plan: usize) -> usize {
        if self.by_plan { plan } else { 0 }
    }

    /// Which counters are those of a caller of this plan; [`metrics`](Self::metrics) takes it.
    pub fn plan_index(&self, plan: usize) -> usize {
        if self.metrics.len() > 1 { plan } else { 0 }
    }

    /// Its counters for callers of a plan.
    #[inline]
    pub fn metrics(&self, plan: usize) -> &Arc<LimitMetrics> {
        &self.metrics[plan]
    }

    /// All its counters.
    pub fn all_metrics(&self) -> &[Arc<LimitMetrics>] {
        &self.metrics
    }

    /// What it counts by, as it is written.
    pub fn by_name(&self) -> String {
        model::by_name(&self.by)
    }

    /// Everything it may allow: one quota, or one for each plan.
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    /// What it allows.
    pub fn quota(&self, index: usize) -> &Quota {
        &self.quotas[index]
    }

    /// N as the caller is told it.
    pub fn count(&self, index: usize) -> &HeaderValue {
        &self.counts[index]
    }

    /// Whether callers hear of it: neither shadows nor the operator's own limits speak.
    pub fn speaks(&self) -> bool {
        !self.shadow && self.layer != Layer::Global
    }
}

/// The limits that guard a request, in the order in which they are decided: ip, user, `api_key`,
/// other, global; within a layer as written, those for all routes first.
#[derive(Debug)]
pub struct Limits {
    all: Box<[Arc<Limit>]>,
    /// One of them has a penalty.
    pub penal: bool,
    /// One of them looks at a header.
    pub by_headers: bool,
    /// `RateLimit-Policy` by which of them speak, one bit each, made when first asked for. None
    /// where there are too many, or where plans decide.
    policies: Box<[OnceLock<Option<HeaderValue>>]>,
}

impl Limits {
    /// So many limits have every combination of their policies remembered.
    const FEW: usize = 6;

    fn new(limits: impl Iterator<Item = Arc<Limit>>) -> Self {
        let mut all: Vec<_> = limits.collect();
        all.sort_by_key(|limit| limit.layer);
        let few = all.len() <= Self::FEW && !all.iter().any(|limit| limit.by_plan);
        let policies = if few { 1 << all.len() } else { 0 };
        let penal = all.iter().any(|limit| limit.penalty.is_some());
        let is_header = |by: &Attribute| matches!(by, Attribute::Header(_));
        let attributes = all.iter().flat_map(|limit| limit.by.iter().chain(&limit.unless));
        let by_headers = attributes.into_iter().any(is_header);
        Self {
            all: all.into(),
            penal,
            by_headers,
            policies: (0..policies).map(|_| OnceLock::new()).collect(),
        }
    }

    /// `RateLimit-Policy` of those limits, by index and quota, that speak.
    pub fn policy(
        &self,
        said: impl Iterator<Item = (usize, usize)> + Clone,
    ) -> Option<HeaderValue> {
        let speaking = said.filter(|(limit, _)| self.all[*limit].speaks());
        let item = |(limit, quota): (usize, usize)| self.all[limit].policies[quota].as_str();
        if self.policies.is_empty() {
            return told::policies(speaking.map(item));
        }
        let which = speaking.clone().fold(0, |which, (limit, _)| which | 1 << limit);
        self.policies[which].get_or_init(|| told::policies(speaking.map(item))).clone()
    }
}

impl std::ops::Deref for Limits {
    type Target = [Arc<Limit>];

    fn deref(&self) -> &[Arc<Limit>] {
        &self.all
    }
}

/// What outlives snapshots and goes into them.
#[derive(Clone, Copy, Debug)]
pub struct Lasting<'a> {
    /// Gives limits their numbers.
    pub store: &'a Store,
    /// Counts rejects, and gives limits their numbers for that.
    pub bans: &'a Bans,
    /// Gives routes and limits their counters.
    pub metrics: &'a Metrics,
    /// Knows where names are.
    pub names: &'a Names,
    /// The snapshot before, whose endpoints go on where they are still there.
    pub previous: Option<&'a Snapshot>,
}

impl Snapshot {
    /// Builds the next generation.
    pub fn build(config: Config, loaded_at: Micros, lasting: Lasting<'_>) -> Self {
        let limit = |limit: &model::Limit| Arc::new(Limit::new(limit, &config.plans, lasting));
        let guards: Vec<Arc<Limit>> = config.limits.iter().map(limit).collect();
        let router = Router::new(&config.routes);
        let upstreams = upstreams(&config, lasting);
        let routes = config
            .routes
            .into_iter()
            .map(|route| Route {
                limits: Limits::new(guards.iter().cloned().chain(route.limits.iter().map(limit))),
                metrics: lasting.metrics.route(&route.name),
                pace: upstreams[route.upstream].gate.as_ref().map_or(0, |g| g.pace(&route.name)),
                name: route.name,
                upstream: route.upstream,
                priority: route.priority,
                require: route.require,
                strip_prefix: route.strip_prefix,
                set_headers: route.set_headers,
                remove_headers: route.remove_headers,
                max_body_bytes: route.max_body_bytes,
            })
            .collect();
        let plans = config.plans.into_iter();
        let plans = plans.map(|plan| Plan { name: plan.name, priority: plan.priority });
        let plans: Box<[Plan]> = plans.collect();
        let gate = gate(&config.overload, lasting.previous);
        let certificates = certificates(&config.listen);
        Self {
            gated: gate.is_some() || upstreams.iter().any(|upstream| upstream.gate.is_some()),
            gate,
            generation: lasting.previous.map_or(1, |previous| previous.generation + 1),
            loaded_at,
            router,
            routes,
            guards: Limits::new(guards.into_iter()),
            identity: config.identity,
            plans_prioritise: plans.iter().any(|plan| plan.priority.is_some()),
            plans,
            default_plan: config.default_plan,
            exempt: config.exempt,
            upstreams,
            headers: config.headers,
            server: config.server,
            overload: config.overload,
            saved: config.saved,
            access_log: config.access_log,
            shown: config.shown,
            telemetry: config.telemetry,
            certificates,
        }
    }

    /// Every limit; those that guard all routes are in it more than once.
    fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        let of_routes = self.routes.iter().flat_map(|route| &*route.limits);
        self.guards.iter().chain(of_routes)
    }

    /// Every limit once, and the routes that it guards; none are named if it guards all.
    pub fn each_limit(&self) -> Vec<(&Arc<Limit>, Option<Vec<&str>>)> {
        let guards = self.guards.iter().map(|limit| (limit, None));
        let of_routes = self.routes.iter().flat_map(|route| {
            let limits = route.limits.iter();
            let limits = limits.filter(|limit| !self.guards.iter().any(|g| g.id == limit.id));
            limits.map(|limit| (limit, Some(vec![route.name.as_str()])))
        });
        guards.chain(of_routes).collect()
    }

    /// Limits whose counters mean nothing to what they are now: requests in flight are not used
    /// tokens, and used tokens are not in flight. They begin anew.
    /// So do the parts of a limit that is split otherwise.
    pub fn begun_anew(&self, previous: &Self) -> BTreeSet<&str> {
        let in_flight = |limit: &Arc<Limit>| {
            (limit.quotas.iter().any(Quota::is_concurrency), limit.shards.len())
        };
        let before: HashMap<_, _> = previous.limits().map(|l| (l.id, in_flight(l))).collect();
        let changed = |l: &&Arc<Limit>| before.get(&l.id).is_some_and(|was| *was != in_flight(l));
        self.limits().filter(changed).map(|limit| limit.name.as_str()).collect()
    }

    /// What the store must know of the limits. Some callers may have less than they say, by these
    /// factors.
    pub fn registry(&self, stricter: &[f64]) -> Registry {
        let counters = self.limits().map(|limit| {
            let cost = limit.cost.up_front();
            let less = limit.quotas.iter().flat_map(|quota| {
                stricter.iter().filter_map(move |factor| quota.times(*factor, cost))
            });
            let quotas = limit.quotas.iter().chain(&limit.shards).cloned().chain(less).collect();
            (limit.id, quotas)
        });
        counters.collect()
    }

    /// For which limits rejects are counted, and how many are tolerated.
    pub fn penalties(&self) -> Registry {
        let penalties = self.limits().filter_map(|limit| limit.penalty.as_ref());
        penalties.map(|penalty| (penalty.id, [penalty.tolerated.clone()].into())).collect()
    }

    /// The plan a token names; `None` when nobody defined it.
    pub fn plan(&self, name: &str) -> Option<usize> {
        self.plans.iter().position(|plan| plan.name == name)
    }
}

/// Where which certificates are shown, and until when they are valid. Of several for one name (with keys
/// of different kinds), the first to expire is told.
fn certificates(listeners: &[model::Listener]) -> Box<[(String, String, i64)]> {
    let mut first: BTreeMap<(String, String), i64> = BTreeMap::new();
    for listener in listeners {
        for certificate in listener.tls.iter().flat_map(|tls| &tls.certificates) {
            let name = certificate.names.first().cloned().unwrap_or_default();
            let until = first.entry((listener.address.to_string(), name));
            let until = until.or_insert(certificate.until);
            *until = certificate.until.min(*until);
        }
    }
    first.into_iter().map(|((listener, name), until)| (listener, name, until)).collect()
}

/// Those that were there before go on.
fn upstreams(config: &Config, lasting: Lasting<'_>) -> Box<[Arc<Upstream>]> {
    let before = |name: &str| {
        let previous = lasting.previous?.upstreams.iter();
        previous.map(|upstream| &**upstream).find(|upstream| upstream.name() == name)
    };
    let upstream = |of: &model::Upstream| {
        let (metrics, reserve) = (lasting.metrics.upstream(&of.name), config.overload.reserve);
        Arc::new(Upstream::new(of, before(&of.name), lasting.names, metrics, reserve))
    };
    config.upstreams.iter().map(upstream).collect()
}

/// The process's own places: whoever has one keeps it, and nobody waits for one.
fn gate(overload: &Overload, previous: Option<&Snapshot>) -> Option<Arc<Gate>> {
    let places = Places::Fixed(overload.max_in_flight?);
    let config = Concurrency { places, queue: Some(0), max_wait: Duration::ZERO };
    Some(match previous.and_then(|previous| previous.gate.as_ref()) {
        Some(gate) => {
            gate.configure(&config, overload.reserve);
            Arc::clone(gate)
        }
        None => Gate::new(&config, overload.reserve),
    })
}
