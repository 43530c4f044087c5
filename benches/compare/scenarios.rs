//! What is asked of every contestant, in turns.

use crate::contestants::{Contestant, Edge, Limits, Setup, Stage};
use crate::load::{Load, Sample, Seen, Tool, measure};
use crate::machine::Failure;
use crate::options::Options;
use crate::report::Report;
use crate::watcher::Watcher;
use Contestant::{
    Caddy, Envoy, Haproxy, Nginx, NginxErrorLog, NginxRedis, NginxUnbuffered, Sluice, SluiceLeased,
    SluiceOverload, SluiceRedis, SluiceWatched,
};

/// One thing to measure.
pub(crate) struct Scenario {
    pub(crate) key: &'static str,
    pub(crate) title: &'static str,
    setup: Setup,
    load: Load,
    contestants: &'static [Contestant],
}

/// Limits are no part of Caddy as it is shipped.
const WITH_LIMITS: &[Contestant] = &[Nginx, Sluice, Haproxy, Envoy];
const FORWARDING: &[Contestant] = &[Nginx, Sluice, SluiceWatched, SluiceOverload, Haproxy, Envoy];
const REJECTING: &[Contestant] =
    &[Nginx, NginxErrorLog, Sluice, SluiceWatched, SluiceOverload, Haproxy, Envoy];
const LOGGING: &[Contestant] = &[Nginx, Sluice, SluiceWatched, Haproxy, Envoy];
const WITHOUT: &[Contestant] = &[Nginx, Sluice, Haproxy, Envoy, Caddy];
const BODIES: &[Contestant] = &[Nginx, NginxUnbuffered, Sluice, Haproxy, Envoy, Caddy];

const SHARING: &[Contestant] = &[Nginx, NginxRedis, SluiceRedis, SluiceLeased, Sluice];
const SHARED_REJECTS: &[Contestant] = &[Nginx, SluiceRedis, Sluice];

/// Milliseconds between an answer and its connection's next request, at a moderate load.
const PAUSE: u64 = 5;

pub(crate) fn all() -> Vec<Scenario> {
    let admit = || Setup::new(Limits::Admit);
    let big = || Load { connections: 16, ..Load::small() };
    vec![
        Scenario {
            key: "forwarded",
            title: "forwarded; three layers of limits (ours), one per-IP limit (theirs)",
            setup: admit(),
            load: Load::small(),
            contestants: FORWARDING,
        },
        Scenario {
            key: "rejected",
            title: "all rejected; three layers (ours), one per-IP limit (theirs)",
            setup: Setup::new(Limits::Reject),
            load: Load::small(),
            contestants: REJECTING,
        },
        Scenario {
            key: "unlimited",
            title: "forwarded, no limit anywhere",
            setup: Setup::new(Limits::None),
            load: Load::small(),
            contestants: WITHOUT,
        },
        Scenario {
            key: "moderate",
            title: "forwarded with limits, 64 connections that pause about 5 ms between requests",
            setup: admit(),
            load: Load::small().with("pause", PAUSE),
            contestants: WITH_LIMITS,
        },
        Scenario {
            key: "down",
            title: "bodies of 1 MiB, down",
            setup: Setup::new(Limits::None),
            load: Load { path: "/big", ..big() },
            contestants: BODIES,
        },
        Scenario {
            key: "up",
            title: "bodies of 1 MiB, up",
            setup: Setup::new(Limits::None),
            load: big().with("method", "POST").with("body", 1 << 20),
            contestants: BODIES,
        },
        Scenario {
            key: "logged",
            title: "forwarded with limits, every request in an access log, to a file",
            setup: Setup { log: true, ..admit() },
            load: Load::small(),
            contestants: LOGGING,
        },
        Scenario {
            key: "tls",
            title: "forwarded with limits through TLS, keep-alive",
            setup: admit().on(Edge::Tls),
            load: Load::small().encrypted(),
            contestants: WITH_LIMITS,
        },
        Scenario {
            key: "http2",
            title: "forwarded with limits over HTTP/2 and TLS, 8 connections × 32 streams",
            setup: admit().on(Edge::Tls),
            load: Load::small().encrypted().http2(),
            contestants: WITH_LIMITS,
        },
        Scenario {
            key: "h2c",
            title: "forwarded with limits over HTTP/2 in the clear, 8 connections × 32 streams",
            setup: admit().on(Edge::Http2),
            load: Load::small().http2(),
            contestants: WITH_LIMITS,
        },
        Scenario {
            key: "handshakes",
            title: "full TLS handshakes, one after the other, and nothing else",
            setup: admit().on(Edge::Tls),
            load: Load { tool: Tool::Handshakes, ..Load::small().encrypted() },
            contestants: WITH_LIMITS,
        },
        Scenario {
            key: "shared",
            title: "forwarded; three layers in Redis (and in memory, to compare)",
            setup: admit(),
            load: Load::small(),
            contestants: SHARING,
        },
        Scenario {
            key: "shared_rejects",
            title: "all rejected; three layers in Redis (and in memory, to compare)",
            setup: Setup::new(Limits::Reject),
            load: Load::small(),
            contestants: SHARED_REJECTS,
        },
    ]
}

/// Every scenario, every contestant, every round.
pub(crate) fn run(options: &Options, stage: &Stage, report: &mut Report) -> Result<(), Failure> {
    let wanted: Vec<_> = all().into_iter().filter(|s| options.wants(s.key)).collect();
    for round in 1..=options.rounds {
        for scenario in &wanted {
            for contestant in scenario.contestants {
                if !options.invites(contestant.name()) || stage.find(*contestant).is_err() {
                    continue;
                }
                let sample = scenario.measure(stage, *contestant, options.seconds)?;
                println!(
                    "round {round} {:<15} {:<17}{:>9.0} req/s {:>8.2} µs CPU  p50 {:>6.0} µs  p99 {:>6.0} µs",
                    scenario.key,
                    contestant.name(),
                    sample.requests_per_second,
                    sample.cpu_micros_per_request,
                    sample.p50_micros,
                    sample.p99_micros,
                );
                report.add(scenario, *contestant, sample);
            }
        }
    }
    Ok(())
}

impl Scenario {
    fn measure(
        &self,
        stage: &Stage,
        contestant: Contestant,
        seconds: u64,
    ) -> Result<Sample, Failure> {
        let running = stage.start(contestant, &self.setup)?;
        let _watcher = (contestant == SluiceWatched).then(|| Watcher::start(stage)).transpose()?;
        let (sample, seen) = measure(stage, &running, &self.load, seconds)?;
        self.check(contestant, seen)?;
        Ok(sample)
    }

    /// Figures of requests that went wrong are no figures.
    fn check(&self, contestant: Contestant, seen: Seen) -> Result<(), Failure> {
        let refused = if self.setup.limits == Limits::Reject { seen.requests } else { 0 };
        if seen.refused == refused && seen.failed == 0 && seen.bytes > 0 {
            return Ok(());
        }
        Err(Failure::said(format!("{} did not do '{}': {seen:?}", contestant.name(), self.key)))
    }
}

/// The load that profile-guided optimisation learns from: the scenarios' own.
pub(crate) fn train(stage: &Stage) -> Result<(), Failure> {
    for scenario in all() {
        let here = |ours: &&Contestant| ours.is_ours() && stage.find(**ours).is_ok();
        for ours in scenario.contestants.iter().filter(here) {
            let sample = scenario.measure(stage, *ours, 2)?;
            let rate = sample.requests_per_second;
            println!("trained {} on {}: {rate:.0} requests/s", ours.name(), scenario.key);
        }
    }
    Ok(())
}
