//! The algorithms: pure functions of (quota, state, now, cost). No clock, no store, no I/O.
//!
//! ```text
//! Quota  what was written: N per W, burst B        (validated; knows nothing of callers)
//! State  what one caller has used, and since when  (independent of the rate: a reload keeps it)
//! Quota::check(State, now, cost) -> (Verdict, State)
//! ```
//!
//! A store hands the state in and writes the new one back if every layer of the request allows.
//! Everything is counted in integers, so the same inputs give the same answer everywhere.

mod bucket;

use crate::clock::{Micros, SECOND};

/// N per window: a rate as the user wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// N: how many tokens.
    pub count: u32,
    /// W: per how long.
    pub window: Micros,
}

/// How a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// A bucket of size B that refills continuously at N/W.
    #[default]
    TokenBucket,
}

/// One algorithm with its numbers, valid by construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    algorithm: Algorithm,
    rate: Rate,
    bucket: bucket::Bucket,
}

/// Why numbers make no quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// Nothing could ever pass.
    #[error("a rate of 0 would never admit a request")]
    ZeroRate,
    /// A window of no length.
    #[error("the window must be longer than nothing")]
    ZeroWindow,
    /// Longer than the arithmetic is exact for.
    #[error("the window must be at most 366 days")]
    WindowTooLong,
    /// An empty bucket.
    #[error("a burst of 0 would never admit a request")]
    ZeroBurst,
    /// Larger than the arithmetic is exact for.
    #[error("a burst must be at most {MAX_BURST}")]
    BurstTooLarge,
    /// Nobody would live to see it whole again.
    #[error("at this rate a used-up burst would take more than 100 years to come back")]
    TooSlow,
}

/// The largest bucket: half of what the state can count, so that debts fit as well.
pub const MAX_BURST: u32 = u32::MAX / 2;

/// The longest time until a used-up limit is whole again.
const MAX_RESET: Micros = 36_525 * 86_400 * SECOND;

/// The longest window.
pub const MAX_WINDOW: Micros = 366 * 86_400 * SECOND;

/// What one caller has used of one limit. All zeroes is a caller never seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Tokens used and not yet returned.
    pub used: u32,
    /// What is left of a microsecond at `stamp`, in parts of the rate's numerator: the remainder
    /// of the division that last returned tokens, so that none of it is lost.
    pub carry: u32,
    /// When `used` was true.
    pub stamp: Micros,
}

/// What a limit says to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether this limit lets the request pass.
    pub allowed: bool,
    /// How many more requests of this cost would pass right now.
    pub remaining: u64,
    /// Tokens left, whatever a request costs, and how many there can be: the tightest limit is
    /// the one with the smallest share left.
    pub unused: u32,
    /// See `unused`.
    pub capacity: u32,
    /// How long until this very request would pass; zero when it does.
    pub retry_after: Micros,
    /// How long until one more request of this cost can pass than now; zero when whole.
    pub next: Micros,
    /// How long until the limit is whole again.
    pub reset: Micros,
    /// How long an admitted request must wait for its turn.
    pub delay: Micros,
}

impl Quota {
    /// A bucket of `burst` tokens (default: N) that refills at `rate`.
    pub fn token_bucket(rate: Rate, burst: Option<u32>) -> Result<Self, QuotaError> {
        let bucket = bucket::Bucket::new(rate, burst.unwrap_or(rate.count))?;
        Ok(Self { algorithm: Algorithm::TokenBucket, rate, bucket })
    }

    /// The rate as it was written.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The most tokens one request can take.
    pub fn capacity(&self) -> u32 {
        self.bucket.size()
    }

    /// Asks for `cost` tokens at `now`. The new state is to be kept only if the request is
    /// admitted by every limit; it equals the old one when this limit rejects.
    pub fn check(&self, state: State, now: Micros, cost: u32) -> (Verdict, State) {
        match self.algorithm {
            Algorithm::TokenBucket => self.bucket.check(state, now, cost),
        }
    }

    /// What the limit says of itself while nothing is taken: the verdict of a layer that would
    /// have allowed a request which another layer rejected.
    pub fn peek(&self, state: State, now: Micros, cost: u32) -> Verdict {
        match self.algorithm {
            Algorithm::TokenBucket => self.bucket.peek(state, now, cost),
        }
    }

    /// Whether the caller has their whole allowance again, so that forgetting them forgives
    /// nothing.
    pub fn is_whole(&self, state: State, now: Micros) -> bool {
        match self.algorithm {
            Algorithm::TokenBucket => self.bucket.is_whole(state, now),
        }
    }
}
