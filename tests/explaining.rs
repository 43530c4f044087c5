//! `sluice explain` and `sluice top`, as the real binary.

use crate::common::{Backend, Gateway};
use serde_json::Value;
use std::process::{Command, Output};

fn sluice(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(arguments).output().unwrap()
}

fn yaml(backend: &Backend) -> String {
    let pro = sluice::digest::sha256_hex(b"pro-key");
    format!(
        "admin: {{ address: '127.0.0.1:0', token: s3cret }}\n\
         headers: {{ retry_jitter: 0% }}\n\
         identity:\n  trusted_proxies: [10.0.0.0/8, 127.0.0.1]\n  \
           api_key: {{ keys: [{{ id: acme, plan: pro, sha256: '{pro}' }}] }}\n\
         plans: {{ free: {{ rate: 2/minute }}, pro: {{ rate: 5/minute }} }}\n\
         default_plan: free\n\
         limits: [{{ name: per-ip, by: ip, rate: 100/minute }}]\n\
         upstreams: {{ app: 'http://{}' }}\n\
         routes:\n  - {{ name: login, hosts: [api.example.com], path: /api/v1/login, methods: [POST], upstream: app, limits: [{{ by: ip, rate: 3/minute }}] }}\n  \
           - {{ name: search, path: /api/v1/search/*, upstream: app, require: api_key, limits: [{{ name: plan, by: api_key, rate: plan }}, {{ name: anonymous, by: ip, unless: [api_key], rate: 1/minute }}, {{ by: 'header:X-Tenant', rate: 9/minute }}] }}\n  \
           - {{ path: /, upstream: app }}\n",
        backend.address()
    )
}

struct Explained(Value);

impl Explained {
    fn limit(&self, name: &str) -> &Value {
        let limits = self.0["limits"].as_array().unwrap();
        limits.iter().find(|limit| limit["limit"] == name).unwrap_or_else(|| panic!("{name}"))
    }
}

