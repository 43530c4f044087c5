//! How much a limit allows: its algorithm with its numbers, fixed or by plan.

use super::Names;
use crate::clock::micros;
use crate::config::callers::Callers;
use crate::config::grammar::CALENDAR_RATE;
use crate::config::model::{Attribute, Cost, Plan, Quotas, WrittenRate};
use crate::config::read::{Context, Fields, Located, Read, one_of, parsed};
use crate::config::section::Grammar;
use crate::config::tree::{Kind, Node};
use crate::limit::{Calendar, Period, Quota, QuotaError};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum Algorithm {
    TokenBucket,
    Gcra,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    LeakyBucket,
}

pub(in crate::config) const ALGORITHMS: [(&str, Algorithm); 6] = [
    ("token_bucket", Algorithm::TokenBucket),
    ("gcra", Algorithm::Gcra),
    ("fixed_window", Algorithm::FixedWindow),
    ("sliding_window", Algorithm::SlidingWindow),
    ("sliding_log", Algorithm::SlidingLog),
    ("leaky_bucket", Algorithm::LeakyBucket),
];

/// What the file calls the algorithm, once it has been read without a mistake.
pub(super) fn algorithm_name(fields: &Fields<'_>) -> &'static str {
    if fields.get("concurrency").is_some() {
        return "concurrency";
    }
    let written = fields.get("algorithm").and_then(|node| match &node.kind {
        Kind::Scalar(scalar) => ALGORITHMS.iter().find(|(name, _)| *name == scalar.text),
        _ => None,
    });
    written.map_or("token_bucket", |(name, _)| name)
}

/// Everything a limit says beside its rate.
struct Numbers<'n> {
    algorithm: Algorithm,
    burst: Option<Located<u32>>,
    queue: u32,
    max_wait: Duration,
    time_zone: Option<&'n Node>,
}

/// Reads `rate` or `concurrency`, and what belongs to them.
pub(super) fn read(
    fields: &Fields<'_>,
    by: Option<&[Attribute]>,
    callers: &Callers,
    names: &mut Names,
    cx: &mut Context<'_>,
) -> Option<Quotas> {
    let concurrency = fields.get("concurrency");
    let numbers = numbers(fields, concurrency.is_some(), cx);
    let rate = fields.get("rate");
    match (rate, concurrency) {
        (None, Some(node)) => {
            let most = u32::read(node, cx)?;
            made(Quota::concurrency(most), node, cx).map(Quotas::Fixed)
        }
        (Some(_), Some(node)) => {
            cx.error(node, "a limit has either a 'rate' or a 'concurrency'");
            None
        }
        (None, None) => {
            cx.error(fields.node(), "a limit needs 'rate', such as 100/minute");
            None
        }
        (Some(node), None) => rates(node, &numbers?, by, callers, names, cx),
    }
}

/// Reads a candidate's numbers; what it does not say is as in the limit beside it.
pub(super) fn read_over<'n>(
    own: &mut Fields<'n>,
    live: &Fields<'n>,
    by: Option<&[Attribute]>,
    callers: &Callers,
    names: &mut Names,
    cx: &mut Context<'_>,
) -> Option<Quotas> {
    own.fall_back_to(live);
    read(own, by, callers, names, cx)
}

fn numbers<'n>(
    fields: &Fields<'n>,
    concurrency: bool,
    cx: &mut Context<'_>,
) -> Option<Numbers<'n>> {
    let node = fields.get("algorithm");
    let algorithm = match node {
        None => Some(Algorithm::TokenBucket),
        Some(node) => one_of(node, cx, "an algorithm", &ALGORITHMS),
    };
    let given =
        [fields.get("burst"), fields.get("queue"), fields.get("max_wait"), fields.get("time_zone")];
    let belongs = |index: usize| match algorithm {
        _ if concurrency => false,
        None => true, // which it is has to be known first
        Some(Algorithm::TokenBucket | Algorithm::Gcra) => index == 0,
        Some(Algorithm::LeakyBucket) => index == 1 || index == 2,
        Some(Algorithm::FixedWindow) => index == 3,
        Some(Algorithm::SlidingWindow | Algorithm::SlidingLog) => false,
    };
    let homes = [
        ("burst", "token_bucket and gcra"),
        ("queue", "leaky_bucket"),
        ("max_wait", "leaky_bucket"),
        ("time_zone", "fixed_window"),
    ];
    for (index, (node, (name, home))) in given.into_iter().zip(homes).enumerate() {
        if let Some(node) = node
            && !belongs(index)
        {
            cx.error(node, format!("'{name}' means something for {home} only"));
        }
    }
    if let (Some(node), true) = (node, concurrency) {
        cx.error(node, "a 'concurrency' limit has no algorithm");
    }
    Some(Numbers {
        algorithm: algorithm?,
        burst: fields.read("burst", cx),
        queue: fields.read("queue", cx).unwrap_or(100),
        max_wait: fields.read("max_wait", cx).unwrap_or(Duration::from_secs(10)),
        time_zone: given[3],
    })
}

