//! The algorithms: pure functions of (quota, state, now, cost). No clock, no store, no I/O.
//!
//! ```text
//! Quota  what was written: an algorithm with its numbers   (validated; knows nothing of callers)
//! Held   what one caller has used, and since when          (independent of the rate: a reload keeps it)
//! Quota::check(&Held, now, cost) -> (Verdict, Next)
//! ```
//!
//! A store hands the state in, and applies [`Next`] if every layer of the request allows.
//! Everything is counted in integers, so the same inputs give the same answer everywhere.
//!
//! Each algorithm answers the same few questions, and a [`Verdict`] is made of the answers: how
//! many tokens are there now (room), when will there be so many (wait), when is it whole again
//! (reset).

mod bucket;
mod fixed;
mod leaky;
mod log;
mod sliding;
mod state;
mod windows;

use crate::clock::{Micros, SECOND};
use bucket::Bucket;
use fixed::Fixed;
use leaky::Leaky;
use sliding::Sliding;
use std::sync::Arc;

pub use log::{Log, MAX_LOG};
pub use state::{Held, Kind, Next, State};
pub use windows::{Calendar, Period, Windows};

/// N per window: a rate as the user wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// N: how many tokens.
    pub count: u32,
    /// W: per how long.
    pub window: Micros,
}

/// One algorithm with its numbers, valid by construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    rate: Rate,
    shape: Shape,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    /// `token_bucket` and `gcra`: the same arithmetic with other defaults.
    Bucket(Bucket),
    Leaky(Leaky),
    Fixed(Fixed),
    Sliding(Sliding),
    Log(log::SlidingLog),
    Concurrency(u32),
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
    /// Larger than the arithmetic is exact for.
    #[error("at most {MAX_BURST} per window")]
    RateTooLarge,
    /// One entry an admission: more would be a heap, not a log.
    #[error("a sliding log remembers every admission: at most {MAX_LOG} per window")]
    LogTooLong,
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

impl Verdict {
    /// Makes a verdict of what an algorithm knows: the tokens there are, how many there can be,
    /// when it is whole, and when there will be so many tokens (of those there can be).
    fn new(
        room: u32,
        capacity: u32,
        reset: Micros,
        cost: u32,
        wait: impl Fn(u32) -> Micros,
    ) -> Self {
        let remaining = room / cost.max(1);
        // More than there can be is never there: then it is whole that one waits for.
        let wanted = (u64::from(remaining) + 1) * u64::from(cost);
        let next = match u32::try_from(wanted) {
            Ok(wanted) if wanted <= capacity => wait(wanted).min(reset),
            _ => reset,
        };
        Self {
            allowed: true,
            remaining: remaining.into(),
            unused: room,
            capacity,
            retry_after: 0,
            next,
            reset,
            delay: 0,
        }
    }

    /// By the share of its capacity that is left: less is tighter.
    pub fn compare_share(&self, other: &Self) -> std::cmp::Ordering {
        let (mine, others) = (u64::from(self.unused), u64::from(other.unused));
        (mine * u64::from(other.capacity)).cmp(&(others * u64::from(self.capacity)))
    }

    fn rejected(self, retry_after: Micros) -> Self {
        Self { allowed: false, retry_after, ..self }
    }
}

impl Quota {
    /// A bucket of `burst` tokens (default: N) that refills continuously at `rate`.
    pub fn token_bucket(rate: Rate, burst: Option<u32>) -> Result<Self, QuotaError> {
        let bucket = Bucket::new(rate, burst.unwrap_or(rate.count))?;
        Ok(Self { rate, shape: Shape::Bucket(bucket) })
    }

    /// Evenly spaced requests, of which up to `burst` (default: 1) may arrive at once.
    pub fn gcra(rate: Rate, burst: Option<u32>) -> Result<Self, QuotaError> {
        Self::token_bucket(rate, Some(burst.unwrap_or(1)))
    }

    /// N per window; windows begin at multiples of W since 1970.
    pub fn fixed_window(rate: Rate) -> Result<Self, QuotaError> {
        valid(rate)?;
        let windows = Windows::Every(rate.window);
        Ok(Self { rate, shape: Shape::Fixed(Fixed::new(rate.count, windows)) })
    }

    /// N per calendar day, week or month. The rate's window is what callers are told.
    pub fn calendar_window(rate: Rate, calendar: Arc<Calendar>) -> Result<Self, QuotaError> {
        valid(rate)?;
        let windows = Windows::Calendar(calendar);
        Ok(Self { rate, shape: Shape::Fixed(Fixed::new(rate.count, windows)) })
    }

    /// N in the last W, the window before this one counted by the share of it that is still in.
    pub fn sliding_window(rate: Rate) -> Result<Self, QuotaError> {
        valid(rate)?;
        Ok(Self { rate, shape: Shape::Sliding(Sliding::new(rate)) })
    }

    /// N in the last W, exactly.
    pub fn sliding_log(rate: Rate) -> Result<Self, QuotaError> {
        valid(rate)?;
        if rate.count > MAX_LOG {
            return Err(QuotaError::LogTooLong);
        }
        Ok(Self { rate, shape: Shape::Log(log::SlidingLog::new(rate)) })
    }

    /// Requests leave at `rate`; up to `queue` wait for their turn, none longer than `max_wait`.
    pub fn leaky_bucket(rate: Rate, queue: u32, max_wait: Micros) -> Result<Self, QuotaError> {
        Ok(Self { rate, shape: Shape::Leaky(Leaky::new(rate, queue, max_wait)?) })
    }

    /// At most `most` requests at the same time.
    pub fn concurrency(most: u32) -> Result<Self, QuotaError> {
        let rate = Rate { count: most, window: SECOND };
        valid(rate)?;
        Ok(Self { rate, shape: Shape::Concurrency(most) })
    }

