//! The same bursty traffic through every algorithm that has a rate, one row each.

use crate::plot::{Plot, legend};
use crate::svg::{Anchor, Svg};
use crate::traffic::{Outcome, burst, drive, seconds};
use sluice::clock::{Micros, SECOND};
use sluice::limit::{Quota, QuotaError, Rate};

const MS: Micros = SECOND / 1000;
const RATE: Rate = Rate { count: 10, window: 10 * SECOND };
const ROW: f64 = 62.0;
const TOP: f64 = 84.0;

pub(crate) fn draw() -> Result<Svg, QuotaError> {
    let rows = [
        ("token_bucket", "burst 10", Quota::token_bucket(RATE, None)?),
        ("gcra", "burst 1", Quota::gcra(RATE, None)?),
        ("fixed_window", "windows of 10 s", Quota::fixed_window(RATE)?),
        ("sliding_window", "two counters", Quota::sliding_window(RATE)?),
        ("sliding_log", "exact", Quota::sliding_log(RATE)?),
        ("leaky_bucket", "queue 5", Quota::leaky_bucket(RATE, 5, 10 * SECOND)?),
    ];
    let mut svg =
        Svg::new(960, 582, "The same requests through six algorithms, each with rate 10/10s");
    let items = [
        ("grey tick", "arrives"),
        ("blue tick", "goes to the backend"),
        ("red tick", "rejected"),
        ("amber tick", "waits for its turn"),
    ];
    legend(&mut svg, (24.0, 60.0), &items);
    let height = ROW * (rows.len() + 1) as f64;
    let plot = Plot { left: 150.0, top: TOP, width: 680.0, height, x: 0.0..=40.0, y: 1.0 };
    plot.x_axis(&mut svg, 5.0, "seconds; windows begin at 0, 10, 20 and 30");
    let arrivals = arrivals();
    label(&mut svg, TOP, "requests", "what is asked");
    let ticks: Vec<_> = arrivals.iter().map(|at| tick(&plot, *at, TOP, -18.0)).collect();
    svg.lines("grey tick", &ticks);
    let count = format!("{} arrive", arrivals.len());
    svg.text("what", (848.0, TOP + ROW / 2.0 - 4.0), Anchor::Start, &count);
    for (index, (name, what, quota)) in rows.iter().enumerate() {
        let top = TOP + ROW * (index + 1) as f64;
        svg.line("grid", (24.0, top), (936.0, top));
        label(&mut svg, top, name, what);
        row(&mut svg, &plot, top, &drive(quota, &arrivals), quota.is_queue());
    }
    Ok(svg)
}

/// A trickle, a burst on either side of a boundary, a pause, and a stream above the rate.
fn arrivals() -> Vec<Micros> {
    let trickle = burst(SECOND, 4, 600 * MS);
    let before = burst(7800 * MS, 12, 150 * MS);
    let after = burst(10_300 * MS, 12, 150 * MS);
    let stream = burst(22 * SECOND, 18, 700 * MS);
    trickle.chain(before).chain(after).chain(stream).collect()
}

fn row(svg: &mut Svg, plot: &Plot, top: f64, outcomes: &[Outcome], queue: bool) {
    // Between what goes and what is rejected, room for lines from arrival to departure.
    let (middle, between) = (top + ROW / 2.0 + 2.0, if queue { 12.0 } else { 0.0 });
    let (mut gone, mut rejected, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome.leaves {
            None => rejected.push(tick(plot, outcome.at, top + between, 12.0)),
            Some(leaves) => {
                gone.push(tick(plot, leaves, top, -18.0));
                if leaves > outcome.at {
                    let from = (plot.x(seconds(outcome.at)), middle + between);
                    waits.push([from, (plot.x(seconds(leaves)), middle)]);
                }
            }
        }
    }
    svg.lines("amber thin", &waits);
    svg.lines("blue tick", &gone);
    svg.lines("red tick", &rejected);
    tally(svg, top, &format!("{} pass", gone.len()), &format!("{} rejected", rejected.len()));
}

/// Up from the row's middle for what passes, down for what does not.
fn tick(plot: &Plot, at: Micros, top: f64, length: f64) -> [(f64, f64); 2] {
    let x = plot.x(seconds(at));
    let from = top + ROW / 2.0 + 2.0 + length.signum() * 2.0;
    [(x, from), (x, from + length)]
}

fn label(svg: &mut Svg, top: f64, name: &str, what: &str) {
    svg.text("name", (24.0, top + ROW / 2.0 - 1.0), Anchor::Start, name);
    svg.text("what", (24.0, top + ROW / 2.0 + 16.0), Anchor::Start, what);
}

fn tally(svg: &mut Svg, top: f64, passed: &str, rejected: &str) {
    svg.text("what ink-blue", (848.0, top + ROW / 2.0 - 4.0), Anchor::Start, passed);
    svg.text("what ink-red", (848.0, top + ROW / 2.0 + 14.0), Anchor::Start, rejected);
}