/// `rate`: N per window, or what the caller's plan says.
fn rates(
    node: &Node,
    numbers: &Numbers<'_>,
    by: Option<&[Attribute]>,
    callers: &Callers,
    names: &mut Names,
    cx: &mut Context<'_>,
) -> Option<Quotas> {
    let plan_rate = match &node.kind {
        Kind::Scalar(scalar) if scalar.text == "plan" => Some("rate"),
        Kind::Scalar(scalar) => scalar.text.strip_prefix("plan."),
        _ => None,
    };
    let burst = numbers.burst.as_ref().map(|burst| burst.value);
    let Some(name) = plan_rate else {
        let rate = WrittenRate::read(node, cx)?;
        let at = numbers.burst.as_ref().map_or(node, |burst| &burst.node);
        return quota(rate, burst, numbers, at, names, cx).map(Quotas::Fixed);
    };
    let planned = |a: &Attribute| matches!(a, Attribute::User | Attribute::ApiKey);
    if by.is_some_and(|by| !by.iter().any(planned)) {
        cx.error(node, "only a user or an API key has a plan: 'by' must name one of them");
    }
    if callers.plans.is_empty() {
        cx.error(node, "there are no 'plans'");
        return None;
    }
    let mut by_plan = |plan: &Plan| {
        let Some(rate) = plan.rates.get(name) else {
            // A rate that is there but cannot be read has been reported.
            if !callers.unreadable_rates.contains(&(plan.name.clone(), name.to_owned())) {
                cx.error(node, format!("the plan '{}' has no '{name}'", plan.name));
            }
            return None;
        };
        let of_plan = plan.burst.filter(|_| name == "rate");
        quota(*rate, burst.or(of_plan), numbers, node, names, cx)
    };
    let quotas: Vec<Quota> = callers.plans.iter().filter_map(&mut by_plan).collect();
    (quotas.len() == callers.plans.len()).then_some(Quotas::ByPlan(quotas))
}

fn quota(
    written: WrittenRate,
    burst: Option<u32>,
    numbers: &Numbers<'_>,
    node: &Node,
    names: &mut Names,
    cx: &mut Context<'_>,
) -> Option<Quota> {
    let WrittenRate { rate, period } = written;
    let quota = match numbers.algorithm {
        Algorithm::TokenBucket => Quota::token_bucket(rate, burst),
        Algorithm::Gcra => Quota::gcra(rate, numbers.burst.as_ref().map(|burst| burst.value)),
        Algorithm::SlidingWindow => Quota::sliding_window(rate),
        Algorithm::SlidingLog => Quota::sliding_log(rate),
        Algorithm::LeakyBucket => {
            Quota::leaky_bucket(rate, numbers.queue, micros(numbers.max_wait))
        }
        Algorithm::FixedWindow => match period {
            Some(period) => {
                let calendar = calendar(period, numbers.time_zone, names, cx)?;
                Quota::calendar_window(rate, calendar)
            }
            None => {
                if let Some(node) = numbers.time_zone {
                    cx.error(node, CALENDAR_RATE.help);
                }
                Quota::fixed_window(rate)
            }
        },
    };
    made(quota, node, cx)
}

fn made(quota: Result<Quota, QuotaError>, node: &Node, cx: &mut Context<'_>) -> Option<Quota> {
    quota.map_err(|error| cx.error(node, error.to_string())).ok()
}

pub(in crate::config) static TIME_ZONE: Grammar =
    Grammar::new("[A-Za-z][A-Za-z0-9_+/-]*", "a time zone looks like Europe/Berlin or UTC");

/// A rate of the caller's plan.
pub(in crate::config) static OF_PLAN: Grammar =
    Grammar::new(r"plan(\.[\s\S]*)?", "plan, or plan.NAME");

fn calendar(
    period: Period,
    zone: Option<&Node>,
    names: &mut Names,
    cx: &mut Context<'_>,
) -> Option<Arc<Calendar>> {
    let mut known = |zone: &str| {
        let entry = names.calendars.entry((period, zone.to_owned()));
        entry.or_insert_with(|| Calendar::new(period, zone).map(Arc::new)).clone()
    };
    match zone {
        None => known("UTC"),
        Some(node) => parsed(node, cx, "a time zone", |zone| {
            known(zone).ok_or_else(|| TIME_ZONE.help.to_owned())
        }),
    }
}

/// A limit that could never admit a request is a mistake.
pub(super) fn affordable(
    quotas: &Quotas,
    cost: &Cost,
    node: &Node,
    callers: &Callers,
    cx: &mut Context<'_>,
) {
    let tokens = cost.up_front();
    let mut check = |quota: &Quota, of: String| {
        if cost.is_settled() && !quota.can_settle() {
            cx.error(
                node,
                "a cost that is known later can be settled by a token_bucket, gcra, fixed_window or \
                 sliding_window",
            );
        } else if quota.is_concurrency() && tokens != 1 {
            cx.error(node, "a request in flight is one request in flight");
        } else if tokens > quota.capacity() {
            let message = format!(
                "a request costs {tokens}, but{of} at most {} fit: it could never be admitted",
                quota.capacity()
            );
            cx.error(node, message);
        }
    };
    match quotas {
        Quotas::Fixed(quota) => check(quota, String::new()),
        Quotas::ByPlan(quotas) => {
            for (quota, plan) in quotas.iter().zip(&callers.plans) {
                check(quota, format!(" in the plan '{}'", plan.name));
            }
        }
    }
}
