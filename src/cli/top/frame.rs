//! One picture: what has changed between two looks at `/api/v1/live`.

use crate::cli::paint::{Paint, printable};
use serde_json::Value;
use std::fmt::Write as _;

/// Two looks.
pub(super) struct Frame<'v> {
    pub(super) before: &'v Value,
    pub(super) now: &'v Value,
}

/// Rows of each table.
const ROWS: usize = 8;

impl Frame<'_> {
    /// The picture, no wider and no higher than this.
    pub(super) fn draw(&self, width: usize, height: usize, paint: Paint) -> String {
        let mut lines = Vec::new();
        self.head(&mut lines, paint);
        self.traffic(&mut lines, paint);
        self.limits(&mut lines, paint);
        self.routes(&mut lines, paint);
        self.callers(&mut lines, paint);
        lines.truncate(height.saturating_sub(1).max(1));
        let cut: Vec<String> = lines.iter().map(|line| shortened(line, width)).collect();
        cut.join("\n") + "\n"
    }

    fn seconds(&self) -> f64 {
        (number(&self.now["now"]) - number(&self.before["now"])).max(0.001)
    }

    /// How much a counter has grown a second; one that shrank began anew.
    fn rate(&self, pick: impl Fn(&Value) -> f64) -> f64 {
        let restarted = self.now["started"] != self.before["started"];
        let before = if restarted { 0.0 } else { pick(self.before) };
        ((pick(self.now) - before) / self.seconds()).max(0.0)
    }

    fn head(&self, lines: &mut Vec<String>, paint: Paint) {
        let now = self.now;
        let (config, since) = (&now["config"], number(&now["now"]) - number(&now["started"]));
        lines.push(format!(
            "{} {}  {}  up {}  generation {} of {}, {} old",
            paint.bold("sluice"),
            text(&now["version"]),
            paint.bold(text(&now["state"])),
            age(since),
            config["generation"],
            text(&config["file"]),
            age(number(&now["now"]) - number(&config["loaded_at"])),
        ));
        if let Some(error) = config["last_reload"]["error"].as_str() {
            let ago = age(number(&now["now"]) - number(&config["last_reload"]["at"]));
            let first = error.lines().next().unwrap_or_default();
            lines.push(paint.bad(&format!("the last reload failed {ago} ago: {first}")));
        }
    }

    fn traffic(&self, lines: &mut Vec<String>, paint: Paint) {
        let all = self.rate(|look| answers(look, |_| true));
        let rejected = self.rate(|look| answers(look, |status| status == "429"));
        let failed = self.rate(|look| answers(look, |status| status.starts_with('5')));
        let share = if all > 0.0 { rejected / all * 100.0 } else { 0.0 };
        let process = &self.now["process"];
        lines.push(format!(
            "{} {}/s  rejected {}/s ({share:.1}%)  5xx {}/s  in flight {}  connections {}  cpu {:.0}%",
            paint.bold("requests"),
            short(all),
            short(rejected),
            short(failed),
            process["in_flight"],
            process["connections"],
            self.rate(|look| number(&look["process"]["cpu_seconds"])) * 100.0,
        ));
        let of = |name: &'static str| {
            let at = |share| duration(self.quantile(share, |look| &look["latency"][name]));
            format!("{} {} {}", at(0.5), at(0.9), at(0.99))
        };
        lines.push(format!(
            "{}  whole {}  upstream {}  own {}  (p50 p90 p99)",
            paint.bold("latency"),
            of("request"),
            of("upstream"),
            of("overhead"),
        ));
        lines.push(self.store(paint));
        for upstream in list(&self.now["upstreams"]) {
            lines.push(self.upstream(upstream, paint));
        }
    }

    fn store(&self, paint: Paint) -> String {
        let (store, process) = (&self.now["store"], &self.now["process"]);
        let keys = format!("{} of {} keys here", process["memory_keys"], process["max_keys"]);
        if text(&store["kind"]) == "memory" {
            return format!("{}    memory, {keys}", paint.bold("store"));
        }
        let state = if store["up"] == true { "answers".into() } else { paint.bad("is away") };
        format!(
            "{}    redis {state}, p99 {}, {}/s asked, {}/s decided without it, {keys}",
            paint.bold("store"),
            duration(self.quantile(0.99, |look| &look["store"]["latency"])),
            short(self.rate(|look| number(&look["store"]["calls"]))),
            short(self.rate(|look| number(&look["store"]["fallbacks"]))),
        )
    }

    fn upstream(&self, upstream: &Value, paint: Paint) -> String {
        let endpoints = list(&upstream["endpoints"]);
        let out: Vec<&str> = endpoints
            .iter()
            .filter(|endpoint| endpoint["in_service"] != true)
            .map(|endpoint| text(&endpoint["name"]))
            .collect();
        let name = &upstream["name"];
        let failures = self.rate(|look| {
            let own = list(&look["upstreams"]).iter().find(|other| other["name"] == *name);
            own.map_or(0.0, |own| sum(&own["failures"]))
        });
        let out = if out.is_empty() {
            String::new()
        } else {
            format!("  {}", paint.bad(&format!("out: {}", out.join(", "))))
        };
        format!(
            "{} {}  {} of {} in service  failures {}/s{out}",
            paint.bold("upstream"),
            text(name),
            endpoints.iter().filter(|endpoint| endpoint["in_service"] == true).count(),
            endpoints.len(),
            short(failures),
        )
    }

    fn limits(&self, lines: &mut Vec<String>, paint: Paint) {
        lines.push(String::new());
        lines.push(paint.bold(&format!(
            "{:<24} {:<14} {:<14} {:<17} {:>9} {:>9} {:>9}",
            "limit", "by", "rate", "pressure", "allowed/s", "reject/s", "shadow/s"
        )));
        let mut rows: Vec<_> = list(&self.now["limits"])
            .iter()
            .map(|limit| {
                let decided = |verdict: &'static str| {
                    self.rate(|look| {
                        let same = |other: &&Value| other["name"] == limit["name"];
                        let own = list(&look["limits"]).iter().find(same);
                        own.map_or(0.0, |own| number(&own["decisions"][verdict]))
                    })
                };
                let rates = ["allowed", "rejected", "shadow_rejected"].map(decided);
                (limit, number(&limit["pressure"]), rates)
            })
            .collect();
        rows.sort_by(|a, b| {
            (b.2[1], b.1).partial_cmp(&(a.2[1], a.1)).unwrap_or(std::cmp::Ordering::Equal)
        });
        for (limit, pressure, [allowed, rejected, shadow]) in rows.iter().take(ROWS) {
            let name = if limit["shadow"] == true {
                format!("{} (shadow)", text(&limit["name"]))
            } else {
                text(&limit["name"]).to_owned()
            };
            let reject = format!("{:>9}", short(*rejected));
            lines.push(format!(
                "{:<24} {:<14} {:<14} {} {:>4.0}%  {:>9} {} {:>9}",
                fit(&name, 24),
                fit(text(&limit["by"]), 14),
                fit(text(&limit["rate"]), 14),
                meter(*pressure),
                pressure * 100.0,
                short(*allowed),
                if *rejected > 0.0 { paint.bad(&reject) } else { reject },
                short(*shadow),
            ));
        }
        more(lines, rows.len());
    }

    fn routes(&self, lines: &mut Vec<String>, paint: Paint) {
        lines.push(String::new());
        lines.push(paint.bold(&format!(
            "{:<39} {:<14} {:>9} {:>9} {:>9}",
            "route", "upstream", "all/s", "429/s", "5xx/s"
        )));
        let mut rows: Vec<_> = list(&self.now["routes"])
            .iter()
            .map(|route| {
                let answered = |wanted: fn(&str) -> bool| {
                    self.rate(|look| {
                        let same = |other: &&Value| other["name"] == route["name"];
                        let own = list(&look["routes"]).iter().find(same);
                        own.map_or(0.0, |own| statuses(&own["statuses"], wanted))
                    })
                };
                let rates = [
                    answered(|_| true),
                    answered(|status| status == "429"),
                    answered(|status| status.starts_with('5')),
                ];
                (route, rates)
            })
            .collect();
        rows.sort_by(|a, b| b.1[0].total_cmp(&a.1[0]));
        for (route, [all, rejected, failed]) in rows.iter().take(ROWS) {
            lines.push(format!(
                "{:<39} {:<14} {:>9} {:>9} {:>9}",
                fit(text(&route["name"]), 39),
                fit(text(&route["upstream"]), 14),
                short(*all),
                short(*rejected),
                short(*failed),
            ));
        }
        more(lines, rows.len());
    }

    fn callers(&self, lines: &mut Vec<String>, paint: Paint) {
        let top = &self.now["top"];
        lines.push(String::new());
        lines.push(paint.bold(&format!(
            "{:<50} {}",
            format!("busiest in {} min", number(&top["window"]) / 60.0),
            "most rejected"
        )));
        let ranked = |kind: &str| {
            let by = |by: &str| list(&top[kind][by]).iter();
            let mut all: Vec<_> = by("ip").chain(by("user")).chain(by("api_key")).collect();
            all.sort_by(|a, b| number(&b["count"]).total_cmp(&number(&a["count"])));
            let told = all.iter().take(ROWS).map(|caller| {
                format!(
                    "{:<38} {:>9}",
                    fit(text(&caller["caller"]), 38),
                    short(number(&caller["count"]))
                )
            });
            told.collect::<Vec<_>>()
        };
        let (busiest, rejected) = (ranked("busiest"), ranked("rejected"));
        for row in 0..busiest.len().max(rejected.len()) {
            let at = |column: &[String]| column.get(row).cloned().unwrap_or_default();
            lines.push(format!("{:<50} {}", at(&busiest), at(&rejected)).trim_end().to_owned());
        }
        let overrides = [("bans", "banned"), ("grants", "with a grant")];
        for (name, what) in overrides {
            if let Some(count @ 1..) = self.now[name].as_u64() {
                lines.push(format!("{count} {what}"));
            }
        }
    }

    /// How long the quickest share of what was timed between the looks took, in seconds.
    fn quantile(&self, share: f64, pick: impl for<'v> Fn(&'v Value) -> &'v Value) -> Option<f64> {
        let restarted = self.now["started"] != self.before["started"];
        let before = list(&pick(self.before)["buckets"]);
        let was = |bound: &Value| match before.iter().find(|bucket| bucket[0] == *bound) {
            Some(bucket) if !restarted => number(&bucket[1]),
            _ => 0.0,
        };
        let grown: Vec<(f64, f64)> = list(&pick(self.now)["buckets"])
            .iter()
            .map(|bucket| (number(&bucket[0]), number(&bucket[1]) - was(&bucket[0])))
            .filter(|(_, count)| *count > 0.0)
            .collect();
        let wanted = share * grown.iter().map(|(_, count)| count).sum::<f64>();
        let mut seen = 0.0;
        for (bound, count) in &grown {
            if seen + count >= wanted {
                // A bucket begins at four fifths of its bound, or above.
                let start = bound * 0.8;
                return Some(start + (bound - start) * (wanted - seen) / count);
            }
            seen += count;
        }
        None
    }
}

