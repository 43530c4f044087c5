//! How many requests may be sent twice: a share of those of the last seconds, and a few in any case.
//! Without that, a backend in trouble would get more to do instead of less.

use std::cell::Cell;

/// Ticks of a worker's deadlines in a second.
const SECOND: u64 = 20;

/// What is left of a second's requests after another second. So about ten of them count.
const FADES: f64 = 0.9;

/// So many in about ten seconds may be sent again however few requests there are.
const IN_ANY_CASE: f64 = 10.0;

/// One worker's budget for one upstream.
#[derive(Debug, Default)]
pub struct Budget {
    second: Cell<u64>,
    requests: Cell<f64>,
    retries: Cell<f64>,
}

impl Budget {
    /// A request is sent for the first time.
    #[inline]
    pub fn request(&self, tick: u64) {
        self.fade(tick / SECOND);
        self.requests.set(self.requests.get() + 1.0);
    }

    /// Whether one more may be sent again; if so, it counts.
    pub fn retry(&self, tick: u64, share: f64) -> bool {
        self.fade(tick / SECOND);
        let before = self.retries.get();
        let allowed = share > 0.0 && before < self.requests.get() * share + IN_ANY_CASE;
        if allowed {
            self.retries.set(before + 1.0);
        }
        allowed
    }

    #[inline]
    fn fade(&self, second: u64) {
        let passed = second - self.second.get().min(second);
        if passed > 0 {
            self.second.set(second);
            let left = FADES.powi(i32::try_from(passed).unwrap_or(i32::MAX));
            self.requests.set(self.requests.get() * left);
            self.retries.set(self.retries.get() * left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_share_of_requests_and_a_few() {
        let budget = Budget::default();
        let retries = |tick| (0..10_000).take_while(|_| budget.retry(tick, 0.2)).count();
        assert_eq!(retries(0), 10);
        (0..1000).for_each(|_| budget.request(1));
        assert_eq!(retries(2), 200);
        // What was used is got back as it fades.
        assert_eq!(retries(2 + SECOND), 1);
        assert_eq!(retries(2 + 200 * SECOND), 10);
        assert!(!budget.retry(2 + 400 * SECOND, 0.0), "nothing means nothing");
    }

    #[test]
    fn in_the_long_run_it_is_the_share() {
        let budget = Budget::default();
        let mut sent = 0;
        for tick in 0..100 * SECOND {
            (0..50).for_each(|_| budget.request(tick));
            sent += (0..50).filter(|_| budget.retry(tick, 0.1)).count();
        }
        let share = sent as f64 / (100 * SECOND * 50) as f64;
        assert!((0.095..0.105).contains(&share), "{share}");
    }
}
