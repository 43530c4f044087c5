//! The report is made of what was counted.

use super::{
    Baseline, Caller, Callers, During, Limit, Logs, Minute, Moment, Near, OfLimit, OverTime,
    Report, Requests, Route, USE, share,
};
use crate::clock::SECOND;
use crate::limit::Quota;
use crate::simulate::callers::Principal;
use crate::simulate::largest::largest;
use crate::simulate::replay::Intake;
use crate::simulate::tally::{OfCaller, Tally};
use crate::simulate::timeline::Interval;
use crate::simulate::trial::{Trial, Tried};
use crate::simulate::usage::{Numbers, Usage};
use crate::simulate::warnings::warnings;
use crate::snapshot::{self, Plan};
use std::cmp::Reverse;

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

pub(in crate::simulate) fn logs(intake: &Intake) -> Logs {
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
pub(in crate::simulate) fn written(quota: &Quota) -> String {
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
