//! Counters in this process: exact, bounded, and without a wait.
//!
//! ```text
//! (limit, subject) ── keyed hash ──► key ── low bits ──► shard: Mutex<table of (key, limit, state)>
//! ```
//!
//! A decision hashes all its charges first; locks their shards in ascending order, so that two
//! decisions never wait for each other in a circle; looks all of them up, so that the memory's
//! latency is paid once rather than for each; computes every verdict; and writes only if all
//! enforcing limits allow.
//!
//! Making room forgives nobody: an entry leaves only when it is whole again. When the store is full
//! of callers who are not whole, further newcomers count as one caller, in their limit's overflow
//! counter. Its lock is taken last, after every shard's.

mod saved;
mod shard;
mod table;

use super::key::Seed;
use super::{Charge, Decision, Hold, LimitId, Subject};
use crate::clock::Micros;
use crate::limit::{Held, Quota, Seen, State, Verdict};
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use arc_swap::ArcSwap;
use shard::{Limits, Shard, whole};
use smallvec::SmallVec;
use std::array;
use std::collections::HashMap;

/// What the store must know of the limits to tell when an entry is whole: for each, the quotas
/// that its entries may be counted by (several where plans decide). A limit that is no longer
/// there has no entry, and its counters may go.
pub type Registry = HashMap<LimitId, Box<[Quota]>>;

const SHARDS: usize = 256;

/// How many slots of its shard one insertion into a full store looks at to find room, and in how
/// many other shards.
const SWEEP_STEP: usize = 32;
const SWEEP_OTHERS: usize = 6;

/// How many slots the background sweep looks at before it lets others have the lock.
const SWEEP_HOLD: usize = 512;

/// The memory store.
#[derive(Debug)]
pub struct Memory {
    seed: Seed,
    shards: Box<[Mutex<Shard>]>,
    /// How many callers are remembered, and how many may be.
    keys: AtomicUsize,
    max_keys: AtomicUsize,
    names: Mutex<HashMap<String, LimitId>>,
    limits: ArcSwap<Vec<Box<[Quota]>>>,
    /// Newcomers beyond the cap, one counter a limit.
    overflow: Mutex<HashMap<LimitId, Held>>,
    /// How many there are, so that the usual case takes no lock.
    overflowing: AtomicUsize,
    /// Where the background sweep goes on.
    swept: AtomicUsize,
}

/// The overflow counters, locked.
type Overflow<'a> = MutexGuard<'a, HashMap<LimitId, Held>>;

/// The shards of one decision, locked.
type Guards<'a> = SmallVec<[MutexGuard<'a, Shard>; 4]>;

/// Where a charge's counter is, while it is decided.
struct Place {
    key: u64,
    /// Index into the guards.
    guard: usize,
    /// Where the caller was found.
    slot: Option<usize>,
    /// Whoever was not found is ...
    stranger: Stranger,
}

/// A caller without an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stranger {
    /// Begins whole.
    Whole,
    /// Begins where the overflow stands, and has an entry from now on.
    Heir,
    /// Is counted in the overflow.
    Overflows,
}

impl Memory {
    /// A store of at most about `max_keys` callers.
    pub fn new(max_keys: usize) -> Self {
        Self {
            seed: Seed::random(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            keys: AtomicUsize::new(0),
            max_keys: AtomicUsize::new(max_keys),
            names: Mutex::default(),
            limits: ArcSwap::default(),
            overflow: Mutex::default(),
            overflowing: AtomicUsize::new(0),
            swept: AtomicUsize::new(0),
        }
    }

    /// Changes the cap; a lower one forgets nobody, it only admits no further callers.
    pub fn set_max_keys(&self, max_keys: usize) {
        self.max_keys.store(max_keys, Ordering::Relaxed);
    }

    /// How many callers are remembered.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    pub(crate) fn limit_id(&self, name: &str) -> LimitId {
        let mut names = self.names.lock();
        let next = LimitId(names.len() as u32);
        *names.entry(name.to_owned()).or_insert(next)
    }

    pub(super) fn adopt(&self, registry: Registry) {
        let most = registry.keys().map(|id| id.0 as usize + 1).max().unwrap_or(0);
        let mut limits = vec![Box::default(); most];
        for (id, quotas) in registry {
            limits[id.0 as usize] = quotas;
        }
        self.limits.store(limits.into());
    }

