//! One shard's counters: an open-addressing table of 32-byte slots, two to a cache line.
//!
//! ```text
//! key ── upper 32 bits × slots / 2^32 ──► home slot, then the next ones   (a key of 0: empty)
//! ```
//!
//! A caller is found on one cache line more often than not. The table grows by two fifths when it
//! is four fifths full, so a key takes 40 to 56 bytes; whoever is removed leaves no tombstone: those
//! behind move up.

use crate::limit::{Kind, State};
use crate::store::LimitId;

/// One caller of one limit.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Slot {
    key: u64,
    stamp: u64,
    used: u32,
    carry: u32,
    limit: LimitId,
    kind: Kind,
    /// It began where the overflow counter stood.
    inherited: bool,
}

const EMPTY: Slot = Slot {
    key: 0,
    stamp: 0,
    used: 0,
    carry: 0,
    limit: LimitId(0),
    kind: Kind::Bucket,
    inherited: false,
};

const _: () = assert!(size_of::<Slot>() == 32);

/// What is kept of one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: u64,
    pub(super) limit: LimitId,
    pub(super) state: State,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    len: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The slot of a key.
    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        let mut at = self.home(key);
        loop {
            let found = self.slots.get(at)?.key;
            if found == key {
                return Some(at);
            }
            if found == 0 {
                return None;
            }
            at = self.after(at);
        }
    }

    /// Whether a slot is still this key's: other keys' coming and going moves slots.
    #[inline]
    pub(super) fn is_at(&self, slot: usize, key: u64) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.key == key)
    }

    #[inline]
    pub(super) fn state(&self, slot: usize) -> State {
        let Slot { stamp, used, carry, kind, .. } = self.slots[slot];
        State { stamp, used, carry, kind }
    }

    #[inline]
    pub(super) fn set(&mut self, slot: usize, state: State) {
        let State { stamp, used, carry, kind } = state;
        let slot = &mut self.slots[slot];
        *slot = Slot { stamp, used, carry, kind, ..*slot };
    }

    pub(super) fn is_inherited(&self, slot: usize) -> bool {
        self.slots[slot].inherited
    }

    pub(super) fn set_inherited(&mut self, slot: usize, inherited: bool) {
        self.slots[slot].inherited = inherited;
    }

    /// Who is in a slot.
    pub(super) fn entry(&self, slot: usize) -> Option<Entry> {
        let Slot { key, limit, .. } = *self.slots.get(slot)?;
        (key != 0).then(|| Entry { key, limit, state: self.state(slot) })
    }

    /// Puts a key in that is not in yet.
    pub(super) fn insert(&mut self, entry: Entry) {
        if 5 * (self.len + 1) > 4 * self.slots.len() {
            self.resize((self.slots.len() * 7 / 5 + 2).next_multiple_of(2));
        }
        let Entry { key, limit, state: State { stamp, used, carry, kind } } = entry;
        self.place(Slot { key, stamp, used, carry, limit, kind, inherited: false });
        self.len += 1;
    }

    /// Takes whoever is in a slot out. Whoever comes to be in it has to be looked at again.
    pub(super) fn remove(&mut self, slot: usize) {
        let (mut hole, mut at) = (slot, self.after(slot));
        while self.slots[at].key != 0 {
            // Whoever stands between their home and their slot can move up to a hole on the way.
            let home = self.home(self.slots[at].key);
            if self.distance(home, at) >= self.distance(hole, at) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.slots[hole] = EMPTY;
        self.len -= 1;
    }

    /// Gives memory back when three quarters are no longer needed.
    pub(super) fn shrink(&mut self) {
        if 4 * self.len < self.slots.len() {
            self.resize((self.len * 7 / 5 + 2).next_multiple_of(2));
        }
    }

    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; slots]);
        old.into_iter().filter(|slot| slot.key != 0).for_each(|slot| self.place(slot));
    }

    fn place(&mut self, slot: Slot) {
        let mut at = self.home(slot.key);
        while self.slots[at].key != 0 {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        (((key >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    /// How many steps lead from one slot to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn entry(key: u64, used: u32) -> Entry {
        Entry {
            key,
            limit: LimitId(7),
            state: State { stamp: 1, used, carry: 2, ..State::default() },
        }
    }

    proptest! {
        /// Few different homes, so that everybody is in everybody's way.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..3_u8, 0..200_u64, any::<u32>()), 1..400)) {
            let (mut table, mut map) = (Table::default(), BTreeMap::new());
            for (step, key, used) in steps {
                let key = key.wrapping_mul(0x3_0000_0000_0000) + key + 1;
                match (step, table.find(key)) {
                    (0 | 1, None) => table.insert(entry(key, used)),
                    (0 | 1, Some(slot)) => table.set(slot, entry(key, used).state),
                    (_, Some(slot)) => table.remove(slot),
                    (_, None) => {}
                }
                if step < 2 { map.insert(key, used); } else { map.remove(&key); }
                if used % 50 == 0 { table.shrink(); }
                prop_assert_eq!(table.len(), map.len());
                prop_assert!(table.slots() <= 4.max(4 * table.len() + 400));
            }
            for (&key, &used) in &map {
                prop_assert_eq!(table.find(key).and_then(|at| table.entry(at)), Some(entry(key, used)));
            }
            let mut all: Vec<_> = (0..table.slots()).filter_map(|at| table.entry(at)).collect();
            all.sort_by_key(|entry| entry.key);
            prop_assert!(all.iter().map(|entry| (entry.key, entry.state.used)).eq(map));
        }
    }

    #[test]
    fn a_key_takes_no_more_than_56_bytes() {
        let mut table = Table::default();
        for key in 1..100_000_u64 {
            table.insert(entry(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1));
            assert!(key < 100 || table.slots() * 32 <= 57 * table.len(), "{key} keys");
        }
    }
}
