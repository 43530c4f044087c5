//! The algorithms: pure functions of (quota, state, now, cost). No clock, no store, no I/O.
//!
//! ```text
//! Quota  what was written: an algorithm with its numbers   (validated; knows nothing of callers)
//! Held   what one caller has used, and since when          (independent of the rate: a reload keeps it)
//! Quota::check(&Held, now, cost) -> Verdict     asks
//! Quota::take(&mut Held, &Verdict)              takes, if every layer of the request allows
//! ```
//!
//! [`Quota::ask`] is both, for one limit alone:
//!
//! ```
//! use sluice::limit::{Held, Quota, Rate};
//!
//! let quota = Quota::token_bucket(Rate { count: 2, window: 60_000_000 }, None).unwrap();
//! let mut caller = Held::default();
//! let now = 1_700_000_000_000_000;
//! assert!(quota.ask(&mut caller, now, 1).allowed);
//! assert!(quota.ask(&mut caller, now, 1).allowed);
//! let verdict = quota.ask(&mut caller, now, 1);
//! assert!(!verdict.allowed);
//! assert_eq!(verdict.retry_after(), 30_000_000);
//! ```
//!
//! Everything is counted in integers, so the same inputs give the same answer everywhere.
//!
//! Each algorithm answers the same few questions (`algorithm.rs`), and a [`Verdict`] is made of
//! the answers: how many tokens are there now (room), when will there be so many (wait), when is
//! it whole again (reset).

mod algorithm;
mod bucket;
mod fixed;
mod leaky;
mod log;
mod shared;
mod sizing;
mod sliding;
mod state;
mod verdict;
mod windows;

use crate::clock::{Micros, SECOND};
use algorithm::{Algorithm, InFlight, Settled};
use bucket::Bucket;
use fixed::Fixed;
use leaky::Leaky;
use sliding::Sliding;
use std::sync::Arc;
use verdict::Account;

pub use log::{Log, MAX_LOG};
pub use state::{Held, Kind, Seen, State};
pub use verdict::Verdict;
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
    /// The kind of state it keeps, and whether admissions hold something: known without asking
    /// the shape.
    kind: Kind,
    holds: bool,
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
    Concurrency(InFlight),
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

/// Windows that have a name.
const UNITS: [(Micros, &str); 6] = [
    (SECOND, "second"),
    (60 * SECOND, "minute"),
    (3600 * SECOND, "hour"),
    (86_400 * SECOND, "day"),
    (7 * 86_400 * SECOND, "week"),
    (30 * 86_400 * SECOND, "month"),
];

/// The largest bucket: half of what the state can count, so that debts fit as well.
pub const MAX_BURST: u32 = u32::MAX / 2;

/// The longest time until a used-up limit is whole again.
const MAX_RESET: Micros = 36_525 * 86_400 * SECOND;

/// The longest window.
pub const MAX_WINDOW: Micros = 366 * 86_400 * SECOND;

impl Quota {
    fn of(rate: Rate, shape: Shape) -> Self {
        let holds = matches!(shape, Shape::Concurrency(_) | Shape::Leaky(_));
        Self { rate, kind: shape.kind(), holds, shape }
    }

    /// A bucket of `burst` tokens (default: N) that refills continuously at `rate`.
    pub fn token_bucket(rate: Rate, burst: Option<u32>) -> Result<Self, QuotaError> {
        let bucket = Bucket::new(rate, burst.unwrap_or(rate.count))?;
        Ok(Self::of(rate, Shape::Bucket(bucket)))
    }

    /// Evenly spaced requests, of which up to `burst` (default: 1) may arrive at once.
    pub fn gcra(rate: Rate, burst: Option<u32>) -> Result<Self, QuotaError> {
        Self::token_bucket(rate, Some(burst.unwrap_or(1)))
    }

    /// N per window; windows begin at multiples of W since 1970.
    pub fn fixed_window(rate: Rate) -> Result<Self, QuotaError> {
        valid(rate)?;
        let windows = Windows::Every(rate.window);
        Ok(Self::of(rate, Shape::Fixed(Fixed::new(rate.count, windows))))
    }

    /// N per calendar day, week or month. The rate's window is what callers are told.
    pub fn calendar_window(rate: Rate, calendar: Arc<Calendar>) -> Result<Self, QuotaError> {
        valid(rate)?;
        let windows = Windows::Calendar(calendar);
        Ok(Self::of(rate, Shape::Fixed(Fixed::new(rate.count, windows))))
    }

    /// N in the last W, the window before this one counted by the share of it that is still in.
    pub fn sliding_window(rate: Rate) -> Result<Self, QuotaError> {
        valid(rate)?;
        Ok(Self::of(rate, Shape::Sliding(Sliding::new(rate))))
    }

