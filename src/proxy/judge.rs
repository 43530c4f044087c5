//! Limits → decision. Which limits apply to this caller, what they say together, and what an
//! admitted request owes until its end.

use super::exchange::Exchange;
use super::identify::Caller;
use super::refusal::Refusal;
use super::settle::{self, Settlement};
use crate::clock::{Micros, SECOND};
use crate::config::model::{Attribute, Layer};
use crate::gateway::Gateway;
use crate::limit::Verdict;
use crate::snapshot::{Limit, Limits};
use crate::store::{self, Charge, Hold, Part, StoreError, Subject};
use http::HeaderMap;
use smallvec::SmallVec;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What one limit said, for the headers, the log and the metrics.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// The limit's place among the route's limits.
    pub limit: usize,
    /// Which of its quotas.
    pub quota: usize,
    /// What it said.
    pub verdict: Verdict,
}

/// What all limits said.
#[derive(Debug, Default)]
pub struct Judgement {
    /// Each limit that applied, in the order of layers.
    pub said: SmallVec<[Said; 4]>,
    /// Which of `said` rejected the request.
    pub rejected_by: Option<usize>,
}

/// An admitted request's hold on its limits, for as long as its response body lives: what is held
/// is given back when this is dropped, however the exchange ends.
#[derive(Debug)]
#[must_use]
pub struct Admission {
    holds: Vec<Hold>,
    gateway: Option<Arc<Gateway>>,
}

impl Admission {
    fn new(holds: Vec<Hold>, gateway: &Arc<Gateway>) -> Self {
        // The usual request holds nothing, and costs nothing here.
        let gateway = (!holds.is_empty()).then(|| Arc::clone(gateway));
        Self { holds, gateway }
    }

    /// Whether something must be given back.
    pub(super) fn holds(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Waits for the request's turn, if it has to. A caller who leaves meanwhile gives their place
    /// in the queue back; one whose turn has come has used it.
    async fn turn(&mut self, delay: Micros) {
        if delay > 0 {
            tokio::time::sleep(Duration::from_micros(delay)).await;
        }
        self.holds.retain(|hold| !hold.is_queue());
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(gateway) = &self.gateway {
            for hold in &self.holds {
                gateway.store.release(hold, gateway.clock.now());
            }
        }
    }
}

/// What the limits are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To decide, and to charge.
    Decide,
    /// To reject what is known to be rejected; nothing is charged.
    Foresee,
}

