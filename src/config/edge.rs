//! Sections about the edge of the gateway: admin, server guards, headers.

use super::grammar;
use super::model::{Admin, Endpoint, Headers, Listener, PerIp, Server, Upstream};
use super::read::{Context, Fields, Read, one_of, parsed, text};
use super::section::{Bare, Grammar};
use super::sections::edge::{ADMIN, HEADERS, SERVER};
use super::tree::{Kind, Node};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub(super) static ADDRESS: Grammar = Grammar::new(
    r"(localhost|[0-9]+(\.[0-9]+){3}|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):[0-9]+",
    "an address looks like 0.0.0.0:8080, 127.0.0.1:8080 or [::]:8080",
);

/// An address that only this machine reaches.
pub(super) static LOOPBACK: Grammar = Grammar::new(
    r"(localhost|127\.[0-9.]+|\[[0:.]*1(%[0-9]+)?\]):[0-9]+",
    "an admin listener beyond loopback needs a token",
);

impl Read for SocketAddr {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "an address", |text| {
            let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
            let written = local.as_deref().unwrap_or(text);
            written.parse().map_err(|_| ADDRESS.help.to_owned())
        })
    }
}

impl Read for Admin {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let admin = if let Kind::Map(_) = node.kind {
            let fields = Fields::of(node, &ADMIN, cx)?;
            let address = fields.read("address", cx);
            let token = fields.read("token", cx);
            let overrides = fields.get("overrides").and_then(|node| overrides(node, cx));
            Self { address: address?, token, overrides }
        } else {
            Self { address: SocketAddr::read(node, cx)?, token: None, overrides: None }
        };
        if admin.token.as_deref() == Some("") {
            cx.error(node, TOKEN.help);
        }
        if !admin.address.ip().is_loopback() && admin.token.is_none() {
            cx.error_with_help(
                node,
                "an admin listener beyond loopback needs a token",
                format!("admin: {{ address: {}, token: \"${{ADMIN_TOKEN}}\" }}", admin.address),
            );
        }
        Some(admin)
    }
}

/// No upstream is one of the gateway's own listeners: requests would go round in a circle, and callers
/// would reach the admin listener from loopback.
pub(super) fn refuse_loops(
    admin: Option<&Admin>,
    listen: &[Listener],
    upstreams: &[Upstream],
    node: &Node,
    cx: &mut Context<'_>,
) {
    for upstream in upstreams {
        let is_at = |ours: SocketAddr| upstream.endpoints.iter().any(|it| is_here(it, ours));
        let name = &upstream.name;
        if admin.is_some_and(|admin| is_at(admin.address)) {
            let callers = "callers would reach it through the gateway";
            cx.error(node, format!("'{name}' is the admin listener: {callers}"));
        }
        if let Some(listener) = listen.iter().find(|listener| is_at(listener.address)) {
            let message = format!("'{name}' is this gateway itself, at {}", listener.address);
            let help = "an upstream is a backend; the gateway would forward to itself";
            cx.error_with_help(node, message, help.to_owned());
        }
    }
}

/// Whether an endpoint is one of our own addresses, as far as can be seen without looking names up.
fn is_here(endpoint: &Endpoint, ours: SocketAddr) -> bool {
    let host = endpoint.host.trim_matches(['[', ']']);
    let everywhere = ours.ip().is_unspecified();
    let same = match host.parse::<IpAddr>() {
        Ok(ip) => {
            let ip = ip.to_canonical();
            ip == ours.ip() || ip.is_unspecified() || ip.is_loopback() && everywhere
        }
        Err(_) => host == "localhost" && (ours.ip().is_loopback() || everywhere),
    };
    same && endpoint.port == ours.port()
}

/// The file that bans and grants are written to.
fn overrides(node: &Node, cx: &mut Context<'_>) -> Option<PathBuf> {
    let path = text(node, cx, "a file")?;
    if path.is_empty() || path.ends_with('/') {
        cx.error(node, "bans and grants are written to a file, this names none");
        return None;
    }
    Some(cx.resolve(path))
}

pub(super) static TOKEN: Grammar =
    Grammar::new(r"[\s\S]+", "an empty token would let nobody in").bare(Bare::Any);

pub(super) static FILE_TO_WRITE: Grammar =
    Grammar::new(r"[\s\S]*[^/]", "a file, not a folder").bare(Bare::Any);

/// Which headers tell of limits: `X-RateLimit-*`, and the IETF's.
pub(super) const STYLES: [(&str, (bool, bool)); 4] = [
    ("both", (true, true)),
    ("x-ratelimit", (true, false)),
    ("ietf", (false, true)),
    ("none", (false, false)),
];

