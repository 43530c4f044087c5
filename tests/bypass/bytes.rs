//! Announcing bytes, and sending more than a limit holds.

use super::kit::{Setup, on_every_store, quiet, settles_at, used};
use crate::common::http2::{Client, push};
use crate::common::{Backend, Connection, Gateway, eventually};
use http::Request;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit of this many KiB an hour.
fn kibibytes(by: &str, count: u32) -> String {
    format!("[{{ name: bytes, by: {by}, rate: {count}/hour, cost: {{ request_bytes: 1KiB }} }}]")
}

fn start(store: &str, backend: &Backend, limits: &str) -> Gateway {
    let more = "server: { body_timeout: 1s, max_body_bytes: none }";
    Setup { store, backend: backend.address(), limits, more, ..Setup::default() }.start()
}

fn announce(gateway: &Gateway, length: usize) -> Connection {
    let mut connection = gateway.connect();
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    connection.write(head.as_bytes());
    connection
}

#[test]
fn announcing_ten_mebibytes_without_a_body_takes_one_piece_of_a_global_limit() {
    on_every_store(|store| {
        let backend = Backend::start();
        let gateway = start(store, &backend, &kibibytes("global", 20 * 1024));
        let mut idle: Vec<_> = (0..20).map(|_| announce(&gateway, 10 << 20)).collect();
        eventually("all are at the backend", || (backend.connections() == 20).then_some(()));
        assert_eq!(used(&gateway, "bytes"), 20 * 64);
        // Everybody else can go on, also with all that is left.
        assert_eq!(gateway.send("POST", "/", &[], &vec![b'x'; 1 << 20]).status, 200);
        for connection in &mut idle {
            assert_eq!(connection.read_reply("POST").status, 408);
        }
        settles_at(&gateway, "bytes", 20 * 64 + 1024);
    });
}

#[test]
fn announcing_takes_one_piece_of_a_leased_limit_too() {
    let redis = crate::common::redis::Redis::start();
    let store = format!("store: {{ redis: {{ url: '{}', timeout: 5s }} }}", redis.url());
    let backend = Backend::start();
    let limits = kibibytes("global", 20 * 1024).replace(" }]", ", consistency: leased }]");
    let gateway = start(&store, &backend, &limits);
    let mut idle: Vec<_> = (0..5).map(|_| announce(&gateway, 10 << 20)).collect();
    eventually("all are at the backend", || (backend.connections() == 5).then_some(()));
    assert_eq!(gateway.send("POST", "/", &[], &vec![b'x'; 1 << 20]).status, 200);
    for connection in &mut idle {
        assert_eq!(connection.read_reply("POST").status, 408);
    }
    settles_at(&gateway, "bytes", 5 * 64 + 1024);
}

#[test]
fn leaving_before_the_announced_body_gives_nothing_back() {
    on_every_store(|store| {
        let backend = Backend::start();
        let gateway = start(store, &backend, &kibibytes("ip", 20 * 1024));
        for attempt in 0..5 {
            let connection = announce(&gateway, 10 << 20);
            eventually("it is at the backend", || {
                (backend.connections() == attempt + 1).then_some(())
            });
            drop(connection);
            quiet(&gateway);
        }
        settles_at(&gateway, "bytes", 5 * 64);
    });
}

#[test]
fn an_announced_length_that_the_limit_cannot_hold_now_is_refused_before_its_body() {
    on_every_store(|store| {
        for (by, refused) in [("ip", 429), ("global", 503)] {
            let backend = Backend::start();
            let gateway = start(store, &backend, &kibibytes(by, 1024));
            assert_eq!(gateway.send("POST", "/", &[], &vec![b'x'; 512 << 10]).status, 200);
            // Not a byte of the body is sent, and there is an answer all the same.
            let reply = announce(&gateway, 768 << 10).read_reply("POST");
            assert_eq!((reply.status, reply.header("connection")), (refused, Some("close")));
            assert!(reply.number("retry-after") > 0);
            assert_eq!(backend.count(), 1);
            settles_at(&gateway, "bytes", 512);
            // What it can never hold is too large, and costs no bytes.
            assert_eq!(announce(&gateway, 2 << 20).read_reply("POST").status, 413);
            settles_at(&gateway, "bytes", 512);
            gateway.advance(std::time::Duration::from_secs(3600));
        }
    });
}

/// What a backend got.
#[derive(Clone, Default)]
struct Received {
    bytes: Arc<AtomicUsize>,
    /// Connections that are open.
    open: Arc<AtomicUsize>,
}

