//! Comma-separated values, or by tabs or semicolons, with a first line that names them. A field in
//! quotes may hold the separator, and quotes that are doubled; it ends on its line.

use super::chunk::{Span, Unreadable};
use super::fields::{Field, put};
use super::json::Draft;
use memchr::{memchr, memchr2};

/// Reads lines of one log.
#[derive(Debug)]
pub(super) struct Csv {
    separator: u8,
    /// What each column tells.
    columns: Vec<Option<Field>>,
}

impl Csv {
    /// By the line that names the columns.
    pub(super) fn new(separator: u8, columns: Vec<Option<Field>>) -> Self {
        Self { separator, columns }
    }

    /// Reads the line of the text that ends there.
    pub(super) fn read(
        &self,
        text: &[u8],
        start: usize,
        draft: &mut Draft<'_>,
    ) -> Result<(), Unreadable> {
        let mut at = start;
        for column in &self.columns {
            let (span, next) = cell(text, at, self.separator, draft.spelt)?;
            if let Some(field) = column {
                let Draft { entry, extras, spelt, moments } = draft;
                put(*field, span.of(text, spelt), span, entry, extras, moments)?;
            }
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        Ok(())
    }
}

/// One field, and where the next begins.
fn cell(
    text: &[u8],
    at: usize,
    separator: u8,
    spelt: &mut Vec<u8>,
) -> Result<(Span, Option<usize>), Unreadable> {
    if text.get(at) != Some(&b'"') {
        let end = memchr(separator, &text[at..]).map(|end| at + end);
        let cell = &text[at..end.unwrap_or(text.len())];
        let begins = at + cell.len() - cell.trim_ascii_start().len();
        let span = Span::new(begins, begins + cell.trim_ascii().len());
        return Ok((span, end.map(|end| end + 1)));
    }
    let (mut end, mut doubled) = (at + 1, false);
    loop {
        end += memchr2(b'"', b'"', &text[end..]).ok_or(Unreadable::NotCsv)?;
        if text.get(end + 1) != Some(&b'"') {
            break;
        }
        (doubled, end) = (true, end + 2);
    }
    let next = match text.get(end + 1) {
        None => None,
        Some(byte) if *byte == separator => Some(end + 2),
        Some(_) => return Err(Unreadable::NotCsv),
    };
    if !doubled {
        return Ok((Span::new(at + 1, end), next));
    }
    let start = spelt.len();
    let mut quoted = false;
    for byte in &text[at + 1..end] {
        quoted = *byte == b'"' && !quoted;
        if !quoted {
            spelt.push(*byte);
        }
    }
    Ok((Span::spelt(start, spelt.len()), next))
}

/// The separator that the first line has most of, and its names.
pub(super) fn header(line: &[u8]) -> Option<(u8, Vec<String>)> {
    let count = |separator: &u8| memchr::memchr_iter(*separator, line).count();
    let separator = [b',', b';', b'\t'].into_iter().max_by_key(|s| (count(s), *s == b','))?;
    if count(&separator) == 0 {
        return None;
    }
    let (mut names, mut at, mut spelt) = (Vec::new(), 0, Vec::new());
    loop {
        let (span, next) = cell(line, at, separator, &mut spelt).ok()?;
        let name = span.of(line, &spelt).trim_ascii();
        names.push(str::from_utf8(name).ok()?.to_owned());
        match next {
            Some(next) => at = next,
            None => return Some((separator, names)),
        }
    }
}
