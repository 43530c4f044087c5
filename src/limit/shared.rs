//! What a store that is shared has to know of a quota: its numbers, as a script reckons with them
//! (src/store/redis/core.lua), and quotas made of it: one gateway's share while the store is away,
//! one shard's part.

use super::algorithm::Algorithm;
use super::log::Log;
use super::windows::Windows;
use super::{Kind, Quota, Rate, Shape, State};
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

    /// The same with fewer tokens: every count, but none below one request of this cost.
    #[expect(clippy::cast_sign_loss, reason = "a share of a count is no less than nothing")]
    pub(crate) fn share(&self, share: f64, cost: u32) -> Self {
        let least = cost.max(1);
        self.with_counts(|count| ((f64::from(count) * share) as u32).max(least))
    }

    /// One of `of` parts, which together are the whole.
    pub(crate) fn part(&self, index: u32, of: u32) -> Self {
        self.with_counts(|count| count / of + u32::from(index < count % of))
    }

    /// The smallest of its counts: so many parts can be made of it.
    pub(crate) fn parts_at_most(&self) -> u32 {
        match &self.shape {
            Shape::Bucket(bucket) => self.rate.count.min(bucket.capacity()),
            _ => self.rate.count,
        }
    }

    /// Its window, or as long as it takes to be whole again: how long a store must not forget.
    pub(crate) fn memory(&self) -> Micros {
        self.rate.window
    }

    fn with_counts(&self, change: impl Fn(u32) -> u32) -> Self {
        let rate = Rate { count: change(self.rate.count), window: self.rate.window };
        let made = match &self.shape {
            Shape::Bucket(bucket) => Self::token_bucket(rate, Some(change(bucket.capacity()))),
            Shape::Leaky(leaky) => {
                let ([size, ..], max_wait) = leaky.numbers();
                Self::leaky_bucket(rate, change(size as u32 - 1), max_wait)
            }
            Shape::Fixed(fixed) => match fixed.windows() {
                Windows::Every(_) => Self::fixed_window(rate),
                Windows::Calendar(calendar) => Self::calendar_window(rate, Arc::clone(calendar)),
            },
            Shape::Sliding(_) => Self::sliding_window(rate),
            Shape::Log(_) => Self::sliding_log(rate),
            Shape::Concurrency(most) => Self::concurrency(change(most.capacity())),
        };
        // Fewer tokens of a valid quota are valid, but where a bucket would fill too slowly.
        made.unwrap_or_else(|_| self.clone())
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
