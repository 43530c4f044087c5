//! `consistency: leased`: blocks of allowance that this gateway has taken from the store in advance,
//! and serves from without asking.
//!
//! ```text
//! store ── a block, taken ──► Lease { left } ── one by one ──► requests
//!   ▲                             │
//!   └── what is left over ◄───────┘  when nobody wants it: after LIFE, on a reload, at the end
//! ```
//!
//! Allowance is taken before it is used, so the fleet never admits what was not taken. It may be
//! used late, by at most [`LIFE`]; windows count what is taken where it is taken, so there a lease
//! ends with its window. From that, the bound: a bucket of B at N per W admits at most
//! B + N·(T + LIFE)/W in any time T; a window admits what it always did.
//!
//! A block is sized by what was used of the one before: it should last between [`SOON`] and
//! [`LATE`], and never holds more than a tenth of the limit, so that a gateway keeps little from
//! others.

use super::wire::Before;
use crate::clock::Micros;
use crate::limit::{Quota, Seen, State, Verdict};
use crate::store::Charge;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long a block may be used.
pub(super) const LIFE: Micros = 1_000_000;

/// A block that lasts less than this should have been larger, ...
const SOON: Micros = 100_000;

/// ... and one that lasts longer, smaller.
const LATE: Micros = 400_000;

/// How long a refusal is believed while others may give something back.
const PATIENCE: Micros = 100_000;

/// The first block.
const FIRST: u32 = 8;

/// Blocks are told apart by their numbers; nothing was served from number 0.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

const SHARDS: usize = 64;

/// How many counters may be leased in each; others are charged one by one.
const MOST: usize = 4096;

/// What there is of one counter.
#[derive(Debug)]
struct Lease {
    /// Blocks that can be used, the oldest first.
    blocks: SmallVec<[Part; 2]>,
    /// Of blocks that are over: to be given back.
    over: SmallVec<[Part; 2]>,
    /// How large the last block was meant to be.
    size: u32,
    /// When it was asked for, by this process's clock.
    asked: Micros,
    /// What the store counted then, the block included.
    state: State,
    /// From this process's clock to the store's.
    skew: i64,
    /// The next block is on its way.
    renewing: bool,
    quota: Quota,
    key: Box<[u8]>,
}

/// What is left of a block.
#[derive(Clone, Copy, Debug)]
struct Part {
    left: u32,
    until: Micros,
    /// What the store counted when it was taken: it goes back to where it came from.
    state: State,
    number: u64,
}

/// What is given back of a lease.
#[derive(Debug)]
pub(super) struct LeftOver {
    pub(super) key: Box<[u8]>,
    pub(super) quota: Quota,
    pub(super) tokens: u32,
    /// What the store counted when the block was taken.
    pub(super) state: State,
}

/// What a lease says to a charge.
#[derive(Debug)]
pub(super) enum Served {
    /// It is decided, by this block; `true`: the next one should be fetched soon.
    Decided(Verdict, u64, bool),
    /// The store has to be asked, for a block of this size. Nobody else is told so until that has
    /// come, or has not.
    Ask(u32),
    /// Somebody is asking already: this one is charged by itself.
    Exact,
}

#[derive(Debug)]
pub(super) struct Leases(Box<[Mutex<HashMap<u64, Lease>>]>);

impl Leases {
    pub(super) fn new() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    fn shard(&self, key: u64) -> &Mutex<HashMap<u64, Lease>> {
        &self.0[key as usize % SHARDS]
    }

    /// Of how many counters there is something here.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Serves a charge, if it can be.
    pub(super) fn serve(&self, charge: &Charge<'_>, key: u64, now: Micros) -> Served {
        let mut shard = self.shard(key).lock();
        let is_full = shard.len() >= MOST && !shard.contains_key(&key);
        // Of an announced body all must fit, and a piece is charged: that is for the store to say.
        if is_full || charge.taken() < charge.cost {
            return Served::Exact;
        }
        let lease = shard.entry(key).or_insert_with(|| Lease::none(charge.quota));
        lease.turn(now);
        let (at, held) = (now.saturating_add_signed(lease.skew), lease.left());
        if let Some(block) = lease.blocks.iter_mut().find(|block| block.left >= charge.cost) {
            block.left -= charge.cost;
            let number = block.number;
            let soon = lease.left() < lease.size / 4 && !lease.renewing;
            lease.renewing |= soon;
            let unused = State { used: lease.state.used.saturating_sub(held), ..lease.state };
            let said = charge.quota.check(Seen::State(unused), at, charge.cost);
            // What was taken is ours, whatever else the limit says by now.
            let unheard = || Verdict::unheard(charge.quota.kind(), charge.cost, at);
            let said = if said.allowed { said } else { unheard() };
            return Served::Decided(said.by_store(), number, soon);
        }
        let said = charge.quota.check(Seen::State(lease.state), at, charge.cost);
        if !said.allowed && now < lease.asked.saturating_add(PATIENCE) {
            return Served::Decided(said.by_store(), 0, false);
        }
        if lease.renewing {
            return Served::Exact;
        }
        lease.renewing = true;
        Served::Ask(lease.next_size(charge.quota, charge.cost, now))
    }

