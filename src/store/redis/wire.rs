//! What passes between the gateway and the scripts, byte for byte; see the heads of the scripts.

use crate::clock::Micros;
use crate::limit::{Kind, Log, Quota, Seen, State};
use crate::store::Charge;
use smallvec::SmallVec;

/// A layer as scripts read it: a quota with a cost.
pub(super) type Layer = [u8; 50];

/// A state as it is stored.
pub(super) type Stored = [u8; 17];

/// Flags of a layer.
pub(super) const SHADOW: u8 = 1;
pub(super) const UP_TO: u8 = 2;
pub(super) const ELSEWHERE: u8 = 4;

/// How long a place in flight counts without a sign of life from its gateway.
pub(super) const FLIGHT: Micros = 5_000_000;

pub(super) fn layer(quota: &Quota, flags: u8, cost: u32, now: Micros) -> Layer {
    layer_taking(quota, flags, cost, cost, now)
}

/// A layer that must have room for `cost`, and of which only `taken` is charged now.
pub(super) fn layer_taking(quota: &Quota, flags: u8, cost: u32, taken: u32, now: Micros) -> Layer {
    let told = quota.told(now, FLIGHT);
    let mut bytes = [0; 50];
    (bytes[0], bytes[1]) = (told.algorithm, flags);
    bytes[2..6].copy_from_slice(&cost.to_le_bytes());
    bytes[6..10].copy_from_slice(&taken.to_le_bytes());
    for (place, number) in bytes[10..].chunks_exact_mut(8).zip(told.numbers) {
        place.copy_from_slice(&double(number));
    }
    bytes
}

/// Moments and counts are below 2^53 until the year 2255.
pub(super) fn double(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

pub(super) fn stored(state: State) -> Stored {
    let mut bytes = [0; 17];
    bytes[0] = state.kind as u8;
    bytes[1..9].copy_from_slice(&double(state.stamp));
    bytes[9..13].copy_from_slice(&state.used.to_le_bytes());
    bytes[13..].copy_from_slice(&state.carry.to_le_bytes());
    bytes
}

/// What a caller had used before the decision.
#[derive(Clone, Debug)]
pub(super) enum Before {
    State(State),
    Log(Log),
}

impl<'a> From<&'a Before> for Seen<'a> {
    fn from(before: &'a Before) -> Self {
        match before {
            Before::State(state) => Seen::State(*state),
            Before::Log(log) => Seen::Log(log),
        }
    }
}

/// What the decision's script answers.
#[derive(Debug)]
pub(super) struct Answer {
    /// By the store's clock.
    pub(super) now: Micros,
    pub(super) admitted: bool,
    /// One for each charge.
    pub(super) before: SmallVec<[Before; 4]>,
}

impl Answer {
    /// `None` if that is no answer to these charges.
    pub(super) fn read(bytes: &[u8], charges: &[Charge<'_>]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let (now, admitted) = (bytes.moment()?, bytes.byte()? == 1);
        let before = charges.iter().map(|charge| bytes.before(charge.quota.kind()));
        let before = before.collect::<Option<_>>()?;
        bytes.0.is_empty().then_some(Self { now, admitted, before })
    }
}

/// Bytes that are being read.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn count(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    #[expect(clippy::cast_sign_loss, reason = "no moment is before 1970")]
    fn moment(&mut self) -> Option<Micros> {
        self.take().map(|bytes| f64::from_le_bytes(bytes) as Micros)
    }

    fn before(&mut self, kind: Kind) -> Option<Before> {
        if kind != Kind::Log {
            let kind = Kind::numbered(self.byte()?)?;
            let (stamp, used, carry) = (self.moment()?, self.count()?, self.count()?);
            return Some(Before::State(State { stamp, used, carry, kind }));
        }
        let mut oldest = Vec::new();
        for _ in 0..self.count()? {
            oldest.push((self.moment()?, self.count()?));
        }
        let (newest, total) = (self.moment()?, self.count()?);
        Some(Before::Log(Log::known(&oldest, newest, total)))
    }
}
