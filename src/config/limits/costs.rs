//! What a request costs: a number, or what tells it later.

use crate::config::grammar;
use crate::config::model::{Cost, Measure, SettledCost, Unreported};
use crate::config::read::{Context, Fields, Read, one_of, parsed};
use crate::config::section::{Bare, Grammar};
use crate::config::sections::limits::COST;
use crate::config::tree::{Kind, Node};
use crate::json_path::NoPath;
use http::HeaderName;

/// What a request costs, and where that is written.
pub(super) struct WrittenCost {
    pub(super) cost: Cost,
    pub(super) node: Node,
}

pub(super) fn read(fields: &Fields<'_>, cx: &mut Context<'_>) -> Option<WrittenCost> {
    match fields.get("cost") {
        None => Some(WrittenCost { cost: Cost::Fixed(1), node: fields.node().clone() }),
        Some(node) if matches!(node.kind, Kind::Map(_)) => {
            Some(WrittenCost { cost: settled(node, cx)?, node: node.clone() })
        }
        Some(node) => {
            let cost = u32::read(node, cx)?;
            if cost == 0 {
                cx.error(node, "a cost of 0 would limit nothing");
            }
            Some(WrittenCost { cost: Cost::Fixed(cost), node: node.clone() })
        }
    }
}

pub(in crate::config) static JSON_PATH: Grammar =
    Grammar::new(r"[^.]+(\.[^.]+){0,63}", "a path looks like usage.total_tokens").bare(Bare::Any);

pub(in crate::config) const UNREPORTED: [(&str, Unreported); 2] =
    [("reserve", Unreported::Reserve), ("free", Unreported::Free)];

const KINDS: &str = "response_header, response_json, request_bytes or response_bytes";

/// `{ response_header: X-Cost, reserve: 10 }` and its like.
fn settled(node: &Node, cx: &mut Context<'_>) -> Option<Cost> {
    let fields = Fields::of(node, &COST, cx)?;
    let unit = |node: &Node, cx: &mut Context<'_>| {
        let unit = parsed(node, cx, "a size", grammar::size)?;
        if unit == 0 {
            cx.error(node, "a token must be for some bytes");
        }
        Some(unit)
    };
    let mut measures = Vec::new();
    if let Some(node) = fields.get("response_header") {
        measures.push(HeaderName::read(node, cx).map(Measure::ResponseHeader));
    }
    if let Some(node) = fields.get("response_json") {
        let path =
            parsed(node, cx, "a path", |text| text.parse().map_err(|e: NoPath| e.to_string()));
        measures.push(path.map(Measure::ResponseJson));
    }
    if let Some(node) = fields.get("request_bytes") {
        measures.push(unit(node, cx).map(Measure::RequestBytes));
    }
    if let Some(node) = fields.get("response_bytes") {
        measures.push(unit(node, cx).map(Measure::ResponseBytes));
    }
    let reserve = fields.get("reserve").map(|node| {
        let reserve = u32::read(node, cx)?;
        if reserve == 0 {
            cx.error(node, "a reserve of 0 would limit nothing");
        }
        Some(reserve)
    });
    let missing = missing(&fields, cx);
    let others = ["reserve", "max", "unreported"].map(|name| fields.get(name).is_some());
    let others = others.into_iter().filter(|given| *given).count();
    match &mut measures[..] {
        // An unknown field is one that was meant to tell.
        [] if matches!(&node.kind, Kind::Map(all) if all.len() > others) => {}
        [] => cx.error(node, format!("what tells the cost? One of {KINDS}")),
        [by] => {
            let (reserve, (max, unreported)) = (reserve.unwrap_or(Some(1))?, missing?);
            let by = by.take()?;
            let cost = SettledCost { reserve, max, unreported, by };
            check_missing(&cost, &fields, cx);
            return Some(Cost::Settled(cost));
        }
        _ => cx.error(node, format!("only one of {KINDS} can tell the cost")),
    }
    None
}

/// What a request costs whose answer does not say it.
fn missing(fields: &Fields<'_>, cx: &mut Context<'_>) -> Option<(Option<u32>, Unreported)> {
    let max = fields.get("max").map(|node| u32::read(node, cx));
    let unreported = fields.get("unreported");
    let unreported =
        unreported.map(|node| one_of(node, cx, "what such an answer costs", &UNREPORTED));
    Some((
        max.map_or(Some(None), |max| max.map(Some))?,
        unreported.unwrap_or(Some(Unreported::Reserve))?,
    ))
}

/// Bytes are counted by the gateway itself: their number is never missing.
fn check_missing(cost: &SettledCost, fields: &Fields<'_>, cx: &mut Context<'_>) {
    let counts_bytes = matches!(cost.by, Measure::RequestBytes(_) | Measure::ResponseBytes(_));
    for name in ["max", "unreported"] {
        if let Some(node) = fields.get(name).filter(|_| counts_bytes) {
            cx.error(
                node,
                format!("the gateway counts bytes itself: '{name}' has no meaning here"),
            );
        }
    }
    if let (Some(max), Some(node)) = (cost.max, fields.get("max"))
        && max < cost.reserve
    {
        let message = format!("max is less than what is reserved, {}", cost.reserve);
        cx.error_with_help(node, message, "a request costs at least its reserve".to_owned());
    }
}
