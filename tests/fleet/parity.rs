//! Two stores, one answer: the same requests at the same times get the same verdicts, remaining
//! counts and times from memory and from Redis.

use crate::common::redis::Redis as Server;
use crate::common::{START, eventually};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use sluice::clock::Clock;
use sluice::config::model::{RedisServers, RedisUrl, SharedStore};
use sluice::limit::{Calendar, Period, Quota, Rate, Verdict};
use sluice::metrics::StoreMetrics;
use sluice::overrides::{Bans, Overrides};
use sluice::store::{Charge, Decision, Memory, Part, Redis, Registry, Store, Subject};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SECOND: u64 = 1_000_000;

/// Rates from one a month to a million a second, with awkward primes.
fn rates() -> impl Strategy<Value = Rate> {
    let windows = prop_oneof![
        Just(SECOND),
        Just(60 * SECOND),
        Just(30 * 86_400 * SECOND),
        Just(366 * 86_400 * SECOND),
        1_000..10_000_000_u64,
        Just(999_983),
    ];
    let counts =
        prop_oneof![1..20_u32, Just(97), Just(700_001), Just(999_983), Just(2_000_000_011)];
    (counts, windows).prop_map(|(count, window)| Rate { count, window })
}

fn small_rates() -> impl Strategy<Value = Rate> {
    (1..12_u32, prop_oneof![Just(SECOND), Just(60 * SECOND), 1_000..10_000_000_u64])
        .prop_map(|(count, window)| Rate { count, window })
}

fn calendar() -> Quota {
    let berlin = Calendar::new(Period::Day, "Europe/Berlin").unwrap();
    let rate = Rate { count: 7, window: 86_400 * SECOND };
    Quota::calendar_window(rate, Arc::new(berlin)).unwrap()
}

fn quotas() -> impl Strategy<Value = Quota> {
    let both = || prop_oneof![rates(), small_rates()];
    prop_oneof![
        (both(), 1..30_u32).prop_filter_map("too slow", |(rate, burst)| {
            Quota::token_bucket(rate, Some(burst)).ok()
        }),
        both().prop_filter_map("too slow", |rate| Quota::token_bucket(rate, None).ok()),
        small_rates().prop_map(|rate| Quota::gcra(rate, None).unwrap()),
        both().prop_filter_map("too large", |rate| Quota::fixed_window(rate).ok()),
        Just(calendar()),
        both().prop_filter_map("too large", |rate| Quota::sliding_window(rate).ok()),
        small_rates().prop_map(|rate| Quota::sliding_log(rate).unwrap()),
        (small_rates(), 0..8_u32, 0..20_000_000_u64).prop_map(|(rate, queue, max_wait)| {
            Quota::leaky_bucket(rate, queue, max_wait).unwrap()
        }),
    ]
}

/// How the clock moves.
#[derive(Clone, Debug)]
enum After {
    On(u64),
    Back(u64),
    /// To where a layer's next window begins.
    Boundary(usize),
    /// To the moment that the last request was told, or one beside it.
    Told(u64),
}

/// One request: after how long, by whom, over which layers, at what cost; and what becomes of it.
#[derive(Clone, Debug)]
struct Step {
    after: After,
    caller: u8,
    layers: u8,
    cost: u32,
    /// Or sixteenths of what there can be.
    share: Option<u32>,
    /// Which layer is a shadow, if any.
    shadow: usize,
    /// Its cost is known later.
    settles: bool,
    /// Afterwards one of those under way is over, at this cost.
    finishes: bool,
    actual: u32,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![
        4 => Just(After::On(0)),
        4 => (0..200_000_u64).prop_map(After::On),
        3 => (0..5_000_000_u64).prop_map(After::On),
        1 => (0..200_000_000_u64).prop_map(After::On),
        1 => (0..(3 * 86_400 * SECOND)).prop_map(After::On),
        1 => (0..2_000_000_u64).prop_map(After::Back),
        1 => (0..5_usize).prop_map(After::Boundary),
        2 => (0..3_u64).prop_map(After::Told),
    ];
    let share = prop_oneof![4 => Just(None), 1 => (1..16_u32).prop_map(Some)];
    let step = (after, 0..2_u8, 1..32_u8, 1..4_u32, share, 0..12_usize);
    let end = (prop::bool::weighted(0.4), prop::bool::weighted(0.3), 0..12_u32);
    let step = (step, end).prop_map(|((after, caller, layers, cost, share, shadow), end)| Step {
        after,
        caller,
        layers,
        cost,
        share,
        shadow,
        settles: end.0,
        finishes: end.1,
        actual: end.2,
    });
    prop::collection::vec(step, 1..40)
}

