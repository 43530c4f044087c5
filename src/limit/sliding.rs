//! The sliding window in two counters: previous × (share of it still in the last W) + current + c
//! ≤ N. Windows begin at multiples of W since 1970.
//!
//! The previous window counts as if its requests had been spread evenly over it. Where they were
//! bunched at its end, more than N can pass within one W: at most 2N − 1 (docs/algorithms.md).

use super::algorithm::{Algorithm, Settled};
use super::{Kind, Rate, State};
use crate::clock::Micros;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sliding {
    count: u32,
    window: Micros,
}

impl Sliding {
    pub(super) fn new(rate: Rate) -> Self {
        Self { count: rate.count, window: rate.window }
    }

    /// How far into the current window.
    fn elapsed(&self, current: State) -> Micros {
        current.stamp % self.window
    }

    /// How far into the window after it `count` weighs at most `left`.
    fn fades(&self, count: u32, left: u32) -> Micros {
        if count <= left {
            return 0;
        }
        let kept = u128::from(left) * u128::from(self.window) / u128::from(count);
        self.window - kept as u64
    }
}

/// `used` is the current window's count, `carry` the one's before.
impl Algorithm for Sliding {
    const KIND: Kind = Kind::Sliding;

    fn capacity(&self) -> u32 {
        self.count
    }

    /// A clock that went backwards stays where it was.
    fn advance(&self, state: State, now: Micros) -> State {
        let now = if state.used == 0 && state.carry == 0 { now } else { now.max(state.stamp) };
        let (carry, used) = match (now / self.window).saturating_sub(state.stamp / self.window) {
            0 => (state.carry, state.used),
            1 => (state.used, 0),
            _ => (0, 0),
        };
        State { stamp: now, used, carry, kind: Kind::Sliding }
    }

    /// N − current − previous·(W − elapsed)/W, rounded down: what still fits.
    fn room(&self, current: State, _now: Micros) -> u32 {
        let left = self.window - self.elapsed(current);
        let previous = match u64::from(current.carry).checked_mul(left) {
            Some(weight) => weight.div_ceil(self.window),
            None => {
                let weight = u128::from(current.carry) * u128::from(left);
                weight.div_ceil(u128::from(self.window)) as u64
            }
        };
        self.count.saturating_sub(current.used).saturating_sub(previous as u32)
    }

    /// In this window as the previous one fades, or in the next as this one does.
    fn wait(&self, current: State, now: Micros, tokens: u32) -> Micros {
        if tokens <= self.room(current, now) {
            return 0;
        }
        let elapsed = self.elapsed(current);
        let left = self.count.checked_sub(current.used).and_then(|left| left.checked_sub(tokens));
        let wait = match left {
            // From `fades` on, the previous window weighs at most `left`.
            Some(left) => self.fades(current.carry, left).saturating_sub(elapsed),
            None => {
                let left = self.count.saturating_sub(tokens);
                self.window - elapsed + self.fades(current.used, left)
            }
        };
        // A clock that went backwards has to catch up first.
        wait + (current.stamp - now)
    }

    fn reset(&self, current: State, now: Micros) -> Micros {
        let to_end = self.window - self.elapsed(current) + (current.stamp - now);
        match (current.used, current.carry) {
            (0, 0) => 0,
            (0, _) => to_end,
            _ => to_end + self.window,
        }
    }

    /// A cost belongs to the window of its admission. If that is over, what exceeds the reserve is
    /// charged to the current window; what is given back stays in its own.
    fn settle(&self, current: State, _now: Micros, cost: Settled) -> Option<State> {
        match (current.stamp / self.window).checked_sub(cost.counted / self.window) {
            Some(0) => Some(State { used: cost.applied_to(current.used), ..current }),
            Some(1) if cost.actual <= cost.reserved => {
                Some(State { carry: cost.applied_to(current.carry), ..current })
            }
            _ => cost.late(current),
        }
    }
}
