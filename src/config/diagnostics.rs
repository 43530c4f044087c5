//! What is wrong in a file, and where: message, file, line, column, the line itself with a caret
//! under the offending part, and a suggestion where one is near.

use super::secrets::{Secrets, mask_line, mask_message};
use crate::printable::escaped;
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A file as it was read.
pub struct Source {
    /// How the user named it.
    pub name: String,
    /// All of it, without a byte order mark.
    pub text: String,
    /// Its secrets, once it could be read as YAML.
    pub(super) secrets: OnceLock<Secrets>,
}

impl Source {
    /// A file and what it holds.
    pub(super) fn new(name: String, mut text: String) -> Self {
        // It says that the text is UTF-8, which it is anyway, and is no part of it.
        if text.starts_with('\u{feff}') {
            text.remove(0);
        }
        Self { name, text, secrets: OnceLock::new() }
    }

    /// A line by its number.
    fn line(&self, number: usize) -> Option<&str> {
        self.lines().nth(number.saturating_sub(1))
    }

    /// The lines, as YAML counts them.
    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        let mut rest = Some(self.text.as_str());
        std::iter::from_fn(move || {
            let text = rest.take()?;
            let Some(end) = text.find(['\n', '\r']) else { return Some(text) };
            let length = if text[end..].starts_with("\r\n") { 2 } else { 1 };
            rest = Some(&text[end + length..]);
            Some(&text[..end])
        })
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the text, which holds secrets.
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A part of one line; lines and columns count from one, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The line.
    pub line: usize,
    /// The first character's column.
    pub column: usize,
    /// How many characters; the caret line is at least one wide.
    pub width: usize,
}

/// Whether the file can be used in spite of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The file is refused.
    Error,
    /// The file is used; the user most likely meant something else.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// The file.
    pub source: Arc<Source>,
    /// Where in the file.
    pub span: Span,
    /// The value's path, such as `routes[2].limits[0].by`.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub help: Option<String>,
}

impl Diagnostic {
    /// Takes secrets of the file out of what is said. Its lines are masked where they are shown.
    fn mask(&mut self) {
        let secrets = self.source.secrets.get();
        let masked = |text: &str| mask_message(secrets, &self.path, text);
        let (message, help) = (masked(&self.message), self.help.as_deref().map(masked));
        (self.message, self.help, self.path) = (message, help, masked(&self.path));
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { line, column, .. } = self.span;
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let number = line.to_string();
        let gutter = " ".repeat(number.len());
        writeln!(f, "{severity}: {}", escaped(&self.message))?;
        writeln!(f, "{gutter}--> {}:{line}:{column}", escaped(&self.source.name))?;
        let help = self.help.as_deref().map(escaped);
        if let Some(text) = self.source.line(line) {
            let (text, Span { column, width, .. }) =
                mask_line(&self.source, text, self.span, &self.path);
            let (text, column) = window(&text, column);
            let (before, marked, after) = parts(&text, column, width);
            // Tabs stay tabs under themselves, so that the caret lands where the eye expects it.
            let indent: String =
                before.chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
            let carets = "^".repeat(marked.chars().count().max(1));
            writeln!(f, "{gutter} |")?;
            writeln!(f, "{number} | {before}{marked}{after}")?;
            write!(f, "{gutter} | {indent}{carets}")?;
            match help {
                Some(help) => writeln!(f, " {help}")?,
                None => writeln!(f)?,
            }
        } else if let Some(help) = help {
            writeln!(f, "{gutter} = {help}")?;
        }
        if !self.path.is_empty() {
            writeln!(f, "{gutter} = at {}", escaped(&self.path))?;
        }
        Ok(())
    }
}

/// What is wrong, in the order of the file; of very much, the first.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    shown: Vec<Diagnostic>,
    errors: usize,
    more: usize,
}

impl Diagnostics {
    pub(super) fn new(mut items: Vec<Diagnostic>) -> Self {
        items.sort_by_key(|d| (d.severity == Severity::Warning, d.span.line, d.span.column));
        let errors = items.iter().filter(|d| d.severity == Severity::Error).count();
        let more = items.len().saturating_sub(MOST);
        items.truncate(MOST);
        items.iter_mut().for_each(Diagnostic::mask);
        Self { shown: items, errors, more }
    }

    /// One by one.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.shown.iter()
    }

    /// How many make the file unusable.
    pub fn errors(&self) -> usize {
        self.errors
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.shown.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{diagnostic}")?;
        }
        match self.more {
            0 => Ok(()),
            more => writeln!(f, "\nand {more} more"),
        }
    }
}

/// More than this nobody reads.
const MOST: usize = 100;

/// A line before, under and behind the caret, each as a terminal may show it.
fn parts(text: &str, column: usize, width: usize) -> (Cow<'_, str>, Cow<'_, str>, Cow<'_, str>) {
    let at = |n| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    let (start, end) = (at(column.saturating_sub(1)), at(column.saturating_sub(1) + width.max(1)));
    (escaped(&text[..start]), escaped(&text[start..end]), escaped(&text[end..]))
}

/// The part of a long line that is shown, and where in it a column is.
fn window(text: &str, column: usize) -> (Cow<'_, str>, usize) {
    const WIDEST: usize = 160;
    const BEFORE: usize = 80;
    if text.len() <= WIDEST {
        return (text.into(), column);
    }
    let skipped = column.saturating_sub(BEFORE);
    let shown = text.chars().skip(skipped).take(WIDEST).collect::<String>();
    (shown.into(), column - skipped)
}

/// `did you mean 'x'?` for the candidate nearest to what was written, if any is near.
pub(super) fn nearest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let limit = (written.chars().count() / 3).max(1);
    let near = |name: &&str| name.len().abs_diff(written.len()) <= limit * 4;
    let candidates = candidates.into_iter().filter(near);
    let (distance, best) =
        candidates.map(|name| (edits(written, name), name)).min_by_key(|&(d, _)| d)?;
    (distance <= limit).then(|| format!("did you mean '{best}'?"))
}

/// How many characters must be inserted, removed, replaced, or swapped with their neighbour to
/// turn one word into the other.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        let source = Source::new("a\u{1b}.yaml".into(), "\u{feff}x: \u{1b}[2J\u{202e}y".into());
        let diagnostic = Diagnostic {
            severity: Severity::Error,
            source: Arc::new(source),
            span: Span { line: 1, column: 5, width: 3 },
            path: "x\u{9b}".into(),
            message: "'\u{1b}[2J'".into(),
            help: Some("\r".into()),
        };
        let expected = "\
error: '\\u{1b}[2J'
 --> a\\u{1b}.yaml:1:5
  |
1 | x: \\u{1b}[2J\\u{202e}y
  |          ^^^ \\u{d}
  = at x\\u{9b}
";
        assert_eq!(diagnostic.to_string(), expected);
    }

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let fields = ["rate", "burst", "api_key", "by"];
        assert_eq!(nearest("api_kye", fields).unwrap(), "did you mean 'api_key'?");
        assert_eq!(nearest("apikey", fields).unwrap(), "did you mean 'api_key'?");
        assert_eq!(nearest("rte", fields).unwrap(), "did you mean 'rate'?");
        assert_eq!(nearest("frequency", fields), None);
    }
}
