//! The leaky bucket: a queue that drains at N/W. A request's place must be within `queue` and its
//! wait within `max_wait`; it then waits for its turn. The first of an idle bucket goes at once.
//!
//! The arithmetic is the token bucket's: places in use are tokens used, and they come back one
//! every W/N. A request of cost c takes c places, and goes when the first of them comes up.

use super::bucket::Bucket;
use super::{MAX_BURST, QuotaError, Rate, State, Verdict};
use crate::clock::Micros;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaky {
    /// Of size queue + 1: the one that goes at once does not wait.
    bucket: Bucket,
    max_wait: Micros,
}

impl Leaky {
    pub(super) fn new(rate: Rate, queue: u32, max_wait: Micros) -> Result<Self, QuotaError> {
        let size = queue.checked_add(1).filter(|size| *size <= MAX_BURST);
        let bucket = Bucket::new(rate, size.ok_or(QuotaError::BurstTooLarge)?)?;
        Ok(Self { bucket, max_wait })
    }

    /// The most places one request can take, when nobody is in front of it.
    pub(super) fn capacity(&self) -> u32 {
        self.bucket.size().min(self.bucket.back_within(0, self.max_wait).saturating_add(1))
    }

    pub(super) fn check(&self, state: State, now: Micros, cost: u32) -> (Verdict, State) {
        let drained = self.bucket.drain(state, now);
        if cost > self.room(drained, now) {
            let retry_after = self.wait(drained, now, cost);
            return (self.verdict(drained, now, cost).rejected(retry_after), state);
        }
        let delay = self.bucket.until(drained, now, drained.used.into());
        let taken = State { used: drained.used + cost, ..drained };
        (Verdict { delay, ..self.verdict(taken, now, cost) }, taken)
    }

    pub(super) fn peek(&self, state: State, now: Micros, cost: u32) -> Verdict {
        self.verdict(self.bucket.drain(state, now), now, cost)
    }

    pub(super) fn is_whole(&self, state: State, now: Micros) -> bool {
        self.bucket.is_whole(state, now)
    }

    /// Takes back the last place: nobody came after whoever made the state `after` if draining it
    /// until now gives what there is now.
    pub(super) fn leave(
        &self,
        state: State,
        after: State,
        now: Micros,
        cost: u32,
    ) -> Option<State> {
        let drained = self.bucket.drain(state, now);
        let alone = self.bucket.drain(after, now) == drained;
        alone.then(|| State { used: drained.used.saturating_sub(cost), ..drained })
    }

    /// Places from which a request would still wait no longer than `max_wait`.
    fn room(&self, drained: State, now: Micros) -> u32 {
        let progress = now.saturating_sub(drained.stamp);
        let in_time =
            self.bucket.back_within(drained.carry, progress.saturating_add(self.max_wait));
        self.bucket.size().min(in_time.saturating_add(1)).saturating_sub(drained.used)
    }

    /// Until `cost` places are there: those in front have to move up, far enough for the queue and
    /// far enough for the wait.
    fn wait(&self, drained: State, now: Micros, cost: u32) -> Micros {
        let last = u64::from(drained.used) + u64::from(cost) - 1;
        let to_size = (last + 1).saturating_sub(self.bucket.size().into());
        let queue = self.bucket.until(drained, now, to_size);
        let patience = self.bucket.until(drained, now, last).saturating_sub(self.max_wait);
        queue.max(patience)
    }

    fn verdict(&self, state: State, now: Micros, cost: u32) -> Verdict {
        let reset = self.bucket.until(state, now, state.used.into());
        let wait = |tokens| self.wait(state, now, tokens);
        Verdict::new(self.room(state, now), self.capacity(), reset, cost, wait)
    }
}
