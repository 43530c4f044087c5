//! The admin API: who may use it, what it tells, what it does.

use crate::common::operator::Operator;
use crate::common::{Backend, Connection, Gateway, eventually, limited};
use boon::{Compiler, Schemas};
use serde_json::{Value, json};
use std::time::Duration;

fn start(limits: &str) -> (Backend, Gateway, Operator) {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, limits)));
    let operator = Operator::of(&gateway);
    (backend, gateway, operator)
}

/// With users, keys, plans and secrets.
fn rich(backend: &Backend) -> String {
    format!(
        "admin: {{ address: '127.0.0.1:0', token: s3cret-token }}\n\
         headers: {{ retry_jitter: 0% }}\n\
         identity:\n  trusted_proxies: [127.0.0.1]\n  user: {{ header: X-User-Id }}\n  \
           api_key: {{ keys: [{{ id: acme, plan: pro, sha256: '{}' }}] }}\n\
         plans: {{ free: {{ rate: 2/minute }}, pro: {{ rate: 4/minute }} }}\n\
         default_plan: free\n\
         limits: [{{ name: per-ip, by: ip, rate: 100/minute }}]\n\
         upstreams: {{ app: 'http://{}' }}\n\
         routes:\n  - path: /\n    name: all-paths\n    upstream: app\n    \
           request_headers: {{ set: {{ Authorization: Bearer backend-secret }} }}\n    \
           limits: [{{ name: plan, by: api_key, rate: plan }}, {{ name: pair, by: [user, ip], rate: 3/minute }}]\n",
        sluice::digest::sha256_hex(b"acme-key"),
        backend.address()
    )
}

const TOKEN: (&str, &str) = ("authorization", "Bearer s3cret-token");
const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn every_answer_is_as_it_is_described() {
    let backend = Backend::start();
    let gateway = Gateway::start(&rich(&backend).replace(", token: s3cret-token", ""));
    let operator = Operator::of(&gateway);
    gateway.statuses("/", &[("x-api-key", "acme-key"), ("x-user-id", "ada")], 6);
    gateway.get("/");
    assert!(gateway.reload("nonsense").is_err());
    let api = operator.get("/api/v1/openapi.json");
    let fits = |method: &str, path: &str, value: &Value| {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("http://api/openapi.json", api.clone()).unwrap();
        let at = format!(
            "http://api/openapi.json#/paths/{}/{method}/responses/200/content/application~1json/schema",
            path.replace('/', "~1")
        );
        let index = compiler.compile(&at, &mut schemas).unwrap();
        if let Err(error) = schemas.validate(value, index) {
            panic!("{method} {path}: {error:#}\n{value:#}");
        }
    };
    let act = |method: &str, path: &str, query: &str, body: Option<Value>| {
        let (status, value) = operator.ask(method, &format!("{path}{query}"), body.as_ref());
        assert_eq!(status, 200, "{value}");
        fits(&method.to_lowercase(), path, &value);
    };
    act("POST", "/api/v1/bans", "", Some(json!({ "caller": "ip:9.9.9.9", "for": "1h" })));
    let grant = json!({ "caller": "api_key:acme", "for": "1h", "rate": "x2", "limit": "plan" });
    act("POST", "/api/v1/grants", "", Some(grant));
    for path in ["status", "config", "limits", "live", "top", "bans", "grants", "openapi.json"] {
        act("GET", &format!("/api/v1/{path}"), "", None);
    }
    act("GET", "/api/v1/callers", "?caller=acme&user=ada&ip=127.0.0.1", None);
    act("POST", "/api/v1/callers/reset", "", Some(json!({ "caller": "ip:127.0.0.1" })));
    act("DELETE", "/api/v1/bans", "?caller=ip:9.9.9.9", None);
    act("DELETE", "/api/v1/grants", "?caller=api_key:acme", None);
    act("POST", "/api/v1/drain", "", Some(json!({})));
    act("DELETE", "/api/v1/drain", "", None);
}

