//! What is proposed as it goes into gateway.yaml: the limits as they are written there, with other
//! numbers, and the evidence in comments.

use super::{Size, Spread, Suggestion};
use crate::config::model::{Config, Limit};
use crate::limit::Quota;
use crate::simulate::figures::{counted, grouped, length, percent};
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// All of it.
pub(super) fn written(config: &Config, suggestions: &[Suggestion], starters: bool) -> String {
    let mut out = String::new();
    let of = |name: &str| -> Vec<&Suggestion> {
        suggestions.iter().filter(|suggestion| suggestion.limit == name).collect()
    };
    let file = &config.shown;
    plans(&mut out, config, suggestions);
    let nothing = starters && suggestions.iter().all(|suggestion| suggestion.proposed.is_none());
    if !config.limits.is_empty() {
        out.push_str(if nothing { "limits: []\n" } else { "limits:\n" });
        for (map, limit) in as_written(&file["limits"], &config.limits) {
            let of = of(&limit.name);
            // What is not there yet stays away.
            if starters && of.iter().all(|suggestion| suggestion.proposed.is_none()) {
                comments(&mut out, 2, &of, config);
            } else {
                item(&mut out, 2, map, &of, config);
            }
        }
    }
    let routes = config.routes.iter().zip(list(&file["routes"]));
    let routes = routes.filter(|(route, _)| !route.limits.is_empty());
    for (index, (route, map)) in routes.enumerate() {
        if index == 0 {
            out.push_str("routes: # their limits alone; all else stays as it is\n");
        }
        let mut head = Map::new();
        for field in ["name", "hosts", "path", "methods"] {
            if let Some(value) = map.get(field) {
                head.insert(field.to_owned(), value.clone());
            }
        }
        let head = Value::Array(vec![Value::Object(head)]);
        let _ = writeln!(out, "{}\n    limits:", indented(&yaml(&head), 2));
        for (map, limit) in as_written(&map["limits"], &route.limits) {
            item(&mut out, 6, map, &of(&limit.name), config);
        }
    }
    out
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Limits as they are written, with what was made of each. Candidates are part of theirs.
fn as_written<'w>(
    written: &'w Value,
    limits: &'w [Limit],
) -> impl Iterator<Item = (&'w Map<String, Value>, &'w Limit)> {
    let mut limits = limits.iter();
    list(written).iter().filter_map(Value::as_object).filter_map(move |map| {
        let limit = limits.next()?;
        if map.contains_key("candidate") {
            limits.next();
        }
        Some((map, limit))
    })
}

fn comments(out: &mut String, indent: usize, suggestions: &[&Suggestion], config: &Config) {
    for suggestion in suggestions {
        for line in evidence(suggestion, config) {
            let _ = writeln!(out, "{:indent$}# {line}", "");
        }
    }
}

/// A limit of a list, with its evidence.
fn item(
    out: &mut String,
    indent: usize,
    map: &Map<String, Value>,
    suggestions: &[&Suggestion],
    config: &Config,
) {
    comments(out, indent, suggestions, config);
    let map = match suggestions {
        _ if is_hindered(map) => {
            let why = "its candidate has another algorithm, and would take these numbers over";
            let _ = writeln!(out, "{:indent$}#   not written: {why}", "");
            map.clone()
        }
        [Suggestion { plan: None, proposed: Some(size), .. }] => resized(map, size),
        [first, ..] if first.plan.is_some() && !has_burst_in_plans(map) => {
            let bursts = suggestions.iter().filter_map(|s| s.proposed.as_ref()?.burst);
            with(&spelt_out(map), "burst", bursts.max().map(Value::from))
        }
        _ => map.clone(),
    };
    let item = Value::Array(vec![Value::Object(map)]);
    let _ = writeln!(out, "{}", indented(&yaml(&item), indent));
}

