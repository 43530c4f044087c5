//! Where counters live, and how one request's layers are decided together.
//!
//! ```text
//! Charge { limit, subject, cost }  one layer's claim on one request, in the order ip … global
//!     │  all of a request's charges at once
//! Store::charge_all                writes each one's verdict into it; takes only if all allow
//!     │
//! Decision { rejected_by, holds }
//! ```

mod key;
mod memory;
mod redis;

use crate::clock::Micros;
use crate::config::model::OnFailure;
use crate::limit::{Quota, Verdict};
use std::time::Duration;
use tokio::sync::oneshot;

pub use self::redis::{Redis, on_worker};
pub use key::{Part, Subject};
pub use memory::{Memory, Registry};

/// A limit's number for as long as the process lives. It belongs to the limit's name, so that an
/// edited rate keeps its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(u32);

/// One layer's claim on one request, and the answer to it.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Whose counters.
    pub limit: LimitId,
    /// What the caller's plan, or the limit itself, allows.
    pub quota: &'a Quota,
    /// Which of the limit's counters.
    pub subject: Subject<'a>,
    /// Tokens that must be there.
    pub cost: u32,
    /// Of these, only so many are taken at admission; the others are charged as they are used.
    pub up_front: Option<u32>,
    /// A shadow limit counts what the enforcing limits admit, and never rejects.
    pub shadow: bool,
    /// The cost is reserved: what it comes to is known later, and then settled.
    pub settles: bool,
    /// A shared store's blocks of allowance are used for it.
    pub leased: bool,
    /// Which part of a limit that a shared store has split.
    pub shard: Option<u16>,
    /// What is said while a shared store is away.
    pub on_failure: OnFailure,
    /// The quota is not the limit's own: it was granted to this caller, until then.
    pub granted: Option<Micros>,
    /// What the limit says; the store writes it.
    pub verdict: Verdict,
}

impl<'a> Charge<'a> {
    /// An enforcing limit's claim of one token.
    #[inline]
    pub fn new(limit: LimitId, quota: &'a Quota, subject: Subject<'a>) -> Self {
        Self {
            limit,
            quota,
            subject,
            cost: 1,
            up_front: None,
            shadow: false,
            settles: false,
            leased: false,
            shard: None,
            on_failure: OnFailure::Local,
            granted: None,
            verdict: Verdict::NONE,
        }
    }
}

impl Charge<'_> {
    /// Tokens that are taken at admission.
    fn taken(&self) -> u32 {
        self.up_front.map_or(self.cost, |up_front| up_front.min(self.cost))
    }
}

/// What all limits together say to one request.
#[derive(Debug, Default)]
pub struct Decision {
    /// The first charge that rejects; `None` admits the request.
    pub rejected_by: Option<usize>,
    /// What the request must give back or settle: places in flight, places in queues while it
    /// waits, reserved costs.
    pub holds: Vec<Hold>,
}

/// Something an admitted request has that it must give back, or settle.
#[derive(Clone, Debug)]
pub struct Hold {
    /// Which of the charges it is.
    pub charge: usize,
    limit: LimitId,
    key: u64,
    quota: Quota,
    /// What the limit said to it: when, how much, and what was used then.
    admitted: Verdict,
    /// Counted among newcomers beyond the cap.
    overflow: bool,
    /// The quota was granted to this caller: until then it is in force, whatever the limit says.
    granted: Option<Micros>,
    /// What the limit does while a shared store is away.
    on_failure: OnFailure,
    /// Where it is, if it is in a shared store.
    shared: Option<InStore>,
}

/// A counter in a shared store.
#[derive(Clone, Debug)]
struct InStore {
    /// What it is called.
    key: Box<[u8]>,
    /// How far the store's clock is from ours.
    skew: i64,
    /// What the request is called there while it is in flight.
    flight: u64,
}

impl Hold {
    /// Whether it was admitted by what is granted to its caller, still.
    fn is_granted(&self, now: Micros) -> bool {
        self.granted.is_some_and(|until| until > now)
    }

    /// Whether it is a place in a queue, which is used up when its turn comes.
    pub fn is_queue(&self) -> bool {
        self.quota.is_queue()
    }

    /// Whether it is a place among the requests in flight.
    pub fn is_concurrency(&self) -> bool {
        self.quota.is_concurrency()
    }

    /// What was charged last.
    pub fn charged(&self) -> u32 {
        self.admitted.cost
    }

    /// The most that the limit can hold.
    pub fn capacity(&self) -> u32 {
        self.quota.capacity()
    }
}

/// Why no more is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMore {
    /// The limit is used up, as it says.
    Over(Verdict),
    /// A shared store is away, and the limit does not go on without it.
    Away,
}

impl NoMore {
    /// What the limit said, if it was asked.
    pub fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Over(verdict) => Some(verdict),
            Self::Away => None,
        }
    }
}

/// What comes of settling a cost.
#[derive(Debug, Default)]
pub struct Settled {
    /// What the limit holds then, unless that makes no difference any more.
    pub verdict: Option<Verdict>,
    /// A shared store is told in the background: this comes to an end when it has been, or cannot
    /// be.
    pub told: Option<oneshot::Receiver<()>>,
}

