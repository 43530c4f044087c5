//! Taking endpoints away from others.

use crate::common::{Backend, Gateway, backend::ok};
use std::net::SocketAddr;

fn yaml(endpoints: &[SocketAddr], settings: &str) -> String {
    let all: Vec<String> = endpoints.iter().map(|address| format!("'http://{address}'")).collect();
    format!(
        "identity: {{ trusted_proxies: [127.0.0.1] }}
upstreams:
  app: {{ endpoints: [{}], balance: round_robin, eject: {{ after: 5, for: 30s }}, {settings} }}
routes: [{{ path: /, upstream: app }}]
",
        all.join(", ")
    )
}

fn in_service(gateway: &Gateway) -> usize {
    gateway.server().gateway().endpoints().iter().filter(|endpoint| endpoint.in_service).count()
}

fn answering(status: u16) -> Backend {
    Backend::answering(move |seen| match seen.target.as_str() {
        "/fails" => format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n").into_bytes(),
        _ => ok("hello"),
    })
}

#[test]
fn unknown_methods_eject_no_endpoint() {
    for status in [501, 505] {
        let backends = [answering(status), answering(status)];
        let all = [backends[0].address(), backends[1].address()];
        let gateway = Gateway::start(&yaml(&all, "retries: { attempts: 1 }"));
        for caller in 0..30 {
            let from = format!("10.0.0.{caller}");
            let reply = gateway.send("PROPFIND", "/fails", &[("x-forwarded-for", &from)], b"");
            assert_eq!(reply.status, status);
        }
        assert_eq!(in_service(&gateway), 2);
    }
}

#[test]
fn one_caller_alone_ejects_no_endpoint() {
    let backends: Vec<Backend> = (0..4).map(|_| answering(500)).collect();
    let all: Vec<SocketAddr> = backends.iter().map(Backend::address).collect();
    let gateway = Gateway::start(&yaml(&all, "retries: { attempts: 1 }"));
    let eve = [("x-forwarded-for", "203.0.113.7")];
    assert!(gateway.statuses("/fails", &eve, 300).iter().all(|status| *status == 500));
    assert_eq!(in_service(&gateway), 4);
    // A fault that others see as well is the endpoint's.
    for caller in 0..40 {
        let from = format!("10.0.0.{caller}");
        gateway.get_with("/fails", &[("x-forwarded-for", &from)]);
    }
    assert_eq!(in_service(&gateway), 2, "half of them stay: see 'keep'");
}

#[test]
fn a_request_that_was_not_sent_is_sent_to_another_endpoint_whatever_it_does() {
    // Bound, and not listening: a connection is refused.
    let closed = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    closed.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    let nowhere = closed.local_addr().unwrap().as_socket().unwrap();
    let backend = Backend::start();
    let gateway = Gateway::start(&yaml(&[nowhere, backend.address()], "retries: { budget: 100% }"));
    for _ in 0..4 {
        assert_eq!(gateway.send("POST", "/", &[], b"an order").status, 200);
    }
    let bodies: Vec<Vec<u8>> = backend.seen().into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies, vec![b"an order".to_vec(); 4], "each of them once, and whole");
}
