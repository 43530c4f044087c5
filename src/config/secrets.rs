//! Keeps secrets out of what is said about a file: out of messages and out of the lines they show.
//!
//! Where the file can be read as YAML, the tables say which values are secret. Where it cannot, and
//! beside that, names of fields and the shape of URLs tell: rather too much is masked than too little.

mod names;
mod ranges;

use super::diagnostics::{Source, Span};
use super::section::Shape;
use super::shown::{self, MASK};
use super::tree::{Key, Kind, Node};
use names::NAMES;
use ranges::{
    Range, end_of_value, indent, is_variable, joined, masked, moved, named, names, url_ranges,
    value,
};

/// The secrets of a file that could be read as YAML.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    /// Paths of secret fields.
    paths: Vec<String>,
    /// What they hold, as it is written and as it is.
    texts: Vec<String>,
    places: Vec<Place>,
}

/// Where a secret stands: from a character of a line to another, or to its end and over the lines
/// that are indented further.
#[derive(Debug)]
struct Place {
    line: usize,
    from: usize,
    to: Option<usize>,
}

impl Secrets {
    pub(super) fn of(root: &Node, shape: &Shape) -> Self {
        let mut secrets = Self::default();
        secrets.look(root, shape);
        // What holds another is masked first.
        secrets.texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        secrets.texts.dedup();
        secrets
    }

    fn look(&mut self, node: &Node, shape: &Shape) {
        match &node.kind {
            // `jwt: s3cr3t` where a map with a secret should stand.
            Kind::Scalar(_) if has_secret(shape) => self.add_all(node),
            Kind::Scalar(scalar) => {
                self.look_at_text(&scalar.text);
                self.look_at_text(&scalar.written);
            }
            Kind::List(items) => {
                let item = shown::item(shape).unwrap_or(&Shape::Text);
                for node in items {
                    self.look(node, item);
                }
            }
            Kind::Map(entries) => {
                let map = shown::map(shape).unwrap_or(&Shape::Text);
                self.look_at_names(entries, map);
                for (key, node) in entries {
                    self.look_at_text(&key.name);
                    match shown::field(&key.name, map) {
                        (_, true) => self.add(key, node),
                        (shape, false) => self.look(node, &shape),
                    }
                }
            }
        }
    }

    /// `token: ,s3cr3t` is an empty field, and another one that is called like the secret. Where a secret
    /// is missing, an unknown field without a value may be it.
    fn look_at_names(&mut self, entries: &[(Key, Node)], map: &Shape) {
        let Shape::Map(section) = map else { return };
        let is_given =
            |name: &str| entries.iter().any(|(key, node)| key.name == name && !node.is_null());
        if section.fields.iter().any(|field| field.secret && !is_given(field.name)) {
            let empty = entries.iter().filter(|(_, node)| node.is_null()).map(|(key, _)| &key.name);
            self.texts.extend(empty.filter(|name| section.field(name).is_none()).cloned());
        }
        // `secret "s3cr3t"`, without a colon, is all name.
        for field in section.fields.iter().filter(|field| field.secret) {
            let rests = entries.iter().filter_map(|(key, _)| key.name.strip_prefix(field.name));
            let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
            let values = rests.filter(|rest| !rest.is_empty() && !rest.starts_with(is_word));
            self.texts.extend(values.map(|rest| rest.trim_matches([' ', '"', '\'']).to_owned()));
        }
    }

    /// A secret may be part of a text that is none: of a URL, or of a field without its space.
    fn look_at_text(&mut self, text: &str) {
        let characters: Vec<char> = text.chars().collect();
        let ranges = url_ranges(&characters).into_iter().chain(named(&characters, true));
        self.texts.extend(ranges.map(|(from, to)| characters[from..to].iter().collect::<String>()));
    }

    fn add(&mut self, key: &Key, node: &Node) {
        self.paths.push(node.path.clone());
        let from = key.span.column + key.span.width;
        self.places.push(Place { line: key.span.line, from, to: None });
        self.add_all(node);
    }

    fn add_all(&mut self, node: &Node) {
        match &node.kind {
            Kind::Scalar(scalar) if is_variable(&scalar.written) => {
                let value = Some(scalar.text.clone()).filter(|text| *text != scalar.written);
                self.texts.extend(value);
            }
            Kind::Scalar(scalar) => {
                self.texts.extend([scalar.text.clone(), scalar.written.clone()]);
                let Span { line, column, width } = node.span;
                let several_lines = width == 1 && scalar.written.chars().count() > 1;
                let to = (!several_lines).then_some(column - 1 + width);
                self.places.push(Place { line, from: column - 1, to });
            }
            Kind::List(items) => items.iter().for_each(|node| self.add_all(node)),
            Kind::Map(entries) => entries.iter().for_each(|(_, node)| self.add_all(node)),
        }
    }

