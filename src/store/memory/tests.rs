//! The memory store's promises: exact, all or nothing, bounded.

use super::*;
use crate::clock::SECOND;
use crate::limit::Rate;
use crate::store::Part;
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicU64;

/// A decision with all it says.
struct Decided {
    verdicts: Vec<Verdict>,
    rejected_by: Option<usize>,
    holds: Vec<Hold>,
}

impl Memory {
    fn decide(&self, layers: &[Charge<'_>], now: Micros) -> Decided {
        let mut layers = layers.to_vec();
        let Decision { rejected_by, holds } = self.charge_all(&mut layers, now);
        let verdicts = layers.iter().map(|layer| layer.verdict).collect();
        Decided { verdicts, rejected_by, holds }
    }
}

const NOW: Micros = 1_700_000_000 * SECOND;

fn quota(count: u32) -> Quota {
    Quota::token_bucket(Rate { count, window: 60 * SECOND }, None).unwrap()
}

fn ip(n: u32) -> [Part<'static>; 1] {
    [Part::Ip(Ipv4Addr::from(n).into())]
}

fn charge<'a>(limit: LimitId, quota: &'a Quota, parts: &'a [Part<'a>]) -> Charge<'a> {
    Charge::new(limit, quota, Subject(parts))
}

fn store(max_keys: usize, quotas: &[(&str, Quota)]) -> (Memory, Vec<LimitId>) {
    let store = Memory::new(max_keys);
    let ids: Vec<_> = quotas.iter().map(|(name, _)| store.limit_id(name)).collect();
    let registry = ids.iter().zip(quotas).map(|(id, (_, q))| (*id, [q.clone()].into())).collect();
    store.adopt(registry);
    (store, ids)
}

