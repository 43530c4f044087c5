//! What would happen to a request, and why, without sending it: the steps of
//! [`proxy::handle`](crate::proxy::handle), asked one by one by the same functions, and nothing is
//! charged.

use crate::clock::Micros;
use crate::config::model::{AddressSource, Attribute, Host, PathPattern, Route};
use crate::proxy::address::{self, Origin, cut, is_in};
use crate::proxy::claims::{Known, Parts, Silent, apply};
use crate::proxy::destination::Destination;
use crate::proxy::identify::{Beholder, Caller, satisfy};
use crate::proxy::refusal::Refusal;
use crate::snapshot::{Found, Limit, Mismatch, Snapshot, why_not};
use crate::store::{Part, Subject};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Request};
use std::net::IpAddr;

/// What there is to explain with.
#[derive(Debug)]
pub struct Given<'a> {
    /// What the gateway would run on.
    pub snapshot: &'a Snapshot,
    /// The routes as they are written.
    pub routes: &'a [Route],
    /// Who connects.
    pub peer: IpAddr,
    /// The wall clock's time.
    pub wall: Micros,
}

/// What would happen.
#[derive(Debug)]
pub struct Explanation {
    /// The caller's address, and what limits count by.
    pub origin: Origin,
    /// How it was derived.
    pub derived: String,
    /// Host and path as routes match them, or why there are none.
    pub destination: Result<(String, String), String>,
    /// The route's name and its upstream, or why there is none.
    pub route: Result<(String, String), String>,
    /// Every other route, and why it is not the one.
    pub others: Vec<(String, String)>,
    /// Who it is, as far as credentials tell.
    pub caller: Result<Who, String>,
    /// What the gateway itself would answer, the limits aside: the status, and why.
    pub refused: Option<(u16, String)>,
    /// Every limit that guards the request.
    pub limits: Vec<Guard>,
}

/// A caller.
#[derive(Debug)]
pub struct Who {
    /// The user, and their plan.
    pub user: Option<(String, Option<String>)>,
    /// The id of the API key, and its plan.
    pub api_key: Option<(String, Option<String>)>,
    /// No limit applies to them.
    pub exempt: bool,
}

/// A limit that guards a request.
#[derive(Debug)]
pub struct Guard {
    /// Its name.
    pub name: String,
    /// What it counts by, as it is written.
    pub by: String,
    /// N per W, as it holds for this caller.
    pub rate: String,
    /// How it counts.
    pub algorithm: &'static str,
    /// The most tokens there can be, and how many the request takes.
    pub capacity: u32,
    /// See `capacity`.
    pub cost: u32,
    /// It never rejects.
    pub shadow: bool,
    /// Which of its counters, or why it does not apply.
    pub key: Result<String, String>,
}

/// Explains a request.
pub fn explain(given: &Given<'_>, request: &Request<()>) -> Explanation {
    let (snapshot, headers) = (given.snapshot, request.headers());
    let trusted = is_in(&snapshot.identity.trusted_proxies, given.peer);
    let (origin, derived) = derive(given, headers, trusted);
    let destination = Destination::read(request);
    let found = destination.as_ref().ok().map(|destination| {
        snapshot.router.find(&destination.host, destination.path(), request.method())
    });
    let index = match &found {
        Some(Found::Route(index)) => Some(*index),
        _ => None,
    };
    let beholder = Beholder { snapshot, origin, trusted, wall: given.wall };
    let identified = destination.is_ok().then(|| beholder.identify(request));
    let required = index.map(|index| snapshot.routes[index].require).unwrap_or_default();
    let too_much = too_much(snapshot, index, request);
    let refused = match (&destination, &identified) {
        _ if too_much.is_some() => too_much,
        (Err(refusal), _) | (_, Some(Err(refusal))) => Some(told(refusal)),
        (_, Some(Ok(caller))) => satisfy(required, caller).err().as_ref().map(told),
        _ => None,
    };
    let refused = refused.or_else(|| match &found {
        Some(Found::Route(_)) | None => None,
        Some(Found::MethodNotAllowed(allow)) => {
            let allow = allow.to_str().unwrap_or_default();
            Some((405, format!("method not allowed; allowed here: {allow}")))
        }
        Some(Found::Nothing) => Some((404, "no route".to_owned())),
    });
    let good = identified.as_ref().and_then(|caller| caller.as_ref().ok());
    // Who is refused for what they are, or lack, is counted by address alone.
    let ip_only = good.is_none_or(|caller| satisfy(required, caller).is_err());
    Explanation {
        origin,
        derived,
        route: route(given, index, found.as_ref()),
        others: others(given, index, destination.as_ref().ok(), request.method()),
        caller: match &identified {
            Some(Ok(caller)) => Ok(Who::of(caller, snapshot)),
            Some(Err(refusal)) => Err(refusal.to_string()),
            None => Err("nobody was asked".to_owned()),
        },
        refused,
        limits: limits(snapshot, index, origin, good, headers, ip_only),
        destination: match &destination {
            Ok(destination) => Ok((destination.host.clone(), destination.path().to_owned())),
            Err(refusal) => Err(refusal.to_string()),
        },
    }
}

