//! Routes: which requests go where, and what guards them.

pub(super) mod headers;

use super::callers::Callers;
use super::diagnostics::nearest;
use super::edge;
use super::limits::{self, Names, valid_name};
use super::model::{Host, PathPattern, Require, Route, Upstream};
use super::read::{Context, Fields, Located, Read, one_of, parsed, text};
use super::section::{Bare, But, Grammar};
use super::sections::routes::{REWRITE, ROUTE};
use super::tree::{Kind, Node};
use crate::path::normalise;
use http::Method;
use std::collections::HashMap;

/// What routes refer to.
pub(super) struct Shared<'a> {
    pub(super) callers: &'a Callers,
    pub(super) upstreams: &'a [Upstream],
    pub(super) max_body_bytes: Option<u64>,
}

pub(super) fn read_all(
    fields: &Fields<'_>,
    shared: &Shared<'_>,
    names: &mut Names,
    cx: &mut Context<'_>,
) -> Vec<Route> {
    let Some(node) = fields.get("routes") else { return Vec::new() };
    let Kind::List(nodes) = &node.kind else {
        cx.error(node, format!("expected a list of routes, found {}", node.describe()));
        return Vec::new();
    };
    let mut routes = Vec::new();
    let mut taken = HashMap::new();
    for node in nodes {
        let Some(route) = route(node, shared, names, cx) else {
            continue;
        };
        claim(&route, node, &mut taken, cx);
        routes.push(route);
    }
    routes
}

/// No two routes answer to the same host, path and method: neither would be more specific.
fn claim(
    route: &Route,
    node: &Node,
    taken: &mut HashMap<(Option<Host>, PathPattern, Option<Method>), usize>,
    cx: &mut Context<'_>,
) {
    let hosts = either_or_none(&route.hosts);
    let methods = either_or_none(&route.methods);
    let all = hosts.flat_map(|host| methods.clone().map(move |method| (host.clone(), method)));
    for (host, method) in all {
        if let Some(line) = taken.insert((host, route.path.clone(), method), node.span.line) {
            let message =
                format!("the route on line {line} answers to the same host, path and method");
            return cx.error(node, message);
        }
    }
}

fn either_or_none<T: Clone>(items: &[T]) -> impl Iterator<Item = Option<T>> + Clone {
    let none = items.is_empty().then_some(None);
    items.iter().cloned().map(Some).chain(none)
}

fn route(
    node: &Node,
    shared: &Shared<'_>,
    names: &mut Names,
    cx: &mut Context<'_>,
) -> Option<Route> {
    let fields = Fields::of(node, &ROUTE, cx)?;
    let path: Option<Located<PathPattern>> = fields.read("path", cx);
    // A route is called by its path unless it has a name; either goes into headers and metrics.
    let called = fields.get("name").or_else(|| fields.get("path"));
    let name = called.and_then(|node| parsed(node, cx, "a name", valid_name));
    let hosts = fields.read("hosts", cx).unwrap_or_default();
    let methods = fields.read("methods", cx).unwrap_or_default();
    let upstream: Option<Located<String>> = fields.read("upstream", cx);
    let upstream = upstream.and_then(|name| upstream_index(&name, shared.upstreams, cx));
    let require = fields.get("require").map(|node| require(node, shared.callers, cx));
    let limits = limits::read_all(
        fields.get("limits"),
        name.as_deref().unwrap_or("route"),
        shared.callers,
        names,
        cx,
    );
    let strip_prefix = rewrite(&fields, path.as_ref().map(|path| &path.value), cx);
    let (set_headers, remove_headers) = headers::request_headers(&fields, cx);
    let max_body_bytes = edge::max_body(&fields, cx, shared.max_body_bytes);
    let priority = fields.read("priority", cx);
    Some(Route {
        name: name?,
        hosts,
        path: path?.value,
        methods,
        upstream: upstream?,
        priority,
        require: require.unwrap_or_default(),
        limits,
        strip_prefix,
        set_headers,
        remove_headers,
        max_body_bytes,
    })
}

fn upstream_index(
    name: &Located<String>,
    upstreams: &[Upstream],
    cx: &mut Context<'_>,
) -> Option<usize> {
    let index = upstreams.iter().position(|upstream| upstream.name == name.value);
    if index.is_none() {
        let help = nearest(&name.value, upstreams.iter().map(|upstream| upstream.name.as_str()));
        cx.error_with_help(&name.node, format!("there is no upstream '{}'", name.value), help);
    }
    index
}

pub(super) static PATH: Grammar = Grammar::new(
    r#"/|/\*|(/[!"$-)+-.0->@-\[\]-~]+)+(/\*?)?"#,
    "a path looks like /login or /api/*",
)
.but(But::Like(r"/\.\.?(/|$)"));