fn explain(gateway: &Gateway, arguments: &[&str]) -> Explained {
    let path = gateway.path();
    let mut all = vec!["explain", "--json", "-c", path.to_str().unwrap()];
    all.extend(arguments);
    let output = sluice(&all);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Explained(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn a_request_is_explained_step_by_step_without_being_sent() {
    let backend = Backend::start();
    let gateway = Gateway::start(&yaml(&backend));
    let told = explain(
        &gateway,
        &[
            "POST",
            "https://api.example.com/api//v1/./login?x=1",
            "-H",
            "X-Api-Key: pro-key",
            "--ip",
            "203.0.113.7",
        ],
    );
    assert_eq!(told.0["address"]["ip"], "203.0.113.7");
    assert_eq!((&told.0["path"], &told.0["route"]), (&"/api/v1/login".into(), &"login".into()));
    assert_eq!(
        (&told.0["api_key"]["name"], &told.0["api_key"]["plan"]),
        (&"acme".into(), &"pro".into())
    );
    assert_eq!(told.limit("login/ip")["key"], "ip:203.0.113.7");
    assert_eq!(told.limit("per-ip")["rate"], "100/minute");
    let others: Vec<(&str, &str)> = told.0["other_routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|other| (other["name"].as_str().unwrap(), other["why"].as_str().unwrap()))
        .collect();
    assert_eq!(
        others,
        [("/", "it matches, but is less specific"), ("search", "its path is /api/v1/search/*"),]
    );
    assert_eq!(told.0["outcome"]["status"], Value::Null);
    let told = explain(&gateway, &["GET", "https://api.example.com/api/v1/login"]);
    assert_eq!(told.0["other_routes"][0]["why"], "it is for POST");
    let told = explain(&gateway, &["POST", "https://other.example/api/v1/login"]);
    assert_eq!(told.0["other_routes"][1]["why"], "it is for api.example.com");
    assert_eq!(backend.count(), 0);
}

#[test]
fn it_says_how_the_address_was_derived_and_who_is_refused() {
    let backend = Backend::start();
    let gateway = Gateway::start(&yaml(&backend));
    let forwarded = ["-H", "X-Forwarded-For: 203.0.113.7, 10.1.1.1"];
    let told = explain(&gateway, &[&["GET", "/", "--ip", "10.0.0.9"], &forwarded[..]].concat());
    assert_eq!(told.0["address"]["ip"], "203.0.113.7");
    assert!(told.0["address"]["derived"].as_str().unwrap().contains("no trusted proxy"));
    let told = explain(&gateway, &[&["GET", "/", "--ip", "198.51.100.1"], &forwarded[..]].concat());
    assert_eq!(told.0["address"]["ip"], "198.51.100.1");
    assert!(told.0["address"]["derived"].as_str().unwrap().contains("does not count"));
    let told = explain(&gateway, &["GET", "/", "--ip", "2001:db8::1:2:3:4"]);
    assert_eq!(told.0["address"]["counted"], "2001:db8::");
    let told = explain(&gateway, &["GET", "/api/v1/search/x"]);
    assert_eq!(told.0["outcome"]["status"], 401);
    assert!(told.limit("plan")["not_asked"].as_str().is_some());
    assert_eq!(told.limit("anonymous")["key"], "ip:127.0.0.1", "guessing is limited, too");
    let told = explain(&gateway, &["GET", "/api/v1/search/x", "-H", "X-Api-Key: wrong"]);
    assert_eq!(told.0["outcome"]["status"], 401);
    let told = explain(&gateway, &["GET", "/api/v1/search/x", "-H", "X-Api-Key: pro-key"]);
    assert_eq!(told.limit("anonymous")["not_asked"], "the caller has an api_key");
    assert_eq!(
        told.limit("search/header:x-tenant")["not_asked"],
        "the caller has no header:x-tenant"
    );
    let told = explain(&gateway, &["GET", "/%zz"]);
    assert_eq!(told.0["outcome"]["status"], 400);
    let output = sluice(&["explain", "-c", "no-such.yaml", "GET", "/"]);
    assert!(!output.status.success());
}

#[test]
fn with_a_running_gateway_it_tells_what_is_left() {
    let backend = Backend::start();
    let gateway = Gateway::start(&yaml(&backend));
    let admin = format!("http://{}", gateway.admin());
    let key = [("x-api-key", "pro-key"), ("x-tenant", "t1")];
    gateway.statuses("/api/v1/search/x", &key, 4);
    let arguments = [
        "GET",
        "/api/v1/search/x",
        "-H",
        "X-Api-Key: pro-key",
        "-H",
        "X-Tenant: t1",
        "--admin",
        &admin,
        "--token",
        "s3cret",
    ];
    for _ in 0..3 {
        let told = explain(&gateway, &arguments);
        assert_eq!(told.limit("plan")["state"]["remaining"], 1, "nothing is charged");
        assert_eq!(told.limit("search/header:x-tenant")["state"]["used"], 4);
        assert_eq!(told.0["outcome"]["why"], "forwarded");
    }
    gateway.statuses("/api/v1/search/x", &key, 1);
    let told = explain(&gateway, &arguments);
    assert_eq!(told.0["outcome"]["status"], 429);
    assert_eq!(told.0["outcome"]["why"], "'plan' rejects it; Retry-After 12");
    assert_eq!(gateway.get_with("/api/v1/search/x", &key).number("retry-after"), 12, "the same");
    let path = gateway.path();
    let mut text = vec!["explain", "-c", path.to_str().unwrap()];
    text.extend(arguments);
    let output = String::from_utf8(sluice(&text).stdout).unwrap();
    let line = output.lines().find(|line| line.trim_start().starts_with("plan ")).unwrap();
    assert!(
        line.contains("5/minute token_bucket for api_key:acme: rejects, 0 of 5 left"),
        "{output}"
    );
    let refused = sluice(&["top", "--once", "--admin", &admin, "--token", "wrong"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("answers 401"));
}

#[test]
fn top_shows_the_essentials() {
    let backend = Backend::start();
    let gateway = Gateway::start(&yaml(&backend));
    gateway.statuses("/", &[], 3);
    let admin = gateway.admin().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["top", "--once", "--every", "0.1", "--admin", &admin])
        .env("SLUICE_ADMIN_TOKEN", "s3cret")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["ready", "1 of 1 in service", "per-ip", "ip:127.0.0.1", "store    memory, 1 of"] {
        assert!(
            text.contains(part),
            "{part} in\n{text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert!(!text.contains('\u{1b}'), "no colours where nobody sees them");
}
