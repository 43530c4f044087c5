//! How much may be under way, and who goes first: `overload`, `concurrency`, `priority`.

use super::edge::{positive, share};
use super::model::{Concurrency, Overload, Places, Plan, Priority, Route};
use super::read::{Context, Fields, Read, one_of};
use super::sections::upstreams::{ADAPTIVE, CONCURRENCY, OVERLOAD, RESERVE};
use super::tree::{Kind, Node};
use std::time::Duration;

/// Bounds of a search that says none.
const MIN: u32 = 10;
const MAX: u32 = 1000;

/// More than this is no limit.
pub(super) const MOST: u32 = 1_000_000;

/// The longest queue: it is looked through by whoever leaves.
pub(super) const LONGEST_QUEUE: u32 = 1000;

impl Read for Priority {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        one_of(node, cx, "a priority", &Self::ALL.map(|priority| (priority.name(), priority)))
    }
}

/// `concurrency`, or `adaptive` in its place: off unless one of them is given.
pub(super) fn concurrency(fields: &Fields<'_>, cx: &mut Context<'_>) -> Option<Concurrency> {
    let (concurrency, adaptive) = (fields.get("concurrency"), fields.get("adaptive"));
    if let (Some(_), Some(node)) = (concurrency, adaptive) {
        let help = "concurrency: { adaptive: { min: 10, max: 1000 } }".to_owned();
        cx.error_with_help(node, "either 'concurrency' or 'adaptive'", help);
    }
    if let Some(node) = adaptive {
        return Some(Concurrency::with(bounds(node, cx)?));
    }
    let node = concurrency?;
    let Kind::Map(_) = node.kind else {
        return Some(Concurrency::with(Places::Fixed(count(node, cx)?)));
    };
    let fields = Fields::of(node, &CONCURRENCY, cx)?;
    let (fixed, adaptive) = (fields.get("max"), fields.get("adaptive"));
    let queue = fields.get("queue").and_then(|node| {
        let queue = u32::read(node, cx)?;
        if queue > LONGEST_QUEUE {
            cx.error(node, format!("at most {LONGEST_QUEUE} wait: a longer queue helps nobody"));
        }
        Some(queue)
    });
    let default = Concurrency::with(Places::Fixed(1)).max_wait;
    let max_wait = positive(&fields, "max_wait", cx, default);
    let places = match (fixed, adaptive) {
        (Some(node), None) => Places::Fixed(count(node, cx)?),
        (None, Some(node)) => bounds(node, cx)?,
        _ => {
            let help = "{ max: 500 }, or { adaptive: { min: 10, max: 1000 } }".to_owned();
            cx.error_with_help(node, "concurrency is either 'max' or 'adaptive'", help);
            return None;
        }
    };
    Some(Concurrency { places, queue, max_wait })
}

impl Concurrency {
    fn with(places: Places) -> Self {
        Self { places, queue: None, max_wait: Duration::from_secs(1) }
    }
}

/// What a search stays within.
fn bounds(node: &Node, cx: &mut Context<'_>) -> Option<Places> {
    let fields = Fields::of(node, &ADAPTIVE, cx)?;
    let (min_node, max_node) = (fields.get("min"), fields.get("max"));
    let max = max_node.map_or(Some(MAX), |node| count(node, cx))?;
    let min = min_node.map_or(Some(MIN.min(max)), |node| count(node, cx))?;
    if min > max {
        cx.error(min_node.or(max_node).unwrap_or(node), "'min' is more than 'max'");
    }
    Some(Places::Adaptive { min, max: max.max(min) })
}

fn count(node: &Node, cx: &mut Context<'_>) -> Option<u32> {
    let count = u32::read(node, cx)?;
    if !(1..=MOST).contains(&count) {
        cx.error(node, format!("between 1 and {MOST} requests at once"));
        return None;
    }
    Some(count)
}

impl Default for Overload {
    fn default() -> Self {
        Self {
            max_in_flight: None,
            reserve: 0.0,
            max_lag: Some(Duration::from_millis(500)),
            max_memory: Some(0.9),
        }
    }
}

impl Read for Overload {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &OVERLOAD, cx)?;
        let default = Self::default();
        let max_in_flight = unless_none(&fields, "max_in_flight", None, |node| count(node, cx));
        let reserve = fields.get("reserve").and_then(|node| {
            let fields = Fields::of(node, &RESERVE, cx)?;
            let critical = fields.get("critical");
            let reserve = share(critical?, cx)?;
            if reserve > 0.9 {
                cx.error(critical?, "at most 90%: the others need something, too");
            }
            Some(reserve)
        });
        let max_lag = unless_none(&fields, "max_lag", default.max_lag, |node| {
            let lag = Duration::read(node, cx)?;
            if lag < Duration::from_millis(10) {
                cx.error(node, "at least 10ms: any machine is late by less");
            }
            Some(lag)
        });
        let max_memory = unless_none(&fields, "max_memory", default.max_memory, |node| {
            let most = share(node, cx)?;
            if !(0.1..1.0).contains(&most) {
                cx.error(node, "from 10% to less than 100%");
            }
            Some(most)
        });
        Some(Self { max_in_flight, reserve: reserve.unwrap_or(0.0), max_lag, max_memory })
    }
}

/// A field that can be lifted by `none`.
fn unless_none<T>(
    fields: &Fields<'_>,
    name: &'static str,
    default: Option<T>,
    read: impl FnOnce(&Node) -> Option<T>,
) -> Option<T> {
    match fields.get(name) {
        None => default,
        Some(node) => match &node.kind {
            Kind::Scalar(scalar) if scalar.text == "none" => None,
            _ => read(node),
        },
    }
}

/// What is written and has no effect.
pub(super) fn check(
    overload: &Overload,
    routes: &[Route],
    plans: &[Plan],
    node: &Node,
    cx: &mut Context<'_>,
) {
    let of_routes = routes.iter().map(|route| route.priority);
    let mut priorities = of_routes.chain(plans.iter().map(|plan| plan.priority));
    let critical = priorities.any(|priority| priority == Some(Priority::Critical));
    let field = |name: &str| match &node.kind {
        Kind::Map(entries) => entries.iter().find(|(key, _)| key.name == name),
        _ => None,
    };
    if overload.reserve > 0.0 && !critical {
        let message = "a share is kept for critical requests, but no route and no plan is critical";
        cx.warn(field("reserve").map_or(node, |(_, node)| node), message);
    }
    if overload.reserve <= 0.0 && critical && overload.max_in_flight.is_some() {
        let message = "without 'reserve', critical requests find the process as full as others do";
        cx.warn(field("max_in_flight").map_or(node, |(_, node)| node), message);
    }
}
