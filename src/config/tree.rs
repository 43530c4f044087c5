//! The YAML file as a tree whose nodes know where they stand.
//!
//! `serde_yaml` is the parser whose word counts: what it refuses is refused. It forgets where
//! values stood, so a second reader's events build the tree: a scalar's text, a list, a map, each
//! with its span and its path (`routes[2].limits[0].by`). Anchors, aliases and `<<` merges are
//! resolved here; environment variables are put into scalars here, one scalar at a time.

use super::diagnostics::Span;
use saphyr_parser::{Event, Parser, ScalarStyle, Tag};
use std::collections::{HashMap, HashSet};

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) span: Span,
    pub(super) path: String,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A scalar. `true`, `12` and `"12"` stay text until somebody asks for a type.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    /// With environment variables put in.
    pub(super) text: String,
    /// As the file has it, for messages: an environment variable may hold a secret.
    pub(super) written: String,
    pub(super) style: Style,
}

/// How a scalar came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Neither quoted nor a block: may be a number, a boolean, or nothing at all.
    Plain,
    /// Text, whatever it looks like.
    Quoted,
    /// With an environment variable in it: may be a number or a boolean, but is not nothing.
    Substituted,
    /// It could not be made out, which has been reported: whoever asks for it stays silent.
    Broken,
}

impl Scalar {
    fn new(text: &str, style: Style) -> Self {
        Self { text: text.to_owned(), written: text.to_owned(), style }
    }

    /// Whether it may be a number or a boolean.
    pub(super) fn is_typed(&self) -> bool {
        matches!(self.style, Style::Plain | Style::Substituted)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) span: Span,
}

/// Something wrong with the file itself rather than with what it says.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) span: Span,
    pub(super) path: String,
    pub(super) message: String,
}

/// Aliases can make a small file stand for a huge one; this many nodes are enough for anybody.
const MAX_NODES: usize = 1_000_000;
const MAX_DEPTH: usize = 64;
const TOO_DEEP: &str = "the file is nested too deeply, or aliases make it too large";

impl Node {
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar(Scalar { text, style: Style::Plain, .. })
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    pub(super) fn is_broken(&self) -> bool {
        matches!(&self.kind, Kind::Scalar(Scalar { style: Style::Broken, .. }))
    }

    /// What kind of value it is, for messages.
    pub(super) fn describe(&self) -> String {
        match &self.kind {
            _ if self.is_null() => "nothing".into(),
            Kind::Scalar(scalar) => format!("'{}'", shorten(&scalar.written)),
            Kind::List(_) => "a list".into(),
            Kind::Map(_) => "a map".into(),
        }
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Reads a file. `env` looks environment variables up.
pub(super) fn parse(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Node, Vec<Fault>), Fault> {
    let mut builder = Builder {
        env,
        events: Vec::new(),
        at: 0,
        anchors: HashMap::new(),
        faults: Vec::new(),
        nodes: 0,
    };
    let mut depth = 0_usize;
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => {
                match event {
                    Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
                    Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
                    _ => {}
                }
                builder.events.push((event, span));
                // The rest is not worth reading; the tree says where it is too deep.
                if depth > MAX_DEPTH + 2 {
                    break;
                }
            }
            Err(error) => {
                let mark = error.marker();
                let span = Span { line: mark.line(), column: mark.col() + 1, width: 1 };
                if error.info().contains("recursion limit") {
                    return Err(Fault::at(span, TOO_DEEP));
                }
                // The authority may have found it earlier, and says it in more familiar words.
                let earlier = if opens_too_much(text) { None } else { authority(text).err() };
                return Err(earlier.unwrap_or_else(|| Fault::at(span, error.info())));
            }
        }
    }
    let root = builder.document()?;
    builder.only_document()?;
    let faults = builder.faults;
    if faults.is_empty() {
        authority(text)?;
    }
    Ok((root, faults))
}

/// Whether `serde_yaml`, whose time grows with the square of what is open at once, should not be asked
/// about a file that is refused anyway.
fn opens_too_much(text: &str) -> bool {
    text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).nth(10_000).is_some()
}

/// What `serde_yaml` says to the file.
fn authority(text: &str) -> Result<(), Fault> {
    let Err(error) = serde_yaml::from_str::<serde_yaml::Value>(text) else {
        return Ok(());
    };
    let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
    Err(Fault::at(Span { line, column, width: 1 }, &format!("this is not valid YAML: {error}")))
}

impl Fault {
    fn at(span: Span, message: &str) -> Self {
        Self { span, path: String::new(), message: message.to_owned() }
    }
}

struct Builder<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    events: Vec<(Event<'a>, saphyr_parser::Span)>,
    at: usize,
    anchors: HashMap<usize, Node>,
    faults: Vec<Fault>,
    nodes: usize,
}

