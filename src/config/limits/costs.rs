//! What a request costs: a number, or what tells it later.

use crate::config::grammar;
use crate::config::model::{Cost, Measure};
use crate::config::read::{Context, Fields, Read, parsed};
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
    match &mut measures[..] {
        // A field that nobody knows is one that was meant to tell.
        [] if matches!(&node.kind, Kind::Map(all) if all.len() > usize::from(reserve.is_some())) => {
        }
        [] => cx.error(node, format!("what tells the cost? One of {KINDS}")),
        [by] => {
            return Some(Cost::Settled { reserve: reserve.unwrap_or(Some(1))?, by: by.take()? });
        }
        _ => cx.error(node, format!("only one of {KINDS} can tell the cost")),
    }
    None
}
