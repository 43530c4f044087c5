//! Which route a request took lately: logs are full of the same paths.

use foldhash::fast::FixedState;
use std::hash::{BuildHasher, Hasher};

/// Places; each remembers one request.
const PLACES: usize = 1 << 12;

/// Longer targets are not remembered.
const LONGEST: usize = 256;

/// Routes of requests that were there lately.
#[derive(Debug)]
pub(super) struct Ways {
    hasher: FixedState,
    places: Vec<Known>,
}

/// A request that was there. One that was not is nobody's: every request has a target.
#[derive(Clone, Debug, Default)]
struct Known {
    hash: u64,
    /// Method, host and target.
    request: Vec<u8>,
    lengths: (usize, usize),
    way: (u32, u16),
}

impl Ways {
    pub(super) fn new() -> Self {
        Self { hasher: FixedState::default(), places: vec![Known::default(); PLACES] }
    }

    fn hash(&self, method: &[u8], host: &[u8], target: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(target);
        hasher.write(host);
        hasher.write(method);
        hasher.finish()
    }

    /// The way of the same request.
    #[inline]
    pub(super) fn known(&self, method: &[u8], host: &[u8], target: &[u8]) -> Option<(u32, u16)> {
        let hash = self.hash(method, host, target);
        let known = &self.places[hash as usize % PLACES];
        if known.hash != hash || known.lengths != (method.len(), host.len()) {
            return None;
        }
        let (known_method, rest) = known.request.split_at(method.len());
        let (known_host, known_target) = rest.split_at(host.len());
        let same = known_target == target && known_host == host && known_method == method;
        same.then_some(known.way)
    }

    /// Remembers it.
    pub(super) fn learn(&mut self, method: &[u8], host: &[u8], target: &[u8], way: (u32, u16)) {
        if target.len() <= LONGEST {
            let hash = self.hash(method, host, target);
            let place = &mut self.places[hash as usize % PLACES];
            place.request.clear();
            for part in [method, host, target] {
                place.request.extend_from_slice(part);
            }
            (place.hash, place.way) = (hash, way);
            place.lengths = (method.len(), host.len());
        }
    }
}
