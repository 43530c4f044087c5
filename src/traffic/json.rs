//! Lines of JSON objects: our own access log, and everybody else's.
//!
//! A line is walked once, from left to right; what no field is made of is stepped over. Lines of one
//! log are alike, so each key remembers which came after it last, with all that stands between two
//! values: to know that it is there again, one comparison is enough.

use super::chunk::{Entry, Extra, Span, Unreadable};
use super::fields::{Field, put};
use super::moment::Moments;

/// Reads lines of one log.
#[derive(Debug)]
pub(super) struct Json {
    /// Objects that hold something of interest; the first is the line itself.
    nodes: Vec<Node>,
}

/// An object.
#[derive(Debug, Default)]
struct Node {
    /// What is looked for in it.
    wanted: Vec<(Vec<u8>, Target)>,
    /// Keys that were there.
    keys: Vec<Key>,
    /// Which of them came first the last time.
    first: usize,
}

/// A key as it stands in the log.
#[derive(Debug)]
struct Key {
    /// From behind the value before it to its own value: `,"status":`.
    lead: Box<[u8]>,
    /// The first of its bytes, and which bits they are: most keys are no longer.
    begins: (u128, u128),
    target: Target,
    /// Which one came next the last time.
    next: usize,
}

/// What a key leads to.
#[derive(Clone, Copy, Debug)]
enum Target {
    Nothing,
    Field(Field),
    Object(usize),
    /// Nothing behind it is of interest.
    End,
}

/// Deeper than this nothing is looked for, and nothing stepped over.
const DEPTH: usize = 64;

/// Keys of an object that are remembered.
const KEYS: usize = 128;

/// What is written down of a line.
pub(super) struct Draft<'c> {
    pub(super) entry: &'c mut Entry,
    pub(super) extras: &'c mut Vec<Extra>,
    pub(super) spelt: &'c mut Vec<u8>,
    pub(super) moments: &'c mut Moments,
}

impl Json {
    /// What the names, which may be ways through objects, tell.
    pub(super) fn new(names: &[(String, Field)]) -> Self {
        let mut json = Self { nodes: vec![Node::default()] };
        for (name, field) in names {
            json.want(0, name, *field);
        }
        json
    }

    /// The same of lines in which nothing of interest stands behind this key.
    pub(super) fn until(names: &[(String, Field)], last: &str) -> Self {
        let mut json = Self::new(names);
        json.nodes[0].wanted.push((last.as_bytes().to_vec(), Target::End));
        json
    }

    fn want(&mut self, node: usize, name: &str, field: Field) {
        // A key may have a dot in it, too.
        self.nodes[node].wanted.push((name.as_bytes().to_vec(), Target::Field(field)));
        for (dot, _) in name.match_indices('.') {
            let (object, rest) = (&name[..dot], &name[dot + 1..]);
            let known = self.nodes[node].wanted.iter().find_map(|(key, target)| match target {
                Target::Object(child) if *key == object.as_bytes() => Some(*child),
                _ => None,
            });
            let child = known.unwrap_or_else(|| {
                self.nodes.push(Node::default());
                let child = self.nodes.len() - 1;
                self.nodes[node].wanted.push((object.as_bytes().to_vec(), Target::Object(child)));
                child
            });
            self.want(child, rest, field);
        }
    }

    /// Reads the line of the text that ends there.
    pub(super) fn read(
        &mut self,
        text: &[u8],
        start: usize,
        draft: &mut Draft<'_>,
    ) -> Result<(), Unreadable> {
        let at = self.object(text, space(text, start), 0, draft, 0)?;
        if space(text, at) == text.len() { Ok(()) } else { Err(Unreadable::NotJson) }
    }

