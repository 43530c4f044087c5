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

mod amend;
mod known;
mod saved;
mod shard;
mod table;

use super::key::Seed;
use super::{Charge, Decision, Hold, LimitId, Subject};
use crate::clock::Micros;
use crate::limit::{Held, Quota, Seen, State, Verdict};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};
use arc_swap::ArcSwap;
use shard::{Limits, Shard, whole};
use smallvec::SmallVec;
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

/// How long after a search that found no room the next one begins, in microseconds.
const SEARCH_PAUSE: Micros = 1000;

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
    /// A search for room that found none is not repeated before this moment: a flood of strangers
    /// must not be dearer than others.
    search_after: AtomicU64,
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
            search_after: AtomicU64::new(0),
        }
    }

    /// Changes the cap; a lower one forgets nobody, it only admits no further callers.
    pub fn set_max_keys(&self, max_keys: usize) {
        self.max_keys.store(max_keys, Ordering::Relaxed);
    }

    /// How many callers may be remembered.
    pub fn max_keys(&self) -> usize {
        self.max_keys.load(Ordering::Relaxed)
    }

    /// How many callers are remembered.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// The limit's number; the same for the same name.
    pub fn limit_id(&self, name: &str) -> LimitId {
        let mut names = self.names.lock();
        let next = LimitId(names.len() as u32);
        *names.entry(name.to_owned()).or_insert(next)
    }

    /// Learns which limits there are from now on.
    pub fn adopt(&self, registry: Registry) {
        let most = registry.keys().map(|id| id.0 as usize + 1).max().unwrap_or(0);
        let mut limits = vec![Box::default(); most];
        for (id, quotas) in registry {
            limits[id.0 as usize] = quotas;
        }
        self.limits.store(limits.into());
    }

    /// Decides one request's charges: all are charged, or none is.
    pub fn charge_all(&self, charges: &mut [Charge<'_>], now: Micros) -> Decision {
        let decided = match charges.len() {
            1 => self.charge_known::<1>(charges, now),
            2 => self.charge_known::<2>(charges, now),
            3 => self.charge_known::<3>(charges, now),
            4 => self.charge_known::<4>(charges, now),
            _ => None,
        };
        match decided {
            Some(rejected_by) => Decision { rejected_by, holds: Vec::new() },
            None => self.charge_any(charges, now, true),
        }
    }

    /// What would be decided. Nothing is charged.
    pub fn foresee(&self, charges: &mut [Charge<'_>], now: Micros) -> Decision {
        self.charge_any(charges, now, false)
    }

    /// Forgets what a caller has used of a limit: they are whole.
    pub(super) fn reset(&self, charge: &Charge<'_>) {
        self.forget(charge.limit, &charge.subject);
    }

    fn forget(&self, limit: LimitId, subject: &Subject<'_>) {
        let key = self.seed.key(limit.0, subject);
        if self.shards[shard_of(key)].lock().forget(key) {
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets what a caller has used of every limit.
    pub(crate) fn forget_everywhere(&self, subject: &Subject<'_>) {
        let limits = self.names.lock().len() as u32;
        (0..limits).for_each(|limit| self.forget(LimitId(limit), subject));
    }

    /// Whether what was said to a caller goes by a counter that others use as well: the overflow counter
    /// of a full store, or one of the caller's own that began where the overflow stood.
    pub(crate) fn is_pooled(&self, charge: &Charge<'_>) -> bool {
        let alone = charge.verdict.shared || charge.subject == Subject::EVERYONE;
        if alone || self.overflowing.load(Ordering::Acquire) == 0 {
            return false;
        }
        if !self.overflow.lock().contains_key(&charge.limit) {
            return false;
        }
        let key = self.seed.key(charge.limit.0, &charge.subject);
        let shard = self.shards[shard_of(key)].lock();
        shard.find(key).is_none_or(|slot| shard.is_inherited(slot))
    }

    /// Every decision: limits that see the caller for the first time, logs, a full store.
    #[cold]
    fn charge_any(&self, charges: &mut [Charge<'_>], now: Micros, takes: bool) -> Decision {
        let mut decision = Decision::default();
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
        if decision.rejected_by.is_some() || !takes {
            take_nothing(charges, &places, &guards, overflow.as_deref());
            return decision;
        }
        for (index, (charge, place)) in charges.iter_mut().zip(&places).enumerate() {
            if charge.verdict.allowed {
                charge.verdict = charge.verdict.taking(charge.taken());
                let overflows = place.stranger == Stranger::Overflows;
                if charge.settles || charge.quota.holds() {
                    decision.holds.extend(hold(index, charge, place.key, overflows));
                }
                self.take(charge, place, &mut guards, &mut overflow);
            }
        }
        decision
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
        if now < self.search_after.load(Ordering::Relaxed) {
            return false;
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
        if gone == 0 {
            self.search_after.store(now + SEARCH_PAUSE, Ordering::Relaxed);
        }
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
            let shard = &mut guards[place.guard];
            if shard.take(place.slot, place.key, charge, begin) {
                self.keys.fetch_add(1, Ordering::Relaxed);
                if place.stranger == Stranger::Heir {
                    shard.inherit(place.key);
                }
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
        let shard = &mut *shard.lock();
        if self.overflowing.load(Ordering::Acquire) == 0 {
            shard.disinherit();
        }
        shard.shrink();
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
    // Whose turn it is at once has no place in the queue.
    let at_once = charge.quota.is_queue() && charge.verdict.delay() == 0;
    (!at_once).then(|| held(index, charge, key, overflow))
}

/// What a charge has taken.
fn held(index: usize, charge: &Charge<'_>, key: u64, overflow: bool) -> Hold {
    Hold {
        charge: index,
        limit: charge.limit,
        key,
        quota: charge.quota.clone(),
        admitted: charge.verdict,
        overflow,
        granted: charge.granted,
        on_failure: charge.on_failure,
        shared: None,
    }
}

fn shard_of(key: u64) -> usize {
    key as usize % SHARDS
}

#[cfg(test)]
#[cfg(shuttle)]
mod shuttled;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
