//! The pictures of docs/overload.md.

use crate::runs::{Report, Step};
use std::fmt::Write;

const STYLE: &str = "
    .ground { fill: #fff; stroke: #d0d7de }
    .title { font-size: 16px; font-weight: 600; fill: #14293d }
    .what { font-size: 12px; fill: #52616f }
    .axis { stroke: #8795a1 } .grid { stroke: #e5eaef }
    path { fill: none; stroke-width: 2.5 }
    .ours { stroke: #2268a8 } .theirs { stroke: #b0483a } .given { stroke: #b9c4ce }
    text.ours { fill: #2268a8; stroke: none } text.theirs { fill: #b0483a; stroke: none }
    text.given { fill: #75828e; stroke: none }
";

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 44.0;

/// A line, with what it is called at its end.
struct Line {
    class: &'static str,
    name: &'static str,
    points: Vec<(f64, f64)>,
}

/// A picture: what its axes are, and where they are marked.
struct Chart {
    title: &'static str,
    subtitle: &'static str,
    x: (&'static str, Vec<f64>),
    y: (&'static str, Vec<f64>),
    logarithmic: bool,
}

pub(crate) fn draw(report: &Report) -> Vec<(&'static str, String)> {
    let of = |adaptive: bool, value: fn(&Step) -> f64| {
        let steps = report.steps.iter().filter(move |step| step.adaptive == adaptive);
        steps.map(|step| (step.load, value(step))).collect::<Vec<_>>()
    };
    let lines = |value: fn(&Step) -> f64| {
        [
            Line { class: "ours", name: "adaptive", points: of(true, value) },
            Line { class: "theirs", name: "no limit", points: of(false, value) },
        ]
    };
    let by_load = |title, subtitle, y| Chart {
        title,
        subtitle,
        x: ("load, 1 is what the backend can do", vec![0.5, 1.0, 2.0, 5.0, 10.0]),
        y,
        logarithmic: true,
    };
    let percent = || ("%", vec![0.0, 25.0, 50.0, 75.0, 100.0]);
    let millis = ("ms", vec![0.0, 250.0, 500.0, 750.0, 1000.0]);
    let goodput =
        by_load("Answered within a second", "as a share of what the backend can do", percent());
    let latency = by_load(
        "How long the slowest hundredth of those who were let in waited",
        "callers give up after a second",
        millis,
    );
    let priorities = by_load(
        "Who is answered, by priority",
        "critical requests ask for 30% of the capacity",
        percent(),
    );
    let most = report.halved.iter().map(|moment| moment.places).fold(40.0, f64::max);
    let marks = (0..=4).map(|n| (most / 4.0).ceil() * f64::from(n)).collect();
    let halved = Chart {
        title: "Places, while the backend has half of its workers for ten seconds",
        subtitle: "at three times the capacity",
        x: ("seconds", vec![0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]),
        y: ("places", marks),
        logarithmic: false,
    };
    let of_halved = |value: fn(&crate::runs::Moment) -> f64| {
        report.halved.iter().map(|moment| (moment.seconds, value(moment))).collect::<Vec<_>>()
    };
    let shares = [
        Line { class: "ours", name: "critical", points: of(true, |s| s.critical * 100.0) },
        Line { class: "theirs", name: "normal", points: of(true, |s| s.normal * 100.0) },
        Line { class: "given", name: "sheddable", points: of(true, |s| s.sheddable * 100.0) },
    ];
    let places = [
        Line { class: "given", name: "workers", points: of_halved(|moment| moment.workers) },
        Line { class: "ours", name: "places", points: of_halved(|moment| moment.places) },
    ];
    vec![
        ("goodput", goodput.draw(&lines(|step| step.goodput * 100.0))),
        ("latency", latency.draw(&lines(|step| step.p99_ms))),
        ("priorities", priorities.draw(&shares)),
        ("halved", halved.draw(&places)),
    ]
}

impl Chart {
    fn draw(&self, lines: &[Line]) -> String {
        let mut body = String::new();
        for mark in &self.y.1 {
            let y = self.at_y(*mark);
            let _ = writeln!(
                body,
                r#"<line class="grid" x1="{LEFT}" x2="{:.0}" y1="{y:.1}" y2="{y:.1}"/><text class="what" x="{:.0}" y="{:.1}" text-anchor="end">{mark}</text>"#,
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0
            );
        }
        for mark in &self.x.1 {
            let x = self.at_x(*mark);
            let _ = writeln!(
                body,
                r#"<line class="axis" x1="{x:.1}" x2="{x:.1}" y1="{:.0}" y2="{:.0}"/><text class="what" x="{x:.1}" y="{:.0}" text-anchor="middle">{mark}</text>"#,
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 4.0,
                HEIGHT - BOTTOM + 18.0
            );
        }
        let mut below = Vec::new();
        for Line { class, name, points } in lines {
            let mut path = String::new();
            for (index, (x, y)) in points.iter().enumerate() {
                let command = if index == 0 { 'M' } else { 'L' };
                let _ = write!(path, "{command}{:.1} {:.1}", self.at_x(*x), self.at_y(*y));
            }
            let mut end = points.last().map_or(0.0, |(_, y)| self.at_y(*y));
            // Names do not stand on each other.
            while below.iter().any(|other: &f64| (other - end).abs() < 16.0) {
                end += 16.0;
            }
            below.push(end);
            let _ = writeln!(
                body,
                r#"<path class="{class}" d="{path}"/><text class="{class}" x="{:.0}" y="{:.1}">{name}</text>"#,
                WIDTH - RIGHT + 10.0,
                end + 4.0
            );
        }
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" font-family="ui-sans-serif, system-ui, sans-serif" font-size="14">
<style>{STYLE}</style>
<rect class="ground" x=".5" y=".5" width="{:.0}" height="{:.0}" rx="8"/>
<text class="title" x="24" y="30">{title}</text>
<text class="what" x="24" y="48">{}; {} by {}</text>
<line class="axis" x1="{LEFT}" x2="{:.0}" y1="{base:.0}" y2="{base:.0}"/>
{body}</svg>
"#,
            WIDTH - 1.0,
            HEIGHT - 1.0,
            self.subtitle,
            self.y.0,
            self.x.0,
            WIDTH - RIGHT,
            title = self.title,
            base = HEIGHT - BOTTOM,
        )
    }

    fn at_x(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.logarithmic { value.ln() } else { value };
        let (least, most) = (self.x.1[0], self.x.1[self.x.1.len() - 1]);
        let share = (scale(value) - scale(least)) / (scale(most) - scale(least));
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn at_y(&self, value: f64) -> f64 {
        let most = self.y.1[self.y.1.len() - 1];
        HEIGHT - BOTTOM - (value / most).min(1.0) * (HEIGHT - TOP - BOTTOM)
    }
}
