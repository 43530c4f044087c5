//! The bounds that `docs/algorithms.md` states, found by trying:
//!
//! ```sh
//! cargo run --release --example algorithm_bounds
//! ```
//!
//! - The most that passes within any window W. Windows are a few microseconds long, and everything
//!   is tried that one caller can do in the course of two: at every microsecond they ask once more
//!   or move on, and both ways are followed to the end. A window is half-open: of two requests
//!   exactly W apart, only one is in it.
//! - What passes per window, in the long run, if a caller never stops asking.

use sluice::clock::Micros;
use sluice::limit::{Held, Quota, QuotaError, Rate};

fn main() -> Result<(), QuotaError> {
    println!("The most within any window, W in microseconds");
    println!(
        "   N   W   token_bucket  gcra  fixed_window  sliding_window  sliding_log  leaky_bucket"
    );
    for (count, window) in [(1, 6), (2, 6), (3, 6), (3, 9), (4, 8)] {
        let most = quotas(Rate { count, window })?.map(|quota| Search::new(&quota).most);
        let [token, gcra, fixed, sliding, log, leaky] = most;
        println!("{count:4}{window:4}{token:15}{gcra:6}{fixed:14}{sliding:16}{log:13}{leaky:14}");
    }
    println!("\nPer window in the long run");
    println!(
        "   N       token_bucket  gcra  fixed_window  sliding_window  sliding_log  leaky_bucket"
    );
    for count in [1, 2, 3, 10, 100] {
        let per_window = quotas(Rate { count, window: 1200 })?.map(|quota| sustained(&quota));
        let [token, gcra, fixed, sliding, log, leaky] = per_window;
        println!("{count:4}{token:19}{gcra:6}{fixed:14}{sliding:16}{log:13}{leaky:14}");
    }
    Ok(())
}

fn quotas(rate: Rate) -> Result<[Quota; 6], QuotaError> {
    Ok([
        Quota::token_bucket(rate, None)?,
        Quota::gcra(rate, None)?,
        Quota::fixed_window(rate)?,
        Quota::sliding_window(rate)?,
        Quota::sliding_log(rate)?,
        Quota::leaky_bucket(rate, rate.count, 10 * rate.window)?,
    ])
}

/// What a caller who asks every microsecond is admitted per window, after a start of 100 windows.
fn sustained(quota: &Quota) -> f64 {
    let window = quota.rate().window;
    let mut held = Held::default();
    let mut admitted = 0;
    for now in 0..300 * window {
        if quota.ask(&mut held, now, 1).allowed {
            admitted += u32::from(now >= 100 * window);
        }
    }
    f64::from(admitted) / 200.0
}

struct Search<'q> {
    quota: &'q Quota,
    /// When each request went on, in this order.
    gone: Vec<Micros>,
    most: usize,
}

impl<'q> Search<'q> {
    fn new(quota: &'q Quota) -> Self {
        let mut search = Self { quota, gone: Vec::new(), most: 0 };
        search.explore(&Held::default(), 0);
        search
    }

    fn explore(&mut self, held: &Held, now: Micros) {
        if now == 2 * self.quota.rate().window {
            return;
        }
        self.explore(held, now + 1);
        let mut after = held.clone();
        let verdict = self.quota.ask(&mut after, now, 1);
        if verdict.allowed {
            self.gone.push(now + verdict.delay());
            self.most = self.most.max(self.in_the_last_window());
            self.explore(&after, now);
            self.gone.pop();
        }
    }

    fn in_the_last_window(&self) -> usize {
        let window = self.quota.rate().window;
        let Some(last) = self.gone.last() else { return 0 };
        self.gone.iter().filter(|at| **at + window > *last).count()
    }
}
