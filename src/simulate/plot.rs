//! Charts of a report, as SVG that stands in the page: colours are the page's, and every bar says
//! what it is when it is pointed at.

use super::figures::{Times, grouped, percent};
use super::html::escaped;
use super::report::{During, Limit, OverTime, USE, share};
use std::fmt::Write as _;

/// The size of a chart, in units of its own, and where in it the plot is.
const WIDTH: f64 = 1000.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 992.0;

/// Where things are in a chart of this height.
struct Chart<'c> {
    over_time: &'c OverTime,
    times: &'c Times,
    height: f64,
    /// What the top line stands for.
    top: f64,
}

const ABOVE: f64 = 10.0;
const BELOW: f64 = 24.0;

impl Chart<'_> {
    fn x(&self, index: usize) -> f64 {
        LEFT + (RIGHT - LEFT) * index as f64 / self.over_time.intervals.len().max(1) as f64
    }

    fn y(&self, value: f64) -> f64 {
        let plot = self.height - ABOVE - BELOW;
        ABOVE + plot * (1.0 - value / self.top.max(f64::MIN_POSITIVE))
    }

    /// A bar from one value to another; nothing if there is nothing to see.
    fn bar(&self, out: &mut String, class: &str, index: usize, from: f64, to: f64) {
        if to > from {
            let (x, y, width) = (self.x(index), self.y(to), self.x(index + 1) - self.x(index));
            let width = if width > 3.0 { width - 0.6 } else { width };
            // What is there is seen, however small it is.
            let height = (self.y(from) - y).max(0.8);
            let y = y.min(self.y(from) - height);
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
                 height=\"{height:.1}\"/>"
            );
        }
    }

    /// A line of steps.
    fn steps(&self, out: &mut String, class: &str, value: impl Fn(&During) -> f64) {
        let mut path = String::new();
        for (index, during) in self.over_time.intervals.iter().enumerate() {
            let y = self.y(value(during));
            let (from, to) = (self.x(index), self.x(index + 1));
            let to_it = if index == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{to_it}{from:.1} {y:.1}H{to:.1}");
        }
        let _ = write!(out, "<path class=\"{class}\" d=\"{path}\"/>");
    }

    /// Lines across, and what they stand for.
    fn scale(&self, out: &mut String, step: f64, written: impl Fn(f64) -> String) {
        let mut value = 0.0;
        while value <= self.top * 1.0001 {
            let (y, text) = (self.y(value), written(value));
            let _ = write!(
                out,
                "<path class=\"line\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 8.0,
                y + 4.0
            );
            value += step;
        }
    }

    /// When it was.
    fn ticks(&self, out: &mut String) {
        let OverTime { seconds, intervals } = self.over_time;
        let y = self.height - 6.0;
        let (every, step) = tick_step(*seconds, intervals.len());
        let on_the_clock =
            |during: &During| self.times.of_day(during.at.0).is_multiple_of(step.min(86_400));
        let first = intervals.iter().position(on_the_clock).unwrap_or(0);
        for (index, during) in intervals.iter().enumerate().skip(first).step_by(every) {
            let x = self.x(index);
            let text = self.times.tick(during.at.0, step);
            // A text in the middle of its tick, but not over the edge.
            let anchor = if x > RIGHT - 40.0 { "end" } else { "middle" };
            let _ = write!(
                out,
                "<path class=\"tick\" d=\"M{x:.1} {:.1}v5\"/>\
                 <text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>",
                self.height - BELOW
            );
        }
    }

    /// What each interval is when it is pointed at.
    fn hints(&self, out: &mut String) {
        for (index, during) in self.over_time.intervals.iter().enumerate() {
            let (x, width) = (self.x(index), self.x(index + 1) - self.x(index));
            let at = self.times.interval(during.at.0, self.over_time.seconds);
            let before = during.baseline.map(|n| format!(", {} before", grouped(n)));
            let _ = write!(
                out,
                "<rect class=\"hint\" x=\"{x:.1}\" y=\"{ABOVE}\" width=\"{width:.1}\" \
                 height=\"{:.1}\"><title>{at}: {} of {} rejected ({}){}</title></rect>",
                self.height - ABOVE - BELOW,
                grouped(during.rejected),
                grouped(during.requests),
                percent(share(during.rejected, during.requests)),
                before.unwrap_or_default()
            );
        }
    }

    fn svg(&self, label: &str, inside: &str) -> String {
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">{inside}</svg>",
            self.height,
            escaped(label)
        )
    }
}

/// How many intervals, and seconds, there are from one tick to the next: not more than ten of them.
fn tick_step(seconds: u64, intervals: usize) -> (usize, u64) {
    const STEPS: [u64; 18] = [
        1, 5, 10, 15, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
        172_800, 604_800,
    ];
    let whole = seconds * intervals as u64;
    let fits = |step: &u64| step.is_multiple_of(seconds) && whole / step <= 10;
    let step = STEPS.into_iter().find(fits);
    let step = step.unwrap_or_else(|| seconds * (intervals as u64).div_ceil(10).max(1));
    ((step / seconds) as usize, step)
}

