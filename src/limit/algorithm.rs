//! The few questions that every algorithm of numbers answers; whatever is told to callers is made
//! of the answers. (A log is no number, and answers for itself.)

use super::verdict::Account;
use super::{Kind, State, Verdict};
use crate::clock::{Micros, SECOND};

pub(super) trait Algorithm {
    const KIND: Kind;

    /// The most tokens there can be.
    fn capacity(&self) -> u32;

    /// The state as of `now`: what has come back by then is back. A clock that went backwards
    /// brings nothing.
    fn advance(&self, state: State, now: Micros) -> State;

    /// How many tokens there are. Here and below the state is as of now.
    fn room(&self, current: State, now: Micros) -> u32;

    /// How long until there are so many tokens, at most the capacity.
    fn wait(&self, current: State, now: Micros, tokens: u32) -> Micros;

    /// How long until it is whole.
    fn reset(&self, current: State, now: Micros) -> Micros;

    /// How long one who is admitted now has to wait for their turn.
    fn delay(&self, _current: State, _now: Micros) -> Micros {
        0
    }

    /// What settling does to the state as of now. `None` where that changes nothing, or cannot be
    /// done.
    fn settle(&self, _current: State, _now: Micros, _cost: Settled) -> Option<State> {
        None
    }

    /// Asks for `cost` tokens. Returns what is used if they are taken.
    #[inline(always)]
    fn check(&self, state: State, now: Micros, cost: u32, said: &mut Verdict) -> State {
        let current = self.advance(state, now);
        let room = self.room(current, now);
        (said.at, said.cost, said.capacity) = (now, cost, self.capacity());
        if cost <= room {
            said.allowed = true;
            said.wait = self.delay(current, now);
            said.unused = room - cost;
            let taken = State { used: current.used + cost, ..current };
            said.account = Account::State(taken);
            taken
        } else {
            said.allowed = false;
            said.wait = self.wait(current, now, cost);
            said.unused = room;
            said.account = Account::State(current);
            current
        }
    }

    /// What there is while nothing is taken.
    fn peek(&self, state: State, now: Micros, cost: u32) -> Verdict {
        let current = self.advance(state, now);
        let (unused, capacity) = (self.room(current, now), self.capacity());
        let account = Account::State(current);
        Verdict {
            allowed: true,
            cost,
            unused,
            capacity,
            wait: 0,
            at: now,
            account,
            ..Verdict::NONE
        }
    }

    /// See [`Quota::next`](super::Quota::next).
    fn next(&self, current: State, verdict: &Verdict) -> Micros {
        let reset = self.reset(current, verdict.at);
        let wait = |tokens| self.wait(current, verdict.at, tokens).min(reset);
        // More than there can be is never there: then it is whole that one waits for.
        verdict.one_more().map_or(reset, wait)
    }

    fn is_whole(&self, state: State, now: Micros) -> bool {
        let current = self.advance(state, now);
        current.used == 0 && (Self::KIND == Kind::Bucket || current.carry == 0)
    }
}

/// A cost that was reserved, and what it came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    pub(super) reserved: u32,
    pub(super) actual: u32,
    /// When it was admitted, and the moment it was counted at: the same, unless the clock had gone
    /// back.
    pub(super) at: Micros,
    pub(super) counted: Micros,
}

impl Settled {
    /// Tokens used, when this admission is counted by its actual cost. More than there are is a
    /// debt.
    pub(super) fn applied_to(self, used: u32) -> u32 {
        used.saturating_add(self.actual).saturating_sub(self.reserved)
    }

    /// The window of the admission is over: only what exceeds the reserve still counts, now.
    pub(super) fn late(self, current: State) -> Option<State> {
        let more = self.actual.checked_sub(self.reserved).filter(|more| *more > 0)?;
        Some(State { used: current.used.saturating_add(more), ..current })
    }
}

/// Fewer than N in flight. When one ends nobody knows, so there is no time to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InFlight(pub(super) u32);

impl Algorithm for InFlight {
    const KIND: Kind = Kind::Concurrency;

    fn capacity(&self) -> u32 {
        self.0
    }

    fn advance(&self, state: State, now: Micros) -> State {
        State { stamp: now, ..state }
    }

    fn room(&self, current: State, _now: Micros) -> u32 {
        self.0.saturating_sub(current.used)
    }

    fn wait(&self, _current: State, _now: Micros, _tokens: u32) -> Micros {
        SECOND
    }

    fn reset(&self, _current: State, _now: Micros) -> Micros {
        0
    }
}
