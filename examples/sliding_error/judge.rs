//! The counter's decisions, and whether they were right.
//!
//! ```text
//! request ─┬─▶ counter: sliding_window decides
//!          ├─▶ log: sliding_log decides for itself            do the two differ?
//!          ├─▶ ledger: all that the counter admitted          would an exact log have said the same?
//!          └─▶ meter: all requests, admitted or not           were they more than N?
//! ```

use sluice::clock::Micros;
use sluice::limit::{Held, MAX_BURST, MAX_LOG, Quota, QuotaError, Rate};

pub(crate) struct Judge {
    rate: Rate,
    counter: Quota,
    log: Quota,
    /// A log so large that it tells how many there are beyond N.
    exact: Quota,
    /// A counter so large that it never rejects.
    meter: Quota,
    pub(crate) tally: Tally,
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    /// By the counter, and by the log deciding for itself.
    pub(crate) rejected: u64,
    pub(crate) log_rejected: u64,
    /// Those two said different things.
    pub(crate) differ: u64,
    /// N or more of those the counter admitted were in the last W, and it admitted one more.
    pub(crate) wrongly_admitted: u64,
    /// Fewer than N of those the counter admitted were in the last W, and it rejected.
    pub(crate) wrongly_rejected: u64,
    /// The same, and exactly N − 1 were: the last place stayed empty.
    pub(crate) by_one: u64,
    /// The most the counter ever admitted within W.
    pub(crate) most: u32,
    /// Had rejected requests been counted too: the estimate and the truth on different sides of N.
    pub(crate) misread: u64,
}

/// What is kept of one caller.
#[derive(Default)]
struct Kept {
    counter: Held,
    log: Held,
    ledger: Held,
    meter: Held,
}

impl Judge {
    pub(crate) fn new(rate: Rate) -> Result<Self, QuotaError> {
        Ok(Self {
            rate,
            counter: Quota::sliding_window(rate)?,
            log: Quota::sliding_log(rate)?,
            exact: Quota::sliding_log(Rate { count: MAX_LOG, ..rate })?,
            meter: Quota::sliding_window(Rate { count: MAX_BURST, ..rate })?,
            tally: Tally::default(),
        })
    }

    /// One caller's requests, from the first to the last.
    pub(crate) fn caller(&mut self, arrivals: &[Micros]) {
        let mut kept = Kept::default();
        let mut oldest = 0;
        for (index, at) in arrivals.iter().enumerate() {
            self.decide(&mut kept, *at);
            while arrivals[oldest] + self.rate.window <= *at {
                oldest += 1;
            }
            self.read(&mut kept.meter, *at, index - oldest);
        }
    }

    fn decide(&mut self, kept: &mut Kept, at: Micros) {
        let Self { rate: Rate { count, .. }, tally, .. } = self;
        let truth = used(&self.exact, &kept.ledger, at);
        let admitted = self.counter.ask(&mut kept.counter, at, 1).allowed;
        let log_admitted = self.log.ask(&mut kept.log, at, 1).allowed;
        if admitted {
            self.exact.ask(&mut kept.ledger, at, 1);
            tally.most = tally.most.max(truth + 1);
        }
        tally.requests += 1;
        tally.rejected += u64::from(!admitted);
        tally.log_rejected += u64::from(!log_admitted);
        tally.differ += u64::from(admitted != log_admitted);
        tally.wrongly_admitted += u64::from(admitted && truth >= *count);
        tally.wrongly_rejected += u64::from(!admitted && truth < *count);
        tally.by_one += u64::from(!admitted && truth + 1 == *count);
    }

    /// `before`: how many requests the caller made in the last W.
    fn read(&mut self, meter: &mut Held, at: Micros, before: usize) {
        let limit = self.rate.count;
        let (estimated, really) = (used(&self.meter, meter, at) >= limit, before >= limit as usize);
        self.tally.misread += u64::from(estimated != really);
        self.meter.ask(meter, at, 1);
    }
}

/// How many count at this moment, as far as the quota reaches.
fn used(quota: &Quota, held: &Held, at: Micros) -> u32 {
    quota.capacity() - quota.peek(held, at, 1).unused
}
