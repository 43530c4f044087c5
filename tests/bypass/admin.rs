//! Shutting the operator out of the admin listener, or getting into it.

use crate::common::operator::Operator;
use crate::common::{Backend, Connection, Gateway, eventually, limited};
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

fn gateway() -> Gateway {
    let backend = Backend::start();
    Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, "[]")))
}

/// A connection from an address of loopback's network.
fn from(local: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((IpAddr::from(local), 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// Whether the gateway has closed it.
fn closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn one_address_holds_sixteen_and_others_are_served() {
    let gateway = gateway();
    let mut held: Vec<_> = (0..300).map(|_| from([127, 0, 0, 9], gateway.admin())).collect();
    eventually("the end of all but sixteen", || {
        held.retain_mut(|stream| !closed(stream));
        (held.len() <= 16).then_some(())
    });
    assert_eq!(held.len(), 16);
    assert_eq!(Connection::to_operator(gateway.admin()).get("/livez").status, 200);
}

#[test]
fn idle_connections_end_soon_with_a_request_before_or_without() {
    let gateway = gateway();
    let began = Instant::now();
    let mut idle = from([127, 0, 0, 9], gateway.admin());
    let mut kept_alive = Connection::to_operator(gateway.admin());
    assert_eq!(kept_alive.get("/livez").status, 200);
    eventually("the end of the idle connection", || closed(&mut idle).then_some(()));
    eventually("the end of the one kept alive", || kept_alive.is_closed().then_some(()));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn a_field_that_is_there_twice_is_refused_and_nothing_is_done() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, "[]")));
    let operator = Operator::of(&gateway);
    let json = [("content-type", "application/json")];
    let body = r#"{"caller":"ip:192.0.2.1","for":"1m","for":"99d"}"#;
    let reply = operator.send("POST", "/api/v1/bans", &json, body);
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(reply.text().contains("'for' is there twice"), "{}", reply.text());
    assert_eq!(operator.get("/api/v1/bans")["bans"].as_array().unwrap().len(), 0);
}

#[test]
fn a_gateway_anywhere_in_via_is_refused() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, "[]")));
    let status =
        |via: &[(&str, &str)]| Operator::of(&gateway).send("GET", "/api/v1/status", via, "").status;
    for via in [
        &[("via", "1.1 sluice, 1.1 proxy")][..],
        &[("via", "1.1 sluice-0f3a, 1.1 proxy")],
        &[("via", "1.1 sluice-0f3a (an id), 1.1 proxy")],
        &[("via", "1.1 sluice"), ("via", "1.1 proxy")],
    ] {
        assert_eq!(status(via), 403, "{via:?}");
    }
    assert_eq!(status(&[("via", "1.1 proxy")]), 200);
}
