//! Random schedules of arriving, reading, stalling, resetting and leaving: what the backend did is paid for,
//! and when all is quiet nothing is taken any more.
//!
//! A few schedules by default; `SCHEDULES=1000 cargo test --test gateway schedules -- --ignored` runs more,
//! `SEED=…` begins with another one.

use super::kit::{Setup, Stream, begin, flush, metric, on_every_store, quiet, reset, used};
use crate::common::http2::{Client, get};
use crate::common::{Backend, Gateway, eventually};
use fastrand::Rng;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const RESERVE: u64 = 10;
/// What a number costs that never came; the backend never does more.
const MAX: u64 = 500;
const PLACES: usize = 4;

const HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// What the backend is asked to do.
#[derive(Clone, Copy, Debug)]
struct Job {
    id: usize,
    price: u64,
    kind: Kind,
    pieces: usize,
    size: usize,
    pause: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The last event has the number.
    Priced,
    /// It has none.
    Silent,
    /// The answer breaks off.
    Broken,
}

impl Job {
    fn random(rng: &mut Rng, id: usize) -> Self {
        let kind = match rng.u8(..10) {
            0 => Kind::Silent,
            1 => Kind::Broken,
            _ => Kind::Priced,
        };
        let size = if rng.u8(..8) == 0 { 30_000 } else { rng.usize(10..2000) };
        let (price, pieces, pause) = (rng.u64(20..=MAX), rng.usize(1..6), rng.u64(..30));
        Self { id, price, kind, pieces, size, pause }
    }

    fn path(&self) -> String {
        let Self { id, price, kind, pieces, size, pause } = self;
        format!("/{id}/{price}/{}/{pieces}/{size}/{pause}", *kind as u8)
    }

    fn of(path: &str) -> Self {
        let numbers = path.split('/').skip(1).map(|part| part.parse().unwrap());
        let numbers: Vec<usize> = numbers.collect();
        let [id, price, kind, pieces, size, pause] = numbers[..] else { panic!("{path}") };
        let kind = [Kind::Priced, Kind::Silent, Kind::Broken][kind];
        Self { id, price: price as u64, kind, pieces, size, pause: pause as u64 }
    }

    /// All of the answer but its last bytes; says whether it was taken.
    fn work(&self, stream: &mut TcpStream) -> bool {
        let mut send = |text: &str| {
            std::thread::sleep(Duration::from_millis(self.pause));
            stream.write_all(text.as_bytes()).is_ok()
        };
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        let filler = chunk(&format!("data: {}\n\n", "x".repeat(self.size)));
        let usage = format!("data: {{\"usage\":{{\"total_tokens\":{}}}}}\n\n", self.price);
        send(HEAD)
            && (0..self.pieces).all(|_| send(&filler))
            && (self.kind != Kind::Priced || send(&chunk(&usage)))
    }

    /// What it costs at least and at most.
    fn costs(&self, read_whole: bool) -> (u64, u64) {
        match self.kind {
            Kind::Priced if read_whole => (self.price, self.price),
            Kind::Priced => (self.price, MAX),
            Kind::Silent if read_whole => (RESERVE, RESERVE),
            Kind::Silent | Kind::Broken => (RESERVE, MAX),
        }
    }
}

/// What came of a schedule.
#[derive(Default)]
struct Outcome {
    /// What the backend was asked to do.
    jobs: Mutex<HashMap<usize, Job>>,
    /// Which answers were read whole.
    whole: Mutex<HashSet<usize>>,
    working: AtomicUsize,
    most: AtomicUsize,
    next: AtomicUsize,
}

fn backend(outcome: &Arc<Outcome>) -> Backend {
    let outcome = Arc::clone(outcome);
    Backend::with(move |seen, stream| {
        let job = Job::of(&seen.target);
        outcome.jobs.lock().insert(job.id, job);
        let now = outcome.working.fetch_add(1, Ordering::SeqCst) + 1;
        outcome.most.fetch_max(now, Ordering::SeqCst);
        let worked = job.work(stream);
        outcome.working.fetch_sub(1, Ordering::SeqCst);
        worked && job.kind != Kind::Broken && stream.write_all(b"0\r\n\r\n").is_ok()
    })
}

fn over_http1(gateway: &Gateway, rng: &mut Rng, outcome: &Outcome) {
    let job = Job::random(rng, outcome.next.fetch_add(1, Ordering::SeqCst));
    let mut connection = gateway.connect();
    connection.write(format!("GET {} HTTP/1.1\r\nhost: a\r\n\r\n", job.path()).as_bytes());
    let leave =
        |connection, rng: &mut Rng| if rng.bool() { reset(connection) } else { drop(connection) };
    match rng.u8(..10) {
        0 => leave(connection, rng),
        1 => {
            std::thread::sleep(Duration::from_millis(rng.u64(..60)));
            leave(connection, rng);
        }
        2..5 => {
            if connection.head().is_some_and(|head| head.status == 200) {
                let _ = connection.exactly(rng.usize(1..job.pieces * job.size + 10));
            }
            leave(connection, rng);
        }
        5 => {
            let _ = connection.head();
            std::thread::sleep(Duration::from_millis(rng.u64(..1500)));
            leave(connection, rng);
        }
        way => {
            if way == 6 {
                let _ = connection.stream.shutdown(Shutdown::Write);
            }
            if connection.try_reply("GET").is_some_and(|reply| reply.status == 200) {
                outcome.whole.lock().insert(job.id);
            }
        }
    }
}