/// The rates of plans, where limits go by them: what the largest of those limits needs.
fn plans(out: &mut String, config: &Config, suggestions: &[Suggestion]) {
    let Value::Object(mut plans) = config.shown["plans"].clone() else { return };
    let file = &config.shown;
    let of_routes = list(&file["routes"]).iter().zip(&config.routes);
    let mut all: Vec<_> = as_written(&file["limits"], &config.limits).collect();
    all.extend(of_routes.flat_map(|(map, route)| as_written(&map["limits"], &route.limits)));
    let mut changed = false;
    let mut needed: Map<String, Value> = Map::new();
    for (map, limit) in all {
        let Some(rate) = map.get("rate").and_then(Value::as_str) else { continue };
        let key = if rate == "plan" { Some("rate") } else { rate.strip_prefix("plan.") };
        let Some(key) = key else { continue };
        for suggestion in suggestions.iter().filter(|s| s.limit == limit.name) {
            let (Some(plan), Some(size)) = (&suggestion.plan, &suggestion.proposed) else {
                continue;
            };
            let plan = needed.entry(plan.as_str()).or_insert_with(|| Value::Object(Map::new()));
            larger(&mut plan[key], size.count);
            if let (Some(burst), true) = (size.burst, has_burst_in_plans(map)) {
                larger(&mut plan["burst"], burst);
            }
        }
    }
    for (name, needs) in &needed {
        let Some(Value::Object(plan)) = plans.get_mut(name) else { continue };
        for (key, count) in needs.as_object().into_iter().flatten() {
            let value = match plan.get(key).and_then(Value::as_str) {
                Some(rate) if key != "burst" => match window(rate) {
                    Some(window) => Value::String(format!("{count}/{window}")),
                    // An environment variable tells it: what it told is written out.
                    None => Value::String(format!("{count}/{}", told_window(config, name, key))),
                },
                _ => count.clone(),
            };
            *plan = with(plan, key, Some(value));
            changed = true;
        }
    }
    if changed {
        let file = Value::Object(Map::from_iter([("plans".to_owned(), Value::Object(plans))]));
        let _ = writeln!(out, "{}", indented(&yaml(&file), 0));
    }
}

/// Keeps the larger of two counts.
fn larger(kept: &mut Value, count: u32) {
    *kept = kept.as_u64().unwrap_or(0).max(count.into()).into();
}

/// What a rate is per, as it is written; nothing if an environment variable tells it.
fn window(rate: &str) -> Option<&str> {
    let (_, window) = rate.split_once('/').filter(|_| !rate.contains('$'))?;
    Some(window.trim())
}

/// The same of a plan's rate, as it was read.
fn told_window(config: &Config, plan: &str, key: &str) -> String {
    let plan = config.plans.iter().find(|other| other.name == plan);
    let rate = plan.and_then(|plan| plan.rates.get(key)).map(|written| written.rate);
    let quota = rate.and_then(|rate| Quota::fixed_window(rate).ok()).map(|quota| quota.written());
    let window = quota.as_deref().and_then(|written| written.split_once('/'));
    window.map_or_else(|| "minute".to_owned(), |(_, window)| window.to_owned())
}

/// Whether the plans, rather than the limit, say how large its bucket is.
fn has_burst_in_plans(map: &Map<String, Value>) -> bool {
    map.get("rate").and_then(Value::as_str) == Some("plan")
        && !map.contains_key("burst")
        && is_token_bucket(map)
}

fn is_token_bucket(map: &Map<String, Value>) -> bool {
    map.get("algorithm").is_none_or(|name| name == "token_bucket")
}

/// The limit with a candidate that says itself what it would otherwise take from the limit.
fn spelt_out(map: &Map<String, Value>) -> Map<String, Value> {
    let Some(Value::Object(candidate)) = map.get("candidate") else { return map.clone() };
    let mut own = candidate.clone();
    for field in ["rate", "algorithm", "burst", "queue", "max_wait"] {
        if let (Some(value), None) = (map.get(field), candidate.get(field)) {
            own.insert(field.to_owned(), value.clone());
        }
    }
    // A bucket without a size is as large as its rate.
    let count = own.get("rate").and_then(Value::as_str).and_then(|rate| rate.split_once('/'));
    let count = count.and_then(|(count, _)| count.trim().replace('_', "").parse::<u32>().ok());
    if let (true, false, Some(count)) = (is_token_bucket(&own), own.contains_key("burst"), count) {
        own.insert("burst".to_owned(), count.into());
    }
    let mut map = map.clone();
    map.insert("candidate".to_owned(), Value::Object(own));
    map
}

/// Whether a candidate would take numbers over that mean nothing to it.
fn is_hindered(map: &Map<String, Value>) -> bool {
    let algorithm = map.get("candidate").and_then(|candidate| candidate.get("algorithm"));
    let own = map.get("algorithm").and_then(Value::as_str).unwrap_or("token_bucket");
    algorithm.is_some_and(|algorithm| algorithm != own)
}

