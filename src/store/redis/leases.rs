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
use std::collections::HashMap;

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

const SHARDS: usize = 64;

/// One block.
#[derive(Debug)]
pub(super) struct Lease {
    /// Tokens that are left of it.
    pub(super) left: u32,
    /// Its size.
    size: u32,
    /// When it was asked for, by this process's clock.
    asked: Micros,
    /// Until when it may be used.
    until: Micros,
    /// What the store counts, this block included, and when, by its own clock.
    state: State,
    pub(super) counted: Micros,
    /// From this process's clock to the store's.
    skew: i64,
    /// The next block is on its way.
    renewing: bool,
    pub(super) quota: Quota,
    pub(super) key: Box<[u8]>,
}

/// What a lease says to a charge.
#[derive(Debug)]
pub(super) enum Served {
    /// It is decided; `true`: the next block should be fetched soon.
    Decided(Verdict, bool),
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

    /// Serves a charge, if it can be.
    pub(super) fn serve(&self, charge: &Charge<'_>, key: u64, now: Micros) -> Served {
        let mut shard = self.shard(key).lock();
        let lease = shard.entry(key).or_insert_with(|| Lease::none(charge.quota));
        let at = now.saturating_add_signed(lease.skew);
        if now < lease.until && lease.left >= charge.cost {
            let unused = State { used: lease.state.used.saturating_sub(lease.left), ..lease.state };
            lease.left -= charge.cost;
            let soon = lease.left < lease.size / 4 && !lease.renewing;
            lease.renewing |= soon;
            let said = charge.quota.check(Seen::State(unused), at, charge.cost);
            // What was taken is ours, whatever else the limit says by now.
            let said = if said.allowed { said } else { Verdict::SILENT };
            return Served::Decided(said.by_store(), soon);
        }
        let said = charge.quota.check(Seen::State(lease.state), at, charge.cost);
        if !said.allowed && now < lease.asked.saturating_add(PATIENCE) {
            return Served::Decided(said.by_store(), false);
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
        // What is left of the block before is as good: it has its own time, which is shorter.
        let kept = shard.get(&key).filter(|lease| asked < lease.until);
        let (left, until) = match kept {
            Some(lease) if lease.left > 0 => (lease.left, lease.until),
            _ => (0, Micros::MAX),
        };
        let lease = Lease {
            left: left + taken,
            size: size.max(1),
            asked,
            until: until.min(asked + end),
            state,
            counted: at,
            skew,
            renewing: false,
            quota: quota.clone(),
            key: name.into(),
        };
        shard.insert(key, lease);
    }

    /// A renewal did not come.
    pub(super) fn not_renewed(&self, key: u64) {
        if let Some(lease) = self.shard(key).lock().get_mut(&key) {
            lease.renewing = false;
        }
    }

    /// A request that was served is turned away by another limit.
    pub(super) fn put_back(&self, key: u64, cost: u32) {
        if let Some(lease) = self.shard(key).lock().get_mut(&key) {
            lease.left += cost;
        }
    }

    /// Takes out the leases that are over, or all of them: what is left of them goes back.
    pub(super) fn end(&self, now: Option<Micros>) -> Vec<Lease> {
        let over = |lease: &Lease| now.is_none_or(|now| lease.until <= now && !lease.renewing);
        let shards = self.0.iter();
        shards
            .flat_map(|shard| {
                let mut shard = shard.lock();
                shard.extract_if(|_, lease| over(lease)).map(|(_, lease)| lease).collect::<Vec<_>>()
            })
            .collect()
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
            left: 0,
            size: FIRST,
            asked: 0,
            until: 0,
            state: State { kind: quota.kind(), ..State::default() },
            counted: 0,
            skew: 0,
            renewing: false,
            quota: quota.clone(),
            key: Box::default(),
        }
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
