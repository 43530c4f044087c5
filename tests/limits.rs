//! Limits: what is admitted, what is rejected, and what callers are told.

use crate::common::{Backend, Gateway, START, limited};
use std::time::Duration;

const SECOND: u64 = 1_000_000;

fn key_of(text: &str) -> String {
    sluice::digest::sha256_hex(text.as_bytes())
}

#[test]
fn the_headers_tell_the_truth() {
    let backend = Backend::start();
    let gateway =
        Gateway::start(&limited(&backend, "[{ name: per-ip, by: ip, rate: 60/minute, burst: 3 }]"));
    for remaining in [2, 1, 0] {
        let reply = gateway.get("/");
        assert_eq!(reply.status, 200);
        assert_eq!(reply.number("x-ratelimit-limit"), 60);
        assert_eq!(reply.number("x-ratelimit-remaining"), remaining);
        assert_eq!(reply.number("x-ratelimit-reset"), START / SECOND + 3 - remaining);
        assert_eq!(reply.header("ratelimit-policy"), Some("\"per-ip\";q=60;w=60"));
        let expected = format!("\"per-ip\";r={remaining};t=1");
        assert_eq!(reply.header("ratelimit"), Some(expected.as_str()));
    }
    let reply = gateway.get("/");
    assert_eq!(reply.status, 429);
    let names: Vec<_> = reply.headers.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "retry-after",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "ratelimit-policy",
        "ratelimit",
        "cache-control",
        "content-length",
        "date",
    ];
    assert_eq!(names, expected, "nothing else of weight");
    assert_eq!(reply.number("retry-after"), 1);
    assert_eq!(reply.number("x-ratelimit-remaining"), 0);
    assert_eq!(reply.number("content-length"), 0);
    assert_eq!(backend.seen().len(), 3);

    gateway.advance(Duration::from_micros(999_999));
    assert_eq!(gateway.get("/").status, 429, "a moment too early");
    gateway.advance(Duration::from_micros(1));
    assert_eq!(gateway.get("/").status, 200, "whoever waits it is admitted");
}