    /// The size of the next block, for a lease that is running low.
    pub(super) fn next_size(&self, quota: &Quota, cost: u32, key: u64, now: Micros) -> u32 {
        let shard = self.shard(key).lock();
        shard.get(&key).map_or(FIRST, |lease| lease.next_size(quota, cost, now))
    }

    /// A block has come.
    pub(super) fn put(&self, quota: &Quota, key: u64, name: &[u8], block: Block) {
        let Block { before, asked, at, size, taken } = block;
        let Before::State(before) = before else { return };
        let state = quota.owe(before, at, taken);
        let skew = super::denials::skew(at, asked);
        let end = quota.window_end(at).map_or(LIFE, |end| (end - at).min(LIFE));
        let mut shard = self.shard(key).lock();
        let lease = shard.entry(key).or_insert_with(|| Lease::none(quota));
        lease.turn(asked);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        if taken > 0 {
            lease.blocks.push(Part { left: taken, until: asked + end, state, number });
        }
        (lease.size, lease.asked, lease.state, lease.skew) = (size.max(1), asked, state, skew);
        (lease.renewing, lease.quota, lease.key) = (false, quota.clone(), name.into());
    }

    /// A renewal did not come.
    pub(super) fn not_renewed(&self, key: u64) {
        if let Some(lease) = self.shard(key).lock().get_mut(&key) {
            lease.renewing = false;
        }
    }

    /// A request that was served is turned away by another limit: into the block that it was
    /// served from. If that is gone, its window may be as well, and what was taken stays taken.
    pub(super) fn put_back(&self, key: u64, number: u64, cost: u32) {
        let mut shard = self.shard(key).lock();
        let Some(lease) = shard.get_mut(&key) else { return };
        let mut all = lease.blocks.iter_mut().chain(&mut lease.over);
        if let Some(block) = all.find(|block| block.number == number) {
            block.left += cost;
        }
    }

    /// Takes out what is over, or everything: it goes back.
    pub(super) fn end(&self, now: Option<Micros>) -> Vec<LeftOver> {
        let mut left_over = Vec::new();
        for shard in &self.0 {
            shard.lock().retain(|_, lease| {
                lease.turn(now.unwrap_or(Micros::MAX));
                for Part { left: tokens, state, .. } in lease.over.drain(..) {
                    let (key, quota) = (lease.key.clone(), lease.quota.clone());
                    left_over.push(LeftOver { key, quota, tokens, state });
                }
                let idle = now.is_none_or(|now| lease.asked.saturating_add(2 * LIFE) < now);
                lease.left() > 0 || lease.renewing && now.is_some() || !idle
            });
        }
        left_over
    }
}

/// A block that was taken.
#[derive(Debug)]
pub(super) struct Block {
    /// What the store counted before.
    pub(super) before: Before,
    /// When it was asked for, by this process's clock, and taken, by the store's.
    pub(super) asked: Micros,
    pub(super) at: Micros,
    /// How much was wanted, and how much there was.
    pub(super) size: u32,
    pub(super) taken: u32,
}

impl Lease {
    /// Before the first block.
    fn none(quota: &Quota) -> Self {
        Self {
            blocks: SmallVec::new(),
            over: SmallVec::new(),
            size: FIRST,
            asked: 0,
            state: State { kind: quota.kind(), ..State::default() },
            skew: 0,
            renewing: false,
            quota: quota.clone(),
            key: Box::default(),
        }
    }

    /// Puts blocks aside that are over, and forgets those that are used up.
    fn turn(&mut self, now: Micros) {
        let over = &mut self.over;
        self.blocks.retain(|block| {
            if now >= block.until && block.left > 0 {
                over.push(*block);
            }
            // One that is used up stays while something may be put back into it.
            now < block.until
        });
    }

    /// What can be used.
    fn left(&self) -> u32 {
        self.blocks.iter().map(|block| block.left).sum()
    }

    fn next_size(&self, quota: &Quota, cost: u32, now: Micros) -> u32 {
        let lasted = now.saturating_sub(self.asked);
        let size = match lasted {
            _ if self.asked == 0 => self.size,
            _ if lasted < SOON => self.size.saturating_mul(2),
            _ if lasted > LATE => self.size / 2,
            _ => self.size,
        };
        size.min(most(quota)).max(cost)
    }
}

/// The largest block.
fn most(quota: &Quota) -> u32 {
    (quota.capacity() / 10).max(1)
}
