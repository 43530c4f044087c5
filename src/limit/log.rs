//! The sliding log: admitted in the last W + c ≤ N, exactly. It remembers every admission, so N is
//! bounded; an entry of age W no longer counts.

use super::{Kind, Next, Rate, State, Verdict};
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

impl Log {
    /// The sum, for an algorithm that keeps no log.
    pub fn summary(&self) -> State {
        let stamp = self.entries.back().map_or(0, |&(at, _)| at);
        State { stamp, used: self.total, carry: 0, kind: Kind::Log }
    }

    pub(super) fn append(&mut self, at: Micros, cost: u32, window: Micros) {
        while let Some(&(then, old)) = self.entries.front()
            && then + window <= at
        {
            self.entries.pop_front();
            self.total -= old;
        }
        match self.entries.back_mut() {
            Some((then, count)) if *then == at => *count = count.saturating_add(cost),
            _ => self.entries.push_back((at, cost)),
        }
        self.total = self.total.saturating_add(cost);
    }

    /// Now, unless the clock went backwards: then it stays where it was.
    fn at(&self, now: Micros) -> Micros {
        self.entries.back().map_or(now, |&(then, _)| now.max(then))
    }

    /// Entries that still count at `now`, and their sum.
    fn live(&self, now: Micros, window: Micros) -> (impl Iterator<Item = &(Micros, u32)>, u32) {
        let gone = self.entries.partition_point(|&(at, _)| at + window <= now);
        let before: u32 = self.entries.iter().take(gone).map(|&(_, cost)| cost).sum();
        (self.entries.iter().skip(gone), self.total - before)
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

    pub(super) fn check(&self, log: &Log, now: Micros, cost: u32) -> (Verdict, Next) {
        let at = log.at(now);
        let (_, used) = log.live(at, self.window);
        let room = self.count.saturating_sub(used);
        if cost > room {
            let retry_after = self.wait(log, at, cost) + (at - now);
            let unchanged = Next::Append { at, cost: 0, window: self.window };
            return (self.peek(log, now, cost).rejected(retry_after), unchanged);
        }
        let next = Next::Append { at, cost, window: self.window };
        (self.verdict(log, at, used + cost, cost, at + self.window), next)
    }

    pub(super) fn peek(&self, log: &Log, now: Micros, cost: u32) -> Verdict {
        let at = log.at(now);
        let (_, used) = log.live(at, self.window);
        let newest = log.entries.back().map_or(0, |&(then, _)| then + self.window);
        self.verdict(log, at, used, cost, newest)
    }

    pub(super) fn is_whole(&self, log: &Log, now: Micros) -> bool {
        log.live(log.at(now), self.window).1 == 0
    }

    /// `whole`: when the newest entry leaves.
    fn verdict(&self, log: &Log, at: Micros, used: u32, cost: u32, whole: Micros) -> Verdict {
        let room = self.count.saturating_sub(used);
        let reset = if used == 0 { 0 } else { whole.saturating_sub(at) };
        // What this very request took leaves last of all.
        let (_, before) = log.live(at, self.window);
        let taken = used.saturating_sub(before);
        Verdict::new(room, self.count, reset, cost, |tokens| {
            match tokens.checked_add(taken).filter(|tokens| *tokens <= self.count) {
                Some(tokens) => self.wait(log, at, tokens),
                None => reset,
            }
        })
    }

    /// Until `tokens` fit: the oldest entries leave one after the other.
    fn wait(&self, log: &Log, now: Micros, tokens: u32) -> Micros {
        let (live, used) = log.live(now, self.window);
        let mut excess = (used + tokens).saturating_sub(self.count);
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
