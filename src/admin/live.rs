//! Everything that moves, in one object: what the dashboard and `sluice top` show.

use super::Operator;
use crate::gateway::Gateway;
use crate::metrics::{Distribution, LimitMetrics, Process, WorkerMetrics};
use crate::snapshot::{Limit, Snapshot};
use crate::top::{KINDS, Ranking, WINDOW};
use crate::upstream::Fault;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How many callers are told of each kind.
const RANKS: usize = 20;

pub(super) fn live(operator: &Operator) -> Value {
    let gateway = &*operator.gateway;
    let snapshot = gateway.snapshot.load_full();
    let metrics = &gateway.metrics;
    let mut shed: BTreeMap<&str, u64> = BTreeMap::new();
    metrics.sheds().for_each(|(reason, _, count)| *shed.entry(reason).or_default() += count);
    let refused: BTreeMap<&str, u64> = metrics.refusals().collect();
    let whole = metrics.routes().into_iter().map(|(_, route)| route.duration());
    let upstream = metrics.upstreams().into_iter().map(|(_, upstream)| upstream.duration());
    json!({
        "now": gateway.seconds(gateway.clock.now()),
        "started": gateway.started_seconds(),
        "version": env!("CARGO_PKG_VERSION"),
        "state": gateway.state().name(),
        "config": config(operator, &snapshot),
        "process": process(gateway),
        "routes": routes(&snapshot),
        "unrouted": statuses(&metrics.unrouted.statuses()),
        "limits": limits(&snapshot),
        "latency": {
            "request": distribution(&Distribution::sum(whole)),
            "upstream": distribution(&Distribution::sum(upstream)),
            "overhead": distribution(&metrics.overhead()),
        },
        "upstreams": upstreams(gateway),
        "store": store(gateway),
        "shed": shed,
        "refused": refused,
        "top": top(gateway),
        "bans": gateway.overrides.bans.len(),
        "grants": gateway.overrides.grants.len(),
    })
}

/// Which configuration is in force, and how the last reload went.
pub(super) fn config(operator: &Operator, snapshot: &Snapshot) -> Value {
    let gateway = &operator.gateway;
    let reload = gateway.last_reload().map(|reload| {
        let ok = reload.error.is_none();
        json!({ "at": gateway.seconds(reload.at), "ok": ok, "error": reload.error })
    });
    json!({
        "file": operator.file.display().to_string(),
        "generation": snapshot.generation,
        "loaded_at": gateway.seconds(snapshot.loaded_at),
        "last_reload": reload,
    })
}

pub(super) fn process(gateway: &Gateway) -> Value {
    let workers = &gateway.metrics.workers;
    let most = |read: fn(&WorkerMetrics) -> u64| workers.iter().map(read).max().unwrap_or(0);
    let Process { cpu_seconds, resident_bytes, .. } = Process::read();
    json!({
        "workers": workers.len(),
        "connections": gateway.metrics.connections(),
        "in_flight": gateway.metrics.in_flight(),
        "memory_keys": gateway.store.keys(),
        "max_keys": gateway.store.max_keys(),
        "resident_bytes": resident_bytes,
        "cpu_seconds": cpu_seconds,
        "overload_level": most(|worker| worker.level.value()) as f64 / 1e3,
        "lag": most(|worker| worker.lag.value()) as f64 / 1e6,
        "memory_used": gateway.memory_used(),
        "log_lines_dropped": gateway.metrics.log_lines_dropped.value(),
    })
}

fn routes(snapshot: &Snapshot) -> Vec<Value> {
    let route = |route: &crate::snapshot::Route| {
        json!({
            "name": route.name,
            "upstream": snapshot.upstreams[route.upstream].name(),
            "statuses": statuses(&route.metrics.statuses()),
        })
    };
    snapshot.routes.iter().map(route).collect()
}

fn statuses(counts: &BTreeMap<usize, u64>) -> Value {
    let counts = counts.iter().map(|(status, count)| (status.to_string(), json!(count)));
    Value::Object(counts.collect())
}

