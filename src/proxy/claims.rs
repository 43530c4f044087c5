//! Which limits apply to a caller, by which of their counters, and what they are asked for. A
//! request that is simulated goes through the same functions.

use super::identify::Caller;
use super::settle::reserve;
use crate::clock::Micros;
use crate::config::model::{Attribute, Layer};
use crate::limit::Quota;
use crate::overrides::{Ban, Bans, Who, Why};
use crate::snapshot::{Limit, Limits};
use crate::store::{Charge, Memory, Part, Subject};
use http::HeaderMap;
use smallvec::SmallVec;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

/// A limit that applies, and which of its counters.
#[derive(Debug)]
pub struct Claim {
    /// Its place among the limits.
    pub limit: usize,
    /// Which of its quotas.
    pub quota: usize,
    /// Index of the caller's plan, as far as it matters to the limit.
    pub plan: usize,
    /// What it counts by, among the parts.
    pub parts: Range<usize>,
}

/// The limits that apply, in their order.
pub type Claims = SmallVec<[Claim; 4]>;

/// What the limits that apply count by, one after the other.
pub type Parts<'a> = SmallVec<[Part<'a>; 4]>;

/// What is known of a caller.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The address that counts. Whoever sends a request has one.
    pub ip: Option<IpAddr>,
    /// Who they are.
    pub caller: &'a Caller,
    /// What they say.
    pub headers: &'a HeaderMap,
    /// Nothing but the address is believed.
    pub ip_only: bool,
}

impl<'a> Known<'a> {
    fn part(&self, attribute: &Attribute) -> Option<Part<'a>> {
        match attribute {
            Attribute::Ip => self.ip.map(Part::Ip),
            Attribute::User => self.caller.user.as_deref().map(Part::User),
            Attribute::ApiKey => self.caller.api_key.as_deref().map(Part::ApiKey),
            Attribute::Header(name) => {
                self.headers.get(name).map(|value| Part::Header(value.as_bytes()))
            }
        }
    }
}

/// Why a limit does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silent<'l> {
    /// The caller lacks what it counts by.
    Lacks(&'l Attribute),
    /// The caller has what it makes way for.
    Has(&'l Attribute),
    /// The caller's request or credentials are bad, and only limits by address count.
    IpOnly,
}

/// Whether a limit applies; if so, what it counts by is added to the parts.
#[inline(always)]
pub fn apply<'a, 'l>(
    limit: &'l Limit,
    known: &Known<'a>,
    parts: &mut Parts<'a>,
) -> Result<(), Silent<'l>> {
    if known.ip_only && limit.layer != Layer::Ip {
        return Err(Silent::IpOnly);
    }
    if let Some(has) = limit.unless.iter().find(|attribute| known.part(attribute).is_some()) {
        return Err(Silent::Has(has));
    }
    let start = parts.len();
    for attribute in &limit.by {
        match known.part(attribute) {
            Some(part) => parts.push(part),
            None => {
                parts.truncate(start);
                return Err(Silent::Lacks(attribute));
            }
        }
    }
    Ok(())
}

/// The limits that apply. Of a caller who was refused, only those by address alone.
#[inline(always)]
pub fn claim<'a>(
    limits: &[Arc<Limit>],
    known: &Known<'a>,
    parts: &mut Parts<'a>,
    claims: &mut Claims,
) {
    for (index, limit) in limits.iter().enumerate() {
        let start = parts.len();
        if apply(limit, known, parts).is_ok() {
            let plan = known.caller.plan(&limit.by);
            let (quota, plan) = (limit.quota_index(plan), limit.plan_index(plan));
            claims.push(Claim { limit: index, quota, plan, parts: start..parts.len() });
        }
    }
}

/// What a limit that applies is asked for. The caller may have been granted another quota, until
/// then; the request's body may have announced its length.
#[inline(always)]
pub fn charge<'a>(
    limit: &'a Limit,
    claim: &Claim,
    known: &Known<'_>,
    subject: Subject<'a>,
    grant: Option<&'a (Quota, Micros)>,
    announced: Option<u64>,
) -> Charge<'a> {
    let quota = grant.map_or_else(|| limit.quota(claim.quota), |(quota, _)| quota);
    let mut charge = Charge::new(limit.id, quota, subject);
    charge.granted = grant.map(|(_, until)| *until);
    (charge.shadow, charge.leased, charge.on_failure) =
        (limit.shadow, limit.leased, limit.on_failure);
    if !limit.shards.is_empty() {
        let index = shard(known, limit.shards.len());
        (charge.shard, charge.quota) = (Some(index as u16), &limit.shards[index]);
    }
    reserve(&limit.cost, charge.quota, announced).apply(&mut charge);
    charge
}

/// Counts the rejects of a request where a limit has a penalty, and bans whoever has had too many:
/// those limits, and whether the caller was not banned before.
pub fn penalise<'l>(
    store: &Memory,
    bans: &Bans,
    limits: &'l Limits,
    claims: &[Claim],
    charges: &[Charge<'_>],
    now: Micros,
) -> SmallVec<[(&'l Limit, bool); 2]> {
    let mut banned = SmallVec::new();
    for (claim, charge) in claims.iter().zip(charges) {
        let limit = &*limits[claim.limit];
        let Some(penalty) = limit.penalty.as_ref().filter(|_| !charge.verdict.allowed) else {
            continue;
        };
        let reject = Charge::new(penalty.id, &penalty.tolerated, charge.subject);
        let decision = store.charge_all(&mut [reject], now);
        let [part] = charge.subject.0 else { continue };
        let Some(who) = Who::of(*part).filter(|_| decision.rejected_by.is_some()) else { continue };
        let (why, until) = (Why::Penalty(limit.name.as_str().into()), now + penalty.lasts);
        let metrics = Some(Arc::clone(limit.metrics(claim.plan)));
        banned.push((limit, bans.add(Ban { who, why, until, metrics }, now)));
    }
    banned
}

/// Which part of a limit a caller belongs to: always the same.
pub fn shard(known: &Known<'_>, shards: usize) -> usize {
    let name = known.caller.api_key.as_deref().or(known.caller.user.as_deref());
    let hash = match (name, known.ip) {
        (Some(name), _) => fnv(name.as_bytes()),
        (None, Some(IpAddr::V4(ip))) => fnv(&ip.octets()),
        (None, Some(IpAddr::V6(ip))) => fnv(&ip.octets()),
        (None, None) => 0,
    };
    (hash % shards as u64) as usize
}

/// The same on every gateway.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