#[test]
fn the_configuration_in_force_is_shown_without_its_secrets() {
    let backend = Backend::start();
    let gateway = Gateway::start(&rich(&backend));
    let operator = Operator::of(&gateway);
    let page = operator.send("GET", "/api/v1/config", &[TOKEN], "");
    let told: Value = serde_json::from_str(page.text()).unwrap();
    assert_eq!(told["config"]["plans"]["pro"]["rate"], "4/minute");
    assert_eq!(told["config"]["limits"][0]["name"], "per-ip");
    assert_eq!(told["generation"], 1);
    let hash = sluice::digest::sha256_hex(b"acme-key");
    for secret in ["s3cret-token", "backend-secret", hash.as_str()] {
        assert!(!page.text().contains(secret), "{secret} in {}", page.text());
    }
}

#[test]
fn a_caller_can_be_looked_up_and_nothing_is_charged() {
    let backend = Backend::start();
    let gateway = Gateway::start(&rich(&backend).replace(", token: s3cret-token", ""));
    let operator = Operator::of(&gateway);
    let headers = [("x-api-key", "acme-key"), ("x-user-id", "ada"), ("x-forwarded-for", "1.2.3.4")];
    gateway.statuses("/", &headers, 3);
    for _ in 0..5 {
        let plan = operator.limit("acme", "plan");
        assert_eq!((&plan["remaining"], &plan["used"]), (&1.into(), &3.into()));
        assert_eq!((&plan["capacity"], &plan["rate"]), (&4.into(), &"4/minute".into()));
        assert_eq!((&plan["key"], &plan["allowed"]), (&"api_key:acme".into(), &true.into()));
    }
    assert_eq!(operator.limit("1.2.3.4", "per-ip")["used"], 3);
    assert_eq!(operator.limit("user:ada&ip=1.2.3.4", "pair")["remaining"], 0);
    let page = operator.get("/api/v1/callers?caller=user:ada&ip=1.2.3.4");
    assert_eq!(page["caller"]["user"], "ada");
    assert_eq!(page["limits"].as_array().unwrap().len(), 2, "not that of keys: {page}");
    assert_eq!(operator.limit("user:ada&ip=1.2.3.4", "pair")["allowed"], false);
    assert_eq!(operator.ask("GET", "/api/v1/callers", None).0, 400);
    assert_eq!(operator.ask("GET", "/api/v1/callers?caller=&colour=red", None).0, 400);
    assert_eq!(operator.get("/api/v1/callers?caller=bob")["caller"]["user"], "bob");
}

#[test]
fn what_a_caller_has_used_can_be_forgotten() {
    let (_backend, gateway, operator) = start(
        "[{ name: a, by: ip, rate: 2/hour }, { name: b, by: ip, rate: 3/hour, algorithm: sliding_log }, { name: c, by: ip, concurrency: 5 }, { name: d, by: global, rate: 9/hour }]",
    );
    assert_eq!(gateway.statuses("/", &[], 3), [200, 200, 429]);
    let reset = |body: Value| operator.ask("POST", "/api/v1/callers/reset", Some(&body));
    let (status, done) = reset(json!({ "caller": "ip:127.0.0.1", "limit": "a" }));
    assert_eq!((status, done), (200, json!({ "reset": ["a"] })));
    assert_eq!(gateway.statuses("/", &[], 2), [200, 429], "that of b is not forgotten");
    let (_, done) = reset(json!({ "caller": "ip:127.0.0.1" }));
    assert_eq!(done, json!({ "reset": ["a", "b"] }), "neither places nor what everybody shares");
    assert_eq!(gateway.statuses("/", &[], 3), [200, 200, 429]);
    assert_eq!(reset(json!({ "caller": "user:nobody" })).0, 404);
    assert_eq!(reset(json!({ "caller": "ip:127.0.0.1", "limit": "d" })).0, 404);
    assert_eq!(reset(json!({ "limit": "a" })).0, 400);
}