/// A limit with other numbers.
fn resized(map: &Map<String, Value>, size: &Size) -> Map<String, Value> {
    let Some(rate) = map.get("rate") else {
        return with(map, "concurrency", Some(size.count.into()));
    };
    // A window that an environment variable tells is written out.
    let rate = match rate.as_str().and_then(window) {
        Some(window) => format!("{}/{window}", size.count),
        None => size.rate.clone(),
    };
    let mut map = with(&spelt_out(map), "rate", Some(rate.into()));
    let wait = size.max_wait.map(|seconds| Value::String(format!("{seconds}s")));
    for (field, value) in [
        ("max_wait", wait),
        ("queue", size.queue.map(Into::into)),
        ("burst", size.burst.map(Into::into)),
    ] {
        map = with(&map, field, value);
    }
    map
}

/// The map with this field; a new one comes behind the rate.
fn with(map: &Map<String, Value>, field: &str, value: Option<Value>) -> Map<String, Value> {
    let Some(value) = value else { return map.clone() };
    let mut changed = Map::new();
    let known = map.contains_key(field);
    for (key, old) in map {
        let new = if key == field { value.clone() } else { old.clone() };
        changed.insert(key.clone(), new);
        if key == "rate" && !known {
            changed.insert(field.to_owned(), value.clone());
        }
    }
    changed.entry(field).or_insert(value);
    changed
}

fn yaml(value: &Value) -> String {
    serde_yaml::to_string(value).unwrap_or_default()
}

fn indented(text: &str, by: usize) -> String {
    text.trim_end().lines().map(|line| format!("{:by$}{line}", "")).collect::<Vec<_>>().join("\n")
}

/// Why a limit should be that large, in lines.
fn evidence(suggestion: &Suggestion, config: &Config) -> Vec<String> {
    let Suggestion { limit, plan, callers, requests, used, depth, proposed, .. } = suggestion;
    let of = plan.as_ref().map(|plan| format!(" in plan {plan}")).unwrap_or_default();
    let now = suggestion.now.as_ref();
    let was = now.map(|now| format!(", was {now}")).unwrap_or_default();
    let becomes = match proposed {
        Some(size) => match (size.burst, size.queue) {
            (Some(burst), _) => format!("{}, burst {burst}{was}", size.rate),
            (_, Some(queue)) => {
                let wait = size.max_wait.unwrap_or_default();
                format!("{}, queue {queue}, max_wait {wait}s{was}", size.rate)
            }
            _ => format!("{}{was}", size.rate),
        },
        None if now.is_none() => "none is proposed".to_owned(),
        None => "stays as it is".to_owned(),
    };
    let mut lines = vec![format!("{limit}{of}: {becomes}")];
    if let Some(used) = used {
        let quota = super::each(config).find(|(other, ..)| other.name == *limit);
        let what = quota.map_or_else(String::new, |(_, quota, _)| {
            if quota.is_concurrency() {
                "at once".to_owned()
            } else {
                format!("within {}", length(quota.rate().window / crate::clock::SECOND))
            }
        });
        let (requests, callers) = (counted(*requests, "request"), counted(*callers, "caller"));
        lines.push(format!("  {requests} of {callers}; {what}, {}", spread(used)));
    }
    if let (Some(depth), Some(_)) = (depth, proposed) {
        lines.push(format!("  in bursts at this rate, {}", spread(depth)));
    }
    if let Some(rejects) = &suggestion.rejects {
        lines.push(if rejects.requests == 0 {
            "  would have rejected nobody".to_owned()
        } else {
            format!(
                "  would have rejected {} ({}) at least once, {} ({})",
                counted(rejects.callers, "caller"),
                percent(rejects.callers_share),
                counted(rejects.requests, "request"),
                percent(rejects.requests_share)
            )
        });
    }
    lines.extend(suggestion.thin.iter().map(|why| format!("  thin: {why}")));
    lines
}

fn spread(used: &Spread) -> String {
    let Spread { half, ninety, ninety_nine, most } = used;
    if half == most {
        return format!("{} at most", grouped((*most).into()));
    }
    format!(
        "half used at most {}, 90% {}, 99% {}, the busiest {}",
        grouped((*half).into()),
        grouped((*ninety).into()),
        grouped((*ninety_nine).into()),
        grouped((*most).into())
    )
}
