//! What the gateway may cost, line by line, and whether it does.

use crate::load::Sample;
use crate::report::Report;

/// One line of the budget.
pub(crate) struct Verdict {
    what: String,
    value: f64,
    /// At most this; `None` for a line that asks for at least `least`.
    most: Option<f64>,
    least: Option<f64>,
}

/// Every line for which there are figures.
pub(crate) fn verdicts(report: &Report) -> Vec<Verdict> {
    let cpu = |s: &Sample| s.cpu_micros_per_request;
    let to_nginx = |scenario, figure: fn(&Sample) -> f64| {
        let row = report.row(scenario, "sluice")?;
        report.ratio(row, "nginx", figure)
    };
    // Against whichever way of buffering costs nginx less.
    let to_better = |scenario| {
        let row = report.row(scenario, "sluice")?;
        let unbuffered = report.ratio(row, "nginx-unbuffered", cpu)?;
        Some(report.ratio(row, "nginx", cpu)?.max(unbuffered))
    };
    let idle = |encrypted| {
        let mine = |idle: &&crate::report::Idle| {
            idle.contestant == "sluice" && idle.encrypted == encrypted
        };
        report.idle.iter().find(mine).map(crate::report::Idle::each)
    };
    let mut lines = Vec::new();
    let mut most = |what: &str, value: Option<f64>, most: f64| {
        lines.extend(value.map(|value| Verdict {
            what: what.to_owned(),
            value,
            most: Some(most),
            least: None,
        }));
    };
    most("forwarded, CPU × nginx", to_nginx("forwarded", cpu), 1.0);
    most("rejected, CPU × nginx", to_nginx("rejected", cpu), 0.75);
    let watched = |scenario| report.ratio(report.row(scenario, "sluice-watched")?, "sluice", cpu);
    most("forwarded, dashboard and scrapes, CPU × without", watched("forwarded"), 1.03);
    most("rejected, dashboard and scrapes, CPU × without", watched("rejected"), 1.03);
    let logged = || report.ratio(report.row("logged", "sluice-watched")?, "nginx", cpu);
    most("log, dashboard and scrapes, CPU × nginx's log", logged(), 1.0);
    let guarded = |scenario| report.ratio(report.row(scenario, "sluice-overload")?, "sluice", cpu);
    most("forwarded, overload protection, CPU × without", guarded("forwarded"), 1.1);
    most("rejected, overload protection, CPU × without", guarded("rejected"), 1.1);
    most("moderate load, p50 × nginx", to_nginx("moderate", |s| s.p50_micros), 1.0);
    most("moderate load, p99 × nginx", to_nginx("moderate", |s| s.p99_micros), 1.0);
    most("1 MiB down, CPU × nginx's better mode", to_better("down"), 0.4);
    most("1 MiB up, CPU × nginx's better mode", to_better("up"), 0.4);
    let to_haproxy = |scenario| report.ratio(report.row(scenario, "sluice")?, "haproxy", cpu);
    most("TLS keep-alive, CPU × nginx", to_nginx("tls", cpu), 0.9);
    most("HTTP/2 through TLS, CPU × nginx", to_nginx("http2", cpu), 0.65);
    most("HTTP/2 through TLS, CPU × HAProxy", to_haproxy("http2"), 1.05);
    most("HTTP/2 in the clear, CPU × nginx", to_nginx("h2c", cpu), 0.65);
    most("HTTP/2 in the clear, CPU × HAProxy", to_haproxy("h2c"), 1.05);
    most("full handshake, CPU × nginx", to_nginx("handshakes", cpu), 0.55);
    let shared = |scenario, ours, peer, figure: fn(&Sample) -> f64| {
        report.ratio(report.row(scenario, ours)?, peer, figure)
    };
    let to_lua = shared("shared", "sluice-redis", "nginx-redis", cpu);
    most("exact in Redis, CPU × nginx with Lua", to_lua, 0.6);
    most("leased, CPU × our memory store", shared("shared", "sluice-leased", "sluice", cpu), 1.1);
    let flood = shared("shared_rejects", "sluice-redis", "sluice", cpu);
    most("rejected by Redis, CPU × our memory store", flood, 1.1);
    most("idle connection, KiB", idle(false), 18.0);
    most("idle connection through TLS, KiB", idle(true), 30.0);
    let rate = |s: &Sample| s.requests_per_second;
    lines.extend(shared("shared", "sluice-redis", "nginx-redis", rate).map(|value| Verdict {
        what: "exact in Redis, requests/s × nginx with Lua".to_owned(),
        value,
        most: None,
        least: Some(2.0),
    }));
    lines.extend(of_ours(report));
    lines
}

/// The lines that compare the gateway with itself.
fn of_ours(report: &Report) -> Vec<Verdict> {
    let mut lines = Vec::new();
    let replayed = |what| report.replay.iter().find(|replayed| replayed.what == what);
    for (what, name) in [
        ("own log, one limit", "replay, one limit, million lines a second and core"),
        ("own log", "replay, three limits, million lines a second and core"),
    ] {
        lines.extend(replayed(what).map(|own| Verdict {
            what: name.to_owned(),
            value: own.rate() / 1e6,
            most: None,
            least: Some(1.0),
        }));
    }
    let longer = replayed("own log").zip(replayed("own log, lines × 4"));
    lines.extend(longer.map(|(short, long)| Verdict {
        what: "replay, memory of four times the lines".to_owned(),
        value: long.memory() / short.memory(),
        most: Some(1.1),
        least: None,
    }));
    for growth in &report.growth {
        match growth.what {
            "connections" => {}
            "cores" => lines.push(Verdict {
                what: "two cores, × one core".to_owned(),
                value: 2.0 / growth.ratio(),
                most: None,
                least: Some(1.8),
            }),
            what => lines.push(Verdict {
                what: format!("{what}: {} → {}", growth.small, growth.large),
                value: growth.ratio(),
                most: Some(1.15),
                least: None,
            }),
        }
    }
    for counted in &report.guard {
        lines.extend(counted.change().map(|change| Verdict {
            what: format!("instructions, {}, × recorded", counted.what),
            value: 1.0 + change,
            most: Some(1.05),
            least: None,
        }));
    }
    lines
}

/// The budget as a table.
pub(crate) fn text(verdicts: &[Verdict]) -> String {
    let line = |verdict: &Verdict| {
        let met = verdict.most.is_none_or(|most| verdict.value <= most)
            && verdict.least.is_none_or(|least| verdict.value >= least);
        let (word, bound) = match (verdict.most, verdict.least) {
            (Some(most), _) => ("at most", most),
            (None, least) => ("at least", least.unwrap_or_default()),
        };
        let met = if met { "met" } else { "NOT MET" };
        format!("  {:<44}{:>8.2}   {word} {bound:<6} {met}\n", verdict.what, verdict.value)
    };
    format!("budget\n{}", verdicts.iter().map(line).collect::<String>())
}
