//! How often the sliding counter is wrong: ten million requests through `sliding_window` and
//! `sliding_log`, for several kinds of traffic and several rates.
//!
//! ```sh
//! cargo run --release --example sliding_error
//! ```
//!
//! ```text
//! trace.rs: a caller's requests ──▶ judge.rs: counter, log, and what is true ──▶ a row of the table
//! ```
//!
//! Callers do not see each other's limits, so the trace is made and judged one caller at a time;
//! the decisions are those of the whole in the order of time. There is no clock, and chance comes
//! from one seed: every run prints the same table.

mod judge;
mod trace;

use judge::{Judge, Tally};
use sluice::clock::SECOND;
use sluice::limit::{QuotaError, Rate};
use trace::{Chance, Traffic};

const RATES: [(&str, Rate); 4] = [
    ("10/second", Rate { count: 10, window: SECOND }),
    ("100/minute", Rate { count: 100, window: 60 * SECOND }),
    ("1000/minute", Rate { count: 1000, window: 60 * SECOND }),
    ("1000/hour", Rate { count: 1000, window: 3600 * SECOND }),
];

const TRAFFIC: [(&str, Traffic); 4] = [
    ("even", Traffic::Even),
    ("bursty", Traffic::Bursty),
    ("at the limit", Traffic::AtTheLimit),
    ("over the limit", Traffic::OverTheLimit),
];

const COLUMNS: [&str; 10] = [
    "traffic",
    "rate",
    "rejects",
    "log rejects",
    "differ",
    "wrongly admitted",
    "wrongly rejected",
    "of these by one",
    "most in W",
    "wrong, all counted",
];

fn main() -> Result<(), QuotaError> {
    println!("| {} |\n|{}", COLUMNS.join(" | "), " --- |".repeat(COLUMNS.len()));
    for (name, traffic) in TRAFFIC {
        for (written, rate) in RATES {
            println!("| {name} | {written} | {} |", row(&judged(traffic, rate)?, rate));
        }
    }
    Ok(())
}

fn judged(traffic: Traffic, rate: Rate) -> Result<Tally, QuotaError> {
    let mut judge = Judge::new(rate)?;
    let mut chance = Chance::new();
    let mut arrivals = Vec::new();
    for requests in traffic.callers(rate) {
        traffic.arrivals(requests, &mut chance, &mut arrivals);
        judge.caller(&arrivals);
    }
    Ok(judge.tally)
}

fn row(tally: &Tally, rate: Rate) -> String {
    let percent = |part: u64| format!("{:.3} %", part as f64 * 100.0 / tally.requests as f64);
    let most = format!("{:.2} N", f64::from(tally.most) / f64::from(rate.count));
    let cells = [
        percent(tally.rejected),
        percent(tally.log_rejected),
        percent(tally.differ),
        percent(tally.wrongly_admitted),
        percent(tally.wrongly_rejected),
        percent(tally.by_one),
        most,
        percent(tally.misread),
    ];
    cells.join(" | ")
}
