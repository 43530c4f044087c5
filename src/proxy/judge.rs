//! Limits → decision. Which limits apply to this caller, what they say together, and what an
//! admitted request owes until its end.

use super::address;
use super::claims::{Claim, Claims, Judged, Known, Parts, Penalised, charge, claim};
use super::exchange::Exchange;
use super::identify::Caller;
use super::leaving::{Custody, Obligation};
use super::refusal::Refusal;
use super::settle::{End, Settlement, Telling};
use crate::clock::{Micros, SECOND};
use crate::config::model::Layer;
use crate::gateway::Gateway;
use crate::limit::{Quota, Verdict};
use crate::snapshot::{Limit, Limits};
use crate::store::{self, Charge, Hold, Settled, StoreError, Subject};
use crate::upstream::Witness;
use http::HeaderMap;
use smallvec::SmallVec;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
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
    /// Index of the caller's plan, as far as it matters to the limit.
    pub plan: usize,
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
    /// Quotas that were granted to the caller, by their place in `said`.
    granted: Option<Granted>,
}

/// Quotas that were granted to a caller, and until when, by the limits that apply.
type Granted = Rc<[Option<(Quota, Micros)>]>;

/// An admitted request's hold on its limits, for as long as its response body lives: what is held
/// is given back when this is dropped, however the exchange ends.
#[derive(Debug)]
#[must_use]
pub struct Admission {
    holds: Vec<Hold>,
    gateway: Option<Arc<Gateway>>,
    /// A request that was broken off keeps its permits for a moment.
    custody: Option<Rc<Custody>>,
}

impl Admission {
    fn new(holds: Vec<Hold>, gateway: &Arc<Gateway>) -> Self {
        // The usual request holds nothing, and costs nothing here.
        let gateway = (!holds.is_empty()).then(|| Arc::clone(gateway));
        Self { holds, gateway, custody: None }
    }

    /// The request outlives its client.
    pub(super) fn give_into(&mut self, custody: &Rc<Custody>) {
        self.custody = Some(Rc::clone(custody));
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
        if self.holds.is_empty() {
            return;
        }
        if let Some(custody) = self.custody.take().filter(|custody| custody.is_broken_off()) {
            let (holds, gateway) = (std::mem::take(&mut self.holds), self.gateway.take());
            return custody.keep(Self { holds, gateway, custody: None });
        }
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
            let plan = limit.plan_index(caller.plan(&limit.by));
            limit.metrics(plan).of(exchange.worker.index).exempt.bump();
        }
        return Ok(());
    }
    let (ip, ip_only) = (Some(exchange.origin.counted), exchange.caller.is_none());
    let known = Known { ip, caller, headers, ip_only };
    let (mut parts, mut claims) = (Parts::new(), Claims::new());
    claim(limits, &known, &mut parts, &mut claims);
    let gateway = &exchange.worker.gateway;
    let granted = granted(gateway, limits, &parts, &claims, exchange.decides);
    let charge = |(index, claim): (usize, &Claim)| {
        let subject = Subject(&parts[claim.parts.clone()]);
        let grant = granted.as_ref().and_then(|granted| granted[index].as_ref());
        charge(&limits[claim.limit], claim, &known, subject, grant, exchange.announced)
    };
    let mut charges: SmallVec<[Charge<'_>; 4]> = claims.iter().enumerate().map(charge).collect();
    let mut decision = match purpose {
        Purpose::Foresee => match gateway.store.foresee(&mut charges, exchange.decides) {
            decision if decision.rejected_by.is_some() => decision,
            _ => return Ok(()),
        },
        Purpose::Decide => {
            if let Some(custody) = &exchange.custody {
                custody.owes(Obligation::Decision);
            }
            let decided = gateway.store.charge_all(&mut charges, exchange.decides).await;
            decided.map_err(|StoreError::Away| Refusal::StoreAway)?
        }
    };

    let judgement = &mut exchange.judgement;
    judgement.rejected_by = decision.rejected_by;
    judgement.granted.clone_from(&granted);
    judgement.said.extend(claims.iter().zip(&charges).map(|(claim, charge)| Said {
        limit: claim.limit,
        quota: claim.quota,
        plan: claim.plan,
        verdict: charge.verdict,
    }));
    judgement.count(limits, exchange.worker.index, gateway.store.is_shared());
    if limits.penal && charges.iter().any(|charge| !charge.verdict.allowed) {
        let judged = Judged {
            limits,
            claims: &claims,
            charges: &charges,
            admitted: judgement.rejected_by.is_none(),
            by_proxy: false,
            is_shared: gateway.store.is_shared(),
        };
        punish(gateway, exchange.worker.index, exchange.origin.ip, exchange.decides, judged);
    }
    if let Some(index) = judgement.rejected_by {
        let retry_after = store::retry_after(&charges);
        return Err(match limits[claims[index].limit].layer {
            Layer::Global => Refusal::SystemLimited { retry_after },
            _ => Refusal::Limited { retry_after },
        });
    }
    let delay = store::delay(&charges);
    let (holds, announced) = (&mut decision.holds, exchange.announced);
    // What a tunnel will carry is announced nowhere.
    let announced = announced.filter(|_| exchange.upgrade.is_none());
    exchange.settlement = Settlement::take(gateway, holds, &judgement.said, limits, announced);
    let mut admission = Admission::new(decision.holds, gateway);
    if let Some(custody) = &exchange.custody {
        admission.give_into(custody);
        custody.decided().await;
    }
    if delay > 0 {
        exchange.room.step_aside();
    }
    if admission.holds() {
        admission.turn(delay).await;
    }
    if admission.holds() {
        exchange.admission = Some(admission);
    }
    exchange.record.wait(delay);
    Ok(())
}