/// Decides whether the request may pass, and charges it: writes down what the limits said, and what
/// the request holds and has reserved. Where there is no caller, because the request or its
/// credentials are bad, the limits by address alone are charged, so guessing is limited too.
pub(super) async fn judge(
    exchange: &mut Exchange,
    headers: &HeaderMap,
    purpose: Purpose,
) -> Result<(), Refusal> {
    let generation = Rc::clone(&exchange.generation);
    let limits = exchange.limits_in(&generation);
    let anonymous;
    let caller = match &exchange.caller {
        Some(caller) => caller,
        None => {
            anonymous = Caller::anonymous(&generation.snapshot, exchange.origin);
            &anonymous
        }
    };
    if caller.exempt && purpose == Purpose::Foresee {
        return Ok(());
    }
    if caller.exempt {
        for limit in limits.iter() {
            limit.metrics.exempt.increment();
        }
        return Ok(());
    }
    let (mut parts, mut claims) = (Parts::new(), Claims::new());
    claim(exchange, caller, headers, &mut parts, &mut claims);
    let charge = |claim: &Claim| {
        let limit = &limits[claim.limit];
        let subject = Subject(&parts[claim.parts.clone()]);
        let mut charge = Charge::new(limit.id, limit.quota(claim.quota), subject);
        (charge.shadow, charge.leased, charge.on_failure) =
            (limit.shadow, limit.leased, limit.on_failure);
        if !limit.shards.is_empty() {
            let index = shard(caller, exchange.origin.counted, limit.shards.len());
            (charge.shard, charge.quota) = (Some(index as u16), &limit.shards[index]);
        }
        (charge.cost, charge.settles) =
            settle::reserve(&limit.cost, charge.quota, exchange.announced);
        charge
    };
    let mut charges: SmallVec<[Charge<'_>; 4]> = claims.iter().map(charge).collect();
    let gateway = &exchange.worker.gateway;
    let mut decision = match purpose {
        Purpose::Foresee => match gateway.store.foresee(&mut charges, exchange.decides) {
            decision if decision.rejected_by.is_some() => decision,
            _ => return Ok(()),
        },
        Purpose::Decide => {
            let decided = gateway.store.charge_all(&mut charges, exchange.decides).await;
            decided.map_err(|StoreError::Away| Refusal::StoreAway)?
        }
    };

    let judgement = &mut exchange.judgement;
    judgement.rejected_by = decision.rejected_by;
    judgement.said.extend(claims.iter().zip(&charges).map(|(claim, charge)| Said {
        limit: claim.limit,
        quota: claim.quota,
        verdict: charge.verdict,
    }));
    judgement.count(limits);
    if let Some(index) = judgement.rejected_by {
        let retry_after = store::retry_after(&charges);
        if claims.iter().any(|claim| limits[claim.limit].penalty.is_some()) {
            punish(exchange, limits, &claims, &charges);
        }
        return Err(match limits[claims[index].limit].layer {
            Layer::Global => Refusal::SystemLimited { retry_after },
            _ => Refusal::Limited { retry_after },
        });
    }
    let delay = store::delay(&charges);
    exchange.settlement = Settlement::take(gateway, &mut decision.holds, &judgement.said, limits);
    let mut admission = Admission::new(decision.holds, gateway);
    if delay > 0 {
        exchange.room.step_aside();
    }
    if admission.holds() {
        admission.turn(delay).await;
        exchange.admission = Some(admission);
    }
    Ok(())
}

/// Counts rejects where a limit has a penalty, and bans whoever has had too many.
#[cold]
fn punish(exchange: &Exchange, limits: &Limits, claims: &[Claim], charges: &[Charge<'_>]) {
    let (gateway, now) = (&exchange.worker.gateway, exchange.decides);
    for (claim, charge) in claims.iter().zip(charges) {
        let limit = &limits[claim.limit];
        let Some(penalty) = limit.penalty.as_ref().filter(|_| !charge.verdict.allowed) else {
            continue;
        };
        let reject = Charge::new(penalty.id, &penalty.tolerated, charge.subject);
        // Each gateway counts the rejects that it gives: a flood of them is nobody else's business.
        let decision = gateway.store.local().charge_all(&mut [reject], now);
        if let (Some(_), [part]) = (decision.rejected_by, charge.subject.0)
            && gateway.bans.add(*part, &limit.name, now + penalty.lasts, now)
        {
            tracing::warn!("a caller is banned for ignoring the limit '{}'", limit.name);
        }
    }
}

/// A limit that applies, and which of its counters.
struct Claim {
    limit: usize,
    quota: usize,
    parts: Range<usize>,
}

type Claims = SmallVec<[Claim; 4]>;

/// What the limits that apply count by, one after the other.
type Parts<'a> = SmallVec<[Part<'a>; 4]>;

/// The limits that apply. Of a caller who was refused, only those by address alone.
fn claim<'a>(
    exchange: &Exchange,
    caller: &'a Caller,
    headers: &'a HeaderMap,
    parts: &mut Parts<'a>,
    claims: &mut Claims,
) {
    let (ip, ip_only) = (exchange.origin.counted, exchange.caller.is_none());
    let present = |attribute: &Attribute| part(attribute, ip, caller, headers);
    for (index, limit) in exchange.limits().iter().enumerate() {
        let kept_out = ip_only && limit.layer != Layer::Ip
            || limit.unless.iter().any(|attribute| present(attribute).is_some());
        let start = parts.len();
        // A limit whose attribute the caller lacks does not apply.
        let has = |attribute| present(attribute).map(|part| parts.push(part)).is_some();
        if kept_out || !limit.by.iter().all(has) {
            parts.truncate(start);
            continue;
        }
        let quota = limit.quota_index(caller.plan(&limit.by));
        claims.push(Claim { limit: index, quota, parts: start..parts.len() });
    }
}

