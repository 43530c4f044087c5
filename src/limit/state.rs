//! What a store keeps of one caller for one limit.

use super::log::Log;
use crate::clock::Micros;
use std::borrow::Cow;

/// Which algorithm a state belongs to. Token bucket, GCRA and leaky bucket count alike. The numbers
/// are those of saved files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Tokens that come back continuously.
    #[default]
    Bucket = 0,
    /// A window's count.
    Fixed = 1,
    /// This window's count and the one before's.
    Sliding = 2,
    /// Every admission.
    Log = 3,
    /// Requests in flight.
    Concurrency = 4,
}

impl Kind {
    /// The kind of this number.
    pub(crate) fn numbered(number: u8) -> Option<Self> {
        const ALL: [Kind; 5] =
            [Kind::Bucket, Kind::Fixed, Kind::Sliding, Kind::Log, Kind::Concurrency];
        ALL.get(usize::from(number)).copied()
    }
}

/// What one caller has used of one limit. The default is a caller never seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// When `used` was true.
    pub stamp: Micros,
    /// Tokens used.
    pub used: u32,
    /// Bucket: what is left of a microsecond at `stamp`, in parts of the rate's numerator: the
    /// remainder of the division that last returned tokens. Sliding window: the count of the
    /// window before.
    pub carry: u32,
    /// Whose arithmetic it is.
    pub kind: Kind,
}

impl State {
    /// The same use as another algorithm counts it: an edited algorithm keeps what was used. What
    /// is in flight is not used, and what was used is not in flight.
    #[must_use]
    #[inline(always)]
    pub fn read_as(self, kind: Kind) -> Self {
        if self.kind == kind {
            return self;
        }
        let used = match (self.kind, kind) {
            (Kind::Concurrency, _) | (_, Kind::Concurrency) => 0,
            (Kind::Sliding, _) => self.used.saturating_add(self.carry),
            _ => self.used,
        };
        Self { used, carry: 0, kind, stamp: self.stamp }
    }
}

/// A state, whichever form it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// A few numbers.
    State(State),
    /// Every admission.
    Log(Box<Log>),
}

impl Default for Held {
    fn default() -> Self {
        Self::State(State::default())
    }
}

/// A state that is looked at where it is kept.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// A few numbers.
    State(State),
    /// Every admission.
    Log(&'a Log),
}

impl<'a> Seen<'a> {
    /// As numbers of this kind.
    #[inline(always)]
    pub fn as_state(self, kind: Kind) -> State {
        match self {
            Self::State(state) => state.read_as(kind),
            Self::Log(log) => log.summary().read_as(kind),
        }
    }

    /// As a log.
    pub fn as_log(self) -> Cow<'a, Log> {
        match self {
            Self::State(state) => Cow::Owned(Log::from(state.read_as(Kind::Log))),
            Self::Log(log) => Cow::Borrowed(log),
        }
    }
}

impl<'a> From<&'a Held> for Seen<'a> {
    fn from(held: &'a Held) -> Self {
        match held {
            Held::State(state) => Self::State(*state),
            Held::Log(log) => Self::Log(log),
        }
    }
}
