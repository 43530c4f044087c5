//! The leaky bucket: a queue that drains at N/W. A request's place must be within `queue` and its
//! wait within `max_wait`; it then waits for its turn. The first of an idle bucket goes at once.
//!
//! The arithmetic is the token bucket's: places in use are tokens used, and they come back one
//! every W/N. A request of cost c takes c places, and goes when the first of them comes up.

use super::algorithm::Algorithm;
use super::bucket::Bucket;
use super::{Kind, MAX_BURST, QuotaError, Rate, State};
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

    /// The bucket, and the longest wait.
    pub(super) fn numbers(&self) -> ([u64; 3], Micros) {
        (self.bucket.numbers(), self.max_wait)
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
        let current = self.bucket.advance(state, now);
        let alone = self.bucket.advance(after, now) == current;
        alone.then(|| State { used: current.used.saturating_sub(cost), ..current })
    }
}

impl Algorithm for Leaky {
    const KIND: Kind = Kind::Bucket;

    /// The most places one request can take, when nobody is in front of it.
    fn capacity(&self) -> u32 {
        self.bucket.capacity().min(self.bucket.back_within(0, self.max_wait).saturating_add(1))
    }

    fn advance(&self, state: State, now: Micros) -> State {
        self.bucket.advance(state, now)
    }

    /// Places from which a request would still wait no longer than `max_wait`.
    fn room(&self, current: State, now: Micros) -> u32 {
        let progress = now.saturating_sub(current.stamp);
        let in_time =
            self.bucket.back_within(current.carry, progress.saturating_add(self.max_wait));
        self.bucket.capacity().min(in_time.saturating_add(1)).saturating_sub(current.used)
    }

    /// Those in front have to move up, far enough for the queue and far enough for the wait.
    fn wait(&self, current: State, now: Micros, places: u32) -> Micros {
        let last = (u64::from(current.used) + u64::from(places)).saturating_sub(1);
        let to_size = (last + 1).saturating_sub(self.bucket.capacity().into());
        let queue = self.bucket.until(current, now, to_size);
        let patience = self.bucket.until(current, now, last).saturating_sub(self.max_wait);
        queue.max(patience)
    }

    fn reset(&self, current: State, now: Micros) -> Micros {
        self.bucket.reset(current, now)
    }

    fn delay(&self, current: State, now: Micros) -> Micros {
        self.bucket.until(current, now, current.used.into())
    }
}
