//! The sliding log: admitted in the last W + c ≤ N, exactly. It remembers every admission, so N is
//! bounded; an entry of age W no longer counts.

use super::verdict::Account;
use super::{Kind, Rate, State, Verdict};
use crate::clock::Micros;
use std::collections::VecDeque;

/// The most a log may have to remember.
pub const MAX_LOG: u32 = 10_000;

/// Every admission that may still count, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: VecDeque<(Micros, u32)>,
    total: u32,
}

impl From<State> for Log {
    /// What another algorithm counted, as if it had all been admitted when it was last counted.
    fn from(state: State) -> Self {
        let mut log = Self::default();
        if state.used > 0 {
            log.entries.push_back((state.stamp, state.used));
            log.total = state.used;
        }
        log
    }
}

impl FromIterator<(Micros, u32)> for Log {
    /// Admissions, the oldest first.
    fn from_iter<I: IntoIterator<Item = (Micros, u32)>>(entries: I) -> Self {
        let entries: VecDeque<_> = entries.into_iter().collect();
        let total = entries.iter().fold(0_u32, |sum, (_, cost)| sum.saturating_add(*cost));
        Self { entries, total }
    }
}

impl Log {
    /// Admissions, the oldest first.
    pub fn entries(&self) -> impl Iterator<Item = (Micros, u32)> {
        self.entries.iter().copied()
    }

    /// The sum, for an algorithm that keeps no log.
    pub fn summary(&self) -> State {
        let stamp = self.entries.back().map_or(0, |&(at, _)| at);
        State { stamp, used: self.total, carry: 0, kind: Kind::Log }
    }

    fn append(&mut self, at: Micros, cost: u32, window: Micros) {
        while let Some(&(then, old)) = self.entries.front()
            && then + window <= at
        {
            self.entries.pop_front();
            self.total = self.total.saturating_sub(old);
        }
        match self.entries.back_mut() {
            Some((then, count)) if *then == at => *count = count.saturating_add(cost),
            _ => self.entries.push_back((at, cost)),
        }
        self.total = self.total.saturating_add(cost);
    }

    /// Takes an admission back.
    pub(crate) fn strike(&mut self, at: Micros, cost: u32) {
        // The clock may have gone back: then it was noted at the moment of the one before.
        let found = self.entries.iter_mut().find(|(then, noted)| *then >= at && *noted >= cost);
        if let Some((_, noted)) = found {
            *noted -= cost;
            self.total = self.total.saturating_sub(cost);
            self.entries.retain(|(_, noted)| *noted > 0);
        }
    }

    /// Now, unless the clock went backwards: then it stays where it was.
    fn at(&self, now: Micros) -> Micros {
        self.entries.back().map_or(now, |&(then, _)| now.max(then))
    }

    /// Entries that still count at `now`, and their sum.
    fn live(&self, now: Micros, window: Micros) -> (impl Iterator<Item = &(Micros, u32)>, u32) {
        let gone = self.entries.partition_point(|&(at, _)| at + window <= now);
        let gone_costs = self.entries.iter().take(gone).map(|&(_, cost)| cost);
        let before = gone_costs.fold(0, u32::saturating_add);
        (self.entries.iter().skip(gone), self.total.saturating_sub(before))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlidingLog {
    count: u32,
    window: Micros,
}

impl SlidingLog {
    pub(super) fn new(rate: Rate) -> Self {
        Self { count: rate.count, window: rate.window }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.count
    }

    pub(super) fn check(&self, log: &Log, now: Micros, cost: u32) -> Verdict {
        let at = log.at(now);
        let (_, used) = log.live(at, self.window);
        if cost > self.count.saturating_sub(used) {
            let wait = self.wait(log, at, cost) + (at - now);
            return Verdict { allowed: false, wait, ..self.peek(log, now, cost) };
        }
        self.verdict(log, now, cost, cost)
    }

    /// Remembers an admission.
    pub(super) fn take(&self, log: &mut Log, verdict: &Verdict) {
        log.append(log.at(verdict.at), verdict.cost, self.window);
    }

    pub(super) fn peek(&self, log: &Log, now: Micros, cost: u32) -> Verdict {
        self.verdict(log, now, cost, 0)
    }

    pub(super) fn is_whole(&self, log: &Log, now: Micros) -> bool {
        log.live(log.at(now), self.window).1 == 0
    }

    /// `taken`: what this very request took. It leaves last of all.
    fn verdict(&self, log: &Log, now: Micros, cost: u32, taken: u32) -> Verdict {
        let at = log.at(now);
        let used = log.live(at, self.window).1.saturating_add(taken);
        let newest = log.entries.back().map_or(at, |&(then, _)| then);
        let reset = match (used, taken) {
            (0, _) => 0,
            (_, 0) => (newest + self.window).saturating_sub(at),
            _ => self.window,
        };
        let mut verdict = Verdict {
            allowed: true,
            cost,
            unused: self.count.saturating_sub(used),
            capacity: self.count,
            wait: 0,
            at: now,
            account: Account::Known { next: reset, reset },
            ..Verdict::NONE
        };
        let more = verdict.one_more().and_then(|tokens| tokens.checked_add(taken));
        if let Some(tokens) = more.filter(|tokens| *tokens <= self.count) {
            let next = self.wait(log, at, tokens).min(reset);
            verdict.account = Account::Known { next, reset };
        }
        verdict
    }

    /// Until `tokens` fit: the oldest entries leave one after the other.
    fn wait(&self, log: &Log, now: Micros, tokens: u32) -> Micros {
        let (live, used) = log.live(now, self.window);
        let mut excess = used.saturating_add(tokens).saturating_sub(self.count);
        if excess == 0 {
            return 0;
        }
        for &(at, cost) in live {
            excess = excess.saturating_sub(cost);
            if excess == 0 {
                return at + self.window - now;
            }
        }
        self.window
    }
}
