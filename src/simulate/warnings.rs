//! What is to be known before the figures of a replay are believed: what the logs do not tell, and
//! limits that therefore never applied.

use super::figures::{counted, grouped};
use super::replay::Intake;
use super::tally::Tally;
use super::trial::{Trial, Tried};
use crate::config::model::{Attribute, Cost, KeyPlace, SettledCost};
use crate::limit::Quota;

/// Everything worth a warning.
pub(super) fn warnings(intake: &Intake, tally: &Tally, trial: &Trial) -> Vec<String> {
    let mut said = Vec::new();
    of_the_logs(intake, &mut said);
    of_callers(trial, &mut said);
    of_routes(intake, tally, &mut said);
    for tried in &trial.limits {
        of_a_limit(intake, trial, tried, &mut said);
    }
    said
}

fn of_the_logs(intake: &Intake, said: &mut Vec<String>) {
    if intake.requests() == 0 {
        said.push("the logs have no requests".to_owned());
    }
    if intake.sampled > 0 {
        said.push(format!(
            "{} of requests of which only a share was logged, {:.0} or so: limits see fewer than \
             there were (logging.access.sample; {{ allowed: 100%, rejected: 100% }} logs them all)",
            counted(intake.sampled, "line"),
            intake.stand_for
        ));
    }
    if intake.pathless > 0 {
        said.push(format!(
            "{} of banned addresses do not tell what was asked for: limits for all routes alone see \
             them",
            counted(intake.pathless, "line")
        ));
    }
    if intake.late > 0 {
        said.push(format!(
            "{} came too late to be put in order, and judged at once: the figures are off by as much \
             (--late; parts of a log that were put together in a wrong order are better given as files)",
            counted(intake.late, "line")
        ));
    }
    if intake.unreadable > 0 {
        let lines = counted(intake.unreadable, "line");
        said.push(format!("{lines} left out that cannot be read"));
    }
}

fn of_callers(trial: &Trial, said: &mut Vec<String>) {
    let callers = &trial.callers;
    if callers.proxied > 0 {
        said.push(format!(
            "{} of a trusted proxy, and nothing says for whom: the proxy is taken for the caller \
             (--fields forwarded_for=NAME)",
            counted(callers.proxied, "request")
        ));
    }
    if callers.unknown_keys > 0 {
        said.push(format!(
            "{} with an API key that the file does not know: refused with 401 (--accept-any-key \
             takes such keys for good)",
            counted(callers.unknown_keys, "request")
        ));
    }
}

fn of_routes(intake: &Intake, tally: &Tally, said: &mut Vec<String>) {
    let requests = intake.requests();
    let astray = tally.refused.get(&404).copied().unwrap_or(0);
    // A few are in every log; so many tell that the file is another site's, or hosts are missing.
    if astray * 2 > requests && requests > 0 {
        let hosts = if intake.hosts == 0 { "; the logs tell no host (--host NAME)" } else { "" };
        let astray = grouped(astray);
        said.push(format!("{astray} of {} match no route{hosts}", counted(requests, "request")));
    }
}

fn of_a_limit(intake: &Intake, trial: &Trial, tried: &Tried, said: &mut Vec<String>) {
    let limit = &tried.limit;
    let known = |attribute: &Attribute| trial.callers.knows(attribute);
    if let Some(missing) = limit.by.iter().find(|attribute| !known(attribute)) {
        let name = &limit.name;
        let what = match missing {
            Attribute::Ip => return, // nobody asked
            Attribute::User => "no line tells a user (--fields user=NAME)".to_owned(),
            Attribute::ApiKey => match &trial.snapshot().identity.api_key {
                Some(keys) if matches!(keys.place, KeyPlace::Query(_)) => {
                    "no line tells an API key (--fields api_key=NAME, or a path with its query)"
                        .to_owned()
                }
                _ => "no line tells an API key (--fields api_key=NAME)".to_owned(),
            },
            Attribute::Header(header) => format!(
                "no line tells {header} (logging.access.headers in the gateway's own log, \
                 --fields header:{header}=NAME in others)"
            ),
        };
        said.push(format!("'{name}' never applies: {what}"));
        return;
    }
    if tried.counted.requests == 0 {
        return;
    }
    if limit.quotas().iter().any(Quota::is_concurrency) && intake.durations == 0 {
        said.push(format!(
            "'{}' counts requests in flight, and the logs do not tell how long they took: it never \
             rejects (--fields duration_ms=NAME)",
            limit.name
        ));
    } else if limit.quotas().iter().any(Quota::is_concurrency) && intake.own < intake.requests() {
        said.push(format!(
            "'{}' counts requests in flight: a line's time is taken for when its request began, and \
             other servers than ours write when it ended",
            limit.name
        ));
    }
    if tried.shards > 1 {
        said.push(format!(
            "'{}' is split into {} shards in the store; here it is one, and each caller has all of it",
            limit.name, tried.shards
        ));
    }
    if let (Cost::Settled(SettledCost { reserve, .. }), untold @ 1..) =
        (&limit.cost, tried.counted.untold)
    {
        said.push(format!(
            "'{}': the logs do not tell what {} came to: counted by the {reserve} that are reserved",
            limit.name,
            counted(untold, "request")
        ));
    }
}
