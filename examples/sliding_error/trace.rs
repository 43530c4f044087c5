//! Who asks, and when: six hours, ten million requests.

use sluice::clock::{Micros, SECOND};
use sluice::limit::Rate;

const REQUESTS: u64 = 10_000_000;
const CALLERS: u32 = 1_000_000;
/// The beginning of an hour.
const START: Micros = 472_222 * 3600 * SECOND;
const SPAN: Micros = 6 * 3600 * SECOND;

#[derive(Clone, Copy)]
pub(crate) enum Traffic {
    /// A million callers, the n-th asking 1/n as often as the first; evenly, with some jitter.
    Even,
    /// The same callers; up to 50 requests in a row, a tenth of a second apart, then a pause.
    Bursty,
    /// As many callers as it takes for each to ask as often as the rate allows, at random moments.
    AtTheLimit,
    /// Each asks three times as often as that, in bursts.
    OverTheLimit,
}

impl Traffic {
    /// How many requests each caller makes: ten million together.
    pub(crate) fn callers(self, rate: Rate) -> Vec<u64> {
        let allowed = u64::from(rate.count) * (SPAN / rate.window);
        match self {
            Self::Even | Self::Bursty => zipf(),
            Self::AtTheLimit => alike(REQUESTS.div_ceil(allowed)),
            Self::OverTheLimit => alike(REQUESTS.div_ceil(3 * allowed)),
        }
    }

    /// When one caller asks, in ascending order.
    pub(crate) fn arrivals(self, requests: u64, chance: &mut Chance, arrivals: &mut Vec<Micros>) {
        arrivals.clear();
        match self {
            Self::Even => {
                let gap = SPAN / requests.max(1);
                arrivals.extend((0..requests).map(|n| START + n * gap + chance.below(gap)));
            }
            Self::AtTheLimit => {
                arrivals.extend((0..requests).map(|_| START + chance.below(SPAN)));
            }
            Self::Bursty | Self::OverTheLimit => bursts(requests, chance, arrivals),
        }
        arrivals.sort_unstable();
    }
}

fn bursts(requests: u64, chance: &mut Chance, arrivals: &mut Vec<Micros>) {
    let mut left = requests;
    while left > 0 {
        let size = (1 + chance.below(50)).min(left);
        let mut at = START + chance.below(SPAN);
        for _ in 0..size {
            arrivals.push(at);
            at += chance.below(SECOND / 5);
        }
        left -= size;
    }
}

/// The n-th caller makes 1/n as many requests as the first; parts of a request add up.
fn zipf() -> Vec<u64> {
    let weights = || (1..=CALLERS).map(|n| 1.0 / f64::from(n));
    let whole: f64 = weights().sum();
    let (mut sum, mut given) = (0.0, 0);
    let share = |weight| {
        sum += weight;
        #[expect(clippy::cast_sign_loss, reason = "a sum of positive numbers")]
        let due = (sum / whole * REQUESTS as f64).round() as u64;
        due - std::mem::replace(&mut given, due)
    };
    weights().map(share).collect()
}

/// The same for everybody, as nearly as whole numbers allow.
fn alike(callers: u64) -> Vec<u64> {
    (0..callers).map(|n| REQUESTS * (n + 1) / callers - REQUESTS * n / callers).collect()
}

/// Numbers that look random: splitmix64.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new() -> Self {
        Self(0x5eed)
    }

    /// From 0 to below `bound`; 0 if that is 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * u128::from(bound)) >> 64) as u64
    }
}
