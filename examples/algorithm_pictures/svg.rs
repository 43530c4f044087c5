//! Shapes as SVG text. It knows nothing of limits.
//!
//! Every picture has a ground of its own, so that it reads on a light page and on a dark one.

use std::fmt::{Display, Formatter, Result, Write};

const STYLE: &str = "
    .ground { fill: #fff; stroke: #d0d7de }
    .title { font-size: 16px; font-weight: 600; fill: #14293d }
    .name { font-weight: 600; fill: #14293d }
    .what { font-size: 12px; fill: #52616f }
    .grid { stroke: #e4e9ee; fill: none }
    .axis { stroke: #8795a1; fill: none }
    .mark { stroke: #8795a1; stroke-dasharray: 5 4; fill: none }
    .grey { stroke: #8795a1 } .blue { stroke: #2268a8 } .red { stroke: #c8374a }
    .amber { stroke: #b8720f } .green { stroke: #23805c }
    .tick { stroke-width: 1.6; fill: none }
    .curve { stroke-width: 2.2; fill: none; stroke-linejoin: round }
    .thin { stroke-width: .9; fill: none; opacity: .65 }
    .dashed { stroke-dasharray: 6 4 }
    .area { stroke: none; opacity: .18 } .swatch { stroke-width: 11; opacity: .25 }
    .area.blue { fill: #2268a8 } .area.red { fill: #c8374a } .area.amber { fill: #b8720f }
    .area.green { fill: #23805c } .area.grey { fill: #8795a1 }
    .ink-blue { fill: #2268a8 } .ink-red { fill: #c8374a } .ink-amber { fill: #94590a }
    .ink-green { fill: #1c6b4c }
";

/// Where a text stands, seen from its point.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture under way.
pub(crate) struct Svg {
    width: u32,
    height: u32,
    title: &'static str,
    body: String,
}

impl Svg {
    pub(crate) fn new(width: u32, height: u32, title: &'static str) -> Self {
        let mut svg = Self { width, height, title, body: String::new() };
        svg.text("title", (24.0, 32.0), Anchor::Start, title);
        svg
    }

    pub(crate) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.add(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{text}</text>"
        ));
    }

    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.path(class, &Self::points(&[from, to]));
    }

    /// Many lines of one class, as one element.
    pub(crate) fn lines(&mut self, class: &str, lines: &[[(f64, f64); 2]]) {
        let path: String = lines.iter().map(|line| Self::points(line)).collect();
        self.path(class, &path);
    }

    pub(crate) fn curve(&mut self, class: &str, points: &[(f64, f64)]) {
        self.path(class, &Self::points(points));
    }

    /// What lies between two curves over the same span.
    pub(crate) fn between(&mut self, class: &str, one: &[(f64, f64)], other: &[(f64, f64)]) {
        let around: Vec<_> = one.iter().chain(other.iter().rev()).copied().collect();
        self.path(class, &Self::points(&around));
    }

    fn points(points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let step = if index == 0 { 'M' } else { ' ' };
            // Writing to a string cannot fail.
            let _ = write!(path, "{step}{x:.1} {y:.1}");
        }
        path
    }

    fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            self.add(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
        }
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "  {element}");
    }
}

impl Display for Svg {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { width, height, title, body } = self;
        writeln!(
            f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{title}\" font-family=\"ui-sans-serif, system-ui, sans-serif\" font-size=\"13.5\">"
        )?;
        writeln!(f, "  <style>{STYLE}  </style>")?;
        let (w, h) = (width - 1, height - 1);
        writeln!(
            f,
            "  <rect class=\"ground\" x=\".5\" y=\".5\" width=\"{w}\" height=\"{h}\" rx=\"8\"/>"
        )?;
        writeln!(f, "{body}</svg>")
    }
}
