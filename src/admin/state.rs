//! How the gateway is doing, and what it runs on.

use super::{Operator, live};
use crate::gateway::Gateway;
use serde_json::{Value, json};

pub(super) fn status(operator: &Operator) -> Value {
    let gateway = &*operator.gateway;
    let snapshot = gateway.snapshot.load_full();
    let endpoints = gateway.endpoints().into_iter().map(|endpoint| {
        json!({
            "upstream": endpoint.upstream,
            "endpoint": endpoint.name,
            "in_service": endpoint.in_service,
            "in_flight": endpoint.in_flight,
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "state": gateway.state().name(),
        "started": gateway.started_seconds(),
        "now": gateway.seconds(gateway.clock.now()),
        "config": live::config(operator, &snapshot),
        "process": live::process(gateway),
        "store": live::store(gateway),
        "endpoints": endpoints.collect::<Vec<_>>(),
        "bans": gateway.overrides.bans.len(),
        "grants": gateway.overrides.grants.len(),
    })
}

/// The configuration in force, as it may be shown.
pub(super) fn config(operator: &Operator) -> Value {
    let snapshot = operator.gateway.snapshot.load_full();
    let mut value = live::config(operator, &snapshot);
    value["config"] = snapshot.shown.clone();
    value
}

/// Every limit in force.
pub(super) fn limits(gateway: &Gateway) -> Value {
    let snapshot = gateway.snapshot.load_full();
    let all = snapshot.each_limit().into_iter();
    let all = all.map(|(limit, routes)| {
        let mut value = live::described(limit, routes.as_deref());
        let quota = |index: usize| {
            let quota = &limit.quotas()[index];
            json!({ "rate": quota.written(), "capacity": quota.capacity() })
        };
        let plans = snapshot.plans.iter().enumerate();
        value["quotas"] = match limit.quotas().len() {
            1 => json!({ "": quota(0) }),
            _ => Value::Object(plans.map(|(n, plan)| (plan.name.clone(), quota(n))).collect()),
        };
        value
    });
    json!({ "limits": all.collect::<Vec<_>>() })
}
