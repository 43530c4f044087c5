//! Costs that are known only later: reserved, then settled before the last byte of the answer.

use crate::common::backend::{Seen, ok};
use crate::common::{Backend, Connection, Gateway, HeldPort, eventually, limited};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A limit of 100 a minute with this cost.
fn costing(backend: &Backend, cost: &str) -> Gateway {
    let limit = format!("[{{ name: tokens, by: ip, rate: 100/minute, cost: {cost} }}]");
    Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(backend, &limit)))
}

fn metric(gateway: &Gateway, name: &str) -> u64 {
    let page = Connection::to_operator(gateway.admin()).get("/metrics");
    let line = page.text().lines().find_map(|line| line.strip_prefix(name)).expect(name);
    line.trim().parse().unwrap()
}

fn answer(headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{headers}\r\n{body}").into_bytes()
}

/// Answers with the cost that the request's path names: `/cost/7`.
fn priced() -> Backend {
    Backend::answering(|seen: &Seen| match seen.target.rsplit('/').next().unwrap() {
        "none" => answer("", "hello"),
        "failed" => b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n".to_vec(),
        "gone" => Vec::new(),
        cost => answer(&format!("x-cost: {cost}\r\n"), "hello"),
    })
}

#[test]
fn a_header_of_the_answer_tells_the_cost() {
    let backend = priced();
    let gateway = costing(&backend, "{ response_header: X-Cost, reserve: 10 }");
    let remaining = |path| gateway.get(path).number("x-ratelimit-remaining");
    // 100 − 3 = 97 tokens are nine requests of ten; the answer tells what is left of it.
    assert_eq!(remaining("/cost/3"), 9);
    assert_eq!(remaining("/cost/0"), 9);
    assert_eq!(remaining("/cost/57"), 4, "40 left");
    assert_eq!(remaining("/none"), 3, "what was reserved stays: 30 left");
    assert_eq!(remaining("/cost/nonsense"), 2);
    assert_eq!(remaining("/failed"), 1, "an answer without a number, as any other");
    let told = metric(&gateway, "sluice_limit_unsettled_total{limit=\"tokens\"}");
    assert_eq!(told, 3);
}

#[test]
fn a_backend_can_tell_the_cost_to_the_gateway_alone() {
    let backend = Backend::answering(|_| answer("x-cost: 57\r\nconnection: x-cost\r\n", "hello"));
    let gateway = costing(&backend, "{ response_header: X-Cost, reserve: 10 }");
    let reply = gateway.get("/");
    assert_eq!(reply.number("x-ratelimit-remaining"), 4, "43 left");
    assert_eq!(reply.header("x-cost"), None);
}

#[test]
fn a_body_that_must_be_read_is_asked_for_as_it_is() {
    let backend = Backend::answering(|_| answer("", "{\"cost\": 57}"));
    let limit = "[{ by: ip, rate: 100/minute, cost: { response_json: cost, reserve: 10 } }]";
    let edits = "request_headers: { set: { accept-encoding: gzip } }\n    limits";
    let gateway = Gateway::start(&limited(&backend, limit).replace("limits", edits));
    gateway.send("GET", "/", &[("accept-encoding", "br")], b"");
    assert_eq!(backend.last().header("accept-encoding"), Some("identity"));
}

#[test]
fn a_refusal_is_no_answer_that_told_nothing() {
    let backend = priced();
    let gateway = costing(&backend, "{ response_json: cost, reserve: 10 }");
    assert_eq!(gateway.raw(b"TRACE / HTTP/1.1\r\nhost: a\r\n\r\n").status, 405);
    let name = "sluice_limit_unsettled_total{limit=\"tokens\"}";
    assert_eq!(metric(&gateway, name), 0);
    assert_eq!(gateway.get("/none").status, 200);
    assert_eq!(metric(&gateway, name), 1);
}

#[test]
fn a_cost_may_leave_a_debt() {
    let backend = priced();
    let gateway = costing(&backend, "{ response_header: X-Cost, reserve: 10 }");
    let reply = gateway.get("/cost/250");
    assert_eq!((reply.status, reply.number("x-ratelimit-remaining")), (200, 0));
    // 250 used; ten more fit when 160 of them are back, at 100 a minute.
    let reply = gateway.get("/cost/1");
    assert_eq!((reply.status, reply.number("retry-after")), (429, 96));
    gateway.advance(Duration::from_micros(96_000_000 - 1));
    assert_eq!(gateway.get("/cost/1").status, 429);
    gateway.advance(Duration::from_micros(1));
    assert_eq!(gateway.get("/cost/1").status, 200);
}

#[test]
fn a_backend_that_takes_a_request_and_gives_no_answer_costs_what_was_reserved() {
    let backend = priced();
    for cost in ["{ response_header: X-Cost, reserve: 50 }", "{ response_json: cost, reserve: 50 }"]
    {
        let gateway = costing(&backend, cost);
        for left in [1, 0] {
            let reply = gateway.get("/gone");
            assert_eq!((reply.status, reply.number("x-ratelimit-remaining")), (502, left));
        }
        assert_eq!(gateway.get("/none").status, 429);
    }
}

