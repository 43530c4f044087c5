//! What happens on a caller's connection, and since when: what its time-outs go by.

use super::leaving::STALLED;
use crate::config::model::Server;
use crate::deadline::{Deadline, Deadlines, ticks};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// How long a connection that was made right before the gateway stops has for its first request.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// How often it is seen whether a caller is still there, where nobody would hear of it.
const LOOK: Duration = Duration::from_secs(1);

/// What a connection is doing, and since when.
#[derive(Debug)]
pub struct Activity {
    deadlines: Rc<Deadlines>,
    phase: Cell<Phase>,
    since: Cell<u64>,
    /// Since when the caller has not taken what we write.
    stuck: Cell<Option<u64>>,
    /// Bytes of the next request came before this one's answer was out.
    ahead: Cell<bool>,
    /// The caller may still be sending a body that nobody reads.
    lingers: Cell<bool>,
    /// Requests under way.
    open: Cell<u32>,
    /// Many requests may be under way at once, each with its own beginning and end.
    multiplexed: Cell<bool>,
    /// Everything that was written before has been sent.
    clean: Cell<bool>,
    /// Since when the rest of a frame that holds a head is waited for, in HTTP/2.
    half_a_head: Cell<Option<u64>>,
    /// Pieces of answers that were sent since somebody asked, over HTTP/2.
    pieces: Cell<u32>,
    /// hyper does not read, because it has read ahead.
    unheard: Cell<bool>,
    /// The end of the connection may be the end of the answer.
    without_length: Cell<bool>,
    /// No request has begun yet.
    fresh: Cell<bool>,
    /// Too many frames that ask for nothing have come over HTTP/2.
    flooded: Cell<bool>,
    /// The request under way goes on when the client sends no more, in HTTP/1.1.
    outlives: Cell<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for the rest of a head, or for the very first byte.
    Head,
    /// A request is under way.
    Busy,
    /// Its answer is complete, but not all of it is out.
    Ending,
    /// Between two requests.
    Idle,
}

impl Activity {
    pub(super) fn new(deadlines: Rc<Deadlines>) -> Self {
        let since = Cell::new(deadlines.tick());
        Self {
            deadlines,
            phase: Cell::new(Phase::Head),
            since,
            stuck: Cell::new(None),
            ahead: Cell::new(false),
            lingers: Cell::new(false),
            open: Cell::new(0),
            multiplexed: Cell::new(false),
            clean: Cell::new(true),
            half_a_head: Cell::new(None),
            pieces: Cell::new(0),
            unheard: Cell::new(false),
            without_length: Cell::new(false),
            fresh: Cell::new(true),
            flooded: Cell::new(false),
            outlives: Cell::new(false),
        }
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(self.deadlines.tick());
    }

    /// A head has been read whole.
    pub fn request_began(&self) {
        self.ahead.set(false);
        self.unheard.set(false);
        self.fresh.set(false);
        self.outlives.set(false);
        self.open.set(self.open.get() + 1);
        self.enter(Phase::Busy);
    }

    /// The answer is complete.
    pub fn request_ended(&self) {
        self.open.set(self.open.get() - 1);
        if self.open.get() == 0 {
            self.enter(if self.multiplexed.get() { Phase::Idle } else { Phase::Ending });
        }
    }

    /// From now on many requests may be under way at once.
    pub(super) fn multiplex(&self) {
        self.multiplexed.set(true);
        self.enter(Phase::Idle);
    }

    /// Whether many requests may be under way at once: it is HTTP/2.
    pub fn is_multiplexed(&self) -> bool {
        self.multiplexed.get()
    }

    /// Whether a part of a head has come, and the rest has not. Nothing else can come before it.
    pub(super) fn half_a_head(&self, half: bool) {
        match self.half_a_head.get() {
            None if half => self.half_a_head.set(Some(self.deadlines.tick())),
            Some(_) if !half => self.half_a_head.set(None),
            _ => {}
        }
    }

    /// Whether something has been read ahead, so that nobody hears of the connection's end.
    pub(super) fn read_ahead(&self, ahead: bool) {
        self.unheard.set(ahead);
    }

    pub(super) fn has_read_ahead(&self) -> bool {
        self.unheard.get()
    }

    /// Whether the deadline is no time-out, but a reminder to see whether the caller is still there.
    pub(super) fn is_only_looked_at(&self) -> bool {
        self.phase.get() == Phase::Busy && self.unheard.get() && self.stuck.get().is_none()
    }

    /// A piece of an answer is sent.
    pub(super) fn piece(&self) {
        self.pieces.set(self.pieces.get().saturating_add(1));
    }

    /// How many pieces were sent since this was asked last.
    pub(super) fn take_pieces(&self) -> u32 {
        self.pieces.take()
    }

