//! Leaving to make room for more at the backend than a concurrency limit allows.

use super::kit::{
    CANCELLED, Setup, begin, flush, metric, on_every_store, quiet, reaches, reset, used,
};
use crate::common::backend::ok;
use crate::common::http2::{Client, get};
use crate::common::{Backend, Connection, Gateway, eventually};
use parking_lot::{Condvar, Mutex};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A backend that works on a request until it is told to finish, whether anybody waits or not.
struct Diligent {
    backend: Backend,
    work: Arc<(Mutex<Work>, Condvar)>,
}

#[derive(Default)]
struct Work {
    now: usize,
    most: usize,
    all: usize,
    may_finish: usize,
}

impl Diligent {
    fn start() -> Self {
        let work: Arc<(Mutex<Work>, Condvar)> = Arc::default();
        let inner = Arc::clone(&work);
        let backend = Backend::with(move |_, stream| {
            let mut work = inner.0.lock();
            work.now += 1;
            work.all += 1;
            work.most = work.most.max(work.now);
            inner.1.wait_while(&mut work, |work| work.may_finish == 0);
            work.may_finish -= 1;
            work.now -= 1;
            drop(work);
            stream.write_all(&ok("done")).is_ok()
        });
        Self { backend, work }
    }

    fn all(&self) -> usize {
        self.work.0.lock().all
    }

    fn most(&self) -> usize {
        self.work.0.lock().most
    }

    fn finish(&self, count: usize) {
        self.work.0.lock().may_finish += count;
        self.work.1.notify_all();
    }
}

impl Drop for Diligent {
    fn drop(&mut self) {
        self.finish(1 << 30);
    }
}

const PLACES: &str = "[{ name: places, by: ip, concurrency: 2 }]";

/// By a limit, and by the upstream: the upstream's fields, the limits, and the status of who is too many.
const WAYS: [(&str, &str, u16); 2] =
    [("", PLACES, 429), ("concurrency: { max: 2, queue: 0 }", "[]", 503)];

fn ask(gateway: &Gateway) -> Connection {
    let mut connection = gateway.connect();
    connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    connection
}

#[test]
fn closing_as_soon_as_the_request_is_sent_makes_no_room_for_another() {
    on_every_store(|store| {
        for (upstream, limits, too_many) in WAYS {
            for leave in [drop, reset] {
                let diligent = Diligent::start();
                let backend = diligent.backend.address();
                let setup = Setup { store, backend, upstream, limits, ..Setup::default() };
                let gateway = setup.start();
                for attempt in 0..30 {
                    let mut connection = ask(&gateway);
                    if attempt < 2 {
                        eventually("it is at the backend", || {
                            (diligent.all() == attempt + 1).then_some(())
                        });
                        leave(connection);
                    } else {
                        assert_eq!(connection.read_reply("GET").status, too_many);
                    }
                }
                assert_eq!((diligent.most(), diligent.all()), (2, 2));
                diligent.finish(2);
                quiet(&gateway);
                diligent.finish(2);
                eventually("the places are free", || {
                    (gateway.get("/").status == 200).then_some(())
                });
                assert_eq!(gateway.get("/").status, 200);
                free(&gateway, limits);
            }
        }
    });
}

/// Waits until nobody has a place of the limit.
fn free(gateway: &Gateway, limits: &str) {
    if limits == PLACES {
        eventually("no place is taken", || (used(gateway, "places") == 0).then_some(()));
    }
}

#[test]
fn resetting_streams_makes_no_room_for_more() {
    on_every_store(|store| {
        for (upstream, limits, too_many) in WAYS {
            let diligent = Diligent::start();
            let backend = diligent.backend.address();
            let setup = Setup { store, backend, upstream, limits, ..Setup::default() };
            let gateway = setup.start();
            let mut client = Client::open(gateway.address());
            for attempt in 0..30 {
                let mut stream = begin(&mut client, get("/"), true);
                if attempt < 2 {
                    eventually("it is at the backend", || {
                        flush(&client);
                        (diligent.all() == attempt + 1).then_some(())
                    });
                    stream.reset(&client);
                } else {
                    assert_eq!(stream.head(&client), too_many);
                }
            }
            assert_eq!((diligent.most(), diligent.all()), (2, 2));
            diligent.finish(2);
            quiet(&gateway);
            free(&gateway, limits);
        }
    });
}

