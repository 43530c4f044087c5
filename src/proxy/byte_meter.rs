//! Limits that count the bytes of a request, of an answer, or of a tunnel: each piece is charged before it
//! is forwarded, so that a client owes one piece at most.

use super::settle::{End, PIECE, units};
use crate::gateway::Gateway;
use crate::limit::Verdict;
use crate::snapshot::Limit;
use crate::store::{Hold, NoMore};
use crate::upstream::upload::{OverLimit, Toll};
use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Bytes in one direction, and the limits that count them.
pub(super) struct ByteMeter {
    gateway: Arc<Gateway>,
    /// How many bytes are to come, if that was announced.
    announced: Option<u64>,
    state: RefCell<State>,
}

struct State {
    limits: Vec<Metered>,
    /// Bytes that passed.
    passed: u64,
    /// More is being charged.
    charging: Option<Charging>,
    /// The limit that refused to hold more, among those that spoke, and what it said.
    refused: Option<(usize, Option<Verdict>)>,
}

type Charging = Pin<Box<dyn Future<Output = Result<Vec<(usize, Hold)>, Refused>>>>;

/// Which limit refused, and what it said; nothing if the store is away.
struct Refused(usize, Option<Verdict>);

/// A limit that counts bytes.
#[derive(Debug)]
pub(super) struct Metered {
    /// What was charged last.
    hold: Hold,
    limit: Arc<Limit>,
    /// Which of the limits that spoke.
    said: usize,
    /// So many bytes cost a token.
    unit: u64,
    /// Tokens that were charged before the last charge.
    paid: u32,
    /// A shadow limit that would hold no more: it counts no more of this body.
    over: bool,
}

/// What a limit has counted when all is over.
pub(super) struct Passed {
    pub(super) hold: Hold,
    pub(super) limit: Arc<Limit>,
    pub(super) said: usize,
    /// What the last charge came to, and all of them together.
    pub(super) last: u32,
    pub(super) all: u32,
}

/// What one limit lacks for the next bytes.
struct Short {
    index: usize,
    hold: Hold,
    /// Tokens for a whole piece, and for no more than these bytes.
    piece: u32,
    least: u32,
}

impl Metered {
    pub(super) fn new(hold: Hold, limit: Arc<Limit>, said: usize, unit: u64) -> Self {
        Self { hold, limit, said, unit, paid: 0, over: false }
    }

    fn charged(&self) -> u32 {
        self.paid.saturating_add(self.hold.charged())
    }

    /// Whether the limit can ever hold so many bytes.
    fn can_hold(&self, bytes: u64) -> bool {
        self.limit.shadow || units(bytes, self.unit) <= self.hold.capacity()
    }
}

impl ByteMeter {
    pub(super) fn new(
        gateway: &Arc<Gateway>,
        limits: Vec<Metered>,
        announced: Option<u64>,
    ) -> Self {
        let state = State { limits, passed: 0, charging: None, refused: None };
        Self { gateway: Arc::clone(gateway), announced, state: RefCell::new(state) }
    }

    /// Counts bytes that are charged when all is over.
    pub(super) fn note(&self, bytes: u64) {
        self.state.borrow_mut().passed += bytes;
    }

    /// Whether every limit can hold what was announced. What no limit can ever hold would end in the
    /// middle, and take all that there is with it.
    pub(super) fn can_hold_what_was_announced(&self) -> bool {
        let state = self.state.borrow();
        self.announced.is_none_or(|bytes| state.limits.iter().all(|limit| limit.can_hold(bytes)))
    }

    /// The limit that refused to hold more, among those that spoke, and what it said; nothing if the
    /// store is away.
    pub(super) fn refused(&self) -> Option<(usize, Option<Verdict>)> {
        self.state.borrow().refused
    }

