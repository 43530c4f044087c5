//! Having the gateway forward to itself.

use crate::common::{Backend, Gateway, eventually};

#[test]
fn a_request_that_comes_back_is_refused_and_charged_to_its_address() {
    // A backend that sends every request back where it came from.
    let gateway_address = std::sync::Arc::new(parking_lot::Mutex::new(None));
    let there = std::sync::Arc::clone(&gateway_address);
    let back = Backend::answering(move |seen| {
        let address: std::net::SocketAddr = there.lock().expect("known by then");
        let via = seen.header("via").unwrap().to_owned();
        let mut connection = crate::common::Connection::open(address);
        let reply = connection.send("GET", &seen.target, &[("via", &via)], b"");
        format!("HTTP/1.1 {} X\r\ncontent-length: 0\r\n\r\n", reply.status).into_bytes()
    });
    let limits = "limits: [{ name: x, by: ip, rate: 9/hour }]";
    let gateway = Gateway::start(&format!(
        "{limits}
{}",
        crate::common::open(&back)
    ));
    *gateway_address.lock() = Some(gateway.address());
    let reply = gateway.get("/");
    assert_eq!((reply.status, back.count()), (508, 1), "once round, and no further");
    let lines = eventually("both lines", || {
        Some(gateway.log.lines())
            .filter(|lines| lines.iter().filter(|l| l["status"] == 508).count() == 2)
    });
    assert_eq!(lines.len(), 2);
    assert_eq!(gateway.server().gateway().metrics.limit("x", "").total("allowed"), 2);
}

#[test]
fn two_gateways_in_a_row_are_no_loop() {
    let backend = Backend::start();
    let inner = Gateway::start(&crate::common::open(&backend));
    let yaml = format!(
        "upstreams: {{ app: 'http://{}' }}\nroutes: [{{ path: /, upstream: app }}]\n",
        inner.address()
    );
    let outer = Gateway::start(&yaml);
    assert_eq!(outer.get("/").status, 200);
    let via = backend.last().header("via").unwrap().to_owned();
    let names: Vec<&str> = via.split(", ").collect();
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|name| name.starts_with("1.1 sluice-")), "{via}");
    assert_ne!(names[0], names[1]);
    assert_eq!(outer.get_with("/", &[("via", "1.1 sluice, 1.1 proxy")]).status, 200);
}

#[test]
fn an_upstream_that_is_the_gateway_itself_is_refused_at_load() {
    let backend = Backend::start();
    let gateway = Gateway::start(&crate::common::open(&backend));
    for (listen, upstream) in [
        ("127.0.0.1:8080", "127.0.0.1:8080"),
        ("0.0.0.0:8080", "127.0.0.1:8080"),
        ("127.0.0.1:8080", "localhost:8080"),
        ("'[::]:8080'", "'[::1]:8080'"),
    ] {
        let upstream = upstream.trim_matches('\'');
        let yaml = format!(
            "listen: {listen}\nupstreams: {{ app: 'http://{upstream}' }}\nroutes: [{{ path: /, upstream: app }}]\n"
        );
        let error = gateway.reload(&yaml).unwrap_err().to_string();
        assert!(error.contains("'app' is this gateway itself"), "{error}");
    }
}