fn over_http2(gateway: &Gateway, rng: &mut Rng, outcome: &Outcome) {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size([0, 100, 10_000, 65_535][rng.usize(..4)]);
    let mut client = Client::with(gateway.address(), &builder);
    let mut begun: Vec<(Job, Stream)> = (0..rng.usize(1..4))
        .map(|_| {
            let job = Job::random(rng, outcome.next.fetch_add(1, Ordering::SeqCst));
            let stream = begin(&mut client, get(&job.path()), true);
            (job, stream)
        })
        .collect();
    rng.shuffle(&mut begun);
    for (job, mut stream) in begun {
        let pause = Duration::from_millis(rng.u64(..30));
        match rng.u8(..10) {
            0 => stream.reset(&client),
            1 => {
                std::thread::sleep(pause);
                stream.reset(&client);
            }
            2..7 => {
                if stream
                    .try_read(&client, rng.usize(1..job.pieces * job.size + 10), pause)
                    .is_some()
                {
                    flush(&client);
                }
                stream.reset(&client);
            }
            _ => {
                if stream.try_read(&client, usize::MAX, Duration::from_secs(3)) == Some(true) {
                    outcome.whole.lock().insert(job.id);
                }
                drop(stream);
                flush(&client);
            }
        }
    }
}

fn run(store: &str, seed: u64) {
    let outcome = Arc::new(Outcome::default());
    let backend = backend(&outcome);
    let mut rng = Rng::with_seed(seed);
    let limits = format!(
        "[{{ name: tokens{seed}, by: ip, rate: 1000000/hour, cost: {{ response_json: usage.total_tokens, reserve: {RESERVE}, max: {MAX} }} }}, {{ name: places{seed}, by: ip, concurrency: {PLACES} }}]"
    );
    let on_leave = if rng.bool() { "finish" } else { "cancel" };
    let upstream =
        format!("on_leave: {on_leave}, concurrency: {{ max: {PLACES}, max_wait: 100ms }}");
    let setup = Setup {
        store,
        backend: backend.address(),
        upstream: &upstream,
        limits: &limits,
        more: "server: { idle_timeout: 1s }",
    };
    let gateway = setup.start();
    std::thread::scope(|scope| {
        for client in 0..6 {
            let (mut rng, outcome, gateway) = (rng.fork(), &outcome, &gateway);
            scope.spawn(move || {
                for _ in 0..8 {
                    let over = if client < 3 { over_http1 } else { over_http2 };
                    over(gateway, &mut rng, outcome);
                    // Places of requests that were broken off are taken for a second more.
                    std::thread::sleep(Duration::from_millis(rng.u64(..300)));
                }
            });
        }
    });
    quiet(&gateway);
    let (tokens, places) = (format!("tokens{seed}"), format!("places{seed}"));
    is_quiet(&gateway, &places, seed);
    let (mut least, mut most) = (0, 0);
    for job in outcome.jobs.lock().values() {
        let (low, high) = job.costs(outcome.whole.lock().contains(&job.id));
        (least, most) = (least + low, most + high);
    }
    let last = Mutex::new(0);
    let paid = || {
        *last.lock() = used(&gateway, &tokens);
        (least..=most).contains(&*last.lock())
    };
    let began = std::time::Instant::now();
    while !paid() {
        let late = began.elapsed() > Duration::from_secs(5);
        assert!(!late, "seed {seed}, {on_leave}: {} paid, and not {least} to {most}", last.lock());
        std::thread::sleep(Duration::from_millis(5));
    }
    let at_once = outcome.most.load(Ordering::SeqCst);
    assert!(at_once <= PLACES, "seed {seed}, {on_leave}: {at_once} at once");
    assert!(outcome.jobs.lock().len() >= PLACES, "seed {seed}: something was done");
}

/// Nothing is taken any more: no place, no permit, no request under way, with or without its client.
fn is_quiet(gateway: &Gateway, places: &str, seed: u64) {
    let inner = gateway.server().gateway();
    let told = |what: &str| format!("seed {seed}: {what}");
    eventually(&told("no place is taken"), || (used(gateway, places) == 0).then_some(()));
    eventually(&told("nothing is finished"), || (inner.leaving.held() == 0).then_some(()));
    let snapshot = inner.snapshot.load();
    let upstream = &snapshot.upstreams[0];
    eventually(&told("no permit is taken"), || {
        (upstream.gate.as_ref().unwrap().reading().taken == 0).then_some(())
    });
    let page = crate::common::Connection::to_operator(gateway.admin()).get("/metrics");
    let at_endpoint = "sluice_endpoint_requests_in_flight{";
    let endpoint = page.text().lines().find(|line| line.starts_with(at_endpoint)).unwrap();
    assert!(endpoint.ends_with(" 0"), "{endpoint}");
    assert_eq!(metric(gateway, super::kit::IN_FLIGHT), 0);
}

fn schedules(count: u64) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (first, count) = (number("SEED").unwrap_or(1), number("SCHEDULES").unwrap_or(count));
    on_every_store(|store| (first..first + count).for_each(|seed| run(store, seed)));
}

#[test]
fn whatever_clients_do_the_backends_work_is_paid_for_and_nothing_stays_taken() {
    schedules(4);
}

#[test]
#[ignore = "takes minutes: make load"]
fn whatever_clients_do_for_minutes() {
    schedules(100);
}
