//! What a decision costs, side by side with `governor` (keyed, its default store and hasher).
//! `cargo bench --bench limits`
//!
//! Callers are addresses: one hot one, or a million of them drawn by Zipf's law. Both sides read
//! their clocks; ours is measured with the exact one and with a coarse one. Three layers are one all-or-nothing decision here, and three checks one after
//! the other there. With two threads the time is that of one thread's decision while the other
//! makes the same kind.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use criterion::{BenchmarkId, Criterion, criterion_group};
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use sluice::clock::{Clock, SECOND};
use sluice::limit::{Quota, Rate};
use sluice::store::{Charge, LimitId, Memory, Part, Store, Subject};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::sync::{Arc, Barrier};
use std::time::Duration;

const CALLERS: usize = 1_000_000;
/// An awkward rate and a bucket that nobody empties here, so that every decision is an admission.
const RATE: u32 = 999_983;
const BURST: u32 = 2_000_000_000;

/// Who comes, in what order.
type Traffic = Vec<IpAddr>;

fn hot() -> Traffic {
    vec![address(1)]
}

/// Four million draws from a million callers by Zipf's law with exponent 1.
fn zipf() -> Traffic {
    let mut random = fastrand::Rng::with_seed(1);
    let mut sums: Vec<f64> = Vec::with_capacity(CALLERS);
    let mut sum = 0.0;
    for rank in 1..=CALLERS {
        sum += 1.0 / rank as f64;
        sums.push(sum);
    }
    let mut draw = || sums.partition_point(|&at| at < random.f64() * sum);
    (0..4_000_000).map(|_| address(draw().min(CALLERS - 1))).collect()
}

/// Neighbouring ranks are no neighbouring addresses.
fn address(rank: usize) -> IpAddr {
    Ipv4Addr::from((rank as u32).wrapping_mul(2_654_435_761)).into()
}

/// A limiter with this many layers.
trait Limiter: Send + Sync {
    fn decide(&self, caller: IpAddr) -> bool;
}

/// The gateway reads an exact clock once a request, for the log and the metrics as well; a library's
/// user may do with one that ticks every few milliseconds.
enum Time {
    Exact(Clock),
    Coarse,
}

impl Time {
    fn now(&self) -> u64 {
        match self {
            Self::Exact(clock) => clock.now(),
            Self::Coarse => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
                now.tv_sec.unsigned_abs() * SECOND + now.tv_nsec.unsigned_abs() / 1000
            }
        }
    }
}

struct Ours {
    store: Store,
    clock: Time,
    quota: Quota,
    limits: Vec<LimitId>,
}

impl Ours {
    fn new(layers: usize, clock: Time) -> Self {
        let rate = Rate { count: RATE, window: SECOND };
        let quota = Quota::token_bucket(rate, Some(BURST)).expect("the rate is valid");
        let store = Store::Memory(Memory::new(4 * CALLERS));
        let limits = (0..layers).map(|n| store.limit_id(&n.to_string())).collect();
        Self { store, clock, quota, limits }
    }
}

impl Limiter for Ours {
    fn decide(&self, caller: IpAddr) -> bool {
        let parts = [Part::Ip(caller)];
        let charge = |limit| Charge::new(limit, &self.quota, Subject(&parts));
        let memory = self.store.local();
        let now = self.clock.now();
        match self.limits[..] {
            [one] => memory.charge_all(&mut [charge(one)], now),
            [a, b, c] => memory.charge_all(&mut [charge(a), charge(b), charge(c)], now),
            _ => unreachable!("one layer or three"),
        }
        .rejected_by
        .is_none()
    }
}

struct Governor(Vec<DefaultKeyedRateLimiter<IpAddr>>);

impl Governor {
    fn new(layers: usize) -> Self {
        let quota = governor::Quota::per_second(NonZeroU32::new(RATE).expect("not zero"))
            .allow_burst(NonZeroU32::new(BURST).expect("not zero"));
        Self((0..layers).map(|_| RateLimiter::keyed(quota)).collect())
    }
}

