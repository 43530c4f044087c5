//! `sluice explain`: what would happen to a request, and why. Nothing is charged.

use super::Outcome;
use super::client::{Admin, encoded};
use super::output::print;
use super::paint::{Paint, printable};
use crate::clock::Clock;
use crate::config::{self, Config, Loaded};
use crate::explain::{Explanation, Given, Guard, explain};
use crate::metrics::Metrics;
use crate::overrides::Bans;
use crate::snapshot::{Lasting, Snapshot};
use crate::store::{Memory, Store};
use crate::upstream::names::{Names, Resolver};
use http::header::HOST;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;

/// Routes that are told one by one; of more there is a number.
const ROUTES: usize = 12;

/// What is asked.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The configuration
    #[arg(short, long, default_value = "gateway.yaml", value_name = "FILE")]
    config: PathBuf,
    /// The method
    method: String,
    /// What is asked for: a URL, or a path
    url: String,
    /// A header, as in curl; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Who connects: the caller, or the last proxy before the gateway
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    ip: IpAddr,
    /// A running gateway's admin listener: what is left of each limit right now
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// The admin listener's token [default: `SLUICE_ADMIN_TOKEN` of the environment]
    #[arg(long, value_name = "TOKEN", requires = "admin")]
    token: Option<String>,
    /// For machines
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: Arguments) -> Outcome {
    let Loaded { config, .. } = config::load(&arguments.config)?;
    let request = request(&arguments)?;
    let explained = offline(config, arguments.ip, &request);
    let live = match &arguments.admin {
        Some(url) => Some(ask(&Admin::at(url, arguments.token)?, &explained, &request)?),
        None => None,
    };
    if arguments.json {
        Ok(print(&format!("{:#}\n", as_json(&explained, live.as_ref())))?)
    } else {
        Ok(print(&as_text(&explained, &request, live.as_ref(), Paint::for_stdout()))?)
    }
}

/// The request that is explained.
fn request(arguments: &Arguments) -> Result<Request<()>, Box<dyn std::error::Error>> {
    let url: Uri = arguments.url.parse().map_err(|_| format!("'{}' is no URL", arguments.url))?;
    let method: Method = arguments.method.parse()?;
    let target = url.path_and_query().map_or("/", |target| target.as_str());
    let mut request = Request::builder().method(method).uri(target).body(())?;
    for header in &arguments.headers {
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| format!("'{header}' is no header; it looks like X-Api-Key: abc"))?;
        let name: HeaderName = name.trim().parse()?;
        request.headers_mut().append(name, HeaderValue::from_str(value.trim())?);
    }
    if !request.headers().contains_key(HOST) {
        let host = url.authority().map_or("localhost", |authority| authority.as_str());
        request.headers_mut().insert(HOST, HeaderValue::from_str(host)?);
    }
    Ok(request)
}

/// Explains by the file alone.
fn offline(config: Config, peer: IpAddr, request: &Request<()>) -> Explanation {
    let (store, metrics) = (Store::Memory(Memory::new(1)), Metrics::new(1));
    let names = Names::new(Resolver::System);
    let (routes, clock) = (config.routes.clone(), Clock::system());
    let bans = Bans::default();
    let lasting =
        Lasting { store: &store, bans: &bans, metrics: &metrics, names: &names, previous: None };
    let snapshot = Snapshot::build(config, clock.now(), lasting);
    let wall = clock.wall(clock.now());
    let peer = peer.to_canonical();
    explain(&Given { snapshot: &snapshot, routes: &routes, peer, wall }, request)
}