impl<'a> Builder<'a> {
    fn next(&mut self) -> Option<(Event<'a>, Span)> {
        let (event, span) = self.events.get(self.at)?.clone();
        self.at += 1;
        let width = if span.start.line() == span.end.line() {
            span.end.col().saturating_sub(span.start.col())
        } else {
            1
        };
        Some((event, Span { line: span.start.line(), column: span.start.col() + 1, width }))
    }

    /// The one document of the file; an empty file is nothing.
    fn document(&mut self) -> Result<Node, Fault> {
        while let Some((event, span)) = self.next() {
            match event {
                Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
                Event::StreamEnd | Event::DocumentEnd => return Ok(nothing()),
                event => return self.node(event, span, String::new(), 0),
            }
        }
        Err(Fault::at(Span { line: 1, column: 1, width: 1 }, "the file is empty"))
    }

    /// Refuses a second document: whoever reads only the first would not know.
    fn only_document(&mut self) -> Result<(), Fault> {
        while let Some((event, span)) = self.next() {
            if matches!(event, Event::DocumentStart(_)) {
                return Err(Fault::at(span, "the file holds more than one YAML document"));
            }
        }
        Ok(())
    }

    fn node(
        &mut self,
        event: Event<'a>,
        span: Span,
        path: String,
        depth: usize,
    ) -> Result<Node, Fault> {
        self.nodes += 1;
        if self.nodes > MAX_NODES || depth > MAX_DEPTH {
            return Err(Fault::at(span, TOO_DEEP));
        }
        let (kind, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.check_tag(tag.as_deref(), span, &path);
                (self.scalar(&text, style, span, &path), anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), span, &path);
                (self.list(&path, depth)?, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), span, &path);
                (self.map(&path, depth)?, anchor)
            }
            Event::Alias(anchor) => return self.alias(anchor, span, path),
            _ => return Err(Fault::at(span, "a value was expected here")),
        };
        let node = Node { span, path, kind };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn alias(&mut self, anchor: usize, span: Span, path: String) -> Result<Node, Fault> {
        let known = self.anchors.get(&anchor).cloned();
        let node = known.ok_or_else(|| Fault::at(span, "this alias has no anchor"))?;
        self.nodes += count(&node);
        if self.nodes > MAX_NODES {
            return Err(Fault::at(span, "aliases make the file too large"));
        }
        Ok(Node { span, path, ..node })
    }

    /// A tag would change what a value means; none is known here but YAML's own.
    fn check_tag(&mut self, tag: Option<&Tag>, span: Span, path: &str) {
        if let Some(tag) = tag.filter(|tag| !tag.is_yaml_core_schema()) {
            let message = format!("the tag '{}{}' means nothing here", tag.handle, tag.suffix);
            self.faults.push(Fault { span, path: path.to_owned(), message });
        }
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, span: Span, path: &str) -> Kind {
        let plain = style == ScalarStyle::Plain;
        let scalar = match substitute(text, self.env) {
            Ok(None) => Scalar::new(text, if plain { Style::Plain } else { Style::Quoted }),
            Ok(Some(put)) => Scalar { text: put, ..Scalar::new(text, Style::Substituted) },
            Err(message) => {
                self.faults.push(Fault { span, path: path.to_owned(), message });
                Scalar::new(text, Style::Broken)
            }
        };
        Kind::Scalar(scalar)
    }

    fn list(&mut self, path: &str, depth: usize) -> Result<Kind, Fault> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next() {
            if matches!(event, Event::SequenceEnd) {
                break;
            }
            let path = format!("{path}[{}]", items.len());
            items.push(self.node(event, span, path, depth + 1)?);
        }
        Ok(Kind::List(items))
    }

    fn map(&mut self, path: &str, depth: usize) -> Result<Kind, Fault> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        let mut merged = Vec::new();
        let mut names = HashSet::new();
        while let Some((event, span)) = self.next() {
            let name = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(Fault::at(span, "a key must be a plain word")),
            };
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let Some((event, value_span)) = self.next() else {
                break;
            };
            let value = self.node(event, value_span, path.clone(), depth + 1)?;
            if name == "<<" {
                if matches!(value.kind, Kind::Scalar(_)) {
                    let message = "'<<' takes a map, or a list of maps".to_owned();
                    self.faults.push(Fault { span: value_span, path, message });
                }
                merged.push(value);
            } else if !names.insert(name.clone()) {
                let message = format!("'{name}' is given twice");
                self.faults.push(Fault { span, path, message });
            } else {
                entries.push((Key { name, span }, value));
            }
        }
        for node in merged {
            merge(&mut entries, node);
        }
        Ok(Kind::Map(entries))
    }
}

/// What an empty file holds.
fn nothing() -> Node {
    let span = Span { line: 1, column: 1, width: 1 };
    let kind = Kind::Scalar(Scalar::new("", Style::Plain));
    Node { span, path: String::new(), kind }
}