fn part<'a>(
    attribute: &Attribute,
    ip: IpAddr,
    caller: &'a Caller,
    headers: &'a HeaderMap,
) -> Option<Part<'a>> {
    match attribute {
        Attribute::Ip => Some(Part::Ip(ip)),
        Attribute::User => caller.user.as_deref().map(Part::User),
        Attribute::ApiKey => caller.api_key.as_deref().map(Part::ApiKey),
        Attribute::Header(name) => headers.get(name).map(|value| Part::Header(value.as_bytes())),
    }
}

/// Which part of a limit a caller belongs to: always the same.
fn shard(caller: &Caller, ip: IpAddr, shards: usize) -> usize {
    let name = caller.api_key.as_deref().or(caller.user.as_deref());
    let hash = match (name, ip) {
        (Some(name), _) => fnv(name.as_bytes()),
        (None, IpAddr::V4(ip)) => fnv(&ip.octets()),
        (None, IpAddr::V6(ip)) => fnv(&ip.octets()),
    };
    (hash % shards as u64) as usize
}

/// A number for the caller that nobody else can have made for themselves.
pub(super) fn number_of(exchange: &Exchange) -> u64 {
    static SECRET: OnceLock<RandomState> = OnceLock::new();
    let caller = exchange.caller.as_ref();
    let key = caller.and_then(|caller| caller.api_key.as_deref());
    let user = caller.and_then(|caller| caller.user.as_deref());
    let ip = (key.is_none() && user.is_none()).then_some(exchange.origin.counted);
    SECRET.get_or_init(RandomState::new).hash_one((key, user.filter(|_| key.is_none()), ip))
}

/// The same on every gateway.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Judgement {
    fn count(&self, limits: &[Arc<Limit>]) {
        for said in &self.said {
            let limit = &limits[said.limit];
            match (said.verdict.allowed, limit.shadow) {
                (false, false) => limit.metrics.rejected.increment(),
                // The rest counts only requests that passed.
                _ if self.rejected_by.is_some() => {}
                (true, _) => limit.metrics.allowed.increment(),
                (false, true) => limit.metrics.shadow_rejected.increment(),
            }
        }
    }

    /// The limit that speaks in `X-RateLimit-*`: the one that rejected, or else the tightest, the
    /// one with the smallest share left. Neither shadows nor the operator's own limits speak.
    pub fn speaker(&self, limits: &[Arc<Limit>]) -> Option<&Said> {
        let speaks = |said: &&Said| limits[said.limit].speaks() && !said.verdict.is_silent();
        if let Some(index) = self.rejected_by {
            return self.said.get(index).filter(speaks);
        }
        let said = self.said.iter().filter(speaks);
        said.min_by(|a, b| a.verdict.compare_share(&b.verdict))
    }
}

/// `Retry-After`: whole seconds, rounded up, at least one. Jitter spreads callers who would all
/// come back in the same second: up to that share of the seconds is added, nothing taken away.
pub fn retry_after_seconds(retry_after: Micros, jitter: f64) -> u64 {
    let seconds = retry_after.div_ceil(SECOND).max(1);
    let most = Duration::from_secs(seconds).mul_f64(jitter).as_secs();
    seconds + fastrand::u64(..=most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_and_jitter_only_adds() {
        assert_eq!(retry_after_seconds(0, 0.0), 1);
        assert_eq!(retry_after_seconds(1, 0.0), 1);
        assert_eq!(retry_after_seconds(SECOND, 0.0), 1);
        assert_eq!(retry_after_seconds(SECOND + 1, 0.0), 2);
        assert!((0..1000).all(|_| retry_after_seconds(SECOND, 0.1) == 1), "a tenth of one is none");
        let seen: Vec<_> = (0..1000).map(|_| retry_after_seconds(100 * SECOND, 0.1)).collect();
        assert!(seen.iter().all(|s| (100..=110).contains(s)));
        assert!(seen.iter().any(|s| *s > 105), "spread");
    }
}
