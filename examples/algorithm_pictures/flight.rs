//! Concurrency: requests in flight while the backend is slow for a while.

use crate::plot::{Plot, legend};
use crate::svg::{Anchor, Svg};
use crate::traffic::{burst, seconds};
use sluice::clock::{Micros, SECOND};
use sluice::limit::{Held, Quota, QuotaError, Seen};
use std::collections::VecDeque;

const MOST: u32 = 8;
const SPAN: Micros = 20 * SECOND;

/// How long a request takes that begins at this moment.
fn takes(at: Micros) -> Micros {
    if (6 * SECOND..12 * SECOND).contains(&at) { 2 * SECOND } else { SECOND * 2 / 5 }
}

struct Flight {
    /// Requests in flight after each arrival and each end.
    levels: Vec<(f64, u32)>,
    rejects: Vec<Micros>,
}

impl Flight {
    /// Of several changes at one moment, the last is what it came to.
    fn note(&mut self, at: Micros, level: u32) {
        let at = seconds(at);
        self.levels.pop_if(|(before, _)| *before >= at);
        self.levels.push((at, level));
    }
}

pub(crate) fn draw() -> Result<Svg, QuotaError> {
    let arrivals: Vec<_> = burst(SECOND / 2, 196, SECOND / 10).collect();
    let limited = fly(&Quota::concurrency(MOST)?, &arrivals);
    let unlimited = fly(&Quota::concurrency(1000)?, &arrivals);
    let mut svg = Svg::new(
        960,
        430,
        "concurrency: 8, ten requests a second, a backend that is slow for six seconds",
    );
    let items = [
        ("blue curve", "in flight"),
        ("grey curve dashed", "without the limit"),
        ("red tick", "rejected"),
    ];
    legend(&mut svg, (24.0, 60.0), &items);
    let plot = Plot {
        left: 70.0,
        top: 104.0,
        width: 860.0,
        height: 264.0,
        x: 0.0..=seconds(SPAN),
        y: 24.0,
    };
    svg.between(
        "area grey",
        &[plot.at((6.0, 0.0)), plot.at((6.0, 24.0))],
        &[plot.at((12.0, 0.0)), plot.at((12.0, 24.0))],
    );
    plot.x_axis(&mut svg, 2.0, "seconds");
    plot.y_axis(&mut svg, 4.0, "requests at the same time");
    plot.mark(&mut svg, MOST.into(), "the limit");
    svg.text("what", plot.at((6.1, 22.5)), Anchor::Start, "answers take 2 s instead of 0.4 s");
    svg.curve("grey curve dashed", &plot.staircase(&unlimited.levels));
    let curve = plot.staircase(&limited.levels);
    let floor = [plot.at((0.0, 0.0)), plot.at((seconds(SPAN), 0.0))];
    svg.between("area blue", &curve, &floor);
    svg.curve("blue curve", &curve);
    let y = plot.y(f64::from(MOST));
    let tick = |at: &Micros| [(plot.x(seconds(*at)), y - 6.0), (plot.x(seconds(*at)), y - 18.0)];
    svg.lines("red tick", &limited.rejects.iter().map(tick).collect::<Vec<_>>());
    let text = format!("{} rejected", limited.rejects.len());
    svg.text("what ink-red", plot.at((8.1, 10.4)), Anchor::Start, &text);
    Ok(svg)
}

/// Requests come, take a place, and give it back when they end.
fn fly(quota: &Quota, arrivals: &[Micros]) -> Flight {
    let (mut held, mut ends) = (Held::default(), VecDeque::new());
    let mut flight = Flight { levels: vec![(0.0, 0)], rejects: Vec::new() };
    let state = |held: &Held| Seen::from(held).as_state(quota.kind());
    for &at in arrivals {
        while let Some((end, admitted)) = ends.pop_front_if(|(end, _)| *end <= at) {
            if let Some(next) = quota.give_back(state(&held), &admitted, end) {
                held = Held::State(next);
            }
            flight.note(end, state(&held).used);
        }
        let verdict = quota.ask(&mut held, at, 1);
        if verdict.allowed {
            ends.push_back((at + takes(at), verdict));
            ends.make_contiguous().sort_unstable_by_key(|(end, _)| *end);
            flight.note(at, state(&held).used);
        } else {
            flight.rejects.push(at);
        }
    }
    flight
}
