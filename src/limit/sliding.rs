//! The sliding window in two counters: previous × (share of it still in the last W) + current + c
//! ≤ N. Windows begin at multiples of W since 1970.
//!
//! The previous window counts as if its requests had been spread evenly over it. Where they were
//! not, the estimate is wrong by at most what they were bunched: never more than N are counted for
//! a full window, and at a boundary at most N of the one before weigh as much as they were.

use super::{Kind, Rate, State, Verdict};
use crate::clock::Micros;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sliding {
    count: u32,
    window: Micros,
}

/// Both counters as of now.
#[derive(Clone, Copy)]
struct Counts {
    /// How far into the current window.
    elapsed: Micros,
    previous: u32,
    current: u32,
}

impl Sliding {
    pub(super) fn new(rate: Rate) -> Self {
        Self { count: rate.count, window: rate.window }
    }

    pub(super) fn check(&self, state: State, now: Micros, cost: u32) -> (Verdict, State) {
        let (counts, at) = self.at(state, now);
        if cost > self.room(counts) {
            // A clock that went backwards has to catch up first.
            let retry_after = self.wait(counts, cost) + (at - now);
            return (self.verdict(counts, cost).rejected(retry_after), state);
        }
        let taken = Counts { current: counts.current.saturating_add(cost), ..counts };
        let next =
            State { stamp: at, used: taken.current, carry: taken.previous, kind: Kind::Sliding };
        (self.verdict(taken, cost), next)
    }

    pub(super) fn peek(&self, state: State, now: Micros, cost: u32) -> Verdict {
        self.verdict(self.at(state, now).0, cost)
    }

    pub(super) fn is_whole(&self, state: State, now: Micros) -> bool {
        let (counts, _) = self.at(state, now);
        counts.previous == 0 && counts.current == 0
    }

    fn at(&self, state: State, now: Micros) -> (Counts, Micros) {
        let now = if state.used == 0 && state.carry == 0 { now } else { now.max(state.stamp) };
        let elapsed = now % self.window;
        let (previous, current) = match now / self.window - state.stamp / self.window {
            0 => (state.carry, state.used),
            1 => (state.used, 0),
            _ => (0, 0),
        };
        (Counts { elapsed, previous, current }, now)
    }

    /// N − current − previous·(W − elapsed)/W, rounded down: what still fits.
    fn room(&self, counts: Counts) -> u32 {
        let weight = u128::from(counts.previous) * u128::from(self.window - counts.elapsed);
        let previous = weight.div_ceil(u128::from(self.window)) as u32;
        self.count.saturating_sub(counts.current).saturating_sub(previous)
    }

    /// Until `tokens` fit: in this window as the previous one fades, or in the next as this one
    /// does.
    fn wait(&self, counts: Counts, tokens: u32) -> Micros {
        if tokens <= self.room(counts) {
            return 0;
        }
        let Counts { elapsed, previous, current } = counts;
        match self.count.checked_sub(current).and_then(|left| left.checked_sub(tokens)) {
            // From `fades` on, the previous window weighs at most `left`.
            Some(left) => self.fades(previous, left).saturating_sub(elapsed),
            None => {
                let left = self.count.saturating_sub(tokens);
                self.window - elapsed + self.fades(current, left)
            }
        }
    }

    /// How far into the window after it `count` weighs at most `left`.
    fn fades(&self, count: u32, left: u32) -> Micros {
        if count <= left {
            return 0;
        }
        let kept = u128::from(left) * u128::from(self.window) / u128::from(count);
        self.window - kept as u64
    }

    fn verdict(&self, counts: Counts, cost: u32) -> Verdict {
        let to_end = self.window - counts.elapsed;
        let reset = match (counts.current, counts.previous) {
            (0, 0) => 0,
            (0, _) => to_end,
            _ => to_end + self.window,
        };
        let wait = |tokens| self.wait(counts, tokens);
        Verdict::new(self.room(counts), self.count, reset, cost, wait)
    }
}
