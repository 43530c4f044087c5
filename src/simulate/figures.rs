//! Figures as people read them: the same on a terminal and in a browser.

use crate::clock::Micros;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share in percent. Something is never shown as nothing, nor almost all as all.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0%".to_owned(),
        percent if percent < 0.01 => "<0.01%".to_owned(),
        percent if percent < 1.0 => format!("{:.2}%", percent.min(0.99)),
        100.0 => "100%".to_owned(),
        percent => format!("{:.1}%", percent.min(99.9)),
    }
}

/// A share in percent, as it was given: `99.9`.
pub fn exactly(share: f64) -> f64 {
    (share * 1e8).round() / 1e6
}

/// `1 request`, `2 requests`.
pub fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// How long something is, in its largest units: `90 s`, `15 min`, `1 h 30 min`, `7 d`.
pub fn length(seconds: u64) -> String {
    let parts = |large: u64, name: &str, small: u64, below: &str| match seconds % large / small {
        0 => format!("{} {name}", seconds / large),
        rest => format!("{} {name} {rest} {below}", seconds / large),
    };
    match seconds {
        60 => "1 min".to_owned(),
        0..120 => format!("{seconds} s"),
        120..3600 => parts(60, "min", 1, "s"),
        3600..86_400 => parts(3600, "h", 60, "min"),
        _ => parts(86_400, "d", 3600, "h"),
    }
}

/// Moments by the clocks of a zone.
#[derive(Clone, Debug)]
pub struct Times {
    zone: TimeZone,
}

impl Times {
    /// By the clocks of this zone.
    pub fn new(zone: TimeZone) -> Self {
        Self { zone }
    }

    /// What the zone is called.
    pub fn zone(&self) -> String {
        self.zone.iana_name().unwrap_or("UTC").to_owned()
    }

    fn show(&self, at: Micros, how: &str) -> String {
        let at = i64::try_from(at).ok().and_then(|at| Timestamp::from_microsecond(at).ok());
        at.map_or_else(String::new, |at| at.to_zoned(self.zone.clone()).strftime(how).to_string())
    }

    /// `2026-02-09 10:11:12`.
    pub fn second(&self, at: Micros) -> String {
        self.show(at, "%Y-%m-%d %H:%M:%S")
    }

    /// `2026-02-09 10:11`.
    pub fn minute(&self, at: Micros) -> String {
        self.show(at, "%Y-%m-%d %H:%M")
    }

    /// As exact as intervals of so many seconds need it.
    pub fn interval(&self, at: Micros, seconds: u64) -> String {
        match seconds {
            0..60 => self.second(at),
            60..86_400 => self.minute(at),
            // Days begin at midnight in UTC, which is another time elsewhere.
            _ if self.of_day(at) != 0 => self.minute(at),
            _ => self.show(at, "%Y-%m-%d"),
        }
    }

    /// The same as short as a chart needs it.
    pub fn tick(&self, at: Micros, step: u64) -> String {
        match step {
            0..60 => self.show(at, "%H:%M:%S"),
            60..86_400 => self.show(at, "%H:%M"),
            _ => self.show(at, "%b %-d"),
        }
    }

    /// Seconds since midnight.
    pub fn of_day(&self, at: Micros) -> u64 {
        let seconds = self.show(at, "%H %M %S");
        seconds.split(' ').fold(0, |all, part| all * 60 + part.parse().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_share_is_never_rounded_to_nothing_or_to_all() {
        let cases = [
            (0.0, "0%"),
            (0.00001, "<0.01%"),
            (0.0042, "0.42%"),
            (0.00999, "0.99%"),
            (0.123, "12.3%"),
            (0.9999, "99.9%"),
            (1.0, "100%"),
        ];
        for (share, text) in cases {
            assert_eq!(percent(share), text, "{share}");
        }
    }

    #[test]
    fn lengths_have_two_units_at_most() {
        let cases = [
            (45, "45 s"),
            (60, "1 min"),
            (90, "90 s"),
            (120, "2 min"),
            (5400, "1 h 30 min"),
            (86_400, "1 d"),
            (90_000, "1 d 1 h"),
        ];
        for (seconds, text) in cases {
            assert_eq!(length(seconds), text);
        }
    }

    #[test]
    fn moments_are_shown_by_the_clocks_of_the_zone() {
        let berlin = Times::new(TimeZone::get("Europe/Berlin").unwrap());
        let at = 1_707_432_612_345_000;
        assert_eq!(berlin.second(at), "2024-02-08 23:50:12");
        assert_eq!(berlin.interval(at, 900), "2024-02-08 23:50");
        assert_eq!(berlin.interval(at, 604_800), "2024-02-08 23:50");
        assert_eq!(berlin.interval(1_707_433_200_000_000, 604_800), "2024-02-09");
        assert_eq!(berlin.of_day(at), 23 * 3600 + 50 * 60 + 12);
        assert_eq!(berlin.zone(), "Europe/Berlin");
        assert_eq!(Times::new(TimeZone::UTC).zone(), "UTC");
    }
}
