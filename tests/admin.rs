//! The operator's listener, and the access log.

use crate::common::{Backend, Connection, Gateway, HeldPort, eventually, limited};

#[test]
fn health_and_metrics_are_there() {
    let backend = Backend::start();
    let yaml = limited(&backend, "[{ name: per-ip, by: ip, rate: 2/hour }]");
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{yaml}"));
    gateway.statuses("/", &[], 5);
    assert!(gateway.reload("nonsense").is_err());
    let admin = |path: &str, headers: &[(&str, &str)]| {
        Connection::to_operator(gateway.admin()).send("GET", path, headers, b"")
    };
    assert_eq!(admin("/livez", &[]).text(), "ok\n");
    assert_eq!(admin("/readyz", &[]).text(), "ok\n");
    assert_eq!(admin("/nothing", &[]).status, 404);

    let page = admin("/metrics", &[]);
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for line in [
        "sluice_requests_total{route=\"all-paths\",status=\"200\"} 2",
        "sluice_requests_total{route=\"all-paths\",status=\"429\"} 3",
        "sluice_limit_decisions_total{limit=\"per-ip\",verdict=\"allowed\"} 2",
        "sluice_limit_decisions_total{limit=\"per-ip\",verdict=\"rejected\"} 3",
        "sluice_config_generation 1",
        "sluice_requests_in_flight 0",
        "sluice_memory_keys 1",
        "# TYPE sluice_requests_total counter",
    ] {
        assert!(page.text().lines().any(|l| l == line), "{line} in\n{}", page.text());
    }
    assert!(page.text().contains("sluice_config_reloads_total{result=\"error\"} "));
    let open = admin("/metrics", &[("accept", "application/openmetrics-text; version=1.0.0")]);
    assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    assert!(open.text().ends_with("# EOF\n"));
    assert!(open.text().contains("# TYPE sluice_requests counter\n"));
    assert_eq!(gateway.get("/metrics").status, 429, "callers reach no page of it");
}

#[test]
fn a_token_guards_all_but_health() {
    let backend = Backend::start();
    let yaml = |token: &str| {
        format!("admin: {{ address: '127.0.0.1:0', token: {token} }}\n{}", limited(&backend, "[]"))
    };
    let gateway = Gateway::start(&yaml("s3cret"));
    let status = |path: &str, token: &str| {
        let headers = [("authorization", format!("Bearer {token}"))];
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        Connection::to_operator(gateway.admin()).send("GET", path, &headers, b"").status
    };
    assert_eq!(
        [status("/livez", "x"), status("/readyz", "x"), status("/metrics", "x")],
        [200, 200, 401]
    );
    assert_eq!(
        [status("/metrics", "s3cret"), status("/metrics", "s3cret2"), status("/x", "")],
        [200, 401, 401]
    );
    let before = gateway.admin();
    gateway.reload(&yaml("changed")).unwrap();
    assert_eq!(gateway.admin(), before, "the same listener");
    assert_eq!([status("/metrics", "s3cret"), status("/metrics", "changed")], [401, 200]);
}

#[test]
fn the_admin_listener_comes_moves_and_goes_with_a_reload() {
    let backend = Backend::start();
    let yaml = |admin: &str| format!("{admin}{}", limited(&backend, "[]"));
    let gateway = Gateway::start(&yaml(""));
    assert_eq!(gateway.server().admin_address(), None);
    let [first, second] = [(); 2].map(|()| HeldPort::new());
    gateway.reload(&yaml(&format!("admin: {}\n", first.address()))).unwrap();
    assert_eq!(gateway.admin(), first.address());
    assert_eq!(Connection::to_operator(gateway.admin()).get("/livez").status, 200);
    gateway.reload(&yaml(&format!("admin: {}\n", second.address()))).unwrap();
    assert_eq!(gateway.admin(), second.address());
    assert_eq!(Connection::to_operator(gateway.admin()).get("/livez").status, 200);
    let gone = |port: &HeldPort| port.is_refused().then_some(());
    eventually("the end of the first", || gone(&first));
    gateway.reload(&yaml("")).unwrap();
    eventually("the end of the second", || gone(&second));
}

