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

/// A request that its limits have judged, where one of them has a penalty.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a, 'l> {
    /// The limits that guard it.
    pub limits: &'l Limits,
    /// Those that apply, and what they said.
    pub claims: &'a [Claim],
    /// See `claims`.
    pub charges: &'a [Charge<'a>],
    /// No enforcing limit rejects it.
    pub admitted: bool,
    /// Its address is a trusted proxy's own.
    pub by_proxy: bool,
    /// Counters are shared. What this gateway says without the store, by its share of a limit, bans no one.
    pub is_shared: bool,
}

/// What comes of ignoring a limit's rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Penalised {
    /// The caller is banned from now on, or still is.
    Banned {
        /// The caller was not banned before.
        fresh: bool,
    },
    /// The limit is a shadow: it reports the ban, and does not ban.
    Reported,
}

impl<'l> Judged<'_, 'l> {
    /// Counts the rejects of a request by limits that have a penalty, and bans a caller with more of
    /// them than are tolerated: those limits, by their place among the claims.
    ///
    /// A ban follows from what the caller did alone. So it does not follow from the verdict of a counter
    /// that others use as well (in a full store), nor for an address that stands for others (a trusted
    /// proxy's).
    pub fn penalise(
        &self,
        store: &Memory,
        bans: &Bans,
        now: Micros,
    ) -> SmallVec<[(&'l Limit, usize, Penalised); 2]> {
        let mut penalised = SmallVec::new();
        for (index, (claim, charge)) in self.claims.iter().zip(self.charges).enumerate() {
            let limit = &*self.limits[claim.limit];
            let Some(penalty) = limit.penalty.as_ref().filter(|_| !charge.verdict.allowed) else {
                continue;
            };
            let [part] = charge.subject.0 else { continue };
            let is_proxy = self.by_proxy && matches!(part, Part::Ip(_));
            // A shadow counts what the enforcing limits admit.
            let is_degraded = self.is_shared && !charge.verdict.shared;
            if limit.shadow && !self.admitted || is_proxy || is_degraded || store.is_pooled(charge)
            {
                continue;
            }
            let Some(who) = Who::of(*part) else { continue };
            if !bans.count_reject(penalty.id, &penalty.tolerated, charge.subject, now) {
                continue;
            }
            let outcome = if limit.shadow {
                Penalised::Reported
            } else {
                let (why, until) = (Why::Penalty(limit.name.as_str().into()), now + penalty.lasts);
                let metrics = Some(Arc::clone(limit.metrics(claim.plan)));
                Penalised::Banned { fresh: bans.add(Ban { who, why, until, metrics }, now) }
            };
            penalised.push((limit, index, outcome));
        }
        penalised
    }
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
