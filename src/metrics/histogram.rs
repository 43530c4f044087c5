//! How long things take: counts by length of time, four buckets to each doubling.
//!
//! One worker writes, anybody reads: no locked instruction on the way of a request. A bucket holds
//! what is longer than the one before it and at most as long as its bound, as Prometheus counts; its
//! bounds are powers of two microseconds, so what is told there is exact.

use crate::clock::Micros;
use std::sync::atomic::{AtomicU64, Ordering};

/// Up to 2^26 microseconds, 67 seconds; the last bucket holds the rest.
const DOUBLINGS: usize = 26;
const BUCKETS: usize = 4 * (DOUBLINGS - 1) + 1;

/// Lengths of time, as one worker sees them.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    /// In microseconds.
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// One more. Only the worker that it belongs to says so.
    #[inline]
    pub fn record(&self, time: Micros) {
        add(&self.buckets[bucket(time)], 1);
        add(&self.sum, time);
    }

    /// As it stands.
    pub fn read(&self) -> Distribution {
        Distribution {
            buckets: self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

fn add(to: &AtomicU64, count: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

/// The bucket of a length of time: of the whole microseconds before it, the highest bit and the
/// two after it.
fn bucket(time: Micros) -> usize {
    let before = time.saturating_sub(1);
    if before < 4 {
        return before as usize;
    }
    let highest = before.ilog2() as usize;
    let next = (before >> (highest - 2)) as usize & 3;
    (4 * (highest - 1) + next).min(BUCKETS - 1)
}

/// The longest time that a bucket holds.
fn bound(bucket: usize) -> Micros {
    let (highest, next) = (bucket / 4 + 1, bucket as u64 % 4);
    if bucket < 4 { bucket as u64 + 1 } else { (5 + next) << (highest - 2) }
}

/// Lengths of time, added up over workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    buckets: Vec<u64>,
    sum: Micros,
}

impl Distribution {
    /// All of them together.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a Histogram>) -> Self {
        Self::sum(parts.into_iter().map(Histogram::read))
    }

    /// All of them together.
    pub fn sum(parts: impl Iterator<Item = Self>) -> Self {
        parts.fold(Self::default(), |sum, part| sum.and(&part))
    }

    /// Both together.
    fn and(mut self, other: &Self) -> Self {
        self.buckets.resize(BUCKETS, 0);
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.sum += other.sum;
        self
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How long all of them took.
    pub fn seconds(&self) -> f64 {
        self.sum as f64 / 1e6
    }

    /// How many took at most so long, for each power of two from 16 microseconds to 33 seconds.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        (4..DOUBLINGS).map(|doubling| {
            let within = self.buckets.iter().take(4 * (doubling - 1)).sum();
            ((1_u64 << doubling) as f64 / 1e6, within)
        })
    }

    /// Each bucket that holds anything: its bound in seconds, and how many. The last one's is none.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<f64>, u64)> {
        let seconds = |bucket| (bucket < BUCKETS - 1).then(|| bound(bucket) as f64 / 1e6);
        let buckets = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        buckets.map(move |(bucket, count)| (seconds(bucket), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_whose_bound_is_the_first_not_below_it() {
        for time in (1..5000).chain([1 << 20, (1 << 20) + 1, 1 << 26, u64::MAX]) {
            let bucket = bucket(time);
            if bucket < BUCKETS - 1 {
                assert!(time <= bound(bucket), "{time} in {bucket}");
            }
            assert!(bucket == 0 || time > bound(bucket - 1), "{time} in {bucket}");
        }
        assert_eq!(bucket(0), 0);
    }

    #[test]
    fn what_is_told_is_exact_at_its_bounds() {
        let histogram = Histogram::default();
        for time in [1, 16, 17, 1024, 1025, 100_000_000] {
            histogram.record(time);
        }
        let read = Distribution::of([&histogram]);
        let told: Vec<_> = read.cumulative().collect();
        assert_eq!(told.len(), 22);
        assert_eq!(told[0], (0.000_016, 2));
        assert_eq!(told[1], (0.000_032, 3));
        assert_eq!(told[6], (0.001_024, 4));
        assert_eq!(told[21], (33.554_432, 5));
        assert_eq!((read.count(), read.buckets().last()), (6, Some((None, 1))));
        assert!((read.seconds() - 100.002_083).abs() < 1e-9, "{}", read.seconds());
    }
}