#[test]
fn header_styles_and_jitter_are_configurable() {
    let backend = Backend::start();
    for (style, x, ietf) in [
        ("both", true, true),
        ("x-ratelimit", true, false),
        ("ietf", false, true),
        ("none", false, false),
    ] {
        let yaml = limited(&backend, "[{ by: ip, rate: 1/hour }]")
            .replace("retry_jitter: 0%", &format!("style: {style}, retry_jitter: 50%"));
        let gateway = Gateway::start(&yaml);
        for status in [200, 429] {
            let reply = gateway.get("/");
            assert_eq!(reply.status, status);
            assert_eq!(reply.header("x-ratelimit-limit").is_some(), x, "{style}");
            assert_eq!(reply.header("ratelimit").is_some(), ietf, "{style}");
        }
        let waits: Vec<_> = (0..30).map(|_| gateway.get("/").number("retry-after")).collect();
        assert!(waits.iter().all(|wait| (3600..=5400).contains(wait)), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
    }
}

#[test]
fn layers_are_decided_together_and_all_are_charged_or_none() {
    let backend = Backend::start();
    let yaml = format!(
        "headers: {{ retry_jitter: 0% }}
identity:
  api_key: {{ keys: [{{ id: acme, sha256: {} }}] }}
limits: [{{ name: per-ip, by: ip, rate: 10/minute }}]
upstreams: {{ app: 'http://{}' }}
routes:
  - path: /
    upstream: app
    limits:
      - {{ name: everybody, by: global, rate: 100/hour }}
      - {{ name: per-key, by: api_key, rate: 2/hour }}
",
        key_of("secret"),
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let key = [("x-api-key", "secret")];
    assert_eq!(gateway.statuses("/", &key, 2), [200, 200]);
    for _ in 0..5 {
        let reply = gateway.get_with("/", &key);
        assert_eq!(reply.status, 429);
        assert_eq!(reply.number("x-ratelimit-limit"), 2, "the limit that rejects speaks");
        assert_eq!(reply.number("retry-after"), 1800);
        let told = "\"per-ip\";r=8;t=6, \"per-key\";r=0;t=1800";
        assert_eq!(reply.header("ratelimit"), Some(told), "the ip layer is as it was");
    }
    let reply = gateway.get("/");
    assert_eq!((reply.status, reply.number("x-ratelimit-remaining")), (200, 7));
}

#[test]
fn retry_after_is_the_latest_of_those_that_reject() {
    let backend = Backend::start();
    let gateway = Gateway::start(&limited(
        &backend,
        "[{ name: slow, by: ip, rate: 1/hour }, { name: fast, by: 'header:x-app', rate: 1/minute }]",
    ));
    let app = [("x-app", "a")];
    assert_eq!(gateway.get_with("/", &app).status, 200);
    let reply = gateway.get_with("/", &app);
    assert_eq!((reply.status, reply.number("retry-after")), (429, 3600));
    assert_eq!(reply.number("x-ratelimit-limit"), 1);
    gateway.advance(Duration::from_secs(3600));
    assert_eq!(gateway.get_with("/", &app).status, 200);
}

#[test]
fn a_global_limit_answers_503_and_says_nothing_of_itself() {
    let backend = Backend::start();
    let gateway = Gateway::start(&limited(&backend, "[{ by: global, rate: 2/minute }]"));
    let reply = gateway.get("/");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-ratelimit-limit"), None);
    assert_eq!(reply.header("ratelimit"), None);
    gateway.get("/");
    let reply = gateway.get("/");
    assert_eq!((reply.status, reply.number("retry-after")), (503, 30));
    let names: Vec<_> = reply.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["retry-after", "cache-control", "content-length", "date"]);
}

#[test]
fn combinations_and_headers_have_a_counter_each() {
    let backend = Backend::start();
    let gateway = Gateway::start(&limited(
        &backend,
        "[{ by: ['header:x-tenant', ip], rate: 1/hour }, { by: 'header:x-app', rate: 2/hour }]",
    ));
    let get = |tenant: &str, app: &str| {
        gateway.get_with("/", &[("x-tenant", tenant), ("x-app", app)]).status
    };
    assert_eq!([get("a", "1"), get("a", "1"), get("b", "1"), get("c", "1")], [200, 429, 200, 429]);
    assert_eq!(get("c", "2"), 200);
    assert_eq!(gateway.statuses("/", &[("x-tenant", "c")], 2), [429, 429]);
    assert_eq!(gateway.statuses("/", &[], 5), [200; 5], "no attribute, no limit");
}

#[test]
fn unless_exempts_those_who_have_something_better() {
    let backend = Backend::start();
    let yaml = limited(&backend, "[{ name: anonymous, by: ip, unless: [api_key], rate: 1/hour }]");
    let identity =
        format!("identity: {{ api_key: {{ keys: [{{ id: acme, sha256: {} }}] }} }}\n", key_of("k"));
    let gateway = Gateway::start(&(identity + &yaml));
    assert_eq!(gateway.statuses("/", &[("x-api-key", "k")], 3), [200; 3]);
    assert_eq!(gateway.statuses("/", &[], 2), [200, 429]);
}

#[test]
fn a_request_can_cost_more_than_one() {
    let backend = Backend::start();
    let gateway =
        Gateway::start(&limited(&backend, "[{ by: ip, rate: 10/minute, burst: 11, cost: 5 }]"));
    let reply = gateway.get("/");
    assert_eq!(reply.number("x-ratelimit-remaining"), 1);
    assert_eq!(gateway.get("/").number("x-ratelimit-remaining"), 0);
    let reply = gateway.get("/");
    assert_eq!((reply.status, reply.number("retry-after")), (429, 24));
}

#[test]
fn a_shadow_limit_counts_and_never_rejects() {
    let backend = Backend::start();
    let gateway = Gateway::start(&limited(
        &backend,
        "[{ name: live, by: ip, rate: 4/hour }, { name: new, by: ip, rate: 2/hour, mode: shadow }]",
    ));
    assert_eq!(gateway.statuses("/", &[], 5), [200, 200, 200, 200, 429]);
    let metrics = &gateway.server().gateway().metrics;
    let (live, new) = (metrics.limit("live", ""), metrics.limit("new", ""));
    assert_eq!((live.total("allowed"), live.total("rejected")), (4, 1));
    assert_eq!((new.total("allowed"), new.total("shadow_rejected")), (2, 2), "of those admitted");
    assert!(!gateway.get("/").header("ratelimit").unwrap().contains("new"));
}

#[test]
fn plans_decide_where_the_limit_says_so() {
    let backend = Backend::start();
    let yaml = format!(
        "plans:
  free: {{ rate: 60/minute, burst: 2, quota: 3/day }}
  pro: {{ rate: 60/minute, burst: 4, quota: 100/day }}
default_plan: free
identity:
  api_key:
    query: key
    keys:
      - {{ id: a, sha256: {}, plan: pro }}
      - {{ id: b, sha256: {} }}
upstreams: {{ app: 'http://{}' }}
routes:
  - path: /
    upstream: app
    limits:
      - {{ name: rate, by: api_key, rate: plan }}
      - {{ name: quota, by: [api_key, ip], rate: plan.quota }}
",
        key_of("aa"),
        key_of("bb"),
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    assert_eq!(gateway.statuses("/?key=aa", &[], 5), [200, 200, 200, 200, 429]);
    assert_eq!(gateway.statuses("/?x=1&key=bb", &[], 3), [200, 200, 429]);
    gateway.advance(Duration::from_secs(60));
    let reply = gateway.get("/?key=bb");
    assert_eq!(reply.header("ratelimit-policy"), Some("\"rate\";q=60;w=60, \"quota\";q=3;w=86400"));
    assert_eq!(gateway.get("/?key=bb").status, 429, "the quota is used up");
    assert_eq!(gateway.statuses("/", &[], 9), [200; 9], "without a key, neither applies");
}

#[test]
fn exempt_callers_are_not_limited_but_counted() {
    let backend = Backend::start();
    let yaml = format!(
        "exempt: {{ ips: [192.0.2.0/24], api_keys: [nightly] }}
identity:
  trusted_proxies: [127.0.0.1]
  api_key: {{ keys: [{{ id: nightly, sha256: {} }}] }}
{}",
        key_of("night"),
        limited(
            &backend,
            "[{ name: g, by: global, rate: 1/hour }, { name: i, by: ip, rate: 1/hour }]"
        )
    );
    let gateway = Gateway::start(&yaml);
    assert_eq!(gateway.statuses("/", &[("x-forwarded-for", "192.0.2.9")], 3), [200; 3]);
    assert_eq!(gateway.statuses("/", &[("x-api-key", "night")], 3), [200; 3]);
    assert_eq!(gateway.statuses("/", &[], 2), [200, 429]);
    assert_eq!(gateway.server().gateway().metrics.limit("g", "").total("exempt"), 6);
}

#[test]
fn callers_on_many_connections_are_admitted_exactly_as_often_as_allowed() {
    let backend = Backend::start();
    let gateway = Gateway::start(&limited(&backend, "[{ by: ip, rate: 100/hour }]"));
    let admitted: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut connection = gateway.connect();
                    (0..50).filter(|_| connection.get("/").status == 200).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(admitted, 100);
}

#[test]
fn a_bad_request_is_charged_to_its_address_too() {
    let backend = Backend::start();
    let yaml = format!(
        "limits: [{{ name: all, by: ip, rate: 3/hour }}]\n{}",
        limited(&backend, "[{ by: global, rate: 9/hour }]")
    );
    let gateway = Gateway::start(&yaml);
    assert_eq!(gateway.get("/%zz").number("x-ratelimit-remaining"), 2);
    assert_eq!(gateway.raw(b"TRACE / HTTP/1.1\r\nhost: a\r\n\r\n").status, 405);
    assert_eq!(gateway.get("/").number("x-ratelimit-remaining"), 0);
    assert_eq!(gateway.get("/%zz").status, 429);
}

#[test]
fn any_number_of_limits_can_guard_a_route() {
    let backend = Backend::start();
    let limits: Vec<String> = (0..9)
        .map(|n| format!("{{ name: l{n}, by: 'header:x-{n}', rate: {}/hour }}", 20 - n))
        .collect();
    let gateway = Gateway::start(&limited(&backend, &format!("[{}]", limits.join(", "))));
    let names: Vec<String> = (0..9).map(|n| format!("x-{n}")).collect();
    let headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "v")).collect();
    let statuses = gateway.statuses("/", &headers, 14);
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 12);
    let reply = gateway.get_with("/", &headers);
    assert_eq!(reply.number("x-ratelimit-limit"), 12);
    assert_eq!(reply.header("ratelimit").unwrap().split(", ").count(), 9);
    assert!(reply.header("ratelimit").unwrap().starts_with("\"l0\";r=8;"), "{reply:?}");
}

