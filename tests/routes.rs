//! Host, path and method decide the route; the most specific wins.

use crate::common::backend::ok;
use crate::common::{Backend, Gateway};

fn echo() -> Backend {
    Backend::answering(|seen| ok(&seen.target))
}

#[test]
fn the_most_specific_route_wins_whatever_the_order() {
    let backends: Vec<_> = ["any", "api", "login", "wild", "exact"]
        .iter()
        .map(|name| Backend::answering(move |_| ok(name)))
        .collect();
    let address = |n: usize| backends[n].address();
    let yaml = format!(
        "upstreams: {{ any: 'http://{}', api: 'http://{}', login: 'http://{}', wild: 'http://{}', exact: 'http://{}' }}
routes:
  - {{ path: /, upstream: any }}
  - {{ path: /api/*, upstream: api }}
  - {{ path: /api/login, methods: [POST], upstream: login }}
  - {{ path: /, hosts: ['*.example.com'], upstream: wild }}
  - {{ path: /, hosts: [api.example.com], upstream: exact }}
",
        address(0),
        address(1),
        address(2),
        address(3),
        address(4)
    );
    let gateway = Gateway::start(&yaml);
    let asked = |method: &str, path: &str, host: &str| {
        gateway.send(method, path, &[("host", host)], b"").text().to_owned()
    };
    assert_eq!(asked("GET", "/", "h"), "any");
    assert_eq!(asked("GET", "/apis", "h"), "any");
    assert_eq!(asked("GET", "/api", "h"), "api");
    assert_eq!(asked("GET", "/api/", "h"), "api");
    assert_eq!(asked("GET", "/api/x/y", "h"), "api");
    assert_eq!(asked("POST", "/api/login", "h"), "login");
    assert_eq!(asked("GET", "/api/login", "h"), "api");
    assert_eq!(asked("GET", "/api", "x.example.com"), "wild");
    assert_eq!(asked("GET", "/api", "X.EXAMPLE.com:80"), "wild");
    assert_eq!(asked("GET", "/api", "api.example.com"), "exact");
    assert_eq!(asked("GET", "/", "example.com"), "any");
}

#[test]
fn no_route_is_404_and_an_unknown_method_405_with_allow() {
    let backend = echo();
    let yaml = format!(
        "upstreams: {{ app: 'http://{}' }}\nlimits: [{{ name: all, by: ip, rate: 3/minute }}]\nroutes:\n  - {{ path: /login, methods: [POST], upstream: app }}\n",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let reply = gateway.get("/nowhere");
    assert_eq!((reply.status, reply.header("content-length")), (404, Some("0")));
    assert_eq!(
        reply.header("x-ratelimit-remaining"),
        Some("2"),
        "limits guard what matches nothing"
    );
    let reply = gateway.get("/login");
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    assert_eq!(gateway.send("POST", "/login", &[], b"").status, 200);
    assert_eq!(gateway.get("/nowhere").status, 429);
    assert_eq!(backend.seen().len(), 1);
}

#[test]
fn a_prefix_can_be_taken_off() {
    let backend = echo();
    let yaml = format!(
        "upstreams: {{ app: 'http://{}' }}\nroutes:\n  - {{ path: /api/v1/*, upstream: app, rewrite: {{ strip_prefix: /api/v1 }} }}\n  - {{ path: /, upstream: app }}\n",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    for (asked, forwarded) in [
        ("/api/v1/users?x=/api/v1/", "/users?x=/api/v1/"),
        ("/api/v1", "/"),
        ("/api/v1/", "/"),
        ("/api/v1?q", "/?q"),
        ("/api//v1/%41", "/A"),
        ("/api/v1x", "/api/v1x"),
    ] {
        assert_eq!(gateway.get(asked).text(), forwarded, "{asked}");
    }
}

#[test]
fn request_headers_are_set_and_removed() {
    let backend = Backend::start();
    let yaml = format!(
        "upstreams: {{ app: 'http://{}' }}\nroutes:\n  - path: /\n    upstream: app\n    request_headers: {{ set: {{ X-Gateway: sluice, Host: inner.test }}, remove: [X-Internal, X-Forwarded-For] }}\n",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    gateway.get_with("/", &[("x-internal", "1"), ("x-gateway", "spoofed")]);
    let seen = backend.last();
    assert_eq!(seen.header("x-gateway"), Some("sluice"));
    assert_eq!(seen.header("host"), Some("inner.test"));
    assert_eq!(seen.header("x-internal"), None);
    assert_eq!(seen.header("x-forwarded-for"), None);
}

#[test]
fn a_thousand_routes_are_all_found() {
    let backend = echo();
    let routes: String = (0..1000)
        .map(|n| format!("  - {{ path: /service-{n}/*, upstream: app, rewrite: {{ strip_prefix: /service-{n} }} }}\n"))
        .collect();
    let yaml = format!("upstreams: {{ app: 'http://{}' }}\nroutes:\n{routes}", backend.address());
    let gateway = Gateway::start(&yaml);
    let mut connection = gateway.connect();
    for n in (0..1000).step_by(37) {
        assert_eq!(connection.get(&format!("/service-{n}/x{n}")).text(), format!("/x{n}"));
    }
    assert_eq!(connection.get("/service-1000/x").status, 404);
}
