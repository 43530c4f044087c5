//! What is done when there is more to do than can be done.
//!
//! ```text
//! request ─► process: pressure (late, short of memory), max_in_flight ─► upstream: places, a queue
//!                          │                                                  │
//!                          └──────── refused: sheddable first, critical last ◄┘
//! ```
//!
//! Both come before the limits are asked, because a request that is refused charges nobody. The
//! process comes first: it is the cheapest to ask, and what it refuses costs no more than its head.
//! Requests that find no place at their upstream and would be rejected by a limit of their caller's
//! own hear of that instead, and wait for nothing.

pub mod adaptive;
pub mod gate;
pub mod memory;
pub mod pressure;

#[cfg(test)]
mod simulated;

use crate::config::model::Priority;

/// Why a request is refused that could be served at another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// As many are under way in this process as may be.
    InFlight,
    /// The worker does not keep up.
    Lag,
    /// The process nears the end of its memory.
    Memory,
    /// The upstream has as many as it can take.
    Upstream,
}

impl Shed {
    /// Each with what metrics call it.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::InFlight, "in_flight"),
        (Self::Lag, "lag"),
        (Self::Memory, "memory"),
        (Self::Upstream, "upstream"),
    ];

    /// What is said of it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::InFlight => "too many requests are under way",
            Self::Lag => "the gateway does not keep up",
            Self::Memory => "the gateway is short of memory",
            Self::Upstream => "the upstream has no place",
        }
    }
}

/// After how many seconds whoever was refused may come back: between this and twice as much.
pub fn come_back(priority: Priority) -> u64 {
    match priority {
        Priority::Critical => 1,
        Priority::Normal => 2,
        Priority::Sheddable => 5,
    }
}
