//! The gate in front of a simulated backend of known capacity, event by event and without a clock:
//! an hour of traffic takes a second, and every run is the same.
//!
//! ```text
//! Traffic (open loop) ──► Gate ──► Backend: a queue, some workers, a distribution of service times
//! ```

#![expect(clippy::cast_sign_loss, reason = "neither counts nor times are less than nothing")]

use super::gate::{Gate, Place, Waiting};
use crate::clock::{Micros, SECOND};
use crate::config::model::{Concurrency, Places, Priority};
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long work takes, around a mean of one.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Constant,
    Exponential,
    LogNormal,
    /// Nine in ten are quick, one takes 24 times as long.
    TwoKinds,
}

impl Shape {
    const ALL: [Self; 4] = [Self::Constant, Self::Exponential, Self::LogNormal, Self::TwoKinds];

    fn draw(self, random: &mut fastrand::Rng) -> f64 {
        let mut unit = || random.f64().max(1e-12);
        match self {
            Self::Constant => 1.0,
            Self::Exponential => -unit().ln(),
            Self::LogNormal => {
                let normal = (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
                (normal - 0.5).exp()
            }
            Self::TwoKinds if unit() < 0.9 => 0.3,
            Self::TwoKinds => 7.3,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Backend {
    workers: usize,
    /// How long work takes, in microseconds.
    service: f64,
    shape: Shape,
}

impl Backend {
    /// Requests a second.
    fn capacity(&self) -> f64 {
        self.workers as f64 * 1e6 / self.service
    }
}

/// Requests that come whether or not anybody answers.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    /// Requests a second.
    rate: f64,
    priority: Priority,
    caller: u64,
    route: &'static str,
    /// How much more work than others.
    heavier: f64,
}

impl Traffic {
    fn normal(rate: f64) -> Self {
        Self { rate, priority: Priority::Normal, caller: 1, route: "a", heavier: 1.0 }
    }
}

/// What became of a traffic's requests.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// How long each that was answered took.
    took: Vec<Micros>,
    refused: usize,
}

impl Outcome {
    fn percentile(&self, share: f64) -> Micros {
        let mut took = self.took.clone();
        took.sort_unstable();
        took[((took.len() - 1) as f64 * share) as usize]
    }

    fn admitted(&self) -> f64 {
        self.took.len() as f64 / (self.took.len() + self.refused) as f64
    }
}

enum Event {
    Arrives(usize),
    Done(Request),
}

struct Request {
    traffic: usize,
    arrived: Micros,
    sent: Micros,
    place: Option<Place>,
}

/// A run under way.
struct Simulation<'a> {
    backend: Backend,
    traffic: &'a [Traffic],
    gate: Option<Arc<Gate>>,
    random: fastrand::Rng,
    events: BinaryHeap<Reverse<(Micros, u64, usize)>>,
    kinds: Slab<Event>,
    number: u64,
    /// Waits in the gateway, and in the backend.
    waiting: Vec<(Waiting, Request)>,
    queue: VecDeque<Request>,
    busy: usize,
    outcomes: Vec<Outcome>,
    /// What happened before this is forgotten.
    since: Micros,
}

const ADAPTIVE: Concurrency = Concurrency {
    places: Places::Adaptive { min: 1, max: 1000 },
    queue: None,
    max_wait: Duration::from_secs(1),
};

impl<'a> Simulation<'a> {
    fn new(backend: Backend, traffic: &'a [Traffic], gate: Option<Arc<Gate>>) -> Self {
        let mut new = Self {
            backend,
            traffic,
            gate,
            random: fastrand::Rng::with_seed(7),
            events: BinaryHeap::new(),
            kinds: Slab::new(),
            number: 0,
            waiting: Vec::new(),
            queue: VecDeque::new(),
            busy: 0,
            outcomes: vec![Outcome::default(); traffic.len()],
            since: 0,
        };
        (0..traffic.len()).for_each(|index| new.plan(1, Event::Arrives(index)));
        new
    }

    fn plan(&mut self, at: Micros, event: Event) {
        self.number += 1;
        let key = self.kinds.insert(event);
        self.events.push(Reverse((at, self.number, key)));
    }

