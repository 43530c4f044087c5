//! What callers are told of their limits, as headers: `Retry-After`, `X-RateLimit-*` and the IETF
//! draft's `RateLimit` and `RateLimit-Policy`.
//!
//! All values are written into one buffer and the headers are parts of it: a reject must be the
//! cheapest answer there is, and allocations are what it consists of.

use crate::clock::{Clock, SECOND};
use crate::limit::{Quota, Rate, Verdict};
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

static X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
static X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
static X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Headers under way.
#[derive(Debug)]
pub struct Told {
    text: Vec<u8>,
    /// Each header, and where its value ends.
    ends: SmallVec<[(&'static HeaderName, usize); 6]>,
}

/// What one limit says of itself in the draft's headers.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// What it is called.
    pub name: &'a str,
    /// See [`policy`].
    pub policy: &'a str,
    /// What it allows.
    pub quota: &'a Quota,
    /// What it said.
    pub verdict: &'a Verdict,
}

/// A limit's item of `RateLimit-Policy`: `"name";q=N;w=seconds`.
pub fn policy(name: &str, quota: &Quota) -> String {
    let Rate { count, window } = quota.rate();
    if quota.is_concurrency() {
        return format!("\"{name}\";q={count};qu=\"concurrent-requests\"");
    }
    format!("\"{name}\";q={count};w={}", window.div_ceil(SECOND))
}

impl Default for Told {
    fn default() -> Self {
        Self { text: Vec::with_capacity(256), ends: SmallVec::new() }
    }
}

impl Told {
    /// `Retry-After`.
    pub fn retry_after(&mut self, seconds: u64) {
        self.number(seconds);
        self.end(&RETRY_AFTER);
    }

    /// `X-RateLimit-*` of one limit.
    pub fn x_ratelimit(&mut self, quota: &Quota, verdict: &Verdict, clock: &Clock) {
        self.number(quota.rate().count);
        self.end(&X_LIMIT);
        self.number(verdict.remaining());
        self.end(&X_REMAINING);
        self.number(clock.wall_second(verdict.at.saturating_add(quota.reset(verdict))));
        self.end(&X_RESET);
    }

    /// `RateLimit` and `RateLimit-Policy`, structured fields as of the IETF's draft.
    pub fn ietf<'a>(&mut self, items: impl Iterator<Item = Item<'a>> + Clone) {
        let begun = self.text.len();
        for item in items.clone() {
            self.separate(begun);
            self.text.extend_from_slice(item.policy.as_bytes());
        }
        if self.text.len() == begun {
            return;
        }
        self.end(&RATELIMIT_POLICY);
        let begun = self.text.len();
        for Item { name, quota, verdict, .. } in items {
            self.separate(begun);
            self.text.push(b'"');
            self.text.extend_from_slice(name.as_bytes());
            self.text.extend_from_slice(b"\";r=");
            self.number(verdict.remaining());
            let next = quota.next(verdict);
            if next > 0 {
                self.text.extend_from_slice(b";t=");
                self.number(next.div_ceil(SECOND));
            }
        }
        self.end(&RATELIMIT);
    }

    /// Puts the headers where they belong.
    pub fn put(self, headers: &mut HeaderMap) {
        let text = Bytes::from(self.text);
        let mut start = 0;
        for (name, end) in self.ends {
            // Names of limits are checked when they are read: nothing else could be refused here.
            if let Ok(value) = HeaderValue::from_maybe_shared(text.slice(start..end)) {
                headers.insert(name, value);
            }
            start = end;
        }
    }

    /// A comma, unless it is the first.
    fn separate(&mut self, begun: usize) {
        if self.text.len() > begun {
            self.text.extend_from_slice(b", ");
        }
    }

    fn number(&mut self, number: impl itoa::Integer) {
        self.text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn end(&mut self, name: &'static HeaderName) {
        self.ends.push((name, self.text.len()));
    }
}
