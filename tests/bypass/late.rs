//! Delaying the number that tells the cost until its window is over.

use super::kit::{Setup, begin, on_every_store, quiet, settles_at, used};
use crate::common::http2::{Client, get};
use crate::common::{Backend, eventually};
use std::time::Duration;

/// More than the gateway reads ahead of its client.
const LENGTH: usize = 300_000;

/// Says in its last bytes what it cost.
fn priced(cost: u32) -> Backend {
    Backend::answering(move |_| {
        let body = format!("{}{{\"cost\": {cost}}}", " ".repeat(LENGTH));
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })
}

fn windows(algorithm: &str, reserve: u32) -> String {
    format!(
        "[{{ name: {algorithm}, by: ip, rate: 100000/minute, algorithm: {algorithm}, cost: {{ response_json: cost, reserve: {reserve} }} }}]"
    )
}

/// A client that gives no room for answers.
fn reluctant(address: std::net::SocketAddr) -> Client {
    with_room(address, 0)
}

fn with_room(address: std::net::SocketAddr, bytes: u32) -> Client {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(bytes);
    Client::with(address, &builder)
}

#[test]
fn a_window_of_zero_does_not_carry_the_number_past_the_limits_window() {
    on_every_store(|store| {
        for algorithm in ["fixed_window", "sliding_window", "token_bucket"] {
            let backend = priced(5400);
            let limits = windows(algorithm, 1);
            let setup =
                Setup { store, backend: backend.address(), limits: &limits, ..Setup::default() };
            let gateway = setup.start();
            let mut client = reluctant(gateway.address());
            let mut streams: Vec<_> = (0..4).map(|_| begin(&mut client, get("/"), true)).collect();
            for stream in &mut streams {
                assert_eq!(stream.head(&client), 200);
            }
            assert_eq!(used(&gateway, algorithm), 4);
            gateway.advance(Duration::from_secs(60 * 3));
            assert_eq!(used(&gateway, algorithm), 0, "{algorithm}: those windows are over");
            for stream in streams {
                stream.reset(&client);
            }
            // What was reserved was paid for then.
            settles_at(&gateway, algorithm, 4 * 5400 - 4);
        }
    });
}

#[test]
fn reading_on_after_the_window_pays_as_leaving_does() {
    on_every_store(|store| {
        let backend = priced(5400);
        let limits = windows("fixed_window", 100);
        let setup =
            Setup { store, backend: backend.address(), limits: &limits, ..Setup::default() };
        let gateway = setup.start();
        let mut client = with_room(gateway.address(), 1000);
        let mut stream = begin(&mut client, get("/"), true);
        assert_eq!(stream.head(&client), 200);
        gateway.advance(Duration::from_secs(60));
        let mut read = 0;
        loop {
            let piece = stream.read(&client, 1).len();
            stream.release(piece);
            read += piece;
            if piece == 0 {
                break;
            }
        }
        assert!(read > LENGTH);
        settles_at(&gateway, "fixed_window", 5400 - 100);
    });
}

#[test]
fn what_is_given_back_late_is_no_allowance_for_the_next_window() {
    on_every_store(|store| {
        for algorithm in ["fixed_window", "sliding_window"] {
            let backend = priced(10);
            let limits = windows(algorithm, 5000);
            let setup =
                Setup { store, backend: backend.address(), limits: &limits, ..Setup::default() };
            let gateway = setup.start();
            let mut client = reluctant(gateway.address());
            let mut late = begin(&mut client, get("/"), true);
            assert_eq!(late.head(&client), 200);
            gateway.advance(Duration::from_secs(60 * 2));
            assert_eq!(gateway.get("/").status, 200);
            eventually("it is settled", || (used(&gateway, algorithm) == 10).then_some(()));
            late.reset(&client);
            quiet(&gateway);
            settles_at(&gateway, algorithm, 10);
        }
    });
}