/// Gives back what was charged for a request that reached no backend.
/// The client hears of it when a shared store has been told: a request that it sends then finds it done.
#[cold]
pub(super) fn refund(
    exchange: &mut Exchange,
    refusal: &Refusal,
    headers: Option<&HeaderMap>,
) -> Option<Telling> {
    let charged = exchange.judgement.rejected_by.is_none() && !exchange.judgement.said.is_empty();
    if !charged || refusal.end(exchange.was_sent()) != End::Unreached {
        return None;
    }
    let mut telling = exchange.settle(End::Unreached);
    let (kept, none) = (exchange.headers.take(), HeaderMap::new());
    let headers = kept.as_ref().or(headers).unwrap_or(&none);
    let generation = Rc::clone(&exchange.generation);
    let limits = exchange.limits_in(&generation);
    let Some(caller) = &exchange.caller else { return telling };
    let known = Known { ip: Some(exchange.origin.counted), caller, headers, ip_only: false };
    let (mut parts, mut claims) = (Parts::new(), Claims::new());
    claim(limits, &known, &mut parts, &mut claims);
    let (store, now) = (&exchange.worker.gateway.store, exchange.worker.gateway.clock.now());
    let Judgement { said, granted, .. } = &mut exchange.judgement;
    for (index, (claim, said)) in claims.iter().zip(said).enumerate() {
        let limit = &limits[claim.limit];
        if claim.limit != said.limit || !said.verdict.allowed || limit.cost.is_settled() {
            continue;
        }
        let subject = Subject(&parts[claim.parts.clone()]);
        let grant = granted.as_ref().and_then(|granted| granted[index].as_ref());
        let mut charge = charge(limit, claim, &known, subject, grant, exchange.announced);
        charge.verdict = said.verdict;
        // Places in flight go with the admission.
        if !charge.quota.is_concurrency() {
            let Settled { verdict, told } = store.refund(&charge, now);
            said.verdict = verdict.unwrap_or(said.verdict);
            if let Some(told) = told {
                telling.get_or_insert_with(|| Telling::new(store)).add(told);
            }
        }
    }
    telling
}

/// Counts rejects where a limit has a penalty, and bans a caller that has had too many.
#[cold]
fn punish(gateway: &Gateway, worker: usize, ip: IpAddr, now: Micros, judged: Judged<'_, '_>) {
    let by_proxy = address::is_in(&gateway.snapshot.load().identity.trusted_proxies, ip);
    let judged = Judged { by_proxy, ..judged };
    let (store, bans) = (gateway.store.local(), &gateway.overrides.bans);
    for (limit, claim, penalised) in judged.penalise(store, bans, now) {
        match penalised {
            Penalised::Banned { fresh: false } => {}
            Penalised::Banned { fresh: true } => {
                tracing::warn!("a caller is banned for ignoring the limit '{}'", limit.name);
            }
            Penalised::Reported => {
                limit.metrics(judged.claims[claim].plan).of(worker).shadow_banned.bump();
            }
        }
    }
}

/// A secret of the process, so that no client can choose a number.
static SECRET: OnceLock<RandomState> = OnceLock::new();