fn more(lines: &mut Vec<String>, rows: usize) {
    if let Some(more @ 1..) = rows.checked_sub(ROWS) {
        lines.push(format!("and {more} more"));
    }
}

/// Answers of all routes, and of none, with such a status.
fn answers(look: &Value, wanted: impl Fn(&str) -> bool + Copy) -> f64 {
    let routes = list(&look["routes"]).iter().map(|route| statuses(&route["statuses"], wanted));
    routes.sum::<f64>() + statuses(&look["unrouted"], wanted)
}

fn statuses(counts: &Value, wanted: impl Fn(&str) -> bool) -> f64 {
    let counts = counts.as_object().into_iter().flatten();
    counts.filter(|(status, _)| wanted(status)).map(|(_, count)| number(count)).sum()
}

fn sum(counts: &Value) -> f64 {
    statuses(counts, |_| true)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn meter(share: f64) -> String {
    let filled = (0..10).filter(|place| f64::from(*place) < share * 10.0).count();
    "█".repeat(filled) + &"·".repeat(10 - filled)
}

/// No wider than this.
fn fit(text: &str, width: usize) -> String {
    let plain = printable(text);
    match plain.char_indices().nth(width - 1) {
        Some((end, _)) if plain.chars().count() > width => format!("{}…", &plain[..end]),
        _ => plain,
    }
}

/// Cut to a width; colours take no room.
fn shortened(line: &str, width: usize) -> String {
    let (mut out, mut left, mut escape) = (String::new(), width, false);
    for c in line.chars() {
        if c == '\x1b' {
            escape = true;
        } else if escape {
            escape = c != 'm';
        } else if left == 0 {
            continue;
        } else {
            left -= 1;
        }
        out.push(c);
    }
    out
}

fn short(number: f64) -> String {
    // Nothing is nothing, whichever sign it has.
    match number + 0.0 {
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n if n >= 10.0 || n.fract() == 0.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

fn duration(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(s) if s < 1e-3 => format!("{:.0}µs", s * 1e6),
        Some(s) if s < 1.0 => format!("{:.1}ms", s * 1e3),
        Some(s) => format!("{s:.2}s"),
    }
}

fn age(seconds: f64) -> String {
    let mut out = String::new();
    let _ = match seconds.max(0.0) {
        s if s < 60.0 => write!(out, "{s:.0}s"),
        s if s < 3600.0 => write!(out, "{:.0}m", s / 60.0),
        s if s < 86_400.0 => write!(out, "{:.1}h", s / 3600.0),
        s => write!(out, "{:.1}d", s / 86_400.0),
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(now: f64, requests: u64, rejected: u64, buckets: &Value) -> Value {
        json!({
            "now": now, "started": 1.0, "version": "0.1.0", "state": "ready",
            "config": { "file": "g.yaml", "generation": 1, "loaded_at": 1.0, "last_reload": null },
            "process": { "in_flight": 3, "connections": 4, "cpu_seconds": now / 10.0 },
            "routes": [{ "name": "a\u{1b}[2J", "upstream": "app",
                         "statuses": { "200": requests, "429": rejected } }],
            "unrouted": {},
            "limits": [{ "name": "per-ip", "by": "ip", "rate": "10/minute", "pressure": 0.5,
                         "decisions": { "rejected": rejected } }],
            "latency": { "request": { "buckets": buckets } },
            "upstreams": [{ "name": "app", "endpoints": [{ "name": "x", "in_service": false }] }],
            "store": { "kind": "memory" },
            "top": { "window": 300, "busiest": { "ip": [{ "caller": "ip:1.2.3.4", "count": 7 }] } },
            "bans": 2,
        })
    }

    #[test]
    fn a_picture_tells_what_has_changed() {
        let before = look(10.0, 100, 0, &json!([[0.001, 100]]));
        let now = look(12.0, 180, 20, &json!([[0.001, 100], [0.002, 100]]));
        let frame = Frame { before: &before, now: &now };
        let text = frame.draw(200, usize::MAX, Paint::none());
        for part in [
            "requests 50/s  rejected 10/s (20.0%)",
            "cpu 10%",
            "whole 1.8ms 2.0ms 2.0ms",
            "0 of 1 in service",
            "out: x",
            "█████·····   50%",
            "ip:1.2.3.4",
            "2 banned",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "nobody draws on the operator's terminal");
        assert!(frame.draw(40, 10, Paint::none()).lines().all(|l| l.chars().count() <= 40));
    }
}
