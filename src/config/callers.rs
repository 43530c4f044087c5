//! Sections about who callers are: `identity`, `plans`, `default_plan`, `exempt`.

pub(super) mod keys;

use super::diagnostics::nearest;
use super::grammar;
use super::model::{AddressSource, Exempt, Identity, Plan, Priority, UserSource, WrittenRate};
use super::read::{Context, Fields, Located, Read, parsed, text};
use super::section::{Bare, But, Grammar};
use super::sections::callers::{CLIENT_IP, EXEMPT, IDENTITY, JWT, USER};
use super::tree::{Kind, Node};
use crate::clock::micros;
use crate::limit::Quota;
use crate::token::{Rules, Verifier};
use http::HeaderName;
use ipnet::IpNet;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// What the rest of the file refers to.
pub(super) struct Callers {
    pub(super) identity: Identity,
    /// Whether the file says how users are known, be it wrongly.
    pub(super) knows_users: bool,
    /// Whether the file says how API keys are known, be it wrongly.
    pub(super) knows_keys: bool,
    pub(super) plans: Vec<Plan>,
    /// Plan and name of rates that are there but could not be read.
    pub(super) unreadable_rates: HashSet<(String, String)>,
    pub(super) default_plan: usize,
    pub(super) exempt: Exempt,
}

impl Callers {
    pub(super) fn read(fields: &Fields<'_>, cx: &mut Context<'_>) -> Self {
        let mut unreadable_rates = HashSet::new();
        let plans = plans(fields, &mut unreadable_rates, cx);
        let default_plan = default_plan(fields, &plans, cx);
        let node = fields.get("identity");
        let says = |name: &str| match node.map(|node| &node.kind) {
            Some(Kind::Map(entries)) => entries.iter().any(|(key, _)| key.name == name),
            _ => false,
        };
        let (knows_users, knows_keys) = (says("user"), says("api_key"));
        let identity = node.and_then(|node| identity(node, &plans, cx));
        let identity = identity.unwrap_or(Identity { ipv6_prefix: 64, ..Identity::default() });
        let exempt = fields.get("exempt").and_then(|node| exempt(node, &identity, knows_keys, cx));
        Self {
            identity,
            knows_users,
            knows_keys,
            plans,
            unreadable_rates,
            default_plan,
            exempt: exempt.unwrap_or_default(),
        }
    }
}

pub(super) static HEADER_NAME: Grammar =
    Grammar::new(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "a header name looks like X-User-Id")
        .bare(Bare::Any);

impl Read for HeaderName {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "a header name", |text| {
            text.parse().map_err(|_| HEADER_NAME.help.to_owned())
        })
    }
}

pub(super) static ADDRESS_SOURCE: Grammar = Grammar::new(
    r"x-forwarded-for|forwarded|header:[!#$%&'*+.^_`|~0-9A-Za-z-]+",
    "one of: x-forwarded-for, forwarded, header:NAME",
);

impl Read for AddressSource {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "a header that names addresses", |text| {
            let name = match text {
                "x-forwarded-for" | "forwarded" => text,
                _ => text.strip_prefix("header:").ok_or_else(|| {
                    let words = ["x-forwarded-for", "forwarded", "header:"];
                    nearest(text, words).unwrap_or_else(|| ADDRESS_SOURCE.help.to_owned())
                })?,
            };
            let name: HeaderName = name.parse().map_err(|_| HEADER_NAME.help.to_owned())?;
            Ok(match name.as_str() {
                "x-forwarded-for" => Self::XForwardedFor,
                "forwarded" => Self::Forwarded,
                _ => Self::Header(name),
            })
        })
    }
}

pub(super) static NETWORK: Grammar = Grammar::new(
    r"[0-9]+(\.[0-9]+){3}(/(0?[0-9]|[12][0-9]|3[0-2]))?|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(/[0-9]{1,3})?",
    "an address looks like 192.0.2.7 or 2001:db8::1, a network like 10.0.0.0/8",
);

impl Read for IpNet {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "an address or network", |text| {
            let address = text.parse::<IpAddr>().map(|ip| IpNet::from(ip.to_canonical()));
            let network = || text.parse::<IpNet>().map(|net| canonical(net.trunc()));
            address.or_else(|_| network()).map_err(|_| NETWORK.help.to_owned())
        })
    }
}