#[test]
fn a_candidate_is_tried_beside_the_live_limit() {
    let backend = Backend::start();
    let limit = "[{ name: live, by: ip, rate: 5/hour, algorithm: sliding_log, candidate: { rate: 2/hour } }]";
    let gateway = Gateway::start(&limited(&backend, limit));
    assert_eq!(gateway.statuses("/", &[], 6), [200, 200, 200, 200, 200, 429]);
    let metrics = &gateway.server().gateway().metrics;
    let candidate = metrics.limit("live/candidate", "");
    assert_eq!((candidate.total("allowed"), candidate.total("shadow_rejected")), (2, 3));
    assert_eq!(metrics.limit("live", "").total("rejected"), 1);
    assert_eq!(gateway.get("/").header("ratelimit-policy"), Some("\"live\";q=5;w=3600"));
}

#[test]
fn grpc_callers_are_refused_in_their_own_terms() {
    let backend = Backend::start();
    let gateway = Gateway::start(&limited(&backend, "[{ by: ip, rate: 1/hour }]"));
    for (kind, status) in [
        ("application/grpc", 200),
        ("application/grpc+proto", 200),
        ("application/grpc;charset=utf-8", 200),
        ("application/grpc-web", 429),
        ("application/json", 429),
    ] {
        gateway.get("/");
        let mut client = crate::common::http2::Client::open(gateway.address());
        let request = http::Request::post("http://a.test/").header("content-type", kind);
        let reply = client.ask(request.body(()).unwrap());
        assert_eq!(reply.status, status, "{kind}");
        assert!(reply.head_only);
        assert!(reply.header("retry-after").is_some());
        if status == 200 {
            assert_eq!(reply.header("grpc-status"), Some("8"), "RESOURCE_EXHAUSTED");
            assert_eq!(reply.header("content-type"), Some("application/grpc"));
        }
    }
}

