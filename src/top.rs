//! Who asks most, and who is rejected most, in the last minutes, in bounded memory.
//!
//! Each worker counts for itself, minute by minute, in sketches of a fixed size (Space-Saving, by
//! Metwally, Agrawal and El Abbadi): a caller who is not among those counted takes the place of the
//! one with the smallest count, and begins where that one stood. So nobody who has more than a
//! 128th of all requests of a minute is missed, and a count is too high by at most what its
//! place had before, which is told with it.

use crate::clock::{Micros, SECOND};
use crate::metrics::ByWorker;
use crate::overrides::Who;
use crate::store::Part;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::net::IpAddr;

/// Callers that one sketch counts.
const PLACES: usize = 128;

/// So many requests of a worker's minute are all counted. Of further ones one in so many is, for all
/// of them: who is among the first is found as well, and it costs a busy gateway little.
const EXACT: u64 = 10_000;
const ONE_IN: u64 = 8;

/// Minutes that are remembered, the one that runs included.
const MINUTES: usize = 5;
const MINUTE: Micros = 60 * SECOND;

/// How far back it looks, in seconds.
pub const WINDOW: u64 = MINUTES as u64 * 60;

/// Attributes by which callers are counted.
pub const KINDS: [&str; 3] = ["ip", "user", "api_key"];

/// Counts callers.
#[derive(Debug)]
pub struct Top {
    seed: u64,
    workers: ByWorker<Mutex<Minutes>>,
}

/// A caller who is among the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Who.
    pub who: Who,
    /// How many requests.
    pub count: u64,
    /// The count is too high by at most this.
    pub error: u64,
}

/// The first of each attribute, in the order of [`KINDS`].
pub type Ranking = [Vec<Ranked>; 3];

/// One worker's minutes; which is which is told by the time.
#[derive(Debug, Default)]
struct Minutes {
    last: u64,
    all: [Minute; MINUTES],
}

/// By attribute.
#[derive(Debug, Default)]
struct Minute {
    requests: u64,
    asked: [Sketch; 3],
    rejected: [Sketch; 3],
}

impl Top {
    /// For so many workers.
    pub fn new(workers: usize) -> Self {
        Self { seed: RandomState::new().hash_one(0_u8), workers: ByWorker::new(workers) }
    }

    /// One more request of a caller, whatever is known of them.
    pub fn count(&self, worker: usize, who: &[Option<Part<'_>>; 3], rejected: bool, now: Micros) {
        let mut minutes = self.workers.of(worker).lock();
        let minute = minutes.at(now);
        minute.requests += 1;
        let weight = match minute.requests {
            0..EXACT => 1,
            _ if fastrand::u64(..).is_multiple_of(ONE_IN) => ONE_IN,
            _ => return,
        };
        for (kind, part) in who.iter().enumerate() {
            let Some(part) = part else { continue };
            let key = self.key(*part);
            minute.asked[kind].count(key, *part, weight);
            if rejected {
                minute.rejected[kind].count(key, *part, weight);
            }
        }
    }

    /// A number that stands for a caller. It need not withstand what the store's must: whoever could
    /// make two alike would be counted as one here, and nowhere else.
    fn key(&self, part: Part<'_>) -> u64 {
        match part {
            Part::Ip(IpAddr::V4(ip)) => fold(self.seed, u64::from(u32::from(ip))),
            Part::Ip(IpAddr::V6(ip)) => {
                let bits = u128::from(ip);
                fold(fold(self.seed, (bits >> 64) as u64), bits as u64)
            }
            Part::User(text) | Part::ApiKey(text) => {
                let (words, rest) = text.as_bytes().as_chunks();
                let word = |key, word: &[u8; 8]| fold(key, u64::from_le_bytes(*word));
                let key = words.iter().fold(fold(self.seed, text.len() as u64), word);
                fold(key, rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
            }
            Part::Header(_) => 0,
        }
    }

    /// The first `most` of those who asked, and of those who were rejected.
    pub fn read(&self, most: usize, now: Micros) -> (Ranking, Ranking) {
        let mut sums: [[HashMap<u64, Ranked>; 3]; 2] = Default::default();
        for minutes in self.workers.iter() {
            let mut minutes = minutes.lock();
            minutes.at(now);
            for Minute { asked, rejected, .. } in &minutes.all {
                for (sums, sketches) in sums.iter_mut().zip([asked, rejected]) {
                    sums.iter_mut().zip(sketches).for_each(|(sum, sketch)| sketch.add_to(sum));
                }
            }
        }
        let [asked, rejected] = sums.map(|sums| sums.map(|sum| first(most, sum)));
        (asked, rejected)
    }
}

/// Both halves of a product, mixed.
#[inline]
fn fold(key: u64, word: u64) -> u64 {
    let product = u128::from(key ^ word) * 0x9e37_79b9_7f4a_7c15;
    product as u64 ^ (product >> 64) as u64 ^ key.rotate_left(23)
}

fn first(most: usize, sum: HashMap<u64, Ranked>) -> Vec<Ranked> {
    let mut all: Vec<Ranked> = sum.into_values().collect();
    all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.who.cmp(&b.who)));
    all.truncate(most);
    all
}

impl Minutes {
    /// The minute that runs. Those that are too long ago begin anew.
    fn at(&mut self, now: Micros) -> &mut Minute {
        let minute = (now / MINUTE).max(self.last);
        let passed = (minute - self.last).min(MINUTES as u64);
        for past in 0..passed {
            self.all[((minute - past) % MINUTES as u64) as usize] = Minute::default();
        }
        self.last = minute;
        &mut self.all[(minute % MINUTES as u64) as usize]
    }
}

