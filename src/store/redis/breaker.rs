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
        let (in_a_row, open, probe_at) = Default::default();
        Self { failures, probe_after, in_a_row, open, probe_at }
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

    pub(super) fn succeeded(&self) -> Change {
        if self.in_a_row.load(Ordering::Relaxed) > 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
        if self.is_open() && self.open.swap(false, Ordering::AcqRel) {
            return Change::Closed;
        }
        Change::None
    }

    pub(super) fn failed(&self, now: Micros) -> Change {
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
        assert_eq!([breaker.failed(0), breaker.failed(0)], [Change::None; 2]);
        assert_eq!(breaker.succeeded(), Change::None);
        assert_eq!([breaker.failed(0), breaker.failed(0)], [Change::None; 2], "in a row");
        assert_eq!(breaker.failed(5), Change::Opened);
        assert!(!breaker.admits(1004));
        assert!(breaker.admits(1005));
        assert!(!breaker.admits(1006), "one at a time");
        assert_eq!(breaker.failed(1010), Change::None, "still open");
        assert!(breaker.admits(2010));
        assert_eq!(breaker.succeeded(), Change::Closed);
        assert!(breaker.admits(2011));
        assert_eq!(breaker.failed(2012), Change::None, "counting begins anew");
    }
}
