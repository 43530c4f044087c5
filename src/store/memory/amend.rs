//! What happens to an admission's counter afterwards: places are given back, costs are settled.

use super::{Memory, shard_of};
use crate::clock::Micros;
use crate::limit::{Held, Kind, Quota, Seen, State, Verdict};
use crate::store::{Charge, Hold, NoMore};
use crate::sync::Ordering;
use std::cell::Cell;

impl Memory {
    /// Takes back what a request held. A queue that drains at another rate by now, because of a
    /// reload, moves up by itself.
    pub(crate) fn release(&self, hold: &Hold, now: Micros) {
        if hold.quota.is_concurrency() || self.is_in_force(hold, now) {
            self.amend(hold, now, |state| hold.quota.give_back(state?, &hold.admitted, now));
        }
    }

    /// Counts a request by what it came to, rather than by what was reserved for it. Says what the
    /// limit holds then, unless that makes no difference any more.
    pub(crate) fn settle(&self, hold: &Hold, actual: u32, now: Micros) -> Option<Verdict> {
        let Hold { quota, admitted, .. } = hold;
        let in_force = self.is_in_force(hold, now);
        let state = self.amend(hold, now, |state| match (in_force, state) {
            (true, state) => quota.settle(state, admitted, now, actual),
            (false, state) => Quota::settle_elsewhere(state?, admitted.cost, actual),
        })?;
        in_force.then(|| quota.peek(Seen::State(state), now, admitted.cost))
    }

    /// Charges more, if there is so much. A limit that has other numbers by now, because of a reload,
    /// is charged without being asked.
    pub(crate) fn extend(&self, hold: &mut Hold, more: u32, now: Micros) -> Result<(), NoMore> {
        if !self.is_in_force(hold, now) {
            self.amend(hold, now, |state| Quota::settle_elsewhere(state?, 0, more));
            hold.admitted = hold.admitted.unasked(more);
            return Ok(());
        }
        let said = Cell::new(Verdict::NONE);
        self.amend(hold, now, |state| {
            let state = state.unwrap_or_default();
            said.set(hold.quota.check(Seen::State(state), now, more));
            said.get().state().filter(|_| said.get().allowed)
        });
        let said = said.get();
        if !said.allowed {
            return Err(NoMore::Over(said));
        }
        hold.admitted = said;
        Ok(())
    }

    /// Gives back what a charge has taken. Says what the limit holds then, unless that makes no
    /// difference any more.
    pub(crate) fn refund(&self, charge: &Charge<'_>, now: Micros) -> Option<Verdict> {
        let key = self.seed.key(charge.limit.0, &charge.subject);
        if charge.quota.kind() == Kind::Log {
            let mut shard = self.shards[shard_of(key)].lock();
            shard.strike(key, charge.verdict.at, charge.verdict.cost);
            let slot = shard.find(key)?;
            return Some(charge.quota.peek(shard.see(slot, key), now, charge.verdict.cost));
        }
        let overflow = !charge.verdict.shared && self.is_in_overflow(charge, key);
        let hold = super::held(0, charge, key, overflow);
        if hold.is_queue() {
            self.release(&hold, now);
            return None;
        }
        self.settle(&hold, 0, now)
    }

    /// Whether a caller without a counter of its own was counted in the overflow.
    fn is_in_overflow(&self, charge: &Charge<'_>, key: u64) -> bool {
        let overflows = self.overflowing.load(Ordering::Acquire) > 0;
        overflows
            && self.shards[shard_of(key)].lock().find(key).is_none()
            && self.overflow.lock().contains_key(&charge.limit)
    }

    /// Whether the limit still has the numbers by which the request was admitted.
    fn is_in_force(&self, hold: &Hold, now: Micros) -> bool {
        let limits = self.limits.load();
        hold.is_granted(now)
            || limits.get(hold.limit.0 as usize).is_some_and(|quotas| quotas.contains(&hold.quota))
    }

    /// Makes a change to what a request was counted in. Whoever is no longer remembered was whole,
    /// and may be in debt now.
    fn amend(
        &self,
        hold: &Hold,
        now: Micros,
        change: impl Fn(Option<State>) -> Option<State>,
    ) -> Option<State> {
        if !hold.overflow {
            let mut shard = self.shards[shard_of(hold.key)].lock();
            if let Some(slot) = shard.find(hold.key) {
                let next = change(Some(shard.state(slot)))?;
                shard.set(slot, next);
                return Some(next);
            }
            let next = change(None)?;
            if hold.quota.is_whole(Seen::State(next), now) {
                return Some(next);
            }
            if self.has_room(&mut shard, now) {
                shard.put(None, hold.key, hold.limit, Held::State(next));
                self.keys.fetch_add(1, Ordering::Relaxed);
                return Some(next);
            }
        }
        let mut overflow = self.overflow.lock();
        let next = match overflow.get(&hold.limit) {
            None => change(None)?,
            Some(Held::State(state)) => change(Some(*state))?,
            Some(Held::Log(_)) => return None,
        };
        overflow.insert(hold.limit, Held::State(next));
        self.overflowing.store(overflow.len(), Ordering::Release);
        Some(next)
    }
}