    /// What each limit has counted. A client that left gets nothing back.
    pub(super) fn end(&self, end: End) -> Vec<Passed> {
        let mut state = self.state.borrow_mut();
        let passed = state.passed;
        let limits = std::mem::take(&mut state.limits).into_iter();
        limits
            .map(|metered| {
                let counted =
                    if metered.over { metered.charged() } else { units(passed, metered.unit) };
                let all = match end {
                    End::Unreached => 0,
                    End::Left => counted.max(metered.charged()),
                    End::Refused | End::NoAnswer | End::Failed | End::Whole => counted,
                };
                let last = all.saturating_sub(metered.paid);
                let Metered { hold, limit, said, .. } = metered;
                Passed { hold, limit, said, last, all }
            })
            .collect()
    }
}

impl State {
    /// The limits that hold too little for so many bytes more.
    fn short(&self, bytes: u64, announced: Option<u64>) -> Vec<Short> {
        let least = self.passed + bytes;
        let piece = (self.passed + PIECE).min(announced.unwrap_or(u64::MAX)).max(least);
        let limits = self.limits.iter().enumerate().filter(|(_, metered)| !metered.over);
        let short = limits.filter_map(|(index, metered)| {
            let charged = metered.charged();
            let lacks = |bytes| units(bytes, metered.unit).saturating_sub(charged);
            let hold = || metered.hold.clone();
            (lacks(least) > 0).then(|| Short {
                index,
                hold: hold(),
                piece: lacks(piece),
                least: lacks(least),
            })
        });
        short.collect()
    }

    fn is_shadow(&self, index: usize) -> bool {
        self.limits.get(index).is_some_and(|metered| metered.limit.shadow)
    }

    fn charged(&mut self, holds: Vec<(usize, Hold)>) {
        for (index, hold) in holds {
            if let Some(metered) = self.limits.get_mut(index) {
                metered.paid = metered.charged();
                metered.hold = hold;
            }
        }
    }
}

impl Toll for ByteMeter {
    fn poll_pass(&self, bytes: u64, cx: &mut Context<'_>) -> Poll<Result<(), OverLimit>> {
        let state = &mut *self.state.borrow_mut();
        loop {
            if let Some(charging) = &mut state.charging {
                let outcome = ready!(charging.as_mut().poll(cx));
                state.charging = None;
                match outcome {
                    Ok(holds) => state.charged(holds),
                    // What a shadow limit would refuse is not charged to it.
                    Err(Refused(index, _)) if state.is_shadow(index) => {
                        state.limits[index].over = true;
                    }
                    Err(Refused(index, said)) => {
                        state.refused = state.limits.get(index).map(|limit| (limit.said, said));
                        return Poll::Ready(Err(OverLimit));
                    }
                }
            }
            let short = state.short(bytes, self.announced);
            if short.is_empty() {
                state.passed += bytes;
                return Poll::Ready(Ok(()));
            }
            state.charging = Some(Box::pin(charge(Arc::clone(&self.gateway), short)));
        }
    }
}

/// Charges every limit that lacks something, or none.
async fn charge(gateway: Arc<Gateway>, short: Vec<Short>) -> Result<Vec<(usize, Hold)>, Refused> {
    let mut charged: Vec<(usize, Hold)> = Vec::with_capacity(short.len());
    for Short { index, mut hold, piece, least } in short {
        let now = gateway.clock.now();
        let mut outcome = gateway.store.extend(&mut hold, piece, now).await;
        if let Err(NoMore::Over(_)) = outcome
            && least < piece
        {
            outcome = gateway.store.extend(&mut hold, least, now).await;
        }
        if let Err(no_more) = outcome {
            for (_, hold) in &charged {
                drop(gateway.store.settle(hold, 0, now));
            }
            return Err(Refused(index, no_more.verdict()));
        }
        charged.push((index, hold));
    }
    Ok(charged)
}

impl std::fmt::Debug for ByteMeter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ByteMeter({} passed)", self.state.borrow().passed)
    }
}
