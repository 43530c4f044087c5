//! The fixed window: count in this window + c ≤ N. One counter; the windows' boundaries are
//! everybody's, so that twice N can pass around one of them.

use super::algorithm::{Algorithm, Settled};
use super::windows::Windows;
use super::{Kind, State};
use crate::clock::Micros;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    count: u32,
    windows: Windows,
}

impl Fixed {
    pub(super) fn new(count: u32, windows: Windows) -> Self {
        Self { count, windows }
    }

    pub(super) fn windows(&self) -> &Windows {
        &self.windows
    }
}

impl Algorithm for Fixed {
    const KIND: Kind = Kind::Fixed;

    fn capacity(&self) -> u32 {
        self.count
    }

    /// A clock that went backwards stays where it was.
    fn advance(&self, state: State, now: Micros) -> State {
        let now = if state.used == 0 { now } else { now.max(state.stamp) };
        let used = if state.stamp >= self.windows.at(now).start { state.used } else { 0 };
        State { stamp: now, used, carry: 0, kind: Kind::Fixed }
    }

    fn room(&self, current: State, _now: Micros) -> u32 {
        self.count.saturating_sub(current.used)
    }

    fn wait(&self, current: State, now: Micros, tokens: u32) -> Micros {
        if tokens <= self.room(current, now) { 0 } else { self.end(current, now) }
    }

    fn reset(&self, current: State, now: Micros) -> Micros {
        if current.used == 0 { 0 } else { self.end(current, now) }
    }

    /// A cost belongs to the window of its admission. If that is over, what exceeds the reserve is
    /// charged to the current window: a client that delays the number gains nothing.
    fn settle(&self, current: State, _now: Micros, cost: Settled) -> Option<State> {
        if self.windows.at(current.stamp).contains(&cost.counted) {
            return Some(State { used: cost.applied_to(current.used), ..current });
        }
        cost.late(current)
    }
}

impl Fixed {
    /// How long until this window ends.
    fn end(&self, current: State, now: Micros) -> Micros {
        self.windows.at(current.stamp).end.saturating_sub(now)
    }
}
