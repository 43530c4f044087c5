//! The largest few of many, without sorting them all.

use std::collections::BinaryHeap;

/// The largest few of many, the largest first.
pub(super) fn largest<K: Ord, T>(most: usize, all: impl Iterator<Item = (K, T)>) -> Vec<(K, T)> {
    struct ByKey<K, T>(K, T);
    impl<K: Ord, T> PartialEq for ByKey<K, T> {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }
    impl<K: Ord, T> Eq for ByKey<K, T> {}
    impl<K: Ord, T> PartialOrd for ByKey<K, T> {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }
    impl<K: Ord, T> Ord for ByKey<K, T> {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            other.0.cmp(&self.0) // the smallest is the first to go
        }
    }
    let mut kept = BinaryHeap::new();
    for (key, value) in all {
        if kept.len() == most
            && kept.peek().is_none_or(|ByKey(least, _): &ByKey<K, T>| key <= *least)
        {
            continue;
        }
        kept.push(ByKey(key, value));
        if kept.len() > most {
            kept.pop();
        }
    }
    kept.into_sorted_vec().into_iter().map(|ByKey(key, value)| (key, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Reverse;

    proptest! {
        #[test]
        fn the_largest_few_are_those_that_sorting_finds(
            all in prop::collection::vec(0u32..50, 0..200),
            most in 0usize..20,
        ) {
            let keyed = all.iter().copied().zip((0..all.len()).map(Reverse));
            let few = largest(most, keyed.clone().map(|key| (key, ())));
            let mut sorted: Vec<_> = keyed.collect();
            sorted.sort_by_key(|key| Reverse(*key));
            sorted.truncate(most);
            prop_assert_eq!(few.into_iter().map(|(key, ())| key).collect::<Vec<_>>(), sorted);
        }
    }
}