#[test]
fn eight_threads_admit_exactly_the_limit() {
    let (quota, wide) = (&quota(1000), &quota(1_000_000));
    let (store, ids) = store(10_000, &[("a", quota.clone()), ("b", wide.clone())]);
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (store, ids, admitted) = (&store, &ids, &admitted);
            scope.spawn(move || {
                for n in 0..12_500 {
                    // The second layer's caller differs, so that shards are locked in every
                    // combination.
                    let callers = [ip(1), ip(thread * n)];
                    let layers =
                        [charge(ids[0], quota, &callers[0]), charge(ids[1], wide, &callers[1])];
                    let decision = store.decide(&layers, NOW);
                    admitted.fetch_add(decision.rejected_by.is_none().into(), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 1000);
}

#[test]
fn a_rejected_request_charges_no_layer() {
    let (wide, narrow) = (quota(10), quota(1));
    let (store, ids) = store(1000, &[("ip", wide.clone()), ("key", narrow.clone())]);
    let caller = ip(1);
    let layers = [charge(ids[0], &wide, &caller), charge(ids[1], &narrow, &[Part::ApiKey("acme")])];
    assert_eq!(store.decide(&layers, NOW).verdicts[0].remaining(), 9);
    for _ in 0..5 {
        let decision = store.decide(&layers, NOW);
        assert_eq!(decision.rejected_by, Some(1));
        assert_eq!(decision.verdicts[0].remaining(), 9, "as it was");
        assert!(decision.verdicts[0].allowed);
    }
    assert_eq!(store.decide(&layers[..1], NOW).verdicts[0].remaining(), 8);
}

#[test]
fn a_shadow_limit_never_rejects_and_counts_only_what_it_would_admit() {
    let (wide, narrow) = (quota(5), quota(2));
    let (store, ids) = store(1000, &[("live", wide.clone()), ("shadow", narrow.clone())]);
    let caller = ip(1);
    let shadow = Charge { shadow: true, ..charge(ids[1], &narrow, &caller) };
    let layers = [charge(ids[0], &wide, &caller), shadow];
    let seen: Vec<_> = (0..6)
        .map(|_| store.decide(&layers, NOW))
        .map(|d| (d.rejected_by.is_none(), d.verdicts[1].allowed))
        .collect();
    let (yes, no) = (true, false);
    assert_eq!(seen, [(yes, yes), (yes, yes), (yes, no), (yes, no), (yes, no), (no, no)]);
}

#[test]
fn a_flood_of_callers_stays_within_the_cap_and_forgives_nobody() {
    let quota = quota(3);
    let (store, ids) = store(1024, &[("ip", quota.clone())]);
    for _ in 0..3 {
        store.decide(&[charge(ids[0], &quota, &ip(7))], NOW);
    }
    let mut admitted = 0;
    for n in 1000..101_000 {
        let decision = store.decide(&[charge(ids[0], &quota, &ip(n))], NOW);
        admitted += u64::from(decision.rejected_by.is_none());
    }
    assert!(store.keys() <= 1024, "{} keys", store.keys());
    assert!(admitted <= 1024 + 3, "newcomers share a counter: {admitted}");
    let limited = store.decide(&[charge(ids[0], &quota, &ip(7))], NOW);
    assert_eq!(limited.rejected_by, Some(0), "the limited caller stays limited");
}

#[test]
fn room_that_comes_up_is_no_fresh_allowance() {
    let (store, ids, slow) = full_store(quota(3));
    // A caller of the slow limit is counted in its overflow, until it is used up.
    let caller = ip(7_777_777);
    let asked = |at| store.decide(&[charge(ids[1], &slow, &caller)], at);
    assert_eq!((0..5).filter(|_| asked(NOW).rejected_by.is_none()).count(), 3);
    assert_eq!(store.keys(), 1024, "they have no entry");
    // Now there is room for one of their own.
    let later = NOW + 10 * SECOND;
    store.sweep(SHARDS, later);
    assert_eq!(store.keys(), 0);
    assert_eq!(asked(later).rejected_by, Some(0), "they used it all ten seconds ago");
}

/// A store with no room left, until ten seconds later; and a second limit in it.
fn full_store(second: Quota) -> (Memory, Vec<LimitId>, Quota) {
    let quick = quota(600_000);
    let (store, ids) = store(1024, &[("quick", quick.clone()), ("second", second.clone())]);
    for n in 0..20_000 {
        store.decide(&[charge(ids[0], &quick, &ip(n))], NOW);
    }
    assert_eq!(store.keys(), 1024);
    (store, ids, second)
}

#[test]
fn what_others_have_in_flight_is_no_newcomers_burden() {
    let (store, ids, flying) = full_store(Quota::concurrency(2).unwrap());
    // Beyond the cap strangers share the counter, and one is still in flight ...
    let (one, other) = (ip(7_777_777), ip(8_888_888));
    let first = store.decide(&[charge(ids[1], &flying, &one)], NOW);
    assert!(first.holds[0].overflow);
    // ... when there is room for an entry of somebody's own: nobody would ever give back
    // what they began with.
    let later = NOW + 10 * SECOND;
    store.sweep(SHARDS, later);
    let second = store.decide(&[charge(ids[1], &flying, &other)], later);
    assert_eq!(second.verdicts[0].remaining(), 1);
    for hold in first.holds.iter().chain(&second.holds) {
        store.release(hold, later);
    }
    let again = store.decide(&[charge(ids[1], &flying, &other)], later);
    assert_eq!(again.verdicts[0].remaining(), 1, "nothing leaked");
}

#[test]
fn giving_back_a_place_touches_nothing_that_another_algorithm_counted() {
    let (flying, bucket) = (Quota::concurrency(2).unwrap(), quota(3));
    let (store, ids) = store(1000, &[("x", flying.clone())]);
    let caller = ip(1);
    let in_flight = store.decide(&[charge(ids[0], &flying, &caller)], NOW);
    // A reload makes a rate of the limit while the request is under way.
    for _ in 0..3 {
        store.decide(&[charge(ids[0], &bucket, &caller)], NOW);
    }
    store.release(&in_flight.holds[0], NOW);
    let decision = store.decide(&[charge(ids[0], &bucket, &caller)], NOW);
    assert_eq!(decision.rejected_by, Some(0), "3 of 3 are used");
}

#[test]
fn giving_back_a_place_touches_nothing_in_the_overflow_either() {
    let (store, ids, flying) = full_store(Quota::concurrency(2).unwrap());
    let (one, other) = (ip(7_777_777), ip(8_888_888));
    let in_flight = store.decide(&[charge(ids[1], &flying, &one)], NOW);
    assert!(in_flight.holds[0].overflow);
    let bucket = quota(3);
    for _ in 0..3 {
        store.decide(&[charge(ids[1], &bucket, &other)], NOW);
    }
    store.release(&in_flight.holds[0], NOW);
    let decision = store.decide(&[charge(ids[1], &bucket, &other)], NOW);
    assert_eq!(decision.rejected_by, Some(0), "3 of 3 are used");
}

#[test]
fn settling_goes_by_the_numbers_in_force() {
    let (quick, slow) = (quota(6000), quota(6000 / 60 / 24));
    let (store, ids) = store(1000, &[("x", quick.clone())]);
    let caller = ip(1);
    let reserving = Charge { settles: true, ..charge(ids[0], &quick, &caller) };
    let streams = [store.decide(&[reserving], NOW), store.decide(&[reserving], NOW)];
    // A reload makes it far slower, and the caller uses all of it.
    store.adopt(Registry::from([(ids[0], [slow.clone()].into())]));
    let layer = charge(ids[0], &slow, &caller);
    while store.decide(&[layer], NOW).rejected_by.is_none() {}
    // The old rate would have brought all of it back by now.
    let later = NOW + SECOND;
    store.settle(&streams[0].holds[0], 0, later);
    assert_eq!(store.decide(&[layer], later).rejected_by, Some(0));
    // What it cost beyond what was reserved is owed all the same.
    store.settle(&streams[1].holds[0], 101, later);
    let owed = store.decide(&[layer], later).verdicts[0].retry_after();
    assert!(owed > 24 * 60 * SECOND, "{owed}");
}

#[test]
fn making_room_for_one_charge_loses_no_other() {
    let quota = quota(1);
    let (store, ids) = store(1, &[("a", quota.clone()), ("b", quota.clone())]);
    let parts: Vec<_> = (0..4096).map(ip).collect();
    for part in &parts {
        store.decide(&[charge(ids[0], &quota, part)], NOW);
    }
    // All are whole: each new pair sweeps the very entry it has just found.
    let later = NOW + 61 * SECOND;
    for part in &parts {
        let layers = [charge(ids[0], &quota, part), charge(ids[1], &quota, part)];
        if store.decide(&layers, later).rejected_by.is_none() {
            assert_eq!(store.decide(&layers, later).rejected_by, Some(0));
        }
    }
}

#[test]
fn callers_who_are_whole_make_room() {
    let quota = quota(3);
    let (store, ids) = store(1024, &[("ip", quota.clone())]);
    for n in 0..5000 {
        store.decide(&[charge(ids[0], &quota, &ip(n))], NOW);
    }
    let later = NOW + 61 * SECOND;
    store.sweep(SHARDS, later);
    assert_eq!(store.keys(), 0);
    let decision = store.decide(&[charge(ids[0], &quota, &ip(9999))], later);
    assert_eq!(decision.verdicts[0].remaining(), 2);
}

#[test]
fn a_full_store_finds_room_without_the_background_sweep() {
    let quota = quota(3);
    let (store, ids) = store(16 * SHARDS, &[("ip", quota.clone())]);
    for n in 0..20_000 {
        store.decide(&[charge(ids[0], &quota, &ip(n))], NOW);
    }
    let later = NOW + 61 * SECOND;
    let fresh = (30_000..30_100)
        .map(|n| store.decide(&[charge(ids[0], &quota, &ip(n))], later))
        .filter(|decision| decision.verdicts[0].remaining() == 2)
        .count();
    assert_eq!(fresh, 100);
}

/// As many threads as it takes, for a minute: callers of all kinds, layers in every combination,
/// sweeps in between; each caller is admitted exactly as often as their limits allow.
#[test]
#[ignore = "takes a minute: make load"]
#[expect(clippy::disallowed_methods, reason = "it goes on until a minute is over")]
fn a_minute_of_stress_admits_exactly_the_limits() {
    use std::sync::atomic::AtomicU32;
    let began = std::time::Instant::now();
    let (mut rounds, mut decisions) = (0_u32, 0_u64);
    while began.elapsed().as_secs() < 60 {
        let narrow = quota(7 + rounds % 50);
        let wide = Quota::fixed_window(Rate { count: 1_000_000, window: 3600 * SECOND }).unwrap();
        let log = Quota::sliding_log(Rate { count: 40, window: 3600 * SECOND }).unwrap();
        let names = [("narrow", narrow.clone()), ("wide", wide.clone()), ("log", log.clone())];
        let (store, ids) = store(100_000, &names);
        let admitted: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
        let (asked, tries) = (AtomicU64::new(0), 12_000_u32);
        std::thread::scope(|scope| {
            for thread in 0..8_u32 {
                let (store, ids, admitted, asked) = (&store, &ids, &admitted, &asked);
                let (narrow, wide, log) = (&narrow, &wide, &log);
                scope.spawn(move || {
                    for n in 0..tries {
                        let caller = (n * 7 + thread) % 64;
                        let parts = [ip(caller), ip(1000 + n * thread % 777)];
                        let layers = [
                            charge(ids[0], narrow, &parts[0]),
                            charge(ids[1], wide, &parts[1]),
                            charge(ids[2], log, &parts[0]),
                        ];
                        let (from, to) = [(0, 3), (0, 2), (0, 1)][n as usize % 3];
                        let decision = store.decide(&layers[from..to], NOW);
                        if decision.rejected_by.is_none() {
                            admitted[caller as usize].fetch_add(1, Ordering::Relaxed);
                        }
                        if n % 997 == 0 {
                            store.sweep(16, NOW);
                        }
                    }
                    asked.fetch_add(tries.into(), Ordering::Relaxed);
                });
            }
        });
        for (caller, admitted) in admitted.iter().enumerate() {
            let admitted = admitted.load(Ordering::Relaxed);
            assert_eq!(admitted, 7 + rounds % 50, "caller {caller} in round {rounds}");
        }
        rounds += 1;
        decisions += asked.into_inner();
    }
    println!("{decisions} decisions in {rounds} rounds, every one as it should be");
}
