//! The token bucket: B tokens, refilled continuously at N per W, in exact integers.
//!
//! The state counts tokens *used*. They come back one every W/N microseconds, which is no whole
//! number for most rates. So `stamp` is the moment up to which whole tokens were returned, and
//! `carry` is the part of a microsecond, in N-ths, by which that moment is really earlier:
//!
//! ```text
//! exact moment = stamp − carry/N          progress now = (now − stamp)·N + carry, in W-ths of a token
//! tokens back  = progress / W             the rest stays as progress, again split into stamp and carry
//! ```
//!
//! Nothing is rounded, so the long-run rate is the one that was written. N/W is kept in lowest
//! terms, which keeps products small; what exceeds 64 bits is computed in 128.

use super::algorithm::{Algorithm, Settled};
use super::{Kind, MAX_BURST, MAX_RESET, MAX_WINDOW, QuotaError, Rate, State};
use crate::clock::Micros;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    /// N in lowest terms.
    count: u32,
    /// B.
    size: u32,
    /// W in lowest terms.
    window: Micros,
}

impl Bucket {
    pub(super) fn new(rate: Rate, size: u32) -> Result<Self, QuotaError> {
        match () {
            () if rate.count == 0 => Err(QuotaError::ZeroRate),
            () if rate.window == 0 => Err(QuotaError::ZeroWindow),
            () if rate.window > MAX_WINDOW => Err(QuotaError::WindowTooLong),
            () if size == 0 => Err(QuotaError::ZeroBurst),
            () if size > MAX_BURST => Err(QuotaError::BurstTooLarge),
            () if u128::from(size) * u128::from(rate.window)
                > u128::from(rate.count) * u128::from(MAX_RESET) =>
            {
                Err(QuotaError::TooSlow)
            }
            () => {
                let common = gcd(u64::from(rate.count), rate.window);
                let count = (u64::from(rate.count) / common) as u32;
                Ok(Self { count, size, window: rate.window / common })
            }
        }
    }

    /// Size, count and window, as scripts reckon with them.
    pub(super) fn numbers(&self) -> [u64; 3] {
        [self.size.into(), self.count.into(), self.window]
    }

    /// How many tokens come back in `elapsed`, beginning with this carry.
    pub(super) fn back_within(&self, carry: u32, elapsed: Micros) -> u32 {
        let progress = u128::from(elapsed) * u128::from(self.count) + u128::from(carry);
        u32::try_from(progress / u128::from(self.window)).unwrap_or(u32::MAX)
    }

    /// Whether so much progress brings `used` tokens back.
    fn is_back(&self, progress: u64, used: u32) -> bool {
        self.window.checked_mul(used.into()).is_some_and(|whole| progress >= whole)
    }

    /// How long from `now` until `tokens` of those used have come back. The state is drained.
    pub(super) fn until(&self, state: State, now: Micros, tokens: u64) -> Micros {
        if tokens == 0 {
            return 0;
        }
        let (count, carry) = (u64::from(self.count), u64::from(state.carry));
        let elapsed = match tokens.checked_mul(self.window) {
            Some(progress) => (progress - carry.min(progress)).div_ceil(count),
            None => {
                let progress = u128::from(tokens) * u128::from(self.window) - u128::from(carry);
                Micros::try_from(progress.div_ceil(u128::from(count))).unwrap_or(Micros::MAX)
            }
        };
        state.stamp.saturating_add(elapsed).saturating_sub(now)
    }
}

impl Algorithm for Bucket {
    const KIND: Kind = Kind::Bucket;

    fn capacity(&self) -> u32 {
        self.size
    }

    #[inline(always)]
    fn advance(&self, state: State, now: Micros) -> State {
        let whole = State { used: 0, carry: 0, stamp: now.max(state.stamp), kind: Kind::Bucket };
        if state.used == 0 {
            return State { stamp: now, ..whole };
        }
        let count = u64::from(self.count);
        // A reload may have changed N: the carry is less than one microsecond whatever it was.
        let carry = u64::from(state.carry).min(count - 1);
        let elapsed = now.saturating_sub(state.stamp);
        // In 64 bits wherever that is enough: all but callers who were away for months.
        let (back, progress) = match elapsed.checked_mul(count).and_then(|p| p.checked_add(carry)) {
            // Divisions are what costs here: none is needed while no token is back, nor when all
            // are.
            Some(progress) if progress < self.window => {
                return State { carry: carry as u32, ..state };
            }
            Some(progress) if self.is_back(progress, state.used) => return whole,
            Some(progress) => (progress / self.window, progress % self.window),
            None => {
                let progress = u128::from(elapsed) * u128::from(count) + u128::from(carry);
                let window = u128::from(self.window);
                (u64::try_from(progress / window).unwrap_or(u64::MAX), (progress % window) as u64)
            }
        };
        if back >= u64::from(state.used) {
            return whole;
        }
        State {
            used: state.used - back as u32,
            carry: (progress % count) as u32,
            stamp: now - progress / count,
            kind: Kind::Bucket,
        }
    }