    /// Goes on until then.
    fn run_to(&mut self, end: Micros) {
        while let Some(Reverse((now, _, key))) = self.events.peek().copied()
            && now <= end
        {
            self.events.pop();
            match self.kinds.remove(key) {
                Event::Arrives(traffic) => self.arrive(traffic, now),
                Event::Done(request) => self.answer(&request, now),
            }
            self.look_after_the_waiting(now);
            self.work(now);
        }
    }

    fn arrive(&mut self, index: usize, now: Micros) {
        let Traffic { rate, priority, caller, .. } = self.traffic[index];
        let pause = Shape::Exponential.draw(&mut self.random) * 1e6 / rate;
        self.plan(now + pause.max(1.0) as Micros, Event::Arrives(index));
        let mut request = Request { traffic: index, arrived: now, sent: now, place: None };
        if let Some(gate) = &self.gate {
            request.place = gate.enter(priority, now);
            if request.place.is_none() {
                return match gate.wait(priority, caller, false, now) {
                    Ok(waiting) => self.waiting.push((waiting, request)),
                    Err(_) => self.refuse(&request),
                };
            }
        }
        self.queue.push_back(request);
    }

    fn refuse(&mut self, request: &Request) {
        if request.arrived >= self.since {
            self.outcomes[request.traffic].refused += 1;
        }
    }

    fn look_after_the_waiting(&mut self, now: Micros) {
        for (mut waiting, mut request) in std::mem::take(&mut self.waiting) {
            let turn = pin!(waiting.turn()).poll(&mut Context::from_waker(Waker::noop()));
            match turn {
                Poll::Ready(Ok(mut place)) => {
                    place.begins(now);
                    (request.place, request.sent) = (Some(place), now);
                    self.queue.push_back(request);
                }
                Poll::Ready(Err(_)) => self.refuse(&request),
                Poll::Pending if now - request.arrived > SECOND => self.refuse(&request),
                Poll::Pending => self.waiting.push((waiting, request)),
            }
        }
    }

    fn work(&mut self, now: Micros) {
        while self.busy < self.backend.workers
            && let Some(request) = self.queue.pop_front()
        {
            self.busy += 1;
            let heavier = self.traffic[request.traffic].heavier;
            let takes = self.backend.shape.draw(&mut self.random) * self.backend.service * heavier;
            self.plan(now + takes.max(1.0) as Micros, Event::Done(request));
        }
    }

    fn answer(&mut self, request: &Request, now: Micros) {
        self.busy -= 1;
        let traffic = &self.traffic[request.traffic];
        if let (Some(place), Some(gate)) = (&request.place, &self.gate) {
            place.answered(gate.pace(traffic.route), now - request.sent, now);
        }
        if request.arrived >= self.since {
            self.outcomes[request.traffic].took.push(now - request.arrived);
        }
    }

