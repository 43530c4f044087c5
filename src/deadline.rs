//! Coarse deadlines of one worker.
//!
//! A timer per request costs more than most of what a request does here, and time-outs of seconds
//! need no microseconds. So each worker keeps its deadlines in a slab and looks through it every
//! [`TICK`]: setting one is a store, clearing it is another. A deadline never fires early, and at
//! most two ticks late.

use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How often deadlines are looked at.
pub const TICK: Duration = Duration::from_millis(50);

const NEVER: u64 = u64::MAX;

/// All deadlines of one worker.
#[derive(Debug, Default)]
pub struct Deadlines {
    slots: RefCell<Slab<Slot>>,
    /// Ticks since the worker began.
    tick: Cell<u64>,
}

#[derive(Debug)]
struct Slot {
    due: u64,
    waker: Option<Waker>,
}

/// One deadline; it is gone when dropped.
#[derive(Debug)]
pub struct Deadline {
    owner: Rc<Deadlines>,
    key: usize,
}

/// The time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl Deadlines {
    /// It is now this many ticks since the worker began: wakes those whose time is up. A worker
    /// that was held up may skip some.
    pub fn advance_to(&self, tick: u64) {
        let now = tick.max(self.tick.get());
        self.tick.set(now);
        self.wake(|slot| slot.due <= now);
    }

    /// Wakes everybody who holds a deadline, due or not: something else happened that they should
    /// look at.
    pub fn wake_all(&self) {
        self.wake(|_| true);
    }

    fn wake(&self, which: impl Fn(&Slot) -> bool) {
        let mut slots = self.slots.borrow_mut();
        for (_, slot) in slots.iter_mut().filter(|(_, slot)| which(slot)) {
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        }
    }

    /// Ticks since the worker began; for ages that may be a tick off.
    pub fn tick(&self) -> u64 {
        self.tick.get()
    }

    /// A deadline that is not set yet.
    pub fn register(self: &Rc<Self>) -> Deadline {
        let key = self.slots.borrow_mut().insert(Slot { due: NEVER, waker: None });
        Deadline { owner: Rc::clone(self), key }
    }

    /// Runs a future for at most about `limit`.
    pub async fn within<F: Future>(
        self: &Rc<Self>,
        limit: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        let deadline = self.register();
        deadline.set(limit);
        deadline.guard(future).await
    }
}

impl Deadline {
    /// Due in `after` from now.
    pub fn set(&self, after: Duration) {
        self.set_from(self.owner.tick.get(), ticks(after));
    }

    /// Due `after` ticks from an earlier tick.
    pub fn set_from(&self, since: u64, after: u64) {
        // One more: that tick had begun already.
        self.set_due(since.saturating_add(after).saturating_add(1));
    }

    /// Ticks since the worker began.
    pub fn tick(&self) -> u64 {
        self.owner.tick()
    }

    /// Not due at all.
    pub fn clear(&self) {
        self.set_due(NEVER);
    }

    fn set_due(&self, due: u64) {
        self.owner.slots.borrow_mut()[self.key].due = due;
    }

    /// Ready when the time is up; otherwise the task is woken when it is.
    pub fn poll_elapsed(&self, cx: &mut Context<'_>) -> Poll<Elapsed> {
        let slot = &mut self.owner.slots.borrow_mut()[self.key];
        if slot.due <= self.owner.tick.get() {
            return Poll::Ready(Elapsed);
        }
        if !slot.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            slot.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Runs a future until it is done or the time is up, whatever [`set`](Self::set) makes of the
    /// time meanwhile.
    pub async fn guard<F: Future>(&self, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll_elapsed(cx).map(Err),
        })
        .await
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.owner.slots.borrow_mut().remove(self.key);
    }
}

/// A duration in ticks, rounded up.
pub fn ticks(duration: Duration) -> u64 {
    const NANOS: u64 = TICK.as_nanos() as u64;
    const PER_SECOND: u64 = 1_000_000_000 / NANOS;
    let of_seconds = duration.as_secs().saturating_mul(PER_SECOND).min(NEVER / 2);
    of_seconds + u64::from(duration.subsec_nanos()).div_ceil(NANOS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(deadline: &Deadline) -> bool {
        deadline.poll_elapsed(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_deadline_never_fires_early_and_at_most_two_ticks_late() {
        let deadlines = Rc::new(Deadlines::default());
        let deadline = deadlines.register();
        deadline.set(TICK * 3);
        let fired = (1..10).find(|_| {
            deadlines.advance_to(deadlines.tick() + 1);
            poll(&deadline)
        });
        assert_eq!(fired, Some(4));
    }

    #[test]
    fn ticks_are_rounded_up() {
        let cases = [(0, 0), (1, 1), (50, 1), (51, 2), (999, 20), (1000, 20), (1001, 21)];
        for (millis, expected) in cases {
            assert_eq!(ticks(Duration::from_millis(millis)), expected, "{millis} ms");
        }
        assert!(ticks(Duration::MAX) > u64::MAX / 4);
    }

    #[test]
    fn a_deadline_can_be_put_off_and_taken_back() {
        let deadlines = Rc::new(Deadlines::default());
        let deadline = deadlines.register();
        deadline.set(TICK);
        deadlines.advance_to(deadlines.tick() + 1);
        deadline.set(TICK);
        deadlines.advance_to(deadlines.tick() + 1);
        assert!(!poll(&deadline));
        deadline.clear();
        deadlines.advance_to(100);
        assert!(!poll(&deadline));
    }

    #[tokio::test]
    async fn a_future_that_takes_too_long_is_given_up() {
        let deadlines = Rc::new(Deadlines::default());
        let never = deadlines.within(TICK, std::future::pending::<()>());
        let ticking = async {
            loop {
                deadlines.advance_to(deadlines.tick() + 1);
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            outcome = never => assert_eq!(outcome, Err(Elapsed)),
            () = ticking => unreachable!(),
        }
        assert!(deadlines.slots.borrow().is_empty());
    }
}