impl Received {
    /// Bytes of bodies, once every connection is closed.
    fn all(&self) -> usize {
        let closed = || (self.open.load(Ordering::SeqCst) == 0).then_some(());
        eventually("the connections are closed", closed);
        self.bytes.load(Ordering::SeqCst)
    }
}

/// A backend that counts what it gets of bodies, and never answers.
fn counting() -> (std::net::SocketAddr, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, received) = (listener.local_addr().unwrap(), Received::default());
    let counter = received.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, counter) = (stream.unwrap(), counter.clone());
            counter.open.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 65536];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    let text = String::from_utf8_lossy(&buffer[..count]);
                    let data = text.matches('~').count();
                    counter.bytes.fetch_add(data, Ordering::SeqCst);
                }
                counter.open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (address, received)
}

#[test]
fn a_chunked_upload_ends_with_429_when_the_limit_is_used_up() {
    on_every_store(|store| {
        let (backend, received) = counting();
        let limits = kibibytes("ip", 200);
        let gateway = Setup { store, backend, limits: &limits, ..Setup::default() }.start();
        let mut connection = gateway.connect();
        connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
        let chunk = format!("2000\r\n{}\r\n", "~".repeat(8192));
        let mut writing = connection.stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            // Four times as much as the limit holds, unless the connection closes before.
            (0..100).take_while(|_| writing.write_all(chunk.as_bytes()).is_ok()).count()
        });
        let reply = connection.read_reply("POST");
        assert_eq!((reply.status, reply.header("connection")), (429, Some("close")));
        assert!(reply.number("retry-after") > 0);
        while !connection.is_closed() {}
        writer.join().unwrap();
        settles_at(&gateway, "bytes", 200);
        let received = received.all();
        assert!(
            received <= 200 << 10,
            "{received} bytes passed: paid for before they are forwarded"
        );
    });
}

#[test]
fn an_upload_over_http2_ends_with_429_when_the_limit_is_used_up() {
    on_every_store(|store| {
        let (backend, received) = counting();
        let limits = kibibytes("ip", 200);
        let gateway = Setup { store, backend, limits: &limits, ..Setup::default() }.start();
        let client = Client::open(gateway.address());
        let status = client.runtime.block_on(async {
            let mut send = client.send.clone().ready().await.unwrap();
            let request = Request::post("http://a.test/").body(()).unwrap();
            let (response, mut body) = send.send_request(request, false).unwrap();
            let pushing = async { push(&mut body, &vec![b'~'; 800 << 10], true).await };
            let (response, _) = tokio::join!(response, pushing);
            response.unwrap().status().as_u16()
        });
        assert_eq!(status, 429);
        quiet(&gateway);
        assert!((180..=200).contains(&used(&gateway, "bytes")), "all but a frame's worth");
        assert!(received.all() <= 200 << 10);
    });
}

#[test]
fn many_uploads_at_once_pass_no_more_than_the_limit_holds() {
    on_every_store(|store| {
        let (backend, received) = counting();
        let limits = kibibytes("ip", 1000);
        let gateway = Setup { store, backend, limits: &limits, ..Setup::default() }.start();
        std::thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    let mut connection = gateway.connect();
                    let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
                    connection.write(head.as_bytes());
                    let chunk = format!("8000\r\n{}\r\n", "~".repeat(32768));
                    for _ in 0..10 {
                        connection.write(chunk.as_bytes());
                    }
                    let reply = connection.try_reply("POST");
                    assert!(reply.is_none_or(|reply| reply.status == 429));
                });
            }
        });
        quiet(&gateway);
        let received = received.all();
        assert!(received <= 1000 << 10, "{received} bytes passed");
        assert!(used(&gateway, "bytes") <= 1000);
    });
}

#[test]
fn a_shadow_limit_of_bytes_ends_no_upload() {
    let backend = Backend::start();
    let limits = kibibytes("ip", 100).replace("by:", "mode: shadow, by:");
    let gateway = start("store: memory", &backend, &limits);
    let mut body = Vec::new();
    for _ in 0..50 {
        body.extend(format!("2000\r\n{}\r\n", "x".repeat(8192)).into_bytes());
    }
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let reply = gateway.raw(&[head, &*body, b"0\r\n\r\n"].concat());
    assert_eq!((reply.status, backend.last().body.len()), (200, 50 * 8192));
    assert_eq!(gateway.send("POST", "/", &[], &vec![b'x'; 500 << 10]).status, 200);
    assert!(used(&gateway, "bytes") <= 100);
}
