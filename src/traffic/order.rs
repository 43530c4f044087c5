//! Lines by their time. Logs are written when requests end, by several workers and gateways, so a
//! line may come after later ones; every line waits until those of its time must have come.

use crate::clock::Micros;

/// More lines than this do not wait, however many there are in a second.
const MOST: usize = 1 << 21;

/// So many lines are worth sorting.
const FEW: usize = 1 << 14;

/// Lines that wait.
#[derive(Debug)]
pub struct Order<T> {
    waiting: Vec<(Micros, T)>,
    /// How many of them have been sorted before.
    kept: usize,
    sorted: Vec<(Micros, u32)>,
    /// The time of the last line that was handed on, and how many came later than one of a later
    /// time.
    last: Micros,
    late: u64,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), kept: 0, sorted: Vec::new(), last: 0, late: 0 }
    }
}

impl<T> Order<T> {
    /// Adds a line.
    #[inline]
    pub fn add(&mut self, time: Micros, line: T) {
        self.waiting.push((time, line));
    }

    /// Hands on what is from before `until`, in order, if it is worth it by now. Lines of the same
    /// time keep their order.
    pub fn release(&mut self, until: Micros, hand_on: impl FnMut(Micros, &T)) {
        let enough = self.waiting.len() >= 2 * self.kept + FEW;
        if enough {
            // So many lines of a few seconds that not all can wait: the first half goes.
            let most = if self.waiting.len() > MOST { self.waiting.len() / 2 } else { 0 };
            self.hand_on(until, most, hand_on);
        }
    }

    /// Hands on everything that is left.
    pub fn finish(&mut self, hand_on: impl FnMut(Micros, &T)) {
        self.hand_on(Micros::MAX, self.waiting.len(), hand_on);
    }

    fn hand_on(&mut self, until: Micros, least: usize, mut hand_on: impl FnMut(Micros, &T)) {
        let Self { waiting, sorted, .. } = self;
        // Many logs are in order by themselves.
        if waiting.is_sorted_by_key(|(time, _)| *time) {
            let before = waiting.partition_point(|(time, _)| *time < until);
            for (time, line) in waiting.drain(..before.max(least.min(waiting.len()))) {
                self.late += u64::from(time < self.last);
                self.last = self.last.max(time);
                hand_on(time, &line);
            }
            self.kept = waiting.len();
            return;
        }
        // The place is part of what is sorted by.
        sorted.clear();
        sorted.extend(waiting.iter().enumerate().map(|(at, (time, _))| (*time, at as u32)));
        sorted.sort_unstable();
        let before = sorted.partition_point(|(time, _)| *time < until);
        let going = before.max(least.min(sorted.len()));
        for (time, at) in &sorted[..going] {
            self.late += u64::from(*time < self.last);
            self.last = self.last.max(*time);
            hand_on(*time, &waiting[*at as usize].1);
        }
        match sorted.get(going) {
            None => waiting.clear(),
            Some(first) => {
                let mut at = 0;
                waiting.retain(|(time, _)| {
                    let stays = (*time, at) >= *first;
                    at += 1;
                    stays
                });
            }
        }
        self.kept = self.waiting.len();
    }

    /// How many lines came too late to be put in order.
    pub fn late(&self) -> u64 {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lines_that_are_late_by_less_than_they_wait_are_put_in_order(
            gaps in prop::collection::vec((0u64..5, 0u64..100), 0..2000),
            chunk in 1usize..500,
        ) {
            let mut now = 1000;
            let mut lines: Vec<(u64, usize)> = Vec::new();
            for (index, (gap, late)) in gaps.iter().enumerate() {
                now += gap;
                lines.push((now - late, index));
            }
            let mut order = Order::default();
            let mut seen = Vec::new();
            let mut latest = 0;
            for some in lines.chunks(chunk) {
                for (time, line) in some {
                    order.add(*time, *line);
                    latest = latest.max(*time);
                }
                order.hand_on(latest.saturating_sub(100), 0, |time, line| seen.push((time, *line)));
            }
            order.finish(|time, line| seen.push((time, *line)));
            lines.sort_unstable(); // by time, then as they came
            prop_assert_eq!(seen, lines);
            prop_assert_eq!(order.late(), 0);
        }
    }

    #[test]
    fn a_line_that_is_too_late_is_counted_and_not_lost() {
        let mut order = Order::default();
        let mut seen = Vec::new();
        order.add(50, 'b');
        order.add(90, 'c');
        order.hand_on(60, 0, |time, line| seen.push((time, *line)));
        order.add(10, 'a');
        order.finish(|time, line| seen.push((time, *line)));
        assert_eq!(seen, [(50, 'b'), (10, 'a'), (90, 'c')]);
        assert_eq!(order.late(), 1);
    }
}