    fn hold(&self, path: &str) -> bool {
        let inside = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
        self.paths.iter().any(|secret| path.strip_prefix(secret.as_str()).is_some_and(inside))
    }
}

/// Whether a map with a secret stands here, and nothing else may.
fn has_secret(shape: &Shape) -> bool {
    matches!(shape, Shape::Map(section) if section.fields.iter().any(|field| field.secret))
}

/// A message about a field, without the secrets of the file.
pub(super) fn mask_message(secrets: Option<&Secrets>, path: &str, message: &str) -> String {
    let characters: Vec<char> = message.chars().collect();
    let mut message = masked(&characters, url_ranges(&characters));
    let Some(secrets) = secrets else { return message };
    for text in &secrets.texts {
        // What is short would be found in other words; long values are quoted in part.
        let part: String = text.chars().take(40).collect();
        if text.chars().count() >= 4 {
            message = message.replace(text.as_str(), MASK).replace(&part, MASK);
        }
    }
    if !secrets.hold(path) {
        return message;
    }
    let name = path.rsplit('.').next().unwrap_or_default();
    match (message.find('\''), message.rfind('\'')) {
        (Some(start), Some(end)) if start < end && !SAFE.contains(&&message[start + 1..end]) => {
            match &message[start + 1..end] {
                quoted if quoted == name => message,
                _ => format!("{}{MASK}{}", &message[..=start], &message[end..]),
            }
        }
        _ => message,
    }
}

/// What messages quote that does not come from the file.
const SAFE: [&str; 1] = ["${' without a closing '}"];

/// A line of a file as it may be shown, and where in it the caret is then.
pub(super) fn mask_line(source: &Source, line: &str, span: Span, path: &str) -> (String, Span) {
    let characters: Vec<char> = line.chars().collect();
    let length = characters.len();
    let known = source.secrets.get();
    let mut ranges = url_ranges(&characters);
    ranges.extend(named(&characters, known.is_some()));
    match known {
        None if is_governed(source, span.line) => ranges.push((indent(&characters), length)),
        None => {}
        Some(secrets) => {
            let lines: Vec<&str> = source.lines().take(span.line).collect();
            ranges.extend(secrets.places.iter().filter_map(|place| place.on(&lines, &characters)));
            for text in secrets.texts.iter().filter(|text| text.chars().count() >= 4) {
                let found = line.match_indices(text.as_str());
                ranges.extend(found.map(|(at, text)| {
                    let from = line[..at].chars().count();
                    (from, from + text.chars().count())
                }));
            }
            if secrets.hold(path) {
                let caret = (span.column.saturating_sub(1)).min(length);
                let colon = characters[caret..].iter().position(|c| *c == ':');
                let from = colon.map_or(caret, |colon| caret + colon + 1);
                ranges.extend(value(&characters, from, length));
            }
        }
    }
    let moved = |at: usize, end: bool| moved(&joined(ranges.clone()), at, end);
    let from = moved(span.column.saturating_sub(1), false);
    let to = moved(span.column.saturating_sub(1) + span.width, true);
    let span = Span { column: from + 1, width: to.saturating_sub(from), ..span };
    (masked(&characters, ranges), span)
}

impl Place {
    /// The part of the last of these lines that is secret.
    fn on(&self, lines: &[&str], characters: &[char]) -> Option<Range> {
        let end = characters.len();
        if lines.len() == self.line {
            let to = self.to.unwrap_or_else(|| end_of_value(characters, self.from, true));
            return value(characters, self.from, to.min(end));
        }
        let between = lines.get(self.line..).filter(|_| self.to.is_none())?;
        let indent_of = |line: &str| line.len() - line.trim_start().len();
        let start = indent_of(lines.get(self.line.checked_sub(1)?)?);
        let goes_on = |line: &&str| line.trim().is_empty() || indent_of(line) > start;
        between.iter().all(goes_on).then(|| (indent(characters), end))
    }
}

/// Whether a line of a file that is no YAML goes on with a secret that begins above it.
fn is_governed(source: &Source, line: usize) -> bool {
    let mut lines: Vec<&str> = source.lines().take(line).collect();
    let text = |line: &str| line.chars().collect::<Vec<char>>();
    let own = text(lines.pop().unwrap_or_default());
    let (mut least, mut is_nearest) = (indent(&own), names(&own).next().is_none());
    for above in lines.into_iter().rev().map(text) {
        let names: Vec<String> = names(&above).map(|(_, name)| name).collect();
        let holds = indent(&above) < least || is_nearest;
        if holds && names.iter().any(|name| NAMES.is_secret(name, false)) {
            return true;
        }
        if !names.is_empty() {
            (least, is_nearest) = (least.min(indent(&above)), false);
        }
        if least == 0 && !is_nearest {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests;