/// A round number not below, and a step that divides it into few.
fn round(most: f64) -> (f64, f64) {
    let most = most.max(f64::MIN_POSITIVE);
    let power = 10f64.powf(most.log10().floor());
    let step = [0.2, 0.5, 1.0, 2.0].into_iter().map(|s| s * power).find(|step| most / step <= 5.0);
    let step = step.unwrap_or(power);
    ((most / step).ceil() * step, step)
}

/// Requests over time: those that are rejected at the bottom, the others above.
pub(super) fn requests(over_time: &OverTime, times: &Times) -> String {
    let most = over_time.intervals.iter().map(|during| during.requests).max().unwrap_or(0);
    let (top, step) = round((most as f64).max(5.0));
    let chart = Chart { over_time, times, height: 230.0, top };
    let mut out = String::new();
    chart.scale(&mut out, step, |value| {
        #[expect(clippy::cast_sign_loss, reason = "counts are not negative")]
        grouped(value.round() as u64)
    });
    for (index, during) in over_time.intervals.iter().enumerate() {
        let (rejected, all) = (during.rejected as f64, during.requests as f64);
        chart.bar(&mut out, "allowed", index, rejected, all);
        chart.bar(&mut out, "rejected", index, 0.0, rejected);
    }
    if over_time.intervals.iter().any(|during| during.baseline.is_some()) {
        chart.steps(&mut out, "before", |during| during.baseline.unwrap_or(0) as f64);
    }
    chart.ticks(&mut out);
    chart.hints(&mut out);
    chart.svg("Requests over time, those that are rejected at the bottom", &out)
}

/// The share of requests that is rejected over time.
pub(super) fn shares(over_time: &OverTime, times: &Times) -> String {
    let before = |during: &During| share(during.baseline.unwrap_or(0), during.requests);
    let now = |during: &During| share(during.rejected, during.requests);
    let most = over_time.intervals.iter().map(|d| now(d).max(before(d))).fold(0.0, f64::max);
    let (top, step) = round((most * 100.0).max(0.5));
    let (top, step) = if top > 100.0 { (100.0, 20.0) } else { (top, step) };
    let chart = Chart { over_time, times, height: 150.0, top };
    let mut out = String::new();
    chart.scale(&mut out, step, |value| format!("{}%", (value * 100.0).round() / 100.0));
    for (index, during) in over_time.intervals.iter().enumerate() {
        chart.bar(&mut out, "rejected", index, 0.0, now(during) * 100.0);
    }
    if over_time.intervals.iter().any(|during| during.baseline.is_some()) {
        chart.steps(&mut out, "before", |during| before(during) * 100.0);
    }
    chart.ticks(&mut out);
    chart.hints(&mut out);
    chart.svg("The share of requests that is rejected, over time", &out)
}

/// How near callers came to a limit: a bar of parts, the nearer the darker, the rejected hatched.
pub(super) fn pressure(limit: &Limit) -> String {
    let mut out = String::new();
    let mut x = 0.0;
    let labels = (0..USE.len()).map(|index| match index {
        0 => format!("used less than {}% at most", USE[0]),
        _ if index + 1 == USE.len() => format!("used {}% or more", USE[index - 1]),
        _ => format!("used {}% to {}%", USE[index - 1], USE[index]),
    });
    let used = limit.used.iter().copied().zip(labels).enumerate();
    let parts = used.map(|(index, (callers, label))| (callers, format!("use-{index}"), label));
    let rejected = (limit.rejected_callers, "rejected".to_owned(), "rejected".to_owned());
    for (callers, class, label) in parts.chain([rejected]) {
        if callers > 0 {
            // Few among many are seen, too.
            let width = (share(callers, limit.callers) * 100.0).max(1.5);
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{x:.2}\" width=\"{width:.2}\" height=\"10\">\
                 <title>{} of {} callers: {label}</title></rect>",
                grouped(callers),
                grouped(limit.callers)
            );
            x += width;
        }
    }
    format!(
        "<svg class=\"pressure\" viewBox=\"0 0 {:.2} 10\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"How near callers came to the limit\">{out}</svg>",
        x.max(1.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        for (most, expected) in [
            (5.0, (5.0, 1.0)),
            (87.0, (100.0, 20.0)),
            (100.0, (100.0, 20.0)),
            (101.0, (150.0, 50.0)),
            (0.5, (0.5, 0.1)),
            (60_700.0, (80_000.0, 20_000.0)),
        ] {
            let (top, step) = round(most);
            let near = |a: f64, b: f64| (a - b).abs() < a * 1e-9;
            assert!(near(top, expected.0) && near(step, expected.1), "{most}: {top} {step}");
        }
    }

    #[test]
    fn there_are_few_ticks_and_each_is_on_an_interval() {
        for seconds in [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10_800, 21_600, 86_400, 604_800] {
            for intervals in [1, 2, 7, 60, 96, 179, 180] {
                let (every, step) = tick_step(seconds, intervals);
                assert_eq!(every as u64 * seconds, step);
                assert!((1..=11).contains(&intervals.div_ceil(every)), "{seconds} {intervals}");
            }
        }
    }
}