/// What the running gateway says of the caller.
fn ask(
    admin: &Admin,
    explained: &Explanation,
    request: &Request<()>,
) -> Result<Value, Box<dyn std::error::Error>> {
    let mut query = format!("ip={}", encoded(&explained.origin.ip.to_string()));
    if let Ok(who) = &explained.caller {
        if let Some((user, plan)) = &who.user {
            let _ = write!(query, "&user={}", encoded(user));
            if let Some(plan) = plan {
                let _ = write!(query, "&plan={}", encoded(plan));
            }
        }
        if let Some((id, _)) = &who.api_key {
            let _ = write!(query, "&api_key={}", encoded(id));
        }
    }
    let counted = explained.limits.iter().flat_map(|limit| limit.by.split('+'));
    let mut names: Vec<&str> = counted.filter_map(|by| by.strip_prefix("header:")).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        if let Some(value) = request.headers().get(name).and_then(|value| value.to_str().ok()) {
            let _ = write!(query, "&header:{name}={}", encoded(value));
        }
    }
    Ok(admin.get(&format!("/api/v1/callers?{query}"))?)
}

/// A limit's state in the running gateway.
fn state<'v>(live: Option<&'v Value>, limit: &Guard) -> Option<&'v Value> {
    live?["limits"].as_array()?.iter().find(|state| state["limit"] == limit.name.as_str())
}

/// What comes of it all: the status, and why.
fn outcome(explained: &Explanation, live: Option<&Value>) -> (Option<u16>, String) {
    // Whoever is refused for what they lack is nobody but an address.
    let counts = |ban: &&Value| {
        let by_address = ban["caller"].as_str().is_some_and(|who| who.starts_with("ip:"));
        by_address || explained.refused.as_ref().is_none_or(|(status, _)| *status != 401)
    };
    let mut bans = live.and_then(|live| live["bans"].as_array()).into_iter().flatten();
    if let Some(ban) = bans.find(counts) {
        let who = ban["caller"].as_str().unwrap_or_default();
        let who = printable(who);
        return (Some(429), format!("{who} is banned for another {} s", ban["seconds"]));
    }
    let rejects = |limit: &&Guard| {
        limit.key.is_ok()
            && !limit.shadow
            && state(live, limit).is_some_and(|state| state["allowed"] == false)
    };
    if let Some(limit) = explained.limits.iter().find(rejects) {
        let wait = |limit: &Guard| state(live, limit).and_then(|s| s["retry_after"].as_f64());
        let all = explained.limits.iter().filter(rejects).filter_map(wait);
        let wait = all.fold(0.0, f64::max).ceil().max(1.0);
        let status = if limit.by == "global" { 503 } else { 429 };
        return (Some(status), format!("'{}' rejects it; Retry-After {wait}", limit.name));
    }
    match (&explained.refused, live) {
        (Some((status, why)), _) => (Some(*status), why.clone()),
        (None, Some(_)) => (None, "forwarded".to_owned()),
        (None, None) => (None, "forwarded, as far as the limits allow".to_owned()),
    }
}

fn as_text(
    explained: &Explanation,
    request: &Request<()>,
    live: Option<&Value>,
    paint: Paint,
) -> String {
    let mut out = String::new();
    let _ = match &explained.destination {
        Ok((host, path)) => {
            writeln!(out, "{} {host} {path}", paint.bold(request.method().as_str()))
        }
        Err(why) => writeln!(out, "{} {}: {why}", request.method(), request.uri()),
    };
    let mut row = |name: &str, value: &str, why: &str| {
        let why = if why.is_empty() { String::new() } else { format!("  {}", paint.dim(why)) };
        let _ = writeln!(out, "{} {value}{why}", paint.bold(&format!("{name:<9}")));
    };
    row("address", &explained.origin.ip.to_string(), &explained.derived);
    match &explained.caller {
        Ok(who) => {
            let named = |known: &Option<(String, Option<String>)>| match known {
                Some((name, Some(plan))) => (printable(name), format!("plan {plan}")),
                Some((name, None)) => (printable(name), String::new()),
                None => ("none".to_owned(), String::new()),
            };
            let (user, plan) = named(&who.user);
            row("user", &user, &plan);
            let (key, plan) = named(&who.api_key);
            row("api key", &key, &plan);
            if who.exempt {
                row("exempt", "yes", "no limit applies");
            }
        }
        Err(why) => row("caller", "nobody", why),
    }
    match &explained.route {
        Ok((name, upstream)) => row("route", name, &format!("to upstream {upstream}")),
        Err(why) => row("route", why, ""),
    }
    for (name, why) in explained.others.iter().take(ROUTES) {
        row("", &format!("not {name}:"), why);
    }
    if let Some(more @ 1..) = explained.others.len().checked_sub(ROUTES) {
        row("", &format!("not {more} others"), "which are farther away");
    }
    row("limits", if explained.limits.is_empty() { "none" } else { "" }, "");
    for limit in &explained.limits {
        let _ = writeln!(out, "  {}", limit_line(limit, state(live, limit), paint));
    }
    let (status, why) = outcome(explained, live);
    let status = status.map(|status| format!("{status}: ")).unwrap_or_default();
    let _ = writeln!(out, "{} {status}{why}", paint.bold("outcome  "));
    out
}

