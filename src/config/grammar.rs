//! The small languages inside scalars: durations, sizes, shares, rates. Each has a function that
//! reads it, and a pattern that an editor can check.

use super::model::WrittenRate;
use super::section::{Bare, Grammar};
use crate::clock::{Micros, SECOND, micros};
use crate::limit::{Period, Rate};
use std::time::Duration;

const DAY: Micros = 86_400 * SECOND;

pub(super) static DURATION: Grammar = Grammar::new(
    r"[0-9_]*[0-9][0-9_]*\s*(ms|s|m|min|h|d)",
    "a duration looks like 250ms, 30s, 5m, 2h or 7d",
);

/// A duration that is not zero.
pub(super) static SOME_TIME: Grammar = Grammar::new(
    r"[0-9_]*[1-9][0-9_]*\s*(ms|s|m|min|h|d)",
    "a duration, and not zero: 250ms, 30s, 5m, 2h or 7d",
);

/// `250ms`, `30s`, `5m`, `2h`, `7d`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let help = DURATION.help;
    let (number, unit) = split_number(text).ok_or(help)?;
    let per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(help.into()),
    };
    let millis = number.checked_mul(per_unit).filter(|ms| *ms <= 3_660 * 86_400_000);
    millis.map(Duration::from_millis).ok_or_else(|| "at most ten years".into())
}

pub(super) static SIZE: Grammar = Grammar::new(
    r"[0-9_]*[0-9][0-9_]*\s*(B|KiB|MiB|GiB|TiB)?",
    "a size looks like 512, 64KiB, 10MiB or 1GiB",
)
.bare(Bare::Whole);

/// `512`, `64KiB`, `10MiB`, `1GiB`: bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let help = SIZE.help;
    let (number, unit) = split_number(text).ok_or(help)?;
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        "KB" | "MB" | "GB" | "kB" => {
            return Err(format!("write {number}{}iB", &unit[..1].to_uppercase()));
        }
        _ => return Err(help.into()),
    };
    number
        .checked_shl(shift)
        .filter(|n| n >> shift == number)
        .ok_or_else(|| "that is too large".into())
}

pub(super) static SHARE: Grammar =
    Grammar::new(r"0*(100(\.0*)?|[0-9]{1,2}(\.[0-9]*)?|\.[0-9]+)\s*%", "a share looks like 20%");

/// `20%`, as a share of one.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let help = SHARE.help;
    let number = text.strip_suffix('%').ok_or(help)?.trim_end();
    let plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value: f64 = number.parse().ok().filter(|_| plain).ok_or(help)?;
    if (0.0..=100.0).contains(&value) {
        Ok(value / 100.0)
    } else {
        Err("between 0% and 100%".into())
    }
}

/// A rate of nothing is never right.
pub(super) static RATE: Grammar = Grammar::new(
    r"\s*[0-9_]*[1-9][0-9_]*\s*/\s*(s|sec|second|m|min|minute|h|hour|d|day|w|week|month|[0-9_]*[1-9][0-9_]*\s*(ms|s|m|min|h|d))\s*",
    "a rate looks like 100/minute, 5/10m or 10000/month",
);

/// A rate whose window a calendar has.
pub(super) static CALENDAR_RATE: Grammar = Grammar::new(
    r"\s*[0-9_]+\s*/\s*(d|day|w|week|month)\s*",
    "only days, weeks and months begin somewhere",
);

/// `100/minute`, `5000/s`, `100/30s`, `10000/month`.
pub(super) fn rate(text: &str) -> Result<WrittenRate, String> {
    let help = RATE.help;
    let (count, window) = text.split_once('/').ok_or(help)?;
    let (count, "") = split_number(count.trim()).ok_or(help)? else { return Err(help.into()) };
    let count = u32::try_from(count).map_err(|_| format!("at most {} per window", u32::MAX))?;
    let (window, period) = self::window(window.trim()).ok_or(help)?;
    Ok(WrittenRate { rate: Rate { count, window }, period })
}

/// A month is 30 days, unless a fixed window takes it from the calendar.
fn window(text: &str) -> Option<(Micros, Option<Period>)> {
    Some(match text {
        "s" | "sec" | "second" => (SECOND, None),
        "m" | "min" | "minute" => (60 * SECOND, None),
        "h" | "hour" => (3600 * SECOND, None),
        "d" | "day" => (DAY, Some(Period::Day)),
        "w" | "week" => (7 * DAY, Some(Period::Week)),
        "month" => (30 * DAY, Some(Period::Month)),
        other => (micros(duration(other).ok()?), None),
    })
}

/// Leading digits, and what follows them.
fn split_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'_').count();
    let number = text[..digits].replace('_', "").parse().ok()?;
    Some((number, text[digits..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        for bad in ["", "5", "ms", "-1s", "1.5s", "5 years", "99999999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("10MiB"), Ok(10_485_760));
        assert_eq!(size("64KB").unwrap_err(), "write 64KiB");
        for bad in ["", "KiB", "1 parsec", "99999999999999TiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!(share("20%"), Ok(0.2));
        assert_eq!(share("0.5%"), Ok(0.005));
        for bad in ["20", "101%", "-1%", "-0%", "NaN%", "1e1%", "+5%", "%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates() {
        let cases = [
            ("100/minute", 100, 60 * SECOND),
            ("5000/s", 5000, SECOND),
            ("100/30s", 100, 30 * SECOND),
            ("5/10m", 5, 600 * SECOND),
            ("1_000_000/month", 1_000_000, 30 * DAY),
            ("3/w", 3, 7 * DAY),
            ("2 / h", 2, 3600 * SECOND),
        ];
        for (text, count, window) in cases {
            assert_eq!(rate(text).map(|r| r.rate), Ok(Rate { count, window }), "{text}");
        }
        for bad in ["100", "100/", "/minute", "-1/s", "1.5/s", "100/fortnight", "9999999999/s"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
