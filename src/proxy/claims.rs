//! Which limits apply to a caller, and by which of their counters.

use super::identify::Caller;
use crate::config::model::{Attribute, Layer};
use crate::snapshot::Limit;
use crate::store::Part;
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
