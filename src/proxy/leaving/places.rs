//! How many requests are finished without their clients, in this process and for one address.

use super::Custody;
use crate::config::model::OnLeave;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// How many there may be at a time in this process, and for one address.
const MOST: usize = 1000;
const MOST_PER_ADDRESS: usize = MOST / 10;

/// A place among the requests that are finished without their clients.
pub(super) struct Slot {
    all: Arc<Leaving>,
    address: IpAddr,
}

impl Slot {
    /// `None` if such requests are broken off, or if there are too many of them.
    pub(super) fn take(custody: &Custody) -> Option<Self> {
        let gateway = &custody.worker.gateway;
        let (all, address) = (Arc::clone(&gateway.leaving), custody.address);
        let taken = custody.on_leave == OnLeave::Finish && all.enter(address);
        let counter = &gateway.metrics.clients_left;
        if taken {
            counter.finished.increment();
        } else {
            counter.cancelled.increment();
        }
        // Lazily: a place that was not taken must not be given back.
        taken.then(|| Self { all, address })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.all.leave(self.address);
    }
}

/// The requests of this process that are finished without their clients, by address.
#[derive(Debug, Default)]
pub struct Leaving(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl Leaving {
    fn enter(&self, address: IpAddr) -> bool {
        let counts = &mut *self.0.lock();
        let here = counts.by_address.entry(address).or_default();
        if counts.all >= MOST || *here >= MOST_PER_ADDRESS {
            if *here == 0 {
                counts.by_address.remove(&address);
            }
            return false;
        }
        *here += 1;
        counts.all += 1;
        true
    }

    fn leave(&self, address: IpAddr) {
        let counts = &mut *self.0.lock();
        counts.all -= 1;
        if let Some(here) = counts.by_address.get_mut(&address) {
            *here -= 1;
            if *here == 0 {
                counts.by_address.remove(&address);
            }
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.lock().all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn a_thousand_in_all_and_a_hundred_for_one_address() {
        let all = Leaving::default();
        for last in 0..10 {
            assert_eq!((0..150).filter(|_| all.enter(address(last))).count(), 100);
        }
        assert!(!all.enter(address(10)), "there are a thousand");
        assert_eq!(all.count(), 1000);
        all.leave(address(3));
        assert!(!all.enter(address(4)), "it has its hundred");
        assert!(all.enter(address(10)));
    }

    #[test]
    fn an_address_is_forgotten_with_its_last_request() {
        let all = Leaving::default();
        assert!(all.enter(address(1)));
        all.leave(address(1));
        assert_eq!((all.count(), all.0.lock().by_address.len()), (0, 0));
    }
}