#[test]
fn what_is_asked_wrongly_is_said_and_changes_nothing() {
    let (_backend, gateway, operator) = start("[{ name: x, by: ip, rate: 5/hour }]");
    let bad = [
        ("/api/v1/bans", json!({ "caller": "ip:127.0.0.1" })),
        ("/api/v1/bans", json!({ "caller": "127.0.0.1", "for": "1h" })),
        ("/api/v1/bans", json!({ "caller": "ip:127.0.0.1", "for": "soon" })),
        ("/api/v1/bans", json!({ "caller": "ip:127.0.0.1", "for": "0s" })),
        ("/api/v1/bans", json!({ "caller": "ip:127.0.0.1", "for": 5 })),
        ("/api/v1/bans", json!({ "caller": "ip:127.0.0.1", "fro": "1h", "for": "1h" })),
        (
            "/api/v1/bans",
            json!({ "caller": "ip:127.0.0.1", "for": "1h", "reason": "x".repeat(501) }),
        ),
        ("/api/v1/bans", json!([])),
        ("/api/v1/grants", json!({ "caller": "ip:127.0.0.1", "for": "1h" })),
        ("/api/v1/grants", json!({ "caller": "ip:127.0.0.1", "for": "1h", "rate": "2x" })),
        ("/api/v1/grants", json!({ "caller": "ip:127.0.0.1", "for": "1h", "rate": "x0" })),
        ("/api/v1/grants", json!({ "caller": "ip:127.0.0.1", "for": "1h", "rate": "xNaN" })),
        ("/api/v1/grants", json!({ "caller": "ip:127.0.0.1", "for": "1h", "rate": "x1e9" })),
    ];
    for (path, body) in bad {
        let (status, said) = operator.ask("POST", path, Some(&body));
        assert_eq!(status, 400, "{path} {body}");
        assert!(said["error"].as_str().is_some_and(|error| error.len() > 8), "{said}");
    }
    let unknown = json!({ "caller": "user:x", "for": "1h", "rate": "x2" });
    assert_eq!(operator.ask("POST", "/api/v1/grants", Some(&unknown)).0, 404, "none counts users");
    let text = operator.send("POST", "/api/v1/bans", &[], "{}");
    assert_eq!(text.status, 415, "a form of some page could send that");
    assert_eq!(operator.send("POST", "/api/v1/bans", &[JSON], "{").status, 400);
    assert_eq!(operator.send("POST", "/api/v1/bans", &[JSON], &" ".repeat(70_000)).status, 400);
    let twice = "/api/v1/bans?caller=ip:1.1.1.1&caller=ip:2.2.2.2";
    assert_eq!(operator.ask("DELETE", twice, None).0, 400);
    let misspelt = "/api/v1/grants?caller=ip:1.1.1.1&limt=x";
    assert_eq!(operator.ask("DELETE", misspelt, None).0, 400);
    assert_eq!(operator.ask("GET", "/api/v1/nothing", None).0, 404);
    let reply = operator.send("PUT", "/api/v1/bans", &[], "");
    assert_eq!((reply.status, reply.header("allow")), (405, Some("GET, POST, DELETE")));
    assert_eq!(operator.get("/api/v1/bans")["bans"], json!([]));
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn wrong_tokens_are_limited_themselves() {
    let backend = Backend::start();
    let gateway = Gateway::start(&rich(&backend));
    let operator = Operator::of(&gateway);
    let status = |token: &str| {
        operator.send("GET", "/api/v1/status", &[("authorization", token)], "").status
    };
    let reply = operator.send("GET", "/metrics", &[], "");
    assert_eq!(reply.status, 401);
    let challenges = reply.headers.iter().filter(|(name, _)| name == "www-authenticate");
    assert_eq!(challenges.count(), 2, "by bearer, and for browsers");
    assert_eq!(status("Bearer s3cret-token"), 200);
    assert_eq!(status("Basic b3BlcmF0b3I6czNjcmV0LXRva2Vu"), 200, "as a password");
    let guesses: Vec<u16> = (0..12).map(|n| status(&format!("Bearer guess-{n}"))).collect();
    assert_eq!(guesses, [[401; 10].as_slice(), &[429; 2]].concat());
    let reply = operator.send("GET", "/metrics", &[("authorization", "Bearer x")], "");
    assert_eq!((reply.status, reply.number("retry-after")), (429, 6));
    assert_eq!(status("Bearer s3cret-token"), 429, "or the limit would be none");
    assert_eq!(operator.send("GET", "/livez", &[], "").status, 200);
    gateway.advance(Duration::from_secs(6));
    assert_eq!(status("Bearer s3cret-token"), 200);
    let page = operator.send("GET", "/metrics", &[TOKEN], "");
    assert!(page.text().contains("sluice_admin_refused_total 14\n"), "{}", page.text());
}

#[test]
fn no_page_of_somebody_elses_can_act_or_read() {
    let (_backend, _gateway, operator) = start("[]");
    let origin = format!("http://{}", operator.0);
    let host = operator.0.to_string();
    let body = r#"{"caller":"ip:9.9.9.9","for":"1h"}"#;
    let ban =
        |headers: &[(&str, &str)]| operator.send("POST", "/api/v1/bans", headers, body).status;
    assert_eq!(ban(&[JSON, ("host", &host), ("origin", "http://evil.example")]), 403);
    assert_eq!(ban(&[JSON, ("host", &host), ("origin", "null")]), 403);
    assert_eq!(ban(&[JSON, ("host", "evil.example"), ("origin", "http://evil.example")]), 403);
    let status = |host: &str| operator.send("GET", "/api/v1/status", &[("host", host)], "").status;
    assert_eq!([status("evil.example"), status("localhost:1")], [403, 200], "a name is anybody's");
    assert_eq!(ban(&[JSON, ("host", &host), ("origin", &origin)]), 200);
}

#[test]
fn callers_never_reach_it() {
    let backend = Backend::start();
    let gateway = Gateway::start(&rich(&backend));
    for path in ["/api/v1/status", "/api/v1/bans", "/metrics", "/livez", "/"] {
        assert_eq!(gateway.get(path).text(), "hello", "{path} is the backend's");
    }
    assert_eq!(backend.count(), 5);
    // Not even through a gateway that somebody pointed at it by a name.
    let status =
        Operator::of(&gateway).send("GET", "/api/v1/status", &[TOKEN, ("via", "1.1 sluice")], "");
    assert_eq!(status.status, 403);
}

#[test]
fn a_reload_by_the_operator_says_what_came_of_it() {
    let (backend, gateway, operator) = start("[]");
    let (status, said) = operator.ask("POST", "/api/v1/reload", None);
    assert_eq!((status, said), (200, json!({ "generation": 2 })));
    gateway.write("nonsense: true\n");
    let (status, said) = operator.ask("POST", "/api/v1/reload", None);
    assert_eq!(status, 422);
    let error = said["error"].as_str().unwrap();
    assert!(error.contains("nonsense") && error.contains('^'), "{error}");
    let told = operator.get("/api/v1/status");
    assert_eq!(told["config"]["last_reload"]["ok"], false);
    assert_eq!(told["config"]["last_reload"]["error"], error);
    assert!(told["config"]["generation"].as_u64().unwrap() >= 2);
    gateway.write("admin: { address: '127.0.0.1:0', token: hush-hush, tokn: x }\n");
    let (_, said) = operator.ask("POST", "/api/v1/reload", None);
    let error = said["error"].as_str().unwrap();
    assert!(error.contains("tokn") && !error.contains("hush-hush"), "{error}");
    gateway.reload(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, "[]"))).unwrap();
    assert_eq!(operator.get("/api/v1/status")["config"]["last_reload"]["ok"], true);
}