/// Whether it is more than the gateway takes.
fn too_much(
    snapshot: &Snapshot,
    route: Option<usize>,
    request: &Request<()>,
) -> Option<(u16, String)> {
    let (server, headers) = (&snapshot.server, request.headers());
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let most = route.map_or(server.max_body_bytes, |route| snapshot.routes[route].max_body_bytes);
    if headers.len() > server.max_headers {
        Some(told(&Refusal::TooManyHeaders))
    } else if request.uri().path_and_query().map_or(0, |p| p.as_str().len()) > server.max_uri_bytes
    {
        Some(told(&Refusal::UriTooLong))
    } else if length.zip(most).is_some_and(|(length, most): (u64, u64)| length > most) {
        Some(told(&Refusal::TooLarge))
    } else {
        None
    }
}

fn told(refusal: &Refusal) -> (u16, String) {
    (refusal.status().as_u16(), refusal.to_string())
}

/// The caller's address, and how it comes about.
fn derive(given: &Given<'_>, headers: &HeaderMap, trusted: bool) -> (Origin, String) {
    let identity = &given.snapshot.identity;
    let (peer, name) = (given.peer, identity.client_ip.name());
    let said = headers.contains_key(name);
    let ip = if trusted && said { address::forwarded(peer, headers, identity) } else { peer };
    let how = match (said, trusted) {
        (false, false) => "the peer's own".to_owned(),
        (false, true) => format!("the peer's own: a trusted proxy that sends no {name}"),
        (true, false) => {
            format!("the peer's own: it is not in trusted_proxies, so {name} does not count")
        }
        (true, true) if ip == peer => {
            format!(
                "the peer's own: a trusted proxy, but {name} names no other address, or cannot be read"
            )
        }
        (true, true) => match &identity.client_ip {
            AddressSource::Header(_) => format!("{name}, sent by the trusted proxy {peer}"),
            _ => format!("the last in {name} that is no trusted proxy; {peer} is one"),
        },
    };
    let counted = cut(ip, identity.ipv6_prefix);
    let how = if counted == ip {
        how
    } else {
        format!("{how}; counted as {counted}/{}", identity.ipv6_prefix)
    };
    (Origin { ip, counted }, how)
}

fn route(
    given: &Given<'_>,
    index: Option<usize>,
    found: Option<&Found>,
) -> Result<(String, String), String> {
    match (index.map(|index| &given.snapshot.routes[index]), found) {
        (Some(route), _) => {
            let upstream = given.snapshot.upstreams[route.upstream].name();
            Ok((route.name.clone(), upstream.to_owned()))
        }
        (None, Some(Found::MethodNotAllowed(_))) => Err("none for this method".to_owned()),
        (None, Some(_)) => Err("none".to_owned()),
        (None, None) => Err("none is looked for".to_owned()),
    }
}

