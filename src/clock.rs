//! The only place that reads time.
//!
//! Limits count in microseconds since 1970. The system clock is anchored once and then follows
//! the monotonic clock, so a step of the machine's wall clock neither forgives nor punishes
//! anybody; what others read (tokens, logs, headers) goes by the wall clock. Tests take a manual
//! clock and move it themselves.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Microseconds: since 1970 for a point in time, otherwise a length of time.
pub type Micros = u64;

/// Microseconds in a second.
pub const SECOND: Micros = 1_000_000;

/// Where the time comes from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clock.
    System {
        /// What the wall clock said when the monotonic one began.
        epoch: Micros,
        /// How far the wall clock has moved away since.
        drift: Arc<AtomicI64>,
    },
    /// A clock that stands still until a test moves it.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock, anchored now.
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn system() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = micros(wall).saturating_sub(monotonic());
        Self::System { epoch, drift: Arc::default() }
    }

    /// A clock that says `now` until [`advance`](Self::advance) is called.
    pub fn manual(now: Micros) -> Self {
        Self::Manual(Arc::new(AtomicU64::new(now)))
    }

    /// Microseconds since 1970; never less than what it said before.
    pub fn now(&self) -> Micros {
        match self {
            Self::System { epoch, .. } => epoch + monotonic(),
            Self::Manual(now) => now.load(Ordering::Acquire),
        }
    }

    /// What the wall clock said at `moment` of this clock: for what others read, such as logs,
    /// tokens and headers.
    pub fn wall(&self, moment: Micros) -> Micros {
        match self {
            Self::System { drift, .. } => {
                moment.saturating_add_signed(drift.load(Ordering::Relaxed))
            }
            Self::Manual(_) => moment,
        }
    }

    /// The wall clock's second by which a moment of this clock has come. Clocks that are apart by
    /// less than half a second are taken for one: a window that begins with a second ends with
    /// one.
    pub fn wall_second(&self, moment: Micros) -> u64 {
        let second = moment.div_ceil(SECOND);
        match self {
            Self::System { drift, .. } => {
                let drift = drift.load(Ordering::Relaxed);
                let seconds = (drift + drift.signum() * 500_000) / 1_000_000;
                second.saturating_add_signed(seconds)
            }
            Self::Manual(_) => second,
        }
    }

    /// Looks at the wall clock; to be called every so often.
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn sync(&self) {
        if let Self::System { drift, .. } = self {
            let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let moved = i128::from(micros(wall)) - i128::from(self.now());
            drift.store(i64::try_from(moved).unwrap_or_default(), Ordering::Relaxed);
        }
    }

    /// Moves a manual clock on; the system clock goes its own way.
    pub fn advance(&self, by: Duration) {
        if let Self::Manual(now) = self {
            now.fetch_add(micros(by), Ordering::AcqRel);
        }
    }
}

/// Microseconds since the machine began, or some such moment. A request asks several times, and
/// `Instant` takes four times as many instructions for the same answer.
#[expect(clippy::cast_sign_loss, reason = "the clock began at nothing")]
fn monotonic() -> Micros {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * SECOND + now.tv_nsec as u64 / 1000
}

/// A duration in whole microseconds; what does not fit (584,000 years) is the largest value.
pub fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}

/// Writes a moment as RFC 3339 in UTC with milliseconds: `2026-02-09T10:11:12.345Z`.
pub fn write_rfc3339(out: &mut Vec<u8>, at: Micros) {
    let (year, month, day) = civil(at / (86_400 * SECOND));
    let in_day = at % (86_400 * SECOND) / 1000;
    let (millis, seconds) = (in_day % 1000, in_day / 1000);
    let fields = [
        (year, 4, b'-'),
        (month, 2, b'-'),
        (day, 2, b'T'),
        (seconds / 3600, 2, b':'),
        (seconds / 60 % 60, 2, b':'),
        (seconds % 60, 2, b'.'),
        (millis, 3, b'Z'),
    ];
    for (value, digits, end) in fields {
        for place in (0..digits).rev() {
            out.push(b'0' + (value / 10_u64.pow(place) % 10) as u8);
        }
        out.push(end);
    }
}

/// Days since 1970 → year, month, day of the Gregorian calendar. Counts in eras of 400 years
/// that begin in March, so that the leap day is the last day of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // from 1970-01-01 back to 0000-03-01
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_rfc3339() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999_000, "2000-02-28T23:59:59.999Z"),
            (951_868_800_000_000, "2000-03-01T00:00:00.000Z"),
            (1_707_432_612_345_678, "2024-02-08T22:50:12.345Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (at, expected) in cases {
            let mut out = Vec::new();
            write_rfc3339(&mut out, at);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn a_manual_clock_moves_only_by_hand() {
        let clock = Clock::manual(5);
        assert_eq!(clock.now(), 5);
        clock.advance(Duration::from_micros(7));
        assert_eq!(clock.now(), 12);
    }
}
