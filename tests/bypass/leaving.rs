//! Leaving before the number that tells the cost has come.

use super::kit::{
    CANCELLED, Event, FINISHED, Setup, begin, metric, on_every_store, quiet, reaches, reset,
    settles_at, tokens, used,
};
use crate::common::backend::{Seen, ok};
use crate::common::http2::{Client, get};
use crate::common::{Backend, Connection, Gateway, eventually};
use http::Request;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PRICE: &str = "{ response_json: usage.total_tokens, reserve: 100 }";
const USAGE: &str = "data: {\"usage\":{\"total_tokens\":5000}}\n\n";
const EVENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// A stream of so many bytes, the last of which tell what it cost.
fn stream(length: usize) -> String {
    let filler = "x".repeat(length - USAGE.len() - 8);
    format!("data: {filler}\n\n{USAGE}")
}

/// Sends the beginning of a stream, waits for a word, and sends the number and the end.
fn pausing() -> (Backend, Event) {
    let word = Event::default();
    let heard = word.clone();
    let backend = Backend::with(move |_, stream| {
        let begun = stream.write_all(format!("{EVENTS}{}", chunk("data: {}\n\n")).as_bytes());
        heard.wait();
        let end = format!("{}0\r\n\r\n", chunk(USAGE));
        begun.is_ok() && stream.write_all(end.as_bytes()).is_ok()
    });
    (backend, word)
}

/// Waits for a word, and then says that it cost 1,000.
fn working() -> (Backend, Event) {
    let word = Event::default();
    let heard = word.clone();
    let backend = Backend::with(move |_, stream| {
        heard.wait();
        let answer = b"HTTP/1.1 200 OK\r\nx-cost: 1000\r\ncontent-length: 2\r\n\r\nok";
        stream.write_all(answer).is_ok()
    });
    (backend, word)
}

#[test]
fn reading_all_but_the_last_byte_and_resetting_pays_for_the_whole_answer() {
    const LENGTH: usize = 30_000;
    on_every_store(|store| {
        let backend = Backend::answering(|_| {
            let body = format!("{EVENTS}{}0\r\n\r\n", chunk(&stream(LENGTH)));
            body.into_bytes()
        });
        let limits = tokens(PRICE);
        let setup =
            Setup { store, backend: backend.address(), limits: &limits, ..Setup::default() };
        let gateway = setup.start();
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(u32::try_from(LENGTH - 1).unwrap());
        let mut client = Client::with(gateway.address(), &builder);
        for _ in 0..20 {
            let mut stream = begin(&mut client, get("/"), true);
            assert_eq!(stream.head(&client), 200);
            assert_eq!(stream.read(&client, LENGTH - 1).len(), LENGTH - 1);
            stream.reset(&client);
        }
        settles_at(&gateway, "tokens", 20 * 5000);
    });
}

#[test]
fn closing_before_the_last_event_pays_for_the_whole_answer() {
    on_every_store(|store| {
        for leave in [drop, reset] {
            let (backend, word) = pausing();
            let limits = tokens(PRICE);
            let setup =
                Setup { store, backend: backend.address(), limits: &limits, ..Setup::default() };
            let gateway = setup.start();
            let before = used(&gateway, "tokens");
            let leavers: Vec<Connection> = (0..10)
                .map(|_| {
                    let mut connection = gateway.connect();
                    connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
                    assert_eq!(connection.head().unwrap().status, 200);
                    connection
                })
                .collect();
            leavers.into_iter().for_each(leave);
            word.happen();
            settles_at(&gateway, "tokens", before + 10 * 5000);
        }
    });
}

#[test]
fn closing_right_after_a_post_pays_what_the_answers_header_says() {
    on_every_store(|store| {
        for leave in [drop, reset] {
            let (backend, word) = working();
            let limits = tokens("{ response_header: X-Cost, reserve: 10 }");
            let setup =
                Setup { store, backend: backend.address(), limits: &limits, ..Setup::default() };
            let gateway = setup.start();
            let before = used(&gateway, "tokens");
            let leavers: Vec<Connection> = (0..50)
                .map(|_| {
                    let mut connection = gateway.connect();
                    connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\njob");
                    connection
                })
                .collect();
            eventually("every job is at the backend", || (backend.count() == 50).then_some(()));
            leavers.into_iter().for_each(leave);
            word.happen();
            settles_at(&gateway, "tokens", before + 50 * 1000);
        }
    });
}

