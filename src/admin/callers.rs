//! One caller's limits: how much is left of each, and that it be forgotten what was used.

use super::acts::{self, known, text};
use super::{ApiError, Query};
use crate::gateway::Gateway;
use crate::limit::Quota;
use crate::overrides::{Act, What, Who};
use crate::proxy::address::cut;
use crate::proxy::claims::{Claim, Claims, Known, Parts, claim, shard};
use crate::proxy::identify::Caller;
use crate::snapshot::{Limit, Snapshot};
use crate::store::{Charge, Part, Subject};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;

/// How long other gateways are told to forget what they remember of a caller.
const TOLD: u64 = 60_000_000;

/// Everything the operator says of a caller.
struct Described {
    ip: Option<IpAddr>,
    caller: Caller,
    headers: HeaderMap,
}

/// `GET /api/v1/callers?caller=api_key:acme`, and further attributes beside it.
pub(super) async fn look_up(gateway: &Gateway, query: &Query) -> Result<Value, ApiError> {
    let snapshot = gateway.snapshot.load_full();
    let described = described(&snapshot, query)?;
    let now = gateway.clock.now();
    let all = snapshot.each_limit();
    let limits: Vec<Arc<Limit>> = all.iter().map(|(limit, _)| Arc::clone(limit)).collect();
    let known = described.known();
    let (mut parts, mut claims) = (Parts::new(), Claims::new());
    claim(&limits, &known, &mut parts, &mut claims);
    let factors: Vec<Option<f64>> = claims
        .iter()
        .map(|claim| {
            gateway.overrides.grants.factor(
                &parts[claim.parts.clone()],
                &limits[claim.limit].name,
                now,
            )
        })
        .collect();
    let quotas: Vec<Quota> = claims
        .iter()
        .zip(&factors)
        .map(|(claim, factor)| quota(&limits[claim.limit], claim, &known, *factor))
        .collect();
    let charge = |(claim, quota): (&Claim, _)| {
        let limit = &limits[claim.limit];
        let mut charge = Charge::new(limit.id, quota, Subject(&parts[claim.parts.clone()]));
        charge.cost = limit.cost.up_front().min(charge.quota.capacity());
        if !limit.shards.is_empty() {
            charge.shard = Some(shard(&known, limit.shards.len()) as u16);
        }
        charge
    };
    let mut charges: Vec<Charge<'_>> = claims.iter().zip(&quotas).map(charge).collect();
    gateway.store.peek(&mut charges, now).await.map_err(|_| ApiError::store_away())?;
    let told = claims.iter().zip(&charges).zip(&factors).map(|((claim, charge), factor)| {
        let (limit, routes) = &all[claim.limit];
        let verdict = &charge.verdict;
        json!({
            "limit": limit.name,
            "by": limit.by_name(),
            "key": crate::explain::key(charge.subject),
            "algorithm": limit.algorithm,
            "rate": charge.quota.written(),
            "capacity": charge.quota.capacity(),
            "shadow": limit.shadow,
            "routes": routes,
            "granted": factor,
            "allowed": verdict.allowed,
            "remaining": verdict.remaining(),
            "used": verdict.capacity.saturating_sub(verdict.unused),
            "retry_after": verdict.retry_after() as f64 / 1e6,
            "reset": charge.quota.reset(verdict) as f64 / 1e6,
        })
    });
    let told: Vec<Value> = told.collect();
    Ok(json!({
        "caller": described.told(&snapshot),
        "bans": described.bans(gateway),
        "grants": described.grants(gateway),
        "limits": told,
    }))
}

/// `{ "caller": "api_key:acme", "limit": "search-rate" }`: all their limits, if none is named.
pub(super) async fn reset(gateway: &Gateway, body: &Value) -> Result<Value, ApiError> {
    known(body, &["caller", "limit"])?;
    let who = acts::caller(gateway, text(body, "caller")?)?;
    let wanted = text(body, "limit")?;
    let (snapshot, now) = (gateway.snapshot.load_full(), gateway.clock.now());
    let described = Described::of(&snapshot, &who);
    let limits: Vec<Arc<Limit>> =
        snapshot.each_limit().into_iter().map(|(limit, _)| Arc::clone(limit)).collect();
    let (mut parts, mut claims) = (Parts::new(), Claims::new());
    let known = described.known();
    claim(&limits, &known, &mut parts, &mut claims);
    // What everybody shares is not theirs, and what is in flight is not used.
    let resettable = |claim: &&Claim| {
        let limit = &limits[claim.limit];
        !limit.by.is_empty() && !limit.quota(claim.quota).is_concurrency()
    };
    let mut done = Vec::new();
    for claim in claims.iter().filter(resettable) {
        let limit = &limits[claim.limit];
        if wanted.is_none_or(|wanted| wanted == limit.name) {
            let quota = limit.quota(claim.quota);
            let charge = Charge::new(limit.id, quota, Subject(&parts[claim.parts.clone()]));
            gateway.store.reset(&charge, now).await.map_err(|_| ApiError::store_away())?;
            done.push(limit.name.clone());
        }
    }
    if done.is_empty() {
        let message = match wanted {
            Some(limit) => {
                format!("there is no limit '{limit}' that counts {who} and can be reset")
            }
            None => format!("no limit that can be reset counts {who}"),
        };
        return Err(ApiError::not_found(message));
    }
    gateway.overrides.bans.forget_rejects(who.part());
    tracing::info!("the operator resets {} for {}", done.join(", "), who.quoted());
    if gateway.store.is_shared() {
        let at = gateway.wall_now();
        let (act, limit) = (What::Reset, wanted.map(Into::into));
        let (factor, reason, until) = (None, None, at + TOLD);
        let act = Act { caller: who, act, limit, factor, reason, at, until };
        acts::perform(gateway, act).await;
    }
    Ok(json!({ "reset": done }))
}

