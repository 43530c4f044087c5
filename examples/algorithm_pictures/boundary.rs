//! The boundary burst: how many were admitted in the last minute, while a caller asks without end.

use crate::plot::{Plot, legend};
use crate::svg::{Anchor, Svg};
use crate::traffic::{burst, drive, in_the_last, seconds};
use sluice::clock::{Micros, SECOND};
use sluice::limit::{Quota, QuotaError, Rate};

const MINUTE: Micros = 60 * SECOND;
const RATE: Rate = Rate { count: 100, window: MINUTE };
const FROM: Micros = 40 * SECOND;
const TO: Micros = 160 * SECOND;
const STEP: Micros = SECOND / 5;

pub(crate) fn draw() -> Result<Svg, QuotaError> {
    let rows = [
        ("red curve", Quota::fixed_window(RATE)?),
        ("amber curve", Quota::sliding_window(RATE)?),
        ("blue curve", Quota::sliding_log(RATE)?),
    ];
    let mut svg = Svg::new(
        960,
        430,
        "The boundary burst: 100/minute, and a caller who asks 50 times a second",
    );
    let items = [
        ("red curve", "fixed_window"),
        ("amber curve", "sliding_window"),
        ("blue curve", "sliding_log"),
    ];
    legend(&mut svg, (24.0, 60.0), &items);
    let plot = Plot {
        left: 70.0,
        top: 104.0,
        width: 860.0,
        height: 264.0,
        x: seconds(FROM)..=seconds(TO),
        y: 240.0,
    };
    plot.x_axis(&mut svg, 20.0, "seconds; windows begin at 60 and 120, the caller at 57");
    plot.y_axis(&mut svg, 50.0, "admitted in the last minute");
    plot.mark(&mut svg, 100.0, "N");
    plot.mark(&mut svg, 200.0, "2N");
    for boundary in [60.0, 120.0] {
        svg.line("mark", plot.at((boundary, 0.0)), plot.at((boundary, 240.0)));
    }
    let arrivals: Vec<_> = burst(57 * SECOND, 5200, SECOND / 50).collect();
    for (class, quota) in rows {
        let leaves: Vec<_> = drive(&quota, &arrivals).iter().filter_map(|o| o.leaves).collect();
        let count = |at: Micros| (seconds(at), in_the_last(MINUTE, &leaves, at) as u32);
        let counts: Vec<_> = burst(FROM, (TO - FROM) / STEP + 1, STEP).map(count).collect();
        svg.curve(class, &plot.staircase(&counts));
    }
    let note =
        |svg: &mut Svg, class: &str, at, text| svg.text(class, plot.at(at), Anchor::Start, text);
    note(&mut svg, "what ink-red", (63.0, 210.0), "2N within five seconds");
    note(&mut svg, "what ink-amber", (86.0, 116.0), "N more, spread over a window");
    note(&mut svg, "what ink-blue", (63.0, 84.0), "never more than N");
    Ok(svg)
}
