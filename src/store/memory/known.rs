//! The usual decision, made quickly: a few limits, which all know the caller and count in numbers.
//! Nothing is copied that does not have to be; benches/limits.rs measures it.

use super::shard::Shard;
use super::{Memory, hold, shard_of};
use crate::clock::Micros;
use crate::limit::Seen;
use crate::store::{Charge, Decision};
use crate::sync::MutexGuard;
use std::array;

impl Memory {
    /// The usual decision: a few limits, which all know the caller and count in numbers. Nothing
    /// is done if it is another: `None`.
    #[inline]
    pub(super) fn charge_known<const N: usize>(
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
}
