//! What callers are told of their limits, as headers: `Retry-After`, `X-RateLimit-*` and the IETF
//! draft's `RateLimit` and `RateLimit-Policy`.

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

/// Headers under way, in the order in which callers read them. Values that have to be written share
/// one buffer: a reject must be the cheapest answer there is, and allocations are most of it.
#[derive(Debug, Default)]
pub struct Told {
    text: Vec<u8>,
    headers: SmallVec<[(&'static HeaderName, Value); 6]>,
}

#[derive(Debug)]
enum Value {
    Known(HeaderValue),
    /// The buffer's part up to here.
    Written(usize),
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

impl Told {
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
        self.headers.push((&X_LIMIT, Value::Known(count)));
        self.number(verdict.remaining());
        self.end(&X_REMAINING);
        self.number(clock.wall_second(verdict.at.saturating_add(quota.reset(verdict))));
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
        self.headers.push((&RATELIMIT_POLICY, Value::Known(policy)));
        let begun = self.text.len();
        for (name, quota, verdict) in items {
            if self.text.len() > begun {
                self.text.extend_from_slice(b", ");
            }
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
        let mut text = Bytes::from(self.text);
        let mut start = 0;
        for (name, value) in self.headers {
            let value = match value {
                Value::Known(value) => Ok(value),
                Value::Written(end) => {
                    let part = text.split_to(end - std::mem::replace(&mut start, end));
                    HeaderValue::from_maybe_shared(part)
                }
            };
            // Names of limits are checked when they are read: nothing else could be refused here.
            if let Ok(value) = value {
                headers.insert(name, value);
            }
        }
    }

    fn number(&mut self, number: impl itoa::Integer) {
        if self.text.capacity() == 0 {
            self.text.reserve_exact(128);
        }
        self.text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn end(&mut self, name: &'static HeaderName) {
        self.headers.push((name, Value::Written(self.text.len())));
    }
}
