//! Who waits for a place: critical requests first, and among equals callers in turns.

use crate::config::model::Priority;
use crate::overload::adaptive::Start;
use std::collections::{HashMap, VecDeque};
use tokio::sync::oneshot;

/// The longest queue: it is looked through by whoever leaves.
pub(super) const LONGEST: u32 = 1000;

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// How many may wait, if that is fixed.
    pub(super) length: Option<u32>,
    /// The share that is kept for critical requests.
    pub(super) reserve: f64,
    /// How many more may wait: while some places are not used for a moment, and as long as nobody knows
    /// how many there should be.
    pub(super) more: u32,
    pub(super) entries: Vec<Entry>,
    pub(super) next_ticket: u64,
    pub(super) served: Served,
}

/// Who was served lately, and when: turns are counted, not time.
#[derive(Debug, Default)]
pub(super) struct Served {
    turns: u64,
    last: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) ticket: u64,
    pub(super) priority: Priority,
    pub(super) caller: u64,
    /// How many of the same caller wait before it.
    pub(super) behind: u32,
    /// The turn in which its caller was served last; none for those who were not served lately.
    pub(super) last: u64,
    /// Makes room for nobody.
    pub(super) insists: bool,
    pub(super) granted: oneshot::Sender<Start>,
}

/// There is no place, and nobody less important waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// How many may wait, where the file does not say. Whoever is critical finds all places taken by
/// others, and takes over one after the other: that takes longer, and is worth waiting for.
pub(super) fn usual_length(places: u32, priority: Priority) -> u32 {
    let length = match priority {
        Priority::Critical => places.max(16) * 2,
        Priority::Normal | Priority::Sheddable => (places / 2).max(3),
    };
    length.min(LONGEST)
}

pub(super) fn bit(priority: Priority) -> u64 {
    1 << priority as u64
}

impl Queue {
    /// Which priorities wait.
    pub(super) fn waiting(&self) -> u64 {
        self.entries.iter().fold(0, |all, entry| all | bit(entry.priority))
    }

    /// Whose turn it is: of the callers who wait, it is the one who was served longest ago.
    pub(super) fn next(&self, priority: Priority) -> Option<usize> {
        let entries = self.entries.iter().enumerate();
        let first = entries.filter(|(_, entry)| (entry.priority, entry.behind) == (priority, 0));
        first.min_by_key(|(_, entry)| (entry.last, entry.ticket)).map(|(index, _)| index)
    }

    /// Takes somebody out; those who wait behind them move up.
    pub(super) fn remove(&mut self, index: usize) -> Entry {
        let gone = self.entries.swap_remove(index);
        for entry in &mut self.entries {
            let same = (entry.priority, entry.caller) == (gone.priority, gone.caller);
            if same && entry.behind > gone.behind {
                entry.behind -= 1;
            }
        }
        gone
    }

    /// A caller was served.
    pub(super) fn had_turn(&mut self, caller: u64) {
        let last = self.served.note(caller);
        for entry in self.entries.iter_mut().filter(|entry| entry.caller == caller) {
            entry.last = last;
        }
    }

    /// The least of those who wait goes, if it is less than this one: the least important, of those
    /// one of the caller who has most waiting, of those one who was served last.
    pub(super) fn make_room(&mut self, rank: (Priority, u32, u64)) -> Result<(), Full> {
        let of = |entry: &Entry| (entry.priority, entry.behind, entry.last);
        let entries = self.entries.iter().enumerate().filter(|(_, entry)| !entry.insists);
        let least = entries.max_by_key(|(_, entry)| (of(entry), entry.ticket));
        let (index, least) = least.ok_or(Full)?;
        if of(least) <= rank {
            return Err(Full);
        }
        drop(self.remove(index)); // they hear of it
        Ok(())
    }
}

impl Served {
    /// More than this many turns ago is never.
    const LATELY: usize = 1000;

    pub(super) fn last(&self, caller: u64) -> u64 {
        self.last.get(&caller).copied().unwrap_or(0)
    }

    /// This caller is served now: by the number of the turn.
    fn note(&mut self, caller: u64) -> u64 {
        self.turns += 1;
        self.last.insert(caller, self.turns);
        self.order.push_back((self.turns, caller));
        if self.order.len() > Self::LATELY
            && let Some((turn, caller)) = self.order.pop_front()
            && self.last(caller) == turn
        {
            self.last.remove(&caller);
        }
        self.turns
    }
}