/// Callers' addresses are compared as IPv4 where they are IPv4 in IPv6's clothes.
fn canonical(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
        (IpAddr::V4(ip), Some(prefix)) if network.addr().is_ipv6() => {
            IpNet::new(ip.into(), prefix).unwrap_or(network)
        }
        _ => network,
    }
}

impl Read for WrittenRate {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "a rate", grammar::rate)
    }
}

fn plans(
    fields: &Fields<'_>,
    unreadable: &mut HashSet<(String, String)>,
    cx: &mut Context<'_>,
) -> Vec<Plan> {
    let Some(node) = fields.get("plans") else {
        return Vec::new();
    };
    let Kind::Map(entries) = &node.kind else {
        cx.error(node, format!("expected plans by name, found {}", node.describe()));
        return Vec::new();
    };
    entries.iter().filter_map(|(key, node)| plan(&key.name, node, unreadable, cx)).collect()
}

/// Every field of a plan but `burst` and `priority` is a rate that limits can name.
fn plan(
    name: &str,
    node: &Node,
    unreadable: &mut HashSet<(String, String)>,
    cx: &mut Context<'_>,
) -> Option<Plan> {
    let Kind::Map(entries) = &node.kind else {
        let help = "a plan looks like { rate: 60/minute, burst: 10 }".to_owned();
        cx.error_with_help(node, format!("expected a plan, found {}", node.describe()), help);
        return None;
    };
    let mut plan =
        Plan { name: name.to_owned(), rates: BTreeMap::new(), burst: None, priority: None };
    for (key, node) in entries {
        match key.name.as_str() {
            "burst" => plan.burst = u32::read(node, cx),
            "priority" => plan.priority = Priority::read(node, cx),
            rate => match WrittenRate::read(node, cx) {
                Some(read) => drop(plan.rates.insert(rate.to_owned(), read)),
                None => drop(unreadable.insert((name.to_owned(), rate.to_owned()))),
            },
        }
    }
    for (name, rate) in &plan.rates {
        let burst = plan.burst.filter(|_| name == "rate");
        if let Err(error) = Quota::token_bucket(rate.rate, burst) {
            cx.error(node, format!("'{name}' of the plan '{}': {error}", plan.name));
        }
    }
    Some(plan)
}

fn default_plan(fields: &Fields<'_>, plans: &[Plan], cx: &mut Context<'_>) -> usize {
    match fields.get("default_plan") {
        Some(node) => plan_index(node, plans, cx).unwrap_or(0),
        None if plans.len() > 1 => {
            cx.error_with_help(
                fields.node(),
                "with several plans, 'default_plan' must name one of them",
                format!("default_plan: {}", plans[0].name),
            );
            0
        }
        None => 0,
    }
}

fn plan_index(node: &Node, plans: &[Plan], cx: &mut Context<'_>) -> Option<usize> {
    let name = text(node, cx, "a plan")?;
    let index = plans.iter().position(|plan| plan.name == name);
    if index.is_none() {
        let help = nearest(name, plans.iter().map(|plan| plan.name.as_str()));
        cx.error_with_help(node, format!("there is no plan '{name}'"), help);
    }
    index
}

fn identity(node: &Node, plans: &[Plan], cx: &mut Context<'_>) -> Option<Identity> {
    let fields = Fields::of(node, &IDENTITY, cx)?;
    let trusted_proxies: Vec<IpNet> = fields.read("trusted_proxies", cx).unwrap_or_default();
    let ipv6_prefix = fields.get("ipv6_prefix").and_then(|node| {
        let prefix = u32::read(node, cx)?;
        if !(16..=128).contains(&prefix) {
            cx.error(node, "an IPv6 prefix is between 16 and 128 bits long");
        }
        u8::try_from(prefix).ok()
    });
    let user = fields.get("user").and_then(|node| user(node, &trusted_proxies, cx));
    let api_key = fields.get("api_key").and_then(|node| keys::api_keys(node, plans, cx));
    let client_ip = fields.get("client_ip").and_then(|node| {
        let from = Fields::of(node, &CLIENT_IP, cx)?.read("from", cx)?;
        if trusted_proxies.is_empty() {
            cx.warn(node, "without 'trusted_proxies' no header names the caller's address");
        }
        Some(from)
    });
    let (client_ip, ipv6_prefix) = (client_ip.unwrap_or_default(), ipv6_prefix.unwrap_or(64));
    Some(Identity { trusted_proxies, client_ip, ipv6_prefix, user, api_key })
}

