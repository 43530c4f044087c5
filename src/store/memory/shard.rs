//! A part of the callers behind one lock: their table, and the logs of those limits that keep one.
//! A log stands beside its entry in the table, under the same key.

use super::table::{Entry, Table};
use crate::clock::Micros;
use crate::limit::{Held, Kind, Log, Quota, Seen, State};
use crate::store::{Charge, LimitId};
use crate::sync::Mutex;
use std::collections::HashMap;

/// With its lock it fits into one cache line.
#[derive(Debug, Default)]
pub(super) struct Shard {
    table: Table,
    /// `None` as long as no limit keeps one.
    #[expect(clippy::box_collection, reason = "a word instead of six keeps a shard on one line")]
    logs: Option<Box<HashMap<u64, Log>>>,
    /// Where the next search for room begins.
    cursor: usize,
}

const _: () = assert!(size_of::<Mutex<Shard>>() <= 64 || cfg!(shuttle));

/// The limits there are: for each, by its number, the quotas that its entries may be counted by.
/// Of one that is gone there are none.
pub(super) type Limits = [Box<[Quota]>];

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn slots(&self) -> usize {
        self.table.slots()
    }

    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        self.table.find(key)
    }

    /// What a slot holds, which is this key's.
    #[inline]
    pub(super) fn see(&self, slot: usize, key: u64) -> Seen<'_> {
        let state = self.table.state(slot);
        if state.kind != Kind::Log {
            return Seen::State(state);
        }
        self.log(key).map_or(Seen::State(state), Seen::Log)
    }

    fn log(&self, key: u64) -> Option<&Log> {
        self.logs.as_ref()?.get(&key)
    }

    fn take_log(&mut self, key: u64) -> Option<Log> {
        self.logs.as_mut()?.remove(&key)
    }

    /// Where a key is that was found in a slot: other keys' coming and going moves slots. It may
    /// even be gone, because it was whole.
    #[inline]
    pub(super) fn still(&self, slot: Option<usize>, key: u64) -> Option<usize> {
        match slot {
            Some(at) if self.table.is_at(at, key) => slot,
            _ => self.find(key),
        }
    }

    #[inline]
    pub(super) fn state(&self, slot: usize) -> State {
        self.table.state(slot)
    }

    #[inline]
    pub(super) fn set(&mut self, slot: usize, state: State) {
        self.table.set(slot, state);
    }

    /// Takes what a verdict allowed. A stranger begins with `begin`. Returns whether it was one.
    #[inline]
    pub(super) fn take(
        &mut self,
        slot: Option<usize>,
        key: u64,
        charge: &Charge<'_>,
        begin: impl FnOnce() -> Held,
    ) -> bool {
        match (self.still(slot, key), charge.verdict.state()) {
            (Some(slot), Some(state)) if self.table.state(slot).kind != Kind::Log => {
                self.table.set(slot, state);
                false
            }
            (slot, _) => {
                let mut held = self.remove_log(slot, key).unwrap_or_else(begin);
                charge.quota.take(&mut held, &charge.verdict);
                self.put(slot, key, charge.limit, held)
            }
        }
    }

    /// Remembers that a key's counter began where the overflow stood.
    pub(super) fn inherit(&mut self, key: u64) {
        if let Some(slot) = self.find(key) {
            self.table.set_inherited(slot, true);
        }
    }

    /// Whether what a slot holds began where the overflow stood.
    pub(super) fn is_inherited(&self, slot: usize) -> bool {
        self.table.is_inherited(slot)
    }

    /// What was inherited has been given back by time: the overflow is whole again.
    pub(super) fn disinherit(&mut self) {
        (0..self.slots()).for_each(|slot| self.table.set_inherited(slot, false));
    }

    fn remove_log(&mut self, slot: Option<usize>, key: u64) -> Option<Held> {
        let log = self.take_log(key).map(|log| Held::Log(Box::new(log)));
        log.or_else(|| slot.map(|slot| Held::State(self.table.state(slot))))
    }

    #[cold]
    pub(super) fn put(
        &mut self,
        slot: Option<usize>,
        key: u64,
        limit: LimitId,
        held: Held,
    ) -> bool {
        let state = match held {
            Held::State(state) => state,
            Held::Log(log) => {
                let state = log.summary();
                self.logs.get_or_insert_default().insert(key, *log);
                state
            }
        };
        match slot {
            Some(slot) => self.table.set(slot, state),
            None => self.table.insert(Entry { key, limit, state }),
        }
        slot.is_none()
    }

    /// Looks at up to `steps` slots, going on where the last search ended, and lets those go that
    /// are whole. Returns how many went.
    pub(super) fn sweep(&mut self, steps: usize, limits: &Limits, now: Micros) -> usize {
        let before = self.len();
        for _ in 0..steps.min(self.slots()) {
            if self.cursor >= self.slots() {
                self.cursor = 0;
            }
            // Whoever moves up into the slot is looked at as well.
            while let Some(entry) = self.table.entry(self.cursor)
                && self.is_whole(entry, limits, now)
            {
                self.table.remove(self.cursor);
                self.take_log(entry.key);
            }
            self.cursor += 1;
        }
        before - self.len()
    }

    /// Forgets a key; says whether it was there.
    pub(super) fn forget(&mut self, key: u64) -> bool {
        let slot = self.find(key);
        if let Some(slot) = slot {
            self.table.remove(slot);
            self.take_log(key);
        }
        slot.is_some()
    }

    /// Takes an admission out of a key's log.
    pub(super) fn strike(&mut self, key: u64, at: Micros, cost: u32) {
        let Some(log) = self.logs.as_mut().and_then(|logs| logs.get_mut(&key)) else { return };
        log.strike(at, cost);
        let state = log.summary();
        if let Some(slot) = self.find(key) {
            self.set(slot, state);
        }
    }

    /// Gives memory back that a flood has left.
    pub(super) fn shrink(&mut self) {
        self.table.shrink();
        if let Some(logs) = &mut self.logs {
            logs.shrink_to(2 * logs.len());
        }
    }

    fn is_whole(&self, entry: Entry, limits: &Limits, now: Micros) -> bool {
        let seen = match self.log(entry.key) {
            Some(log) => Seen::Log(log),
            None => Seen::State(entry.state),
        };
        whole(limits, entry.limit, seen, now)
    }

    /// Everybody, and what they have used. A log is told as what it sums up to and as its entries.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Entry, Option<&Log>)> {
        let entries = (0..self.slots()).filter_map(|slot| self.table.entry(slot));
        entries.map(|entry| (entry, self.log(entry.key)))
    }
}

/// Whether nothing would be forgiven by forgetting this.
pub(super) fn whole(limits: &Limits, limit: LimitId, seen: Seen<'_>, now: Micros) -> bool {
    match limits.get(limit.0 as usize).filter(|quotas| !quotas.is_empty()) {
        Some(quotas) => quotas.iter().all(|quota| quota.is_whole(seen, now)),
        // What is in flight is still there when a limit that a reload removed comes back.
        None => match seen {
            Seen::State(State { kind: Kind::Concurrency, used, .. }) => used == 0,
            _ => true,
        },
    }
}
