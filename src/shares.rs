//! A bounded sum, and a share of it for each address: what callers make the gateway hold, without any of
//! them holding all of it.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// What is held, and how much may be.
#[derive(Debug)]
pub struct Shares {
    most: usize,
    most_per_address: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A part of the sum; dropping it gives it back.
#[derive(Debug)]
pub struct Share {
    of: Arc<Shares>,
    /// `None`: it counts for no address.
    address: Option<IpAddr>,
    amount: usize,
}

impl Shares {
    /// At most so much in all, and for one address.
    pub fn new(most: usize, most_per_address: usize) -> Arc<Self> {
        Arc::new(Self { most, most_per_address, held: Mutex::default() })
    }

    /// Nothing yet: see [`Share::grow`].
    pub fn none(self: &Arc<Self>, address: Option<IpAddr>) -> Share {
        Share { of: Arc::clone(self), address, amount: 0 }
    }

    /// A part, unless that is too much.
    pub fn take(self: &Arc<Self>, address: Option<IpAddr>, amount: usize) -> Option<Share> {
        let mut share = self.none(address);
        share.grow(amount).then_some(share)
    }

    /// How much is held in all.
    pub fn held(&self) -> usize {
        self.held.lock().all
    }
}

impl Share {
    /// Takes more; if that is too much, nothing changes.
    pub fn grow(&mut self, more: usize) -> bool {
        let held = &mut *self.of.held.lock();
        if more > self.of.most.saturating_sub(held.all) {
            return false;
        }
        if let Some(address) = self.address {
            let here = held.by_address.get(&address).copied().unwrap_or(0);
            if more > self.of.most_per_address.saturating_sub(here) {
                return false;
            }
            held.by_address.insert(address, here + more);
        }
        held.all += more;
        self.amount += more;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let held = &mut *self.of.held.lock();
        held.all -= self.amount;
        if let Some(address) = self.address
            && let Some(here) = held.by_address.get_mut(&address)
        {
            *here -= self.amount;
            if *here == 0 {
                held.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_a_share_and_all_have_a_sum() {
        let shares = Shares::new(10, 4);
        let [a, b, c] = [1, 2, 3].map(|n| Some(IpAddr::from([192, 0, 2, n])));
        let mut first = shares.take(a, 3).unwrap();
        assert!(!first.grow(2) && first.grow(1));
        assert!(shares.take(a, 1).is_none(), "its share");
        let others = [shares.take(b, 4).unwrap(), shares.take(None, 1).unwrap()];
        assert!(shares.take(c, 2).is_none(), "the sum");
        assert_eq!(shares.held(), 9);
        drop(first);
        assert!(shares.take(a, 4).is_some());
        drop(others);
        assert_eq!(shares.held(), 0);
        assert!(shares.held.lock().by_address.is_empty(), "no address is remembered");
    }
}