/// A place is taken until a second after its request was broken off.
fn is_free_a_second_later(gateway: &Gateway, diligent: &Diligent, too_many: u16) {
    let began = Instant::now();
    assert_eq!(gateway.get("/").status, too_many, "the backend may work on it still");
    diligent.finish(1 << 20);
    eventually("a free place", || (gateway.get("/").status == 200).then_some(()));
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(800), "{took:?}");
}

#[test]
fn where_leaving_cancels_a_place_is_free_a_second_after_the_backend_was_told() {
    on_every_store(|store| {
        for (upstream, limits, too_many) in WAYS {
            let diligent = Diligent::start();
            let backend = diligent.backend.address();
            let upstream = format!("on_leave: cancel, {upstream}").replace("max: 2", "max: 1");
            let (upstream, limits) =
                (&*upstream, limits.replace("concurrency: 2", "concurrency: 1"));
            let setup = Setup { store, backend, upstream, limits: &limits, ..Setup::default() };
            let gateway = setup.start();
            let connection = ask(&gateway);
            eventually("it is at the backend", || (diligent.all() == 1).then_some(()));
            reset(connection);
            eventually("it is broken off", || (metric(&gateway, CANCELLED) == 1).then_some(()));
            is_free_a_second_later(&gateway, &diligent, too_many);
        }
    });
}

#[test]
fn a_body_that_breaks_off_makes_no_room_at_once() {
    on_every_store(|store| {
        for (upstream, limits, too_many) in WAYS {
            let backend = Backend::start();
            let upstream = upstream.replace("max: 2", "max: 1");
            let limits = limits.replace("concurrency: 2", "concurrency: 1");
            let address = backend.address();
            let (upstream, limits) = (&*upstream, &*limits);
            let setup = Setup { store, backend: address, upstream, limits, ..Setup::default() };
            let gateway = setup.start();
            let mut connection = gateway.connect();
            connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf");
            eventually("it is at the backend", || (backend.connections() == 1).then_some(()));
            drop(connection);
            quiet(&gateway);
            let began = Instant::now();
            assert_eq!(gateway.get("/").status, too_many);
            eventually("a free place", || (gateway.get("/").status == 200).then_some(()));
            assert!(began.elapsed() >= Duration::from_millis(800), "{:?}", began.elapsed());
        }
    });
}

#[test]
fn a_backend_that_is_too_slow_does_not_get_more_than_its_places() {
    on_every_store(|store| {
        for (upstream, limits, too_many) in WAYS {
            let diligent = Diligent::start();
            let backend = diligent.backend.address();
            let upstream = format!("timeouts: {{ response: 200ms }}, {upstream}");
            let upstream = &*upstream.replace("max: 2", "max: 1");
            let limits = &*limits.replace("concurrency: 2", "concurrency: 1");
            let setup = Setup { store, backend, upstream, limits, ..Setup::default() };
            let gateway = setup.start();
            assert_eq!(gateway.get("/").status, 504);
            is_free_a_second_later(&gateway, &diligent, too_many);
        }
    });
}

#[test]
fn closing_right_away_holds_no_connection_when_the_answer_is_out() {
    let backend = Backend::start();
    let limits = "[{ name: places, by: ip, concurrency: 100 }]";
    let gateway = Setup { backend: backend.address(), limits, ..Setup::default() }.start();
    for _ in 0..20 {
        let mut connection = gateway.connect();
        connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        drop(connection);
    }
    // Long before any time-out, since the clock of connections is not moved here: they take minutes.
    reaches(&gateway, "sluice_connections", 0);
    // A half-close is answered, and then no request can follow.
    let mut half = gateway.connect();
    half.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    half.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(half.read_reply("GET").status, 200);
    assert!(half.is_closed());
}