/// Why the other routes are not the one; those that came nearest first.
fn others(
    given: &Given<'_>,
    index: Option<usize>,
    destination: Option<&Destination>,
    method: &Method,
) -> Vec<(String, String)> {
    let Some(destination) = destination else { return Vec::new() };
    let others = given.routes.iter().enumerate().filter(|(other, _)| Some(*other) != index);
    let mut told: Vec<(u8, (String, String))> = others
        .map(|(_, route)| {
            let why = why_not(route, &destination.host, destination.path(), method);
            let (rank, why) = match why {
                None => (0, "it matches, but is less specific".to_owned()),
                Some(Mismatch::Method) => (1, format!("it is for {}", methods(route))),
                Some(Mismatch::Path) => (2, format!("its path is {}", path(route))),
                Some(Mismatch::Host) => (3, format!("it is for {}", hosts(route))),
            };
            (rank, (route.name.clone(), why))
        })
        .collect();
    told.sort_by_key(|(rank, _)| *rank);
    told.into_iter().map(|(_, told)| told).collect()
}

fn methods(route: &Route) -> String {
    route.methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ")
}

fn path(route: &Route) -> String {
    match &route.path {
        PathPattern::Exact(path) => path.clone(),
        PathPattern::Prefix(prefix) => format!("{prefix}/*"),
    }
}

fn hosts(route: &Route) -> String {
    let host = |host: &Host| match host {
        Host::Exact(name) => name.clone(),
        Host::Below(name) => format!("*.{name}"),
    };
    route.hosts.iter().map(host).collect::<Vec<_>>().join(", ")
}

fn limits(
    snapshot: &Snapshot,
    route: Option<usize>,
    origin: Origin,
    caller: Option<&Caller>,
    headers: &HeaderMap,
    ip_only: bool,
) -> Vec<Guard> {
    let anonymous = Caller::anonymous(snapshot, origin);
    let caller = caller.unwrap_or(&anonymous);
    let known = Known { ip: Some(origin.counted), caller, headers, ip_only };
    let all = route.map_or(&snapshot.guards, |index| &snapshot.routes[index].limits);
    let guard = |limit: &std::sync::Arc<Limit>| {
        let mut parts = Parts::new();
        let key = match apply(limit, &known, &mut parts) {
            _ if caller.exempt => Err("the caller is exempt".to_owned()),
            Ok(()) => Ok(key(Subject(&parts))),
            Err(Silent::Lacks(attribute)) => Err(format!("the caller has no {}", attribute.name())),
            Err(Silent::Has(attribute)) => {
                Err(format!("the caller has {}", with_article(attribute)))
            }
            Err(Silent::IpOnly) => Err("a request that is refused counts by address".to_owned()),
        };
        let quota = limit.quota(limit.quota_index(caller.plan(&limit.by)));
        Guard {
            name: limit.name.clone(),
            by: limit.by_name(),
            rate: quota.written(),
            algorithm: limit.algorithm,
            capacity: quota.capacity(),
            cost: limit.cost.up_front(),
            shadow: limit.shadow,
            key,
        }
    };
    all.iter().map(guard).collect()
}

fn with_article(attribute: &Attribute) -> String {
    match attribute {
        Attribute::Ip | Attribute::ApiKey => format!("an {}", attribute.name()),
        Attribute::User | Attribute::Header(_) => format!("a {}", attribute.name()),
    }
}

/// What a limit counts by, as it is written: `api_key:acme, ip:203.0.113.7`, or `*` for everybody.
pub fn key(subject: Subject<'_>) -> String {
    let part = |part: &Part<'_>| match part {
        Part::Ip(ip) => format!("ip:{ip}"),
        Part::User(user) => format!("user:{user}"),
        Part::ApiKey(id) => format!("api_key:{id}"),
        Part::Header(value) => format!("header:{}", String::from_utf8_lossy(value)),
    };
    let parts: Vec<String> = subject.0.iter().map(part).collect();
    if parts.is_empty() { "*".to_owned() } else { parts.join(", ") }
}

impl Who {
    fn of(caller: &Caller, snapshot: &Snapshot) -> Self {
        let plan = |index: usize| snapshot.plans.get(index).map(|plan| plan.name.clone());
        let (user, key) = (caller.user.clone(), caller.api_key.as_deref());
        Self {
            user: user.map(|user| (user, plan(caller.user_plan))),
            api_key: key.map(|id| (id.to_owned(), plan(caller.key_plan))),
            exempt: caller.exempt,
        }
    }
}
