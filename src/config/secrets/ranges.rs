//! Which parts of a line are secret, as far as names of fields and the shape of URLs tell.

use super::names::NAMES;
use crate::config::shown::{MASK, is_secret};

/// Characters of a line, counted from zero.
pub(super) type Range = (usize, usize);

/// The parts of a line behind names of secrets. In a file that is no YAML, all that follows.
pub(super) fn named(characters: &[char], is_yaml: bool) -> Vec<Range> {
    let mut ranges = Vec::new();
    for (at, name) in names(characters) {
        if NAMES.is_secret(&name, is_yaml) {
            let end = end_of_value(characters, at, is_yaml);
            ranges.extend(value(characters, at, end));
        }
    }
    ranges
}

/// What could be names of fields in a line, and where what they name begins.
pub(super) fn names(characters: &[char]) -> impl Iterator<Item = (usize, String)> {
    let colons = characters.iter().enumerate().filter(|(_, c)| matches!(c, ':' | '='));
    colons.map(|(at, _)| {
        let is_name = |c: &&char| c.is_alphanumeric() || matches!(c, '_' | '-');
        let before = characters[..at].iter().rev().skip_while(|c| matches!(c, '"' | '\'' | ' '));
        let name: Vec<char> = before.take_while(is_name).copied().collect();
        (at + 1, name.into_iter().rev().collect())
    })
}

/// Where the value ends that begins here. In braces a comma ends it, if quotes do not hold it.
pub(super) fn end_of_value(characters: &[char], from: usize, is_yaml: bool) -> usize {
    let rest = &characters[from.min(characters.len())..];
    let start = rest.iter().position(|c| !c.is_whitespace()).unwrap_or(0);
    let in_braces = characters[..from.min(characters.len())].contains(&'{');
    let end = match rest.get(start) {
        _ if !is_yaml || !in_braces => None,
        Some(quote @ ('"' | '\'')) => {
            rest.iter().skip(start + 1).position(|c| c == quote).map(|at| start + at + 2)
        }
        Some('{' | '[' | '!' | '&') => None,
        _ => rest.iter().position(|c| matches!(c, ',' | '}')),
    };
    end.map_or(characters.len(), |end| from + end)
}

/// A value without the space around it; nothing if it only names an environment variable.
pub(super) fn value(characters: &[char], from: usize, to: usize) -> Option<Range> {
    let inner = characters.get(from..to)?;
    let space = |c: &&char| c.is_whitespace() || **c == ':';
    let from = from + inner.iter().take_while(space).count();
    let to = to - inner.iter().rev().take_while(|c| c.is_whitespace()).count();
    let text: String = characters.get(from..to)?.iter().collect();
    (from < to && !is_variable(text.trim_matches(['"', '\'', ' ', '}']))).then_some((from, to))
}

/// `${NAME}`, with or without its braces, and without a default.
pub(super) fn is_variable(written: &str) -> bool {
    let name = written.strip_prefix("${").map(|rest| rest.strip_suffix('}').unwrap_or(rest));
    name.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
}

/// User and password of URLs, and parameters whose names are those of secrets.
pub(super) fn url_ranges(characters: &[char]) -> Vec<Range> {
    let text: String = characters.iter().collect();
    let mut ranges = Vec::new();
    let starts: Vec<usize> = text.match_indices("://").map(|(at, _)| at + 3).collect();
    for (index, start) in starts.iter().enumerate() {
        let end = starts.get(index + 1).map_or(text.len(), |next| next - 3);
        let url = &text[*start..end];
        let mut range = |from: usize, to: usize| {
            let count = |to: usize| text[..to].chars().count();
            ranges.push((count(start + from), count(start + to)));
        };
        let authority = url.split(['/', ' ', '\'', '"', ',', '}']).next().unwrap_or_default();
        if let Some(at) = url.rfind('@') {
            range(0, at);
        } else if authority.split_once(':').is_some_and(|(_, port)| !is_port(port)) {
            // `redis://ada:s3cr3t%40host`, or with its end cut off.
            range(0, authority.len());
        }
        for (at, _) in url.match_indices(['?', '&']) {
            let Some((name, value)) = url[at + 1..].split_once('=') else { continue };
            if is_secret(name) {
                let from = at + 2 + name.len();
                let to = value.find(['&', '"', '\'', ' ', ',', '}']).unwrap_or(value.len());
                range(from, from + to);
            }
        }
    }
    if starts.is_empty() {
        // Without its scheme, a URL of Redis still has its password.
        let word = |c: &char| c.is_whitespace() || matches!(c, '\'' | '"');
        for (at, _) in characters.iter().enumerate().filter(|(_, c)| **c == '@') {
            let length = characters[..at].iter().rev().take_while(|c| !word(c)).count();
            if characters[at - length..at].contains(&':') {
                ranges.push((at - length, at));
            }
        }
    }
    ranges
}

/// Whether it may be a port: digits, or a variable.
fn is_port(text: &str) -> bool {
    text.starts_with("${") || text.bytes().all(|byte| byte.is_ascii_digit())
}

pub(super) fn indent(line: &[char]) -> usize {
    line.iter().take_while(|c| c.is_whitespace()).count()
}

/// In order, and joined where they touch.
pub(super) fn joined(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.retain(|(from, to)| from < to);
    ranges.sort_unstable();
    ranges.dedup_by(|next, range| {
        let touch = next.0 <= range.1;
        if touch {
            range.1 = range.1.max(next.1);
        }
        touch
    });
    ranges
}

pub(super) fn masked(characters: &[char], ranges: Vec<Range>) -> String {
    let (mut out, mut at) = (String::new(), 0);
    for (from, to) in joined(ranges) {
        out.extend(&characters[at..from]);
        out.push_str(MASK);
        at = to;
    }
    out.extend(&characters[at..]);
    out
}

/// Where a character is once the ranges are masked.
pub(super) fn moved(ranges: &[Range], at: usize, end: bool) -> usize {
    let width = MASK.chars().count();
    let (mut removed, mut added) = (0, 0);
    for (from, to) in ranges {
        if at >= *to {
            removed += to - from;
            added += width;
        } else if at > *from {
            return from + added - removed + if end { width } else { 0 };
        }
    }
    at + added - removed
}