    /// Decides one request's charges: all are charged, or none is.
    pub fn charge_all(&self, charges: &mut [Charge<'_>], now: Micros) -> Decision {
        let mut decision = Decision::default();
        let decided = match charges.len() {
            1 => self.charge_known::<1>(charges, now, &mut decision),
            2 => self.charge_known::<2>(charges, now, &mut decision),
            3 => self.charge_known::<3>(charges, now, &mut decision),
            4 => self.charge_known::<4>(charges, now, &mut decision),
            _ => None,
        };
        if decided.is_none() {
            self.charge_any(charges, now, &mut decision);
        }
        decision
    }

    /// The usual decision: a few limits, which all know the caller and count in numbers. Nothing
    /// is done if it is another: `None`.
    #[inline]
    fn charge_known<const N: usize>(
        &self,
        charges: &mut [Charge<'_>],
        now: Micros,
        decision: &mut Decision,
    ) -> Option<()> {
        let charges: &mut [Charge<'_>; N] = charges.try_into().ok()?;
        let keys: [u64; N] =
            array::from_fn(|n| self.seed.key(charges[n].limit.0, &charges[n].subject));
        let (mut guards, mut at) = ([const { None }; N], [0; N]);
        self.lock_few(&keys, &mut guards, &mut at);
        let mut slots = [0; N];
        for n in 0..N {
            slots[n] = guards[at[n]].as_ref()?.known(keys[n], charges[n].quota)?;
        }
        for n in 0..N {
            let Charge { quota, cost, shadow, verdict, .. } = &mut charges[n];
            let state = guards[at[n]].as_ref()?.state(slots[n]);
            quota.check_into(Seen::State(state), now, *cost, verdict);
            if !verdict.allowed && !*shadow && decision.rejected_by.is_none() {
                decision.rejected_by = Some(n);
            }
        }
        for n in 0..N {
            let charge = &mut charges[n];
            if !charge.verdict.allowed {
                continue;
            }
            if decision.rejected_by.is_some() {
                charge.verdict = charge.verdict.untaken()?;
                continue;
            }
            guards[at[n]].as_mut()?.set(slots[n], charge.verdict.state()?);
            if charge.settles || charge.quota.holds() {
                decision.holds.extend(hold(n, charge, keys[n], false));
            }
        }
        Some(())
    }

    /// Locks every shard that the keys are in, each once, in ascending order. Tells which lock is
    /// which key's.
    #[inline(always)]
    fn lock_few<'a, const N: usize>(
        &'a self,
        keys: &[u64; N],
        guards: &mut [Option<MutexGuard<'a, Shard>>; N],
        at: &mut [usize; N],
    ) {
        // Shard and place in one number.
        let mut order: [usize; N] = array::from_fn(|n| shard_of(keys[n]) << 8 | n);
        for last in 1..N {
            for n in (0..last).rev() {
                let (low, high) = (order[n].min(order[n + 1]), order[n].max(order[n + 1]));
                (order[n], order[n + 1]) = (low, high);
            }
        }
        let mut locked = 0;
        for n in 0..N {
            let shard = order[n] >> 8;
            if n == 0 || shard != order[n - 1] >> 8 {
                guards[locked] = Some(self.shards[shard].lock());
                locked += 1;
            }
            at[order[n] & 0xff] = locked - 1;
        }
    }

    /// Every decision: limits that see the caller for the first time, logs, a full store.
    #[cold]
    fn charge_any(&self, charges: &mut [Charge<'_>], now: Micros, decision: &mut Decision) {
        let (mut guards, mut places) = self.find(charges);
        let mut overflow = None;
        for (index, (charge, place)) in charges.iter_mut().zip(&mut places).enumerate() {
            let shard = &mut guards[place.guard];
            // Making room for another charge moves slots, and lets go of whoever is whole.
            place.slot = shard.still(place.slot, place.key);
            charge.verdict = match place.slot {
                Some(slot) => charge.quota.check(shard.see(slot, place.key), now, charge.cost),
                None => self.check_stranger(shard, charge, place, &mut overflow, now),
            };
            if !charge.verdict.allowed && !charge.shadow && decision.rejected_by.is_none() {
                decision.rejected_by = Some(index);
            }
        }
        if decision.rejected_by.is_some() {
            take_nothing(charges, &places, &guards, overflow.as_deref());
            return;
        }
        for (index, (charge, place)) in charges.iter().zip(&places).enumerate() {
            if charge.verdict.allowed {
                let overflows = place.stranger == Stranger::Overflows;
                if charge.settles || charge.quota.holds() {
                    decision.holds.extend(hold(index, charge, place.key, overflows));
                }
                self.take(charge, place, &mut guards, &mut overflow);
            }
        }
    }

    /// Locks every shard that the charges are in, each once, in ascending order, and looks them
    /// up.
    fn find(&self, charges: &[Charge<'_>]) -> (Guards<'_>, SmallVec<[Place; 4]>) {
        let keys: SmallVec<[u64; 8]> =
            charges.iter().map(|c| self.seed.key(c.limit.0, &c.subject)).collect();
        let mut order: SmallVec<[usize; 8]> = keys.iter().map(|key| shard_of(*key)).collect();
        order.sort_unstable();
        order.dedup();
        let guards: Guards<'_> = order.iter().map(|&shard| self.shards[shard].lock()).collect();
        let place = |key: u64| {
            let guard = order.binary_search(&shard_of(key)).unwrap_or_default();
            let slot = guards[guard].find(key);
            Place { key, guard, slot, stranger: Stranger::Whole }
        };
        let places = keys.into_iter().map(place).collect();
        (guards, places)
    }

    /// Takes back what a request held.
    pub(super) fn release(&self, hold: &Hold, now: Micros) {
        self.amend(hold, now, |quota, state| quota.give_back(state?, hold.after, now, hold.cost));
    }

    /// Counts a request by what it came to, rather than by what was reserved for it.
    pub(super) fn settle(&self, hold: &Hold, actual: u32, now: Micros) -> Option<Verdict> {
        let state = self.amend(hold, now, |quota, state| {
            quota.settle(state, hold.after, now, hold.cost, actual)
        })?;
        Some(hold.quota.peek(Seen::State(state), now, hold.cost))
    }

    /// Makes a change to what a request was counted in. Whoever is no longer remembered was whole,
    /// and may be in debt now.
    fn amend(
        &self,
        hold: &Hold,
        now: Micros,
        change: impl Fn(&Quota, Option<State>) -> Option<State>,
    ) -> Option<State> {
        if !hold.overflow {
            let mut shard = self.shards[shard_of(hold.key)].lock();
            if let Some(slot) = shard.find(hold.key) {
                let next = change(&hold.quota, Some(shard.state(slot)))?;
                shard.set(slot, next);
                return Some(next);
            }
            let next = change(&hold.quota, None)?;
            if next.used == 0 {
                return Some(next);
            }
            if self.has_room(&mut shard, now) {
                shard.put(None, hold.key, hold.limit, Held::State(next));
                self.keys.fetch_add(1, Ordering::Relaxed);
                return Some(next);
            }
        }
        let mut overflow = self.overflow.lock();
        let Held::State(state) = overflow.entry(hold.limit).or_default() else { return None };
        let next = change(&hold.quota, Some(state.read_as(hold.quota.kind())))?;
        *state = next;
        self.overflowing.store(overflow.len(), Ordering::Release);
        Some(next)
    }

    /// A caller who has no entry: with what they begin, or that they are counted with others.
    fn check_stranger<'a>(
        &'a self,
        shard: &mut Shard,
        charge: &Charge<'_>,
        place: &mut Place,
        overflow: &mut Option<Overflow<'a>>,
        now: Micros,
    ) -> Verdict {
        let Charge { quota, cost, .. } = *charge;
        if charge.subject == Subject::EVERYONE || self.has_room(shard, now) {
            let Some(held) = self.inheritance(charge, overflow) else {
                return quota.check(Seen::State(State::default()), now, cost);
            };
            place.stranger = Stranger::Heir;
            return quota.check(held, now, cost);
        }
        place.stranger = Stranger::Overflows;
        let shared = overflow.get_or_insert_with(|| self.overflow.lock());
        quota.check(&*shared.entry(charge.limit).or_default(), now, cost)
    }

    /// What a caller begins with who has no entry yet, unless they begin whole. Whoever was
    /// counted in the overflow until now could be anybody, so a newcomer begins where the overflow
    /// stands. What others have in flight is given back there, and would never be here.
    fn inheritance<'a, 'o>(
        &'a self,
        charge: &Charge<'_>,
        overflow: &'o mut Option<Overflow<'a>>,
    ) -> Option<&'o Held> {
        if self.overflowing.load(Ordering::Acquire) == 0 || charge.quota.is_concurrency() {
            return None;
        }
        overflow.get_or_insert_with(|| self.overflow.lock()).get(&charge.limit)
    }

    /// Whether a caller never seen may have an entry of their own.
    fn has_room(&self, shard: &mut Shard, now: Micros) -> bool {
        if self.keys.load(Ordering::Relaxed) < self.max_keys.load(Ordering::Relaxed) {
            return true;
        }
        let limits = self.limits.load();
        let mut gone = shard.sweep(SWEEP_STEP, &limits, now);
        // Others' locks are only tried: this decision holds some already.
        for _ in 0..SWEEP_OTHERS {
            if gone == 0
                && let Some(mut other) = self.shards[self.next_to_sweep()].try_lock()
            {
                gone = other.sweep(SWEEP_STEP, &limits, now);
            }
        }
        self.keys.fetch_sub(gone, Ordering::Relaxed);
        gone > 0
    }

    fn next_to_sweep(&self) -> usize {
        self.swept.fetch_add(1, Ordering::Relaxed) % SHARDS
    }

    fn take(
        &self,
        charge: &Charge<'_>,
        place: &Place,
        guards: &mut Guards<'_>,
        overflow: &mut Option<Overflow<'_>>,
    ) {
        let Charge { limit, quota, verdict, .. } = charge;
        let shared = || overflow.as_ref()?.get(limit).cloned();
        let begin = || match place.stranger {
            Stranger::Heir => shared().unwrap_or_default(),
            Stranger::Whole | Stranger::Overflows => Held::default(),
        };
        if place.stranger != Stranger::Overflows {
            if guards[place.guard].take(place.slot, place.key, charge, begin) {
                self.keys.fetch_add(1, Ordering::Relaxed);
            }
        } else if let Some(shared) = overflow {
            quota.take(shared.entry(*limit).or_default(), verdict);
            self.overflowing.store(shared.len(), Ordering::Release);
        }
    }

    /// Lets go of callers who are whole again, in a few of the shards: called every so often, so
    /// that idle callers do not stay for ever and no single call takes long.
    pub fn sweep(&self, shards: usize, now: Micros) {
        let limits = self.limits.load();
        for _ in 0..shards.min(SHARDS) {
            self.sweep_shard(&self.shards[self.next_to_sweep()], &limits, now);
        }
        let mut overflow = self.overflow.lock();
        overflow.retain(|limit, held| !whole(&limits, *limit, Seen::from(&*held), now));
        self.overflowing.store(overflow.len(), Ordering::Release);
    }

    fn sweep_shard(&self, shard: &Mutex<Shard>, limits: &Limits, now: Micros) {
        let mut slots = shard.lock().slots();
        while slots > 0 {
            let step = slots.min(SWEEP_HOLD);
            let gone = shard.lock().sweep(step, limits, now);
            self.keys.fetch_sub(gone, Ordering::Relaxed);
            slots -= step;
        }
        shard.lock().shrink();
    }
}

/// A rejected request charges no layer: those that would have allowed it say what they hold
/// without.
#[cold]
fn take_nothing(
    charges: &mut [Charge<'_>],
    places: &[Place],
    guards: &Guards<'_>,
    overflow: Option<&HashMap<LimitId, Held>>,
) {
    for (Charge { limit, quota, verdict, .. }, place) in charges.iter_mut().zip(places) {
        if !verdict.allowed {
            continue;
        }
        let (shard, whole) = (&guards[place.guard], Seen::State(State::default()));
        let seen = match place.stranger {
            Stranger::Heir | Stranger::Overflows => {
                overflow.and_then(|overflow| overflow.get(limit)).map_or(whole, Seen::from)
            }
            Stranger::Whole => {
                let slot = shard.still(place.slot, place.key);
                slot.map_or(whole, |slot| shard.see(slot, place.key))
            }
        };
        *verdict = quota.untaken(verdict, seen);
    }
}

/// What this charge takes that must be given back, or settled.
fn hold(index: usize, charge: &Charge<'_>, key: u64, overflow: bool) -> Option<Hold> {
    let after = charge.verdict.state()?;
    // Whose turn it is at once has no place in the queue.
    let at_once = charge.quota.is_queue() && charge.verdict.delay() == 0;
    let (limit, quota, cost) = (charge.limit, charge.quota.clone(), charge.cost);
    (!at_once).then_some(Hold { charge: index, limit, key, quota, cost, after, overflow })
}

fn shard_of(key: u64) -> usize {
    key as usize % SHARDS
}

#[cfg(test)]
mod tests {
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
                        let decision = store.decide(&layers, NOW);
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
}
