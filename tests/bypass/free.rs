//! Outcomes that cost nothing, and those that must not.

use super::kit::{Setup, metric, on_every_store, quiet, settles_at, tokens, used};
use crate::common::backend::{Seen, ok};
use crate::common::{Backend, Gateway};
use socket2::{Domain, Socket, Type};
use std::io::Read;
use std::net::SocketAddr;

/// An address that refuses connections for as long as the socket lives.
fn refusing() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

#[test]
fn a_connection_that_was_refused_gives_everything_back() {
    const LIMITS: [&str; 9] = [
        "{ name: n, by: ip, rate: 5/hour }",
        "{ name: n, by: ip, rate: 5/hour, algorithm: gcra, burst: 5 }",
        "{ name: n, by: ip, rate: 5/hour, algorithm: fixed_window }",
        "{ name: n, by: ip, rate: 5/hour, algorithm: sliding_window }",
        "{ name: n, by: ip, rate: 5/hour, algorithm: sliding_log }",
        "{ name: n, by: ip, rate: 5/hour, algorithm: leaky_bucket, queue: 4, max_wait: 1h }",
        "{ name: n, by: ip, concurrency: 1 }",
        "{ name: n, by: ip, rate: 5/hour, cost: { response_header: X-Cost, reserve: 5 } }",
        "{ name: n, by: global, rate: 5/hour, algorithm: fixed_window, cost: 5 }",
    ];
    on_every_store(|store| {
        for (index, limit) in LIMITS.iter().enumerate() {
            let (socket, backend) = refusing();
            // Limits of different algorithms share a Redis here, and are not to share a counter.
            let limits = format!("[{}]", limit.replace("name: n", &format!("name: n{index}")));
            let upstream = "timeouts: { connect: 1s }";
            let setup = Setup { store, backend, upstream, limits: &limits, ..Setup::default() };
            let gateway = setup.start();
            if limit.contains("concurrency") {
                // A permit goes back to Redis behind the answer.
                for _ in 0..5 {
                    assert_eq!(gateway.get("/").status, 502, "{limit}");
                    settles_at(&gateway, &format!("n{index}"), 0);
                }
                continue;
            }
            let statuses = gateway.statuses("/", &[], 10);
            assert!(statuses.iter().all(|status| [502, 503].contains(status)), "{statuses:?}");
            assert_eq!(statuses[..5], [502; 5], "{limit}");
            settles_at(&gateway, &format!("n{index}"), 0);
            drop(socket);
        }
    });
}

#[test]
fn a_connection_that_was_refused_gives_everything_back_while_time_goes_on() {
    on_every_store(|store| {
        for (index, algorithm) in ["token_bucket", "gcra, burst: 5"].into_iter().enumerate() {
            let (_socket, backend) = refusing();
            let limits =
                format!("[{{ name: r{index}, by: ip, rate: 5/hour, algorithm: {algorithm} }}]");
            let setup = Setup { store, backend, limits: &limits, ..Setup::default() };
            let gateway = Gateway::start_in_real_time(&setup.yaml());
            assert_eq!(gateway.statuses("/", &[], 12), [502; 12], "{algorithm}");
        }
    });
}

#[test]
fn a_connection_that_was_refused_gives_back_what_limits_by_header_and_those_behind_them_charged() {
    on_every_store(|store| {
        let (_socket, backend) = refusing();
        let limits = "[{ name: h, by: 'header:X-Tenant', rate: 5/hour },
            { name: u, by: ip, rate: 5/hour, unless: ['header:X-Staff'] },
            { name: both, by: ['header:X-Tenant', ip], rate: 5/hour },
            { name: all, by: global, rate: 5/hour }]";
        let gateway = Setup { store, backend, limits, ..Setup::default() }.start();
        let statuses = gateway.statuses("/", &[("x-tenant", "acme")], 12);
        assert!(statuses.iter().all(|status| [502, 503].contains(status)), "{statuses:?}");
        assert_eq!(statuses[..5], [502; 5]);
        for limit in ["u", "all"] {
            settles_at(&gateway, limit, 0);
        }
        let unavailable =
            metric(&gateway, "sluice_limit_decisions_total{limit=\"all\",verdict=\"rejected\"}");
        assert_eq!(unavailable, 0, "503 is of the endpoint, and not of a limit");
    });
}

