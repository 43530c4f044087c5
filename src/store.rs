//! Where counters live, and how one request's layers are decided together.
//!
//! ```text
//! Charge { limit, subject, cost }  one layer's claim on one request, in the order ip … global
//!     │  all of a request's charges at once
//! Store::charge_all                computes every verdict first, writes only if all enforcing allow
//!     │
//! Decision { verdicts, rejected_by }
//! ```

mod key;
mod memory;

use crate::clock::Micros;
use crate::limit::{Quota, State, Verdict};
use smallvec::SmallVec;

pub use key::{Part, Subject};
pub use memory::{Memory, Registry};

/// A limit's number for as long as the process lives. It belongs to the limit's name, so that an
/// edited rate keeps its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(u32);

/// One layer's claim on one request.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Whose counters.
    pub limit: LimitId,
    /// What the caller's plan, or the limit itself, allows.
    pub quota: &'a Quota,
    /// Which of the limit's counters.
    pub subject: Subject<'a>,
    /// Tokens.
    pub cost: u32,
    /// A shadow limit counts what the enforcing limits admit, and never rejects.
    pub shadow: bool,
}

/// What all limits together say to one request.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// One for each charge, in their order.
    pub verdicts: SmallVec<[Verdict; 4]>,
    /// The first charge that rejects; `None` admits the request.
    pub rejected_by: Option<usize>,
    /// What the request must give back: places in flight, and in queues while it waits.
    pub holds: SmallVec<[Hold; 1]>,
}

/// Something an admitted request has that it must give back.
#[derive(Clone, Debug)]
pub struct Hold {
    limit: LimitId,
    key: u128,
    quota: Quota,
    cost: u32,
    /// The state that this admission made: whether somebody came after it.
    after: State,
    /// Counted among newcomers beyond the cap.
    overflow: bool,
}

impl Hold {
    /// Whether it is a place in a queue, which is used up when its turn comes.
    pub fn is_queue(&self) -> bool {
        self.quota.is_queue()
    }
}

impl Decision {
    /// How long the caller must wait so that every limit that rejects now would let them pass.
    pub fn retry_after(&self, charges: &[Charge<'_>]) -> Micros {
        let rejecting = charges.iter().zip(&self.verdicts).filter(|(charge, _)| !charge.shadow);
        rejecting.map(|(_, verdict)| verdict.retry_after).max().unwrap_or(0)
    }

    /// How long an admitted request waits for its turn: the longest any limit asks for.
    pub fn delay(&self, charges: &[Charge<'_>]) -> Micros {
        let enforcing = charges.iter().zip(&self.verdicts).filter(|(charge, _)| !charge.shadow);
        enforcing.map(|(_, verdict)| verdict.delay).max().unwrap_or(0)
    }
}

/// Why no decision could be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {}

/// The stores there are.
#[derive(Debug)]
pub enum Store {
    /// Counters in this process.
    Memory(Memory),
}

impl Store {
    /// Decides one request's charges: all are charged, or none is. Never waits for the memory
    /// store; a shared store takes one round trip.
    #[expect(clippy::unused_async, reason = "a shared store awaits here")]
    pub async fn charge_all(
        &self,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(memory) => Ok(memory.charge_all(charges, now)),
        }
    }

    /// Takes back what a request held. Never waits; a shared store is told in the background.
    pub fn release(&self, hold: &Hold, now: Micros) {
        match self {
            Self::Memory(memory) => memory.release(hold, now),
        }
    }

    /// The limit's number; the same for the same name as long as the process lives.
    pub fn limit_id(&self, name: &str) -> LimitId {
        match self {
            Self::Memory(memory) => memory.limit_id(name),
        }
    }

    /// Changes how many callers are remembered.
    pub fn set_max_keys(&self, max_keys: usize) {
        match self {
            Self::Memory(memory) => memory.set_max_keys(max_keys),
        }
    }

    /// How many callers are remembered here.
    pub fn keys(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.keys(),
        }
    }

    /// Lets go of callers who are whole again, a part of them at a time.
    pub fn sweep(&self, now: Micros) {
        match self {
            Self::Memory(memory) => memory.sweep(16, now),
        }
    }

    /// Tells the store which limits there are from now on.
    pub fn adopt(&self, registry: Registry) {
        match self {
            Self::Memory(memory) => memory.adopt(registry),
        }
    }
}
