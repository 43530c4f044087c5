//! Where fixed windows begin and end: at multiples of W since 1970, or at calendar days, weeks
//! and months in a time zone.
//!
//! Calendar boundaries are worked out once, when the configuration is read, from 1970 to 2100; a
//! look-up is a guess and a step or two, so the algorithms stay pure and know no time zones. Days
//! of 23 and 25 hours are just boundaries like others.

use crate::clock::{Micros, SECOND};
use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, ToSpan};
use std::ops::Range;
use std::sync::Arc;

/// How windows follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Windows {
    /// One after the other, each this long.
    Every(Micros),
    /// As the calendar has it.
    Calendar(Arc<Calendar>),
}

impl Windows {
    /// The window that a moment is in.
    pub fn at(&self, moment: Micros) -> Range<Micros> {
        match self {
            Self::Every(length) => {
                let start = moment - moment % length;
                start..start + length
            }
            Self::Calendar(calendar) => calendar.at(moment),
        }
    }
}

/// A calendar's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// From midnight.
    Day,
    /// From Monday.
    Week,
    /// From the first.
    Month,
}

impl Period {
    fn span(self) -> Span {
        match self {
            Self::Day => 1.day(),
            Self::Week => 1.week(),
            Self::Month => 1.month(),
        }
    }

    /// About how long it is.
    fn typical(self) -> Micros {
        match self {
            Self::Day => 86_400 * SECOND,
            Self::Week => 7 * 86_400 * SECOND,
            Self::Month => 2_629_746 * SECOND,
        }
    }
}

/// The boundaries of calendar days, weeks or months in one time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// Ascending; each is the end of one window and the beginning of the next.
    boundaries: Box<[Micros]>,
    typical: Micros,
}

impl Calendar {
    /// Works the boundaries out; `None` if nobody knows the zone.
    pub fn new(period: Period, time_zone: &str) -> Option<Self> {
        let zone = TimeZone::get(time_zone).ok()?;
        let first = match period {
            Period::Day | Period::Month => Date::constant(1970, 1, 1),
            Period::Week => Date::constant(1970, 1, 1).nth_weekday(1, Weekday::Monday).ok()?,
        };
        let days = first.series(period.span()).take_while(|day| day.year() < 2101);
        let midnight = |day: Date| {
            // A midnight that a clock change skips is the first moment after it.
            let moment = day.to_zoned(zone.clone()).ok()?.timestamp().as_microsecond();
            Micros::try_from(moment).ok()
        };
        let boundaries = days.filter_map(midnight).collect();
        Some(Self { boundaries, typical: period.typical() })
    }

    fn at(&self, moment: Micros) -> Range<Micros> {
        let all = &self.boundaries;
        let Some((&first, &last)) = all.first().zip(all.last()) else {
            return moment..moment + self.typical;
        };
        if moment < first {
            return 0..first;
        }
        if moment >= last {
            let start = moment - (moment - last) % self.typical;
            return start..start + self.typical;
        }
        let guess = ((moment - first) / self.typical) as usize;
        let mut index = guess.min(all.len() - 2);
        while all[index] > moment {
            index -= 1;
        }
        while all[index + 1] <= moment {
            index += 1;
        }
        all[index]..all[index + 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn micros(text: &str) -> Micros {
        text.parse::<Timestamp>().unwrap().as_microsecond().try_into().unwrap()
    }

    fn window(period: Period, zone: &str, at: &str) -> (Micros, Micros) {
        let window = Calendar::new(period, zone).unwrap().at(micros(at));
        (window.start, window.end)
    }

    #[test]
    fn days_are_those_of_the_time_zone_across_daylight_saving() {
        // Berlin: 23 hours on 2024-03-31, 25 on 2024-10-27.
        let (start, end) = window(Period::Day, "Europe/Berlin", "2024-03-31T12:00:00Z");
        assert_eq!((start, end - start), (micros("2024-03-30T23:00:00Z"), 23 * 3600 * SECOND));
        let (start, end) = window(Period::Day, "Europe/Berlin", "2024-10-27T22:59:59Z");
        assert_eq!((start, end - start), (micros("2024-10-26T22:00:00Z"), 25 * 3600 * SECOND));
        let (start, end) = window(Period::Day, "UTC", "2024-02-08T22:50:00Z");
        assert_eq!((start, end), (micros("2024-02-08T00:00:00Z"), micros("2024-02-09T00:00:00Z")));
    }

    #[test]
    fn weeks_begin_on_monday_and_months_on_the_first() {
        let (start, end) = window(Period::Week, "UTC", "2024-02-08T22:50:00Z");
        assert_eq!((start, end), (micros("2024-02-05T00:00:00Z"), micros("2024-02-12T00:00:00Z")));
        let (start, end) = window(Period::Month, "America/New_York", "2024-02-01T04:59:59Z");
        assert_eq!((start, end), (micros("2024-01-01T05:00:00Z"), micros("2024-02-01T05:00:00Z")));
    }

    #[test]
    fn every_moment_is_in_one_window() {
        for (period, zone) in [
            (Period::Day, "America/Sao_Paulo"), // had its clock change at midnight
            (Period::Week, "Australia/Lord_Howe"),
            (Period::Month, "Pacific/Apia"), // skipped a day
        ] {
            let calendar = Calendar::new(period, zone).unwrap();
            let mut moment = 0;
            while moment < micros("2105-01-01T00:00:00Z") {
                let window = calendar.at(moment);
                assert!(window.contains(&moment), "{zone} {moment} {window:?}");
                let next = calendar.at(window.end);
                assert!(next.start == window.end || moment < 40 * 86_400 * SECOND, "{next:?}");
                moment = window.end;
            }
        }
    }

    #[test]
    fn an_unknown_zone_is_none() {
        assert!(Calendar::new(Period::Day, "Europe/Atlantis").is_none());
    }
}
