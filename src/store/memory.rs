//! Counters in this process: exact, bounded, and without a wait.
//!
//! ```text
//! (limit, subject) ── SipHash-128 ──► key ── low bits ──► shard: Mutex<table of (key, limit, state)>
//! ```
//!
//! A decision locks the shards of all its charges in ascending order, so that two decisions never
//! wait for each other in a circle; computes every verdict; and writes only if all enforcing
//! limits allow.
//!
//! Making room forgives nobody: an entry leaves only when it is whole again. When a shard is full
//! of callers who are not whole, further newcomers count as one caller, in their limit's overflow
//! counter. Its lock is taken last, after every shard's.

use super::key::Seed;
use super::{Charge, Decision, Hold, LimitId, Subject};
use crate::clock::Micros;
use crate::limit::{Held, Next, Quota, Verdict};
use arc_swap::ArcSwap;
use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the store must know of the limits to tell when an entry is whole: for each, the quotas
/// that its entries may be counted by (several where plans decide). A limit that is no longer
/// there has no entry, and its counters may go.
pub type Registry = HashMap<LimitId, Box<[Quota]>>;

const SHARDS: usize = 256;

/// How many entries one insertion into a full shard looks at to find room.
const SWEEP_STEP: usize = 32;

/// The memory store.
#[derive(Debug)]
pub struct Memory {
    seed: Seed,
    shards: Box<[Mutex<Shard>]>,
    max_keys_per_shard: AtomicUsize,
    names: Mutex<HashMap<String, LimitId>>,
    registry: ArcSwap<Registry>,
    /// Newcomers beyond the cap, one counter a limit.
    overflow: Mutex<HashMap<LimitId, Held>>,
    /// How many there are, so that the usual case takes no lock.
    overflowing: AtomicUsize,
    /// Where the background sweep goes on.
    swept: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashTable<Entry>,
    /// Where the next search for room begins.
    cursor: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    key: u128,
    held: Held,
    limit: LimitId,
}

/// Where a charge's state was found, and so where it is written.
enum Place {
    Entry,
    /// There is none yet; this is what it begins with.
    New(Held),
    Overflow,
}

/// The overflow counters, locked.
type Overflow<'a> = MutexGuard<'a, HashMap<LimitId, Held>>;

/// One charge under way: found, computed, not yet written.
struct Open {
    key: u128,
    /// Index into the guards.
    guard: usize,
    place: Place,
    next: Next,
}