impl Read for PathPattern {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "a path", |text| {
            let (path, prefix) = match text.strip_suffix("/*") {
                Some(prefix) => (prefix, true),
                None => (text, text == "/"),
            };
            if path.contains(['*', '?']) {
                return Err("a '*' stands only at the end, as in /api/*; a '?' has no place".into());
            }
            if path.contains(';') {
                return Err(
                    "what follows a ';' is left out of matching, so it has no place here".into()
                );
            }
            if prefix && text != "/" && path.ends_with('/') {
                return Err(format!("write it as '{}/*'", path.trim_end_matches('/')));
            }
            let whole = if path.is_empty() { "/" } else { path };
            let normal = normalise(whole).map_err(|error| error.to_string())?;
            if normal != whole {
                return Err(format!("write it as '{normal}'"));
            }
            Ok(if prefix {
                Self::Prefix(path.trim_end_matches('/').to_owned())
            } else {
                Self::Exact(path.to_owned())
            })
        })
    }
}

pub(super) static HOST: Grammar = Grammar::new(
    r"(\*\.)?([A-Za-z0-9_-][A-Za-z0-9._-]*|\[.*\]\.*)",
    "a host looks like api.example.com or *.example.com, without a port",
)
.bare(Bare::Any);

impl Read for Host {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "a host", |text| {
            let lower = text.trim_end_matches('.').to_ascii_lowercase();
            let (name, below) = match lower.strip_prefix("*.") {
                Some(name) => (name, true),
                None => (lower.as_str(), false),
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            let address = name.starts_with('[') && name.ends_with(']');
            if name.is_empty() || !(address || name.chars().all(plain)) || name.starts_with('.') {
                return Err(HOST.help.into());
            }
            Ok(if below { Self::Below(name.to_owned()) } else { Self::Exact(name.to_owned()) })
        })
    }
}

pub(super) static METHOD: Grammar =
    Grammar::new(r"[!#$%&'*+.^_`|~0-9A-Z-]+", "a method looks like GET or POST")
        .bare(Bare::Any)
        .but(But::Words(&["CONNECT", "TRACE"]));

impl Read for Method {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "a method", |text| {
            let method: Method = text.parse().map_err(|_| METHOD.help)?;
            match method {
                Method::CONNECT | Method::TRACE => {
                    Err("CONNECT and TRACE are never forwarded".into())
                }
                _ if text.chars().any(|c| c.is_ascii_lowercase()) => {
                    Err(format!("methods are written in capitals: {}", text.to_ascii_uppercase()))
                }
                _ => Ok(method),
            }
        })
    }
}

/// What callers can be asked for, one by one.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Required {
    User,
    ApiKey,
    Any,
}

pub(super) const REQUIRED: [(&str, Required); 3] =
    [("api_key", Required::ApiKey), ("user", Required::User), ("any", Required::Any)];

fn require(node: &Node, callers: &Callers, cx: &mut Context<'_>) -> Require {
    let (list, nodes) = match &node.kind {
        Kind::List(nodes) => (true, nodes.as_slice()),
        _ => (false, std::slice::from_ref(node)),
    };
    let mut require = Require::default();
    let mut broken = false;
    for node in nodes {
        match one_of(node, cx, "something to require", &REQUIRED) {
            Some(Required::User) => require.user = true,
            Some(Required::ApiKey) => require.api_key = true,
            Some(Required::Any) if list => cx.error(node, "'any' stands alone"),
            Some(Required::Any) => require = Require { user: true, api_key: true, either: true },
            None => broken = true,
        }
    }
    let known = (callers.knows_users, callers.knows_keys);
    let satisfiable = if require.either {
        known.0 || known.1
    } else {
        (!require.user || known.0) && (!require.api_key || known.1)
    };
    if !satisfiable && !broken {
        cx.error(node, "nobody could present this: 'identity' does not say how it is known");
    }
    require
}

pub(super) static STRIPPED: Grammar =
    Grammar::new(r"/[^/][\s\S]*", "what the route's path begins with");

fn rewrite(
    fields: &Fields<'_>,
    path: Option<&PathPattern>,
    cx: &mut Context<'_>,
) -> Option<String> {
    let node = fields.get("rewrite")?;
    let fields = Fields::of(node, &REWRITE, cx)?;
    let strip = fields.get("strip_prefix");
    let prefix = text(strip?, cx, "a path")?.trim_end_matches('/').to_owned();
    let of_route = match path? {
        PathPattern::Exact(path) | PathPattern::Prefix(path) => path,
    };
    let fits =
        of_route.strip_prefix(&prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if !fits || prefix.is_empty() {
        let help = format!("the route's path is '{of_route}'");
        cx.error_with_help(strip?, "the route's path does not begin with this", help);
    }
    Some(prefix)
}
