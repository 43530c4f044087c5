//! How a worker is doing, and which share of requests it refuses for that.
//!
//! One number, the level, says it: up to one it is the share of sheddable requests that are refused,
//! from one to two that of normal ones on top, from two to three that of critical ones. Lateness
//! moves it, up within a second and down within five for each of those steps, so nothing flaps: a
//! worker that comes to its work late by more than `max_lag`, twice in a row, has more to do than it
//! can. Memory sets it, because what is used up does not come back by waiting: from nothing at
//! `max_memory` to two when nothing is left.

use super::Shed;
use crate::config::model::{Overload, Priority};
use std::cell::Cell;
use std::time::Duration;

/// How long a step up takes, and a step down.
const RISE: Duration = Duration::from_secs(1);
const FALL: Duration = Duration::from_secs(5);

/// The highest level: everything is refused.
const MOST: f64 = 3.0;

/// A worker that is later than this many times what it may be is given up on no sooner.
const WORST: f64 = 4.0;

/// One worker's.
#[derive(Debug, Default)]
pub struct Pressure {
    /// By lateness, and by memory.
    late: Cell<f64>,
    full: Cell<f64>,
    /// It was late the last time.
    was_late: Cell<bool>,
}

impl Pressure {
    /// Looks at how late the worker came to its work, some time after it last looked, and which share
    /// of its memory the process has, if that is known. Says whether it begins to refuse, or ends.
    pub fn look(
        &self,
        lag: Duration,
        since: Duration,
        memory: Option<f64>,
        overload: &Overload,
    ) -> Option<bool> {
        let before = self.level() > 0.0;
        self.late.set(overload.max_lag.map_or(0.0, |most| self.lateness(lag, since, most)));
        self.full.set(match (memory, overload.max_memory) {
            (Some(used), Some(most)) => ((used - most) / (1.0 - most) * 2.0).clamp(0.0, 2.0),
            _ => 0.0,
        });
        let after = self.level() > 0.0;
        (after != before).then_some(after)
    }

    fn lateness(&self, lag: Duration, since: Duration, most: Duration) -> f64 {
        let times = lag.as_secs_f64() / most.as_secs_f64();
        let was_late = self.was_late.replace(times > 1.0);
        let level = self.late.get();
        let change = if times > 1.0 && was_late {
            since.as_secs_f64() / RISE.as_secs_f64() * times.min(WORST)
        } else if times < 0.5 {
            -since.as_secs_f64() / FALL.as_secs_f64()
        } else {
            0.0
        };
        (level + change).clamp(0.0, MOST)
    }

    /// The level.
    #[inline]
    pub fn level(&self) -> f64 {
        self.late.get().max(self.full.get())
    }

    /// Whether a request of this priority is refused now. `dice` is any number below one.
    #[inline]
    pub fn refuses(&self, priority: Priority, dice: impl FnOnce() -> f64) -> Option<Shed> {
        let level = self.level();
        if level == 0.0 {
            return None;
        }
        let spared = match priority {
            Priority::Sheddable => 0.0,
            Priority::Normal => 1.0,
            Priority::Critical => 2.0,
        };
        let why = if self.full.get() >= level { Shed::Memory } else { Shed::Lag };
        (dice() < level - spared).then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_millis(600);

    fn rules() -> Overload {
        Overload { max_memory: Some(0.9), ..Overload::default() }
    }

    fn refused(pressure: &Pressure) -> [bool; 3] {
        Priority::ALL.map(|priority| pressure.refuses(priority, || 0.999).is_some())
    }

    #[test]
    fn sheddable_goes_first_and_critical_last() {
        let pressure = Pressure::default();
        let mut seen = Vec::new();
        for _ in 0..10 {
            pressure.look(LATE, LATE, None, &rules());
            if seen.last() != Some(&refused(&pressure)) {
                seen.push(refused(&pressure));
            }
        }
        let [critical, normal] = [[true, true, true], [false, true, true]];
        assert_eq!(seen, [[false; 3], [false, false, true], normal, critical]);
    }

    #[test]
    fn one_hiccup_refuses_nobody() {
        let pressure = Pressure::default();
        assert_eq!(pressure.look(Duration::from_secs(3), LATE, None, &rules()), None);
        assert_eq!(pressure.look(TICK, TICK, None, &rules()), None);
        assert_eq!(pressure.look(LATE, LATE, None, &rules()), None);
        assert_eq!(pressure.look(LATE, LATE, None, &rules()), Some(true));
    }

    #[test]
    fn recovery_is_gradual() {
        let pressure = Pressure::default();
        for _ in 0..10 {
            pressure.look(LATE, LATE, None, &rules());
        }
        let mut before = pressure.level();
        let mut steps = 0;
        while pressure.level() > 0.0 {
            // Neither late nor at ease: it stays as it is.
            let level = pressure.level();
            pressure.look(Duration::from_millis(300), TICK, None, &rules());
            assert!((pressure.level() - level).abs() < 1e-9);
            pressure.look(Duration::ZERO, TICK, None, &rules());
            assert!(before - pressure.level() < 0.02, "not at once");
            before = pressure.level();
            steps += 1;
        }
        assert!((299..=301).contains(&steps), "fifteen seconds: {steps}");
    }

    #[test]
    fn memory_counts_as_it_is() {
        let pressure = Pressure::default();
        let look = |used| {
            pressure.look(Duration::ZERO, TICK, Some(used), &rules());
            (refused(&pressure), pressure.level())
        };
        assert_eq!(look(0.9).0, [false; 3]);
        assert!((look(0.925).1 - 0.5).abs() < 1e-9);
        assert_eq!(look(0.951).0, [false, false, true]);
        assert_eq!(look(1.2).0, [false, true, true]);
        assert_eq!(pressure.refuses(Priority::Normal, || 0.5), Some(Shed::Memory));
        assert_eq!(look(0.5), ([false; 3], 0.0));
        let off = Overload { max_memory: None, max_lag: None, ..rules() };
        pressure.look(LATE, LATE, Some(1.0), &off);
        pressure.look(LATE, LATE, Some(1.0), &off);
        assert!(pressure.level() < 1e-9);
    }
}