    /// N in the last W, exactly.
    pub fn sliding_log(rate: Rate) -> Result<Self, QuotaError> {
        valid(rate)?;
        if rate.count > MAX_LOG {
            return Err(QuotaError::LogTooLong);
        }
        Ok(Self::of(rate, Shape::Log(log::SlidingLog::new(rate))))
    }

    /// Requests leave at `rate`; up to `queue` wait for their turn, none longer than `max_wait`.
    pub fn leaky_bucket(rate: Rate, queue: u32, max_wait: Micros) -> Result<Self, QuotaError> {
        Ok(Self::of(rate, Shape::Leaky(Leaky::new(rate, queue, max_wait)?)))
    }

    /// At most `most` requests at the same time.
    pub fn concurrency(most: u32) -> Result<Self, QuotaError> {
        let rate = Rate { count: most, window: SECOND };
        valid(rate)?;
        Ok(Self::of(rate, Shape::Concurrency(InFlight(most))))
    }

    /// The rate as it was written; a concurrency limit's count is how many.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The rate as people write it: `1000/minute`, or `20 at once`.
    pub fn written(&self) -> String {
        let Rate { count, window } = self.rate;
        if self.is_concurrency() {
            return format!("{count} at once");
        }
        match UNITS.iter().find(|(length, _)| *length == window) {
            Some((_, unit)) => format!("{count}/{unit}"),
            None if window.is_multiple_of(SECOND) => format!("{count}/{}s", window / SECOND),
            None => format!("{count}/{}ms", window / 1000),
        }
    }

    /// Whether what is taken is held until the request ends, rather than used.
    pub fn is_concurrency(&self) -> bool {
        matches!(self.shape, Shape::Concurrency(_))
    }

    /// Whether admitted requests may have to wait for their turn.
    pub fn is_queue(&self) -> bool {
        matches!(self.shape, Shape::Leaky(_))
    }

    /// Whether an admission may have something to give back: a place in flight or in a queue.
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// The kind of state it keeps.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The most tokens one request can take.
    pub fn capacity(&self) -> u32 {
        self.shape.capacity()
    }

    /// Asks for `cost` tokens at `now`. Nothing is taken yet: see [`take`](Self::take).
    pub fn check<'a>(&self, held: impl Into<Seen<'a>>, now: Micros, cost: u32) -> Verdict {
        let seen = held.into();
        match &self.shape {
            Shape::Log(log) => log.check(&seen.as_log(), now, cost),
            shape => {
                let mut said = Verdict::NONE;
                shape.check(seen.as_state(self.kind), now, cost, &mut said);
                said
            }
        }
    }

    /// Whether numbers are all there is to it: no log, and nothing to give back.
    pub(crate) fn is_plain(&self) -> bool {
        self.kind != Kind::Log && !self.holds
    }

    /// The same for numbers, written where it is to be; returns what is used if it is taken. (A
    /// verdict that is handed on by value is copied before its parts have reached the cache, which
    /// takes longer than the arithmetic.)
    #[inline(always)]
    pub(crate) fn check_into(
        &self,
        state: State,
        now: Micros,
        cost: u32,
        said: &mut Verdict,
    ) -> State {
        self.shape.check(state.read_as(self.kind), now, cost, said)
    }

    /// Asks, and takes what is allowed: a decision by one limit alone.
    pub fn ask(&self, held: &mut Held, now: Micros, cost: u32) -> Verdict {
        let verdict = self.check(&*held, now, cost);
        if verdict.allowed {
            self.take(held, &verdict);
        }
        verdict
    }

    /// Takes what a verdict allowed: to be called if the request is admitted by every limit, and
    /// with the state that was asked.
    pub fn take(&self, held: &mut Held, verdict: &Verdict) {
        match (&self.shape, verdict.account) {
            (Shape::Log(log), _) => {
                if let Held::State(state) = held {
                    *held = Held::Log(Box::new(Log::from(state.read_as(Kind::Log))));
                }
                if let Held::Log(entries) = held {
                    log.take(entries, verdict);
                }
            }
            (_, Account::State(state)) => *held = Held::State(state),
            (_, Account::Known { .. }) => {}
        }
    }

    /// What the limit says of itself while nothing is taken.
    pub fn peek<'a>(&self, held: impl Into<Seen<'a>>, now: Micros, cost: u32) -> Verdict {
        let seen = held.into();
        match &self.shape {
            Shape::Log(log) => log.peek(&seen.as_log(), now, cost),
            shape => shape.peek(seen.as_state(shape.kind()), now, cost),
        }
    }

    /// What a limit that would have allowed a request says when another one rejects it.
    pub fn untaken<'a>(&self, verdict: &Verdict, held: impl Into<Seen<'a>>) -> Verdict {
        verdict.untaken().unwrap_or_else(|| self.peek(held, verdict.at, verdict.cost))
    }

    /// The same, whether it would have allowed it or not.
    pub(crate) fn untaken_if_allowed<'a>(
        &self,
        verdict: Verdict,
        held: impl Into<Seen<'a>>,
    ) -> Verdict {
        if verdict.allowed { self.untaken(&verdict, held) } else { verdict }
    }

    /// Whether the caller has their whole allowance again, so that forgetting them forgives
    /// nothing.
    pub fn is_whole<'a>(&self, held: impl Into<Seen<'a>>, now: Micros) -> bool {
        let seen = held.into();
        match &self.shape {
            Shape::Log(log) => log.is_whole(&seen.as_log(), now),
            shape => shape.is_whole(seen.as_state(shape.kind()), now),
        }
    }

    /// Takes back what an admission holds: a place in flight, or one in a queue if nobody came after
    /// it. `None` if there is nothing to take back: somebody did come, or a reload has made another
    /// algorithm of the limit, which counts otherwise.
    pub fn give_back(&self, state: State, admitted: &Verdict, now: Micros) -> Option<State> {
        if state.kind != self.kind {
            return None;
        }
        let cost = admitted.cost;
        match &self.shape {
            Shape::Concurrency(_) => Some(State { used: state.used.saturating_sub(cost), ..state }),
            Shape::Leaky(leaky) => leaky.leave(state, admitted.state()?, now, cost),
            _ => None,
        }
    }

    /// Whether a cost can be reserved and settled later: what is counted can be counted anew. Not
    /// so for a log, which would have to find its entry, nor for places, in flight or in a queue.
    pub fn can_settle(&self) -> bool {
        matches!(self.shape, Shape::Bucket(_) | Shape::Fixed(_) | Shape::Sliding(_))
    }

    /// Counts an admission by what it came to, `actual`, rather than by what was reserved. It may
    /// leave a debt. `None` if that changes nothing any more: its window is over, or a reload has
    /// made another algorithm of the limit.
    pub fn settle(
        &self,
        state: Option<State>,
        admitted: &Verdict,
        now: Micros,
        actual: u32,
    ) -> Option<State> {
        let state = state.unwrap_or(State { kind: self.kind, ..State::default() });
        if state.kind != self.kind || !self.can_settle() {
            return None;
        }
        let after = admitted.state()?;
        let (reserved, at, counted) = (admitted.cost, admitted.at, after.stamp);
        self.shape.settle(state, now, Settled { reserved, actual, at, counted })
    }

    /// The same for a limit that has other numbers by now: those rule what has come back since, so
    /// only what it cost beyond what was reserved is added.
    pub fn settle_elsewhere(state: State, reserved: u32, actual: u32) -> Option<State> {
        let more = actual.checked_sub(reserved).filter(|_| state.kind != Kind::Log)?;
        Some(State { used: state.used.saturating_add(more), ..state })
    }
}