impl Default for Headers {
    fn default() -> Self {
        Self { x_ratelimit: true, ietf: true, retry_jitter: 0.1 }
    }
}

impl Read for Headers {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &HEADERS, cx)?;
        let style =
            fields.get("style").and_then(|node| one_of(node, cx, "a header style", &STYLES));
        let jitter = fields.get("retry_jitter").and_then(|node| share(node, cx));
        let default = Self::default();
        let (x_ratelimit, ietf) = style.unwrap_or((default.x_ratelimit, default.ietf));
        Some(Self { x_ratelimit, ietf, retry_jitter: jitter.unwrap_or(default.retry_jitter) })
    }
}

pub(super) fn share(node: &Node, cx: &mut Context<'_>) -> Option<f64> {
    parsed(node, cx, "a share", grammar::share)
}

fn size(node: &Node, cx: &mut Context<'_>) -> Option<u64> {
    parsed(node, cx, "a size", grammar::size)
}

impl Default for Server {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            max_headers: 100,
            max_header_bytes: 64 << 10,
            max_uri_bytes: 8 << 10,
            max_body_bytes: Some(10 << 20),
            max_connections: 20_000,
            max_connections_per_ip: PerIp::Half,
            shutdown_grace: Duration::from_secs(30),
        }
    }
}

impl Read for Server {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &SERVER, cx)?;
        let default = Self::default();
        let max_header_bytes = fields.get("max_header_bytes").and_then(|node| {
            let bytes = size(node, cx)?;
            if !(8192..=1 << 20).contains(&bytes) {
                cx.error(node, "a request's head may be 8KiB to 1MiB large");
            }
            usize::try_from(bytes).ok()
        });
        let max_headers = fields.get("max_headers").and_then(|node| {
            let count = usize::read(node, cx)?;
            if !(1..=1000).contains(&count) {
                cx.error(node, "between 1 and 1000 header lines");
            }
            Some(count)
        });
        let max_uri_bytes = fields.get("max_uri_bytes").and_then(|node| {
            let bytes = size(node, cx)?;
            if !(256..=64 << 10).contains(&bytes) {
                cx.error(node, "a request's target may be 256B to 64KiB long");
            }
            usize::try_from(bytes).ok()
        });
        let max_connections = fields.get("max_connections");
        let max_connections = max_connections.and_then(|node| some_connections(node, cx));
        let per_ip = fields.get("max_connections_per_ip").and_then(|node| match &node.kind {
            Kind::Scalar(scalar) if scalar.text == "none" => Some(PerIp::Any),
            _ => some_connections(node, cx).map(PerIp::Most),
        });
        let server = Self {
            handshake_timeout: positive(
                &fields,
                "handshake_timeout",
                cx,
                default.handshake_timeout,
            ),
            header_timeout: positive(&fields, "header_timeout", cx, default.header_timeout),
            body_timeout: positive(&fields, "body_timeout", cx, default.body_timeout),
            idle_timeout: positive(&fields, "idle_timeout", cx, default.idle_timeout),
            max_headers: max_headers.unwrap_or(default.max_headers),
            max_header_bytes: max_header_bytes.unwrap_or(default.max_header_bytes),
            max_uri_bytes: max_uri_bytes.unwrap_or(default.max_uri_bytes),
            max_body_bytes: max_body(&fields, cx, default.max_body_bytes),
            max_connections: max_connections.unwrap_or(default.max_connections),
            max_connections_per_ip: per_ip.unwrap_or(default.max_connections_per_ip),
            shutdown_grace: fields.read("shutdown_grace", cx).unwrap_or(default.shutdown_grace),
        };
        Some(server)
    }
}

fn some_connections(node: &Node, cx: &mut Context<'_>) -> Option<usize> {
    let count = usize::read(node, cx)?;
    if count == 0 {
        cx.error(node, "at least one connection");
    }
    Some(count)
}

/// A duration that must not be zero.
pub(super) fn positive(
    fields: &Fields<'_>,
    name: &'static str,
    cx: &mut Context<'_>,
    default: Duration,
) -> Duration {
    let Some(node) = fields.get(name) else {
        return default;
    };
    let value = Duration::read(node, cx).unwrap_or(default);
    if value.is_zero() {
        cx.error(node, "a time-out of nothing would let nothing pass");
    }
    value
}

/// `max_body_bytes`: a size, or `none` for no limit.
pub(super) fn max_body(
    fields: &Fields<'_>,
    cx: &mut Context<'_>,
    default: Option<u64>,
) -> Option<u64> {
    match fields.get("max_body_bytes") {
        None => default,
        Some(node) => match &node.kind {
            Kind::Scalar(scalar) if scalar.text == "none" => None,
            _ => size(node, cx),
        },
    }
}
