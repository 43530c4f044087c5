//! How many connections each address has: nobody takes them all.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

/// Workers seldom want the same part at once.
const PARTS: usize = 16;

/// Open connections by address.
#[derive(Debug, Default)]
pub struct Connections {
    hasher: RandomState,
    parts: [Mutex<HashMap<IpAddr, u32>>; PARTS],
}

impl Connections {
    fn part(&self, ip: IpAddr) -> &Mutex<HashMap<IpAddr, u32>> {
        &self.parts[self.hasher.hash_one(ip) as usize % PARTS]
    }

    /// One more of this address, unless it has `most` already.
    pub fn enter(&self, ip: IpAddr, most: u64) -> bool {
        let mut part = self.part(ip).lock();
        let count = part.entry(ip).or_default();
        let enters = u64::from(*count) < most;
        *count += u32::from(enters);
        enters
    }

    /// One less.
    pub fn leave(&self, ip: IpAddr) {
        if let Entry::Occupied(mut entry) = self.part(ip).lock().entry(ip) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_the_most_and_nothing_is_remembered() {
        let connections = Connections::default();
        let ips: Vec<IpAddr> = (1..=40).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for ip in ips.iter().cycle().take(4000) {
                        if connections.enter(*ip, 2) {
                            connections.leave(*ip);
                        }
                    }
                });
            }
        });
        assert!(connections.parts.iter().all(|part| part.lock().is_empty()));
        let entered = (0..5).filter(|_| connections.enter(ips[0], 3)).count();
        assert_eq!(entered, 3);
        assert!(connections.enter(ips[1], 3));
        connections.leave(ips[0]);
        assert!(connections.enter(ips[0], 3));
    }
}