/// Counts as many callers as there are places.
#[derive(Debug, Default)]
struct Sketch {
    /// Key → place.
    places: HashMap<u64, usize, BuildHasherDefault<AsItIs>>,
    /// By place; together, so that the smallest is found quickly.
    counts: Vec<u64>,
    callers: Vec<Counted>,
}

#[derive(Debug)]
struct Counted {
    key: u64,
    who: Who,
    /// What the place stood at when they took it.
    error: u64,
}

impl Sketch {
    fn count(&mut self, key: u64, part: Part<'_>, weight: u64) {
        if let Some(place) = self.places.get(&key) {
            self.counts[*place] += weight;
            return;
        }
        // Nobody is counted by a header.
        let Some(who) = Who::of(part) else { return };
        let place = if self.counts.len() < PLACES {
            self.counts.push(0);
            self.callers.push(Counted { key, who, error: 0 });
            self.counts.len() - 1
        } else {
            let smallest = self.counts.iter().copied().min().unwrap_or_default();
            let place = self.counts.iter().position(|count| *count == smallest).unwrap_or(0);
            self.places.remove(&self.callers[place].key);
            self.callers[place] = Counted { key, who, error: smallest };
            place
        };
        self.counts[place] += weight;
        self.places.insert(key, place);
    }

    fn add_to(&self, sums: &mut HashMap<u64, Ranked>) {
        for (count, Counted { key, who, error }) in self.counts.iter().zip(&self.callers) {
            let new = || Ranked { who: who.clone(), count: 0, error: 0 };
            let sum = sums.entry(*key).or_insert_with(new);
            sum.count += count;
            sum.error += error;
        }
    }
}

/// Keys are hashes already.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(number: u32) -> [Option<Part<'static>>; 3] {
        [Some(Part::Ip(std::net::Ipv4Addr::from(number).into())), None, None]
    }

    #[test]
    fn of_many_requests_a_part_stands_for_all() {
        let top = Top::new(1);
        for n in 0..100_000_u32 {
            top.count(0, &ip(if n % 4 == 0 { 7 } else { 1000 + n }), false, 0);
        }
        let (asked, _) = top.read(1, 0);
        let first = &asked[0][0];
        assert_eq!(first.who.to_string(), "ip:0.0.0.7");
        assert!((20_000..30_000).contains(&first.count), "about a quarter: {first:?}");
    }

    #[test]
    fn the_busiest_and_the_most_rejected_of_the_last_minutes() {
        let top = Top::new(2);
        for n in 0..10 {
            top.count(n % 2, &ip(1), n < 3, 0);
        }
        let ada = [ip(2)[0], Some(Part::User("ada")), Some(Part::ApiKey("acme"))];
        top.count(0, &ada, true, MINUTE);
        let (asked, rejected) = top.read(5, MINUTE);
        let told = |ranked: &[Ranked]| -> Vec<(String, u64)> {
            ranked.iter().map(|r| (r.who.to_string(), r.count)).collect()
        };
        assert_eq!(told(&asked[0]), [("ip:0.0.0.1".into(), 10), ("ip:0.0.0.2".into(), 1)]);
        assert_eq!(told(&rejected[0]), [("ip:0.0.0.1".into(), 3), ("ip:0.0.0.2".into(), 1)]);
        assert_eq!(told(&asked[1]), [("user:ada".into(), 1)]);
        assert_eq!(told(&rejected[2]), [("api_key:acme".into(), 1)]);
        let (asked, _) = top.read(5, 5 * MINUTE);
        assert_eq!(told(&asked[0]), [("ip:0.0.0.2".into(), 1)], "the first minute is over");
        assert_eq!(top.read(5, 100 * MINUTE).0[0], []);
        assert_eq!(top.read(5, 0).0[0], [], "a clock that goes back brings nothing back");
    }

    proptest! {
        /// Whoever has more than a share of one in PLACES is there, and no count is too low, nor
        /// higher than its error says.
        #[test]
        fn nobody_who_counts_is_missed(
            crowd in 0_u32..2000,
            heavy in prop::collection::vec(0_usize..400, 1..20),
            seed in any::<u64>(),
        ) {
            let mut requests: Vec<u32> = (0..crowd).map(|n| 1000 + n).collect();
            for (n, count) in heavy.iter().enumerate() {
                requests.extend(std::iter::repeat_n(n as u32, *count));
            }
            fastrand::Rng::with_seed(seed).shuffle(&mut requests);
            let top = Top::new(1);
            for n in &requests {
                top.count(0, &ip(*n), false, 0);
            }
            let (ranked, _) = top.read(PLACES, 0);
            let found: HashMap<String, &Ranked> =
                ranked[0].iter().map(|ranked| (ranked.who.to_string(), ranked)).collect();
            for (n, count) in heavy.iter().enumerate() {
                let found = found.get(&format!("ip:{}", std::net::Ipv4Addr::from(n as u32)));
                if count * PLACES > requests.len() {
                    prop_assert!(found.is_some(), "{count} of {}", requests.len());
                }
                if let Some(found) = found {
                    let count = *count as u64;
                    prop_assert!(found.count >= count && found.count - found.error <= count);
                }
            }
        }
    }
}
