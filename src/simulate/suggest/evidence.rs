//! Why limits should be that large: what their callers used, whom they would have rejected, and
//! what the data are too thin to say.

use super::{Aim, Size, Sizing, Suggestion, Used, Which, each, longest_wait, sized};
use crate::clock::SECOND;
use crate::config::model::{Config, Cost, Limit, Quotas, SettledCost};
use crate::limit::{Kind, MAX_LOG, Quota};
use crate::simulate::Intake;
use crate::simulate::figures::{counted, grouped, length};
use crate::simulate::report::{share, written};
use crate::simulate::trial::Trial;
use serde::Serialize;
use std::collections::HashMap;

/// What callers used: nobody used more than `most`, half of them at most `half`, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Half of the callers at most.
    pub half: u32,
    /// Nine in ten at most.
    pub ninety: u32,
    /// Ninety-nine in a hundred at most.
    pub ninety_nine: u32,
    /// All of them at most.
    pub most: u32,
}

impl Spread {
    /// Of what callers used, the most first.
    fn of(used: &Used) -> Option<Self> {
        let most = *used.most.first()?;
        let at = |percent: usize| used.most[used.most.len() * (100 - percent) / 100];
        Some(Self { half: at(50), ninety: at(90), ninety_nine: at(99), most })
    }
}

/// What a limit, or all of them, would have rejected.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rejects {
    /// How many callers, at least once.
    pub callers: u64,
    /// As a share of them.
    pub callers_share: f64,
    /// How many requests.
    pub requests: u64,
    /// As a share of them.
    pub requests_share: f64,
}

/// What makes data thin.
pub(super) struct Thin<'t> {
    pub(super) intake: &'t Intake,
    pub(super) trial: &'t Trial,
    pub(super) aim: Aim,
}

/// Fewer requests than this say little.
const FEW: u64 = 100;

/// So many windows should be there: of minutes, and of days or longer.
const WINDOWS: u64 = 10;
const DAYS: u64 = 7;

impl Thin<'_> {
    /// Why the data say little of a limit, and whether they say nothing.
    pub(super) fn reasons(&self, limit: &Limit, quota: &Quota, used: &Used) -> (Vec<String>, bool) {
        let Self { intake, trial, aim } = self;
        if used.requests == 0 {
            return (vec!["no request in these logs meets it".to_owned()], true);
        }
        let mut why = Vec::new();
        let tried = trial.limits.iter().find(|tried| tried.limit.name == limit.name);
        let untold = tried.map_or(0, |tried| tried.counted.untold);
        if quota.is_concurrency() {
            if intake.durations == 0 {
                return (vec!["the logs do not tell how long requests took".to_owned()], true);
            }
        } else {
            let (window, span) = (quota.rate().window, intake.span());
            let wanted = if window >= 86_400 * SECOND { DAYS } else { WINDOWS };
            let (covered, of) = (length(span / SECOND), length(window / SECOND));
            if span < window {
                return (
                    vec![format!("the logs cover {covered}, less than its window of {of}")],
                    true,
                );
            }
            if span / window < wanted {
                why.push(format!("the logs cover {covered}, few of its windows of {of}"));
            }
        }
        let callers = used.most.len();
        let everybody = limit.by.is_empty();
        if !everybody && aim.spared < 1.0 && aim.sacrificed(callers) == 0 {
            why.push(format!(
                "it has met {}: too few to leave any out, so the busiest of them decides",
                counted(callers as u64, "caller")
            ));
        }
        if used.requests < FEW {
            why.push(format!("it has met {}", counted(used.requests, "request")));
        }
        if intake.sampled > 0 {
            why.push("only a share of the requests were logged".to_owned());
        }
        if let (Cost::Settled(SettledCost { reserve, .. }), 1..) = (&limit.cost, untold) {
            why.push(format!(
                "what {} requests came to is not told: each was counted as {reserve}",
                grouped(untold)
            ));
        }
        if quota.kind() == Kind::Log && used.most.first().is_some_and(|most| *most >= MAX_LOG) {
            why.push(format!("a sliding_log counts to {MAX_LOG} at most"));
        }
        (why, false)
    }
}

/// What is proposed for each limit, and why.
pub(super) fn suggestions(
    config: &Config,
    sizes: &HashMap<Which, Sizing>,
    trial: &Trial,
    starters: bool,
) -> Vec<Suggestion> {
    let rejects = rejects(trial);
    let mut all = Vec::new();
    let mut before: Option<&Limit> = None;
    for (limit, quota, index) in each(config) {
        // A candidate has its numbers to be tried, not to be found.
        let live = before.filter(|before| limit.name == format!("{}/candidate", before.name));
        if live.is_some() {
            continue;
        }
        before = Some(limit);
        let which = (limit.name.clone(), index);
        let Some(sizing) = sizes.get(&which) else { continue };
        let sized = sized(quota, sizing, limit.shards.into());
        let by_plan = matches!(limit.quotas, Quotas::ByPlan(_));
        let plan = by_plan.then(|| config.plans[index].name.clone());
        all.push(Suggestion {
            limit: limit.name.clone(),
            plan,
            by: crate::config::model::by_name(&limit.by),
            algorithm: limit.algorithm,
            now: (!starters).then(|| written(quota)),
            callers: sizing.used.most.len() as u64,
            requests: sizing.used.requests,
            used: Spread::of(&sizing.used),
            depth: sizing.depth.as_ref().and_then(Spread::of),
            rejects: rejects.get(&which).copied().filter(|_| sized.is_some()),
            proposed: sized.map(|quota| size(&quota)),
            thin: sizing.thin.clone(),
        });
    }
    all
}

fn size(quota: &Quota) -> Size {
    let (count, capacity) = (quota.rate().count, quota.capacity());
    let queue = quota.is_queue().then(|| capacity.saturating_sub(1));
    Size {
        count,
        rate: quota.written(),
        burst: (quota.is_bucket() && !quota.is_queue()).then_some(capacity),
        queue,
        max_wait: queue.map(|queue| longest_wait(quota, count, queue) / SECOND),
    }
}

/// What each limit would have rejected.
fn rejects(trial: &Trial) -> HashMap<Which, Rejects> {
    let mut all: HashMap<Which, (u64, u64, u64, u64)> = HashMap::new();
    for tried in &trial.limits {
        for (_, usage) in tried.subjects.each() {
            let which = (tried.limit.name.clone(), usage.quota.into());
            let (callers, rejected_callers, requests, rejected) = all.entry(which).or_default();
            *callers += 1;
            *rejected_callers += u64::from(usage.rejected > 0);
            *requests += u64::from(usage.requests);
            *rejected += u64::from(usage.rejected);
        }
    }
    let told = |(which, (callers, rejected_callers, requests, rejected)): (Which, _)| {
        let rejects = Rejects {
            callers: rejected_callers,
            callers_share: share(rejected_callers, callers),
            requests: rejected,
            requests_share: share(rejected, requests),
        };
        (which, rejects)
    };
    all.into_iter().map(told).collect()
}
