//! Connections of one worker to one endpoint: idle ones that speak HTTP/1.1, and those that carry
//! many requests at once. No lock: nobody else touches them.

use super::connection::Connection;
use super::http2::Shared;
use crate::deadline::Deadlines;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// More idle connections than this are closed rather than kept.
const MAX_IDLE: usize = 512;

/// Idle connections, the longest idle first.
#[derive(Debug)]
pub struct Pool {
    /// Whose connections they are.
    pub endpoint: u64,
    deadlines: Rc<Deadlines>,
    idle: RefCell<VecDeque<Idle>>,
    shared: RefCell<Vec<Rc<Shared>>>,
    /// Held by whoever opens a connection that others can use as well.
    pub opening: tokio::sync::Mutex<()>,
    /// The endpoint is gone: nothing is kept any more.
    closed: Cell<bool>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: u64,
}

impl Pool {
    /// Nothing in it yet.
    pub fn new(endpoint: u64, deadlines: Rc<Deadlines>) -> Self {
        let (idle, shared) = (RefCell::default(), RefCell::default());
        let opening = tokio::sync::Mutex::default();
        Self { endpoint, deadlines, idle, shared, opening, closed: Cell::new(false) }
    }

    /// From now on nothing is kept, and what is idle is closed. Requests under way go on.
    pub fn close(&self) {
        self.closed.set(true);
        self.idle.borrow_mut().clear();
        self.shared.borrow_mut().drain(..).for_each(|shared| shared.retire());
    }

    /// The connection that was used last, if any is left that the backend has not closed.
    pub fn take(&self, max_idle_ticks: u64) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { connection, since }) = idle.pop_back() {
            if self.deadlines.tick() - since > max_idle_ticks {
                // Those before it have been idle even longer.
                idle.clear();
                return None;
            }
            if connection.is_idle() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose exchange is over. One that is not ready for the next request is
    /// closed: the backend answered before it had the whole request, or has hung up.
    pub fn put(&self, mut connection: Connection) {
        if self.closed.get() || !connection.is_idle() {
            return;
        }
        connection.rest();
        let mut idle = self.idle.borrow_mut();
        if idle.len() == MAX_IDLE {
            idle.pop_front();
        }
        idle.push_back(Idle { connection, since: self.deadlines.tick() });
    }

    /// Closes idle connections. Says whether there were any.
    pub fn shed(&self) -> bool {
        let before = std::mem::take(&mut *self.idle.borrow_mut());
        !before.is_empty()
    }

    /// A connection that carries many requests, if one has room for another.
    pub fn share(&self) -> Option<Rc<Shared>> {
        let shared = self.shared.borrow();
        let found = shared.iter().find(|connection| connection.has_room())?;
        found.used.set(self.deadlines.tick());
        Some(Rc::clone(found))
    }

    /// Lets others use a connection, too.
    pub fn add(&self, connection: &Rc<Shared>) {
        let mut shared = self.shared.borrow_mut();
        shared.retain(|connection| !connection.is_useless());
        if self.closed.get() {
            return; // it is for one request, and ends with it
        }
        shared.push(Rc::clone(connection));
    }

    /// Closes what was idle for too long, or was closed by the backend.
    pub fn sweep(&self, max_idle_ticks: u64) {
        let now = self.deadlines.tick();
        self.shared.borrow_mut().retain(|connection| {
            let unused = connection.is_idle() && now - connection.used.get() > max_idle_ticks;
            !connection.is_useless() && !unused
        });
        let fresh = |idle: &Idle| now - idle.since <= max_idle_ticks && idle.connection.is_idle();
        self.idle.borrow_mut().retain(fresh);
    }
}
