//! Carrying bytes through a tunnel, where a limit counts them.

use crate::common::{Backend, Connection, Gateway, eventually, limited};
use std::io::{Read, Write};
use std::net::TcpStream;

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A frame with so much payload; what a client sends is masked.
fn frame(length: usize, masked: bool) -> Vec<u8> {
    let mask: u8 = if masked { 0x80 } else { 0 };
    let mut frame = vec![0x82, mask + 126];
    frame.extend((length as u16).to_be_bytes());
    frame.resize(frame.len() + length + if masked { 4 } else { 0 }, 0);
    frame
}

/// Agrees, and says back what it hears (without masks: the masks here are zero, and it keeps frames whole).
/// What it hears after that is counted.
fn backend(heard: std::sync::Arc<parking_lot::Mutex<Vec<u8>>>, echoes: bool) -> Backend {
    Backend::with(move |seen, stream: &mut TcpStream| {
        let protocol = seen.header("upgrade").unwrap_or("none").to_owned();
        let accept = if protocol == "websocket" {
            format!("sec-websocket-accept: {ACCEPT}\r\n")
        } else {
            String::new()
        };
        let head =
            format!("HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n{accept}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut bytes = vec![0; 65536];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            heard.lock().extend_from_slice(&bytes[..count]);
            if echoes && stream.write_all(&frame(1000, false)).is_err() {
                break;
            }
        }
        false
    })
}

fn ask(gateway: &Gateway, protocol: &str) -> Connection {
    let mut connection = gateway.connect();
    connection.write(
        format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: {protocol}\r\nsec-websocket-key: {KEY}\r\n\r\n").as_bytes(),
    );
    assert_eq!(connection.head().unwrap().status, 101);
    connection
}

fn bytes(by: &str, rate: &str) -> String {
    format!("[{{ name: bytes, by: ip, rate: {rate}, cost: {{ {by}: 1KiB }} }}]")
}

fn used(gateway: &Gateway) -> u64 {
    let lines = gateway.log.wait_for(1);
    lines[0]["costs"]["bytes"].as_u64().unwrap()
}

#[test]
fn bytes_sent_through_a_websocket_are_counted_and_closed_with_1008() {
    let heard = std::sync::Arc::default();
    let backend = backend(std::sync::Arc::clone(&heard), false);
    let gateway = Gateway::start(&limited(&backend, &bytes("request_bytes", "100/hour")));
    let mut connection = ask(&gateway, "websocket");
    let sent = frame(10_000, true);
    // 100 KiB are ten frames and a bit; far more are tried.
    let mut writer = connection.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || (0..60).all(|_| writer.write_all(&sent).is_ok()));
    let close = connection.exactly(23).expect("a Close frame");
    assert_eq!(close[..4], [0x88, 21, 0x03, 0xf0], "1008");
    assert_eq!(&close[4..], b"rate limit exceeded");
    assert!(connection.is_closed());
    drop(connection);
    let _ = writing.join();
    let (used, heard) = (used(&gateway), heard.lock().len().div_ceil(1024) as u64);
    assert!((30..=100).contains(&used), "{used} of 100 KiB");
    // A reset may overtake what was on its way to the backend.
    assert!(heard <= used, "{heard} of {used} KiB");
    assert_eq!(gateway.server().gateway().metrics.limit("bytes", "").total("rejected"), 1);
}

#[test]
fn bytes_that_come_through_a_websocket_are_counted() {
    let backend = backend(std::sync::Arc::default(), true);
    let gateway = Gateway::start(&limited(&backend, &bytes("response_bytes", "20/hour")));
    let mut connection = ask(&gateway, "websocket");
    let mut got = 0;
    let close = loop {
        connection.write(&frame(10, true));
        let head = connection.exactly(4).expect("a frame");
        if head[0] == 0x88 {
            break head;
        }
        got += 4 + connection.exactly(1000).expect("a payload").len();
    };
    assert_eq!(close, [0x88, 21, 0x03, 0xf0]);
    assert!((10 << 10..=20 << 10).contains(&got), "{got} bytes of 20 KiB");
    drop(connection);
    assert_eq!(used(&gateway), got.div_ceil(1024) as u64);
}

#[test]
fn another_protocol_is_reset_when_a_limit_is_used_up() {
    let heard = std::sync::Arc::default();
    let backend = backend(std::sync::Arc::clone(&heard), false);
    let gateway = Gateway::start(&limited(&backend, &bytes("request_bytes", "100/hour")));
    let mut connection = ask(&gateway, "echo");
    for _ in 0..100 {
        if connection.stream.write_all(&[0; 8192]).is_err() {
            break;
        }
    }
    assert!(connection.is_closed());
    drop(connection);
    let (used, heard) = (used(&gateway), heard.lock().len().div_ceil(1024) as u64);
    assert!((30..=100).contains(&used) && heard <= used, "{heard} of {used} KiB");
}

#[test]
fn a_tunnel_costs_what_passed_and_gives_the_rest_of_its_piece_back() {
    let backend = backend(std::sync::Arc::default(), false);
    let gateway = Gateway::start(&limited(&backend, &bytes("request_bytes", "1000/hour")));
    let mut connection = ask(&gateway, "websocket");
    connection.write(&frame(3000, true));
    eventually("a piece to be charged", || {
        let reply = gateway.get("/?other");
        (reply.status != 101 && reply.number("x-ratelimit-remaining") < 1000).then_some(())
    });
    drop(connection);
    let line = eventually("the tunnel's line", || {
        gateway.log.lines().into_iter().find(|line| line["status"] == 101)
    });
    assert_eq!(line["costs"]["bytes"], 3);
}
