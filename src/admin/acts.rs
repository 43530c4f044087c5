//! What an operator does: bans, grants, reloads, drains. Every act is logged.

use super::{ApiError, Operator, Query};
use crate::clock::{Micros, SECOND, micros};
use crate::config::duration;
use crate::gateway::Gateway;
use crate::overrides::{Act, Ban, FACTORS, Grant, What, Who, Why};
use crate::proxy::address::cut;
use http::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a pardon is told to gateways that have not heard of it.
const PARDON: Micros = 3600 * SECOND;

/// How long an act may take to reach a shared store before the operator hears that it has not.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reasons are a line.
const LONGEST: usize = 500;

pub(super) fn bans(gateway: &Gateway) -> Value {
    let bans = gateway.overrides.bans.list(gateway.clock.now());
    json!({ "bans": bans.iter().map(|ban| told_ban(gateway, ban)).collect::<Vec<_>>() })
}

pub(super) fn told_ban(gateway: &Gateway, ban: &Ban) -> Value {
    let (limit, reason, by) = match &ban.why {
        Why::Penalty(limit) => (Some(&**limit), None, "penalty"),
        Why::Operator(reason) => (None, reason.as_deref(), "operator"),
    };
    json!({
        "caller": ban.who,
        "until": gateway.seconds(ban.until),
        "seconds": left(gateway, ban.until),
        "limit": limit,
        "reason": reason,
        "by": by,
    })
}

pub(super) fn grants(gateway: &Gateway) -> Value {
    let grants = gateway.overrides.grants.list(gateway.clock.now());
    json!({ "grants": grants.iter().map(|grant| told_grant(gateway, grant)).collect::<Vec<_>>() })
}

pub(super) fn told_grant(gateway: &Gateway, grant: &Grant) -> Value {
    json!({
        "caller": grant.who,
        "factor": grant.factor,
        "limit": grant.limit,
        "until": gateway.seconds(grant.until),
        "seconds": left(gateway, grant.until),
        "reason": grant.reason,
    })
}

fn left(gateway: &Gateway, until: Micros) -> u64 {
    until.saturating_sub(gateway.clock.now()).div_ceil(SECOND)
}

/// `{ "caller": "ip:203.0.113.7", "for": "1h", "reason": "scraping" }`.
pub(super) async fn ban(gateway: &Gateway, body: &Value) -> Result<Value, ApiError> {
    known(body, &["caller", "for", "reason"])?;
    let act = new_act(gateway, body, What::Ban)?;
    let who = act.caller.clone();
    let until = gateway.wall_text(act.until);
    tracing::info!("the operator bans {} until {until}", who.quoted());
    let kept = perform(gateway, act).await?;
    let ban = gateway.overrides.bans.find(who.part(), gateway.clock.now());
    let mut told = ban.map_or(Value::Null, |ban| told_ban(gateway, &ban));
    told["kept"] = kept;
    Ok(told)
}

/// `DELETE /api/v1/bans?caller=ip:203.0.113.7`.
pub(super) async fn lift(gateway: &Gateway, query: &Query) -> Result<Value, ApiError> {
    let who = caller(gateway, query.get("caller"))?;
    let operators = gateway.overrides.withdraw(&format!("ban {who}")).map_err(unkept)?;
    let lifted = gateway.overrides.bans.lift(&who) || operators;
    gateway.store.local().forgive(who.part());
    let everywhere = gateway.store.is_shared();
    if !lifted && !everywhere {
        return Err(ApiError::not_found(format!("{who} is not banned")));
    }
    tracing::info!("the operator lifts the ban of {}", who.quoted());
    let now = gateway.wall_now();
    let pardon = Act {
        caller: who.clone(),
        act: What::Lift,
        limit: None,
        factor: None,
        reason: None,
        at: now,
        until: now + PARDON,
    };
    // Others may have banned them for themselves.
    let kept = if everywhere { perform(gateway, pardon).await? } else { "file".into() };
    Ok(json!({ "caller": who, "lifted": lifted, "kept": kept }))
}

/// `{ "caller": "api_key:acme", "rate": "x2", "for": "1h", "limit": "search-rate" }`.
pub(super) async fn grant(gateway: &Gateway, body: &Value) -> Result<Value, ApiError> {
    known(body, &["caller", "rate", "for", "limit", "reason"])?;
    let mut act = new_act(gateway, body, What::Grant)?;
    act.factor = Some(factor(body)?);
    act.limit = text(body, "limit")?.map(Into::into);
    let snapshot = gateway.snapshot.load_full();
    let counts = |by: &[crate::config::model::Attribute]| match &act.caller {
        Who::Ip(_) => by.contains(&crate::config::model::Attribute::Ip),
        Who::User(_) => by.contains(&crate::config::model::Attribute::User),
        Who::ApiKey(_) => by.contains(&crate::config::model::Attribute::ApiKey),
    };
    let mut limits = snapshot.each_limit().into_iter().map(|(limit, _)| limit);
    match act.limit.as_deref() {
        Some(name) if !limits.any(|limit| limit.name == name && counts(&limit.by)) => {
            let message = format!("there is no limit '{name}' that counts {}", act.caller);
            return Err(ApiError::not_found(message));
        }
        None if !limits.any(|limit| counts(&limit.by)) => {
            return Err(ApiError::not_found(format!("no limit counts {}", act.caller)));
        }
        _ => {}
    }
    let (who, limit) = (act.caller.clone(), act.limit.clone());
    tracing::info!(
        "the operator grants {} x{} of {} until {}",
        who.quoted(),
        act.factor.unwrap_or(1.0),
        limit.as_deref().unwrap_or("all its limits"),
        gateway.wall_text(act.until)
    );
    let kept = perform(gateway, act).await?;
    let all = gateway.overrides.grants.list(gateway.clock.now());
    let grant = all.iter().find(|grant| grant.who == who && grant.limit == limit);
    let mut told = grant.map_or(Value::Null, |grant| told_grant(gateway, grant));
    told["kept"] = kept;
    Ok(told)
}

