//! What a limit has said: in all, and to each of its callers.

use crate::clock::Micros;
use crate::limit::Verdict;
use foldhash::fast::RandomState;
use smallvec::SmallVec;
use std::collections::HashMap;

/// What a limit has said in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests that it applied to.
    pub requests: u64,
    /// Those that it rejects, or, as a shadow, would reject.
    pub rejected: u64,
    /// Those that nobody else rejects.
    pub alone: u64,
    /// Those of callers that are banned for ignoring it.
    pub banned: u64,
    /// Those that it makes wait, and the longest wait.
    pub delayed: u64,
    /// See `delayed`.
    pub longest: Micros,
    /// Those of which nobody knows what they came to.
    pub untold: u64,
}

impl Counted {
    /// Notes what was said, and how many limits reject the request.
    #[inline]
    pub(super) fn note(&mut self, verdict: &Verdict, shadow: bool, rejecting: usize) {
        self.requests += 1;
        if !verdict.allowed {
            // A shadow counts only what the others admit.
            self.rejected += u64::from(!shadow || rejecting == 0);
            self.alone += u64::from(rejecting == usize::from(!shadow));
        } else if rejecting == 0 && verdict.delay() > 0 {
            self.delayed += 1;
            self.longest = self.longest.max(verdict.delay());
        }
    }
}

/// What a limit has said to one caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests.
    pub requests: u32,
    /// Those that it rejects.
    pub rejected: u32,
    /// The most tokens that were used, ...
    pub used: u32,
    /// ... of how many.
    pub capacity: u32,
    /// Which quota held last.
    pub quota: u16,
}

impl Usage {
    /// Notes what was said to a request, and how many limits reject it.
    #[inline]
    pub(super) fn note(&mut self, verdict: &Verdict, shadow: bool, rejecting: usize) {
        self.requests = self.requests.saturating_add(1);
        // Of what others reject, nothing is taken.
        if rejecting > 0 && (shadow || verdict.allowed) {
            return;
        }
        let mut used = verdict.capacity.saturating_sub(verdict.unused);
        if !verdict.allowed {
            self.rejected = self.rejected.saturating_add(1);
            used = verdict.capacity;
        }
        let (now, before) = (
            u64::from(used) * u64::from(self.capacity),
            u64::from(self.used) * u64::from(verdict.capacity),
        );
        if now > before || self.capacity == 0 {
            (self.used, self.capacity) = (used, verdict.capacity);
        }
    }

    /// The most that was used, as a share of what there is.
    pub fn share(&self) -> f64 {
        if self.rejected > 0 { 1.0 } else { f64::from(self.used) / f64::from(self.capacity.max(1)) }
    }
}

/// Somebody that a limit counts: what they are to its attributes.
pub(super) type Numbers = SmallVec<[u32; 3]>;

/// Everybody that a limit counts, by what they are to its attributes.
#[derive(Debug)]
pub struct Subjects {
    attributes: usize,
    usages: Vec<Usage>,
    /// Of limits by several attributes: who has which place.
    places: HashMap<Numbers, u32, RandomState>,
}

impl Subjects {
    pub(super) fn new(attributes: usize) -> Self {
        Self { attributes, usages: Vec::new(), places: HashMap::default() }
    }

    /// What was said to one of them.
    #[inline]
    pub(super) fn of(&mut self, mut numbers: impl Iterator<Item = u32>, quota: u16) -> &mut Usage {
        let place = match self.attributes {
            0 => 0,
            1 => numbers.next().unwrap_or_default(),
            _ => {
                let next = self.places.len() as u32;
                *self.places.entry(numbers.collect()).or_insert(next)
            }
        } as usize;
        if place >= self.usages.len() {
            self.usages.resize(place + 1, Usage::default());
        }
        let usage = &mut self.usages[place];
        usage.quota = quota;
        usage
    }

    /// What was said to each of them that the limit applied to, and what they are to its attributes.
    pub(super) fn each(&self) -> impl Iterator<Item = (Numbers, &Usage)> {
        let of_pairs =
            self.places.iter().map(|(who, at)| (who.clone(), &self.usages[*at as usize]));
        let single = if self.attributes > 1 { &[][..] } else { &self.usages };
        let single = single.iter().enumerate().map(|(at, usage)| {
            let who = if self.attributes == 0 { SmallVec::new() } else { [at as u32][..].into() };
            (who, usage)
        });
        single.chain(of_pairs).filter(|(_, usage)| usage.requests > 0)
    }
}
