//! Requests over time, in intervals that grow as the log does: there are never many of them.

use crate::clock::{Micros, SECOND};
use std::collections::BTreeMap;

/// How long intervals can be, in seconds; each is a whole number of those before.
const WIDTHS: [u64; 16] = [
    1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_419_200,
    29_030_400,
];

/// More intervals than this are too many to look at.
const MOST: u64 = 180;

/// Requests over time.
#[derive(Debug, Default)]
pub struct Timeline {
    /// Which of the widths.
    width: usize,
    /// By their number since 1970.
    intervals: BTreeMap<u64, Interval>,
    /// The one that is counted now.
    now: u64,
    current: Interval,
}

/// What happened in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Requests.
    pub requests: u64,
    /// Those that are rejected.
    pub rejected: u64,
    /// Those that the other configuration rejects.
    pub baseline: u64,
}

impl Interval {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.rejected += other.rejected;
        self.baseline += other.baseline;
    }
}

impl Timeline {
    /// Counts a request, and whether it was rejected, by this and by another configuration.
    #[inline]
    pub fn count(&mut self, time: Micros, rejected: bool, baseline: bool) {
        let number = time / SECOND / WIDTHS[self.width];
        if number != self.now {
            self.turn(time);
        }
        self.current.requests += 1;
        self.current.rejected += u64::from(rejected);
        self.current.baseline += u64::from(baseline);
    }

    #[cold]
    fn turn(&mut self, time: Micros) {
        self.put_down();
        let seconds = time / SECOND;
        let first = self.intervals.first_key_value().map_or(u64::MAX, |(first, _)| *first);
        let last = self.intervals.last_key_value().map_or(0, |(last, _)| *last);
        let width = WIDTHS[self.width];
        let (first, last) =
            (first.saturating_mul(width).min(seconds), last.saturating_mul(width).max(seconds));
        let wide = WIDTHS.iter().position(|width| last / width - first / width < MOST);
        self.widen(wide.unwrap_or(WIDTHS.len() - 1));
        self.now = seconds / WIDTHS[self.width];
    }

    fn widen(&mut self, width: usize) {
        if width > self.width {
            let factor = WIDTHS[width] / WIDTHS[self.width];
            let mut wider: BTreeMap<u64, Interval> = BTreeMap::new();
            for (number, interval) in std::mem::take(&mut self.intervals) {
                wider.entry(number / factor).or_default().add(interval);
            }
            (self.intervals, self.width) = (wider, width);
        }
    }

    fn put_down(&mut self) {
        let current = std::mem::take(&mut self.current);
        if current.requests > 0 {
            self.intervals.entry(self.now).or_default().add(current);
        }
    }

    /// How many seconds an interval has, and every interval from the first to the last: when it
    /// begins, in seconds since 1970.
    pub fn finish(mut self) -> (u64, Vec<(u64, Interval)>) {
        self.put_down();
        let width = WIDTHS[self.width];
        let (Some((first, _)), Some((last, _))) =
            (self.intervals.first_key_value(), self.intervals.last_key_value())
        else {
            return (width, Vec::new());
        };
        let all = *first..=*last;
        let of = |number: u64| self.intervals.get(&number).copied().unwrap_or_default();
        (width, all.map(|number| (number * width, of(number))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_is_lost_however_times_jump(
            times in prop::collection::vec((0u64..4_000_000_000_000_000, any::<bool>()), 1..300),
        ) {
            let mut timeline = Timeline::default();
            for (time, rejected) in &times {
                timeline.count(*time, *rejected, !*rejected);
            }
            let (width, intervals) = timeline.finish();
            prop_assert!(intervals.len() as u64 <= MOST);
            let mut expected: BTreeMap<u64, Interval> = BTreeMap::new();
            for (time, rejected) in &times {
                let interval = expected.entry(time / SECOND / width * width).or_default();
                interval.requests += 1;
                interval.rejected += u64::from(*rejected);
                interval.baseline += u64::from(!*rejected);
            }
            let seen = intervals.into_iter().filter(|(_, interval)| interval.requests > 0);
            prop_assert_eq!(seen.collect::<BTreeMap<_, _>>(), expected);
        }
    }

    #[test]
    fn a_minute_is_told_by_seconds_and_a_day_by_quarters_of_an_hour() {
        for (seconds, expected) in [(60, 1), (600, 5), (3600, 30), (86_400, 900), (604_800, 3600)] {
            let mut timeline = Timeline::default();
            for second in 0..seconds {
                timeline.count((1_700_000_000 + second) * SECOND, false, false);
            }
            assert_eq!(timeline.finish().0, expected, "{seconds}");
        }
    }
}
