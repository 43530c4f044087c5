//! How large limits should be: the smallest that would have rejected no more than a given share of
//! their callers.
//!
//! ```text
//! 1. limits that never reject    the most that each caller used in a window     → the rate
//! 2. buckets that never reject   how deep each caller's was at that rate        → the burst, the queue
//! 3. limits of these sizes       whom they would have rejected                  → the evidence
//! ```
//!
//! Each is a replay. A limit's callers are ranked by what they used, and so many of the first are
//! left out as may be rejected; what the next one used is enough for everybody else.

mod evidence;
mod starters;
mod yaml;

use super::figures::exactly;
use super::report::{self, share};
use super::trial::{Terms, Trial, Tried};
use super::{Failure, Intake, Logs, Progress, Tally, replay};
use crate::clock::{Micros, SECOND};
use crate::config::model::{Config, Limit, Quotas};
use crate::limit::{Kind, MAX_BURST, MAX_LOG, Quota};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

pub use evidence::{Rejects, Spread};
pub use starters::with_starters;

/// What is wanted of limits.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    /// The share of a limit's callers that are never rejected.
    pub spared: f64,
    /// What is added to what was enough, as a share of it.
    pub margin: f64,
}

/// What is proposed.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestions {
    /// The version that says so.
    pub sluice: &'static str,
    /// The configuration whose limits are sized.
    pub config: String,
    /// What was replayed.
    pub logs: report::Logs,
    /// The share of a limit's callers that are never rejected, in percent.
    pub percentile: f64,
    /// What is added to what was enough, in percent.
    pub margin: f64,
    /// The configuration has no limits of its own: these are some to begin with.
    pub starters: bool,
    /// What is to be known before the figures are believed.
    pub warnings: Vec<String>,
    /// By limit, and by plan where plans decide.
    pub limits: Vec<Suggestion>,
    /// What all of them would have rejected.
    pub together: Rejects,
    /// The same for gateway.yaml.
    pub yaml: String,
}

/// How large a limit should be.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestion {
    /// Its name.
    pub limit: String,
    /// For callers of this plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// What it counts by.
    pub by: String,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// What it allows now; nothing if it is a new one.
    pub now: Option<String>,
    /// How large it should be; nothing if nobody can say.
    pub proposed: Option<Size>,
    /// Everybody that it counts.
    pub callers: u64,
    /// Their requests.
    pub requests: u64,
    /// The most that each of them used in a window, or at once.
    pub used: Option<Spread>,
    /// How deep each one's bucket was at the proposed rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<Spread>,
    /// What it would have rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejects: Option<Rejects>,
    /// Why these data say little, or nothing.
    pub thin: Vec<String>,
}

/// The numbers of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// N.
    pub count: u32,
    /// N per window, as the file writes it; `concurrency` has no window.
    pub rate: String,
    /// Of buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Of queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// Of queues: the longest wait in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<u64>,
}

/// Which quota: of a limit by its name, and of which plan.
type Which = (String, usize);

/// What callers used, the most first.
#[derive(Debug, Default)]
struct Used {
    most: Vec<u32>,
    requests: u64,
}