/// Every algorithm of numbers answers by itself; the log is handled where it differs.
macro_rules! each {
    ($shape:expr, $algorithm:ident => $answer:expr) => {
        match $shape {
            Shape::Bucket($algorithm) => $answer,
            Shape::Leaky($algorithm) => $answer,
            Shape::Fixed($algorithm) => $answer,
            Shape::Sliding($algorithm) => $answer,
            Shape::Concurrency($algorithm) => $answer,
            Shape::Log(_) => unreachable!("a log is asked for itself"),
        }
    };
}

impl Shape {
    fn kind(&self) -> Kind {
        match self {
            Self::Bucket(_) | Self::Leaky(_) => Kind::Bucket,
            Self::Fixed(_) => Kind::Fixed,
            Self::Sliding(_) => Kind::Sliding,
            Self::Log(_) => Kind::Log,
            Self::Concurrency(_) => Kind::Concurrency,
        }
    }

    fn capacity(&self) -> u32 {
        match self {
            Self::Log(log) => log.capacity(),
            shape => each!(shape, algorithm => algorithm.capacity()),
        }
    }

    #[inline(always)]
    fn check(&self, state: State, now: Micros, cost: u32, said: &mut Verdict) -> State {
        each!(self, algorithm => algorithm.check(state, now, cost, said))
    }

    fn peek(&self, state: State, now: Micros, cost: u32) -> Verdict {
        each!(self, algorithm => algorithm.peek(state, now, cost))
    }

    fn is_whole(&self, state: State, now: Micros) -> bool {
        each!(self, algorithm => algorithm.is_whole(state, now))
    }

    fn reset(&self, current: State, now: Micros) -> Micros {
        each!(self, algorithm => algorithm.reset(current, now))
    }

    fn next(&self, current: State, verdict: &Verdict) -> Micros {
        each!(self, algorithm => algorithm.next(current, verdict))
    }

    fn settle(&self, state: State, now: Micros, cost: Settled) -> Option<State> {
        each!(self, algorithm => algorithm.settle(algorithm.advance(state, now), now, cost))
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

#[cfg(test)]
mod tests;