impl Memory {
    /// A store of at most about `max_keys` callers.
    pub fn new(max_keys: usize) -> Self {
        Self {
            seed: Seed::random(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            max_keys_per_shard: AtomicUsize::new(max_keys.div_ceil(SHARDS)),
            names: Mutex::default(),
            registry: ArcSwap::default(),
            overflow: Mutex::default(),
            overflowing: AtomicUsize::new(0),
            swept: AtomicUsize::new(0),
        }
    }

    /// Changes the cap; a lower one forgets nobody, it only admits no further callers.
    pub fn set_max_keys(&self, max_keys: usize) {
        self.max_keys_per_shard.store(max_keys.div_ceil(SHARDS), Ordering::Relaxed);
    }

    /// How many callers are remembered.
    pub fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    pub(super) fn limit_id(&self, name: &str) -> LimitId {
        let mut names = self.names.lock();
        let next = LimitId(names.len() as u32);
        *names.entry(name.to_owned()).or_insert(next)
    }

    pub(super) fn adopt(&self, registry: Registry) {
        self.registry.store(registry.into());
    }

    /// Decides one request's charges: all are charged, or none is.
    pub fn charge_all(&self, charges: &[Charge<'_>], now: Micros) -> Decision {
        let keys: SmallVec<[u128; 4]> =
            charges.iter().map(|c| self.seed.key(c.limit.0, &c.subject)).collect();
        let (order, mut guards) = self.lock(&keys);
        let mut decision = Decision::default();
        let mut open: SmallVec<[Open; 4]> = SmallVec::new();
        let mut overflow: Option<Overflow<'_>> = None;
        for (index, (charge, &key)) in charges.iter().zip(&keys).enumerate() {
            let guard = order.binary_search(&shard_of(key)).unwrap_or_default();
            let check = |held: &Held| charge.quota.check(held, now, charge.cost);
            let found = guards[guard].find(key).map(check);
            let (place, (verdict, next)) = match found {
                Some(checked) => (Place::Entry, checked),
                None if self.has_room(&mut guards[guard], charge, now) => {
                    let held = self.newcomer(charge, &mut overflow);
                    let checked = check(&held);
                    (Place::New(held), checked)
                }
                None => {
                    let shared = overflow.get_or_insert_with(|| self.overflow.lock());
                    (Place::Overflow, check(shared.entry(charge.limit).or_default()))
                }
            };
            if !verdict.allowed && !charge.shadow && decision.rejected_by.is_none() {
                decision.rejected_by = Some(index);
            }
            decision.verdicts.push(verdict);
            open.push(Open { key, guard, place, next });
        }
        if decision.rejected_by.is_some() {
            for (index, open) in open.iter().enumerate() {
                if decision.verdicts[index].allowed {
                    let held = match &open.place {
                        Place::Entry => guards[open.guard].find(open.key),
                        Place::New(held) => Some(held),
                        Place::Overflow => {
                            overflow.as_ref().and_then(|o| o.get(&charges[index].limit))
                        }
                    };
                    decision.verdicts[index] = restated(&charges[index], held, now);
                }
            }
            return decision;
        }
        for ((charge, verdict), open) in charges.iter().zip(&decision.verdicts).zip(open) {
            if !verdict.allowed {
                continue;
            }
            decision.holds.extend(hold(charge, verdict, &open));
            match open.place {
                Place::Entry => {
                    guards[open.guard].write(charge.limit, open.key, open.next, Held::default);
                }
                Place::New(held) => {
                    guards[open.guard].write(charge.limit, open.key, open.next, || held);
                }
                Place::Overflow => {
                    if let Some(shared) = &mut overflow {
                        shared.entry(charge.limit).or_default().apply(open.next);
                        self.overflowing.store(shared.len(), Ordering::Release);
                    }
                }
            }
        }
        decision
    }

    /// Takes back what a request held.
    pub(super) fn release(&self, hold: &Hold, now: Micros) {
        let back = |held: &mut Held| {
            if let Some(next) = hold.quota.give_back(held, hold.after, now, hold.cost) {
                held.apply(next);
            }
        };
        if hold.overflow {
            if let Some(held) = self.overflow.lock().get_mut(&hold.limit) {
                back(held);
            }
        } else {
            let mut shard = self.shards[shard_of(hold.key)].lock();
            if let Some(entry) = shard.entries.find_mut(hash(hold.key), |e| e.key == hold.key) {
                back(&mut entry.held);
            }
        }
    }

    /// Locks every shard that the keys are in, each once, in ascending order.
    fn lock(&self, keys: &[u128]) -> (SmallVec<[usize; 4]>, SmallVec<[MutexGuard<'_, Shard>; 4]>) {
        let mut order: SmallVec<[usize; 4]> = keys.iter().map(|&key| shard_of(key)).collect();
        order.sort_unstable();
        order.dedup();
        let guards = order.iter().map(|&shard| self.shards[shard].lock()).collect();
        (order, guards)
    }

    /// What a caller begins with who has no entry yet. Whoever was counted in the overflow until
    /// now could be anybody, so a newcomer begins where the overflow stands. What others have in
    /// flight is given back there, and would never be here.
    fn newcomer<'a>(&'a self, charge: &Charge<'_>, overflow: &mut Option<Overflow<'a>>) -> Held {
        if self.overflowing.load(Ordering::Acquire) == 0 || charge.quota.is_concurrency() {
            return Held::default();
        }
        let shared = overflow.get_or_insert_with(|| self.overflow.lock());
        shared.get(&charge.limit).cloned().unwrap_or_default()
    }

    /// Whether a caller never seen may have an entry of their own.
    fn has_room(&self, shard: &mut Shard, charge: &Charge<'_>, now: Micros) -> bool {
        shard.entries.len() < self.max_keys_per_shard.load(Ordering::Relaxed)
            || charge.subject == Subject::EVERYONE
            || shard.sweep(SWEEP_STEP, &self.registry.load(), now) > 0
    }

    /// Lets go of callers who are whole again, in a few of the shards: called every so often, so
    /// that idle callers do not stay for ever and no single call takes long.
    pub fn sweep(&self, shards: usize, now: Micros) {
        let registry = self.registry.load();
        for _ in 0..shards.min(SHARDS) {
            let next = self.swept.fetch_add(1, Ordering::Relaxed) % SHARDS;
            self.shards[next].lock().sweep(usize::MAX, &registry, now);
        }
        let mut overflow = self.overflow.lock();
        overflow.retain(|limit, held| !whole(&registry, *limit, held, now));
        self.overflowing.store(overflow.len(), Ordering::Release);
    }
}

impl Shard {
    fn find(&self, key: u128) -> Option<&Held> {
        self.entries.find(hash(key), |entry| entry.key == key).map(|entry| &entry.held)
    }

    /// An entry that was found may be gone: making room for another charge of the same request
    /// lets go of whoever is whole. It then begins anew.
    fn write(&mut self, limit: LimitId, key: u128, next: Next, begin: impl FnOnce() -> Held) {
        match self.entries.find_mut(hash(key), |entry| entry.key == key) {
            Some(entry) => entry.held.apply(next),
            None => {
                let mut held = begin();
                held.apply(next);
                let entry = Entry { key, held, limit };
                self.entries.insert_unique(hash(key), entry, |entry| hash(entry.key));
            }
        }
    }

    /// Looks at up to `steps` entries, going on where the last search ended, and lets those go
    /// that are whole. Returns how many went.
    fn sweep(&mut self, steps: usize, registry: &Registry, now: Micros) -> usize {
        let before = self.entries.len();
        if steps >= before {
            self.entries.retain(|entry| !whole(registry, entry.limit, &entry.held, now));
            if self.entries.len() < self.entries.capacity() / 4 {
                self.entries.shrink_to(self.entries.len() * 2, |entry| hash(entry.key));
            }
            return before - self.entries.len();
        }
        let buckets = self.entries.num_buckets();
        for _ in 0..steps {
            self.cursor = (self.cursor + 1) % buckets;
            if let Ok(entry) = self.entries.get_bucket_entry(self.cursor) {
                let Entry { limit, held, .. } = entry.get();
                if whole(registry, *limit, held, now) {
                    entry.remove();
                }
            }
        }
        before - self.entries.len()
    }
}

/// A rejected request charges no layer: one that would have allowed it says what it holds without.
#[cold]
fn restated(charge: &Charge<'_>, held: Option<&Held>, now: Micros) -> Verdict {
    charge.quota.peek(held.unwrap_or(&Held::default()), now, charge.cost)
}

/// What this charge takes that must be given back.
fn hold(charge: &Charge<'_>, verdict: &Verdict, open: &Open) -> Option<Hold> {
    let Next::State(after) = open.next else { return None };
    let holds = charge.quota.is_concurrency() || charge.quota.is_queue() && verdict.delay > 0;
    holds.then(|| Hold {
        limit: charge.limit,
        key: open.key,
        quota: charge.quota.clone(),
        cost: charge.cost,
        after,
        overflow: matches!(open.place, Place::Overflow),
    })
}

fn whole(registry: &Registry, limit: LimitId, held: &Held, now: Micros) -> bool {
    registry.get(&limit).is_none_or(|quotas| quotas.iter().all(|q| q.is_whole(held, now)))
}

fn shard_of(key: u128) -> usize {
    key as usize % SHARDS
}

/// The table's hash: bits that did not choose the shard.
fn hash(key: u128) -> u64 {
    (key >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;
    use crate::limit::Rate;
    use crate::store::Part;
    use std::net::Ipv4Addr;
    use std::sync::atomic::AtomicU64;

    const NOW: Micros = 1_700_000_000 * SECOND;

    fn quota(count: u32) -> Quota {
        Quota::token_bucket(Rate { count, window: 60 * SECOND }, None).unwrap()
    }

    fn ip(n: u32) -> [Part<'static>; 1] {
        [Part::Ip(Ipv4Addr::from(n).into())]
    }

    fn charge<'a>(limit: LimitId, quota: &'a Quota, parts: &'a [Part<'a>]) -> Charge<'a> {
        Charge { limit, quota, subject: Subject(parts), cost: 1, shadow: false }
    }