fn grpc(timeout: &str) -> Request<()> {
    let request = Request::post("http://a.test/a.B/C").header("content-type", "application/grpc");
    request.header("te", "trailers").header("grpc-timeout", timeout).body(()).unwrap()
}

#[test]
fn a_grpc_deadline_of_a_nanosecond_is_no_discount() {
    on_every_store(|store| {
        let backend = Backend::answering(|_| {
            b"HTTP/1.1 200 OK\r\nx-cost: 1000\r\ncontent-length: 2\r\n\r\nok".to_vec()
        });
        let limits = "[{ name: tokens, by: ip, rate: 10000/hour, cost: { response_header: X-Cost, reserve: 1000 } }]";
        let setup = Setup { store, backend: backend.address(), limits, ..Setup::default() };
        let gateway = setup.start();
        let mut client = Client::open(gateway.address());
        for _ in 0..40 {
            let answer = client.ask_with(grpc("1n"), Some(b"\0\0\0\0\0"), None);
            assert_eq!(answer.status, 200);
            let status = answer.header("grpc-status").or(answer.header("x-cost")).unwrap();
            assert!(["4", "8", "1000"].contains(&status), "{answer:?}");
        }
        quiet(&gateway);
        assert!(backend.count() <= 10, "{} requests where 10 fit", backend.count());
        assert_eq!(used(&gateway, "tokens"), 1000 * backend.count() as u64);
    });
}

#[test]
fn a_grpc_deadline_that_is_over_does_not_end_the_metering() {
    on_every_store(|store| {
        let (backend, word) = working();
        let limits = tokens("{ response_header: X-Cost, reserve: 10 }");
        let setup =
            Setup { store, backend: backend.address(), limits: &limits, ..Setup::default() };
        let gateway = setup.start();
        let mut client = Client::open(gateway.address());
        for _ in 0..5 {
            let answer = client.ask_with(grpc("100m"), Some(b"\0\0\0\0\0"), None);
            assert_eq!((answer.status, answer.header("grpc-status")), (200, Some("4")));
        }
        assert_eq!(backend.count(), 5);
        word.happen();
        settles_at(&gateway, "tokens", 5 * 1000);
    });
}

#[test]
fn a_grpc_deadline_that_is_over_makes_no_hole_in_the_upload() {
    let backend = Backend::answering(|_| {
        b"HTTP/1.1 200 OK\r\nx-cost: 1000\r\ncontent-length: 2\r\n\r\nok".to_vec()
    });
    let limits = tokens("{ response_header: X-Cost, reserve: 10 }");
    let gateway = Setup { backend: backend.address(), limits: &limits, ..Setup::default() }.start();
    let client = Client::open(gateway.address());
    let piece = |n: u8| bytes::Bytes::from(vec![n; 10_000]);
    client.runtime.block_on(async {
        let mut send = client.send.clone().ready().await.unwrap();
        let (answer, mut body) = send.send_request(grpc("100m"), false).unwrap();
        body.send_data(piece(0), false).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], "4", "the deadline is over");
        // What is sent now belongs to the request all the same.
        for n in 1..5 {
            body.send_data(piece(n), n == 4).unwrap();
            tokio::task::yield_now().await;
        }
        eventually("the request is at the backend", || (backend.count() == 1).then_some(()));
    });
    let whole: Vec<u8> = (0..5).flat_map(|n| vec![n; 10_000]).collect();
    assert!(backend.last().body == whole, "{} bytes", backend.last().body.len());
    settles_at(&gateway, "tokens", 1000);
}

#[test]
fn answers_that_a_client_can_choose_to_have_no_number_are_not_free() {
    let backend = Backend::answering(|seen: &Seen| {
        match (&*seen.method, &*seen.target) {
        ("HEAD", _) => b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n".to_vec(),
        (_, "/part") => {
            b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-1/9\r\ncontent-length: 2\r\n\r\n{}"
                .to_vec()
        }
        (_, "/same") => b"HTTP/1.1 304 Not Modified\r\n\r\n".to_vec(),
        (_, "/events") => format!("{EVENTS}{}0\r\n\r\n", chunk("data: {}\n\n")).into_bytes(),
        _ => ok("{}"),
    }
    });
    for by in ["response_json: usage.total_tokens", "response_header: X-Cost"] {
        let limits = tokens(&format!("{{ {by}, reserve: 100, unreported: free }}"));
        let setup = Setup { backend: backend.address(), limits: &limits, ..Setup::default() };
        let gateway = setup.start();
        let mut expected = 0;
        for (method, path) in
            [("HEAD", "/"), ("GET", "/part"), ("GET", "/same"), ("GET", "/events")]
        {
            gateway.send(method, path, &[], b"");
            expected += 100;
            settles_at(&gateway, "tokens", expected);
        }
        assert_eq!(gateway.get("/").status, 200);
        settles_at(&gateway, "tokens", expected);
    }
}

