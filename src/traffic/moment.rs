//! When a line says it was. Time zones are honoured; a time without one is in the zone that the user
//! names, or in UTC.

use crate::clock::{Micros, SECOND};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Reads times.
#[derive(Clone, Debug)]
pub struct Moments {
    zone: TimeZone,
    /// The day that was read last as it is written, and its first moment in seconds: the next line
    /// is of the same day.
    last: (Vec<u8>, i64),
    /// The text that was read last, and its moment: the next line is of the same second. Of one that
    /// ends like `.345Z`, what stands before that, and `true`.
    second: (Vec<u8>, bool, Micros),
}

const DAY: i64 = 86_400;

impl Moments {
    /// Times without a zone are in this one.
    pub fn new(zone: TimeZone) -> Self {
        Self { zone, last: (Vec::new(), 0), second: (Vec::new(), false, 0) }
    }

    /// The moment that a text names: RFC 3339 and its relatives, the time of the combined format,
    /// or a number of seconds, milliseconds, microseconds or nanoseconds since 1970.
    #[inline]
    pub fn read(&mut self, text: &[u8]) -> Option<Micros> {
        let (second, millis) = match text {
            [second @ .., b'.', a, b, c, b'Z'] => (second, Some([*a, *b, *c])),
            whole => (whole, None),
        };
        let (last, had_millis, at) = &self.second;
        if last == second && *had_millis == millis.is_some() && !last.is_empty() {
            let millis = millis.map_or(Some(0), |millis| digits(&millis));
            return millis.map(|millis| at + millis.unsigned_abs() * 1000);
        }
        self.read_anew(text, second)
    }

    #[cold]
    fn read_anew(&mut self, text: &[u8], second: &[u8]) -> Option<Micros> {
        let at = match text {
            [_, _, _, _, b'-', _, _, b'-', ..] => self.iso(text),
            [_, _, b'/', ..] => self.combined(text),
            _ => return number(text),
        }?;
        let had_millis = second.len() < text.len();
        let begins = if had_millis { at - at % SECOND } else { at };
        self.second = (second.to_vec(), had_millis, begins);
        Some(at)
    }

    /// `2026-02-09T10:11:12.345+01:00`, with a space in the place of T, or without a zone.
    fn iso(&mut self, text: &[u8]) -> Option<Micros> {
        let (day, rest) = text.split_at_checked(10)?;
        let begins =
            self.day(day, |day| days(digits(&day[..4])?, digits(&day[5..7])?, digits(&day[8..])?))?;
        let (separator, rest) = rest.split_first()?;
        if !b"Tt ".contains(separator) {
            return None;
        }
        let (clock, rest) = rest.split_at_checked(8)?;
        let seconds = begins + clock_time(clock)?;
        let (fraction, zone) = match rest.split_first() {
            Some((b'.' | b',', rest)) => {
                let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
                (fraction(&rest[..end])?, &rest[end..])
            }
            _ => (0, rest),
        };
        self.at(seconds, zone).and_then(|at| at.checked_add(fraction))
    }

    /// `09/Feb/2026:10:11:12 +0100`.
    fn combined(&mut self, text: &[u8]) -> Option<Micros> {
        const MONTHS: [&[u8; 3]; 12] = [
            b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
            b"Dec",
        ];
        let (day, rest) = text.split_at_checked(11)?;
        let begins = self.day(day, |day| {
            let (_, month) = MONTHS.iter().zip(1..).find(|(month, _)| ***month == day[3..6])?;
            (day[6] == b'/').then_some(())?;
            days(digits(&day[7..])?, month, digits(&day[..2])?)
        })?;
        let (clock, zone) = rest.strip_prefix(b":")?.split_at_checked(8)?;
        self.at(begins + clock_time(clock)?, zone)
    }

    /// The first moment of a day.
    fn day(&mut self, text: &[u8], read: impl FnOnce(&[u8]) -> Option<i64>) -> Option<i64> {
        if self.last.0 != text {
            self.last = (text.to_vec(), read(text)? * DAY);
        }
        Some(self.last.1)
    }

    /// So many seconds after 1970 by the clock of a zone: `Z`, `+01:00`, `+0100`, `+01`, or the zone
    /// that was named.
    fn at(&self, seconds: i64, zone: &[u8]) -> Option<Micros> {
        let zone = zone.trim_ascii();
        let offset = match zone {
            b"Z" | b"z" | b"UTC" | b"GMT" => 0,
            [] => self.offset(seconds)?,
            [sign @ (b'+' | b'-'), hours @ ..] => {
                let (hours, minutes) = match hours {
                    [a, b] => ([*a, *b], [b'0'; 2]),
                    [a, b, b':', c, d] | [a, b, c, d] => ([*a, *b], [*c, *d]),
                    _ => return None,
                };
                let offset = digits(&hours)? * 3600 + digits(&minutes)? * 60;
                if *sign == b'-' { -offset } else { offset }
            }
            _ => return None,
        };
        Micros::try_from(seconds - offset).ok()?.checked_mul(SECOND)
    }

    /// How far the named zone is from UTC then. What happens twice, when clocks are put back, is
    /// taken for the first time; what they skip, when they are put forward, goes by the clock before.
    fn offset(&self, seconds: i64) -> Option<i64> {
        let local = DateTime::default().with().year(1970).build().ok()?;
        let local = local.checked_add(jiff::SignedDuration::from_secs(seconds)).ok()?;
        let there = self.zone.to_ambiguous_zoned(local).compatible().ok()?;
        Some(seconds - there.timestamp().as_second())
    }
}

