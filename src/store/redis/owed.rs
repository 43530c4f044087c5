//! What was admitted while the store was away, to be charged when it is back.
//!
//! It is counted by the limit's own arithmetic, so what would have come back meanwhile is not
//! charged; and within the limit's own cap, so an outage leaves nobody in debt.

use crate::clock::Micros;
use crate::limit::{Quota, State};
use parking_lot::Mutex;
use std::collections::HashMap;

/// How many callers may be remembered: beyond that, what they used meanwhile is forgiven.
const MOST: usize = 100_000;

/// One caller's part.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) quota: Quota,
    pub(super) state: State,
}

#[derive(Debug, Default)]
pub(super) struct Owed(Mutex<HashMap<Box<[u8]>, Due>>);

impl Owed {
    pub(super) fn add(&self, key: &[u8], quota: &Quota, cost: u32, now: Micros) {
        let mut all = self.0.lock();
        if let Some(due) = all.get_mut(key) {
            due.state = quota.owe(due.state, now, cost);
            due.quota = quota.clone();
        } else if all.len() < MOST {
            let state = quota.owe(State { kind: quota.kind(), ..State::default() }, now, cost);
            all.insert(key.into(), Due { quota: quota.clone(), state });
        }
    }

    pub(super) fn take(&self) -> HashMap<Box<[u8]>, Due> {
        std::mem::take(&mut *self.0.lock())
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