/// Limits, and what happens to them.
type Case = (Vec<Quota>, Vec<Step>);

struct Stores {
    memory: Store,
    redis: Store,
    clock: Clock,
    cases: AtomicU64,
    runtime: tokio::runtime::Runtime,
}

/// Each has keys of its own.
static STORES: AtomicU64 = AtomicU64::new(0);

fn options(server: &Server) -> SharedStore {
    let servers = RedisServers::One(RedisUrl::new(&server.url()));
    let prefix = format!("p{}", STORES.fetch_add(1, Ordering::Relaxed));
    SharedStore { timeout: Duration::from_secs(10), prefix, ..SharedStore::at(servers) }
}

impl Stores {
    fn new(server: &Server, edit: impl Fn(&str) -> String) -> Self {
        let clock = Clock::manual(START);
        let options = options(server);
        let redis = Redis::with_scripts(
            options,
            1,
            clock.clone(),
            Arc::new(StoreMetrics::new(1)),
            Arc::new(Overrides::new(clock.clone(), Bans::default())),
            edit,
        );
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (memory, redis) = (Store::Memory(Memory::new(1_000_000)), Store::Redis(redis));
        Self { memory, redis, clock, cases: AtomicU64::new(0), runtime }
    }

    fn redis(&self) -> &Redis {
        let Store::Redis(redis) = &self.redis else { unreachable!() };
        redis
    }

    fn decide(&self, store: &Store, charges: &mut [Charge<'_>], now: u64) -> Decision {
        self.runtime.block_on(store.charge_all(charges, now)).expect("the store is there")
    }

    /// Runs one case on both.
    fn compare(&self, quotas: &[Quota], steps: &[Step]) -> Result<(), TestCaseError> {
        let case = self.cases.fetch_add(1, Ordering::Relaxed);
        let ids = |store: &Store| -> Vec<_> {
            let name = |index| format!("case-{case}-{index}");
            let ids: Vec<_> = (0..quotas.len()).map(|index| store.limit_id(&name(index))).collect();
            let registry = ids.iter().zip(quotas).map(|(id, quota)| (*id, [quota.clone()].into()));
            store.adopt(registry.collect::<Registry>());
            ids
        };
        let (in_memory, in_redis) = (ids(&self.memory), ids(&self.redis));
        let (mut told, mut held) = (0, Vec::new());
        // Not too far into the future, where numbers are not exact any more.
        self.clock.advance(Duration::from_micros(START.wrapping_sub(self.clock.now())));
        for (number, step) in steps.iter().enumerate() {
            let then = self.clock.now();
            let by = match step.after {
                After::On(by) => by,
                After::Back(by) => 0_u64.wrapping_sub(by),
                After::Boundary(layer) => {
                    let window = quotas[layer % quotas.len()].rate().window;
                    window - then % window
                }
                After::Told(beside) => (told + beside).saturating_sub(1),
            };
            self.clock.advance(Duration::from_micros(by));
            let now = self.clock.now();
            let user = ["ada", "a caller whose name is so long that it has to be hashed to fit"];
            let parts = [Part::User(user[usize::from(step.caller)])];
            let charges = |ids: &[sluice::store::LimitId]| -> Vec<Charge<'_>> {
                let applies = |(index, _): &(usize, _)| step.layers & 1 << index != 0;
                let of = |(index, id): (usize, &sluice::store::LimitId)| {
                    let quota = &quotas[index];
                    let mut charge = Charge::new(*id, quota, Subject(&parts));
                    let capacity = quota.capacity();
                    let share = step.share.map(|share| capacity / 16 * share);
                    charge.cost = share.unwrap_or(step.cost).clamp(1, capacity);
                    charge.shadow = index == step.shadow;
                    charge.settles = step.settles && quota.can_settle();
                    charge
                };
                ids.iter().enumerate().filter(applies).map(of).collect()
            };
            let (mut ours, mut theirs) = (charges(&in_memory), charges(&in_redis));
            let expected = self.decide(&self.memory, &mut ours, now);
            self.redis().forget();
            let found = self.decide(&self.redis, &mut theirs, now);
            prop_assert_eq!(expected.rejected_by, found.rejected_by, "step {}", number);
            for (ours, theirs) in ours.iter().zip(&theirs) {
                let tell = |verdict: &Verdict| {
                    let quota = ours.quota;
                    (
                        (verdict.allowed, verdict.remaining(), verdict.unused),
                        (verdict.retry_after(), verdict.delay()),
                        (quota.reset(verdict), quota.next(verdict)),
                    )
                };
                let (expected, found) = (tell(&ours.verdict), tell(&theirs.verdict));
                prop_assert_eq!(expected, found, "step {}: {:?}", number, ours.quota);
            }
            let waits = ours
                .iter()
                .map(|charge| charge.verdict.retry_after().max(charge.quota.next(&charge.verdict)));
            told = waits.min().unwrap_or(0);
            prop_assert_eq!(expected.holds.len(), found.holds.len(), "step {}", number);
            held.extend(expected.holds.into_iter().zip(found.holds));
            if step.finishes && !held.is_empty() {
                let (ours, theirs) = held.remove(number % held.len());
                if ours.is_queue() {
                    self.memory.release(&ours, now);
                    self.redis.release(&theirs, now);
                } else {
                    self.memory.settle(&ours, step.actual, now);
                    self.redis.settle(&theirs, step.actual, now);
                }
                eventually("the background", || self.redis().is_idle().then_some(()));
            }
        }
        Ok(())
    }
}