/// `DELETE /api/v1/grants?caller=api_key:acme[&limit=search-rate]`.
pub(super) async fn withdraw(gateway: &Gateway, query: &Query) -> Result<Value, ApiError> {
    let who = caller(gateway, query.get("caller"))?;
    let limit = query.get("limit");
    let all = gateway.overrides.grants.list(gateway.clock.now());
    let mut withdrawn = 0;
    for grant in all.iter().filter(|grant| grant.who == who) {
        if limit.is_none() || limit == grant.limit.as_deref() {
            let of = grant.limit.as_ref().map(|limit| format!(" {limit}")).unwrap_or_default();
            let name = format!("grant {who}{of}");
            withdrawn += u64::from(gateway.overrides.withdraw(&name).map_err(unkept)?);
        }
    }
    if withdrawn == 0 {
        return Err(ApiError::not_found(format!("nothing is granted to {who}")));
    }
    tracing::info!("the operator takes back what was granted to {}", who.quoted());
    let kept = reach(gateway).await;
    Ok(json!({ "caller": who, "withdrawn": withdrawn, "kept": kept }))
}

pub(super) async fn reload(operator: &Operator) -> Result<Value, ApiError> {
    tracing::info!("the operator reloads the configuration");
    match (operator.reload)().await {
        Ok(Ok(generation)) => Ok(json!({ "generation": generation })),
        Ok(Err(error)) => Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, error)),
        Err(_) => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the gateway is stopping")),
    }
}

pub(super) fn drain(gateway: &Gateway, drains: bool) -> Value {
    tracing::info!("the operator {} the gateway", if drains { "drains" } else { "fills" });
    gateway.drain(drains);
    json!({ "state": gateway.state().name() })
}

/// An act of this kind, with what every act has.
fn new_act(gateway: &Gateway, body: &Value, act: What) -> Result<Act, ApiError> {
    let caller = caller(gateway, text(body, "caller")?)?;
    let lasts = text(body, "for")?.ok_or_else(|| ApiError::bad("for how long? \"for\": \"1h\""))?;
    let lasts = duration(lasts).map_err(ApiError::bad)?;
    if lasts.is_zero() {
        return Err(ApiError::bad("for no time at all?"));
    }
    let reason = text(body, "reason")?.filter(|reason| !reason.is_empty());
    if reason.is_some_and(|reason| reason.len() > LONGEST) {
        return Err(ApiError::bad(format!("a reason is at most {LONGEST} bytes long")));
    }
    let at = gateway.wall_now();
    let until = at.saturating_add(micros(lasts));
    Ok(Act { caller, act, limit: None, factor: None, reason: reason.map(Into::into), at, until })
}

/// Does it, and says who remembers it.
pub(super) async fn perform(gateway: &Gateway, act: Act) -> Result<Value, ApiError> {
    gateway.overrides.act(act).map_err(unkept)?;
    Ok(reach(gateway).await)
}

/// `file`, or `store`, or `here` as long as the store is away.
async fn reach(gateway: &Gateway) -> Value {
    if !gateway.store.is_shared() {
        return "file".into();
    }
    let told = tokio::time::timeout(PATIENCE, gateway.overrides.told()).await;
    if told.is_ok() { "store" } else { "here" }.into()
}

#[expect(clippy::needless_pass_by_value, reason = "it is for map_err")]
fn unkept(error: std::io::Error) -> ApiError {
    let message = format!("it holds, but will not survive a restart: {error}");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}

/// A caller as limits count them.
pub(super) fn caller(gateway: &Gateway, text: Option<&str>) -> Result<Who, ApiError> {
    let text = text.ok_or_else(|| ApiError::bad("name the caller: ip:203.0.113.7"))?;
    let who: Who = text.parse().map_err(|error| ApiError::bad(format!("{error}")))?;
    Ok(match who {
        Who::Ip(ip) => Who::Ip(cut(ip, gateway.snapshot.load().identity.ipv6_prefix)),
        other => other,
    })
}

/// `x2`, `x0.5`, or the number.
fn factor(body: &Value) -> Result<f64, ApiError> {
    let help = || {
        let message =
            format!("\"rate\" looks like \"x2\", from x{} to x{}", FACTORS.start(), FACTORS.end());
        ApiError::bad(message)
    };
    let factor = match &body["rate"] {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.strip_prefix('x').and_then(|number| number.parse().ok()),
        _ => None,
    };
    factor.filter(|factor| FACTORS.contains(factor)).ok_or_else(help)
}

pub(super) fn text<'b>(body: &'b Value, name: &str) -> Result<Option<&'b str>, ApiError> {
    match &body[name] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        _ => Err(ApiError::bad(format!("\"{name}\" must be text"))),
    }
}

/// What is misspelt is said, not ignored.
pub(super) fn known(body: &Value, names: &[&str]) -> Result<(), ApiError> {
    let fields = body.as_object().into_iter().flat_map(|fields| fields.keys());
    match fields.into_iter().find(|field| !names.contains(&field.as_str())) {
        None => Ok(()),
        Some(field) => {
            let message = format!("there is no \"{field}\"; known: {}", names.join(", "));
            Err(ApiError::bad(message))
        }
    }
}
