//! Heads that are never finished, and headers that take others off.

use crate::common::{Backend, Connection, Gateway, eventually};
use std::io::Write;

#[test]
fn unfinished_heads_hold_a_bounded_sum() {
    let backend = Backend::start();
    let gateway = Gateway::start_in_real_time(&format!(
        "server: {{ max_connections_per_ip: none }}\nupstreams: {{ app: 'http://{}' }}\nroutes: [{{ path: /, upstream: app }}]\n",
        backend.address()
    ));
    let head = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n", "x".repeat(60_000));
    let held = || gateway.server().gateway().unfinished_heads.held();
    let mut open: Vec<Connection> = Vec::new();
    for _ in 0..60 {
        let mut connection = gateway.connect();
        let _ = connection.stream.write_all(head.as_bytes());
        open.push(connection);
    }
    let refused = || gateway.server().gateway().metrics.refused("unfinished_heads");
    // One address may hold 2 MiB of them: about 34 of these.
    eventually("the rest to be refused", || (refused() >= 20).then_some(()));
    assert!(held() <= 2 << 20, "{}", held());
    assert_eq!(gateway.get("/").status, 200, "a head that comes whole needs none of it");
    drop(open);
    eventually("all of it to be given back", || (held() == 0).then_some(()));
}

#[test]
fn connection_does_not_take_off_what_the_gateway_identified_by() {
    let backend = Backend::start();
    let digest = sluice::digest::sha256_hex(b"acme-key");
    let gateway = Gateway::start(&format!(
        "identity:
  trusted_proxies: [127.0.0.1]
  user: {{ header: X-User-Id }}
  api_key: {{ keys: [{{ id: acme, sha256: '{digest}' }}] }}
upstreams: {{ app: 'http://{}' }}
routes:
  - path: /
    upstream: app
    limits: [{{ by: 'header:X-Tenant', rate: 9/hour }}]
",
        backend.address()
    ));
    let headers = [
        ("connection", "x-api-key, X-User-Id, x-tenant, x-other"),
        ("x-api-key", "acme-key"),
        ("x-user-id", "ada"),
        ("x-tenant", "t1"),
        ("x-other", "hop"),
    ];
    assert_eq!(gateway.get_with("/", &headers).status, 200);
    let seen = backend.last();
    assert_eq!(seen.header("x-api-key"), Some("acme-key"));
    assert_eq!(seen.header("x-user-id"), Some("ada"));
    assert_eq!(seen.header("x-tenant"), Some("t1"));
    assert_eq!(seen.header("x-other"), None, "what belongs to the connection alone");
}

#[test]
fn connections_that_send_no_proxy_header_count_for_their_address() {
    let backend = Backend::start();
    let gateway = Gateway::start_in_real_time(&format!(
        "listen: {{ address: 127.0.0.1:0, proxy_protocol: true }}
server: {{ max_connections_per_ip: 3 }}
upstreams: {{ app: 'http://{}' }}
routes: [{{ path: /, upstream: app }}]
",
        backend.address()
    ));
    let silent: Vec<Connection> = (0..5).map(|_| gateway.connect()).collect();
    let refused = || gateway.server().gateway().metrics.refused("too_many_connections_per_ip");
    eventually("two of them to be refused", || (refused() == 2).then_some(()));
    drop(silent);
    eventually("a connection with its header", || {
        let mut connection = gateway.connect();
        connection.write(b"PROXY TCP4 203.0.113.7 192.0.2.1 1 2\r\n");
        connection.try_get("/").filter(|reply| reply.status == 200)
    });
}