#[test]
fn asking_for_a_part_or_for_news_does_not_hide_the_number() {
    let backend = Backend::start();
    let limits = tokens(PRICE);
    let setup = Setup { backend: backend.address(), limits: &limits, ..Setup::default() };
    let gateway = setup.start();
    let asked = [
        "range",
        "if-range",
        "if-match",
        "if-none-match",
        "if-modified-since",
        "if-unmodified-since",
    ];
    let headers: Vec<_> = asked.iter().map(|name| (*name, "bytes=0-1")).collect();
    assert_eq!(gateway.get_with("/", &headers).status, 200);
    for name in asked {
        assert_eq!(backend.last().header(name), None, "{name}");
    }
    // Where no limit reads the answer, they are the backend's affair.
    let setup = Setup { backend: backend.address(), ..Setup::default() };
    setup.start().get_with("/", &headers);
    assert_eq!(backend.last().header("range"), Some("bytes=0-1"));
}

/// Begins a stream that tells a number first, and never ends.
fn endless(first: &'static str) -> (Backend, Arc<AtomicUsize>) {
    let ended = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&ended);
    let backend = Backend::with(move |_, stream: &mut TcpStream| {
        let _ = stream.write_all(format!("{EVENTS}{}", chunk(first)).as_bytes());
        let _ = stream.read(&mut [0; 16]); // until the gateway closes it
        counter.fetch_add(1, Ordering::SeqCst);
        false
    });
    (backend, ended)
}

fn begin_and_reset(gateway: &Gateway) {
    let mut connection = gateway.connect();
    connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(connection.head().unwrap().status, 200);
    connection.exactly(20).unwrap();
    reset(connection);
}

#[test]
fn where_leaving_cancels_a_number_that_never_came_costs_the_most_of_three() {
    const SEEN: &str = "data: {\"usage\":{\"total_tokens\":700}}\n\n";
    const NONE: &str = "data: {\"usage\":null}       \n\n";
    let cases = [
        (NONE, "reserve: 100", 1000), // cost.max is ten times the reserve
        (NONE, "reserve: 100, max: 400", 400),
        (SEEN, "reserve: 100, max: 400", 700),
        (SEEN, "reserve: 900, max: 900", 900),
    ];
    on_every_store(|store| {
        for (first, cost, expected) in cases {
            let (backend, ended) = endless(first);
            let limits = tokens(&format!("{{ response_json: usage.total_tokens, {cost} }}"));
            let setup = Setup {
                store,
                backend: backend.address(),
                upstream: "on_leave: cancel",
                limits: &limits,
                ..Setup::default()
            };
            let gateway = setup.start();
            let before = used(&gateway, "tokens");
            begin_and_reset(&gateway);
            settles_at(&gateway, "tokens", before + expected);
            eventually("it is broken off", || (ended.load(Ordering::SeqCst) == 1).then_some(()));
            assert_eq!((metric(&gateway, CANCELLED), metric(&gateway, FINISHED)), (1, 0));
        }
    });
}

#[test]
fn closing_where_leaving_cancels_breaks_the_backends_work_off() {
    let (backend, ended) = endless("data: {\"usage\":null}       \n\n");
    let limits = tokens(PRICE);
    let setup = Setup {
        backend: backend.address(),
        upstream: "on_leave: cancel",
        limits: &limits,
        ..Setup::default()
    };
    let gateway = setup.start();
    let mut connection = gateway.connect();
    connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(connection.head().unwrap().status, 200);
    connection.exactly(35).unwrap();
    drop(connection);
    eventually("it is broken off", || (ended.load(Ordering::SeqCst) == 1).then_some(()));
    settles_at(&gateway, "tokens", 1000);
}