    /// From the brace that opens an object to behind the one that closes it.
    fn object(
        &mut self,
        text: &[u8],
        mut at: usize,
        node: usize,
        draft: &mut Draft<'_>,
        depth: usize,
    ) -> Result<usize, Unreadable> {
        if text.get(at) != Some(&b'{') || depth > DEPTH {
            return Err(Unreadable::NotJson);
        }
        let inside = space(text, at + 1);
        if text.get(inside) == Some(&b'}') {
            return Ok(inside + 1);
        }
        let mut before = None;
        loop {
            let (which, target, value_at) = self.nodes[node].next(text, at, before)?;
            let value_at = space(text, value_at);
            before = which;
            at = match target {
                Target::Field(field) => value(text, value_at, field, draft, depth)?,
                Target::Object(child) if text.get(value_at) == Some(&b'{') => {
                    self.object(text, value_at, child, draft, depth + 1)?
                }
                Target::Nothing | Target::Object(_) => skip(text, value_at, depth)?,
                // A line that was torn does not end like this.
                Target::End if text.ends_with(b"}") => return Ok(text.len()),
                Target::End => return Err(Unreadable::NotJson),
            };
            let end = space(text, at);
            match text.get(end) {
                Some(b',') => at = end,
                Some(b'}') => return Ok(end + 1),
                _ => return Err(Unreadable::NotJson),
            }
        }
    }
}

impl Key {
    fn new(lead: &[u8], target: Target) -> Self {
        let mut first = [[0; 16]; 2];
        for (at, byte) in lead.iter().take(16).enumerate() {
            (first[0][at], first[1][at]) = (*byte, 0xff);
        }
        let [first, mask] = first.map(u128::from_le_bytes);
        Self { lead: lead.into(), begins: (first, mask), target, next: usize::MAX }
    }

    #[inline]
    fn is_at(&self, text: &[u8], at: usize) -> bool {
        let Some(rest) = text.get(at..) else { return false };
        let begins = match rest.first_chunk() {
            Some(bytes) => u128::from_le_bytes(*bytes) & self.begins.1 == self.begins.0,
            None => rest.starts_with(&self.lead),
        };
        begins && (self.lead.len() <= 16 || rest.starts_with(&self.lead))
    }
}

impl Node {
    /// The key that follows there: which of those that are remembered, what it leads to, and where
    /// its value begins.
    #[inline]
    fn next(
        &mut self,
        text: &[u8],
        at: usize,
        before: Option<usize>,
    ) -> Result<(Option<usize>, Target, usize), Unreadable> {
        let likely = before.map_or(self.first, |before| self.keys[before].next);
        if let Some(key) = self.keys.get(likely)
            && key.is_at(text, at)
        {
            return Ok((Some(likely), key.target, at + key.lead.len()));
        }
        self.find(text, at, before)
    }

    /// The same if it is not the one that came last time.
    #[cold]
    fn find(
        &mut self,
        text: &[u8],
        at: usize,
        before: Option<usize>,
    ) -> Result<(Option<usize>, Target, usize), Unreadable> {
        let known = self.keys.iter().position(|key| key.is_at(text, at));
        let which = match known {
            Some(known) => known,
            None => {
                // A brace or a comma, and a key in quotes.
                let (start, end, _) = string(text, space(text, at + 1))?;
                let colon = space(text, end + 1);
                if text.get(colon) != Some(&b':') {
                    return Err(Unreadable::NotJson);
                }
                let value_at = space(text, colon + 1);
                let wanted = self.wanted.iter().find(|(name, _)| *name == text[start..end]);
                let target = wanted.map_or(Target::Nothing, |(_, target)| *target);
                if self.keys.len() == KEYS {
                    return Ok((None, target, value_at));
                }
                self.keys.push(Key::new(&text[at..value_at], target));
                self.keys.len() - 1
            }
        };
        match before {
            Some(before) => self.keys[before].next = which,
            None => self.first = which,
        }
        let key = &self.keys[which];
        Ok((Some(which), key.target, at + key.lead.len()))
    }
}

/// Takes a value down; returns where it ends.
fn value(
    text: &[u8],
    at: usize,
    field: Field,
    draft: &mut Draft<'_>,
    depth: usize,
) -> Result<usize, Unreadable> {
    match text.get(at) {
        Some(b'"') => {
            let (start, end, escapes) = string(text, at)?;
            if escapes {
                spell(text, (at, end + 1), field, draft)?;
            } else {
                keep(field, &text[start..end], Span::new(start, end), draft)?;
            }
            Ok(end + 1)
        }
        // Of a list, such as the values of a header, the first.
        Some(b'[') => {
            let first = space(text, at + 1);
            if text.get(first) == Some(&b'"') {
                value(text, first, field, draft, depth + 1)?;
            }
            skip(text, at, depth)
        }
        Some(b'{') => skip(text, at, depth),
        Some(_) => {
            let end = bare(text, at);
            if &text[at..end] != b"null" {
                keep(field, &text[at..end], Span::new(at, end), draft)?;
            }
            Ok(end)
        }
        None => Err(Unreadable::NotJson),
    }
}

