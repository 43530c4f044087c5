//! Locks and counters of what many threads share. A build with `--cfg shuttle` takes shuttle's,
//! which runs the same code under every order of events that it can think of (`make shuttle`).

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::MutexGuard;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// shuttle's lock with parking_lot's way of taking it.
#[cfg(shuttle)]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

#[cfg(shuttle)]
impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("nobody panics with the lock")
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}