impl Limiter for Governor {
    fn decide(&self, caller: IpAddr) -> bool {
        self.0.iter().all(|limiter| limiter.check_key(&caller).is_ok())
    }
}

/// One kind of decision, with both contestants.
struct Case {
    name: String,
    threads: usize,
    traffic: Arc<Traffic>,
    contestants: [(&'static str, Arc<dyn Limiter>); 3],
}

fn cases() -> Vec<Case> {
    let workloads = [("hot", Arc::new(hot())), ("zipf", Arc::new(zipf()))];
    let mut cases = Vec::new();
    for layers in [1, 3] {
        for (workload, traffic) in &workloads {
            let contestants: [(_, Arc<dyn Limiter>); 3] = [
                ("sluice", Arc::new(Ours::new(layers, Time::Exact(Clock::system())))),
                ("sluice-coarse", Arc::new(Ours::new(layers, Time::Coarse))),
                ("governor", Arc::new(Governor::new(layers))),
            ];
            for threads in [1, 2] {
                let name = format!("{layers}-layer/{workload}/{threads}-thread");
                let (traffic, contestants) = (Arc::clone(traffic), contestants.clone());
                cases.push(Case { name, threads, traffic, contestants });
            }
        }
    }
    cases
}

fn decide(c: &mut Criterion) {
    for Case { name, threads, traffic, contestants } in cases() {
        let mut group = c.benchmark_group(name);
        for (who, limiter) in &contestants {
            group.bench_function(BenchmarkId::from_parameter(who), |b| {
                b.iter_custom(|rounds| run(&**limiter, &traffic, threads, 0, rounds));
            });
        }
        group.finish();
    }
}

/// All contestants in turns, a few milliseconds each, so that a busy machine slows all alike: the
/// median of each, and of the ratio to governor.
fn ratios() {
    const TURNS: u64 = 201;
    const ROUNDS: u64 = 20_000;
    println!("\nnanoseconds a decision, in turns (median of {TURNS}; in brackets: to governor)");
    for Case { name, threads, traffic, contestants } in cases() {
        // Everybody has come once.
        for (_, limiter) in &contestants {
            run(&**limiter, &traffic, 1, 0, traffic.len() as u64);
        }
        let turns: Vec<[f64; 3]> = (0..TURNS)
            .map(|turn| {
                let start = (turn * ROUNDS) as usize;
                let nanos = |limiter: &dyn Limiter| {
                    run(limiter, &traffic, threads, start, ROUNDS).as_nanos() as f64 / ROUNDS as f64
                };
                [0, 1, 2].map(|who| nanos(&*contestants[who].1))
            })
            .collect();
        let median = |of: &dyn Fn(&[f64; 3]) -> f64| {
            let mut all: Vec<f64> = turns.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        print!("{name:24}");
        for (who, (label, _)) in contestants.iter().enumerate() {
            let (nanos, ratio) = (median(&|turn| turn[who]), median(&|turn| turn[who] / turn[2]));
            print!("  {label} {nanos:6.1} ({ratio:.2})");
        }
        println!();
    }
}

/// The longest that any thread took for its `rounds` decisions.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn run(
    limiter: &dyn Limiter,
    traffic: &Traffic,
    threads: usize,
    start: usize,
    rounds: u64,
) -> Duration {
    let together = Barrier::new(threads);
    let work = |thread: usize| {
        let mut next = (start + thread * traffic.len() / threads) % traffic.len();
        together.wait();
        let begin = std::time::Instant::now();
        for _ in 0..rounds {
            black_box(limiter.decide(black_box(traffic[next])));
            next = if next + 1 == traffic.len() { 0 } else { next + 1 };
        }
        begin.elapsed()
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|n| scope.spawn(move || work(n))).collect();
        let mine = work(0);
        others.into_iter().map(|t| t.join().expect("no panic")).fold(mine, Duration::max)
    })
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).measurement_time(Duration::from_secs(3));
    targets = decide
}
fn main() {
    benches();
    if !std::env::args().any(|argument| argument == "--profile-time") {
        ratios();
    }
}
