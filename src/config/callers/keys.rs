//! `identity.api_key`: the keys, in the file or in one of their own.

use super::{plan_index, read_file};
use crate::config::diagnostics::Source;
use crate::config::model::{ApiKey, ApiKeys, KeyPlace, Plan};
use crate::config::read::{Context, Fields, Located, Read, parsed};
use crate::config::root;
use crate::config::section::{Grammar, Shape};
use crate::config::sections::callers::{API_KEY, API_KEYS};
use crate::config::tree::{Kind, Node};
use http::HeaderName;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

pub(super) fn api_keys(node: &Node, plans: &[Plan], cx: &mut Context<'_>) -> Option<ApiKeys> {
    let fields = Fields::of(node, &API_KEYS, cx)?;
    let header: Option<HeaderName> = fields.read("header", cx);
    let query: Option<String> = fields.read("query", cx);
    let inline = fields.get("keys");
    let file: Option<Located<String>> = fields.read("keys_file", cx);
    let place = match (header, query) {
        (Some(name), None) => KeyPlace::Header(name),
        (None, Some(name)) => KeyPlace::Query(name),
        (None, None) => KeyPlace::Header(HeaderName::from_static("x-api-key")),
        (Some(_), Some(_)) => {
            cx.error(node, "an API key is either in a 'header' or in a 'query' parameter");
            KeyPlace::Query(String::new())
        }
    };
    let mut keys = BTreeMap::new();
    match (inline, file) {
        (Some(list), None) => read_keys(list, plans, &mut keys, cx),
        (None, Some(path)) => {
            let text = read_file(&path, cx)?;
            let full = cx.resolve(&path.value);
            in_file(&full, text, cx, |node, cx| {
                read_keys(list_of_keys(node), plans, &mut keys, cx);
            });
        }
        _ => cx.error(node, "API keys are given either as 'keys' or in a 'keys_file'"),
    }
    Some(ApiKeys { place, keys })
}

/// Reads another file; its errors point into it.
fn in_file(
    path: &Path,
    text: String,
    cx: &mut Context<'_>,
    read: impl FnOnce(&Node, &mut Context<'_>),
) {
    let source = Arc::new(Source::new(path.display().to_string(), text));
    let outer = std::mem::replace(&mut cx.source, Arc::clone(&source));
    if let Some(node) = root(&source, &KEYS_FILE, cx) {
        read(&node, cx);
    }
    cx.source = outer;
}

/// What a file of keys holds.
static KEYS_FILE: Shape = Shape::Either(&[LIST, Shape::ByName(&LIST)]);
const LIST: Shape = Shape::List(&Shape::Map(&API_KEY), 0);

/// A file of keys may say `keys:` above its list, as the main file does.
fn list_of_keys(root: &Node) -> &Node {
    match &root.kind {
        Kind::Map(entries) => match entries.as_slice() {
            [(key, list)] if key.name == "keys" => list,
            _ => root,
        },
        _ => root,
    }
}

fn read_keys(
    list: &Node,
    plans: &[Plan],
    keys: &mut BTreeMap<[u8; 32], ApiKey>,
    cx: &mut Context<'_>,
) {
    let nodes = match &list.kind {
        Kind::List(nodes) => nodes.as_slice(),
        _ if list.is_null() => &[],
        _ => {
            return cx.error(list, format!("expected a list of keys, found {}", list.describe()));
        }
    };
    let mut ids: HashSet<_> = keys.values().map(|key| key.id.clone()).collect();
    for node in nodes {
        let Some((hash, key)) = read_key(node, plans, cx) else {
            continue;
        };
        if !ids.insert(key.id.clone()) {
            cx.error(node, format!("two keys have the id '{}'", key.id));
        }
        if keys.insert(hash, key).is_some() {
            cx.error(node, "this key is in the list already");
        }
    }
}

fn read_key(node: &Node, plans: &[Plan], cx: &mut Context<'_>) -> Option<([u8; 32], ApiKey)> {
    let fields = Fields::of(node, &API_KEY, cx)?;
    let id: Option<String> = fields.read("id", cx);
    let hash: Option<Sha256> = fields.read("sha256", cx);
    let plan = fields.get("plan").and_then(|node| plan_index(node, plans, cx));
    Some((hash?.0, ApiKey { id: id?.into(), plan }))
}

/// (A hash of 64 decimal digits would look like a number. None will be seen.)
pub(in crate::config) static SHA256: Grammar =
    Grammar::new("[0-9A-Fa-f]{64}", "64 hexadecimal digits, as `sluice key new` prints them");

struct Sha256([u8; 32]);

impl Read for Sha256 {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "a SHA-256", |text| {
            let digits: Option<Vec<u8>> =
                text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
            let bytes =
                digits.map(|d| d.chunks_exact(2).map(|p| p[0] << 4 | p[1]).collect::<Vec<_>>());
            let hash = bytes.filter(|_| text.len() == 64).and_then(|bytes| bytes.try_into().ok());
            hash.map(Self).ok_or_else(|| SHA256.help.to_owned())
        })
    }
}
