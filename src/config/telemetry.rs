//! `telemetry`: where traces go.

use super::edge::share;
use super::model::{Collector, Endpoint, Telemetry};
use super::read::{Context, Fields, Read, parsed};
use super::routes::headers::headers_by_name;
use super::section::Grammar;
use super::sections::edge::TELEMETRY;
use super::tree::Node;
use http::Uri;

/// Where a collector takes traces, unless its URL says so.
const TRACES: &str = "/v1/traces";

impl Read for Telemetry {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &TELEMETRY, cx)?;
        let otlp = fields.read("otlp", cx);
        let sample = fields.get("sample").and_then(|node| share(node, cx));
        let service_name = fields.read("service_name", cx);
        let headers = fields.get("headers").map(|node| headers_by_name(node, cx));
        Some(Self {
            otlp: otlp?,
            sample: sample.unwrap_or(1.0),
            service_name: service_name.unwrap_or_else(|| "sluice".to_owned()),
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
        parsed(node, cx, "a collector's URL", |text| {
            let help = COLLECTOR.help;
            let uri: Uri = text.parse().map_err(|_| help)?;
            let https = match uri.scheme_str() {
                Some("http") => false,
                Some("https") => true,
                _ => return Err(help.to_owned()),
            };
            let host = uri.host().filter(|host| !host.is_empty()).ok_or(help)?.to_owned();
            if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
                return Err("credentials go into 'headers'".to_owned());
            }
            // 4318 is where collectors take OTLP over HTTP.
            let port = uri.port_u16().unwrap_or(if https { 443 } else { 4318 });
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            let path = if path == "/" { TRACES } else { path }.to_owned();
            Ok(Self { endpoint: Endpoint { https, host, port, weight: 1 }, path })
        })
    }
}
