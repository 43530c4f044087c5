//! A plot's frame: scales, axes, legend. It turns values into places.

use crate::svg::{Anchor, Svg};
use std::ops::RangeInclusive;

/// One plot's place in the picture, and the values it spans.
pub(crate) struct Plot {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) x: RangeInclusive<f64>,
    /// From 0 to this.
    pub(crate) y: f64,
}

impl Plot {
    pub(crate) fn x(&self, value: f64) -> f64 {
        let share = (value - self.x.start()) / (self.x.end() - self.x.start());
        self.left + share * self.width
    }

    pub(crate) fn y(&self, value: f64) -> f64 {
        self.top + self.height * (1.0 - value / self.y)
    }

    pub(crate) fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (self.x(x), self.y(y))
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.top + self.height
    }

    pub(crate) fn right(&self) -> f64 {
        self.left + self.width
    }

    /// A vertical line at every `step`, its value below, and what the values are.
    pub(crate) fn x_axis(&self, svg: &mut Svg, step: f64, what: &str) {
        let bottom = self.bottom();
        for value in steps(*self.x.start(), *self.x.end(), step) {
            let x = self.x(value);
            svg.line("grid", (x, self.top), (x, bottom));
            svg.text("what", (x, bottom + 18.0), Anchor::Middle, &value.to_string());
        }
        svg.line("axis", (self.left, bottom), (self.right(), bottom));
        svg.text("what", (self.left + self.width / 2.0, bottom + 38.0), Anchor::Middle, what);
    }

    /// A horizontal line at every `step`, its value on the left, and what the values are.
    pub(crate) fn y_axis(&self, svg: &mut Svg, step: f64, what: &str) {
        for value in steps(0.0, self.y, step) {
            let y = self.y(value);
            svg.line("grid", (self.left, y), (self.right(), y));
            svg.text("what", (self.left - 8.0, y + 4.0), Anchor::End, &value.to_string());
        }
        svg.text("what", (self.left - 34.0, self.top - 14.0), Anchor::Start, what);
    }

    /// A dashed line across, with its name above its right end.
    pub(crate) fn mark(&self, svg: &mut Svg, value: f64, name: &str) {
        let y = self.y(value);
        svg.line("mark", (self.left, y), (self.right(), y));
        svg.text("what", (self.right() - 4.0, y - 6.0), Anchor::End, name);
    }

    /// Values as places, each holding until the next.
    pub(crate) fn staircase(&self, values: &[(f64, u32)]) -> Vec<(f64, f64)> {
        let mut points = Vec::with_capacity(values.len() * 2);
        let mut level: Option<u32> = None;
        for &(x, y) in values {
            match level {
                Some(before) if before == y => continue,
                Some(before) => points.push(self.at((x, before.into()))),
                None => {}
            }
            points.push(self.at((x, y.into())));
            level = Some(y);
        }
        points.extend(level.map(|level| self.at((*self.x.end(), level.into()))));
        points
    }
}

/// Samples and names in a row, from `(x, y)` to the right.
pub(crate) fn legend(svg: &mut Svg, (mut x, y): (f64, f64), items: &[(&str, &str)]) {
    for (class, name) in items {
        svg.line(class, (x, y - 4.0), (x + 22.0, y - 4.0));
        svg.text("what", (x + 29.0, y), Anchor::Start, name);
        x += 29.0 + 7.2 * name.chars().count() as f64 + 24.0;
    }
}

fn steps(from: f64, to: f64, step: f64) -> impl Iterator<Item = f64> {
    (0..).map(move |n| from + f64::from(n) * step).take_while(move |value| *value <= to)
}
