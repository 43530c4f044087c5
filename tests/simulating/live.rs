//! What a gateway did, and what is simulated from its own log, is the same.

use super::kit::Lab;
use crate::common::backend::Seen;
use crate::common::{Backend, Gateway, eventually};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Answers with the cost that the request's path names: `/api/cost/7`.
fn priced() -> Backend {
    Backend::answering(|seen: &Seen| {
        let cost = seen.target.rsplit('/').next().unwrap_or("1");
        format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-cost: {cost}\r\n\r\nok").into_bytes()
    })
}

fn yaml(backend: &Backend) -> String {
    let [free, pro] = [b"free-key", b"gold-key"].map(|key| sluice::digest::sha256_hex(key));
    format!(
        "logging: {{ access: {{ sample: {{ rejected: 100% }}, headers: X-Tenant }} }}
identity:
  trusted_proxies: [127.0.0.1]
  ipv6_prefix: 64
  user: {{ header: X-User-Id }}
  api_key: {{ keys: [{{ id: fred, sha256: '{free}' }}, {{ id: gold, plan: pro, sha256: '{pro}' }}] }}
plans: {{ free: {{ rate: 10/minute, burst: 2 }}, pro: {{ rate: 20/minute, burst: 3 }} }}
default_plan: free
exempt: {{ ips: [203.0.113.99] }}
upstreams: {{ app: 'http://{}' }}
limits:
  - {{ name: per-ip, by: ip, rate: 40/minute, burst: 9, penalty: {{ after: 25 rejects in 30s, for: 10s }} }}
  - {{ name: ceiling, by: global, rate: 8/s, algorithm: fixed_window }}
routes:
  - name: api
    hosts: [api.example.com]
    path: /api/*
    methods: [GET]
    upstream: app
    limits:
      - {{ name: by-plan, by: api_key, rate: plan }}
      - {{ name: anonymous, by: ip, unless: [user, api_key], rate: 3/10s, algorithm: sliding_log }}
      - {{ name: tokens, by: user, rate: 25/20s, algorithm: sliding_window, cost: {{ response_header: X-Cost, reserve: 2 }} }}
      - {{ name: tenants, by: header:X-Tenant, rate: 5/5s, algorithm: fixed_window, mode: shadow }}
  - {{ name: keys, path: /keys, upstream: app, require: api_key }}
  - {{ name: rest, path: /rest/*, upstream: app }}
",
        backend.address()
    )
}

/// What a line of the gateway's own log says of a limit that turned the request away.
fn turned_away(line: &Value) -> Option<String> {
    let time = line["time"].as_str().unwrap();
    match (line["limit"].as_str(), line["error"].as_str()) {
        (Some(limit), _) => Some(format!("{time} {limit}")),
        (None, Some(why)) if why.starts_with("banned") => Some(format!("{time} banned")),
        _ => None,
    }
}

#[test]
fn what_a_gateway_rejected_is_what_is_rejected_of_its_log() {
    let backend = priced();
    let gateway = Gateway::start(&yaml(&backend));
    let mut random = fastrand::Rng::with_seed(3);
    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    let requests = 1500;
    for _ in 0..requests {
        // Two minutes and a half in all; now and then nobody comes for some seconds.
        let pause = if random.u8(0..100) == 0 { 4000 } else { random.u64(1..130) };
        gateway.advance(Duration::from_millis(pause));
        let ip = match random.u8(0..12) {
            0 => "203.0.113.99".to_owned(),
            1 => format!("2001:db8::{:x}", random.u8(..)),
            n => format!("203.0.113.{}", n / 3),
        };
        let mut headers = vec![("x-forwarded-for", ip)];
        if random.bool() {
            headers.push(("x-user-id", format!("user \"{}\"", random.u8(0..3))));
        }
        match random.u8(0..6) {
            0 => headers.push(("x-api-key", "free-key".to_owned())),
            1 => headers.push(("x-api-key", "gold-key".to_owned())),
            2 => headers.push(("x-api-key", "wrong".to_owned())),
            _ => {}
        }
        if random.bool() {
            headers.push(("x-tenant", format!("t{}", random.u8(0..2))));
        }
        let host = if random.u8(0..4) == 0 { "other.example.com" } else { "API.example.com:8080" };
        headers.push(("host", host.to_owned()));
        let path = match random.u8(0..8) {
            0 => "/keys".to_owned(),
            1 => "/rest/%7Ea?q=1".to_owned(),
            2 => "/nowhere".to_owned(),
            _ => format!("/api/cost/{}", random.u8(0..9)),
        };
        let method = if random.u8(0..9) == 0 { "POST" } else { "GET" };
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let reply = gateway.send(method, &path, &headers, b"");
        *statuses.entry(reply.status).or_default() += 1;
    }
    let lines = gateway.log.wait_for(requests);
    let expected: BTreeSet<String> = lines.iter().filter_map(turned_away).collect();
    for status in [200, 401, 404, 405, 429, 503] {
        assert!(statuses.get(&status).is_some_and(|count| *count > 5), "{status}: {statuses:?}");
    }
    for limit in ["per-ip", "ceiling", "by-plan", "anonymous", "tokens", "banned"] {
        let count = expected.iter().filter(|reject| reject.ends_with(limit)).count();
        assert!(count > 3, "{limit} has rejected {count}");
    }

    let lab = Lab::new();
    lab.write("access.log", gateway.log.text());
    let path = gateway.path();
    let arguments = ["-c", path.to_str().unwrap(), "access.log", "--rejected", "r.jsonl"];
    let report = lab.json(&[&["simulate"], &arguments[..]].concat());
    let rejected: BTreeSet<String> = lab
        .read("r.jsonl")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| {
            let by =
                if line["banned"] == true { "banned" } else { line["limit"].as_str().unwrap() };
            format!("{} {by}", line["time"].as_str().unwrap())
        })
        .collect();
    assert_eq!(rejected, expected);
    let pathless = lines.iter().filter(|line| line["path"].is_null()).count();
    let warnings = report["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let told = format!("{pathless} lines of banned addresses do not tell what was asked for");
    assert!(warnings[0].as_str().unwrap().starts_with(&told), "{warnings:?}");
    assert_eq!(report["requests"]["logged_429"], statuses[&429]);
    for status in [401, 404, 405] {
        assert_eq!(report["requests"]["refused"][status.to_string()], statuses[&status]);
    }

    // The shadow would have rejected as often as the gateway's own metrics say.
    let metrics = gateway.server().gateway().metrics.limit("tenants", "").total("shadow_rejected");
    let shadow = report["limits"].as_array().unwrap().iter().find(|l| l["limit"] == "tenants");
    assert_eq!(shadow.unwrap()["rejected"], metrics);
}

#[test]
fn the_same_in_real_time_and_from_many_connections() {
    let backend = Backend::start();
    let gateway = Gateway::start_in_real_time(&format!(
        "logging: {{ access: {{ sample: {{ rejected: 100% }} }} }}
identity: {{ trusted_proxies: [127.0.0.1] }}
upstreams: {{ app: 'http://{}' }}
routes:
  - name: all
    path: /
    upstream: app
    limits:
      - {{ name: windows, by: ip, rate: 20/1s, algorithm: fixed_window }}
      - {{ name: bucket, by: ip, rate: 15/1s, burst: 10 }}
",
        backend.address()
    ));
    let requests: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|caller| {
                let gateway = &gateway;
                scope.spawn(move || {
                    let mut connection = gateway.connect();
                    let ip = format!("203.0.113.{caller}");
                    let began = Instant::now();
                    let mut count = 0;
                    while began.elapsed() < Duration::from_secs(3) {
                        connection.send("GET", "/", &[("x-forwarded-for", &ip)], b"");
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    eventually("every line", || (gateway.log.text().lines().count() == requests).then_some(()));
    let mut live: BTreeMap<String, i64> = BTreeMap::new();
    for line in gateway.log.lines().iter().filter(|line| line["status"] == 429) {
        *live.entry(format!("ip:{}", line["ip"].as_str().unwrap())).or_default() += 1;
    }
    let lab = Lab::new();
    lab.write("access.log", gateway.log.text());
    let report = lab.json(&["simulate", "-c", gateway.path().to_str().unwrap(), "access.log"]);
    assert_eq!(report["rejected"].as_array().unwrap().len(), 4);
    for caller in report["rejected"].as_array().unwrap() {
        let (seen, simulated) = (live[caller["caller"].as_str().unwrap()], &caller["rejected"]);
        // Times in the log are whole milliseconds: a token may come back on the other side of one,
        // for each of the few that come back between two whole buckets.
        let apart = (simulated.as_i64().unwrap() - seen).abs();
        assert!(apart <= 2, "{caller}: {seen} live");
    }
}
