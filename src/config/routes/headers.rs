//! Headers that are set and removed.

use crate::config::callers::HEADER_NAME;
use crate::config::read::{Context, Fields, Located, parsed};
use crate::config::section::{Bare, But, Grammar};
use crate::config::sections::routes::REQUEST_HEADERS;
use crate::config::tree::{Kind, Node};
use http::{HeaderName, HeaderValue, header};

type HeaderEdits = (Vec<(HeaderName, HeaderValue)>, Vec<HeaderName>);

pub(super) fn request_headers(fields: &Fields<'_>, cx: &mut Context<'_>) -> HeaderEdits {
    let Some(node) = fields.get("request_headers") else {
        return HeaderEdits::default();
    };
    let Some(fields) = Fields::of(node, &REQUEST_HEADERS, cx) else {
        return HeaderEdits::default();
    };
    let set = fields.get("set").map(|node| headers_by_name(node, cx)).unwrap_or_default();
    let remove: Vec<Located<String>> = fields.read("remove", cx).unwrap_or_default();
    let mut removed = Vec::new();
    for name in remove {
        match editable(&name.value) {
            Ok(header::HOST) => cx.error(&name.node, "a request needs its Host; 'set' changes it"),
            Ok(value) => removed.push(value),
            Err(message) => cx.error(&name.node, message),
        }
    }
    (set, removed)
}

/// Headers that are set, each once.
pub(in crate::config) fn headers_by_name(
    node: &Node,
    cx: &mut Context<'_>,
) -> Vec<(HeaderName, HeaderValue)> {
    let mut set = Vec::new();
    let Kind::Map(entries) = &node.kind else {
        cx.error(node, format!("expected headers by name, found {}", node.describe()));
        return set;
    };
    for (key, value) in entries {
        match set_header(&key.name, value, cx) {
            Some((name, _)) if set.iter().any(|(known, _)| *known == name) => {
                cx.error(value, format!("'{name}' is set twice"));
            }
            edit => set.extend(edit),
        }
    }
    set
}

fn set_header(name: &str, value: &Node, cx: &mut Context<'_>) -> Option<(HeaderName, HeaderValue)> {
    let name = editable(name).map_err(|message| cx.error(value, message)).ok()?;
    let value = parsed(value, cx, "a header value", |text| {
        HeaderValue::from_str(text).map_err(|_| HEADER_VALUE.help.to_owned())
    })?;
    Some((name, value))
}

/// Headers that frame a message or belong to one connection are the gateway's own.
const OWN: [&str; 5] = ["connection", "content-length", "transfer-encoding", "upgrade", "te"];

pub(in crate::config) static EDITABLE: Grammar =
    Grammar::new(HEADER_NAME.pattern, "a header that is not the gateway's own")
        .bare(Bare::Any)
        .but(But::Words(&OWN));

/// A request needs its Host.
pub(in crate::config) static REMOVABLE: Grammar =
    Grammar::new(HEADER_NAME.pattern, "a header that is neither Host nor the gateway's own")
        .bare(Bare::Any)
        .but(But::Words(&[OWN[0], OWN[1], OWN[2], OWN[3], OWN[4], "host"]));

pub(in crate::config) static HEADER_VALUE: Grammar =
    Grammar::new(r"[\t -~]*", "one line of text").bare(Bare::Any);

fn editable(name: &str) -> Result<HeaderName, String> {
    let name: HeaderName = name.parse().map_err(|_| format!("'{name}' is no header name"))?;
    if OWN.contains(&name.as_str()) {
        return Err(format!("'{name}' is the gateway's own"));
    }
    Ok(name)
}