    fn store(max_keys: usize, quotas: &[(&str, Quota)]) -> (Memory, Vec<LimitId>) {
        let store = Memory::new(max_keys);
        let ids: Vec<_> = quotas.iter().map(|(name, _)| store.limit_id(name)).collect();
        let registry =
            ids.iter().zip(quotas).map(|(id, (_, q))| (*id, [q.clone()].into())).collect();
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
                        let decision = store.charge_all(&layers, NOW);
                        admitted
                            .fetch_add(decision.rejected_by.is_none().into(), Ordering::Relaxed);
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
        let layers =
            [charge(ids[0], &wide, &caller), charge(ids[1], &narrow, &[Part::ApiKey("acme")])];
        assert_eq!(store.charge_all(&layers, NOW).verdicts[0].remaining, 9);
        for _ in 0..5 {
            let decision = store.charge_all(&layers, NOW);
            assert_eq!(decision.rejected_by, Some(1));
            assert_eq!(decision.verdicts[0].remaining, 9, "as it was");
            assert!(decision.verdicts[0].allowed);
        }
        assert_eq!(store.charge_all(&layers[..1], NOW).verdicts[0].remaining, 8);
    }

    #[test]
    fn a_shadow_limit_never_rejects_and_counts_only_what_it_would_admit() {
        let (wide, narrow) = (quota(5), quota(2));
        let (store, ids) = store(1000, &[("live", wide.clone()), ("shadow", narrow.clone())]);
        let caller = ip(1);
        let shadow = Charge { shadow: true, ..charge(ids[1], &narrow, &caller) };
        let layers = [charge(ids[0], &wide, &caller), shadow];
        let seen: Vec<_> = (0..6)
            .map(|_| store.charge_all(&layers, NOW))
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
            store.charge_all(&[charge(ids[0], &quota, &ip(7))], NOW);
        }
        let mut admitted = 0;
        for n in 1000..101_000 {
            let decision = store.charge_all(&[charge(ids[0], &quota, &ip(n))], NOW);
            admitted += u64::from(decision.rejected_by.is_none());
        }
        assert!(store.keys() <= 1024, "{} keys", store.keys());
        assert!(admitted <= 1024 + 3, "newcomers share a counter: {admitted}");
        let limited = store.charge_all(&[charge(ids[0], &quota, &ip(7))], NOW);
        assert_eq!(limited.rejected_by, Some(0), "the limited caller stays limited");
    }

    #[test]
    fn room_that_comes_up_is_no_fresh_allowance() {
        let (store, ids, slow) = full_store(quota(3));
        // A caller of the slow limit is counted in its overflow, until it is used up.
        let caller = ip(7_777_777);
        let asked = |at| store.charge_all(&[charge(ids[1], &slow, &caller)], at);
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
            store.charge_all(&[charge(ids[0], &quick, &ip(n))], NOW);
        }
        assert_eq!(store.keys(), 1024);
        (store, ids, second)
    }

    #[test]
    fn what_others_have_in_flight_is_no_newcomers_burden() {
        let (store, ids, flying) = full_store(Quota::concurrency(2).unwrap());
        // Beyond the cap strangers share the counter, and one is still in flight ...
        let (one, other) = (ip(7_777_777), ip(8_888_888));
        let first = store.charge_all(&[charge(ids[1], &flying, &one)], NOW);
        assert!(first.holds[0].overflow);
        // ... when there is room for an entry of somebody's own: nobody would ever give back
        // what they began with.
        let later = NOW + 10 * SECOND;
        store.sweep(SHARDS, later);
        let second = store.charge_all(&[charge(ids[1], &flying, &other)], later);
        assert_eq!(second.verdicts[0].remaining, 1);
        for hold in first.holds.iter().chain(&second.holds) {
            store.release(hold, later);
        }
        let again = store.charge_all(&[charge(ids[1], &flying, &other)], later);
        assert_eq!(again.verdicts[0].remaining, 1, "nothing leaked");
    }

    #[test]
    fn giving_back_a_place_touches_nothing_that_another_algorithm_counted() {
        let (flying, bucket) = (Quota::concurrency(2).unwrap(), quota(3));
        let (store, ids) = store(1000, &[("x", flying.clone())]);
        let caller = ip(1);
        let in_flight = store.charge_all(&[charge(ids[0], &flying, &caller)], NOW);
        // A reload makes a rate of the limit while the request is under way.
        for _ in 0..3 {
            store.charge_all(&[charge(ids[0], &bucket, &caller)], NOW);
        }
        store.release(&in_flight.holds[0], NOW);
        let decision = store.charge_all(&[charge(ids[0], &bucket, &caller)], NOW);
        assert_eq!(decision.rejected_by, Some(0), "3 of 3 are used");
    }

    #[test]
    fn making_room_for_one_charge_loses_no_other() {
        let quota = quota(1);
        let (store, ids) = store(1, &[("a", quota.clone()), ("b", quota.clone())]);
        let parts: Vec<_> = (0..4096).map(ip).collect();
        for part in &parts {
            store.charge_all(&[charge(ids[0], &quota, part)], NOW);
        }
        // All are whole: each new pair sweeps the very entry it has just found.
        let later = NOW + 61 * SECOND;
        for part in &parts {
            let layers = [charge(ids[0], &quota, part), charge(ids[1], &quota, part)];
            if store.charge_all(&layers, later).rejected_by.is_none() {
                assert_eq!(store.charge_all(&layers, later).rejected_by, Some(0));
            }
        }
    }

    #[test]
    fn callers_who_are_whole_make_room() {
        let quota = quota(3);
        let (store, ids) = store(1024, &[("ip", quota.clone())]);
        for n in 0..5000 {
            store.charge_all(&[charge(ids[0], &quota, &ip(n))], NOW);
        }
        let later = NOW + 61 * SECOND;
        store.sweep(SHARDS, later);
        assert_eq!(store.keys(), 0);
        let decision = store.charge_all(&[charge(ids[0], &quota, &ip(9999))], later);
        assert_eq!(decision.verdicts[0].remaining, 2);
    }

    #[test]
    fn a_full_shard_finds_room_without_the_background_sweep() {
        let quota = quota(3);
        let (store, ids) = store(16 * SHARDS, &[("ip", quota.clone())]);
        for n in 0..20_000 {
            store.charge_all(&[charge(ids[0], &quota, &ip(n))], NOW);
        }
        let later = NOW + 61 * SECOND;
        let fresh = (30_000..30_500)
            .map(|n| store.charge_all(&[charge(ids[0], &quota, &ip(n))], later))
            .filter(|decision| decision.verdicts[0].remaining == 2)
            .count();
        assert_eq!(fresh, 500);
    }
}
