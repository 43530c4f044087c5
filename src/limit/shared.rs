//! What a store that is shared has to know of a quota: its numbers, as a script reckons with them
//! (src/store/redis/core.lua), and quotas made of it: one gateway's share while the store is away,
//! one shard's part.

use super::algorithm::Algorithm;
use super::log::Log;
use super::windows::Windows;
use super::{Kind, Quota, QuotaError, Rate, Shape, State};
use crate::clock::Micros;
use std::sync::Arc;

/// A quota as scripts are told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Which algorithm.
    pub(crate) algorithm: u8,
    /// Its numbers, each exact as a double.
    pub(crate) numbers: [u64; 5],
}

/// Algorithms as scripts number them: those of [`Kind`], and two that differ.
const LEAKY: u8 = 5;
const CALENDAR: u8 = 6;

impl Quota {
    /// Its numbers. Calendars are not known to scripts: they are told the windows around `now`.
    pub(crate) fn told(&self, now: Micros, lease: Micros) -> Told {
        let count = u64::from(self.rate.count);
        let (algorithm, numbers) = match &self.shape {
            Shape::Bucket(bucket) => {
                let [size, count, window] = bucket.numbers();
                (Kind::Bucket as u8, [size, count, window, 0, 0])
            }
            Shape::Leaky(leaky) => {
                let ([size, count, window], max_wait) = leaky.numbers();
                (LEAKY, [size, count, window, max_wait, 0])
            }
            Shape::Fixed(fixed) => match fixed.windows() {
                Windows::Every(length) => (Kind::Fixed as u8, [count, *length, 0, 0, 0]),
                calendar @ Windows::Calendar(_) => {
                    let this = calendar.at(now);
                    let before = calendar.at(this.start.saturating_sub(1)).start;
                    let after = calendar.at(this.end).end;
                    (CALENDAR, [count, before, this.start, this.end, after])
                }
            },
            Shape::Sliding(_) => (Kind::Sliding as u8, [count, self.rate.window, 0, 0, 0]),
            Shape::Log(_) => (Kind::Log as u8, [count, self.rate.window, 0, 0, 0]),
            Shape::Concurrency(most) => {
                (Kind::Concurrency as u8, [most.capacity().into(), lease, 0, 0, 0])
            }
        };
        Told { algorithm, numbers }
    }

    /// The same with fewer tokens, but room for one request of this cost; and never quicker than
    /// it was.
    #[expect(clippy::cast_sign_loss, reason = "a share of a count is no less than nothing")]
    pub(crate) fn share(&self, share: f64, cost: u32) -> Self {
        let of = |count: u32, least: u32| {
            ((f64::from(count) * share) as u32).max(least).clamp(1, count.max(1))
        };
        self.with_counts(|pace| of(pace, 1), |tokens| of(tokens, cost))
    }

    /// So many times as much, but room for one request of this cost; `None` where that is beyond what
    /// can be counted.
    #[expect(clippy::cast_sign_loss, reason = "no factor is less than nothing")]
    pub(crate) fn times(&self, factor: f64, cost: u32) -> Option<Self> {
        // A queue for nobody stays one.
        let of = |count: u32, least: u32| match count {
            0 => 0,
            count => ((f64::from(count) * factor) as u32).max(least),
        };
        self.counting(|pace| of(pace, 1), |tokens| of(tokens, cost)).ok()
    }

    /// One of `of` parts, which together are the whole.
    pub(crate) fn part(&self, index: u32, of: u32) -> Self {
        let part = |count: u32| count / of + u32::from(index < count % of);
        self.with_counts(part, part)
    }

    /// The smallest of its counts: so many parts can be made of it.
    pub(crate) fn parts_at_most(&self) -> u32 {
        match &self.shape {
            Shape::Bucket(bucket) => self.rate.count.min(bucket.capacity()),
            _ => self.rate.count,
        }
    }

    /// The same with other numbers: how quickly tokens come back, and how many there can be. For a
    /// window both are one number.
    fn with_counts(&self, pace: impl Fn(u32) -> u32, tokens: impl Fn(u32) -> u32) -> Self {
        // Fewer tokens of a valid quota are valid, but where a bucket would fill too slowly.
        self.counting(pace, tokens).unwrap_or_else(|_| self.clone())
    }

