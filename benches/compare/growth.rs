//! How the cost of a request grows: with routes, limits, callers, connections and cores. Small case
//! and large case in turns, ours alone.

use crate::contestants::{Contestant, Limits, Running, Setup, Stage};
use crate::load::{Load, measure, measure_on, run as put_load};
use crate::machine::Failure;
use crate::options::Options;
use crate::report::{Growth, Report};

/// One end of a curve.
struct Case {
    label: &'static str,
    setup: Setup,
    load: Load,
    /// How many callers are known before it is measured.
    callers: u64,
    /// Whether wrk, too, has both cores.
    both_cores: bool,
}

impl Case {
    fn new(label: &'static str, setup: Setup, load: Load) -> Self {
        Self { label, setup, load, callers: 0, both_cores: false }
    }
}

pub(crate) fn run(options: &Options, stage: &Stage, report: &mut Report) -> Result<(), Failure> {
    for (what, small, large) in curves() {
        if !options.wants(&format!("growth:{what}")) {
            continue;
        }
        let mut growth = Growth {
            what,
            small: small.label.to_owned(),
            large: large.label.to_owned(),
            small_micros: vec![],
            large_micros: vec![],
        };
        for _ in 0..options.rounds.min(3) {
            growth.small_micros.push(cost(stage, &small, options.seconds)?);
            growth.large_micros.push(cost(stage, &large, options.seconds)?);
        }
        println!("growth {what}: × {:.2}", growth.ratio());
        report.growth.push(growth);
    }
    Ok(())
}

fn curves() -> [(&'static str, Case, Case); 5] {
    let admit = || Setup::new(Limits::Admit);
    let many = |connections| Load { connections, ..Load::small() };
    let roam = |callers: u64| Load::small().with("roam", 1).with("callers", callers);
    let two = |workers| Setup { workers, ..admit() };
    [
        (
            "routes",
            Case::new("10", routes(10), Load { path: "/api/7/items", ..Load::small() }),
            Case::new("10,000", routes(10_000), Load { path: "/api/7/items", ..Load::small() }),
        ),
        (
            "limits",
            Case::new("1", limits(1), Load { path: "/api/0/items", ..Load::small() }),
            Case::new("1,000", limits(1000), Load { path: "/api/0/items", ..Load::small() }),
        ),
        (
            "callers",
            Case::new("1", daily(), roam(1)),
            Case { callers: 1_000_000, ..Case::new("1,000,000", daily(), roam(1_000_000)) },
        ),
        (
            "connections",
            Case::new("64", admit(), many(64)),
            Case::new("4,096", admit(), many(4096)),
        ),
        (
            "cores",
            Case { both_cores: true, ..Case::new("1 worker", two(1), many(64)) },
            Case { both_cores: true, ..Case::new("2 workers", two(2), many(64)) },
        ),
    ]
}

/// So many routes, three layers each.
fn routes(count: usize) -> Setup {
    let layers = "limits: [{ by: ip, rate: 1000000/second }, { by: user, rate: 1000000/second }, { by: api_key, rate: 1000000/second }]";
    let route =
        |n| format!("  - {{ name: r{n}, path: /api/{n}/items, upstream: app, {layers} }}\n");
    Setup::new(Limits::Routes(format!("routes:\n{}", (0..count).map(route).collect::<String>())))
}

/// So many limits, each on a route of its own.
fn limits(count: usize) -> Setup {
    let route = |n| {
        let limit = format!("limits: [{{ name: limit-{n}, by: ip, rate: 1000000/second }}]");
        format!("  - {{ name: r{n}, path: /api/{n}/items, upstream: app, {limit} }}\n")
    };
    Setup::new(Limits::Routes(format!("routes:\n{}", (0..count).map(route).collect::<String>())))
}

/// Limits that remember every caller for a day.
fn daily() -> Setup {
    let layer =
        |by| format!("      - {{ by: {by}, rate: 1000000000/day, algorithm: fixed_window }}\n");
    let layers: String = ["ip", "user", "api_key"].map(layer).concat();
    Setup::new(Limits::Routes(format!(
        "store: {{ memory: {{ max_keys: 4000000 }} }}\nroutes:\n  - path: /\n    upstream: app\n    limits:\n{layers}"
    )))
}

/// CPU per request, in microseconds.
fn cost(stage: &Stage, case: &Case, seconds: u64) -> Result<f64, Failure> {
    let running = stage.start(Contestant::Sluice, &case.setup)?;
    introduce(stage, &running, case.callers)?;
    let (sample, seen) = if case.both_cores {
        measure_on(stage, &stage.all_cores(), &running, &case.load, seconds)?
    } else {
        measure(stage, &running, &case.load, seconds)?
    };
    if seen.refused > 0 || seen.failed > 0 {
        return Err(Failure::said(format!("{}: {seen:?}", case.label)));
    }
    Ok(sample.cpu_micros_per_request)
}

/// Lets every caller come once.
fn introduce(stage: &Stage, running: &Running, callers: u64) -> Result<(), Failure> {
    let mut known = 0;
    while known < callers {
        let load = Load::small().with("walk", 1).with("first", known);
        known += put_load(stage, &stage.load_core(), running.port, &load, 5.0)?.requests;
    }
    Ok(())
}