/// `<<: *base`: what the map does not say itself comes from the base.
fn merge(entries: &mut Vec<(Key, Node)>, base: Node) {
    match base.kind {
        Kind::Map(more) => {
            for (key, value) in more {
                if !entries.iter().any(|(k, _)| k.name == key.name) {
                    entries.push((key, value));
                }
            }
        }
        Kind::List(bases) => bases.into_iter().for_each(|base| merge(entries, base)),
        Kind::Scalar(_) => {}
    }
}

fn count(node: &Node) -> usize {
    1 + match &node.kind {
        Kind::Scalar(_) => 0,
        Kind::List(items) => items.iter().map(count).sum(),
        Kind::Map(entries) => entries.iter().map(|(_, node)| count(node)).sum(),
    }
}

/// Puts environment variables into a scalar: `${NAME}`, `${NAME:-default}`; `$${` is a literal
/// `${`. `None`: there was nothing to put in.
fn substitute(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Option<String>, String> {
    if !text.contains("${") {
        return Ok(None);
    }
    let (mut out, mut rest) = (String::new(), text);
    while let Some(start) = rest.find("${") {
        if rest[..start].ends_with('$') {
            out.push_str(&rest[..start - 1]);
            out.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        out.push_str(&rest[..start]);
        let inner = &rest[start + 2..];
        let end = inner.find('}').ok_or("'${' without a closing '}'")?;
        let (name, default) = match inner[..end].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&inner[..end], None),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(format!("'{name}' is no name of an environment variable"));
        }
        match (env(name).filter(|value| !value.is_empty()), default) {
            (Some(value), _) => out.push_str(&value),
            (None, Some(default)) => out.push_str(default),
            (None, None) => {
                return Err(format!(
                    "the environment variable {name} is not set, or empty, and has no default"
                ));
            }
        }
        rest = &inner[end + 1..];
    }
    out.push_str(rest);
    Ok(Some(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        (name == "PORT").then(|| "8080".to_owned())
    }

    #[test]
    fn environment_variables_are_put_into_scalars() {
        let put = |text| substitute(text, &env);
        assert_eq!(put("plain").unwrap(), None);
        assert_eq!(put("0.0.0.0:${PORT}").unwrap().unwrap(), "0.0.0.0:8080");
        assert_eq!(put("${HOST:-localhost}:${PORT}").unwrap().unwrap(), "localhost:8080");
        assert_eq!(put("$${PORT} ${PORT}").unwrap().unwrap(), "${PORT} 8080");
        assert!(put("${HOST}").unwrap_err().contains("HOST is not set"));
        assert!(put("${PORT").unwrap_err().contains("closing"));
    }

    #[test]
    fn nodes_know_their_place_and_path() {
        let (root, faults) = parse("a:\n  - b: 1\n    c: x\n", &env).unwrap();
        assert!(faults.is_empty());
        let Kind::Map(entries) = root.kind else { panic!("{root:?}") };
        let Kind::List(items) = &entries[0].1.kind else { panic!("{entries:?}") };
        let Kind::Map(inner) = &items[0].kind else { panic!("{items:?}") };
        assert_eq!(inner[1].1.path, "a[0].c");
        assert_eq!(inner[1].1.span, Span { line: 3, column: 8, width: 1 });
        assert_eq!(inner[1].0.span, Span { line: 3, column: 5, width: 1 });
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let level = |level: usize| {
            let below = vec![format!("*a{}", level - 1); 10].join(", ");
            format!("a{level}: &a{level} [{below}]\n")
        };
        let first = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        let text: String = std::iter::once(first).chain((1..9).map(level)).collect();
        assert!(parse(&text, &env).unwrap_err().message.contains("too large"));
    }

    /// A parser whose time grows with the square of the depth would need minutes.
    #[test]
    fn a_file_of_brackets_is_refused_at_once_and_at_its_place() {
        for open in ["[", "{a: ", "[a, ", "- ", "a: [", "&a [", "? "] {
            let fault = parse(&open.repeat(200_000), &env).unwrap_err();
            assert!(fault.span.line == 1 && fault.span.column < 2000, "{open}: {fault:?}");
        }
        let fault = parse(&"[".repeat(200_000), &env).unwrap_err();
        assert_eq!((&*fault.message, fault.span.column), (TOO_DEEP, 256));
        parse(&format!("@\n{}", "{a: ".repeat(200_000)), &env).unwrap_err();
    }

    #[test]
    fn merges_give_what_the_map_does_not_say_itself() {
        let (root, _) = parse("base: &b {x: 1, y: 2}\nmine: {<<: *b, y: 3}\n", &env).unwrap();
        let Kind::Map(entries) = root.kind else { panic!() };
        let Kind::Map(mine) = &entries[1].1.kind else { panic!() };
        let names: Vec<_> =
            mine.iter().map(|(key, node)| (key.name.as_str(), node.describe())).collect();
        assert_eq!(names, [("y", "'3'".to_owned()), ("x", "'1'".to_owned())]);
    }
}
