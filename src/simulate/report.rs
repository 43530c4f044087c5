//! What came of a replay, in figures and names. People, machines and browsers are shown the same.

mod made;

use crate::clock::{Micros, write_rfc3339};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

pub use made::{Named, report};
pub(super) use made::{logs, written};

/// A moment; written as RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Micros);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = Vec::with_capacity(24);
        write_rfc3339(&mut text, self.0);
        serializer.serialize_str(&String::from_utf8_lossy(&text))
    }
}

/// Everything there is to tell.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version that says so.
    pub sluice: &'static str,
    /// The configuration on trial.
    pub config: String,
    /// The one that it is compared with.
    pub baseline: Option<String>,
    /// What was replayed.
    pub logs: Logs,
    /// What is to be known before the figures are believed.
    pub warnings: Vec<String>,
    /// All requests.
    pub requests: Requests,
    /// Everybody who asked.
    pub callers: Callers,
    /// By limit, in the order of the file: limits for all routes first.
    pub limits: Vec<Limit>,
    /// Limits that only the other configuration has.
    pub gone: Vec<Limit>,
    /// By route, most rejected first.
    pub routes: Vec<Route>,
    /// Callers who are rejected, most rejected first.
    pub rejected: Vec<Caller>,
    /// Callers who are rejected more often than by the other configuration, by how much.
    pub hurt: Vec<Caller>,
    /// Callers who are rejected less often, by how much.
    pub relieved: Vec<Caller>,
    /// Callers whom a limit never rejects, the nearest to it first.
    pub nearest: Vec<Near>,
    /// All requests by when they came.
    pub over_time: OverTime,
}

/// What was replayed.
#[derive(Clone, Debug, Serialize)]
pub struct Logs {
    /// What the logs are called.
    pub files: Vec<String>,
    /// Lines that are not empty.
    pub lines: u64,
    /// Those that cannot be read.
    pub unreadable: u64,
    /// The first of those.
    pub examples: Vec<String>,
    /// Lines that came too late to be put in order.
    pub late: u64,
    /// The first moment.
    pub from: Option<Moment>,
    /// The last one.
    pub to: Option<Moment>,
}

/// All requests, by what comes of them.
#[derive(Clone, Debug, Serialize)]
pub struct Requests {
    /// How many.
    pub all: u64,
    /// Those that a limit rejects, or turns away because their caller is banned.
    pub rejected: u64,
    /// As a share of all.
    pub share: f64,
    /// Those of banned callers among them.
    pub banned: u64,
    /// Those that no limit applies to.
    pub exempt: u64,
    /// Those that were turned away for want of room, and are not judged.
    pub shed: u64,
    /// What the gateway refuses by itself, by status; no limit rejects it.
    pub refused: BTreeMap<u16, u64>,
    /// Those that were answered with 429 when they were there.
    pub logged_429: u64,
    /// What another configuration says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
}

/// What another configuration says.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Baseline {
    /// Requests that it rejects.
    pub rejected: u64,
    /// As a share of all.
    pub share: f64,
    /// Requests that are rejected only now.
    pub newly: u64,
    /// Requests that are not rejected any more.
    pub relieved: u64,
}

/// Everybody who asked.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Callers {
    /// How many.
    pub all: u64,
    /// Those who are rejected at least once.
    pub rejected: u64,
    /// Those who are rejected more often than by the other configuration.
    pub hurt: u64,
    /// Those who are rejected less often.
    pub relieved: u64,
}

/// What a limit does.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// Its name.
    pub limit: String,
    /// What it counts by.
    pub by: String,
    /// What it allows, as people write it.
    pub rate: String,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// The routes that it guards; all, if none is named.
    pub routes: Option<Vec<String>>,
    /// It rejects nobody, and says whom it would.
    pub shadow: bool,
    /// Requests that it was asked about.
    pub requests: u64,
    /// Those that it rejects.
    pub rejected: u64,
    /// As a share of them.
    pub share: f64,
    /// Those that no other limit rejects.
    pub alone: u64,
    /// Requests that are turned away because their callers ignore it.
    pub banned: u64,
    /// Requests that wait for their turn.
    pub delayed: u64,
    /// The longest wait, in seconds.
    pub longest_wait: f64,
    /// Everybody that it counts.
    pub callers: u64,
    /// Those that it rejects at least once.
    pub rejected_callers: u64,
    /// The others by the most that they had used of it: see [`USE`].
    pub used: [u64; USE.len()],
    /// What the limit of this name rejects in the other configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<u64>,
}

/// The most that somebody has used of a limit, in percent: below each of these, and all of it.
pub const USE: [u32; 5] = [25, 50, 75, 90, 100];

/// Requests for a route.
#[derive(Clone, Debug, Serialize)]
pub struct Route {
    /// Its name; nothing for requests that match none.
    pub route: Option<String>,
    /// How many.
    pub requests: u64,
    /// Those that are rejected.
    pub rejected: u64,
    /// As a share of them.
    pub share: f64,
    /// Those that the other configuration rejects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<u64>,
}

/// Requests of a caller.
#[derive(Clone, Debug, Serialize)]
pub struct Caller {
    /// Who.
    pub caller: String,
    /// How many.
    pub requests: u64,
    /// Those that are rejected.
    pub rejected: u64,
    /// As a share of them.
    pub share: f64,
    /// By which limits, most first.
    pub limits: Vec<OfLimit>,
    /// The minute in which most were rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst_minute: Option<Minute>,
    /// Those that the other configuration rejects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<u64>,
}

/// What a limit rejects of a caller's requests.
#[derive(Clone, Debug, Serialize)]
pub struct OfLimit {
    /// The limit.
    pub limit: String,
    /// How many.
    pub rejected: u64,
}

/// A minute.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Minute {
    /// When it begins.
    pub at: Moment,
    /// Requests.
    pub requests: u64,
    /// Those that are rejected.
    pub rejected: u64,
}

/// How near somebody came to a limit that never rejects them.
#[derive(Clone, Debug, Serialize)]
pub struct Near {
    /// Who, as the limit counts them.
    pub caller: String,
    /// The limit.
    pub limit: String,
    /// The most tokens that they had used.
    pub used: u64,
    /// Of how many.
    pub capacity: u64,
    /// As a share.
    pub share: f64,
    /// Requests.
    pub requests: u64,
}

/// All requests by when they came.
#[derive(Clone, Debug, Serialize)]
pub struct OverTime {
    /// How long an interval is.
    pub seconds: u64,
    /// Every one from the first to the last.
    pub intervals: Vec<During>,
}

/// Requests of an interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct During {
    /// When it begins.
    pub at: Moment,
    /// Requests.
    pub requests: u64,
    /// Those that are rejected.
    pub rejected: u64,
    /// Those that the other configuration rejects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<u64>,
}

/// A part of something; nothing is no part of nothing.
pub fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}
