//! Requests in, outcomes out: the only file that asks the algorithms.

use sluice::clock::{Micros, SECOND};
use sluice::limit::{Held, MAX_LOG, Quota, QuotaError, Rate};

/// What became of one request.
pub(crate) struct Outcome {
    pub(crate) at: Micros,
    /// When it went on to the backend; `None` if it was rejected.
    pub(crate) leaves: Option<Micros>,
}

/// `count` requests from `start` on, one every `gap`.
pub(crate) fn burst(start: Micros, count: u64, gap: Micros) -> impl Iterator<Item = Micros> {
    (0..count).map(move |n| start + n * gap)
}

/// One caller's requests, each of cost 1, in the order of time.
pub(crate) fn drive(quota: &Quota, arrivals: &[Micros]) -> Vec<Outcome> {
    let mut held = Held::default();
    let mut ask = |at| {
        let verdict = quota.ask(&mut held, at, 1);
        Outcome { at, leaves: verdict.allowed.then_some(at + verdict.delay()) }
    };
    arrivals.iter().map(|at| ask(*at)).collect()
}

/// What the sliding counter believes and what is true, after each moment's requests.
pub(crate) struct Believed {
    pub(crate) at: Micros,
    pub(crate) estimate: u32,
    pub(crate) truth: u32,
}

/// Both at every moment: the counter's estimate, and an exact log of what the counter admitted.
pub(crate) fn believe(
    rate: Rate,
    arrivals: &[Micros],
    moments: impl Iterator<Item = Micros>,
) -> Result<Vec<Believed>, QuotaError> {
    let counter = Quota::sliding_window(rate)?;
    let ledger = Quota::sliding_log(Rate { count: MAX_LOG, ..rate })?;
    let (mut counted, mut logged) = (Held::default(), Held::default());
    let used = |quota: &Quota, held: &Held, at| quota.capacity() - quota.peek(held, at, 1).unused;
    let mut arrivals = arrivals.iter().copied().peekable();
    let after = |moment| {
        while let Some(at) = arrivals.next_if(|at| *at <= moment) {
            if counter.ask(&mut counted, at, 1).allowed {
                ledger.ask(&mut logged, at, 1);
            }
        }
        let estimate = used(&counter, &counted, moment);
        Believed { at: moment, estimate, truth: used(&ledger, &logged, moment) }
    };
    Ok(moments.map(after).collect())
}

/// How many of these (ascending) lie in the window that ends at `now`; one of age W does not.
pub(crate) fn in_the_last(window: Micros, leaves: &[Micros], now: Micros) -> usize {
    let until = leaves.partition_point(|at| *at <= now);
    let gone = leaves.partition_point(|at| at + window <= now);
    until - gone
}

/// For the axes.
pub(crate) fn seconds(at: Micros) -> f64 {
    at as f64 / SECOND as f64
}
