//! An upstream as one worker uses it: the endpoints there are, the worker's own connections to them,
//! and how many requests it may send twice.

use super::Upstream;
use super::balance::Members;
use super::budget::Budget;
use super::pool::Pool;
use crate::deadline::{Deadlines, ticks};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// One upstream of one worker.
#[derive(Debug)]
pub struct Station {
    crew: RefCell<Rc<Crew>>,
    /// How many requests may be sent twice.
    pub budget: Budget,
}

/// The endpoints of an upstream, and the connections to each.
#[derive(Debug)]
pub struct Crew {
    /// Who there is.
    pub members: Arc<Members>,
    /// By the members' index.
    pub pools: Box<[Rc<Pool>]>,
}

impl Crew {
    /// Connections go on where `known` has them by the endpoint's id.
    fn new(
        upstream: &Upstream,
        deadlines: &Rc<Deadlines>,
        known: impl Fn(u64) -> Option<Rc<Pool>>,
    ) -> Rc<Self> {
        let members = upstream.members.load_full();
        let pool = |id| known(id).unwrap_or_else(|| Rc::new(Pool::new(id, Rc::clone(deadlines))));
        let pools = members.endpoints.iter().map(|endpoint| pool(endpoint.id)).collect();
        Rc::new(Self { members, pools })
    }

    fn pool(&self, id: u64) -> Option<Rc<Pool>> {
        self.pools.iter().find(|pool| pool.endpoint == id).map(Rc::clone)
    }
}

impl Station {
    /// Takes up an upstream; connections of the stations `before` go on.
    pub fn new(upstream: &Upstream, deadlines: &Rc<Deadlines>, before: &[Self]) -> Self {
        let known = |id| before.iter().find_map(|station| station.crew.borrow().pool(id));
        let crew = RefCell::new(Crew::new(upstream, deadlines, known));
        Self { crew, budget: Budget::default() }
    }

    /// The endpoints as of now. Whoever is no longer among them gets no more requests: what is under
    /// way there goes on, and connections are closed as they fall idle.
    pub fn crew(&self, upstream: &Upstream, deadlines: &Rc<Deadlines>) -> Rc<Crew> {
        let mut crew = self.crew.borrow_mut();
        if crew.members.version != upstream.version() {
            let next = Crew::new(upstream, deadlines, |id| crew.pool(id));
            let before = std::mem::replace(&mut *crew, next);
            before.close_unless(|id| crew.pool(id).is_some());
        }
        Rc::clone(&crew)
    }

    /// Closes the connections that no later station has taken over.
    pub fn close_unless_in(&self, later: &[Self]) {
        let kept = |id| later.iter().any(|station| station.crew.borrow().pool(id).is_some());
        self.crew.borrow().close_unless(kept);
    }

    /// Closes what is idle. Says whether there was any.
    pub fn shed(&self) -> bool {
        let crew = Rc::clone(&self.crew.borrow());
        crew.pools.iter().fold(false, |any, pool| any | pool.shed())
    }

    /// Closes what has been idle for too long.
    pub fn sweep(&self, upstream: &Upstream, deadlines: &Rc<Deadlines>) {
        let max_idle = ticks(upstream.config.timeouts.idle);
        self.crew(upstream, deadlines).pools.iter().for_each(|pool| pool.sweep(max_idle));
    }
}

impl Crew {
    fn close_unless(&self, kept: impl Fn(u64) -> bool) {
        self.pools.iter().filter(|pool| !kept(pool.endpoint)).for_each(|pool| pool.close());
    }
}
