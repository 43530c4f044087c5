//! What callers are told of their limits, as headers: `X-RateLimit-*` and the IETF draft's
//! `RateLimit` and `RateLimit-Policy`.

use crate::clock::{Clock, SECOND};
use crate::limit::{Quota, Rate, Verdict};
use http::{HeaderMap, HeaderName, HeaderValue};

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// `X-RateLimit-*` of one limit.
pub fn x_ratelimit(headers: &mut HeaderMap, quota: &Quota, verdict: &Verdict, clock: &Clock) {
    headers.insert(X_LIMIT, quota.rate().count.into());
    headers.insert(X_REMAINING, verdict.remaining().into());
    let whole = verdict.at.saturating_add(quota.reset(verdict));
    headers.insert(X_RESET, clock.wall_second(whole).into());
}

/// A limit's item of `RateLimit-Policy`: `"name";q=N;w=seconds`.
pub fn policy(name: &str, quota: &Quota) -> String {
    let Rate { count, window } = quota.rate();
    if quota.is_concurrency() {
        return format!("\"{name}\";q={count};qu=\"concurrent-requests\"");
    }
    format!("\"{name}\";q={count};w={}", window.div_ceil(SECOND))
}

/// `RateLimit` and `RateLimit-Policy`, structured fields as of the IETF's draft, of limits by name,
/// policy, quota and verdict.
pub fn ietf<'a>(
    headers: &mut HeaderMap,
    limits: impl Iterator<Item = (&'a str, &'a str, &'a Quota, &'a Verdict)>,
) {
    let (mut policies, mut states) = (Vec::with_capacity(128), Vec::with_capacity(128));
    let mut digits = itoa::Buffer::new();
    for (name, policy, quota, verdict) in limits {
        if !policies.is_empty() {
            policies.extend_from_slice(b", ");
            states.extend_from_slice(b", ");
        }
        policies.extend_from_slice(policy.as_bytes());
        states.push(b'"');
        states.extend_from_slice(name.as_bytes());
        states.extend_from_slice(b"\";r=");
        states.extend_from_slice(digits.format(verdict.remaining()).as_bytes());
        let next = quota.next(verdict);
        if next > 0 {
            states.extend_from_slice(b";t=");
            states.extend_from_slice(digits.format(next.div_ceil(SECOND)).as_bytes());
        }
    }
    if let (false, Ok(policy), Ok(state)) = (
        policies.is_empty(),
        HeaderValue::from_maybe_shared(bytes::Bytes::from(policies)),
        HeaderValue::from_maybe_shared(bytes::Bytes::from(states)),
    ) {
        headers.insert(RATELIMIT_POLICY, policy);
        headers.insert(RATELIMIT, state);
    }
}