#[test]
fn a_number_in_the_answer_tells_the_cost() {
    let body = r#"{"choices":[{"text":"{\"usage\":1}"}],"usage":{"total_tokens":93}}"#;
    let backend = Backend::answering(move |seen: &Seen| {
        assert_eq!(seen.header("accept-encoding"), Some("identity"), "so that it can be read");
        answer("content-type: application/json\r\n", body)
    });
    let gateway = costing(&backend, "{ response_json: usage.total_tokens, reserve: 5 }");
    let reply = gateway.get_with("/", &[("accept-encoding", "gzip, br")]);
    assert_eq!(reply.text(), body);
    assert_eq!(reply.number("x-ratelimit-remaining"), 19, "the head was out before");
    let reply = gateway.get("/");
    assert_eq!((reply.status, reply.number("x-ratelimit-remaining")), (200, 0), "7 − 5 are left");
    assert_eq!(gateway.get("/").status, 429);
}

/// Sends pieces when it is told to.
fn streaming(head: &'static str) -> (Backend, mpsc::Sender<&'static str>) {
    let (pieces, on_piece) = mpsc::channel::<&str>();
    let on_piece = Arc::new(Mutex::new(on_piece));
    let backend = Backend::with(move |_, stream: &mut TcpStream| {
        let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n").as_bytes());
        while let Ok(piece) = on_piece.lock().unwrap().recv() {
            let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
            let _ = stream.write_all(chunk.as_bytes());
            if piece.is_empty() {
                return true;
            }
        }
        false
    });
    (backend, pieces)
}

/// A request whose answer has begun and has not told its cost.
fn under_way(gateway: &Gateway, pieces: &mpsc::Sender<&'static str>) -> Connection {
    let mut connection = gateway.connect();
    connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    pieces.send("data: {\"usage\":null}\n\n").unwrap();
    assert_eq!(connection.head().unwrap().status, 200);
    connection
}

const EVENTS: &str = "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n";

#[test]
fn the_last_event_that_has_the_number_counts_and_is_settled_with_the_end() {
    let (backend, pieces) = streaming(EVENTS);
    let gateway = costing(&backend, "{ response_json: usage.total_tokens, reserve: 60 }");
    let mut connection = under_way(&gateway, &pieces);
    for piece in [
        "data: {\"usage\":{\"total_",
        "tokens\":70}}\n\n",
        "data: {\"usage\":{\"total_tokens\":30}}\n\n",
    ] {
        pieces.send(piece).unwrap();
    }
    assert_eq!(gateway.get("/").status, 429, "60 are reserved while it runs");
    for piece in ["data: {\"usage\":null}\n\ndata: [DONE]\n\n", ""] {
        pieces.send(piece).unwrap();
    }
    while connection.exactly(1).is_some_and(|byte| byte != b"0") {}
    let mut end = connection.exactly(4).unwrap();
    while end != b"\r\n\r\n" {
        end.remove(0);
        end.extend(connection.exactly(1).unwrap());
    }
    // Who has read the end finds it settled: 30 used, 70 left.
    for piece in ["data: {\"usage\":{\"total_tokens\":0}}\n\n", ""] {
        pieces.send(piece).unwrap();
    }
    let reply = gateway.get("/");
    assert_eq!((reply.status, reply.number("x-ratelimit-remaining")), (200, 0));
}

#[test]
fn who_leaves_before_the_number_came_has_cost_what_was_reserved() {
    let (backend, pieces) = streaming(EVENTS);
    let gateway = costing(&backend, "{ response_json: usage.total_tokens, reserve: 60 }");
    let connection = under_way(&gateway, &pieces);
    drop(connection);
    drop(pieces);
    assert_eq!(gateway.get("/").status, 429);
}

#[test]
fn bytes_of_the_request_cost_by_the_unit() {
    let backend = Backend::start();
    let gateway = costing(&backend, "{ request_bytes: 1KiB }");
    let post = |length: usize| {
        let reply = gateway.send("POST", "/", &[], &vec![b'x'; length]);
        (reply.status, reply.number("x-ratelimit-remaining"))
    };
    assert_eq!(post(0), (200, 100), "no body, no cost");
    assert_eq!(post(1), (200, 99));
    assert_eq!(post(49 * 1024), (200, 1), "50 left, and one more of 49");
    // Without a length one token is reserved, and what comes is counted.
    let chunk = "x".repeat(1500);
    let chunked = format!("transfer-encoding: chunked\r\n\r\n5dc\r\n{chunk}\r\n0\r\n\r\n");
    let reply = gateway.raw(format!("POST / HTTP/1.1\r\nhost: a\r\n{chunked}").as_bytes());
    assert_eq!((reply.status, reply.number("x-ratelimit-remaining")), (200, 49));
    assert_eq!(post(1), (200, 47), "two tokens it was");
    assert_eq!(post(48 * 1024).0, 429, "47 left");
    // More than can ever be there is too large, and costs nothing.
    gateway.advance(Duration::from_secs(60));
    assert_eq!(post(101 * 1024).0, 413);
    assert_eq!(post(100 * 1024), (200, 0));
}

