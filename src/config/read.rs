//! From located nodes to types, collecting errors instead of stopping at the first.
//!
//! [`Read`] turns one node into one type and reports what it cannot; [`Fields`] takes a map apart by
//! the table of its fields.

use super::diagnostics::{Diagnostic, Severity, Source, Span, nearest};
use super::files::Files;
use super::section::Section;
use super::tree::{Key, Kind, Node};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What reading needs beside the node: where to put errors, and where files are.
pub(super) struct Context<'a> {
    pub(super) source: Arc<Source>,
    /// Paths in the file are relative to it.
    pub(super) folder: PathBuf,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    pub(super) problems: Vec<Diagnostic>,
    /// Notes the files that are read.
    pub(super) files: &'a mut Files,
}

impl Context<'_> {
    pub(super) fn error(&mut self, node: &Node, message: impl Into<String>) {
        self.report(Severity::Error, node.span, &node.path, message.into(), None);
    }

    pub(super) fn error_with_help(
        &mut self,
        node: &Node,
        message: impl Into<String>,
        help: impl Into<Option<String>>,
    ) {
        self.report(Severity::Error, node.span, &node.path, message.into(), help.into());
    }

    pub(super) fn warn(&mut self, node: &Node, message: impl Into<String>) {
        self.report(Severity::Warning, node.span, &node.path, message.into(), None);
    }

    pub(super) fn report(
        &mut self,
        severity: Severity,
        span: Span,
        path: &str,
        message: String,
        help: Option<String>,
    ) {
        let (source, path) = (Arc::clone(&self.source), path.to_owned());
        self.problems.push(Diagnostic { severity, source, span, path, message, help });
    }

    /// A file named in the configuration, relative to it.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }
}

/// A type that can be read from a node. `None` was reported.
pub(super) trait Read: Sized {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self>;
}

/// The text of a scalar, or a report that `expected` was expected.
pub(super) fn text<'n>(node: &'n Node, cx: &mut Context<'_>, expected: &str) -> Option<&'n str> {
    match &node.kind {
        _ if node.is_broken() => None,
        Kind::Scalar(scalar) if !node.is_null() => Some(&scalar.text),
        _ => {
            cx.error(node, format!("expected {expected}, found {}", node.describe()));
            None
        }
    }
}

/// Reads a scalar by a grammar of its own.
pub(super) fn parsed<T>(
    node: &Node,
    cx: &mut Context<'_>,
    expected: &str,
    grammar: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    let text = text(node, cx, expected)?;
    match grammar(text) {
        Ok(value) => Some(value),
        Err(help) => {
            cx.error_with_help(node, format!("{} is not {expected}", node.describe()), help);
            None
        }
    }
}

/// One of a few words.
pub(super) fn one_of<T: Copy>(
    node: &Node,
    cx: &mut Context<'_>,
    expected: &str,
    words: &[(&str, T)],
) -> Option<T> {
    parsed(node, cx, expected, |text| {
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            nearest(text, names.iter().copied())
                .unwrap_or_else(|| format!("one of: {}", names.join(", ")))
        })
    })
}

impl Read for String {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        text(node, cx, "text").map(str::to_owned)
    }
}

impl Read for Duration {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "a duration", super::grammar::duration)
    }
}

/// Numbers and booleans are typed by `serde_yaml`, which knows YAML's rules for them.
fn plain<T: serde::de::DeserializeOwned>(
    node: &Node,
    cx: &mut Context<'_>,
    expected: &str,
) -> Option<T> {
    let value = match &node.kind {
        Kind::Scalar(scalar) if scalar.is_typed() => serde_yaml::from_str(&scalar.text).ok(),
        _ => None,
    };
    if value.is_none() && !node.is_broken() {
        cx.error(node, format!("expected {expected}, found {}", node.describe()));
    }
    value
}

impl Read for u32 {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        plain(node, cx, "a whole number")
    }
}

impl Read for usize {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        plain(node, cx, "a whole number")
    }
}

impl Read for bool {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        plain(node, cx, "true or false")
    }
}

/// A list; where one item is enough it may stand alone.
impl<T: Read> Read for Vec<T> {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        match &node.kind {
            _ if node.is_broken() => None,
            _ if node.is_null() => Some(Vec::new()),
            Kind::List(items) => Some(items.iter().filter_map(|item| T::read(item, cx)).collect()),
            _ => T::read(node, cx).map(|item| vec![item]),
        }
    }
}

/// A value that remembers where it stood, for checks against the rest of the file.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) node: Node,
}

impl<T: Read> Read for Located<T> {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        T::read(node, cx).map(|value| Self { value, node: node.clone() })
    }
}

/// A map being taken apart.
pub(super) struct Fields<'n> {
    node: &'n Node,
    section: &'static Section,
    entries: &'n [(Key, Node)],
    /// Where fields are looked for that are not here.
    fall_back: &'n [(Key, Node)],
}

impl<'n> Fields<'n> {
    /// Takes a map apart, and reports what its table says is wrong with it: fields that nobody
    /// knows, and fields that are missing.
    pub(super) fn of(
        node: &'n Node,
        section: &'static Section,
        cx: &mut Context<'_>,
    ) -> Option<Self> {
        let Kind::Map(entries) = &node.kind else {
            if !node.is_broken() {
                let what = section.what;
                cx.error(node, format!("expected {what} (a map), found {}", node.describe()));
            }
            return None;
        };
        let fields = Self { node, section, entries, fall_back: &[] };
        fields.check(cx);
        Some(fields)
    }

    /// The map itself.
    pub(super) fn node(&self) -> &'n Node {
        self.node
    }

    /// Takes what is not given here from another map.
    pub(super) fn fall_back_to(&mut self, other: &Self) {
        self.fall_back = other.entries;
    }

    /// A field's node; `None` when it is absent or empty.
    pub(super) fn get(&self, name: &'static str) -> Option<&'n Node> {
        debug_assert!(self.section.field(name).is_some(), "no '{name}' in {}", self.section.what);
        let mut all = self.entries.iter().chain(self.fall_back);
        let entry = all.find(|(key, _)| key.name == name);
        entry.map(|(_, node)| node).filter(|node| !node.is_null())
    }

    /// A field's value. One that is required and missing has been reported.
    pub(super) fn read<T: Read>(&self, name: &'static str, cx: &mut Context<'_>) -> Option<T> {
        self.get(name).and_then(|node| T::read(node, cx))
    }

    fn check(&self, cx: &mut Context<'_>) {
        let what = self.section.what;
        for field in self.section.fields {
            if let Some(such) = field.required.filter(|_| self.get(field.name).is_none()) {
                cx.error(self.node, format!("{what} needs '{}'{such}", field.name));
            }
        }
        for (key, node) in self.entries {
            let name = key.name.as_str();
            match self.section.field(name) {
                Some(field) if field.never_empty && node.is_null() => {
                    let message = format!("'{name}' is empty; without it there would be none");
                    cx.report(Severity::Error, key.span, &node.path, message, None);
                }
                Some(_) => {}
                None => {
                    let help = nearest(name, self.section.names()).unwrap_or_else(|| {
                        let names: Vec<&str> = self.section.names().collect();
                        format!("known here: {}", names.join(", "))
                    });
                    let message = format!("{what} has no field '{name}'");
                    cx.report(Severity::Error, key.span, &node.path, message, Some(help));
                }
            }
        }
    }
}
