//! What a limit says to one request.
//!
//! Whether it may pass is decided under a store's lock, so a verdict holds only what that took,
//! and the account it was drawn from. The times that callers are told ([`Quota::reset`],
//! [`Quota::next`]) are worked out from the account later, where somebody asks for them.

use super::{Kind, Quota, State};
use crate::clock::Micros;
use std::cmp::Ordering;

/// What a limit says to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether this limit lets the request pass.
    pub allowed: bool,
    /// Said by a store that others share, and by its clock rather than this machine's.
    pub shared: bool,
    /// Tokens the request takes.
    pub cost: u32,
    /// Tokens left, whatever a request costs, and how many there can be: the tightest limit is
    /// the one with the smallest share left.
    pub unused: u32,
    /// See `unused`.
    pub capacity: u32,
    /// Rejected: until this very request would pass. Allowed: until its turn.
    pub(super) wait: Micros,
    /// When it was said.
    pub at: Micros,
    pub(super) account: Account,
}

/// What the times are worked out from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Account {
    /// What is used as of the verdict.
    State(State),
    /// A log is not copied: its times are known.
    Known { next: Micros, reset: Micros },
}

impl Verdict {
    /// Nothing has been said yet.
    pub(crate) const NONE: Self = Self {
        allowed: false,
        shared: false,
        cost: 0,
        unused: 0,
        capacity: 0,
        wait: 0,
        at: 0,
        account: Account::State(State { stamp: 0, used: 0, carry: 0, kind: Kind::Bucket }),
    };

    /// Lets the request pass, and knows nothing that could be told.
    pub(crate) const SILENT: Self = Self { allowed: true, ..Self::NONE };

    /// Admitted, with nothing to tell, but a cost that can be settled: it was counted at `at`.
    pub(crate) fn unheard(kind: Kind, cost: u32, at: Micros) -> Self {
        let account = Account::State(State { stamp: at, used: cost, carry: 0, kind });
        Self { cost, at, account, ..Self::SILENT }
    }

    /// The same, said by a shared store.
    #[must_use]
    pub(crate) fn by_store(self) -> Self {
        Self { shared: true, ..self }
    }

    /// Whether there is anything to tell.
    pub(crate) fn is_silent(&self) -> bool {
        self.capacity == 0
    }

    /// What is used once what is allowed is taken; a log is not told this way.
    pub(crate) fn state(&self) -> Option<State> {
        match self.account {
            Account::State(state) => Some(state),
            Account::Known { .. } => None,
        }
    }

    /// How many more requests of this cost would pass right now.
    pub fn remaining(&self) -> u32 {
        match self.cost {
            0 | 1 => self.unused,
            cost => self.unused / cost,
        }
    }

    /// How long until this very request would pass; zero when it does.
    pub fn retry_after(&self) -> Micros {
        if self.allowed { 0 } else { self.wait }
    }

    /// How long an admitted request must wait for its turn.
    pub fn delay(&self) -> Micros {
        if self.allowed { self.wait } else { 0 }
    }

    /// By the share of its capacity that is left: less is tighter.
    pub fn compare_share(&self, other: &Self) -> Ordering {
        let (mine, others) = (u64::from(self.unused), u64::from(other.unused));
        (mine * u64::from(other.capacity)).cmp(&(others * u64::from(self.capacity)))
    }

    /// The tokens that must be there for one more request than would pass now; `None` if there
    /// can never be so many.
    pub(super) fn one_more(&self) -> Option<u32> {
        let wanted = (u64::from(self.remaining()) + 1) * u64::from(self.cost);
        u32::try_from(wanted).ok().filter(|wanted| *wanted <= self.capacity)
    }

    /// The same for another cost, of a charge that the limit was not asked about.
    pub(crate) fn unasked(self, cost: u32) -> Self {
        Self { cost, ..self }
    }

    /// The same when only so many of the tokens are taken.
    #[must_use]
    pub(crate) fn taking(self, taken: u32) -> Self {
        match self.account {
            Account::State(state) if taken < self.cost => {
                let left = self.cost - taken;
                let account = Account::State(State { used: state.used - left, ..state });
                Self { cost: taken, unused: self.unused + left, account, ..self }
            }
            _ => self,
        }
    }

    /// The same limit when the request is turned away by another one, and takes nothing here.
    /// `None`: a log has to be looked at again.
    pub(crate) fn untaken(self) -> Option<Self> {
        let Account::State(state) = self.account else { return None };
        if !self.allowed {
            return Some(self);
        }
        let account = Account::State(State { used: state.used - self.cost, ..state });
        Some(Self { unused: self.unused + self.cost, wait: 0, account, ..self })
    }
}

impl Quota {
    /// How long after the verdict the limit is whole again; zero if it is.
    pub fn reset(&self, verdict: &Verdict) -> Micros {
        match verdict.account {
            Account::State(state) => self.shape.reset(state, verdict.at),
            Account::Known { reset, .. } => reset,
        }
    }

    /// How long after the verdict one more request of its cost can pass than then; zero when
    /// whole.
    pub fn next(&self, verdict: &Verdict) -> Micros {
        match verdict.account {
            Account::State(state) => self.shape.next(state, verdict),
            Account::Known { next, .. } => next,
        }
    }
}
