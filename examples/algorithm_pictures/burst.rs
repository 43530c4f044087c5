//! One burst through a token bucket and through a leaky bucket of the same size.

use crate::plot::{Plot, legend};
use crate::svg::{Anchor, Svg};
use crate::traffic::{burst, drive, seconds};
use sluice::clock::{Micros, SECOND};
use sluice::limit::{Quota, QuotaError, Rate};

const RATE: Rate = Rate { count: 10, window: SECOND };
const SIZE: u32 = 20;

pub(crate) fn draw() -> Result<Svg, QuotaError> {
    let token = Quota::token_bucket(RATE, Some(SIZE))?;
    let leaky = Quota::leaky_bucket(RATE, SIZE - 1, 10 * SECOND)?;
    let arrivals: Vec<_> = burst(SECOND / 2, 40, SECOND / 100).collect();
    let leaves = |quota| -> Vec<Micros> {
        drive(quota, &arrivals).iter().filter_map(|outcome| outcome.leaves).collect()
    };
    let (passed, left) = (leaves(&token), leaves(&leaky));
    let mut svg = Svg::new(
        960,
        430,
        "One burst of 40 requests through a token bucket and a leaky bucket, 10/second",
    );
    let items = [
        ("grey curve dashed", "requests that have arrived"),
        ("blue curve", "left a token_bucket, burst 20"),
        ("amber curve", "left a leaky_bucket, queue 19"),
    ];
    legend(&mut svg, (24.0, 60.0), &items);
    let plot = Plot { left: 70.0, top: 104.0, width: 860.0, height: 264.0, x: 0.0..=4.0, y: 44.0 };
    plot.x_axis(&mut svg, 0.5, "seconds");
    plot.y_axis(&mut svg, 10.0, "requests so far");
    let (blue, amber) = (plot.staircase(&so_far(&passed)), plot.staircase(&so_far(&left)));
    svg.between("area amber", &blue, &amber);
    svg.curve("grey curve dashed", &plot.staircase(&so_far(&arrivals)));
    svg.curve("blue curve", &blue);
    svg.curve("amber curve", &amber);
    let rejected = arrivals.len() - passed.len();
    let at = |x, y| plot.at((x, y));
    svg.text("what", at(1.0, 36.2), Anchor::Start, "all 40 have arrived");
    svg.line("red tick", at(0.96, passed.len() as f64 + 0.6), at(0.96, 39.4));
    let text = format!("both reject {rejected}");
    svg.text("what ink-red", at(1.0, 31.2), Anchor::Start, &text);
    let text = format!("token bucket: {} go as they come", passed.len());
    svg.text("what ink-blue", at(1.0, 25.2), Anchor::Start, &text);
    svg.text("what ink-amber", at(1.0, 16.5), Anchor::Start, "waiting for their turn");
    let text = format!("leaky bucket: the same {}, one every 100 ms", left.len());
    svg.text("what ink-amber", at(1.9, 7.0), Anchor::Start, &text);
    Ok(svg)
}

/// How many there were by each moment.
fn so_far(moments: &[Micros]) -> Vec<(f64, u32)> {
    let counts = moments.iter().zip(1..).map(|(at, n)| (seconds(*at), n));
    std::iter::once((0.0, 0)).chain(counts).collect()
}