/// Proposes how large the limits of a configuration should be. `watch` is told how far which of the
/// three replays is.
pub fn suggest(
    logs: &Logs,
    (file, config): (&str, &Config),
    terms: &Arc<Terms>,
    aim: Aim,
    watch: &mut dyn FnMut(usize, Progress),
) -> Result<Suggestions, Failure> {
    let (config, starters) = with_starters(config.clone());
    let mut sizes: HashMap<Which, Sizing> = HashMap::new();

    let boundless = measured(&config, |_, quota| quota.boundless());
    let (intake, tally, [trial]) = run(logs, [boundless], terms, &mut |at| watch(0, at))?;
    let warnings = super::warnings::warnings(&intake, &tally, &trial);
    for (which, used) in used(&trial) {
        sizes.insert(which, Sizing::new(used, aim));
    }
    let thin = evidence::Thin { intake: &intake, trial: &trial, aim };
    for (limit, quota, index) in each(&config) {
        let sizing = sizes.entry((limit.name.clone(), index)).or_default();
        (sizing.thin, sizing.unknown) = thin.reasons(limit, quota, &sizing.used);
    }

    if each(&config).any(|(_, quota, _)| quota.is_bucket()) {
        let bottomless = measured(&config, |which, quota| match sizes.get(which) {
            Some(sizing) if quota.is_bucket() && sizing.count > 0 => {
                quota.bottomless(sizing.count).unwrap_or_else(|_| quota.boundless())
            }
            _ => quota.boundless(),
        });
        let (_, _, [trial]) = run(logs, [bottomless], terms, &mut |at| watch(1, at))?;
        let buckets: Vec<Which> = each(&config)
            .filter(|(_, quota, _)| quota.is_bucket())
            .map(|(limit, _, index)| (limit.name.clone(), index))
            .collect();
        let mut depths = used(&trial);
        for which in buckets {
            if let (Some(sizing), Some(depth)) = (sizes.get_mut(&which), depths.remove(&which)) {
                sizing.deepen(depth, aim);
            }
        }
    }

    // Each alone, and all together.
    let proposed = resized(&config, &sizes);
    let mut enforced = proposed.clone();
    if starters {
        enforced
            .limits
            .retain(|limit| sizes.get(&(limit.name.clone(), 0)).is_some_and(Sizing::is_known));
    }
    let both = [shadows(proposed), enforced];
    let (_, tally, [alone, _]) = run(logs, both, terms, &mut |at| watch(2, at))?;
    let limits = evidence::suggestions(&config, &sizes, &alone, starters);
    let yaml = yaml::written(&config, &limits, starters);
    let (requests, rejected) = (tally.requests(), tally.rejected + tally.banned);
    let callers = || tally.callers();
    let rejected_callers = callers().filter(|(_, caller)| caller.rejected > 0).count() as u64;
    let all = callers().count() as u64;
    Ok(Suggestions {
        sluice: env!("CARGO_PKG_VERSION"),
        config: file.to_owned(),
        logs: report::logs(&intake),
        percentile: exactly(aim.spared),
        margin: exactly(aim.margin),
        starters,
        warnings,
        limits,
        together: Rejects {
            callers: rejected_callers,
            callers_share: share(rejected_callers, all),
            requests: rejected,
            requests_share: share(rejected, requests),
        },
        yaml,
    })
}

/// Replays the logs through configurations, and counts what comes of the last.
fn run<const N: usize>(
    logs: &Logs,
    configs: [Config; N],
    terms: &Arc<Terms>,
    watch: &mut dyn FnMut(Progress),
) -> Result<(Intake, Tally, [Trial; N]), Failure> {
    let mut trials = configs.map(|config| Trial::new(config, Arc::clone(terms)));
    let mut tally = Tally::default();
    let intake = replay(logs, &mut trials, watch, |logged, trials, arrived, came| {
        if let (Some(trial), Some(arrived), Some(came)) =
            (trials.last(), arrived.last(), came.last())
        {
            tally.count(&trial.callers, logged, arrived, *came, None);
        }
    })?;
    Ok((intake, tally, trials))
}

/// Every limit that a file can say something of, and each of its quotas. Candidates follow theirs.
fn each(config: &Config) -> impl Iterator<Item = (&Limit, &Quota, usize)> {
    let limits = config.limits.iter().chain(config.routes.iter().flat_map(|route| &route.limits));
    limits.flat_map(|limit| limit.quotas.all().iter().zip(0..).map(move |(q, i)| (limit, q, i)))
}

/// The configuration with other quotas.
fn with_quotas(config: &Config, of: impl Fn(&Which, &Quota) -> Quota) -> Config {
    let mut config = config.clone();
    let Config { limits, routes, .. } = &mut config;
    for limit in limits.iter_mut().chain(routes.iter_mut().flat_map(|route| &mut route.limits)) {
        let name = &limit.name;
        let of = |index: usize, quota: &Quota| of(&(name.clone(), index), quota);
        limit.quotas = match &limit.quotas {
            Quotas::Fixed(quota) => Quotas::Fixed(of(0, quota)),
            Quotas::ByPlan(all) => {
                Quotas::ByPlan(all.iter().enumerate().map(|(at, quota)| of(at, quota)).collect())
            }
        };
    }
    config
}

/// The same to measure with: nobody is rejected, and everybody is remembered.
fn measured(config: &Config, of: impl Fn(&Which, &Quota) -> Quota) -> Config {
    shadows(Config { max_keys: usize::MAX, ..with_quotas(config, of) })
}