fn run(stores: &Stores, cases: u32, shrink: u32) -> Result<(), TestError<Case>> {
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: shrink, ..Config::default() };
    let input = (prop::collection::vec(quotas(), 1..=5), steps());
    TestRunner::new(config).run(&input, |(quotas, steps)| stores.compare(&quotas, &steps))
}

#[test]
fn memory_and_redis_give_the_same_answers() {
    let server = Server::start();
    let stores = Stores::new(&server, str::to_owned);
    run(&stores, 2000, 2000).unwrap();
    let decided = stores.cases.load(Ordering::Relaxed);
    assert!(decided >= 2000);
}

/// Mistakes of the kind that are made: each is noticed.
#[test]
fn a_script_that_differs_is_noticed() {
    let mistakes = [
        ("floor(rest / b)", "floor(rest / b) + 1"),
        ("used - back, rest % b", "used - back, 0"),
        ("quotient = quotient * 128 + digit", "quotient = quotient * 127 + digit"),
        ("if rest > 0 then weight = weight + 1 end", ""),
        ("if stamp < window_of(", "if stamp <= window_of("),
        ("if moment < c then return b, c end", ""),
        ("min(in_time, MOST) + 1", "min(in_time, MOST)"),
        ("if passed == 1 then return moment, 0, used end", ""),
        ("'(0', log.at - window)) do", "'(0', log.at - window - 1)) do"),
        ("log.at = max(now, log.newest)", "log.at = now"),
        ("local step = min(need, 100)", "need = 0 local step = 1"),
        ("flags % 2 == 0 then admitted = 0", "true then admitted = 0"),
        ("if admitted == 1 then", "if true then"),
        ("used = used + taken\n", "used = used + 1\n"),
        ("max(actual, min(back, cost))", "actual"),
        ("used + back - cost, under_way - part", "used + back - cost, under_way"),
        ("carry = applied(carry, actual)", ""),
        ("if counted >= start and counted < finish then", "if true then"),
        ("elseif actual > cost then", "elseif false then"),
        ("save(BUCKET, stamp, max(used - cost, 0), carry)", ""),
        ("if stamp == then_stamp and used == then_used", "if true or used == then_used"),
    ];
    let server = Server::start();
    for (right, wrong) in mistakes {
        let found = AtomicU64::new(0);
        let stores = Stores::new(&server, |script| {
            found.fetch_add(script.matches(right).count() as u64, Ordering::Relaxed);
            script.replacen(right, wrong, 1)
        });
        assert!(found.load(Ordering::Relaxed) > 0, "{right:?} is nowhere");
        assert!(run(&stores, 2000, 0).is_err(), "{wrong:?} for {right:?} was not noticed");
        println!("{right:?} → {wrong:?}: after {} cases", stores.cases.load(Ordering::Relaxed));
    }
}
