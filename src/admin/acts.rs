//! What an operator does: bans, grants, reloads, drains. Every act is logged.

use super::{ApiError, Operator, Query};
use crate::clock::{Micros, SECOND, micros};
use crate::config::duration;
use crate::gateway::Gateway;
use crate::overrides::{self, Act, Ban, FACTORS, Grant, What, Who, Why};
use crate::proxy::address::cut;
use crate::snapshot::Limit;
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
    let kept = perform(gateway, act).await;
    let ban = gateway.overrides.bans.find(who.part(), gateway.clock.now());
    Ok(kept.with(ban.map_or(Value::Null, |ban| told_ban(gateway, &ban))))
}

/// `DELETE /api/v1/bans?caller=ip:203.0.113.7`.
pub(super) async fn lift(gateway: &Gateway, query: &Query) -> Result<Value, ApiError> {
    query.only(&["caller"])?;
    let who = caller(gateway, query.get("caller"))?;
    let (operators, kept) = gateway.overrides.withdraw(&overrides::name(What::Ban, &who, None));
    let lifted = gateway.overrides.bans.lift(&who) || operators;
    gateway.overrides.bans.forget_rejects(who.part());
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
    let kept =
        if everywhere { perform(gateway, pardon).await } else { Kept::of(gateway, kept).await };
    Ok(kept.with(json!({ "caller": who, "lifted": lifted })))
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
    let named = |limit: &Limit| act.limit.as_deref().is_none_or(|name| name == limit.name);
    let all = snapshot.each_limit();
    let meant: Vec<&Limit> = all
        .iter()
        .map(|(limit, _)| &***limit)
        .filter(|limit| counts(&limit.by) && named(limit))
        .collect();
    if meant.is_empty() {
        let which =
            act.limit.as_ref().map_or("no limit".into(), |name| format!("no limit '{name}'"));
        return Err(ApiError::not_found(format!("{which} counts {}", act.caller)));
    }
    let factor = act.factor.unwrap_or(1.0);
    let impossible = |limit: &&&Limit| {
        limit.quotas().iter().any(|quota| quota.times(factor, limit.cost.up_front()).is_none())
    };
    if let Some(limit) = meant.iter().find(impossible) {
        return Err(ApiError::bad(format!("'{}' cannot count x{factor} of its rate", limit.name)));
    }
    let (who, limit) = (act.caller.clone(), act.limit.clone());
    tracing::info!(
        "the operator grants {} x{} of {} until {}",
        who.quoted(),
        act.factor.unwrap_or(1.0),
        limit.as_deref().unwrap_or("all its limits"),
        gateway.wall_text(act.until)
    );
    let kept = perform(gateway, act).await;
    gateway.heed_grants();
    let all = gateway.overrides.grants.list(gateway.clock.now());
    let grant = all.iter().find(|grant| grant.who == who && grant.limit == limit);
    Ok(kept.with(grant.map_or(Value::Null, |grant| told_grant(gateway, grant))))
}

/// `DELETE /api/v1/grants?caller=api_key:acme[&limit=search-rate]`.
pub(super) async fn withdraw(gateway: &Gateway, query: &Query) -> Result<Value, ApiError> {
    query.only(&["caller", "limit"])?;
    let who = caller(gateway, query.get("caller"))?;
    let limit = query.get("limit");
    let all = gateway.overrides.grants.list(gateway.clock.now());
    let (mut withdrawn, mut kept) = (0, Ok(()));
    for grant in all.iter().filter(|grant| grant.who == who) {
        if limit.is_none() || limit == grant.limit.as_deref() {
            let name = overrides::name(What::Grant, &who, grant.limit.as_deref());
            let (was_there, outcome) = gateway.overrides.withdraw(&name);
            withdrawn += u64::from(was_there);
            kept = kept.and(outcome);
        }
    }
    if withdrawn == 0 {
        return Err(ApiError::not_found(format!("nothing is granted to {who}")));
    }
    tracing::info!("the operator takes back what was granted to {}", who.quoted());
    gateway.heed_grants();
    let kept = Kept::of(gateway, kept).await;
    Ok(kept.with(json!({ "caller": who, "withdrawn": withdrawn })))
}

pub(super) async fn reload(operator: &Operator) -> Result<Value, ApiError> {
    if operator.gateway.overrides.gate.is_closed() {
        return Err(ApiError::handing_over());
    }
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
pub(super) async fn perform(gateway: &Gateway, act: Act) -> Kept {
    Kept::of(gateway, gateway.overrides.act(act)).await
}

/// Who remembers an act over a restart. It holds in any case.
pub(super) struct Kept {
    by: &'static str,
    warning: Option<String>,
}

impl Kept {
    async fn of(gateway: &Gateway, written: std::io::Result<()>) -> Self {
        if let Err(error) = written {
            tracing::error!("bans and grants cannot be written down: {error}");
            let warning = format!("it holds, but will not survive a restart: {error}");
            return Self { by: "here", warning: Some(warning) };
        }
        if !gateway.store.is_shared() {
            return Self { by: "file", warning: None };
        }
        match tokio::time::timeout(PATIENCE, gateway.overrides.told()).await {
            Ok(()) => Self { by: "store", warning: None },
            Err(_) => {
                let warning = "other gateways hear of it when the shared store is back";
                Self { by: "here", warning: Some(warning.to_owned()) }
            }
        }
    }

    /// Says so beside what was done.
    fn with(self, mut told: Value) -> Value {
        told["kept"] = self.by.into();
        if let Some(warning) = self.warning {
            told["warning"] = warning.into();
        }
        told
    }
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
