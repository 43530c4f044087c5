//! The fixed window: count in this window + c ≤ N. One counter; the windows' boundaries are
//! everybody's, so that twice N can pass around one of them.

use super::windows::Windows;
use super::{Kind, State, Verdict};
use crate::clock::Micros;
use std::ops::Range;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    count: u32,
    windows: Windows,
}

impl Fixed {
    pub(super) fn new(count: u32, windows: Windows) -> Self {
        Self { count, windows }
    }

    pub(super) fn check(&self, state: State, now: Micros, cost: u32) -> (Verdict, State) {
        let (window, used, at) = self.at(state, now);
        let taken = used.saturating_add(cost);
        if taken > self.count {
            let retry_after = window.end.saturating_sub(now);
            return (self.verdict(&window, used, now, cost).rejected(retry_after), state);
        }
        let next = State { stamp: at, used: taken, carry: 0, kind: Kind::Fixed };
        (self.verdict(&window, taken, now, cost), next)
    }

    pub(super) fn peek(&self, state: State, now: Micros, cost: u32) -> Verdict {
        let (window, used, _) = self.at(state, now);
        self.verdict(&window, used, now, cost)
    }

    pub(super) fn is_whole(&self, state: State, now: Micros) -> bool {
        self.at(state, now).1 == 0
    }

    /// This window, and what was used in it. A clock that went backwards stays where it was.
    fn at(&self, state: State, now: Micros) -> (Range<Micros>, u32, Micros) {
        let now = if state.used == 0 { now } else { now.max(state.stamp) };
        let window = self.windows.at(now);
        let used = if state.stamp >= window.start { state.used } else { 0 };
        (window, used, now)
    }

    fn verdict(&self, window: &Range<Micros>, used: u32, now: Micros, cost: u32) -> Verdict {
        let reset = if used == 0 { 0 } else { window.end.saturating_sub(now) };
        Verdict::new(self.count.saturating_sub(used), self.count, reset, cost, |_| reset)
    }
}