#[test]
fn a_half_closed_connection_gets_its_answer_and_pays_what_it_says() {
    on_every_store(|store| {
        let (backend, word) = working();
        let limits = tokens("{ response_header: X-Cost, reserve: 10 }");
        let setup =
            Setup { store, backend: backend.address(), limits: &limits, ..Setup::default() };
        let gateway = setup.start();
        let mut connection = gateway.connect();
        connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        connection.stream.shutdown(std::net::Shutdown::Write).unwrap();
        eventually("it is at the backend", || (backend.count() == 1).then_some(()));
        word.happen();
        let reply = connection.read_reply("GET");
        assert_eq!((reply.status, reply.text()), (200, "ok"));
        assert!(connection.is_closed());
        settles_at(&gateway, "tokens", 1000);
        assert_eq!((metric(&gateway, CANCELLED), metric(&gateway, FINISHED)), (0, 0));
    });
}

#[test]
fn at_most_a_hundred_requests_are_finished_for_the_clients_of_one_address() {
    let (backend, word) = working();
    let limits = tokens("{ response_header: X-Cost, reserve: 10, max: 3000 }");
    let setup = Setup { backend: backend.address(), limits: &limits, ..Setup::default() };
    let gateway = setup.start();
    let mut client = Client::open(gateway.address());
    let streams: Vec<_> = (0..120).map(|_| begin(&mut client, get("/"), true)).collect();
    eventually("all are at the backend", || {
        super::kit::flush(&client);
        (backend.count() == 120).then_some(())
    });
    for stream in streams {
        stream.reset(&client);
    }
    reaches(&gateway, CANCELLED, 20);
    assert_eq!(metric(&gateway, FINISHED), 100);
    // Another address has places of its own.
    let mut other = gateway.connect();
    other.write(b"GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.9.8.7\r\n\r\n");
    eventually("it is at the backend", || (backend.count() == 121).then_some(()));
    reset(other);
    reaches(&gateway, FINISHED, 101);
    word.happen();
    // 100 pay what they cost, 20 what a number costs that never came.
    settles_at(&gateway, "tokens", 100 * 1000 + 20 * 3000);
    assert_eq!(gateway.server().gateway().leaving.held(), 0);
}

#[test]
fn an_answer_is_read_on_for_a_mebibyte() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let backend = Backend::with(move |_, stream| {
        let _ = stream.write_all(EVENTS.as_bytes());
        let piece = chunk(&format!("data: {}\n\n", "x".repeat(16 << 10)));
        while stream.write_all(piece.as_bytes()).is_ok() {
            counter.fetch_add(piece.len(), Ordering::SeqCst);
        }
        false
    });
    let limits = tokens("{ response_json: usage.total_tokens, reserve: 100, max: 4000 }");
    let setup = Setup { backend: backend.address(), limits: &limits, ..Setup::default() };
    let gateway = setup.start();
    let mut connection = gateway.connect();
    connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(connection.head().unwrap().status, 200);
    reset(connection);
    settles_at(&gateway, "tokens", 4000);
    eventually("the backend's connection ends", || (backend.open() == 0).then_some(()));
    // Besides, the sockets hold some megabytes on both sides.
    let sent = sent.load(Ordering::SeqCst);
    assert!((1 << 20..32 << 20).contains(&sent), "{sent}");
}

#[test]
fn an_answer_is_read_on_for_half_a_minute() {
    let (backend, ended) = endless("data: {\"usage\":null}       \n\n");
    let limits = tokens("{ response_json: usage.total_tokens, reserve: 100, max: 4000 }");
    let limits = limits.replace(']', ", { name: places, by: ip, concurrency: 1 }]");
    let setup = Setup {
        backend: backend.address(),
        upstream: "timeouts: { response: 90s, body: 90s }",
        limits: &limits,
        ..Setup::default()
    };
    let gateway = setup.start();
    begin_and_reset(&gateway);
    let began = Instant::now();
    reaches(&gateway, FINISHED, 1);
    // This one takes half a minute: that is the bound.
    while ended.load(Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(29), "{took:?}");
    assert_eq!(gateway.get("/").status, 429, "the place is taken for a second more");
    settles_at(&gateway, "tokens", 4000);
    eventually("the place is free", || (used(&gateway, "places") == 0).then_some(()));
    let after = began.elapsed().saturating_sub(took);
    assert!(after >= Duration::from_millis(900), "{after:?}");
}