#[test]
fn whoever_ignores_too_many_rejects_is_banned_for_a_while() {
    let backend = Backend::start();
    let yaml = format!(
        "admin: 127.0.0.1:0
headers: {{ retry_jitter: 0% }}
identity: {{ trusted_proxies: [127.0.0.1] }}
upstreams: {{ app: 'http://{}' }}
routes:
  - {{ path: /, upstream: app }}
  - path: /login
    upstream: app
    limits: [{{ name: login, by: ip, rate: 2/minute, penalty: {{ after: 3 rejects in 1m, for: 10m }} }}]
",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let eve = [("x-forwarded-for", "203.0.113.7")];
    assert_eq!(gateway.statuses("/login", &eve, 4), [200, 200, 429, 429]);
    assert_eq!(gateway.get_with("/", &eve).status, 200, "two rejects are tolerated");
    assert_eq!(gateway.get_with("/login", &eve).status, 429, "the third is one too many");
    let reply = gateway.get_with("/", &eve);
    assert_eq!((reply.status, reply.number("retry-after")), (429, 600), "banned from everything");
    assert_eq!(reply.header("ratelimit"), None);
    assert_eq!(gateway.get("/login").status, 200, "others are not");

    gateway.reload(&yaml.replace("2/minute", "200/minute")).unwrap();
    assert_eq!(gateway.get_with("/", &eve).status, 429, "a ban survives a reload");
    gateway.advance(Duration::from_secs(599));
    assert_eq!(gateway.get_with("/", &eve).status, 429);
    gateway.advance(Duration::from_secs(1));
    assert_eq!(gateway.get_with("/login", &eve).status, 200, "and ends");
    assert_eq!(gateway.server().gateway().metrics.limit("login", "").total("banned"), 3);
}

#[test]
fn a_ban_can_be_seen_and_lifted_by_the_operator() {
    let backend = Backend::start();
    let limit =
        "[{ name: x, by: ip, rate: 1/minute, penalty: { after: 2 rejects in 1m, for: 1h } }]";
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, limit)));
    assert_eq!(gateway.statuses("/", &[], 4), [200, 429, 429, 429]);
    let admin = |method: &str, path: &str| {
        crate::common::Connection::to_operator(gateway.admin()).send(method, path, &[], b"")
    };
    let page = admin("GET", "/api/v1/bans");
    let told: serde_json::Value = serde_json::from_str(page.text()).unwrap();
    let ban = &told["bans"][0];
    assert_eq!((&ban["caller"], &ban["by"]), (&"ip:127.0.0.1".into(), &"penalty".into()));
    assert_eq!((&ban["limit"], &ban["seconds"]), (&"x".into(), &3600.into()));
    assert!(admin("GET", "/metrics").text().contains("sluice_bans 1\n"));
    assert_eq!(admin("DELETE", "/api/v1/bans?caller=ip:9.9.9.9").status, 404);
    assert_eq!(admin("DELETE", "/api/v1/bans").status, 400);
    assert_eq!(admin("DELETE", "/api/v1/bans?caller=ip%3A127.0.0.1").status, 200);
    gateway.advance(Duration::from_secs(60));
    assert_eq!(gateway.get("/").status, 200);
}
