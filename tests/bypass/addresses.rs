//! Naming an address that is not one's own.

use crate::common::{Backend, Gateway};

fn gateway(backend: &Backend, from: &str, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "headers: {{ retry_jitter: 0% }}
identity: {{ trusted_proxies: [127.0.0.1], {from} }}
upstreams: {{ app: 'http://{}' }}
routes:
  - {{ path: /, upstream: app, limits: [{{ name: per-ip, by: ip, {limit} }}] }}
",
        backend.address()
    ))
}

#[test]
fn a_forwarded_header_beside_the_proxys_own_buys_no_allowance() {
    let backend = Backend::start();
    let gateway = gateway(&backend, "ipv6_prefix: 64", "rate: 2/hour");
    for n in 0..4 {
        // The proxy appends to X-Forwarded-For, and passes on what its client wrote into Forwarded.
        let invented = format!("for=203.0.113.{n}");
        let headers = [("x-forwarded-for", "198.51.100.9"), ("forwarded", &invented)];
        let status = gateway.get_with("/", &headers).status;
        assert_eq!(status, if n < 2 { 200 } else { 429 }, "request {n}");
    }
    assert!(backend.seen().iter().all(|seen| seen.header("forwarded").is_none()), "taken off");
    assert_eq!(backend.last().header("x-forwarded-for"), Some("198.51.100.9, 127.0.0.1"));
}

#[test]
fn a_forwarded_header_does_not_lead_to_a_ban_of_the_balancer() {
    let backend = Backend::start();
    let limit = "rate: 2/hour, penalty: { after: 2 rejects in 1h, for: 1h }";
    let gateway = gateway(&backend, "ipv6_prefix: 64", limit);
    let eve = [("x-forwarded-for", "198.51.100.9"), ("forwarded", "for=203.0.113.7")];
    assert_eq!(gateway.statuses("/", &eve, 6), [200, 200, 429, 429, 429, 429]);
    assert_eq!(gateway.get("/").status, 200, "the balancer's own health checks");
    let ada = [("x-forwarded-for", "198.51.100.10")];
    assert_eq!(gateway.get_with("/", &ada).status, 200, "another client of the same balancer");
}

#[test]
fn a_trusted_proxys_own_address_is_limited_but_never_banned() {
    let backend = Backend::start();
    let limit = "rate: 2/hour, penalty: { after: 2 rejects in 1h, for: 1h }";
    let gateway = gateway(&backend, "ipv6_prefix: 64", limit);
    // A header that cannot be read makes the proxy the caller.
    let garbage = [("x-forwarded-for", "not an address")];
    assert_eq!(gateway.statuses("/", &garbage, 8), [200, 200, 429, 429, 429, 429, 429, 429]);
    assert!(gateway.server().gateway().overrides.bans.is_empty());
}

#[test]
fn only_the_configured_header_names_the_caller() {
    let all = [
        ("x-forwarded-for", "198.51.100.1"),
        ("forwarded", "for=198.51.100.2"),
        ("x-real-ip", "198.51.100.3"),
    ];
    let cases = [
        ("x-forwarded-for", "198.51.100.1", None),
        ("forwarded", "198.51.100.2", Some("for=198.51.100.2, for=127.0.0.1")),
        ("header:X-Real-IP", "198.51.100.3", None),
    ];
    for (from, caller, forwarded) in cases {
        let backend = Backend::start();
        let from = format!("client_ip: {{ from: '{from}' }}");
        let gateway = gateway(&backend, &from, "rate: 9/hour");
        gateway.get_with("/", &all);
        assert_eq!(gateway.log.wait_for(1)[0]["ip"], caller, "{from}");
        let seen = backend.last();
        let list = format!("{caller}, 127.0.0.1");
        assert_eq!(seen.header("x-forwarded-for"), Some(list.as_str()), "{from}");
        assert_eq!(seen.header("forwarded"), forwarded, "{from}");
    }
}

#[test]
fn a_stranger_cannot_set_the_configured_header() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!(
        "identity: {{ trusted_proxies: [192.0.2.1], client_ip: {{ from: header:X-Real-IP }} }}
upstreams: {{ app: 'http://{}' }}
routes: [{{ path: /, upstream: app, limits: [{{ by: ip, rate: 1/hour }}] }}]
",
        backend.address()
    ));
    for (n, expected) in [(1, 200), (2, 429)] {
        let ip = format!("198.51.100.{n}");
        assert_eq!(
            gateway.get_with("/", &[("x-real-ip", &ip), ("x_real_ip", &ip)]).status,
            expected
        );
    }
    let seen = backend.last();
    assert_eq!((seen.header("x-real-ip"), seen.header("x_real_ip")), (None, None));
}