    fn room(&self, current: State, _now: Micros) -> u32 {
        self.size.saturating_sub(current.used)
    }

    fn wait(&self, current: State, now: Micros, tokens: u32) -> Micros {
        let wanted = u64::from(current.used) + u64::from(tokens);
        self.until(current, now, wanted.saturating_sub(self.size.into()))
    }

    fn reset(&self, current: State, now: Micros) -> Micros {
        self.until(current, now, current.used.into())
    }

    /// Of what was reserved too much, only that is given back which time has not given back already, to
    /// the part of a token: otherwise reservations that are held for long could be saved up.
    fn settle(&self, current: State, now: Micros, cost: Settled) -> Option<State> {
        let progress = u128::from(now.saturating_sub(cost.at)) * u128::from(self.count);
        let window = u128::from(self.window);
        let (back, part) = (progress / window, (progress % window) as u64);
        let exceeds =
            u128::from(cost.actual) > back || part == 0 && u128::from(cost.actual) == back;
        if exceeds || back >= u128::from(cost.reserved) {
            let back = u32::try_from(back).unwrap_or(u32::MAX).min(cost.reserved);
            let cost = Settled { actual: cost.actual.max(back), ..cost };
            return Some(State { used: cost.applied_to(current.used), ..current });
        }
        // `back` tokens and a part of one are gone from what was reserved; the part is taken back from
        // what the bucket has on the way.
        let used = u64::from(current.used) + back as u64;
        let Some(used) = used.checked_sub(cost.reserved.into()) else {
            return Some(State { used: 0, carry: 0, ..current });
        };
        let (count, base) = (u64::from(self.count), now.max(current.stamp));
        let under_way = (base - current.stamp) * count + u64::from(current.carry).min(count - 1);
        let (used, under_way) = match under_way.checked_sub(part) {
            Some(rest) => (used, rest),
            None => (used + 1, under_way + self.window - part),
        };
        if used == 0 {
            return Some(State { used: 0, carry: 0, ..current });
        }
        let (stamp, carry) = (base - under_way / count, (under_way % count) as u32);
        Some(State { used: used as u32, carry, stamp, ..current })
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;
    use crate::limit::Verdict;

    const START: Micros = 1_700_000_000 * SECOND;

    fn bucket(count: u32, window: Micros, size: u32) -> Bucket {
        Bucket::new(Rate { count, window }, size).unwrap()
    }

    fn ask(bucket: Bucket, state: State, now: Micros, cost: u32) -> Verdict {
        let mut said = Verdict::NONE;
        bucket.check(state, now, cost, &mut said);
        said
    }

    fn taken(bucket: Bucket, state: State, now: Micros, cost: u32) -> State {
        let said = ask(bucket, state, now, cost);
        assert!(said.allowed);
        said.state().expect("numbers")
    }

    /// A caller who empties the bucket and then asks the very moment they may, again and again:
    /// what they were admitted beyond the bucket's size is the rate, to the microsecond.
    #[test]
    fn awkward_rates_are_exact_in_the_long_run() {
        let month = 30 * 86_400 * SECOND;
        for (count, window) in [(1, month), (7, SECOND), (999_983, month), (700_001, 3 * SECOND)] {
            let bucket = bucket(count, window, 100);
            let (mut state, mut now) = (State::default(), START);
            for admission in 1..=100_000_u128 {
                let next = taken(bucket, state, now, 1);
                let owed = admission.saturating_sub(100) * u128::from(window);
                assert_eq!(u128::from(now - START), owed.div_ceil(u128::from(count)));
                state = next;
                now += ask(bucket, state, now, 1).retry_after();
            }
        }
    }

    #[test]
    fn several_tokens_can_come_back_within_a_microsecond() {
        let bucket = bucket(7_000_000, SECOND, 10);
        let state = taken(bucket, State::default(), START, 10);
        assert_eq!(bucket.peek(state, START + 1, 1).remaining(), 7);
        assert_eq!(ask(bucket, state, START, 8).retry_after(), 2);
    }

    #[test]
    fn a_changed_size_applies_to_the_tokens_already_used() {
        let state = taken(bucket(5, 60 * SECOND, 5), State::default(), START, 5);
        assert_eq!(bucket(9, 60 * SECOND, 9).peek(state, START, 1).remaining(), 4);
    }

    #[test]
    fn a_caller_who_was_away_for_years_is_whole() {
        let bucket = bucket(4_000_000_007, SECOND, MAX_BURST);
        let state = taken(bucket, State::default(), 1, MAX_BURST);
        assert!(bucket.is_whole(state, u64::MAX / 2));
        assert!(!bucket.is_whole(state, 2));
    }
}