    /// The rate as it was written; a concurrency limit's count is how many.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Whether what is taken is held until the request ends, rather than used.
    pub fn is_concurrency(&self) -> bool {
        matches!(self.shape, Shape::Concurrency(_))
    }

    /// Whether admitted requests may have to wait for their turn.
    pub fn is_queue(&self) -> bool {
        matches!(self.shape, Shape::Leaky(_))
    }

    /// The kind of state it keeps.
    pub fn kind(&self) -> Kind {
        match self.shape {
            Shape::Bucket(_) | Shape::Leaky(_) => Kind::Bucket,
            Shape::Fixed(_) => Kind::Fixed,
            Shape::Sliding(_) => Kind::Sliding,
            Shape::Log(_) => Kind::Log,
            Shape::Concurrency(_) => Kind::Concurrency,
        }
    }

    /// The most tokens one request can take.
    pub fn capacity(&self) -> u32 {
        match &self.shape {
            Shape::Bucket(bucket) => bucket.size(),
            Shape::Leaky(leaky) => leaky.capacity(),
            Shape::Fixed(_) | Shape::Sliding(_) | Shape::Log(_) | Shape::Concurrency(_) => {
                self.rate.count
            }
        }
    }

    /// Asks for `cost` tokens at `now`. What is next is to be kept only if the request is admitted
    /// by every limit; it changes nothing when this limit rejects.
    pub fn check(&self, held: &Held, now: Micros, cost: u32) -> (Verdict, Next) {
        if let Shape::Log(log) = &self.shape {
            return log.check(&held.as_log(), now, cost);
        }
        let state = held.as_state(self.kind());
        let (verdict, next) = match &self.shape {
            Shape::Bucket(bucket) => bucket.check(state, now, cost),
            Shape::Leaky(leaky) => leaky.check(state, now, cost),
            Shape::Fixed(fixed) => fixed.check(state, now, cost),
            Shape::Sliding(sliding) => sliding.check(state, now, cost),
            Shape::Concurrency(most) => in_flight(*most, state, now, cost),
            Shape::Log(_) => unreachable!("returned above"),
        };
        (verdict, Next::State(next))
    }

    /// What the limit says of itself while nothing is taken: the verdict of a layer that would
    /// have allowed a request which another layer rejected.
    pub fn peek(&self, held: &Held, now: Micros, cost: u32) -> Verdict {
        if let Shape::Log(log) = &self.shape {
            return log.peek(&held.as_log(), now, cost);
        }
        let state = held.as_state(self.kind());
        match &self.shape {
            Shape::Bucket(bucket) => bucket.peek(state, now, cost),
            Shape::Leaky(leaky) => leaky.peek(state, now, cost),
            Shape::Fixed(fixed) => fixed.peek(state, now, cost),
            Shape::Sliding(sliding) => sliding.peek(state, now, cost),
            Shape::Concurrency(most) => in_flight_now(*most, state.used, cost),
            Shape::Log(_) => unreachable!("returned above"),
        }
    }

    /// Whether the caller has their whole allowance again, so that forgetting them forgives
    /// nothing.
    pub fn is_whole(&self, held: &Held, now: Micros) -> bool {
        if let Shape::Log(log) = &self.shape {
            return log.is_whole(&held.as_log(), now);
        }
        let state = held.as_state(self.kind());
        match &self.shape {
            Shape::Bucket(bucket) => bucket.is_whole(state, now),
            Shape::Leaky(leaky) => leaky.is_whole(state, now),
            Shape::Fixed(fixed) => fixed.is_whole(state, now),
            Shape::Sliding(sliding) => sliding.is_whole(state, now),
            Shape::Concurrency(_) => state.used == 0,
            Shape::Log(_) => unreachable!("returned above"),
        }
    }

    /// Takes back what an admission that made the state `after` holds: a place in flight, or one
    /// in a queue if nobody came after it. `None` if there is nothing to take back: somebody did
    /// come, or a reload has made another algorithm of the limit, which counts otherwise.
    pub fn give_back(&self, held: &Held, after: State, now: Micros, cost: u32) -> Option<Next> {
        let Held::State(state) = *held else { return None };
        if state.kind != self.kind() {
            return None;
        }
        let next = match &self.shape {
            Shape::Concurrency(_) => Some(State { used: state.used.saturating_sub(cost), ..state }),
            Shape::Leaky(leaky) => leaky.leave(state, after, now, cost),
            _ => None,
        };
        next.map(Next::State)
    }
}

fn valid(rate: Rate) -> Result<(), QuotaError> {
    match () {
        () if rate.count == 0 => Err(QuotaError::ZeroRate),
        () if rate.count > MAX_BURST => Err(QuotaError::RateTooLarge),
        () if rate.window == 0 => Err(QuotaError::ZeroWindow),
        () if rate.window > MAX_WINDOW => Err(QuotaError::WindowTooLong),
        () => Ok(()),
    }
}

/// Fewer than N in flight. When one ends nobody knows, so there is no time to tell.
fn in_flight(most: u32, state: State, now: Micros, cost: u32) -> (Verdict, State) {
    let taken = state.used.saturating_add(cost);
    if taken > most {
        return (in_flight_now(most, state.used, cost).rejected(SECOND), state);
    }
    (in_flight_now(most, taken, cost), State { used: taken, stamp: now, ..state })
}

fn in_flight_now(most: u32, used: u32, cost: u32) -> Verdict {
    Verdict::new(most.saturating_sub(used), most, 0, cost, |_| 0)
}

#[cfg(test)]
mod tests;
