//! What callers are told of their limits, as headers: `Retry-After`, `X-RateLimit-*` and the IETF
//! draft's `RateLimit` and `RateLimit-Policy`.

use crate::clock::{Clock, SECOND};
use crate::limit::{Quota, Rate, Verdict};
use bytes::BytesMut;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

static X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
static X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
static X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Writes headers, in the order in which callers read them.
#[derive(Debug)]
pub struct Told<'h> {
    headers: &'h mut HeaderMap,
    /// The value under way. All values share its memory: one allocation serves them all.
    text: BytesMut,
}

/// A limit's item of `RateLimit-Policy`: `"name";q=N;w=seconds`.
pub fn policy(name: &str, quota: &Quota) -> String {
    let Rate { count, window } = quota.rate();
    if quota.is_concurrency() {
        return format!("\"{name}\";q={count};qu=\"concurrent-requests\"");
    }
    format!("\"{name}\";q={count};w={}", window.div_ceil(SECOND))
}

/// `RateLimit-Policy` of all limits that have something to say; `None` if there are none.
pub fn policies<'a>(items: impl Iterator<Item = &'a str>) -> Option<HeaderValue> {
    let text = items.collect::<SmallVec<[&str; 4]>>().join(", ");
    (!text.is_empty()).then(|| HeaderValue::from_str(&text).ok())?
}

impl<'h> Told<'h> {
    /// Headers go in here.
    pub fn new(headers: &'h mut HeaderMap) -> Self {
        Self { headers, text: BytesMut::with_capacity(256) }
    }

    /// `Retry-After`.
    pub fn retry_after(&mut self, seconds: u64) {
        self.number(seconds);
        self.end(&RETRY_AFTER);
    }

    /// `X-RateLimit-*` of one limit; `count` is its N.
    pub fn x_ratelimit(
        &mut self,
        count: HeaderValue,
        quota: &Quota,
        verdict: &Verdict,
        clock: &Clock,
    ) {
        self.headers.insert(&X_LIMIT, count);
        self.number(verdict.remaining());
        self.end(&X_REMAINING);
        let reset = verdict.at.saturating_add(quota.reset(verdict));
        // A shared store's clock is a wall clock.
        self.number(if verdict.shared { reset.div_ceil(SECOND) } else { clock.wall_second(reset) });
        self.end(&X_RESET);
    }

    /// `RateLimit` and `RateLimit-Policy`, structured fields as of the IETF's draft; nothing if no
    /// limit has anything to say.
    pub fn ietf<'a>(
        &mut self,
        policy: Option<HeaderValue>,
        items: impl Iterator<Item = (&'a str, &'a Quota, &'a Verdict)>,
    ) {
        let Some(policy) = policy else { return };
        self.headers.insert(&RATELIMIT_POLICY, policy);
        for (name, quota, verdict) in items {
            self.text.extend_from_slice(if self.text.is_empty() { b"\"" } else { b", \"" });
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

    fn number(&mut self, number: impl itoa::Integer) {
        self.text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn end(&mut self, name: &'static HeaderName) {
        // Names of limits are checked when they are read: nothing else could be refused here.
        if let Ok(value) = HeaderValue::from_maybe_shared(self.text.split().freeze()) {
            self.headers.insert(name, value);
        }
    }
}
