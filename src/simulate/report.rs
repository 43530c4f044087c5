//! What came of a replay, in figures and names. People, machines and browsers are shown the same.

use super::callers::Principal;
use super::replay::Intake;
use super::tally::{OfCaller, Tally};
use super::timeline::Interval;
use super::trial::{Trial, Tried};
use super::usage::{Numbers, Usage};
use super::warnings::warnings;
use crate::clock::{Micros, SECOND, write_rfc3339};
use crate::limit::Quota;
use crate::snapshot::{self, Plan};
use serde::{Serialize, Serializer};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

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

/// A configuration that was on trial, and what its file is called.
#[derive(Clone, Copy, Debug)]
pub struct Named<'t> {
    /// The file.
    pub file: &'t str,
    /// The trial.
    pub trial: &'t Trial,
}

/// Tells what came of it. `most`: how long lists of callers may be.
pub fn report(
    intake: &Intake,
    tally: Tally,
    new: Named<'_>,
    old: Option<Named<'_>>,
    most: usize,
) -> Report {
    let trial = new.trial;
    let compared = old.is_some();
    let (all, rejected) = (tally.requests(), tally.rejected + tally.banned);
    let other = tally.callers().map(|(_, caller)| u64::from(caller.baseline)).sum();
    let limits_of = |trial: &Trial| -> Vec<Limit> {
        trial.limits.iter().map(|tried| limit(tried, &trial.snapshot().plans)).collect()
    };
    let mut limits = limits_of(trial);
    let mut gone = old.map_or_else(Vec::new, |old| limits_of(old.trial));
    for limit in &mut limits {
        let same = gone.iter().position(|other| other.limit == limit.limit);
        limit.baseline = same.map(|same| gone.remove(same).rejected).or(compared.then_some(0));
    }
    let callers = everybody(&tally, compared);
    let by = |key: &dyn Fn(&OfCaller) -> u32| {
        let all = tally.callers().map(|(who, caller)| (key(caller), who, *caller));
        let most =
            largest(most, all.filter(|(key, ..)| *key > 0).map(|(k, w, c)| ((k, Reverse(w)), c)));
        let most = most.into_iter().map(|((_, Reverse(who)), caller)| (who, caller)).collect();
        name_callers(most, &tally, trial, compared)
    };
    let (most_rejected, hurt, relieved) = (
        by(&|caller| caller.rejected),
        by(&|caller| if compared { caller.rejected.saturating_sub(caller.baseline) } else { 0 }),
        by(&|caller| caller.baseline.saturating_sub(caller.rejected)),
    );
    Report {
        sluice: env!("CARGO_PKG_VERSION"),
        config: new.file.to_owned(),
        baseline: old.map(|old| old.file.to_owned()),
        logs: logs(intake),
        warnings: warnings(intake, &tally, trial),
        requests: Requests {
            all,
            rejected,
            share: share(rejected, all),
            banned: tally.banned,
            exempt: tally.exempt,
            shed: tally.shed,
            refused: tally.refused.clone(),
            logged_429: tally.logged_429,
            baseline: compared.then(|| Baseline {
                rejected: other,
                share: share(other, all),
                newly: tally.newly,
                relieved: tally.relieved,
            }),
        },
        callers,
        limits,
        gone,
        routes: routes(&tally, trial, compared),
        rejected: most_rejected,
        hurt,
        relieved,
        nearest: nearest(trial, most),
        over_time: over_time(tally, compared),
    }
}

/// A part of something; nothing is no part of nothing.
pub fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

pub(super) fn logs(intake: &Intake) -> Logs {
    Logs {
        files: intake.names.clone(),
        lines: intake.lines,
        unreadable: intake.unreadable,
        examples: intake.examples().collect(),
        late: intake.late,
        from: intake.from.map(Moment),
        to: intake.to.map(Moment),
    }
}

fn everybody(tally: &Tally, compared: bool) -> Callers {
    let mut all = Callers::default();
    for (_, caller) in tally.callers() {
        all.all += 1;
        all.rejected += u64::from(caller.rejected > 0);
        all.hurt += u64::from(compared && caller.rejected > caller.baseline);
        all.relieved += u64::from(caller.rejected < caller.baseline);
    }
    all
}

/// What a quota allows, as people write it.
pub(super) fn written(quota: &Quota) -> String {
    let (count, capacity) = (quota.rate().count, quota.capacity());
    match quota.written() {
        written if capacity == count || quota.is_queue() => written,
        written => format!("{written}, burst {capacity}"),
    }
}

/// The same of a limit: once, or for each plan.
fn rate(limit: &snapshot::Limit, plans: &[Plan]) -> String {
    match limit.quotas() {
        [quota] => written(quota),
        quotas => {
            let of = |(plan, quota): (&Plan, _)| format!("{} {}", plan.name, written(quota));
            plans.iter().zip(quotas).map(of).collect::<Vec<_>>().join("; ")
        }
    }
}

fn limit(tried: &Tried, plans: &[Plan]) -> Limit {
    let (limit, counted) = (&tried.limit, &tried.counted);
    let mut used = [0; USE.len()];
    let (mut callers, mut rejected_callers) = (0, 0);
    for (_, usage) in tried.subjects.each() {
        callers += 1;
        if usage.rejected > 0 {
            rejected_callers += 1;
        } else {
            let percent = u64::from(usage.used) * 100;
            let below = |of: &u32| percent < u64::from(*of) * u64::from(usage.capacity);
            used[USE.iter().position(below).unwrap_or(USE.len() - 1)] += 1;
        }
    }
    Limit {
        limit: limit.name.clone(),
        by: limit.by_name(),
        rate: rate(limit, plans),
        algorithm: limit.algorithm,
        routes: tried.routes.clone(),
        shadow: limit.shadow,
        requests: counted.requests,
        rejected: counted.rejected,
        share: share(counted.rejected, counted.requests),
        alone: counted.alone,
        banned: counted.banned,
        delayed: counted.delayed,
        longest_wait: counted.longest as f64 / SECOND as f64,
        callers,
        rejected_callers,
        used,
        baseline: None,
    }
}

