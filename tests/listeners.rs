//! What comes before HTTP on a listener: a balancer's word, a handshake, or nothing.

use crate::common::pki::Authority;
use crate::common::{Backend, Gateway, eventually, open};
use std::time::{Duration, Instant};

fn behind_a_balancer(backend: &Backend) -> Gateway {
    let listen = "listen: [{ address: 127.0.0.1:0, proxy_protocol: true }, '127.0.0.1:0']\n";
    Gateway::start(&format!("{listen}{}", open(backend)))
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const TEXT: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.8 40000 443\r\n";
const BINARY: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x09\xc0\0\x02\x08\x9c\x40\x01\xbb";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

#[test]
fn a_balancer_names_the_caller_in_either_version() {
    let backend = Backend::start();
    let gateway = behind_a_balancer(&backend);
    // The balancer's own client came over a socket file.
    let unix = [b"\r\n\r\n\0\r\nQUIT\n\x21\x31\0\xd8".as_slice(), &[b'/'; 216]].concat();
    for (header, caller) in [
        (TEXT, "192.0.2.7"),
        (BINARY, "192.0.2.9"),
        (LOCAL, "127.0.0.1"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1"),
        (&unix, "127.0.0.1"),
    ] {
        // In one piece, and byte by byte.
        for step in [usize::MAX, 1] {
            let mut connection = gateway.connect();
            for piece in [header, GET].concat().chunks(step.min(1000)) {
                connection.write(piece);
            }
            assert_eq!(connection.read_reply("GET").status, 200);
            assert_eq!(backend.last().header("x-forwarded-for"), Some(caller));
            assert_eq!(connection.get("/").status, 200, "it is said once");
        }
    }
}

#[test]
fn nothing_else_is_accepted_where_a_balancer_should_speak_nor_a_balancer_elsewhere() {
    let backend = Backend::start();
    let gateway = behind_a_balancer(&backend);
    for bytes in [GET, b"PROXY TCP4 nobody nobody 1 2\r\n", b"\x16\x03\x01\x02\0", b"PROXY UDP4 "] {
        let mut connection = gateway.connect();
        connection.write(bytes);
        connection.write(GET);
        assert!(connection.is_closed());
    }
    let mut elsewhere = crate::common::Connection::open(gateway.server().addresses()[1]);
    elsewhere.write(&[TEXT, GET].concat());
    assert_eq!(elsewhere.read_reply("GET").status, 400);
    assert_eq!(backend.count(), 0);
}

#[test]
fn who_does_not_greet_in_time_is_let_go_and_counted() {
    let (backend, authority) = (Backend::start(), Authority::new());
    let yaml = format!(
        "admin: 127.0.0.1:0\nserver: {{ handshake_timeout: 200ms }}\nlisten: [{{ address: 127.0.0.1:0, proxy_protocol: true }}, {{ address: 127.0.0.1:0, tls: {{ certificates: [{{ cert: a.pem, key: a.key }}] }} }}]\n{}",
        open(&backend)
    );
    let gateway =
        Gateway::start_with(&yaml, |folder| authority.issue(&["a.test"]).write(folder, "a"));
    let addresses = gateway.server().addresses();
    for (address, bytes) in addresses.iter().zip([&TEXT[..20], b"\x16\x03\x01"]) {
        for bytes in [bytes, b""] {
            let mut connection = crate::common::Connection::open(*address);
            let began = Instant::now();
            connection.write(bytes);
            assert!(connection.is_closed());
            assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        }
    }
    // The caller may see the end before the gateway has counted it.
    let line = "sluice_refused_total{reason=\"handshake\"} 4";
    eventually("all four to be counted", || {
        let page = crate::common::Connection::to_operator(gateway.admin()).get("/metrics");
        page.text().contains(line).then_some(())
    });
    // Whoever speaks HTTP where TLS is expected is told.
    let mut plain = crate::common::Connection::open(addresses[1]);
    plain.write(GET);
    assert_eq!(plain.read_reply("GET").status, 400);
    assert!(plain.is_closed());
}