fn user(node: &Node, trusted: &[IpNet], cx: &mut Context<'_>) -> Option<UserSource> {
    let fields = Fields::of(node, &USER, cx)?;
    let (jwt_node, header_node) = (fields.get("jwt"), fields.get("header"));
    match (jwt_node, header_node) {
        (Some(node), None) => jwt(node, cx).map(|verifier| UserSource::Jwt(Arc::new(verifier))),
        (None, Some(node)) => {
            if trusted.is_empty() {
                cx.warn(node, "without 'trusted_proxies' nobody can set this header");
            }
            HeaderName::read(node, cx).map(UserSource::Header)
        }
        _ => {
            cx.error(node, "a user is known either by 'jwt' or by 'header'");
            None
        }
    }
}

/// A file of keys.
pub(super) static KEY_SET: Grammar =
    Grammar::new(r"[\s\S]*", "name a file for now").bare(Bare::Any).but(But::Like("://"));

fn jwt(node: &Node, cx: &mut Context<'_>) -> Option<Verifier> {
    let fields = Fields::of(node, &JWT, cx)?;
    let (secret, jwks) = (fields.get("secret"), fields.get("jwks"));
    let leeway = fields.read("leeway", cx).unwrap_or(Duration::from_secs(5));
    let rules = Rules {
        claim: fields.read("claim", cx).unwrap_or_else(|| "sub".into()),
        plan_claim: fields.read("plan_claim", cx),
        issuer: fields.read("issuer", cx),
        audience: fields.read("audience", cx).unwrap_or_default(),
        leeway: micros(leeway),
    };
    match (secret, jwks) {
        (Some(node), None) => {
            let secret = text(node, cx, "a secret")?;
            if secret.len() < 32 {
                cx.warn(node, "an HS256 secret should be at least 32 bytes long");
            }
            Some(Verifier::with_secret(secret.as_bytes(), rules))
        }
        (None, Some(node)) => {
            let path = Located::<String>::read(node, cx)?;
            if path.value.contains("://") {
                let help = KEY_SET.help.to_owned();
                cx.error_with_help(node, "a key set from a URL is not supported yet", help);
                return None;
            }
            let json = read_file(&path, cx)?;
            let verifier = Verifier::with_key_set(&json, rules);
            verifier.map_err(|error| cx.error(node, error.to_string())).ok()
        }
        _ => {
            cx.error(node, "tokens are verified either by 'jwks' or by 'secret'");
            None
        }
    }
}

/// Reads a file that the configuration names, and has it watched.
fn read_file(path: &Located<String>, cx: &mut Context<'_>) -> Option<String> {
    let full = cx.resolve(&path.value);
    let text = cx.files.read_text(&full);
    text.map_err(|error| cx.error(&path.node, format!("cannot read {}: {error}", full.display())))
        .ok()
}

fn exempt(
    node: &Node,
    identity: &Identity,
    knows_keys: bool,
    cx: &mut Context<'_>,
) -> Option<Exempt> {
    let fields = Fields::of(node, &EXEMPT, cx)?;
    let ips = fields.read("ips", cx).unwrap_or_default();
    let ids: Vec<Located<String>> = fields.read("api_keys", cx).unwrap_or_default();
    let keys = identity.api_key.iter().flat_map(|keys| keys.keys.values());
    let known: HashSet<&str> = keys.map(|key| &*key.id).collect();
    for id in &ids {
        // Keys that could not be read have been reported.
        let unread = knows_keys && identity.api_key.is_none();
        if !unread && !known.contains(id.value.as_str()) {
            let help = nearest(&id.value, known.iter().copied());
            cx.error_with_help(&id.node, format!("there is no API key '{}'", id.value), help);
        }
    }
    Some(Exempt { ips, api_keys: ids.into_iter().map(|id| id.value).collect() })
}