/// Every limit once: what it is, and what it decided.
fn limits(snapshot: &Snapshot) -> Vec<Value> {
    let limit = |(limit, routes): (&Arc<Limit>, Option<Vec<&str>>)| {
        let parts: Vec<&Arc<LimitMetrics>> = limit.all_metrics().iter().collect();
        let mut value = described(limit, routes.as_deref());
        let whole = parts.iter().map(|part| part.verdicts());
        let sum = whole.reduce(|a, b| std::array::from_fn(|n| a[n] + b[n])).unwrap_or_default();
        let pressure = parts.iter().map(|part| part.pressure()).fold(0.0, f32::max);
        let plans: Map<String, Value> = match parts.len() {
            1 => Map::new(),
            _ => {
                let plans = snapshot.plans.iter().zip(&parts);
                plans.map(|(plan, part)| (plan.name.clone(), verdicts(part.verdicts()))).collect()
            }
        };
        value["pressure"] = pressure.into();
        value["decisions"] = verdicts(sum);
        value["plans"] = plans.into();
        value
    };
    snapshot.each_limit().into_iter().map(limit).collect()
}

/// What a limit is, but for its numbers.
pub(super) fn described(limit: &Limit, routes: Option<&[&str]>) -> Value {
    let mut rates: Vec<String> = limit.quotas().iter().map(crate::limit::Quota::written).collect();
    rates.dedup();
    json!({
        "name": limit.name,
        "by": limit.by_name(),
        "rate": rates.join(", "),
        "algorithm": limit.algorithm,
        "shadow": limit.shadow,
        "routes": routes,
    })
}

fn verdicts(counts: [u64; 7]) -> Value {
    let named = LimitMetrics::VERDICTS.iter().zip(counts);
    Value::Object(named.map(|(name, count)| ((*name).to_owned(), json!(count))).collect())
}

fn upstreams(gateway: &Gateway) -> Vec<Value> {
    let (endpoints, gates) = (gateway.endpoints(), gateway.gates());
    let upstream = |(name, metrics): (String, Arc<crate::metrics::UpstreamMetrics>)| {
        let own = endpoints.iter().filter(|endpoint| endpoint.upstream == name);
        let own = own.map(|endpoint| {
            json!({
                "name": endpoint.name,
                "in_service": endpoint.in_service,
                "in_flight": endpoint.in_flight,
            })
        });
        let faults = Fault::ALL.iter().zip(&metrics.faults);
        let faults = faults.map(|((_, name), count)| ((*name).to_owned(), json!(count.value())));
        let gate = gates.iter().find(|(of, _)| *of == name).map(|(_, gate)| {
            json!({ "places": gate.places, "taken": gate.taken, "waiting": gate.waiting })
        });
        json!({
            "name": name,
            "endpoints": own.collect::<Vec<_>>(),
            "failures": faults.collect::<Map<_, _>>(),
            "retries": metrics.retries.value(),
            "ejections": metrics.ejections.value(),
            "unavailable": metrics.unavailable.value(),
            "latency": distribution(&metrics.duration()),
            "places": gate,
        })
    };
    gateway.metrics.upstreams().into_iter().map(upstream).collect()
}

pub(super) fn store(gateway: &Gateway) -> Value {
    let Some(store) = gateway.metrics.store.get() else { return json!({ "kind": "memory" }) };
    json!({
        "kind": "redis",
        "up": store.up.value() == 1,
        "calls": store.calls.value(),
        "recalled": store.recalled.value(),
        "fallbacks": store.fallbacks.value(),
        "owed": store.owed.value(),
        "leases": store.leases.value(),
        "leased": store.leased.value(),
        "denials": store.denials.value(),
        "breaker_opened": store.opened.value(),
        "failures": store.failures(),
        "latency": distribution(&store.duration()),
    })
}

/// Times above the last bound are told under twice of it.
fn distribution(read: &Distribution) -> Value {
    const BEYOND: f64 = 134.217_728;
    let buckets = read.buckets().map(|(bound, count)| json!([bound.unwrap_or(BEYOND), count]));
    json!({
        "count": read.count(),
        "sum": read.seconds(),
        "buckets": buckets.collect::<Vec<_>>(),
    })
}

/// The busiest and the most rejected callers.
pub(super) fn top(gateway: &Gateway) -> Value {
    let (busiest, rejected) = gateway.top.read(RANKS, gateway.clock.now());
    let ranking = |ranking: Ranking| {
        let kinds = KINDS.iter().zip(ranking).map(|(kind, ranked)| {
            let callers = ranked.iter().map(|ranked| {
                let caller = ranked.who.to_string();
                json!({ "caller": caller, "count": ranked.count, "error": ranked.error })
            });
            ((*kind).to_owned(), Value::Array(callers.collect()))
        });
        Value::Object(kinds.collect())
    };
    json!({ "window": WINDOW, "busiest": ranking(busiest), "rejected": ranking(rejected) })
}
