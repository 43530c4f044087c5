//! The usual decision, made quickly: a few limits, which count in numbers and have nothing to give
//! back, and either all know the caller or one of them rejects. Nothing is copied that does not
//! have to be; benches/limits.rs measures it.

use super::shard::Shard;
use super::{Memory, shard_of};
use crate::clock::Micros;
use crate::limit::{Kind, State};
use crate::store::Charge;
use crate::sync::{MutexGuard, Ordering};
use std::array;

impl Memory {
    /// Decides, and says who rejected. Nothing is done if the decision is another than the usual
    /// one: `None`.
    #[inline]
    #[expect(clippy::option_option, reason = "not decided here, or decided and by nobody rejected")]
    pub(super) fn charge_known<const N: usize>(
        &self,
        charges: &mut [Charge<'_>],
        now: Micros,
    ) -> Option<Option<usize>> {
        let charges: &mut [Charge<'_>; N] = charges.try_into().ok()?;
        let keys: [u64; N] =
            array::from_fn(|n| self.seed.key(charges[n].limit.0, &charges[n].subject));
        let (mut guards, mut at) = ([const { None }; N], [0; N]);
        self.lock_few(&keys, &mut guards, &mut at);
        let mut slots = [None; N];
        for n in 0..N {
            if charges[n].settles || !charges[n].quota.is_plain() {
                return None;
            }
            let shard = guards[at[n]].as_ref()?;
            slots[n] = shard.find(keys[n]);
            match slots[n] {
                Some(slot) if shard.state(slot).kind == Kind::Log => return None,
                None if !self.strangers_begin_whole() => return None,
                _ => {}
            }
        }
        let (mut taken, mut rejected_by) = ([State::default(); N], None);
        for n in 0..N {
            let Charge { quota, cost, shadow, verdict, .. } = &mut charges[n];
            let shard = guards[at[n]].as_ref()?;
            let state = slots[n].map_or(State::default(), |slot| shard.state(slot));
            taken[n] = quota.check_into(state, now, *cost, verdict);
            if !verdict.allowed && !*shadow && rejected_by.is_none() {
                rejected_by = Some(n);
            }
        }
        if rejected_by.is_none() && slots.contains(&None) {
            return None; // whoever is admitted for the first time needs an entry
        }
        for n in 0..N {
            let verdict = &mut charges[n].verdict;
            if verdict.allowed && rejected_by.is_some() {
                *verdict = verdict.untaken()?;
            } else if verdict.allowed {
                guards[at[n]].as_mut()?.set(slots[n]?, taken[n]);
            }
        }
        Some(rejected_by)
    }

    /// Whether a caller without an entry has used nothing, as far as anybody knows.
    fn strangers_begin_whole(&self) -> bool {
        self.overflowing.load(Ordering::Acquire) == 0
            && self.keys.load(Ordering::Relaxed) < self.max_keys.load(Ordering::Relaxed)
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
        if N == 1 {
            guards[0] = Some(self.shards[shard_of(keys[0])].lock());
            return;
        }
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
}
