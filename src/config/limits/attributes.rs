//! What callers are told apart by: `by` and `unless`.

use crate::config::callers::Callers;
use crate::config::diagnostics::nearest;
use crate::config::model::Attribute;
use crate::config::read::{Context, Located, Read, parsed};
use crate::config::section::Grammar;
use crate::config::tree::{Kind, Node};
use http::HeaderName;

/// What a limit counts by: attributes, or nothing for `global`.
pub(super) fn by(node: &Node, callers: &Callers, cx: &mut Context<'_>) -> Option<Vec<Attribute>> {
    if let Kind::Scalar(scalar) = &node.kind
        && scalar.text == "global"
    {
        return Some(Vec::new());
    }
    if matches!(&node.kind, Kind::List(items) if items.is_empty()) {
        cx.error(node, "'by' needs at least one attribute");
        return None;
    }
    attributes(node, callers, cx)
}

pub(super) fn unless(
    node: &Node,
    callers: &Callers,
    cx: &mut Context<'_>,
) -> Option<Vec<Attribute>> {
    let attributes = attributes(node, callers, cx)?;
    if attributes.contains(&Attribute::Ip) {
        cx.error(node, "every caller has an address: this limit would never apply");
    }
    Some(attributes)
}

fn attributes(node: &Node, callers: &Callers, cx: &mut Context<'_>) -> Option<Vec<Attribute>> {
    let read: Vec<Located<Attribute>> = Vec::read(node, cx)?;
    for (index, attribute) in read.iter().enumerate() {
        if read[..index].iter().any(|other| other.value == attribute.value) {
            cx.error(&attribute.node, "this attribute is named twice");
        }
        let unknown = match attribute.value {
            Attribute::User => !callers.knows_users,
            Attribute::ApiKey => !callers.knows_keys,
            Attribute::Ip | Attribute::Header(_) => false,
        };
        if unknown {
            let name = attribute.value.name();
            cx.warn(&attribute.node, format!("without 'identity.{name}' no caller ever has this"));
        }
    }
    let asked = if let Kind::List(items) = &node.kind { items.len() } else { 1 };
    (read.len() == asked).then(|| read.into_iter().map(|attribute| attribute.value).collect())
}

pub(in crate::config) static ATTRIBUTE: Grammar = Grammar::new(
    r"ip|user|api_key|header:[!#$%&'*+.^_`|~0-9A-Za-z-]+",
    "one of: ip, user, api_key, header:NAME, global",
);

/// What not every caller has.
pub(in crate::config) static SOME_HAVE: Grammar = Grammar::new(
    r"user|api_key|header:[!#$%&'*+.^_`|~0-9A-Za-z-]+",
    "one of: user, api_key, header:NAME",
);

impl Read for Attribute {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "something to count by", |text| match text {
            "ip" => Ok(Self::Ip),
            "user" => Ok(Self::User),
            "api_key" => Ok(Self::ApiKey),
            "global" => Err("'global' stands alone".to_owned()),
            _ => match text.strip_prefix("header:").map(str::parse::<HeaderName>) {
                Some(Ok(name)) => Ok(Self::Header(name)),
                Some(Err(_)) => Err("a header looks like header:X-Tenant".to_owned()),
                None => {
                    let words = ["ip", "user", "api_key", "global", "header:"];
                    let list = || ATTRIBUTE.help.to_owned();
                    Err(nearest(text, words).unwrap_or_else(list))
                }
            },
        })
    }
}
