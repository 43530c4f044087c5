//! What becomes of endpoints that fail: how that is noticed, and what requests do meanwhile.

use super::edge::{positive, share};
use super::model::{Eject, Health, Retries};
use super::read::{Context, Fields, Read, parsed, text};
use super::section::{Bare, Grammar};
use super::sections::upstreams::{EJECT, HEALTH, RETRIES};
use super::tree::{Kind, Node};
use http::uri::{Authority, PathAndQuery};
use std::time::Duration;

/// More often than this nobody is asked how they are.
const LEAST_EVERY: Duration = Duration::from_millis(100);

/// `health`: off unless it is given.
pub(super) fn health(fields: &Fields<'_>, cx: &mut Context<'_>) -> Option<Health> {
    fields.get("health").filter(|node| !is_off(node)).and_then(|node| Health::read(node, cx))
}

/// `eject`: on unless it is `off`.
pub(super) fn eject(fields: &Fields<'_>, cx: &mut Context<'_>) -> Option<Eject> {
    match fields.get("eject") {
        None => Some(Eject::default()),
        Some(node) if is_off(node) => None,
        Some(node) => Eject::read(node, cx),
    }
}

/// `retries`: on unless it is `off`.
pub(super) fn retries(fields: &Fields<'_>, cx: &mut Context<'_>) -> Retries {
    match fields.get("retries") {
        None => Retries::default(),
        Some(node) if is_off(node) => Retries { attempts: 1, ..Retries::default() },
        Some(node) => Retries::read(node, cx).unwrap_or_default(),
    }
}

/// `off`, or what YAML 1.1 made of it.
pub(super) const OFF: [&str; 2] = ["off", "false"];

fn is_off(node: &Node) -> bool {
    matches!(&node.kind, Kind::Scalar(scalar) if OFF.contains(&scalar.text.as_str()))
}

impl Default for Eject {
    fn default() -> Self {
        Self { after: 5, lasts: Duration::from_secs(30), keep: 0.5 }
    }
}

impl Read for Eject {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &EJECT, cx)?;
        let default = Self::default();
        let eject = Self {
            after: count(&fields, "after", cx, default.after),
            lasts: positive(&fields, "for", cx, default.lasts),
            keep: fields.get("keep").and_then(|node| share(node, cx)).unwrap_or(default.keep),
        };
        Some(eject)
    }
}

/// What checks ask for.
pub(super) static CHECKED: Grammar = Grammar::new("/[^# ]*", "it looks like /healthz");

/// What checks call an endpoint.
pub(super) static AUTHORITY: Grammar =
    Grammar::new("[^@/?# ]+", "it looks like api.internal or api.internal:8080").bare(Bare::Any);

impl Read for Health {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &HEALTH, cx)?;
        let path = fields.get("path").and_then(|node| {
            parsed(node, cx, "a path", |text| match text.parse::<PathAndQuery>() {
                Ok(_) if text.starts_with('/') && !text.contains('#') => Ok(text.to_owned()),
                _ => Err(CHECKED.help.to_owned()),
            })
        });
        let host = fields.get("host").and_then(|node| {
            parsed(node, cx, "a host", |text| match text.parse::<Authority>() {
                Ok(_) if !text.contains('@') => Ok(text.to_owned()),
                _ => Err(AUTHORITY.help.to_owned()),
            })
        });
        let every = positive(&fields, "every", cx, Duration::from_secs(5));
        if let Some(node) = fields.get("every")
            && !every.is_zero()
            && every < LEAST_EVERY
        {
            cx.error(node, "endpoints are asked every 100ms at most");
        }
        let timeout = positive(&fields, "timeout", cx, Duration::from_secs(2).min(every));
        let health = Self {
            path: path.unwrap_or_else(|| "/".to_owned()),
            host,
            every,
            timeout,
            unhealthy_after: count(&fields, "unhealthy_after", cx, 3),
            healthy_after: count(&fields, "healthy_after", cx, 2),
        };
        Some(health)
    }
}

impl Default for Retries {
    fn default() -> Self {
        let (connect_failure, timeout, statuses) = (true, false, Vec::new());
        Self { attempts: 2, connect_failure, timeout, statuses, budget: 0.2 }
    }
}

/// A status that is a reason to try again, in quotes or not.
pub(super) static FAILED: Grammar =
    Grammar::new(r"\+?0*5[0-9][0-9]", "connect_failure, timeout, or a status from 500 to 599");

impl Read for Retries {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &RETRIES, cx)?;
        let default = Self::default();
        let attempts = fields.get("attempts").and_then(|node| {
            let attempts = u32::read(node, cx)?;
            if !(1..=10).contains(&attempts) {
                cx.error(node, "between 1 and 10 attempts, the first included");
            }
            Some(attempts)
        });
        let on = fields.get("on");
        let budget = fields.get("budget").and_then(|node| share(node, cx));
        let (attempts, budget) =
            (attempts.unwrap_or(default.attempts), budget.unwrap_or(default.budget));
        let Some(on) = on else { return Some(Self { attempts, budget, ..default }) };
        let words = match &on.kind {
            Kind::List(items) => items.iter().collect(),
            _ => vec![on],
        };
        let mut retries =
            Self { attempts, budget, connect_failure: false, timeout: false, statuses: Vec::new() };
        for word in words {
            match text(word, cx, "a reason to try again") {
                None => {}
                Some("connect_failure") => retries.connect_failure = true,
                Some("timeout") => retries.timeout = true,
                Some(text) => match text.parse() {
                    Ok(status @ 500..=599) => retries.statuses.push(status),
                    _ => {
                        let message = format!("'{text}' is no reason to try again");
                        cx.error_with_help(word, message, FAILED.help.to_owned());
                    }
                },
            }
        }
        Some(retries)
    }
}

/// At least one.
fn count(fields: &Fields<'_>, name: &'static str, cx: &mut Context<'_>, default: u32) -> u32 {
    let Some(node) = fields.get(name) else { return default };
    let count = u32::read(node, cx).unwrap_or(default);
    if !(1..=1000).contains(&count) {
        cx.error(node, "between 1 and 1000");
    }
    count
}
