//! How long an answer is waited for, while a body may still be on its way.
//!
//! Whoever holds it up has its own time: the backend `limit` for its next move, the caller `body` for
//! the next piece of the body worth the name. A caller who sends a byte now and then is not moving.

use crate::deadline::{Deadline, Elapsed, ticks};
use crate::upstream::upload::Upload;
use std::task::{Context, Poll};
use std::time::Duration;

/// Times of one request.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// What the backend has for the head of its answer, from the last piece it took.
    pub limit: Duration,
    /// It is less than what is configured: the caller is in a hurry.
    pub hurried: bool,
    /// What the caller has for the next piece of the body.
    pub body: Duration,
    /// How much such a piece is at least, unless the body ends before.
    pub worth: u64,
    /// What the backend has for the next piece of its answer's body.
    pub silence: Duration,
}

/// The wait for an answer.
#[derive(Debug)]
pub struct Patience {
    times: Times,
    /// It is the caller who is waited for, since this tick, and had sent so much before.
    waiting: bool,
    since: u64,
    sent: u64,
}

impl Patience {
    /// The wait begins; it is told by this deadline.
    pub fn new(deadline: &Deadline, times: Times) -> Self {
        deadline.set(times.limit);
        Self { times, waiting: false, since: 0, sent: 0 }
    }

    /// Looks at who is waited for now; whether something has `moved` tells how long the backend has.
    /// Ready when whoever it is has taken too long: `true` if it is the caller.
    pub fn poll(
        &mut self,
        deadline: &Deadline,
        upload: Option<&Upload>,
        moved: bool,
        cx: &mut Context<'_>,
    ) -> Poll<bool> {
        match upload.filter(|upload| upload.is_waiting()) {
            Some(upload) => {
                let began = !std::mem::replace(&mut self.waiting, true);
                if began || upload.sent() >= self.sent.saturating_add(self.times.worth) {
                    (self.since, self.sent) = (deadline.tick(), upload.sent());
                    deadline.set_from(self.since, ticks(self.times.body));
                }
            }
            None if moved || self.waiting => {
                self.waiting = false;
                deadline.set(self.times.limit);
            }
            None => {}
        }
        deadline.poll_elapsed(cx).map(|Elapsed| self.waiting)
    }
}
