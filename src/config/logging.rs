//! `logging`: the access log.

use super::edge::share;
use super::model::{AccessLog, LogFormat};
use super::read::{Context, Fields, Read, one_of};
use super::sections::edge::{ACCESS_LOG, LOGGING, SAMPLE};
use super::tree::{Kind, Node};

/// `logging`: the access log, or `None` when it is off.
pub(super) struct Logging(pub(super) Option<AccessLog>);

impl Default for Logging {
    fn default() -> Self {
        Self(Some(AccessLog::default()))
    }
}

impl Default for AccessLog {
    fn default() -> Self {
        Self { format: LogFormat::Json, allowed: 1.0, rejected: 0.01, headers: Vec::new() }
    }
}

/// What `access` can be beside a map. YAML 1.1 habits: `off` is a word, `false` says the same.
pub(super) const ACCESS: [(&str, Option<LogFormat>); 6] = [
    ("off", None),
    ("false", None),
    ("on", Some(LogFormat::Json)),
    ("true", Some(LogFormat::Json)),
    ("json", Some(LogFormat::Json)),
    ("text", Some(LogFormat::Text)),
];

pub(super) const FORMATS: [(&str, LogFormat); 2] =
    [("json", LogFormat::Json), ("text", LogFormat::Text)];

impl Read for Logging {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &LOGGING, cx)?;
        match fields.get("access") {
            None => Some(Self::default()),
            Some(node) if matches!(node.kind, Kind::Scalar(_)) => word(node, cx),
            Some(node) => AccessLog::read(node, cx).map(|log| Self(Some(log))),
        }
    }
}

fn word(node: &Node, cx: &mut Context<'_>) -> Option<Logging> {
    let Kind::Scalar(scalar) = &node.kind else { return None };
    match ACCESS.iter().find(|(word, _)| *word == scalar.text) {
        Some((_, format)) => {
            Some(Logging(format.map(|format| AccessLog { format, ..AccessLog::default() })))
        }
        None => {
            let help = "off, or { format: json, sample: { allowed: 100%, rejected: 1% } }";
            cx.error_with_help(node, "this is no access log", help.to_owned());
            None
        }
    }
}

impl Read for AccessLog {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &ACCESS_LOG, cx)?;
        let format = fields.get("format");
        let format = format.and_then(|n| one_of(n, cx, "a format of the access log", &FORMATS));
        let mut log = Self { format: format.unwrap_or_default(), ..Self::default() };
        if let Some(sample) = fields.get("sample")
            && let Some(fields) = Fields::of(sample, &SAMPLE, cx)
        {
            let allowed = fields.get("allowed").and_then(|node| share(node, cx));
            let rejected = fields.get("rejected").and_then(|node| share(node, cx));
            log.allowed = allowed.unwrap_or(log.allowed);
            log.rejected = rejected.unwrap_or(log.rejected);
        }
        log.headers = fields.read("headers", cx).unwrap_or_default();
        Some(log)
    }
}
