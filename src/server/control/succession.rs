//! Handing over to the next process, and taking over from the one before.
//!
//! ```text
//! old: refuse acts ──► write the counters ──► start the new one ──► ready ──► pass on ──► finish, end
//!                                                   │ it ends, or is late
//!                                                   └──► accept acts again
//! new: refuse acts ──► read the files ──► ready ──► what is passed on ──► accept acts
//! ```

use super::{Control, FAREWELL};
use crate::gateway::Gateway;
use crate::handover::{self, HandoverError, Predecessor, Successor};
use crate::overrides::Closed;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long acts that are under way may take to finish.
const PATIENCE: Duration = Duration::from_secs(10);

/// A handover that is under way has come so far.
pub(super) enum Step {
    /// No act is under way, and none is accepted.
    ActsRefused(Closed),
    /// The new process is ready, or will not be.
    Outcome(Result<Successor, HandoverError>, Option<Closed>),
}

/// The process that has taken over.
pub(super) struct Heir {
    /// `None`: it does not listen any more.
    successor: Option<Successor>,
    /// The operator is the new process's: no act is accepted here again.
    _acts_refused: Option<Closed>,
}

impl Control {
    /// Starts a process that is to take over.
    pub(super) fn hand_over(&mut self) {
        if self.successor.is_some() {
            return tracing::warn!("a new process is starting already");
        }
        let mut tasks = JoinSet::new();
        let gateway = Arc::clone(&self.gateway);
        tasks.spawn_local(async move {
            // A process that is taking over itself does that first.
            let closed = tokio::time::timeout(PATIENCE, gateway.overrides.gate.close()).await;
            closed.map_or_else(|_| Step::Outcome(Err(HandoverError::Acts), None), Step::ActsRefused)
        });
        self.successor = Some(tasks);
    }

    /// If a new process has taken over, this one ends. If it has not, everything stays as it is.
    pub(super) fn go_on_handing_over(&mut self, step: Step) {
        self.successor = None;
        match step {
            Step::ActsRefused(closed) => self.start_successor(closed),
            Step::Outcome(Ok(successor), closed) => {
                tracing::info!("process {} has taken over", successor.process);
                self.heir = Some(Heir { successor: Some(successor), _acts_refused: closed });
                self.farewell = FAREWELL;
            }
            Step::Outcome(Err(error), closed) => {
                tracing::error!("nobody has taken over, this process goes on: {error}");
                self.gateway.own_locks();
                drop(closed);
            }
        }
    }

    fn start_successor(&mut self, closed: Closed) {
        // What it must not forgive. Nothing writes the file again unless it fails.
        self.saving.finish(&self.gateway);
        let (sockets, locks) = match self.passed_on() {
            Ok(passed_on) => passed_on,
            Err(error) => {
                return self.go_on_handing_over(Step::Outcome(Err(error.into()), Some(closed)));
            }
        };
        let gateway = Arc::clone(&self.gateway);
        let mut tasks = JoinSet::new();
        tasks.spawn_local(async move {
            let state = || gateway.overrides.transfer();
            Step::Outcome(handover::hand_over(sockets, locks, state).await, Some(closed))
        });
        self.successor = Some(tasks);
    }

    /// Copies of the sockets and locks.
    fn passed_on(&self) -> std::io::Result<(Vec<TcpListener>, Vec<OwnedFd>)> {
        let of_callers = self.listeners.borrow().clone();
        let sockets = of_callers.iter().map(|listener| &listener.socket);
        let sockets = sockets.chain(self.admin_listener.iter().map(|admin| &admin.socket));
        let sockets: std::io::Result<Vec<_>> = sockets.map(TcpListener::try_clone).collect();
        Ok((sockets?, self.gateway.pass_on_locks()?))
    }

    /// Whether the process before this one has not ended, so that what it passes on has to go further.
    pub(super) fn passes_on_for_another(&self) -> bool {
        let hears = self.hears_predecessor.as_ref().is_some_and(|task| !task.is_finished());
        hears && self.heir.as_ref().is_some_and(|heir| heir.successor.is_some())
    }

    /// Tells the process that has taken over who was banned since.
    pub(super) async fn pass_on(&mut self) {
        if let Some(heir) = &mut self.heir
            && let Some(successor) = &mut heir.successor
            && let Some(more) = self.gateway.overrides.transfer_more()
            && let Err(error) = successor.send(&more).await
        {
            tracing::error!("bans could not be passed on: {error}");
            heir.successor = None;
        }
    }
}

/// Does as the predecessor passes on, until it has ended. Acts are accepted, and files are this
/// process's, from its first word.
pub(super) async fn take_over(gateway: Arc<Gateway>, predecessor: Predecessor, closed: Closed) {
    let mut messages = predecessor.messages().inspect_err(|error| {
        tracing::error!("the process before this one is not heard: {error}");
    });
    let mut closed = Some(closed);
    loop {
        let transfer = match &mut messages {
            Ok(messages) => messages.next().await,
            Err(_) => None,
        };
        let ended = transfer.is_none();
        if let Some(transfer) = transfer {
            gateway.adopt_transfer(transfer);
        }
        if closed.is_some() {
            gateway.own_locks();
            closed = None;
        }
        if ended {
            return;
        }
    }
}