#[test]
fn uploads_that_get_no_answer_cost_what_has_passed() {
    let backend = Backend::start();
    let limit = "[{ name: tokens, by: ip, rate: 100/minute, cost: { request_bytes: 1KiB } }]";
    let yaml = limited(&backend, limit);
    let gateway = Gateway::start(&format!("server: {{ max_body_bytes: 20KiB }}\n{yaml}"));
    let left = || gateway.get("/").number("x-ratelimit-remaining");
    // Announced and refused at once: nothing has passed.
    assert_eq!(gateway.send("POST", "/", &[], &vec![b'x'; 50 * 1024]).status, 413);
    assert_eq!(left(), 100);
    // Not announced, and refused when it turned out too long: a piece of 64 KiB had begun to pass.
    let chunk = format!("2000\r\n{}\r\n", "x".repeat(8192));
    let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let reply = gateway.raw(format!("{head}{chunk}{chunk}{chunk}0\r\n\r\n").as_bytes());
    assert_eq!(reply.status, 413);
    assert_eq!(left(), 36);
}

#[test]
fn a_client_that_leaves_in_the_middle_of_an_upload_pays_for_the_piece_that_had_begun() {
    let port = HeldPort::new();
    let (listener, address) = (TcpListener::bind(port.address()).unwrap(), port.address());
    let limit = "[{ name: tokens, by: ip, rate: 100/minute, cost: { request_bytes: 1KiB } }]";
    let upstream = format!("upstreams: {{ app: 'http://{address}' }}\n");
    let route = format!("routes: [{{ path: /, upstream: app, limits: {limit} }}]\n");
    let gateway = Gateway::start(&format!("{upstream}{route}"));
    let mut leaving = gateway.connect();
    let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    leaving.write(format!("{head}2000\r\n{}\r\n", "x".repeat(8192)).as_bytes());
    let (mut stream, _) = listener.accept().unwrap();
    let (mut read, mut buffer) = (0, [0; 4096]);
    while read < 8192 {
        read += stream.read(&mut buffer).unwrap();
    }
    // From now on there is no backend; a client that asks is told what is left all the same.
    drop(listener);
    drop(leaving);
    eventually("it is settled", || {
        let reply = gateway.get("/");
        assert_eq!(reply.status, 502);
        (reply.number("x-ratelimit-remaining") == 36).then_some(())
    });
}

#[test]
fn who_leaves_the_queue_has_cost_nothing() {
    let backend = priced();
    let queue =
        "{ name: queue, by: ip, rate: 1/hour, algorithm: leaky_bucket, queue: 5, max_wait: 9h }";
    let tokens =
        "{ name: tokens, by: ip, rate: 100/hour, cost: { response_header: X-Cost, reserve: 40 } }";
    let yaml = limited(&backend, &format!("[{queue}, {tokens}]"));
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{yaml}"));
    assert_eq!(gateway.get("/cost/10").status, 200);
    let mut waiting = gateway.connect();
    waiting.write(b"GET /cost/1 HTTP/1.1\r\nhost: a\r\n\r\n");
    let decisions = gateway.server().gateway().metrics.limit("tokens", "");
    eventually("it waits", || (decisions.total("allowed") == 2).then_some(()));
    drop(waiting);
    eventually("they have left", || {
        (metric(&gateway, "sluice_requests_in_flight") == 0).then_some(())
    });
    // 10 used, 90 left: two more reservations of 40 fit.
    let mut others: Vec<_> = (0..2).map(|_| gateway.connect()).collect();
    for other in &mut others {
        other.write(b"GET /cost/1 HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    eventually("both are decided", || {
        (decisions.total("allowed") + decisions.total("rejected") == 4).then_some(())
    });
    assert_eq!(decisions.total("rejected"), 0);
}

#[test]
fn bytes_of_the_answer_cost_by_the_unit() {
    let backend = Backend::answering(|seen: &Seen| {
        ok(&"x".repeat(seen.target.trim_start_matches('/').parse().unwrap()))
    });
    let gateway = costing(&backend, "{ response_bytes: 1KiB, reserve: 2 }");
    let remaining = |path| gateway.get(path).number("x-ratelimit-remaining");
    assert_eq!(remaining("/0"), 49);
    assert_eq!(remaining("/1"), 49, "nothing was used by the first");
    assert_eq!(remaining("/51201"), 48, "99 − 2");
    assert_eq!(remaining("/0"), 23, "51 more were");
}

#[test]
fn a_candidate_settles_as_its_limit_does() {
    let backend = priced();
    let limit = "[{ name: tokens, by: ip, rate: 100/minute, candidate: { rate: 50/minute }, cost: { response_header: X-Cost, reserve: 10 } }]";
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, limit)));
    assert_eq!(gateway.get("/cost/45").number("x-ratelimit-remaining"), 5);
    assert_eq!(gateway.get("/cost/1").status, 200);
    let rejected =
        "sluice_limit_decisions_total{limit=\"tokens/candidate\",verdict=\"shadow_rejected\"}";
    assert_eq!(metric(&gateway, rejected), 1);
}
