//! Tables for people: columns that are as wide as what is in them.

use super::paint::Paint;
use std::fmt::Write as _;

/// How a cell looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Plain,
    Dim,
    Bad,
}

impl Look {
    /// Stands out if there is anything to see.
    pub(super) fn bad_if(truth: bool) -> Self {
        if truth { Self::Bad } else { Self::Plain }
    }

    fn paint(self, paint: Paint, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Dim => paint.dim(text),
            Self::Bad => paint.bad(text),
        }
    }
}

/// A table. Columns whose name begins with `>` are aligned to the right.
#[derive(Debug)]
pub(super) struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<(String, Look)>>,
}

impl Table {
    pub(super) fn new(columns: &[&str]) -> Self {
        let right = columns.iter().map(|name| name.starts_with('>')).collect();
        let head = columns.iter().map(|name| (name.trim_start_matches('>').to_owned(), Look::Dim));
        Self { right, rows: vec![head.collect()] }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = (String, Look)>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Writes it, indented by two; nothing is as wide as `widest` but the last column.
    pub(super) fn draw(&self, paint: Paint, widest: usize) -> String {
        let shown = |text: &str| shortened(text, widest);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|(text, _)| shown(text).chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (text, look)) in row.iter().enumerate() {
                let last = column + 1 == widths.len();
                let text = if last { text.clone() } else { shown(text) };
                let blank = " ".repeat(widths[column].saturating_sub(text.chars().count()));
                let (before, after) =
                    if self.right[column] { (&*blank, "") } else { ("", &*blank) };
                let after = if last { "" } else { after };
                let _ = write!(line, "  {before}{}{after}", look.paint(paint, &text));
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// At most so many characters, the last of which says that there are more.
fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new(&["limit", ">rejected", "routes"]);
        let row = |a: &str, b: &str, c: &str| [a, b, c].map(|t| (t.to_owned(), Look::Plain));
        table.row(row("per-ip", "12,345", "all"));
        table.row(row("a-very-long-name-indeed", "7", "a, b, c, d, e, f, g"));
        let expected = "\
\u{20} limit       rejected  routes
\u{20} per-ip        12,345  all
\u{20} a-very-lo…         7  a, b, c, d, e, f, g
";
        assert_eq!(table.draw(Paint::none(), 10), expected);
    }
}
