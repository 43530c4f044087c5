//! When the store is not asked: after so many failures in a row the breaker opens, and until a
//! probe succeeds nobody waits for a store that is away.
//!
//! ```text
//! closed ── K failures in a row ──► open ── after a while ──► one decision probes it
//!    ▲                                ▲                            │      │
//!    └────────── it succeeds ─────────┼────────────────────────────┘      │
//!                                     └──────────── it fails ─────────────┘
//! ```

use crate::clock::Micros;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct Breaker {
    /// K.
    failures: u32,
    probe_after: Micros,
    in_a_row: AtomicU32,
    /// When the last failure that counted was seen. Decisions that were under way then tell nothing
    /// new: one broken connection is one failure.
    counted_at: AtomicU64,
    open: AtomicBool,
    /// When the next probe may go.
    probe_at: AtomicU64,
}

/// What an outcome has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Opened,
    Closed,
}

impl Breaker {
    pub(super) fn new(failures: u32, probe_after: Micros) -> Self {
        let (in_a_row, counted_at, open, probe_at) = Default::default();
        Self { failures, probe_after, in_a_row, counted_at, open, probe_at }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Whether this decision may ask the store. While the breaker is open, one in a while may.
    pub(super) fn admits(&self, now: Micros) -> bool {
        if !self.is_open() {
            return true;
        }
        let due = self.probe_at.load(Ordering::Acquire);
        let next = now + self.probe_after;
        now >= due
            && self
                .probe_at
                .compare_exchange(due, next, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }

    /// A decision that was let pass could not be asked after all: another one may soon.
    pub(super) fn untried(&self, now: Micros) {
        if self.is_open() {
            self.probe_at.store(now + self.probe_after / 10, Ordering::Release);
        }
    }

    pub(super) fn succeeded(&self) -> Change {
        if self.in_a_row.load(Ordering::Relaxed) > 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
        if self.is_open() && self.open.swap(false, Ordering::AcqRel) {
            return Change::Closed;
        }
        Change::None
    }

    /// A decision that began at `began` has failed.
    pub(super) fn failed(&self, began: Micros, now: Micros) -> Change {
        let (count, order) = (&self.counted_at, Ordering::AcqRel);
        let last = count.load(Ordering::Acquire);
        let was_under_way = last > 0 && began <= last;
        if was_under_way || count.compare_exchange(last, now, order, Ordering::Acquire).is_err() {
            return Change::None;
        }
        let in_a_row = self.in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if in_a_row < self.failures {
            return Change::None;
        }
        self.probe_at.store(now + self.probe_after, Ordering::Release);
        if self.open.swap(true, Ordering::AcqRel) { Change::None } else { Change::Opened }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_failure_is_no_outage_and_a_probe_at_a_time_finds_out() {
        let breaker = Breaker::new(3, 1000);
        let fail = |at| breaker.failed(at, at + 1);
        assert_eq!([fail(10), fail(20)], [Change::None; 2]);
        assert_eq!(breaker.succeeded(), Change::None);
        assert_eq!([fail(30), fail(40)], [Change::None; 2], "in a row");
        assert_eq!(fail(50), Change::Opened);
        assert!(!breaker.admits(1050));
        assert!(breaker.admits(1051));
        assert!(!breaker.admits(1052), "one at a time");
        assert_eq!(fail(1060), Change::None, "still open");
        assert!(breaker.admits(2061));
        assert_eq!(breaker.succeeded(), Change::Closed);
        assert!(breaker.admits(2062));
        assert_eq!(fail(2070), Change::None, "counting begins anew");
    }

    #[test]
    fn what_breaks_together_is_one_failure() {
        let breaker = Breaker::new(3, 1000);
        let all: Vec<_> = (0..100).map(|began| breaker.failed(began, 100 + began)).collect();
        assert_eq!(all, [Change::None; 100]);
        assert_eq!(breaker.failed(150, 151), Change::None);
        assert_eq!(breaker.failed(160, 161), Change::Opened);
    }
}
