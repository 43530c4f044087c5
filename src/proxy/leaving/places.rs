//! How many requests are finished without their clients, in this process and for one address.

use super::Custody;
use crate::config::model::OnLeave;
use crate::shares::{Share, Shares};
use std::sync::Arc;

/// How many there may be at a time in this process, and for one address.
const MOST: usize = 1000;
const MOST_PER_ADDRESS: usize = MOST / 10;

/// The places of a process.
pub(crate) fn places() -> Arc<Shares> {
    Shares::new(MOST, MOST_PER_ADDRESS)
}

/// A place for a request whose client left. `None` if such requests are broken off, or if there are too
/// many of them.
pub(super) fn take(custody: &Custody) -> Option<Share> {
    let gateway = &custody.worker.gateway;
    let finishes = custody.on_leave == OnLeave::Finish;
    let place = finishes.then(|| gateway.leaving.take(Some(custody.address), 1)).flatten();
    let counter = &gateway.metrics.clients_left;
    if place.is_some() {
        counter.finished.increment();
    } else {
        counter.cancelled.increment();
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_in_all_and_a_hundred_for_one_address() {
        let places = places();
        let take = |last: u8| places.take(Some([192, 0, 2, last].into()), 1);
        let taken: Vec<Vec<Share>> =
            (0..10).map(|last| (0..150).filter_map(|_| take(last)).collect()).collect();
        assert!(taken.iter().all(|of_one| of_one.len() == 100));
        assert!(take(10).is_none(), "there are a thousand");
        drop(taken);
        assert_eq!(places.held(), 0);
    }
}