#[test]
fn a_drained_gateway_is_not_ready_and_serves_on() {
    let (_backend, gateway, operator) = start("[]");
    let ready = || operator.send("GET", "/readyz", &[], "").status;
    assert_eq!(ready(), 200);
    assert_eq!(operator.ask("POST", "/api/v1/drain", None).1, json!({ "state": "draining" }));
    assert_eq!((ready(), gateway.get("/").status), (503, 200));
    assert_eq!(operator.send("GET", "/livez", &[], "").status, 200);
    assert_eq!(operator.ask("DELETE", "/api/v1/drain", None).1, json!({ "state": "ready" }));
    assert_eq!(ready(), 200);
}

#[test]
fn a_worker_that_does_not_move_is_not_alive() {
    let (_backend, gateway, operator) = start("[]");
    let server = gateway.server().gateway();
    let alive = || operator.send("GET", "/livez", &[], "");
    assert_eq!(alive().status, 200);
    // Workers move twenty times a second; a quarter of a minute passes between two of their moves.
    eventually("a moment in which no worker moves", || {
        (0..16).for_each(|_| server.tick());
        server.is_alive().err()
    });
    (0..20).for_each(|_| server.tick());
    eventually("they move again", || {
        server.tick();
        server.is_alive().ok()
    });
    assert_eq!(alive().status, 200);
}

