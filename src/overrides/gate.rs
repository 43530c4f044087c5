//! Whether operators' acts are accepted. They are not during a handover: what a gateway answers 200
//! must be in its successor, and what a successor answers 200 must not go with it if it fails.

use std::sync::Arc;
use tokio::sync::{OwnedRwLockWriteGuard, RwLock, RwLockReadGuard};

/// Acts share it; a handover has it alone.
#[derive(Debug, Default)]
pub struct Gate(Arc<RwLock<()>>);

/// Held by an act as long as it is under way.
#[derive(Debug)]
pub struct Permit<'a>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// Acts are refused until this is dropped.
#[derive(Debug)]
pub struct Closed(#[expect(dead_code, reason = "held")] OwnedRwLockWriteGuard<()>);

impl Gate {
    /// Admits an act, unless a handover is under way or waits for other acts to finish.
    pub fn admit(&self) -> Option<Permit<'_>> {
        self.0.try_read().ok().map(Permit)
    }

    /// Whether acts are refused.
    pub fn is_closed(&self) -> bool {
        self.admit().is_none()
    }

    /// Refuses acts from now on, and returns when those under way are finished.
    pub async fn close(&self) -> Closed {
        Closed(Arc::clone(&self.0).write_owned().await)
    }

    /// The same where no act has been admitted yet.
    pub fn begin_closed(&self) -> Option<Closed> {
        Arc::clone(&self.0).try_write_owned().ok().map(Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn acts_are_refused_as_soon_as_a_handover_waits_and_until_it_is_over() {
        let gate = Gate::default();
        let under_way = gate.admit().unwrap();
        let mut closing = pin!(gate.close());
        let mut context = Context::from_waker(Waker::noop());
        assert!(closing.as_mut().poll(&mut context).is_pending(), "an act is under way");
        assert!(gate.admit().is_none(), "no other one begins");
        drop(under_way);
        let Poll::Ready(closed) = closing.as_mut().poll(&mut context) else { panic!("it closes") };
        assert!(gate.is_closed());
        drop(closed);
        assert!(!gate.is_closed());
    }

    #[test]
    fn a_handover_that_is_given_up_while_it_waits_leaves_the_gate_open() {
        let gate = Gate::default();
        let under_way = gate.admit().unwrap();
        {
            let mut closing = pin!(gate.close());
            assert!(closing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        drop(under_way);
        assert!(gate.admit().is_some());
    }
}