/// A number for the caller: by API key, else by user, else by address.
pub(super) fn number_of(exchange: &Exchange) -> u64 {
    let caller = exchange.caller.as_ref();
    let key = caller.and_then(|caller| caller.api_key.as_deref());
    let user = caller.and_then(|caller| caller.user.as_deref());
    let ip = (key.is_none() && user.is_none()).then_some(exchange.origin.counted);
    SECRET.get_or_init(RandomState::new).hash_one((key, user.filter(|_| key.is_none()), ip))
}

/// Whose request failed at an endpoint.
pub(super) fn witness(exchange: &Exchange) -> Witness {
    let address = SECRET.get_or_init(RandomState::new).hash_one(exchange.origin.counted);
    Witness::Caller { identity: number_of(exchange), address }
}

/// What is granted to the caller, for each of the limits that apply.
#[inline]
fn granted(
    gateway: &Gateway,
    limits: &Limits,
    parts: &Parts<'_>,
    claims: &Claims,
    now: Micros,
) -> Option<Granted> {
    let grants = &gateway.overrides.grants;
    if grants.is_empty() {
        return None;
    }
    let grant = |claim: &Claim| {
        let limit = &limits[claim.limit];
        let (factor, until) = grants.find(&parts[claim.parts.clone()], &limit.name, now)?;
        Some((limit.quota(claim.quota).times(factor, limit.cost.up_front())?, until))
    };
    // Most callers have none.
    let granted: SmallVec<[_; 4]> = claims.iter().map(grant).collect();
    granted.iter().any(Option::is_some).then(|| granted.into_iter().collect())
}

impl Judgement {
    fn count(&self, limits: &[Arc<Limit>], worker: usize, shared: bool) {
        for said in &self.said {
            let (limit, verdict) = (&limits[said.limit], &said.verdict);
            let metrics = limit.metrics(said.plan).of(worker);
            metrics.note_pressure(verdict);
            match (verdict.allowed, limit.shadow) {
                (false, false) => metrics.rejected.bump(),
                // The rest counts only requests that passed.
                _ if self.rejected_by.is_some() => {}
                (true, _) if shared && !verdict.shared => metrics.degraded.bump(),
                (true, _) => metrics.allowed.bump(),
                (false, true) => metrics.shadow_rejected.bump(),
            }
        }
    }

    /// What was granted to the caller for one of the limits that spoke, in the place of its quota.
    pub fn granted(&self, said: usize) -> Option<&Quota> {
        self.granted.as_ref()?.get(said)?.as_ref().map(|(quota, _)| quota)
    }

    /// Whether anything was.
    pub fn has_grants(&self) -> bool {
        self.granted.is_some()
    }

    /// The limit that speaks in `X-RateLimit-*`: the one that rejected, or else the tightest, the
    /// one with the smallest share left. Neither shadows nor the operator's own limits speak.
    pub fn speaker(&self, limits: &[Arc<Limit>]) -> Option<&Said> {
        self.speaks(limits).map(|(_, said)| said)
    }

    /// The same, and its place among those that said something.
    pub fn speaks(&self, limits: &[Arc<Limit>]) -> Option<(usize, &Said)> {
        let speaks =
            |(_, said): &(usize, &Said)| limits[said.limit].speaks() && !said.verdict.is_silent();
        if let Some(index) = self.rejected_by {
            return self.said.get(index).map(|said| (index, said)).filter(speaks);
        }
        let said = self.said.iter().enumerate().filter(speaks);
        said.min_by(|(_, a), (_, b)| a.verdict.compare_share(&b.verdict))
    }
}

/// `Retry-After`: whole seconds, rounded up, at least one. Jitter spreads callers who would all
/// come back in the same second: up to that share of the seconds is added, a minute at most, and
/// nothing taken away.
pub fn retry_after_seconds(retry_after: Micros, jitter: f64) -> u64 {
    let seconds = retry_after.div_ceil(SECOND).max(1);
    let most = Duration::from_secs(seconds).mul_f64(jitter).as_secs().min(60);
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

    #[test]
    fn jitter_is_a_minute_at_most_whatever_the_wait() {
        let month = 30 * 86_400;
        let seen: Vec<_> =
            (0..1000).map(|_| retry_after_seconds(month * SECOND, 1.0) - month).collect();
        assert!(seen.iter().all(|extra| *extra <= 60), "{seen:?}");
        assert!(seen.iter().any(|extra| *extra > 30), "spread");
    }
}