    /// Whether the request under way goes on when the client sends no more.
    pub(super) fn outlive(&self, outlives: bool) {
        self.outlives.set(outlives);
    }

    /// Whether the end of what the client sends ends its request as well. A client that closed its
    /// connection cannot be told from one that only sends no more, as long as nothing is written: where
    /// the request goes on in any case, it is taken for the latter.
    pub(super) fn ends_with_the_client(&self) -> bool {
        let busy = self.open.get() > 0 && !self.multiplexed.get();
        busy && !self.outlives.get()
    }

    /// Whether a request is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.open.get() > 0
    }

    /// Too many frames that ask for nothing have come.
    pub(super) fn flood(&self) {
        self.flooded.set(true);
    }

    /// Whether too many frames that ask for nothing have come.
    pub(super) fn is_flooded(&self) -> bool {
        self.flooded.get()
    }

    /// Whether the caller does not take what is written.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.get().is_some()
    }

    /// The time, in ticks of the worker.
    pub(super) fn tick(&self) -> u64 {
        self.deadlines.tick()
    }

    /// Since when nothing has been under way, nothing waits to be taken, and nothing is half here.
    pub(super) fn quiet_since(&self) -> Option<u64> {
        let taken = self.stuck.get().is_none() && self.half_a_head.get().is_none();
        let quiet = self.open.get() == 0 && taken;
        quiet.then(|| self.since.get())
    }

    /// Whether something else may be written before what comes next.
    pub(super) fn is_clean(&self) -> bool {
        self.clean.get()
    }

    /// Whether the end of the connection may look like the end of the answer.
    pub(super) fn answer_without_length(&self, without: bool) {
        self.without_length.set(without);
    }

    /// Whether the end of the connection looks like the end of the answer.
    pub(super) fn is_without_length(&self) -> bool {
        self.without_length.get()
    }

    /// Whether the caller may still be sending a body that nobody reads.
    pub fn linger(&self, lingers: bool) {
        self.lingers.set(lingers);
    }

    pub(super) fn lingers(&self) -> bool {
        self.lingers.get()
    }

    /// Whether the rest of a head, or a first byte, is waited for.
    pub(super) fn waits_for_a_head(&self) -> bool {
        self.phase.get() == Phase::Head
    }

    pub(super) fn bytes_read(&self) {
        if self.multiplexed.get() {
            return; // pings and the like are no requests
        }
        match self.phase.get() {
            Phase::Idle => self.enter(Phase::Head),
            Phase::Ending => self.ahead.set(true),
            Phase::Head | Phase::Busy => {}
        }
    }

    /// Whether a connection can be ended when the gateway stops, as far as nothing is under way on
    /// it. One that was made a moment ago is about to bring its first request.
    pub(super) fn may_end(&self) -> bool {
        !self.fresh.get() || self.deadlines.tick() - self.since.get() > ticks(FIRST_REQUEST)
    }

    pub(super) fn write_pending(&self) {
        self.clean.set(false);
        if self.stuck.get().is_none() {
            self.stuck.set(Some(self.deadlines.tick()));
        }
    }

    pub(super) fn bytes_written(&self) {
        self.stuck.set(None);
        self.clean.set(false);
    }

    /// What was begun has been written to its end.
    pub(super) fn cleared(&self) {
        self.clean.set(true);
    }

    pub(super) fn flushed(&self) {
        self.clean.set(true);
        self.stuck.set(None);
        if self.phase.get() == Phase::Ending {
            self.enter(if self.ahead.take() { Phase::Head } else { Phase::Idle });
        }
    }

    /// Sets the deadline to when the connection has been at it for too long.
    pub(super) fn arm(&self, deadline: &Deadline, server: &Server, draining: bool) {
        let stalled = || server.idle_timeout.min(STALLED);
        if draining && self.fresh.get() {
            return deadline.set_from(self.since.get(), ticks(FIRST_REQUEST));
        }
        if let Some(since) = self.half_a_head.get() {
            return deadline.set_from(since, ticks(server.header_timeout));
        }
        match (self.phase.get(), self.stuck.get()) {
            (Phase::Head, _) => deadline.set_from(self.since.get(), ticks(server.header_timeout)),
            (Phase::Idle, None) => deadline.set_from(self.since.get(), ticks(server.idle_timeout)),
            (Phase::Idle | Phase::Busy | Phase::Ending, Some(since)) => {
                deadline.set_from(since, ticks(stalled()));
            }
            // A stream that ends wakes nobody else: it is looked for.
            (Phase::Busy | Phase::Ending, None) if self.multiplexed.get() => {
                deadline.set(stalled());
            }
            // Whether the caller is still there: see `Watched`.
            (Phase::Busy, None) if self.unheard.get() => deadline.set(LOOK),
            (Phase::Busy | Phase::Ending, None) => deadline.clear(),
        }
    }
}
