//! Upstreams: where requests go.

use super::edge::positive;
use super::model::{Balance, Endpoint, Timeouts, Upstream};
use super::read::{Context, Fields, Read, one_of, parsed};
use super::tree::{Kind, Node};
use http::Uri;
use std::time::Duration;

pub(super) fn read_all(fields: &mut Fields<'_>, cx: &mut Context<'_>) -> Vec<Upstream> {
    let Some(node) = fields.get("upstreams") else {
        cx.error(fields.node(), "gateway.yaml needs 'upstreams'");
        return Vec::new();
    };
    let Kind::Map(entries) = &node.kind else {
        cx.error(node, format!("expected upstreams by name, found {}", node.describe()));
        return Vec::new();
    };
    // One that cannot be read keeps its name, so that routes to it are not reported as well.
    entries
        .iter()
        .map(|(key, node)| upstream(&key.name, node, cx).unwrap_or_else(|| empty(&key.name)))
        .collect()
}

fn empty(name: &str) -> Upstream {
    Upstream {
        name: name.to_owned(),
        endpoints: Vec::new(),
        balance: Balance::default(),
        timeouts: Timeouts::default(),
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            response: Duration::from_secs(30),
            idle: Duration::from_secs(60),
        }
    }
}

fn upstream(name: &str, node: &Node, cx: &mut Context<'_>) -> Option<Upstream> {
    let Kind::Map(_) = node.kind else {
        let endpoints = vec![Endpoint::read(node, cx)?];
        return Some(Upstream { endpoints, ..empty(name) });
    };
    let mut fields = Fields::of(node, "an upstream", cx)?;
    let endpoints: Option<Vec<Endpoint>> = fields.required("endpoints", cx);
    if let Some(Kind::List(items)) = fields.get("endpoints").map(|node| &node.kind)
        && items.is_empty()
    {
        cx.error(node, "an upstream needs at least one endpoint");
    }
    let balance = fields.get("balance").and_then(|node| {
        if let Kind::Scalar(scalar) = &node.kind
            && scalar.text == "hash_ip"
        {
            cx.error(node, "the balancing 'hash_ip' is not supported yet");
            return None;
        }
        let words =
            [("round_robin", Balance::RoundRobin), ("least_requests", Balance::LeastRequests)];
        one_of(node, cx, "a way of balancing", &words)
    });
    let timeouts = fields.optional("timeouts", cx).unwrap_or_default();
    if let Some(flag) = fields.get("http2")
        && bool::read(flag, cx) == Some(true)
    {
        cx.error(flag, "'http2: true' is not supported yet");
    }
    fields.later(&["health", "eject", "retries", "concurrency", "ca"]);
    fields.finish(cx);
    let balance = balance.unwrap_or_default();
    Some(Upstream { name: name.to_owned(), endpoints: endpoints?, balance, timeouts })
}

impl Read for Timeouts {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let mut fields = Fields::of(node, "timeouts", cx)?;
        let default = Self::default();
        let timeouts = Self {
            connect: positive(&mut fields, "connect", cx, default.connect),
            response: positive(&mut fields, "response", cx, default.response),
            idle: positive(&mut fields, "idle", cx, default.idle),
        };
        fields.finish(cx);
        Some(timeouts)
    }
}

impl Read for Endpoint {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let Kind::Map(_) = node.kind else {
            return parsed(node, cx, "an endpoint", endpoint);
        };
        let mut fields = Fields::of(node, "an endpoint", cx)?;
        let url = match fields.get("url") {
            Some(node) => parsed(node, cx, "an endpoint", endpoint),
            None => {
                cx.error(node, "an endpoint needs 'url'");
                None
            }
        };
        let weight = fields.get("weight").and_then(|node| {
            let weight = u32::read(node, cx)?;
            if !(1..=100).contains(&weight) {
                cx.error(node, "a weight is between 1 and 100");
            }
            Some(weight)
        });
        fields.finish(cx);
        Some(Self { weight: weight.unwrap_or(1), ..url? })
    }
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    const HELP: &str = "an endpoint looks like http://127.0.0.1:3000";
    let uri: Uri = text.parse().map_err(|_| HELP)?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err("https:// upstreams are not supported yet".to_owned()),
        _ => return Err(HELP.to_owned()),
    }
    if uri.path() != "/" || uri.query().is_some() {
        return Err("an endpoint has no path; 'rewrite' on the route changes paths".to_owned());
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("an endpoint holds no user name or password".to_owned());
    }
    let host = uri.host().ok_or(HELP)?.to_owned();
    if uri.port_u16() == Some(0) || uri.authority().is_some_and(|a| a.as_str().ends_with(':')) {
        return Err(HELP.to_owned());
    }
    Ok(Endpoint { host, port: uri.port_u16().unwrap_or(80), weight: 1 })
}
