//! Upstreams: where requests go.

use super::edge::positive;
use super::failing;
use super::listeners::file;
use super::model::{Balance, Eject, Endpoint, OnLeave, Retries, Timeouts, Upstream};
use super::overload;
use super::read::{Context, Fields, Read, one_of, parsed};
use super::section::{Bare, Grammar};
use super::sections::upstreams::{ENDPOINT, TIMEOUTS, UPSTREAM};
use super::tree::{Kind, Node};
use crate::tls::client;
use http::Uri;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn read_all(fields: &Fields<'_>, cx: &mut Context<'_>) -> Vec<Upstream> {
    let Some(node) = fields.get("upstreams") else { return Vec::new() };
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

/// An upstream with every default, and without endpoints.
pub(super) fn empty(name: &str) -> Upstream {
    Upstream {
        name: name.to_owned(),
        endpoints: Vec::new(),
        balance: Balance::default(),
        health: None,
        eject: Some(Eject::default()),
        slow_start: Duration::from_secs(10),
        retries: Retries::default(),
        timeouts: Timeouts::default(),
        resolve: Duration::from_secs(5),
        tls: None,
        http2: false,
        concurrency: None,
        on_leave: OnLeave::default(),
    }
}

/// What becomes of a request whose client leaves.
pub(super) const ON_LEAVE: [(&str, OnLeave); 2] =
    [("finish", OnLeave::Finish), ("cancel", OnLeave::Cancel)];

pub(super) const BALANCES: [(&str, Balance); 3] = [
    ("round_robin", Balance::RoundRobin),
    ("least_requests", Balance::LeastRequests),
    ("hash_ip", Balance::HashIp),
];

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            response: Duration::from_secs(30),
            body: Duration::from_secs(300),
            idle: Duration::from_secs(60),
            tunnel: Duration::from_secs(300),
        }
    }
}

fn upstream(name: &str, node: &Node, cx: &mut Context<'_>) -> Option<Upstream> {
    let Kind::Map(_) = node.kind else {
        let endpoint = Endpoint::read(node, cx)?;
        let tls = if endpoint.https { Some(tls(node, None, None, false, cx)?) } else { None };
        return Some(Upstream { endpoints: vec![endpoint], tls, ..empty(name) });
    };
    let fields = Fields::of(node, &UPSTREAM, cx)?;
    let endpoints: Option<Vec<Endpoint>> = fields.read("endpoints", cx);
    let list = fields.get("endpoints");
    if let Some(Kind::List(items)) = fields.get("endpoints").map(|node| &node.kind)
        && items.is_empty()
    {
        cx.error(node, "an upstream needs at least one endpoint");
    }
    let balance = fields.get("balance");
    let balance = balance.and_then(|node| one_of(node, cx, "a way of balancing", &BALANCES));
    let health = failing::health(&fields, cx);
    let eject = failing::eject(&fields, cx);
    let retries = failing::retries(&fields, cx);
    let defaults = empty(name);
    let slow_start = fields.read("slow_start", cx).unwrap_or(defaults.slow_start);
    let resolve = positive(&fields, "resolve", cx, defaults.resolve);
    let timeouts = fields.read("timeouts", cx).unwrap_or_default();
    let http2 = fields.read("http2", cx).unwrap_or(false);
    let (ca, server_name) = (fields.get("ca"), fields.get("server_name"));
    let concurrency = overload::concurrency(&fields, cx);
    let on_leave = fields.get("on_leave");
    let on_leave = on_leave.and_then(|node| one_of(node, cx, "what happens then", &ON_LEAVE));
    let endpoints = endpoints?;
    for (index, endpoint) in endpoints.iter().enumerate() {
        let same = |other: &Endpoint| (&other.host, other.port) == (&endpoint.host, endpoint.port);
        if endpoints[..index].iter().any(same) {
            let message = format!("{}:{} is there twice", endpoint.host, endpoint.port);
            let help = "'weight' gives it a larger share".to_owned();
            cx.error_with_help(list.unwrap_or(node), message, help);
        }
    }
    let tls = if endpoints.iter().any(|endpoint| endpoint.https) {
        Some(tls(node, ca, server_name, http2, cx)?)
    } else {
        for node in [ca, server_name].into_iter().flatten() {
            cx.error(node, "only https:// endpoints prove who they are");
        }
        None
    };
    let balance = balance.unwrap_or_default();
    Some(Upstream {
        name: name.to_owned(),
        endpoints,
        balance,
        health,
        eject,
        slow_start,
        retries,
        timeouts,
        resolve,
        tls,
        http2,
        concurrency,
        on_leave: on_leave.unwrap_or_default(),
    })
}

