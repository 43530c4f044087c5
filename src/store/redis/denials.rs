//! Callers who are known to be rejected are not asked about again: a flood of them costs the store
//! nothing.
//!
//! What is remembered is what the store said a caller has used. As long as the limit, by the very
//! arithmetic that the store uses, has no room for the request, the store could not say anything
//! else: others can only have used more. Where something can be given back early (places in flight
//! or in a queue, costs that are settled, charges that a cluster takes back), nothing is remembered.

use super::wire::Before;
use crate::clock::Micros;
use crate::limit::{Seen, Verdict};
use crate::store::{Charge, Decision};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 64;

/// How many may be remembered in each.
const MOST: usize = 1024;

#[derive(Debug)]
struct Remembered {
    before: Before,
    /// From this process's clock to the store's.
    skew: i64,
    /// When it is of no use any more, by this process's clock.
    until: Micros,
}

#[derive(Debug)]
pub(super) struct Denials {
    shards: Box<[Mutex<HashMap<u64, Remembered>>]>,
    /// So that the usual case takes no lock.
    len: AtomicUsize,
    /// How often something was given back to a counter of which something may be remembered.
    returns: AtomicUsize,
}

impl Denials {
    pub(super) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, len: AtomicUsize::new(0), returns: AtomicUsize::new(0) }
    }

    fn shard(&self, key: u64) -> &Mutex<HashMap<u64, Remembered>> {
        &self.shards[key as usize % SHARDS]
    }

    /// The decision, if it is known that the store would reject. Layers of which nothing is known
    /// keep silent.
    pub(super) fn recall(
        &self,
        charges: &mut [Charge<'_>],
        keys: &[u64],
        now: Micros,
    ) -> Option<Decision> {
        if self.len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut rejected_by = None;
        for (index, (charge, key)) in charges.iter_mut().zip(keys).enumerate() {
            let shard = self.shard(*key).lock();
            charge.verdict = match shard.get(key) {
                Some(known) => {
                    let at = now.saturating_add_signed(known.skew);
                    let said = charge.quota.check(&known.before, at, charge.cost);
                    charge.quota.untaken_if_allowed(said, &known.before).by_store()
                }
                None => Verdict::SILENT,
            };
            if !charge.verdict.allowed && !charge.shadow && rejected_by.is_none() {
                rejected_by = Some(index);
            }
        }
        rejected_by.map(|index| Decision { rejected_by: Some(index), holds: Vec::new() })
    }

    /// How often something was given back, before the store is asked.
    pub(super) fn returns(&self) -> usize {
        self.returns.load(Ordering::SeqCst)
    }

    /// Something was given back to a counter: what is remembered of it is of no use any more, and neither
    /// is what the store said before and has not been remembered yet.
    pub(super) fn returned(&self, key: u64) {
        self.returns.fetch_add(1, Ordering::SeqCst);
        self.forget(key);
    }

    /// Remembers what the store said when it rejected a request: until when, it says itself. `returns`: how
    /// often something had been given back before it was asked.
    pub(super) fn remember(
        &self,
        charges: &[Charge<'_>],
        keys: &[u64],
        before: Vec<Before>,
        (now, skew): (Micros, i64),
        returns: usize,
    ) {
        let stays = |charge: &Charge<'_>| {
            !charge.settles && !charge.quota.comes_back_early() && !charge.leased
        };
        let lasts = |charge: &Charge<'_>| {
            if stays(charge) && !charge.shadow { charge.verdict.retry_after() } else { 0 }
        };
        let until = now + charges.iter().map(lasts).max().unwrap_or(0);
        if until == now {
            return;
        }
        for ((charge, key), before) in charges.iter().zip(keys).zip(before) {
            // Others of the same request are remembered for what they say beside it; those that
            // reject but may change their mind are not.
            if stays(charge) && (charge.verdict.allowed || lasts(charge) > 0) {
                self.put(*key, Remembered { before, skew, until }, now);
            }
        }
        // It may be older than what was given back meanwhile.
        if self.returns() != returns {
            for key in keys {
                self.forget(*key);
            }
        }
    }

    fn put(&self, key: u64, remembered: Remembered, now: Micros) {
        let mut shard = self.shard(key).lock();
        if shard.len() >= MOST && !shard.contains_key(&key) {
            self.sweep_shard(&mut shard, now);
            if shard.len() >= MOST {
                return; // the store is asked again
            }
        }
        if shard.insert(key, remembered).is_none() {
            self.len.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sweep_shard(&self, shard: &mut HashMap<u64, Remembered>, now: Micros) {
        let before = shard.len();
        shard.retain(|_, remembered| remembered.until > now);
        self.len.fetch_sub(before - shard.len(), Ordering::Relaxed);
    }

    /// How many are remembered.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Lets go of what is of no use any more.
    pub(super) fn sweep(&self, now: Micros) {
        if self.len.load(Ordering::Relaxed) > 0 {
            for shard in &self.shards {
                self.sweep_shard(&mut shard.lock(), now);
            }
        }
    }

    fn forget(&self, key: u64) {
        if self.len.load(Ordering::Relaxed) > 0 && self.shard(key).lock().remove(&key).is_some() {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets everybody.
    pub(super) fn clear(&self) {
        self.sweep(Micros::MAX);
    }
}

/// The moment by the store's clock, seen from this process's.
pub(super) fn skew(store: Micros, here: Micros) -> i64 {
    i64::try_from(i128::from(store) - i128::from(here)).unwrap_or_default()
}

impl Before {
    pub(super) fn seen(&self) -> Seen<'_> {
        self.into()
    }
}