#[inline]
fn keep(field: Field, value: &[u8], span: Span, draft: &mut Draft<'_>) -> Result<(), Unreadable> {
    put(field, value, span, draft.entry, draft.extras, draft.moments)
}

/// Takes a string down without its escapes.
#[cold]
fn spell(
    text: &[u8],
    (at, end): (usize, usize),
    field: Field,
    draft: &mut Draft<'_>,
) -> Result<(), Unreadable> {
    let value: String = serde_json::from_slice(&text[at..end]).map_err(|_| Unreadable::NotJson)?;
    let start = draft.spelt.len();
    draft.spelt.extend_from_slice(value.as_bytes());
    keep(field, value.as_bytes(), Span::spelt(start, draft.spelt.len()), draft)
}

/// From the quote that opens a string: where its content begins and ends, and whether it has
/// escapes.
#[inline]
fn string(text: &[u8], at: usize) -> Result<(usize, usize, bool), Unreadable> {
    if text.get(at) != Some(&b'"') {
        return Err(Unreadable::NotJson);
    }
    let (mut end, mut escapes) = (at + 1, false);
    loop {
        end = quote_or_escape(text, end).ok_or(Unreadable::NotJson)?;
        if text[end] == b'"' {
            return Ok((at + 1, end, escapes));
        }
        (end, escapes) = (end + 2, true);
    }
}

/// Where the next quote or backslash is. Strings are short: eight bytes at a time are quicker than
/// to call somebody who takes more.
#[inline]
fn quote_or_escape(text: &[u8], mut at: usize) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    // The lowest bit that is set is of the first byte that is zero.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & ONES << 7;
    while let Some(bytes) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*bytes);
        let quotes = zeros(word ^ (ONES * u64::from(b'"')));
        let found = quotes | zeros(word ^ (ONES * u64::from(b'\\')));
        if found != 0 {
            return Some(at + (found.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    let rest = text.get(at..)?;
    rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).map(|found| at + found)
}

/// Steps over a value, whatever it is.
#[inline]
fn skip(text: &[u8], at: usize, depth: usize) -> Result<usize, Unreadable> {
    match text.get(at) {
        Some(b'"') => Ok(string(text, at)?.1 + 1),
        Some(b'{' | b'[') => skip_nested(text, at, depth),
        Some(_) => {
            let end = bare(text, at);
            if end == at { Err(Unreadable::NotJson) } else { Ok(end) }
        }
        None => Err(Unreadable::NotJson),
    }
}

fn skip_nested(text: &[u8], mut at: usize, depth: usize) -> Result<usize, Unreadable> {
    let mut open = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                at = string(text, at)?.1 + 1;
                continue;
            }
            b'{' | b'[' => open += 1,
            b'}' | b']' => open -= 1,
            _ => {}
        }
        at += 1;
        match open {
            0 => return Ok(at),
            _ if open + depth > DEPTH => break,
            _ => {}
        }
    }
    Err(Unreadable::NotJson)
}

/// Where a number or a word ends.
#[inline]
fn bare(text: &[u8], at: usize) -> usize {
    let rest = text[at..].iter();
    at + rest.take_while(|byte| !matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r')).count()
}

#[inline]
fn space(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\r') = text.get(at) {
        at += 1;
    }
    at
}

/// Every key of an object that holds something else than an object, and of those in it, joined by
/// dots, in the order in which they stand there.
pub(super) fn keys(line: &[u8]) -> Option<Vec<String>> {
    fn collect(
        object: &serde_json::Map<String, serde_json::Value>,
        before: &str,
        all: &mut Vec<String>,
    ) {
        for (key, value) in object {
            let name = format!("{before}{key}");
            match value.as_object() {
                Some(object) => collect(object, &format!("{name}."), all),
                None => all.push(name),
            }
        }
    }
    let line: serde_json::Map<_, _> = serde_json::from_slice(line).ok()?;
    let mut all = Vec::new();
    collect(&line, "", &mut all);
    Some(all)
}