fn limit_line(limit: &Guard, state: Option<&Value>, paint: Paint) -> String {
    let shadow = if limit.shadow { ", a shadow" } else { "" };
    let what = format!("{} {}{shadow}", limit.rate, limit.algorithm);
    let key = match &limit.key {
        Ok(key) => key,
        Err(why) => {
            return format!(
                "{:<20} {}",
                limit.name,
                paint.dim(&format!("{what}: not asked, {why}"))
            );
        }
    };
    let told = match state {
        None => String::new(),
        Some(state) => {
            let granted = state["granted"].as_f64().map(|factor| format!(", granted x{factor}"));
            let verdict =
                if state["allowed"] == true { paint.good("allows") } else { paint.bad("rejects") };
            format!(
                ": {verdict}, {} of {} left{}, whole in {:.1} s",
                state["remaining"],
                state["capacity"].as_u64().unwrap_or_default() / u64::from(limit.cost.max(1)),
                granted.unwrap_or_default(),
                state["reset"].as_f64().unwrap_or_default(),
            )
        }
    };
    format!("{:<20} {what} for {}{told}", limit.name, printable(key))
}

fn as_json(explained: &Explanation, live: Option<&Value>) -> Value {
    let limits = explained.limits.iter().map(|limit| {
        json!({
            "limit": limit.name,
            "by": limit.by,
            "rate": limit.rate,
            "algorithm": limit.algorithm,
            "capacity": limit.capacity,
            "cost": limit.cost,
            "shadow": limit.shadow,
            "key": limit.key.as_ref().ok(),
            "not_asked": limit.key.as_ref().err(),
            "state": state(live, limit),
        })
    });
    let caller = explained.caller.as_ref().ok();
    let named = |known: Option<&(String, Option<String>)>| {
        known.map(|(name, plan)| json!({ "name": name, "plan": plan }))
    };
    let (status, why) = outcome(explained, live);
    json!({
        "address": {
            "ip": explained.origin.ip,
            "counted": explained.origin.counted,
            "derived": explained.derived,
        },
        "host": explained.destination.as_ref().ok().map(|(host, _)| host),
        "path": explained.destination.as_ref().ok().map(|(_, path)| path),
        "user": named(caller.and_then(|who| who.user.as_ref())),
        "api_key": named(caller.and_then(|who| who.api_key.as_ref())),
        "exempt": caller.is_some_and(|who| who.exempt),
        "route": explained.route.as_ref().ok().map(|(name, _)| name),
        "upstream": explained.route.as_ref().ok().map(|(_, upstream)| upstream),
        "other_routes": explained.others.iter().map(|(name, why)| json!({ "name": name, "why": why }))
            .collect::<Vec<_>>(),
        "limits": limits.collect::<Vec<_>>(),
        "outcome": { "status": status, "why": why },
    })
}
