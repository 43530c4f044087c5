//! Sections about the edge of the gateway: admin, server guards, headers, logging.

use super::grammar;
use super::model::{AccessLog, Admin, Headers, LogFormat, PerIp, Server};
use super::read::{Context, Fields, Read, one_of, parsed, text};
use super::tree::{Kind, Node};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

impl Read for SocketAddr {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "an address", |text| {
            let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
            let written = local.as_deref().unwrap_or(text);
            written.parse().map_err(|_| {
                "an address looks like 0.0.0.0:8080, 127.0.0.1:8080 or [::]:8080".to_owned()
            })
        })
    }
}

impl Read for Admin {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let admin = if let Kind::Map(_) = node.kind {
            let mut fields = Fields::of(node, "admin", cx)?;
            let address = fields.required("address", cx);
            let token = fields.optional("token", cx);
            let overrides = fields.get("overrides").and_then(|node| overrides(node, cx));
            fields.finish(cx);
            Self { address: address?, token, overrides }
        } else {
            Self { address: SocketAddr::read(node, cx)?, token: None, overrides: None }
        };
        if admin.token.as_deref() == Some("") {
            cx.error(node, "an empty token would let nobody in");
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

/// The file that bans and grants are written to.
fn overrides(node: &Node, cx: &mut Context<'_>) -> Option<PathBuf> {
    let path = text(node, cx, "a file")?;
    if path.is_empty() || path.ends_with('/') {
        cx.error(node, "bans and grants are written to a file, this names none");
        return None;
    }
    Some(cx.resolve(path))
}

impl Default for Headers {
    fn default() -> Self {
        Self { x_ratelimit: true, ietf: true, retry_jitter: 0.1 }
    }
}

impl Read for Headers {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        const STYLES: [(&str, (bool, bool)); 4] = [
            ("both", (true, true)),
            ("x-ratelimit", (true, false)),
            ("ietf", (false, true)),
            ("none", (false, false)),
        ];
        let mut fields = Fields::of(node, "headers", cx)?;
        let style =
            fields.get("style").and_then(|node| one_of(node, cx, "a header style", &STYLES));
        let jitter = fields.get("retry_jitter").and_then(|node| share(node, cx));
        fields.finish(cx);
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
        let mut fields = Fields::of(node, "server", cx)?;
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
                &mut fields,
                "handshake_timeout",
                cx,
                default.handshake_timeout,
            ),
            header_timeout: positive(&mut fields, "header_timeout", cx, default.header_timeout),
            body_timeout: positive(&mut fields, "body_timeout", cx, default.body_timeout),
            idle_timeout: positive(&mut fields, "idle_timeout", cx, default.idle_timeout),
            max_headers: max_headers.unwrap_or(default.max_headers),
            max_header_bytes: max_header_bytes.unwrap_or(default.max_header_bytes),
            max_uri_bytes: max_uri_bytes.unwrap_or(default.max_uri_bytes),
            max_body_bytes: max_body(&mut fields, cx, default.max_body_bytes),
            max_connections: max_connections.unwrap_or(default.max_connections),
            max_connections_per_ip: per_ip.unwrap_or(default.max_connections_per_ip),
            shutdown_grace: fields.optional("shutdown_grace", cx).unwrap_or(default.shutdown_grace),
        };
        fields.finish(cx);
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
    fields: &mut Fields<'_>,
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
    fields: &mut Fields<'_>,
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

const LOG_FORMATS: [(&str, LogFormat); 2] = [("json", LogFormat::Json), ("text", LogFormat::Text)];

/// `logging`: the access log, or `None` when it is off.
pub(super) struct Logging(pub(super) Option<AccessLog>);

impl Default for Logging {
    fn default() -> Self {
        Self(Some(AccessLog { format: LogFormat::Json, allowed: 1.0, rejected: 0.01 }))
    }
}

impl Read for Logging {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let mut fields = Fields::of(node, "logging", cx)?;
        let access = fields.get("access");
        fields.finish(cx);
        let Some(node) = access else {
            return Some(Self::default());
        };
        if let Kind::Scalar(scalar) = &node.kind {
            // YAML 1.1 habits: `off` is a word, `false` says the same.
            return match scalar.text.as_str() {
                "off" | "false" => Some(Self(None)),
                "on" | "true" | "json" => Some(Self::default()),
                "text" => Some(Self(
                    Self::default().0.map(|log| AccessLog { format: LogFormat::Text, ..log }),
                )),
                _ => {
                    let help = "off, or { format: json, sample: { allowed: 100%, rejected: 1% } }";
                    cx.error_with_help(node, "this is no access log", help.to_owned());
                    None
                }
            };
        }
        let mut fields = Fields::of(node, "the access log", cx)?;
        let format = fields.get("format");
        let format = format.and_then(|n| one_of(n, cx, "a format of the access log", &LOG_FORMATS));
        let Self(default) = Self::default();
        let mut log = default?;
        log.format = format.unwrap_or_default();
        if let Some(sample) = fields.get("sample")
            && let Some(mut fields) = Fields::of(sample, "sample", cx)
        {
            let allowed = fields.get("allowed").and_then(|node| share(node, cx));
            let rejected = fields.get("rejected").and_then(|node| share(node, cx));
            fields.finish(cx);
            log.allowed = allowed.unwrap_or(log.allowed);
            log.rejected = rejected.unwrap_or(log.rejected);
        }
        fields.finish(cx);
        Some(Self(Some(log)))
    }
}