/// The name that backends must prove to have.
pub(super) static SERVER_NAME: Grammar =
    Grammar::new("[A-Za-z0-9._:-]+", "it looks like api.internal").bare(Bare::Any);

/// How backends prove who they are.
fn tls(
    node: &Node,
    ca: Option<&Node>,
    server_name: Option<&Node>,
    http2: bool,
    cx: &mut Context<'_>,
) -> Option<client::Tls> {
    let name = server_name.map(|node| {
        parsed(node, cx, "a name", |text| {
            ServerName::try_from(text.to_owned()).map_err(|_| SERVER_NAME.help.to_owned())
        })
    });
    let pem = ca.map(|node| file(node, cx).map(Arc::from));
    // What was given and cannot be read is not left out.
    let (name, pem) = (name.map_or(Some(None), |name| name.map(Some)), pem);
    let pem = pem.map_or(Some(None), |pem| pem.map(Some));
    match client::Tls::new(pem?, name?, http2) {
        Ok(tls) => Some(tls),
        Err(error) => {
            cx.error(ca.unwrap_or(node), format!("backends cannot be verified: {error}"));
            None
        }
    }
}

impl Read for Timeouts {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &TIMEOUTS, cx)?;
        let default = Self::default();
        let timeouts = Self {
            connect: positive(&fields, "connect", cx, default.connect),
            response: positive(&fields, "response", cx, default.response),
            body: positive(&fields, "body", cx, default.body),
            idle: positive(&fields, "idle", cx, default.idle),
            tunnel: positive(&fields, "tunnel", cx, default.tunnel),
        };
        Some(timeouts)
    }
}

impl Read for Endpoint {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let Kind::Map(_) = node.kind else {
            return parsed(node, cx, "an endpoint", endpoint);
        };
        let fields = Fields::of(node, &ENDPOINT, cx)?;
        let url = fields.get("url").and_then(|node| parsed(node, cx, "an endpoint", endpoint));
        let weight = fields.get("weight").and_then(|node| {
            let weight = u32::read(node, cx)?;
            if !(1..=100).contains(&weight) {
                cx.error(node, "a weight is between 1 and 100");
            }
            Some(weight)
        });
        Some(Self { weight: weight.unwrap_or(1), ..url? })
    }
}

pub(super) static ENDPOINT_URL: Grammar = Grammar::new(
    r"[Hh][Tt][Tt][Pp][Ss]?://[^/?#@ ]+/?(#[\s\S]*)?",
    "an endpoint looks like http://127.0.0.1:3000 or https://api.internal",
);

fn endpoint(text: &str) -> Result<Endpoint, String> {
    let help = ENDPOINT_URL.help;
    let uri: Uri = text.parse().map_err(|_| help)?;
    let https = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(help.to_owned()),
    };
    if uri.path() != "/" || uri.query().is_some() {
        return Err("an endpoint has no path; 'rewrite' on the route changes paths".to_owned());
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("an endpoint holds no user name or password".to_owned());
    }
    let host = uri.host().ok_or(help)?.to_owned();
    if uri.port_u16() == Some(0) || uri.authority().is_some_and(|a| a.as_str().ends_with(':')) {
        return Err(help.to_owned());
    }
    if https && ServerName::try_from(host.trim_matches(['[', ']'])).is_err() {
        return Err("no certificate can be for such a name".to_owned());
    }
    let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
    Ok(Endpoint { https, host, port, weight: 1 })
}
