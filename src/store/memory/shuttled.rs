//! The store under every order of events that shuttle can think of: `make shuttle`.

use super::*;
use crate::clock::SECOND;
use crate::limit::Rate;
use crate::store::Part;
use shuttle::sync::Arc;
use shuttle::thread;
use std::net::Ipv4Addr;

const NOW: Micros = 1_700_000_000 * SECOND;

fn check(test: fn()) {
    shuttle::check_random(test, 1000);
    shuttle::check_pct(test, 1000, 3);
}

fn store(max_keys: usize, quotas: &[Quota]) -> Arc<Memory> {
    let store = Memory { seed: Seed(1, 2), ..Memory::new(max_keys) };
    let ids = (0..quotas.len()).map(|n| store.limit_id(&n.to_string()));
    let registry = ids.zip(quotas).map(|(id, quota)| (id, [quota.clone()].into())).collect();
    store.adopt(registry);
    Arc::new(store)
}

fn per_hour(count: u32) -> Quota {
    Quota::token_bucket(Rate { count, window: 3600 * SECOND }, None).unwrap()
}

fn ip(n: u32) -> [Part<'static>; 1] {
    [Part::Ip(Ipv4Addr::from(n).into())]
}

/// Whether a request of these callers, one a layer, is admitted; and what it holds.
fn ask(store: &Memory, layers: &[(u32, &Quota, u32)]) -> Option<Vec<Hold>> {
    let parts: Vec<_> = layers.iter().map(|layer| ip(layer.2)).collect();
    let layers = layers.iter().zip(&parts);
    let mut charges: Vec<_> = layers
        .map(|((id, quota, _), part)| Charge::new(LimitId(*id), quota, Subject(part)))
        .collect();
    let decision = store.charge_all(&mut charges, NOW);
    decision.rejected_by.is_none().then_some(decision.holds)
}

/// Layers in opposite orders never wait for each other in a circle, and what is admitted is the
/// limit: strangers and known callers, sweeps in between.
#[test]
fn exactly_the_limit_in_whatever_order() {
    check(|| {
        let quotas = [per_hour(2), per_hour(3)];
        let store = store(1000, &quotas);
        let threads: Vec<_> = (0..3)
            .map(|n| {
                let (store, quotas) = (Arc::clone(&store), quotas.clone());
                thread::spawn(move || {
                    let layers = [(0, &quotas[0], 7), (1, &quotas[1], 8)];
                    let back = [layers[1], layers[0]];
                    let first = ask(&store, if n % 2 == 0 { &layers } else { &back }).is_some();
                    if n == 1 {
                        store.sweep(SHARDS, NOW);
                    }
                    usize::from(first) + usize::from(ask(&store, &layers).is_some())
                })
            })
            .collect();
        let admitted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(admitted, 2, "all or nothing");
        // The wider layer was charged by those two alone.
        assert!(ask(&store, &[(1, &quotas[1], 8)]).is_some());
        assert!(ask(&store, &[(1, &quotas[1], 8)]).is_none());
    });
}

/// Places in flight come and go, and none is lost.
#[test]
fn places_are_given_back() {
    check(|| {
        let quotas = [Quota::concurrency(2).unwrap(), per_hour(1000)];
        let store = store(1000, &quotas);
        let flying = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..3)
            .map(|n| {
                let (store, quotas, flying) =
                    (Arc::clone(&store), quotas.clone(), Arc::clone(&flying));
                thread::spawn(move || {
                    for _ in 0..2 {
                        if let Some(holds) = ask(&store, &[(0, &quotas[0], 7), (1, &quotas[1], n)])
                        {
                            assert!(flying.fetch_add(1, Ordering::SeqCst) < 2);
                            flying.fetch_sub(1, Ordering::SeqCst);
                            holds.iter().for_each(|hold| store.release(hold, NOW));
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(ask(&store, &[(0, &quotas[0], 7)]).is_some());
        assert!(ask(&store, &[(0, &quotas[0], 7)]).is_some());
        assert!(ask(&store, &[(0, &quotas[0], 7)]).is_none());
    });
}

/// A full store: strangers share a counter, and nobody gets a fresh allowance by the other's
/// coming and going.
#[test]
fn a_full_store_stays_strict() {
    check(|| {
        let quotas =
            [per_hour(1), Quota::token_bucket(Rate { count: 1, window: 1 }, None).unwrap()];
        let store = store(2, &quotas);
        for n in 0..2 {
            assert!(ask(&store, &[(1, &quotas[1], n)]).is_some());
        }
        let threads: Vec<_> = (0..3)
            .map(|n| {
                let (store, quotas) = (Arc::clone(&store), quotas.clone());
                thread::spawn(move || {
                    if n == 2 {
                        store.sweep(SHARDS, NOW + 10);
                        return 0;
                    }
                    (0..2).filter(|_| ask(&store, &[(0, &quotas[0], 100 + n)]).is_some()).count()
                })
            })
            .collect();
        let admitted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        // One each with entries of their own; one together in the overflow.
        assert!((1..=2).contains(&admitted), "{admitted}");
    });
}