#[test]
fn the_busiest_and_the_most_rejected_callers_are_told() {
    let backend = Backend::start();
    let gateway = Gateway::start(&rich(&backend).replace(", token: s3cret-token", ""));
    let operator = Operator::of(&gateway);
    gateway.statuses("/", &[("x-api-key", "acme-key"), ("x-forwarded-for", "1.2.3.4")], 7);
    gateway.statuses("/", &[("x-user-id", "<b>ada</b>"), ("x-forwarded-for", "5.6.7.8")], 2);
    let top = operator.get("/api/v1/top");
    let told = |kind: &str, by: &str| -> Vec<(String, u64)> {
        let all = top[kind][by].as_array().unwrap().iter();
        all.map(|c| (c["caller"].as_str().unwrap().into(), c["count"].as_u64().unwrap())).collect()
    };
    assert_eq!(told("busiest", "ip"), [("ip:1.2.3.4".into(), 7), ("ip:5.6.7.8".into(), 2)]);
    assert_eq!(told("busiest", "user"), [("user:<b>ada</b>".into(), 2)]);
    assert_eq!(told("rejected", "api_key"), [("api_key:acme".into(), 3)]);
    assert_eq!(told("rejected", "ip"), [("ip:1.2.3.4".into(), 3)]);
    gateway.advance(Duration::from_secs(300));
    assert_eq!(operator.get("/api/v1/top")["busiest"]["ip"], json!([]));
}

#[test]
fn pressure_tells_how_near_callers_are_to_a_limit() {
    let (_backend, gateway, operator) = start("[{ name: x, by: ip, rate: 10/hour }]");
    gateway.statuses("/", &[], 8);
    let pressure = || operator.get("/api/v1/live")["limits"][0]["pressure"].as_f64().unwrap();
    assert!((pressure() - 0.8).abs() < 1e-6, "{}", pressure());
    gateway.statuses("/", &[], 3);
    assert!((pressure() - 1.0).abs() < 1e-6, "{}", pressure());
    (0..2).for_each(|_| gateway.server().gateway().tick());
    assert!(pressure() < 1e-6, "nobody asked lately");
}

#[test]
fn the_dashboard_may_run_its_own_script_and_nothing_else() {
    let (_backend, _gateway, operator) = start("[]");
    let page = operator.send("GET", "/", &[], "");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'sha256-"));
    assert!(!policy.contains("http"), "{policy}");
    let head = Connection::to_operator(operator.0).send("HEAD", "/", &[], b"");
    assert_eq!(head.status, 200);
}