fn routes(tally: &Tally, trial: &Trial, compared: bool) -> Vec<Route> {
    let named = trial.snapshot().routes.iter().map(|route| Some(route.name.clone()));
    let all = tally.routes.iter().zip(named.chain([None]));
    let mut routes: Vec<Route> = all
        .filter(|(counted, _)| counted.requests > 0)
        .map(|(counted, route)| Route {
            route,
            requests: counted.requests,
            rejected: counted.rejected,
            share: share(counted.rejected, counted.requests),
            baseline: compared.then_some(counted.baseline),
        })
        .collect();
    routes.sort_by_key(|route| Reverse((route.rejected, route.requests)));
    routes
}

fn name_callers(
    some: Vec<(Principal, OfCaller)>,
    tally: &Tally,
    trial: &Trial,
    compared: bool,
) -> Vec<Caller> {
    let who: Vec<Principal> = some.iter().map(|(who, _)| *who).collect();
    let limits = tally.limits_of(&who);
    let name = |(limit, rejected): &(u32, u32)| OfLimit {
        limit: trial.limits[*limit as usize].limit.name.clone(),
        rejected: u64::from(*rejected),
    };
    let all = some.into_iter().zip(limits);
    all.map(|((who, caller), limits)| {
        let worst = caller.worst;
        Caller {
            caller: trial.callers.name(who),
            requests: caller.requests.into(),
            rejected: caller.rejected.into(),
            share: share(caller.rejected.into(), caller.requests.into()),
            limits: limits.iter().map(name).collect(),
            worst_minute: (worst.rejected > 0).then(|| Minute {
                at: Moment(u64::from(worst.number) * 60 * SECOND),
                requests: worst.requests.into(),
                rejected: worst.rejected.into(),
            }),
            baseline: compared.then_some(caller.baseline.into()),
        }
    })
    .collect()
}

/// Whom no limit rejects, the nearest to theirs first.
fn nearest(trial: &Trial, most: usize) -> Vec<Near> {
    let limits = trial.limits.iter().zip(0usize..);
    let all = limits.flat_map(|(tried, limit)| {
        let near = tried.subjects.each().filter(|(_, usage)| usage.rejected == 0);
        near.map(move |(who, usage)| {
            // Of equals the first comes first.
            let share = u64::from(usage.used) * 1_000_000_000 / u64::from(usage.capacity.max(1));
            ((share, Reverse((limit, who))), *usage)
        })
    });
    let all = all.filter(|((share, _), _)| *share > 0);
    let name =
        |((_, Reverse((limit, who))), usage): ((u64, Reverse<(usize, Numbers)>), Usage)| Near {
            caller: trial.written(limit, &who),
            limit: trial.limits[limit].limit.name.clone(),
            used: usage.used.into(),
            capacity: usage.capacity.into(),
            share: usage.share(),
            requests: usage.requests.into(),
        };
    largest(most, all).into_iter().map(name).collect()
}

fn over_time(tally: Tally, compared: bool) -> OverTime {
    let (seconds, intervals) = tally.timeline.finish();
    let during = |(begins, interval): (u64, Interval)| During {
        at: Moment(begins * SECOND),
        requests: interval.requests,
        rejected: interval.rejected,
        baseline: compared.then_some(interval.baseline),
    };
    OverTime { seconds, intervals: intervals.into_iter().map(during).collect() }
}

/// The largest few of many, the largest first.
pub(super) fn largest<K: Ord, T>(most: usize, all: impl Iterator<Item = (K, T)>) -> Vec<(K, T)> {
    struct ByKey<K, T>(K, T);
    impl<K: Ord, T> PartialEq for ByKey<K, T> {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }
    impl<K: Ord, T> Eq for ByKey<K, T> {}
    impl<K: Ord, T> PartialOrd for ByKey<K, T> {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }
    impl<K: Ord, T> Ord for ByKey<K, T> {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            other.0.cmp(&self.0) // the smallest is the first to go
        }
    }
    let mut kept = BinaryHeap::with_capacity(most + 1);
    for (key, value) in all {
        if kept.len() == most
            && kept.peek().is_none_or(|ByKey(least, _): &ByKey<K, T>| key <= *least)
        {
            continue;
        }
        kept.push(ByKey(key, value));
        if kept.len() > most {
            kept.pop();
        }
    }
    kept.into_sorted_vec().into_iter().map(|ByKey(key, value)| (key, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_largest_few_are_those_that_sorting_finds(
            all in prop::collection::vec(0u32..50, 0..200),
            most in 0usize..20,
        ) {
            let keyed = all.iter().copied().zip((0..all.len()).map(Reverse));
            let few = largest(most, keyed.clone().map(|key| (key, ())));
            let mut sorted: Vec<_> = keyed.collect();
            sorted.sort_by_key(|key| Reverse(*key));
            sorted.truncate(most);
            prop_assert_eq!(few.into_iter().map(|(key, ())| key).collect::<Vec<_>>(), sorted);
        }
    }
}