    fn places(&self) -> u32 {
        self.gate.as_ref().map_or(0, |gate| gate.reading().places)
    }
}

/// Warms up for some seconds, and then counts for some.
fn run(
    backend: Backend,
    traffic: &[Traffic],
    gate: Option<Arc<Gate>>,
    seconds: (u64, u64),
) -> Vec<Outcome> {
    let mut simulation = Simulation::new(backend, traffic, gate);
    simulation.since = seconds.0 * SECOND;
    simulation.run_to((seconds.0 + seconds.1) * SECOND);
    simulation.outcomes
}

fn backend(workers: usize, millis: u64, shape: Shape) -> Backend {
    Backend { workers, service: millis as f64 * 1e3, shape }
}

#[test]
fn goodput_and_tails_hold_at_ten_times_the_capacity() {
    for shape in Shape::ALL {
        for (workers, millis) in [(2, 20), (10, 50), (50, 50)] {
            let backend = backend(workers, millis, shape);
            let at = |load: f64| {
                let traffic = [Traffic::normal(backend.capacity() * load)];
                let gate = Some(Gate::new(&ADAPTIVE, 0.0));
                let outcome = run(backend, &traffic, gate, (5, 12)).remove(0);
                (outcome.took.len() as f64 / 12.0 / backend.capacity(), outcome.percentile(0.99))
            };
            let (_, calm) = at(0.5);
            let loads = [1.0, 2.0, 10.0].map(at);
            let best = loads.iter().map(|(goodput, _)| *goodput).fold(0.0, f64::max);
            let said = format!("{shape:?} {workers} x {millis} ms: {calm} then {loads:?}");
            assert!(loads[2].0 >= 0.9 * best.min(1.0), "{said}");
            assert!(loads.iter().all(|(_, p99)| *p99 <= 3 * calm), "{said}");
        }
    }
}

/// What the gate is for: the same without it.
#[test]
fn without_a_gate_everybody_waits_for_ever() {
    let backend = backend(10, 50, Shape::Exponential);
    let traffic = [Traffic::normal(backend.capacity() * 2.0)];
    let outcome = run(backend, &traffic, None, (5, 20)).remove(0);
    assert!(outcome.percentile(0.5) > 2 * SECOND, "{}", outcome.percentile(0.5));
}

#[test]
fn the_limit_follows_the_capacity_within_seconds() {
    for shape in Shape::ALL {
        let whole = backend(20, 20, shape);
        // Fewer workers; or as many, each of which takes longer.
        let halves = [Backend { workers: 10, ..whole }, Backend { service: 40e3, ..whole }];
        for half in halves {
            let traffic = [Traffic::normal(whole.capacity() * 3.0)];
            let gate = Gate::new(&ADAPTIVE, 0.0);
            let mut simulation = Simulation::new(whole, &traffic, Some(gate));
            let mut goodput = |backend: Backend, from: u64, to: u64| {
                simulation.backend = backend;
                simulation.run_to(from * SECOND);
                simulation.outcomes = vec![Outcome::default()];
                simulation.since = from * SECOND;
                simulation.run_to(to * SECOND);
                let outcome = &simulation.outcomes[0];
                let rate = outcome.took.len() as f64 / (to - from) as f64;
                (rate / backend.capacity(), outcome.percentile(0.99), simulation.places())
            };
            let before = goodput(whole, 10, 20);
            let halved = goodput(half, 23, 30);
            let after = goodput(whole, 33, 43);
            let said = format!("{shape:?} {half:?}: {before:?}, {halved:?}, {after:?}");
            assert!([before, halved, after].iter().all(|(rate, ..)| *rate > 0.85), "{said}");
            assert!(after.1 < 2 * before.1 && halved.1 < 4 * before.1, "{said}");
        }
    }
}

#[test]
fn critical_requests_are_admitted_as_long_as_they_alone_fit() {
    let backend = backend(20, 20, Shape::Exponential);
    let rate = backend.capacity();
    let of = |priority, load: f64| Traffic { priority, ..Traffic::normal(rate * load) };
    let traffic =
        [of(Priority::Critical, 0.6), of(Priority::Normal, 5.0), of(Priority::Sheddable, 5.0)];
    for reserve in [0.0, 0.2] {
        let gate = Some(Gate::new(&ADAPTIVE, reserve));
        let outcomes = run(backend, &traffic, gate, (5, 30));
        let admitted: Vec<f64> = outcomes.iter().map(Outcome::admitted).collect();
        assert!(admitted[0] >= 0.999, "{admitted:?}");
        assert!(admitted[1] > 0.04 && admitted[2] < admitted[1] / 20.0, "{admitted:?}");
        let answered: usize = outcomes.iter().map(|outcome| outcome.took.len()).sum();
        assert!(answered as f64 > 0.9 * 30.0 * rate, "{answered} of {}", 30.0 * rate);
    }
}

#[test]
fn a_flood_of_one_caller_is_that_callers_own_trouble() {
    let backend = backend(20, 20, Shape::Exponential);
    let rate = backend.capacity();
    let of = |caller, load: f64| Traffic { caller, ..Traffic::normal(rate * load) };
    let quiet: Vec<Traffic> = (1..=10).map(|caller| of(caller, 0.04)).collect();
    let flooded: Vec<Traffic> = quiet.iter().copied().chain([of(99, 20.0)]).collect();
    let gate = || Some(Gate::new(&ADAPTIVE, 0.0));
    let before = run(backend, &quiet, gate(), (5, 30));
    let after = run(backend, &flooded, gate(), (5, 30));
    for (caller, (before, after)) in before.iter().zip(&after).take(10).enumerate() {
        assert!(after.admitted() >= 0.995, "caller {caller}: {}", after.admitted());
        let (before, after) = (before.percentile(0.9), after.percentile(0.9));
        assert!(after < 2 * before, "caller {caller}: {before} then {after}");
    }
    assert!(after[10].admitted() < 0.05);
}

#[test]
fn slow_routes_are_not_taken_for_congestion() {
    let backend = backend(100, 10, Shape::Exponential);
    let quick = Traffic::normal(2000.0);
    let slow = Traffic { rate: 1.0, route: "reports", heavier: 50.0, ..quick };
    let rush = Traffic { rate: 100.0, ..slow };
    let gate = Gate::new(&ADAPTIVE, 0.0);
    let outcomes = run(backend, &[quick, slow], Some(Arc::clone(&gate)), (5, 20));
    assert_eq!(outcomes[0].refused + outcomes[1].refused, 0);
    // Half a minute later everybody wants a report: it is more work, but not more than there is room for.
    let outcomes = run(backend, &[quick, rush], Some(gate), (2, 20));
    let refused = outcomes[0].refused + outcomes[1].refused;
    assert!(refused * 1000 < outcomes[0].took.len(), "{refused} refused");
}

#[test]
fn what_is_kept_for_critical_requests_does_not_blind_the_search() {
    let whole = backend(20, 20, Shape::Exponential);
    let traffic = [Traffic::normal(whole.capacity() * 3.0)];
    let gate = Gate::new(&ADAPTIVE, 0.6);
    let outcome = run(whole, &traffic, Some(gate), (10, 20)).remove(0);
    let rate = outcome.took.len() as f64 / 20.0 / whole.capacity();
    assert!(rate > 0.9 && outcome.percentile(0.5) < 60_000, "{rate} {}", outcome.percentile(0.5));
}

#[test]
fn a_route_that_nobody_knows_is_learnt_under_full_load() {
    let backend = backend(20, 20, Shape::Exponential);
    let gate = Gate::new(&ADAPTIVE, 0.0);
    let known = [Traffic::normal(backend.capacity() / 2.0)];
    run(backend, &known, Some(Arc::clone(&gate)), (0, 10));
    let unknown = [Traffic { route: "b", ..Traffic::normal(backend.capacity() * 3.0) }];
    let outcome = run(backend, &unknown, Some(gate), (10, 20)).remove(0);
    let rate = outcome.took.len() as f64 / 20.0 / backend.capacity();
    assert!(rate > 0.9 && outcome.percentile(0.5) < 100_000, "{rate} {}", outcome.percentile(0.5));
}

#[test]
fn a_backend_that_becomes_much_slower_is_not_starved() {
    for shape in Shape::ALL {
        let quick = backend(50, 20, shape);
        let slow = Backend { service: quick.service * 10.0, ..quick };
        let traffic = [Traffic::normal(quick.capacity() * 3.0)];
        let mut simulation = Simulation::new(quick, &traffic, Some(Gate::new(&ADAPTIVE, 0.0)));
        simulation.run_to(10 * SECOND);
        simulation.backend = slow;
        simulation.run_to(20 * SECOND);
        simulation.outcomes = vec![Outcome::default()];
        simulation.run_to(40 * SECOND);
        let rate = simulation.outcomes[0].took.len() as f64 / 20.0 / slow.capacity();
        assert!(rate > 0.7, "{shape:?}: {rate}");
    }
}

#[test]
fn a_limit_that_is_not_used_does_not_grow() {
    let backend = backend(1000, 10, Shape::Constant);
    let traffic = [Traffic::normal(1000.0)];
    let mut simulation = Simulation::new(backend, &traffic, Some(Gate::new(&ADAPTIVE, 0.0)));
    simulation.run_to(30 * SECOND);
    assert!((10..=100).contains(&simulation.places()), "{}", simulation.places());
    assert!(simulation.outcomes[0].refused < 5, "{}", simulation.outcomes[0].refused);
}