/// The same with limits that know nothing of each other: what one rejects, the others see.
fn shadows(mut config: Config) -> Config {
    let Config { limits, routes, .. } = &mut config;
    for limit in limits.iter_mut().chain(routes.iter_mut().flat_map(|route| &mut route.limits)) {
        limit.shadow = true;
        limit.penalty = None;
    }
    config
}

/// What each limit's callers used.
fn used(trial: &Trial) -> HashMap<Which, Used> {
    let mut all: HashMap<Which, Used> = HashMap::new();
    for Tried { limit, subjects, .. } in &trial.limits {
        for (_, usage) in subjects.each() {
            let used = all.entry((limit.name.clone(), usage.quota.into())).or_default();
            used.most.push(usage.used);
            used.requests += u64::from(usage.requests);
        }
    }
    for used in all.values_mut() {
        used.most.sort_unstable_by_key(|most| std::cmp::Reverse(*most));
    }
    all
}

/// How large a quota should be, so far.
#[derive(Debug, Default)]
struct Sizing {
    used: Used,
    depth: Option<Used>,
    /// N; 0 if nobody was there.
    count: u32,
    /// The bucket's size.
    size: u32,
    thin: Vec<String>,
    /// The data say nothing.
    unknown: bool,
}

impl Sizing {
    fn new(used: Used, aim: Aim) -> Self {
        let count = aim.enough(&used.most);
        Self { used, count, ..Self::default() }
    }

    fn is_known(&self) -> bool {
        !self.unknown && self.count > 0
    }

    fn deepen(&mut self, depth: Used, aim: Aim) {
        self.size = aim.enough(&depth.most);
        self.depth = Some(depth);
    }
}

impl Aim {
    /// How many of so many callers may be rejected.
    #[expect(clippy::cast_sign_loss, reason = "shares are not negative")]
    fn sacrificed(&self, callers: usize) -> usize {
        // A hair more, for shares that are no binary fractions.
        ((callers as f64 * (1.0 - self.spared)) + 1e-9).floor() as usize
    }

    /// What is enough for all but those, and the margin.
    #[expect(clippy::cast_sign_loss, reason = "margins are not negative")]
    fn enough(&self, most: &[u32]) -> u32 {
        let Some(used) = most.get(self.sacrificed(most.len()).min(most.len().saturating_sub(1)))
        else {
            return 0;
        };
        let with_margin = (f64::from(*used) * (1.0 + self.margin) - 1e-9).ceil();
        (with_margin as u32).clamp(1, MAX_BURST)
    }
}

/// The quota that is proposed; nothing if none can be.
fn sized(quota: &Quota, sizing: &Sizing, shards: u32) -> Option<Quota> {
    if !sizing.is_known() {
        return None;
    }
    // No shard may be empty.
    let count = match quota.kind() {
        Kind::Log => sizing.count.min(MAX_LOG),
        _ => sizing.count.max(shards),
    };
    // The first of an idle queue goes at once.
    let size = match sizing.size {
        places if quota.is_queue() => places.saturating_sub(1).max(1),
        size => size.max(shards),
    };
    quota.resized(count, size, longest_wait(quota, count, size)).ok()
}

/// How long the last in a full queue waits, in whole seconds.
fn longest_wait(quota: &Quota, count: u32, queue: u32) -> Micros {
    let wait = u128::from(queue) * u128::from(quota.rate().window) / u128::from(count.max(1));
    u64::try_from(wait).unwrap_or(Micros::MAX).div_ceil(SECOND).max(1).saturating_mul(SECOND)
}

/// The configuration as it is proposed; a limit of which nobody can say anything stays as it is.
fn resized(config: &Config, sizes: &HashMap<Which, Sizing>) -> Config {
    let shards: HashMap<&str, u32> =
        each(config).map(|(limit, ..)| (limit.name.as_str(), limit.shards.into())).collect();
    with_quotas(config, |which, quota| {
        let shards = shards.get(which.0.as_str()).copied().unwrap_or(1);
        let sized = sizes.get(which).and_then(|sizing| sized(quota, sizing, shards));
        sized.unwrap_or_else(|| quota.clone())
    })
}