/// How long the caller must wait so that every limit that rejects now would let them pass.
pub fn retry_after(charges: &[Charge<'_>]) -> Micros {
    let enforcing = charges.iter().filter(|charge| !charge.shadow);
    enforcing.map(|charge| charge.verdict.retry_after()).max().unwrap_or(0)
}

/// How long an admitted request waits for its turn: the longest any limit asks for.
pub fn delay(charges: &[Charge<'_>]) -> Micros {
    let enforcing = charges.iter().filter(|charge| !charge.shadow);
    enforcing.map(|charge| charge.verdict.delay()).max().unwrap_or(0)
}

/// Why no decision could be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A shared store is away, and a limit does not want to go on without it.
    #[error("the store is away")]
    Away,
}

/// The stores there are.
#[derive(Debug)]
pub enum Store {
    /// Counters in this process.
    Memory(Memory),
    /// Counters that a fleet shares.
    Redis(Redis),
}

impl Store {
    /// Decides one request's charges: all are charged, or none is. Never waits for the memory
    /// store; a shared store takes one round trip.
    pub async fn charge_all(
        &self,
        charges: &mut [Charge<'_>],
        now: Micros,
    ) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(memory) => Ok(memory.charge_all(charges, now)),
            // On the heap: the memory store's decisions need not carry its state around.
            Self::Redis(redis) => Box::pin(redis.charge_all(charges, now)).await,
        }
    }

    /// Whether it is known already that a request's charges would be rejected. Nothing is charged.
    /// The memory store knows everything; of a shared store it is known what it rejected lately.
    pub fn foresee(&self, charges: &mut [Charge<'_>], now: Micros) -> Decision {
        match self {
            Self::Memory(memory) => memory.foresee(charges, now),
            Self::Redis(redis) => redis.foresee(charges, now),
        }
    }

    /// What the limits say to a caller as it is; nothing is charged. Shadows speak like others.
    pub async fn peek(&self, charges: &mut [Charge<'_>], now: Micros) -> Result<(), StoreError> {
        match self {
            Self::Memory(memory) => {
                drop(memory.foresee(charges, now));
                Ok(())
            }
            Self::Redis(redis) => redis.peek(charges, now).await,
        }
    }

    /// Forgets what a caller has used of a limit. What is in flight is not used, and stays.
    pub async fn reset(&self, charge: &Charge<'_>, now: Micros) -> Result<(), StoreError> {
        match self {
            _ if charge.quota.is_concurrency() => Ok(()),
            Self::Memory(memory) => {
                memory.reset(charge);
                Ok(())
            }
            Self::Redis(redis) => redis.reset(charge, now).await,
        }
    }

    /// Counters in this process: the store's own, or those that need not be shared.
    pub fn local(&self) -> &Memory {
        match self {
            Self::Memory(memory) => memory,
            Self::Redis(redis) => redis.local(),
        }
    }

    /// How long a shared store may take.
    pub fn deadline(&self) -> Duration {
        match self {
            Self::Memory(_) => Duration::ZERO,
            Self::Redis(redis) => redis.deadline(),
        }
    }

    /// Whether others have a part in it.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// Charges more to an admitted request, if there is so much. From then on the hold stands for
    /// this charge: what was charged before it is final. Never waits for the memory store.
    pub async fn extend(&self, hold: &mut Hold, more: u32, now: Micros) -> Result<(), NoMore> {
        match self {
            Self::Redis(redis) if hold.shared.is_some() => {
                Box::pin(redis.extend(hold, more, now)).await
            }
            _ => self.local().extend(hold, more, now),
        }
    }

    /// Gives a charge back that was taken for nothing: no backend was reached.
    pub fn refund(&self, charge: &Charge<'_>, now: Micros) -> Settled {
        match self {
            Self::Redis(redis) if charge.verdict.shared => redis.refund(charge, now),
            _ => Settled { verdict: self.local().refund(charge, now), told: None },
        }
    }

    /// Counts a request by what it came to, rather than by what was reserved for it.
    pub fn settle(&self, hold: &Hold, actual: u32, now: Micros) -> Settled {
        match self {
            Self::Redis(redis) if hold.shared.is_some() => redis.settle(hold, actual, now),
            _ => Settled { verdict: self.local().settle(hold, actual, now), told: None },
        }
    }

    /// Takes back what a request held. Never waits; a shared store is told in the background.
    pub fn release(&self, hold: &Hold, now: Micros) {
        match self {
            Self::Redis(redis) if hold.shared.is_some() => redis.release(hold),
            _ => self.local().release(hold, now),
        }
    }

    /// The limit's number; the same for the same name as long as the process lives.
    pub fn limit_id(&self, name: &str) -> LimitId {
        match self {
            Self::Memory(memory) => memory.limit_id(name),
            Self::Redis(redis) => redis.limit_id(name),
        }
    }

    /// Changes how many callers are remembered.
    pub fn set_max_keys(&self, max_keys: usize) {
        self.local().set_max_keys(max_keys);
    }

    /// How many callers may be remembered here.
    pub fn max_keys(&self) -> usize {
        self.local().max_keys()
    }

    /// How many callers are remembered here.
    pub fn keys(&self) -> usize {
        self.local().keys()
    }

    /// Lets go of callers who are whole again, a part of them at a time.
    pub fn sweep(&self, now: Micros) {
        match self {
            Self::Memory(memory) => memory.sweep(16, now),
            Self::Redis(redis) => redis.sweep(now),
        }
    }

    /// Tells the store which limits there are from now on.
    pub fn adopt(&self, registry: Registry) {
        match self {
            Self::Memory(memory) => memory.adopt(registry),
            Self::Redis(redis) => redis.adopt(registry),
        }
    }

    /// Called by each worker as it begins.
    pub fn warm(&self) {
        if let Self::Redis(redis) = self {
            redis.warm();
        }
    }

    /// Gives back what this process holds of a shared store's allowance: it is about to end.
    pub fn close(&self) {
        if let Self::Redis(redis) = self {
            redis.close();
        }
    }
}