/// Seconds since 1970 with a fraction, or a number large enough to be something smaller.
fn number(text: &[u8]) -> Option<Micros> {
    let dot = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let whole: u64 = str::from_utf8(&text[..dot]).ok()?.parse().ok()?;
    let fraction = text.get(dot + 1..).map_or(Some(0), fraction)?;
    // 10^11 seconds are the year 5138, as many milliseconds 1973.
    match whole {
        0..100_000_000_000 => whole.checked_mul(SECOND)?.checked_add(fraction),
        100_000_000_000..100_000_000_000_000 => Some(whole * 1000 + fraction / 1000),
        100_000_000_000_000..100_000_000_000_000_000 => Some(whole),
        _ => Some(whole / 1000),
    }
}

/// Digits behind a point, as microseconds.
fn fraction(text: &[u8]) -> Option<Micros> {
    let mut micros = 0;
    for place in 0..6 {
        let digit = match text.get(place) {
            Some(digit) if digit.is_ascii_digit() => u64::from(digit - b'0'),
            Some(_) => return None,
            None => 0,
        };
        micros = micros * 10 + digit;
    }
    text.iter().all(u8::is_ascii_digit).then_some(micros)
}

/// `10:11:12`; a leap second is the second after.
fn clock_time(text: &[u8]) -> Option<i64> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = text else { return None };
    let (hours, minutes, seconds) =
        (digits(&[*h1, *h2])?, digits(&[*m1, *m2])?, digits(&[*s1, *s2])?);
    (hours < 24 && minutes < 60 && seconds <= 60).then_some(hours * 3600 + minutes * 60 + seconds)
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0'))
    })
}

/// Days from 1970 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let date = jiff::civil::Date::new(year as i16, month as i8, day as i8).ok()?;
    let epoch = jiff::civil::date(1970, 1, 1);
    date.since((jiff::Unit::Day, epoch)).ok().map(|span| i64::from(span.get_days()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, zone: &str) -> Option<Micros> {
        Moments::new(TimeZone::get(zone).unwrap()).read(text.as_bytes())
    }

    #[test]
    fn a_moment_is_the_same_however_it_is_written() {
        for text in [
            "2024-02-08T22:50:12.345Z",
            "2024-02-08 22:50:12,345Z",
            "2024-02-08T23:50:12.345+01:00",
            "2024-02-08T23:50:12.345000+0100",
            "2024-02-08T17:20:12.345999999-05:30",
            "2024-02-08t22:50:12.345z",
            "2024-02-08T22:50:12.345",
            "2024-02-08T23:50:12.345 +01",
            "1707432612.345",
            "1707432612345",
            "1707432612345000",
            "1707432612345000000",
        ] {
            let read = read(text, "UTC").map(|at| at / 1000);
            assert_eq!(read, Some(1_707_432_612_345), "{text}");
        }
        for text in ["08/Feb/2024:22:50:12 +0000", "09/Feb/2024:04:20:12 +0530"] {
            assert_eq!(read(text, "UTC"), Some(1_707_432_612_000_000), "{text}");
        }
    }

    #[test]
    fn a_time_without_a_zone_is_in_the_one_that_was_named() {
        let cases = [
            ("2024-02-08 23:50:12", 1_707_432_612),
            ("2024-07-08 00:00:00", 1_720_389_600),
            // What the clocks skip is counted on; what they show twice is the first.
            ("2024-03-31 02:30:00", 1_711_848_600),
            ("2024-10-27 02:30:00", 1_729_989_000),
        ];
        for (text, seconds) in cases {
            assert_eq!(read(text, "Europe/Berlin"), Some(seconds * SECOND), "{text}");
        }
    }

    #[test]
    fn days_follow_each_other() {
        let mut moments = Moments::new(TimeZone::UTC);
        let mut at = |text: &str| moments.read(text.as_bytes()).unwrap() / SECOND;
        let last = at("2023-12-31T23:59:59Z");
        assert_eq!(at("2024-01-01T00:00:00Z"), last + 1);
        assert_eq!(at("01/Jan/2024:00:00:01 +0000"), last + 2);
        assert_eq!(at("2023-12-31T23:59:60Z"), last + 1, "a leap second");
        let leap = at("28/Feb/2024:12:00:00 +0000");
        assert_eq!(at("01/Mar/2024:12:00:00 +0000"), leap + 2 * 86_400);
    }

    #[test]
    fn what_was_read_before_changes_nothing() {
        let mut moments = Moments::new(TimeZone::get("Europe/Berlin").unwrap());
        let texts = [
            "2024-02-08T22:50:12.345Z",
            "2024-02-08T22:50:12.999Z",
            "2024-02-08T22:50:12",
            "2024-02-08T22:50:12.345Z",
            "2024-02-08T22:50:12.3x5Z",
            "2024-02-08T22:50:12.345",
            "2024-02-08T22:50:12.345",
            "1707432612.345Z",
            "1707432612.345",
        ];
        for text in texts.iter().chain(texts.iter().rev()) {
            assert_eq!(moments.read(text.as_bytes()), read(text, "Europe/Berlin"), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "-",
            "yesterday",
            "2024-02-30T00:00:00Z",
            "2024-02-08",
            "2024-02-08T25:00:00Z",
            "2024-02-08T22:50:12.34x5Z",
            "2024-02-08T22:50:12 CET",
            "1969-12-31T23:59:59Z",
            "08/Foo/2024:22:50:12 +0000",
            "08/Feb/2024",
            "-5",
            "17074326x2",
            "1707432612.3x5",
        ] {
            assert_eq!(read(text, "UTC"), None, "{text}");
        }
    }
}
