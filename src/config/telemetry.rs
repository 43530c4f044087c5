//! `telemetry`: what is traced, and where spans go.

use super::edge::share;
use super::model::{Collector, Telemetry};
use super::read::{Context, Fields, Read, parsed};
use super::routes::headers::headers_by_name;
use super::section::Grammar;
use super::sections::edge::TELEMETRY;
use super::tree::Node;
use crate::tls::client::Tls;
use http::Uri;

/// Where a collector takes traces, unless its URL says so.
const TRACES: &str = "/v1/traces";

/// Where collectors take OTLP over HTTP.
const PORT: u16 = 4318;

impl Read for Telemetry {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &TELEMETRY, cx)?;
        let default = Self::default();
        let otlp_node = fields.get("otlp");
        let otlp = otlp_node.and_then(|node| Collector::read(node, cx));
        let sample = fields.get("sample").and_then(|node| share(node, cx));
        let begin = fields.read("begin", cx);
        let (name, headers) = (fields.get("service_name"), fields.get("headers"));
        for node in [name, headers].into_iter().flatten() {
            if otlp_node.is_none() {
                cx.error(node, "without 'otlp' no spans are sent");
            }
        }
        let service_name = name.and_then(|node| String::read(node, cx));
        let headers = headers.map(|node| headers_by_name(node, cx));
        Some(Self {
            otlp,
            sample: sample.unwrap_or(default.sample),
            begin: begin.unwrap_or(default.begin),
            service_name: service_name.unwrap_or(default.service_name),
            headers: headers.unwrap_or_default(),
        })
    }
}

pub(super) static COLLECTOR: Grammar = Grammar::new(
    r"[Hh][Tt][Tt][Pp][Ss]?://[^/?#@ ]+([/?#][\s\S]*)?",
    "it looks like http://127.0.0.1:4318",
);

impl Read for Collector {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let (https, collector) = parsed(node, cx, "a collector's URL", collector)?;
        if !https {
            return Some(collector);
        }
        match Tls::new(None, None, false) {
            Ok(tls) => Some(Self { tls: Some(tls), ..collector }),
            Err(error) => {
                cx.error(node, format!("the collector cannot be verified: {error}"));
                None
            }
        }
    }
}

fn collector(text: &str) -> Result<(bool, Collector), String> {
    let help = COLLECTOR.help;
    let uri: Uri = text.parse().map_err(|_| help)?;
    let https = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(help.to_owned()),
    };
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("credentials go into 'headers'".to_owned());
    }
    let host = uri.host().filter(|host| !host.is_empty()).ok_or(help)?;
    let host = host.trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(if https { 443 } else { PORT });
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = if path == "/" { TRACES } else { path }.to_owned();
    Ok((https, Collector { host, port, path, tls: None }))
}
