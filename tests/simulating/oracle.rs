//! Every line that is rejected is one that a reckoning by brute force rejects, too.

use super::kit::{Asked, Lab, log, traffic};
use std::collections::{BTreeSet, HashMap};

/// Milliseconds.
type Time = u64;

/// What the file says, in the order in which limits are decided. Kept apart from the product's own
/// arithmetic: each remembers every request that it has let through.
const FILE: &str = "
identity: { trusted_proxies: [127.0.0.1], user: { header: X-User } }
limits:
  - { name: per-ip, by: ip, rate: 7/2s, burst: 5 }
  - { name: ceiling, by: global, rate: 30/7s, algorithm: gcra, burst: 17 }
routes:
  - name: a
    path: /a/*
    upstream: app
    limits:
      - { name: a-user, by: user, rate: 6/3s, algorithm: fixed_window }
      - { name: a-pair, by: [ip, user], rate: 5/4s, algorithm: sliding_log }
      - { name: dear, by: ip, rate: 11/5s, burst: 9, cost: 3 }
  - name: b
    path: /b/*
    upstream: app
    limits:
      - { name: b-ip, by: ip, rate: 9/4s, algorithm: sliding_window }
      - { name: busy, by: user, concurrency: 2 }
      - { name: anonymous, by: ip, unless: user, rate: 2/1s, algorithm: fixed_window }
  - { name: rest, path: /, upstream: app }
";

enum Rule {
    /// So many per so long, in a bucket of that size.
    Bucket(u64, Time, u64),
    Fixed(u64, Time),
    Log(u64, Time),
    Sliding(u64, Time),
    InFlight(u64),
}

struct Limit {
    name: &'static str,
    rule: Rule,
    cost: u64,
    key: fn(&Asked) -> Option<String>,
    /// Every admission of each caller: when, and until when it was in flight.
    admitted: HashMap<String, Vec<(Time, Time)>>,
}

impl Limit {
    /// Whether one more passes: all that was ever admitted is gone through again.
    fn passes(&self, key: &str, now: Time) -> bool {
        let none = Vec::new();
        let admitted = self.admitted.get(key).unwrap_or(&none);
        let count = |from: Time, to: Time| {
            admitted.iter().filter(|(at, _)| (from..to).contains(at)).count() as u64 * self.cost
        };
        match self.rule {
            Rule::Bucket(rate, window, size) => {
                // What is in the bucket, in parts of a token so small that nothing is rounded.
                let (mut level, mut last) = (0u64, 0);
                for (at, _) in admitted {
                    level = level.saturating_sub((at - last) * rate) + self.cost * window;
                    last = *at;
                }
                let level = level.saturating_sub((now - last) * rate);
                level + self.cost * window <= size * window
            }
            Rule::Fixed(most, window) => {
                let begins = now - now % window;
                count(begins, begins + window) + self.cost <= most
            }
            Rule::Log(most, window) => count(now - window + 1, now + 1) + self.cost <= most,
            Rule::Sliding(most, window) => {
                let begins = now - now % window;
                let before = count(begins - window, begins) * (window - now % window);
                before + (count(begins, begins + window) + self.cost) * window <= most * window
            }
            Rule::InFlight(most) => {
                (admitted.iter().filter(|(_, until)| *until > now).count() as u64) < most
            }
        }
    }
}

fn of_path(path: &str) -> &'static [&'static str] {
    match path.split('/').nth(1) {
        Some("a") => &["per-ip", "dear", "a-user", "a-pair", "ceiling"],
        Some("b") => &["per-ip", "b-ip", "anonymous", "busy", "ceiling"],
        _ => &["per-ip", "ceiling"],
    }
}

/// The lines, from one, that are rejected, and by which limit.
fn by_brute_force(lines: &[Asked]) -> BTreeSet<(u64, String)> {
    let ip: fn(&Asked) -> Option<String> = |asked| Some(asked.ip.clone());
    let user: fn(&Asked) -> Option<String> = |asked| asked.user.clone();
    let limit = |name, rule, cost, key| Limit { name, rule, cost, key, admitted: HashMap::new() };
    let mut limits = [
        limit("per-ip", Rule::Bucket(7, 2000, 5), 1, ip),
        limit("ceiling", Rule::Bucket(30, 7000, 17), 1, |_| Some(String::new())),
        limit("a-user", Rule::Fixed(6, 3000), 1, user),
        limit("a-pair", Rule::Log(5, 4000), 1, |asked| {
            asked.user.as_ref().map(|user| format!("{} {user}", asked.ip))
        }),
        limit("dear", Rule::Bucket(11, 5000, 9), 3, ip),
        limit("b-ip", Rule::Sliding(9, 4000), 1, ip),
        limit("busy", Rule::InFlight(2), 1, user),
        limit("anonymous", Rule::Fixed(2, 1000), 1, |asked| {
            asked.user.is_none().then(|| asked.ip.clone())
        }),
    ];
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by_key(|line| lines[*line].time);
    let mut rejected = BTreeSet::new();
    for line in order {
        let asked = &lines[line];
        let mut applying: Vec<&mut Limit> = limits
            .iter_mut()
            .filter(|limit| of_path(&asked.path).contains(&limit.name))
            .filter(|limit| (limit.key)(asked).is_some())
            .collect();
        applying.sort_by_key(|limit| of_path(&asked.path).iter().position(|n| *n == limit.name));
        let key = |limit: &Limit| (limit.key)(asked).unwrap();
        let refuses = |limit: &&&mut Limit| !limit.passes(&key(limit), asked.time);
        if let Some(limit) = applying.iter().find(refuses) {
            rejected.insert((line as u64 + 1, limit.name.to_owned()));
            continue;
        }
        for limit in applying {
            let key = key(limit);
            let until = asked.time + asked.milliseconds;
            limit.admitted.entry(key).or_default().push((asked.time, until));
        }
    }
    rejected
}

#[test]
fn every_rejected_line_is_rejected_by_brute_force_too() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    for seed in 0..8 {
        // Some traffic is thin, some is far too much.
        let lines = traffic(seed, 1200, 20 + 40 * (seed % 4));
        lab.write("access.log", log(&lines, Asked::own));
        let expected = by_brute_force(&lines);
        assert!((50..1150).contains(&expected.len()), "seed {seed}: {}", expected.len());
        assert_eq!(lab.rejected(&["access.log"]), expected, "seed {seed}");
    }
}

#[test]
fn lines_that_are_late_by_seconds_are_put_in_order() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    for seed in 20..23 {
        let mut random = fastrand::Rng::with_seed(seed);
        let lines = traffic(seed, 1200, 50);
        let mut written: Vec<(u64, Asked)> =
            lines.into_iter().map(|asked| (asked.time + random.u64(0..5000), asked)).collect();
        written.sort_by_key(|(when, _)| *when);
        let lines: Vec<Asked> = written.into_iter().map(|(_, asked)| asked).collect();
        lab.write("access.log", log(&lines, Asked::own));
        assert_eq!(lab.rejected(&["access.log"]), by_brute_force(&lines), "seed {seed}");
        let report = lab.json(&["simulate", "access.log"]);
        assert_eq!(report["logs"]["late"], 0);
    }
}

#[test]
fn logs_of_several_gateways_are_one_log() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    let mut random = fastrand::Rng::with_seed(7);
    let lines = traffic(7, 3000, 40);
    let expected = by_brute_force(&lines);
    let mut parts = [String::new(), String::new(), String::new()];
    for asked in &lines {
        parts[random.usize(0..3)].push_str(&asked.own());
    }
    for (index, part) in parts.iter().enumerate() {
        lab.write(&format!("{index}.log"), part);
    }
    let report = lab.json(&["simulate", "2.log", "0.log", "1.log"]);
    assert_eq!(report["requests"]["rejected"], expected.len());
    for limit in report["limits"].as_array().unwrap() {
        let name = limit["limit"].as_str().unwrap();
        let first = expected.iter().filter(|(_, by)| by == name).count() as u64;
        assert!(limit["rejected"].as_u64().unwrap() >= first, "{name} may reject more, if later");
    }
}
