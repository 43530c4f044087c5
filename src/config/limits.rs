//! Limits, at the top level and on routes.

use super::callers::Callers;
use super::diagnostics::nearest;
use super::model::{Attribute, Limit, Plan, Quotas};
use super::read::{Context, Fields, Located, Read, one_of, parsed};
use super::tree::{Kind, Node};
use crate::limit::{Algorithm, Quota, Rate};
use http::HeaderName;
use std::collections::HashMap;

/// Names that are taken, and where.
#[derive(Default)]
pub(super) struct Names(HashMap<String, usize>);

pub(super) fn read_all(
    node: Option<&Node>,
    route: &str,
    callers: &Callers,
    names: &mut Names,
    cx: &mut Context<'_>,
) -> Vec<Limit> {
    let nodes = match node.map(|node| (node, &node.kind)) {
        None => return Vec::new(),
        Some((_, Kind::List(nodes))) => nodes.as_slice(),
        Some((node, _)) => {
            cx.error(node, format!("expected a list of limits, found {}", node.describe()));
            return Vec::new();
        }
    };
    nodes.iter().filter_map(|node| limit(node, route, callers, names, cx)).collect()
}

fn limit(
    node: &Node,
    route: &str,
    callers: &Callers,
    names: &mut Names,
    cx: &mut Context<'_>,
) -> Option<Limit> {
    let mut fields = Fields::of(node, "a limit", cx)?;
    let name_node = fields.get("name");
    let by = match fields.get("by") {
        Some(by) => self::by(by, callers, cx),
        None => {
            cx.error(node, "a limit needs 'by': ip, user, api_key, header:NAME or global");
            None
        }
    };
    let unless = fields.get("unless").and_then(|node| unless(node, callers, cx));
    let algorithm = algorithm(&mut fields, cx);
    let burst: Option<Located<u32>> = fields.optional("burst", cx);
    let cost = cost(&mut fields, cx);
    let shadow = fields
        .get("mode")
        .and_then(|node| one_of(node, cx, "a mode", &[("enforce", false), ("shadow", true)]));
    let quotas = quotas(&mut fields, by.as_deref(), burst.as_ref(), callers, cx);
    fields.later(&[
        "queue",
        "max_wait",
        "time_zone",
        "candidate",
        "shards",
        "consistency",
        "on_failure",
        "concurrency",
        "penalty",
    ]);
    fields.finish(cx);
    let default = by.as_ref().map(|by| format!("{route}/{}", by_name(by)));
    let name = names.take(name_node, default, node, cx);
    let (cost, (), quotas) = (cost?, algorithm?, quotas?);
    affordable(&quotas, &cost, callers, cx);
    Some(Limit {
        name: name?,
        by: by?,
        unless: unless.unwrap_or_default(),
        quotas,
        cost: cost.value,
        shadow: shadow.unwrap_or(false),
    })
}

impl Names {
    /// The limit's own name, or its default; no two limits share one.
    fn take(
        &mut self,
        given: Option<&Node>,
        default: Option<String>,
        limit: &Node,
        cx: &mut Context<'_>,
    ) -> Option<String> {
        let name = match given {
            Some(node) => parsed(node, cx, "a name", valid_name)?,
            None => default?,
        };
        let line = given.unwrap_or(limit).span.line;
        if let Some(first) = self.0.insert(name.clone(), line) {
            cx.error_with_help(
                given.unwrap_or(limit),
                format!("a limit on line {first} is called '{name}' too"),
                "give it a 'name' of its own".to_owned(),
            );
        }
        Some(name)
    }
}

/// Names go into headers, logs and metrics as they are.
pub(super) fn valid_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\' || c == ' ';
    if !text.is_empty() && text.len() <= 128 && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("up to 128 visible ASCII characters, without '\"' and '\\'".to_owned())
    }
}

fn by_name(by: &[Attribute]) -> String {
    if by.is_empty() {
        return "global".to_owned();
    }
    by.iter().map(attribute_name).collect::<Vec<_>>().join("+")
}

fn attribute_name(attribute: &Attribute) -> String {
    match attribute {
        Attribute::Ip => "ip".to_owned(),
        Attribute::User => "user".to_owned(),
        Attribute::ApiKey => "api_key".to_owned(),
        Attribute::Header(name) => format!("header:{name}"),
    }
}

/// What a limit counts by: attributes, or nothing for `global`.
fn by(node: &Node, callers: &Callers, cx: &mut Context<'_>) -> Option<Vec<Attribute>> {
    if let Kind::Scalar(scalar) = &node.kind
        && scalar.text == "global"
    {
        return Some(Vec::new());
    }
    if matches!(&node.kind, Kind::List(items) if items.is_empty()) {
        cx.error(node, "'by' needs at least one attribute");
        return None;
    }
    attributes(node, callers, cx)
}

fn unless(node: &Node, callers: &Callers, cx: &mut Context<'_>) -> Option<Vec<Attribute>> {
    let attributes = attributes(node, callers, cx)?;
    if attributes.contains(&Attribute::Ip) {
        cx.error(node, "every caller has an address: this limit would never apply");
    }
    Some(attributes)
}