#[test]
fn a_connection_that_was_refused_gives_back_what_newcomers_of_a_full_store_share() {
    let (_socket, backend) = refusing();
    let limits = "[{ name: n, by: ip, rate: 3/hour }]";
    let gateway = Setup { backend, limits, upstream: "eject: off", ..Setup::default() }.start();
    gateway.server().gateway().store.set_max_keys(0);
    for caller in 0..10 {
        let from = format!("10.0.0.{caller}");
        let reply = gateway.get_with("/", &[("x-forwarded-for", &from)]);
        assert_eq!(reply.status, 502, "caller {caller}");
    }
}

#[test]
fn a_request_that_a_backend_took_is_paid_for_however_it_was_answered() {
    on_every_store(|store| {
        let backend = Backend::answering(|seen: &Seen| match &*seen.target {
            "/closed" => Vec::new(),
            "/garbled" => b"what?\r\n\r\n".to_vec(),
            "/unknown" => b"HTTP/1.1 501 Not Implemented\r\ncontent-length: 0\r\n\r\n".to_vec(),
            _ => ok("{}"),
        });
        let limits = tokens("{ response_json: cost, reserve: 100 }");
        let limits = limits.replace(']', ", { name: all, by: ip, rate: 1000/hour }]");
        let setup =
            Setup { store, backend: backend.address(), limits: &limits, ..Setup::default() };
        let gateway = setup.start();
        let attempts =
            [("POST", "/closed", 502), ("POST", "/garbled", 502), ("PROPFIND", "/unknown", 501)];
        for (nth, (method, path, status)) in (1..).zip(attempts) {
            assert_eq!(gateway.send(method, path, &[], b"").status, status);
            settles_at(&gateway, "tokens", nth * 100);
            assert_eq!(used(&gateway, "all"), nth);
        }
    });
}

#[test]
fn an_upload_that_is_answered_502_or_504_costs_the_bytes_that_passed() {
    on_every_store(|store| {
        let backend = Backend::with(|seen, stream| {
            if seen.target == "/slow" {
                let _ = stream.read(&mut [0]); // until the gateway closes it
            }
            false
        });
        let limits = "[{ name: bytes, by: ip, rate: 10000/hour, cost: { request_bytes: 1KiB } }]";
        let upstream = "timeouts: { response: 200ms }";
        let setup =
            Setup { store, backend: backend.address(), upstream, limits, ..Setup::default() };
        let gateway = setup.start();
        let body = vec![b'x'; 300 << 10];
        assert_eq!(gateway.send("POST", "/", &[], &body).status, 502);
        settles_at(&gateway, "bytes", 300);
        assert_eq!(gateway.send("POST", "/slow", &[], &body).status, 504);
        settles_at(&gateway, "bytes", 600);
    });
}

#[test]
fn a_backend_that_takes_too_long_costs_what_a_missing_number_does() {
    on_every_store(|store| {
        // Until the gateway closes it.
        let backend = Backend::with(|_, stream| stream.read(&mut [0]).is_err());
        let limits = tokens("{ response_header: X-Cost, reserve: 10, max: 800 }");
        let upstream = "timeouts: { response: 200ms }";
        let backend = backend.address();
        let setup = Setup { store, backend, upstream, limits: &limits, ..Setup::default() };
        let gateway = setup.start();
        assert_eq!(gateway.get("/").status, 504);
        quiet(&gateway);
        settles_at(&gateway, "tokens", 800);
    });
}
