//! The sliding counter's estimate against the truth: requests evenly spread, and bunched.

use crate::plot::{Plot, legend};
use crate::svg::{Anchor, Svg};
use crate::traffic::{Believed, believe, burst, seconds};
use sluice::clock::{Micros, SECOND};
use sluice::limit::{QuotaError, Rate};

const MINUTE: Micros = 60 * SECOND;
const RATE: Rate = Rate { count: 100, window: MINUTE };
const SPAN: Micros = 300 * SECOND;
const STEP: Micros = 2 * SECOND;

pub(crate) fn draw() -> Result<Svg, QuotaError> {
    let mut svg = Svg::new(
        960,
        430,
        "What sliding_window believes was admitted in the last minute, and what was",
    );
    let items = [
        ("amber curve", "estimate"),
        ("blue curve dashed", "truth"),
        ("red swatch", "estimate too low"),
        ("green swatch", "estimate too high"),
    ];
    legend(&mut svg, (24.0, 60.0), &items);
    let even: Vec<_> = burst(0, 450, SECOND * 2 / 3).collect();
    panel(&mut svg, 70.0, "evenly spread: one every ⅔ s", &even)?;
    let late = burst(50 * SECOND, 80, SECOND / 10);
    let early = burst(182 * SECOND, 80, SECOND / 10);
    let bunched: Vec<_> = late.chain(early).collect();
    panel(&mut svg, 530.0, "bunched: 80 late in a window, 80 early in one", &bunched)?;
    Ok(svg)
}

fn panel(svg: &mut Svg, left: f64, what: &str, arrivals: &[Micros]) -> Result<(), QuotaError> {
    let plot =
        Plot { left, top: 132.0, width: 400.0, height: 236.0, x: 0.0..=seconds(SPAN), y: 120.0 };
    svg.text("name", (left, 92.0), Anchor::Start, what);
    plot.x_axis(svg, 60.0, "seconds; a window begins every 60");
    plot.y_axis(svg, 20.0, "requests");
    plot.mark(svg, 100.0, "N");
    let moments = burst(0, SPAN / STEP + 1, STEP);
    let believed = believe(RATE, arrivals, moments)?;
    let curve = |value: &dyn Fn(&Believed) -> u32| -> Vec<(f64, f64)> {
        believed.iter().map(|b| plot.at((seconds(b.at), value(b).into()))).collect()
    };
    let (estimate, truth) = (curve(&|b| b.estimate), curve(&|b| b.truth));
    let (lower, upper) = (curve(&|b| b.estimate.min(b.truth)), curve(&|b| b.estimate.max(b.truth)));
    svg.between("area red", &lower, &truth);
    svg.between("area green", &truth, &upper);
    svg.curve("amber curve", &estimate);
    svg.curve("blue curve dashed", &truth);
    Ok(())
}