fn attributes(node: &Node, callers: &Callers, cx: &mut Context<'_>) -> Option<Vec<Attribute>> {
    let read: Vec<Located<Attribute>> = Vec::read(node, cx)?;
    for (index, attribute) in read.iter().enumerate() {
        if read[..index].iter().any(|other| other.value == attribute.value) {
            cx.error(&attribute.node, "this attribute is named twice");
        }
        let unknown = match attribute.value {
            Attribute::User => !callers.knows_users,
            Attribute::ApiKey => !callers.knows_keys,
            Attribute::Ip | Attribute::Header(_) => false,
        };
        if unknown {
            let name = attribute_name(&attribute.value);
            cx.warn(&attribute.node, format!("without 'identity.{name}' no caller ever has this"));
        }
    }
    let asked = if let Kind::List(items) = &node.kind { items.len() } else { 1 };
    (read.len() == asked).then(|| read.into_iter().map(|attribute| attribute.value).collect())
}

impl Read for Attribute {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "something to count by", |text| match text {
            "ip" => Ok(Self::Ip),
            "user" => Ok(Self::User),
            "api_key" => Ok(Self::ApiKey),
            "global" => Err("'global' stands alone".to_owned()),
            _ => match text.strip_prefix("header:").map(str::parse::<HeaderName>) {
                Some(Ok(name)) => Ok(Self::Header(name)),
                Some(Err(_)) => Err("a header looks like header:X-Tenant".to_owned()),
                None => {
                    let words = ["ip", "user", "api_key", "global", "header:"];
                    let list = || "one of: ip, user, api_key, header:NAME, global".to_owned();
                    Err(nearest(text, words).unwrap_or_else(list))
                }
            },
        })
    }
}

fn algorithm(fields: &mut Fields<'_>, cx: &mut Context<'_>) -> Option<()> {
    const LATER: [&str; 6] =
        ["gcra", "fixed_window", "sliding_window", "sliding_log", "leaky_bucket", "concurrency"];
    let Some(node) = fields.get("algorithm") else {
        return Some(());
    };
    if let Kind::Scalar(scalar) = &node.kind
        && LATER.contains(&scalar.text.as_str())
    {
        cx.error(node, format!("the algorithm '{}' is not supported yet", scalar.text));
        return None;
    }
    one_of(node, cx, "an algorithm", &[("token_bucket", Algorithm::TokenBucket)]).map(|_| ())
}

fn cost(fields: &mut Fields<'_>, cx: &mut Context<'_>) -> Option<Located<u32>> {
    match fields.get("cost") {
        None => Some(Located { value: 1, node: fields.node().clone() }),
        Some(node) if matches!(node.kind, Kind::Map(_)) => {
            cx.error(node, "a cost that the response decides is not supported yet");
            None
        }
        Some(node) => {
            let cost = Located::<u32>::read(node, cx)?;
            if cost.value == 0 {
                cx.error(node, "a cost of 0 would limit nothing");
            }
            Some(cost)
        }
    }
}

/// `rate`: N per window, or what the caller's plan says.
fn quotas(
    fields: &mut Fields<'_>,
    by: Option<&[Attribute]>,
    burst: Option<&Located<u32>>,
    callers: &Callers,
    cx: &mut Context<'_>,
) -> Option<Quotas> {
    let Some(node) = fields.get("rate") else {
        cx.error(fields.node(), "a limit needs 'rate', such as 100/minute");
        return None;
    };
    let plan_rate = match &node.kind {
        Kind::Scalar(scalar) if scalar.text == "plan" => Some("rate"),
        Kind::Scalar(scalar) => scalar.text.strip_prefix("plan."),
        _ => None,
    };
    let Some(name) = plan_rate else {
        let rate = Rate::read(node, cx)?;
        return quota(rate, burst.map(|b| b.value), burst.map_or(node, |b| &b.node), cx)
            .map(Quotas::Fixed);
    };
    let planned = |a: &Attribute| matches!(a, Attribute::User | Attribute::ApiKey);
    if by.is_some_and(|by| !by.iter().any(planned)) {
        cx.error(node, "only a user or an API key has a plan: 'by' must name one of them");
    }
    if callers.plans.is_empty() {
        cx.error(node, "there are no 'plans'");
        return None;
    }
    let by_plan = |plan: &Plan, cx: &mut Context<'_>| {
        let Some(rate) = plan.rates.get(name) else {
            // A rate that is there but cannot be read has been reported.
            if !callers.unreadable_rates.contains(&(plan.name.clone(), name.to_owned())) {
                cx.error(node, format!("the plan '{}' has no '{name}'", plan.name));
            }
            return None;
        };
        let of_plan = plan.burst.filter(|_| name == "rate");
        quota(*rate, burst.map(|b| b.value).or(of_plan), node, cx)
    };
    let quotas: Vec<Quota> = callers.plans.iter().filter_map(|plan| by_plan(plan, cx)).collect();
    (quotas.len() == callers.plans.len()).then_some(Quotas::ByPlan(quotas))
}

fn quota(rate: Rate, burst: Option<u32>, node: &Node, cx: &mut Context<'_>) -> Option<Quota> {
    Quota::token_bucket(rate, burst).map_err(|error| cx.error(node, error.to_string())).ok()
}

/// A limit that could never admit a request is a mistake.
fn affordable(quotas: &Quotas, cost: &Located<u32>, callers: &Callers, cx: &mut Context<'_>) {
    let mut check = |quota: &Quota, of: String| {
        if cost.value > quota.capacity() {
            let message = format!(
                "a request costs {}, but the burst{of} is {}: it could never be admitted",
                cost.value,
                quota.capacity()
            );
            cx.error(&cost.node, message);
        }
    };
    match quotas {
        Quotas::Fixed(quota) => check(quota, String::new()),
        Quotas::ByPlan(quotas) => {
            for (quota, plan) in quotas.iter().zip(&callers.plans) {
                check(quota, format!(" of plan '{}'", plan.name));
            }
        }
    }
}