    fn counting(
        &self,
        pace: impl Fn(u32) -> u32,
        tokens: impl Fn(u32) -> u32,
    ) -> Result<Self, QuotaError> {
        let Rate { count, window } = self.rate;
        let steady = Rate { count: pace(count), window };
        let rate = Rate { count: tokens(count), window };
        match &self.shape {
            Shape::Bucket(bucket) => Self::token_bucket(steady, Some(tokens(bucket.capacity()))),
            Shape::Leaky(leaky) => {
                let ([size, ..], max_wait) = leaky.numbers();
                Self::leaky_bucket(steady, tokens(size as u32 - 1), max_wait)
            }
            Shape::Fixed(fixed) => match fixed.windows() {
                Windows::Every(_) => Self::fixed_window(rate),
                Windows::Calendar(calendar) => Self::calendar_window(rate, Arc::clone(calendar)),
            },
            Shape::Sliding(_) => Self::sliding_window(rate),
            Shape::Log(_) => Self::sliding_log(rate),
            Shape::Concurrency(most) => Self::concurrency(tokens(most.capacity())),
        }
    }

    /// Whether a block of its tokens can be taken in advance.
    pub(crate) fn can_be_leased(&self) -> bool {
        matches!(self.shape, Shape::Bucket(_) | Shape::Fixed(_) | Shape::Sliding(_))
    }

    /// Whether what is used up can come back before its time, because somebody gives it back.
    pub(crate) fn comes_back_early(&self) -> bool {
        self.holds
    }

    /// Counts what was admitted without asking, however much that is.
    pub(crate) fn owe(&self, owed: State, now: Micros, cost: u32) -> State {
        let owed = owed.read_as(self.kind);
        let current = match &self.shape {
            Shape::Log(_) | Shape::Concurrency(_) => State { stamp: now, ..owed },
            Shape::Bucket(bucket) => bucket.advance(owed, now),
            Shape::Leaky(leaky) => leaky.advance(owed, now),
            Shape::Fixed(fixed) => fixed.advance(owed, now),
            Shape::Sliding(sliding) => sliding.advance(owed, now),
        };
        State { used: current.used.saturating_add(cost), ..current }
    }

    /// When the window ends in which tokens are counted that are taken at `now`. A bucket has none.
    pub(crate) fn window_end(&self, now: Micros) -> Option<Micros> {
        match &self.shape {
            Shape::Fixed(fixed) => Some(fixed.windows().at(now).end),
            Shape::Sliding(_) => Some(Windows::Every(self.rate.window).at(now).end),
            _ => None,
        }
    }
}

impl Log {
    /// A log of which only the oldest entries are known, the newest moment and the sum: enough to
    /// tell when there is room.
    pub(crate) fn known(oldest: &[(Micros, u32)], newest: Micros, total: u32) -> Self {
        let known = oldest.iter().fold(0_u32, |sum, (_, cost)| sum.saturating_add(*cost));
        let rest = total.saturating_sub(known);
        let rest = (rest > 0).then_some((newest, rest));
        oldest.iter().copied().chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;

    #[test]
    fn a_share_has_room_for_a_request_and_is_never_quicker() {
        let rate = Rate { count: 10, window: 3600 * SECOND };
        let dear = Quota::token_bucket(rate, Some(100)).unwrap().share(0.2, 50);
        assert_eq!((dear.rate().count, dear.capacity()), (2, 50));
        let slow = Quota::token_bucket(Rate { count: 1, ..rate }, Some(3)).unwrap().share(0.2, 1);
        assert_eq!((slow.rate().count, slow.capacity()), (1, 1));
        let window = Quota::fixed_window(rate).unwrap().share(0.2, 5);
        assert_eq!(window.capacity(), 5);
        assert_eq!(Quota::concurrency(10).unwrap().share(0.2, 1).capacity(), 2);
    }

    #[test]
    fn parts_are_the_whole() {
        let quota = Quota::token_bucket(Rate { count: 10, window: SECOND }, Some(23)).unwrap();
        let parts: Vec<_> = (0..4).map(|index| quota.part(index, 4)).collect();
        assert_eq!(parts.iter().map(|part| part.rate().count).sum::<u32>(), 10);
        assert_eq!(parts.iter().map(Quota::capacity).sum::<u32>(), 23);
    }
}