#[test]
fn every_request_is_logged_as_one_line_of_json() {
    let backend = Backend::start();
    let yaml = limited(&backend, "[{ name: per-ip, by: ip, rate: 2/hour }]");
    let logging =
        "logging: { access: { format: json, sample: { allowed: 100%, rejected: 100% } } }\n";
    let gateway = Gateway::start(&format!("{logging}{yaml}"));
    let mut connection = gateway.connect(); // lines of one connection stay in order
    for path in ["/a%22b?secret=1", "/x", "/y"] {
        connection.get(path);
    }
    let lines = gateway.log.wait_for(3);
    assert_eq!(lines[0]["path"], "/a%22b", "no query: secrets hide there");
    assert_eq!(lines[0]["time"], "2024-02-08T22:50:00.000Z");
    assert_eq!(lines[0]["method"], "GET");
    assert_eq!(lines[0]["ip"], "127.0.0.1");
    assert_eq!(lines[0]["route"], "all-paths");
    assert_eq!(lines[0]["status"], 200);
    assert_eq!(lines[0]["remaining"], 1);
    assert_eq!(lines[0]["bytes"], 5);
    assert_eq!(lines[0]["upstream"], backend.address().to_string());
    assert_eq!(lines[0]["request_id"].as_str().map(str::len), Some(32));
    assert!(lines[0]["upstream_ms"].is_number() && lines[0]["overhead_ms"].is_number());
    assert_eq!(lines[2]["status"], 429);
    assert_eq!(lines[2]["limit"], "per-ip");
    assert_eq!(lines[2].get("upstream"), None);
}

#[test]
fn the_log_can_be_written_for_people() {
    let backend = Backend::start();
    let yaml = limited(&backend, "[{ name: per-ip, by: ip, rate: 1/hour }]");
    let logging = "logging: { access: { format: text, sample: { rejected: 100% } } }\n";
    let gateway = Gateway::start(&format!("{logging}{yaml}"));
    let mut connection = gateway.connect();
    for path in ["/a", "/b%0A200"] {
        connection.send("GET", path, &[("x-request-id", "r-1")], b"");
    }
    let lines = eventually("lines", || Some(gateway.log.text()).filter(|t| t.lines().count() == 2));
    let expected = format!(
        "2024-02-08T22:50:00.000Z 200 GET /a ip=127.0.0.1 host=example.test route=all-paths \
         upstream={} remaining=0 request_id=r-1 bytes=5 duration_ms=0.000 upstream_ms=0.000 overhead_ms=0.000\n\
         2024-02-08T22:50:00.000Z 429 GET /b%0A200 ip=127.0.0.1 host=example.test \
         route=all-paths limit=per-ip remaining=0 error=limited request_id=r-1 bytes=0 duration_ms=0.000 overhead_ms=0.000\n",
        backend.address()
    );
    assert_eq!(lines, expected);
}

#[test]
fn the_log_tells_what_limits_go_by() {
    let backend = Backend::start();
    let yaml = format!(
        "logging:
  access: {{ headers: [X-Tenant], sample: {{ allowed: 99.9% }} }}
identity:
  trusted_proxies: [127.0.0.1]
  user: {{ header: X-User-Id }}
plans: {{ free: {{ rate: 10/minute }}, pro: {{ rate: 50/minute }} }}
default_plan: pro
upstreams: {{ app: 'http://{}' }}
routes:
  - name: api
    path: /
    upstream: app
    limits:
      - {{ name: tenants, by: header:X-Tenant, rate: 100/minute }}
      - name: answers
        by: user
        rate: 100/minute
        cost: {{ response_bytes: 2, reserve: 1 }}
",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let headers = [("x-tenant", "t \"1\""), ("x-user-id", "anna"), ("host", "API.example.com:80")];
    for _ in 0..5 {
        gateway.get_with("/a?b", &headers);
    }
    // One in a thousand is not there; not all of them are.
    let line = gateway.log.wait_for(1).remove(0);
    assert_eq!(line["host"], "api.example.com", "as routes match it");
    assert_eq!(line["headers"], serde_json::json!({ "x-tenant": "t \"1\"" }));
    assert_eq!((&line["user"], &line["plan"]), (&"anna".into(), &"pro".into()));
    assert_eq!(line["costs"], serde_json::json!({ "answers": 3 }), "five bytes, two a token");
    assert_eq!(line["sample"], 0.999);
}

#[test]
fn the_log_is_sampled_by_outcome_and_can_be_off() {
    let backend = Backend::start();
    let yaml = limited(&backend, "[{ name: per-ip, by: ip, rate: 10/hour }]");
    let logging = "logging: { access: { sample: { allowed: 0%, rejected: 100% } } }\n";
    let gateway = Gateway::start(&format!("{logging}{yaml}"));
    gateway.statuses("/", &[], 15);
    let lines = gateway.log.wait_for(5);
    assert!(lines.iter().all(|line| line["status"] == 429));
    gateway.reload(&format!("logging: {{ access: off }}\n{yaml}")).unwrap();
    gateway.statuses("/", &[], 5);
    let log = gateway.log.clone();
    gateway.stop();
    assert_eq!(log.lines().len(), 5);
}
