//! Reading nothing while there is more to send.

use super::kit::{
    FINISHED, Setup, begin, metric, on_every_store, reaches, settles_at, tokens, used,
};
use crate::common::backend::Seen;
use crate::common::http2::{Client, get};
use crate::common::{Backend, Connection, Gateway};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const COST: &str = "{ response_json: cost, reserve: 100, max: 7000 }";

/// So many bytes, as the path says; the last of them say that it cost 5,000.
fn large() -> Backend {
    Backend::answering(|seen: &Seen| {
        let number = "{\"cost\": 5000}";
        let length: usize = seen.target.trim_start_matches('/').parse().unwrap();
        let body = format!("{}{number}", " ".repeat(length - number.len()));
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
    })
}

/// A client that gives no room for answers.
fn reluctant(gateway: &Gateway) -> Client {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    Client::with(gateway.address(), &builder)
}

/// More than the kernel takes on the way to a client that does not read.
const HUGE: usize = 24 << 20;

fn ask(gateway: &Gateway, length: usize) -> Connection {
    let mut connection = gateway.connect();
    connection.write(format!("GET /{length} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes());
    connection
}

#[test]
fn a_client_that_stalls_has_left_and_the_answer_is_metered_without_it() {
    on_every_store(|store| {
        let backend = large();
        let limits = tokens(COST);
        let setup = Setup {
            store,
            backend: backend.address(),
            limits: &limits,
            more: "server: { idle_timeout: 1s }",
            ..Setup::default()
        };
        let gateway = setup.start();
        let mut client = reluctant(&gateway);
        let mut stream = begin(&mut client, get("/300000"), true);
        assert_eq!(stream.head(&client), 200);
        assert_eq!(used(&gateway, "tokens"), 100);
        settles_at(&gateway, "tokens", 5000);
        assert_eq!(metric(&gateway, FINISHED), 1);
        // Over HTTP/1.1; the number is further away than the gateway reads on.
        let _stalled = ask(&gateway, HUGE);
        reaches(&gateway, FINISHED, 2);
        settles_at(&gateway, "tokens", 5000 + 7000);
    });
}

#[test]
fn reading_nothing_counts_as_leaving_after_half_a_minute() {
    let backend = large();
    let limits = tokens(COST);
    let more = "server: { idle_timeout: 1h }";
    let setup = Setup { backend: backend.address(), limits: &limits, more, ..Setup::default() };
    let gateway = setup.start();
    let began = Instant::now();
    let mut client = reluctant(&gateway);
    let mut stream = begin(&mut client, get("/300000"), true);
    assert_eq!(stream.head(&client), 200);
    let _stalled = ask(&gateway, HUGE);
    // This one takes half a minute: that is the bound.
    while metric(&gateway, FINISHED) < 2 {
        assert!(began.elapsed() < Duration::from_secs(45));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(began.elapsed() >= Duration::from_secs(29), "{:?}", began.elapsed());
    settles_at(&gateway, "tokens", 5000 + 7000);
}

#[test]
fn holding_an_answer_up_until_the_backend_gives_up_costs_what_leaving_does() {
    on_every_store(|store| {
        // A backend that gives a client up that reads nothing for half a second.
        let backend = Backend::with(|_, stream| {
            let _ = stream.set_write_timeout(Some(Duration::from_millis(500)));
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {HUGE}\r\n\r\n");
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&vec![b' '; HUGE]);
            false
        });
        let limits = tokens(COST);
        let setup =
            Setup { store, backend: backend.address(), limits: &limits, ..Setup::default() };
        let gateway = setup.start();
        let connection = ask(&gateway, HUGE);
        crate::common::eventually("the backend gives up", || {
            (backend.connections() == 1 && backend.open() == 0).then_some(())
        });
        // Now it reads what is there.
        let mut rest = connection.stream;
        let mut buffer = vec![0; 1 << 20];
        while let Ok(1..) = rest.read(&mut buffer) {}
        settles_at(&gateway, "tokens", 7000);
    });
}
