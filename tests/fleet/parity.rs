//! Two stores, one answer: the same requests at the same times get the same verdicts, remaining
//! counts and times from memory and from Redis.

use crate::common::redis::Redis as Server;
use crate::common::{START, eventually};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use sluice::clock::Clock;
use sluice::config::model::{RedisServers, RedisUrl, SharedStore};
use sluice::limit::{Calendar, Period, Quota, Rate, Verdict};
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

/// One request: after how long, by whom, over which layers, at what cost; and what becomes of it.
#[derive(Clone, Debug)]
struct Step {
    after: u64,
    /// The clock goes back instead.
    back: bool,
    caller: u8,
    layers: u8,
    cost: u32,
    /// Which layer is a shadow, if any.
    shadow: usize,
    settles: Option<u32>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![
        4 => Just(0_u64),
        4 => 0..200_000_u64,
        3 => 0..5_000_000_u64,
        1 => 0..200_000_000_u64,
        1 => 0..(3 * 86_400 * SECOND),
    ];
    let settles = prop_oneof![3 => Just(None), 1 => (0..12_u32).prop_map(Some)];
    let step =
        (after, prop::bool::weighted(0.05), 0..2_u8, 1..32_u8, 1..4_u32, 0..12_usize, settles);
    let step = step.prop_map(|(after, back, caller, layers, cost, shadow, settles)| Step {
        after,
        back,
        caller,
        layers,
        cost,
        shadow,
        settles,
    });
    prop::collection::vec(step, 1..40)
}

struct Stores {
    memory: Store,
    redis: Store,
    clock: Clock,
    cases: AtomicU64,
    runtime: tokio::runtime::Runtime,
}

fn options(server: &Server) -> SharedStore {
    let servers = RedisServers::One(RedisUrl::new(&server.url()));
    SharedStore { timeout: Duration::from_secs(10), ..SharedStore::at(servers) }
}

impl Stores {
    fn new(server: &Server) -> Self {
        let clock = Clock::manual(START);
        let redis = Redis::new(options(server), 1, clock.clone(), Arc::default());
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
        for (number, step) in steps.iter().enumerate() {
            if step.back {
                let back = step.after.min(2_000_000);
                self.clock.advance(Duration::from_micros(0_u64.wrapping_sub(back)));
            } else {
                self.clock.advance(Duration::from_micros(step.after));
            }
            let now = self.clock.now();
            let user = ["ada", "a caller whose name is so long that it has to be hashed to fit"];
            let parts = [Part::User(user[usize::from(step.caller)])];
            let charges = |ids: &[sluice::store::LimitId]| -> Vec<Charge<'_>> {
                let applies = |(index, _): &(usize, _)| step.layers & 1 << index != 0;
                let of = |(index, id): (usize, &sluice::store::LimitId)| {
                    let quota = &quotas[index];
                    let mut charge = Charge::new(*id, quota, Subject(&parts));
                    charge.cost = step.cost.min(quota.capacity());
                    charge.shadow = index == step.shadow;
                    charge.settles = step.settles.is_some() && quota.can_settle();
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
            prop_assert_eq!(expected.holds.len(), found.holds.len(), "step {}", number);
            for (ours, theirs) in expected.holds.iter().zip(&found.holds) {
                if let Some(actual) = step.settles.filter(|_| !ours.is_queue()) {
                    self.memory.settle(ours, actual, now);
                    self.redis.settle(theirs, actual, now);
                } else if step.cost == 2 {
                    // They leave the queue.
                    self.memory.release(ours, now);
                    self.redis.release(theirs, now);
                }
            }
            if !found.holds.is_empty() {
                eventually("the background", || self.redis().is_idle().then_some(()));
            }
        }
        Ok(())
    }
}

fn run(stores: &Stores, cases: u32) -> Result<(), TestError<(Vec<Quota>, Vec<Step>)>> {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let input = (prop::collection::vec(quotas(), 1..=5), steps());
    TestRunner::new(config).run(&input, |(quotas, steps)| stores.compare(&quotas, &steps))
}

#[test]
fn memory_and_redis_give_the_same_answers() {
    let server = Server::start();
    let stores = Stores::new(&server);
    run(&stores, 1000).unwrap();
    let decided = stores.cases.load(Ordering::Relaxed);
    assert!(decided >= 1000);
}