impl Described {
    fn nobody(snapshot: &Snapshot) -> Self {
        let plan = snapshot.default_plan;
        let caller = Caller {
            user: None,
            api_key: None,
            user_plan: plan,
            key_plan: plan,
            exempt: false,
            unknown_plan: false,
        };
        Self { ip: None, caller, headers: HeaderMap::new() }
    }

    fn of(snapshot: &Snapshot, who: &Who) -> Self {
        let mut described = Self::nobody(snapshot);
        described.add(snapshot, who.part());
        described
    }

    fn add(&mut self, snapshot: &Snapshot, part: Part<'_>) {
        match part {
            Part::Ip(ip) => {
                self.ip = Some(cut(ip, snapshot.identity.ipv6_prefix));
                self.caller.exempt |= crate::proxy::address::is_in(&snapshot.exempt.ips, ip);
            }
            Part::User(user) => self.caller.user = Some(user.to_owned()),
            Part::ApiKey(id) => {
                let keys = snapshot.identity.api_key.iter().flat_map(|keys| keys.keys.values());
                let plan = keys.into_iter().find(|key| *key.id == *id).and_then(|key| key.plan);
                self.caller.key_plan = plan.unwrap_or(snapshot.default_plan);
                self.caller.exempt |= snapshot.exempt.has_key(id);
                self.caller.api_key = Some(id.into());
            }
            Part::Header(_) => {}
        }
    }

    fn known(&self) -> Known<'_> {
        Known { ip: self.ip, caller: &self.caller, headers: &self.headers, ip_only: false }
    }

    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let user = self.caller.user.as_deref().map(Part::User);
        let key = self.caller.api_key.as_deref().map(Part::ApiKey);
        self.ip.map(Part::Ip).into_iter().chain(user).chain(key)
    }

    fn told(&self, snapshot: &Snapshot) -> Value {
        let caller = &self.caller;
        let plan = match (&caller.api_key, &caller.user) {
            (Some(_), _) => snapshot.plans.get(caller.key_plan),
            (None, Some(_)) => snapshot.plans.get(caller.user_plan),
            (None, None) => None,
        };
        json!({
            "ip": self.ip,
            "user": caller.user,
            "api_key": caller.api_key.as_deref(),
            "plan": plan.map(|plan| &plan.name),
            "exempt": caller.exempt,
        })
    }

    fn bans(&self, gateway: &Gateway) -> Vec<Value> {
        let now = gateway.clock.now();
        let found = self.parts().filter_map(|part| gateway.overrides.bans.find(part, now));
        found.map(|ban| acts::told_ban(gateway, &ban)).collect()
    }

    fn grants(&self, gateway: &Gateway) -> Vec<Value> {
        let own: Vec<Who> = self.parts().filter_map(Who::of).collect();
        let all = gateway.overrides.grants.list(gateway.clock.now());
        let own = all.iter().filter(|grant| own.contains(&grant.who));
        own.map(|grant| acts::told_grant(gateway, grant)).collect()
    }
}

/// A caller by what the operator says: `caller=` in any of its forms, and attributes by name.
fn described(snapshot: &Snapshot, query: &Query) -> Result<Described, ApiError> {
    let mut described = Described::nobody(snapshot);
    if let Some(text) = query.get("caller") {
        described.add(snapshot, guess(snapshot, text)?.part());
    }
    for (name, value) in &query.0 {
        match name.as_str() {
            "ip" | "user" | "api_key" => {
                let who: Result<Who, _> = format!("{name}:{value}").parse();
                let who = who.map_err(|error| ApiError::bad(format!("{error}")))?;
                described.add(snapshot, who.part());
            }
            "plan" => {
                let plan = snapshot.plan(value);
                let plan =
                    plan.ok_or_else(|| ApiError::bad(format!("there is no plan '{value}'")))?;
                described.caller.user_plan = plan;
            }
            "caller" => {}
            other => {
                let header = other.strip_prefix("header:").map(str::parse::<HeaderName>);
                let (Some(Ok(name)), Ok(value)) = (header, HeaderValue::from_str(value)) else {
                    let message = "a caller has ip, user, api_key, plan and header:NAME";
                    return Err(ApiError::bad(format!("'{other}' is none of theirs: {message}")));
                };
                described.headers.insert(name, value);
            }
        }
    }
    if described.parts().next().is_none() && described.headers.is_empty() {
        return Err(ApiError::bad("name the caller: ?caller=ip:203.0.113.7"));
    }
    Ok(described)
}

/// An address if it reads like one, else a key if there is one of this name, else a user.
fn guess(snapshot: &Snapshot, text: &str) -> Result<Who, ApiError> {
    let text = text.trim();
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(Who::Ip(ip.to_canonical()));
    }
    if let Ok(who) = text.parse() {
        return Ok(who);
    }
    let mut keys = snapshot.identity.api_key.iter().flat_map(|keys| keys.keys.values());
    match keys.any(|key| *key.id == *text) {
        _ if text.is_empty() => Err(ApiError::bad("name the caller: ?caller=ip:203.0.113.7")),
        true => Ok(Who::ApiKey(text.into())),
        false => Ok(Who::User(text.into())),
    }
}

/// What a limit allows this caller.
fn quota(limit: &Limit, claim: &Claim, known: &Known<'_>, factor: Option<f64>) -> Quota {
    match factor {
        Some(factor) => {
            let own = limit.quota(claim.quota);
            own.times(factor, limit.cost.up_front()).unwrap_or_else(|| own.clone())
        }
        None if !limit.shards.is_empty() => limit.shards[shard(known, limit.shards.len())].clone(),
        None => limit.quota(claim.quota).clone(),
    }
}
