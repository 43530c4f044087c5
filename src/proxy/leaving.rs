//! Requests whose client leaves before the answer ended.
//!
//! Where a limit settles its cost from the answer, or the request holds a permit, leaving must not make it
//! cheaper: the gateway finishes the request on its own account, within bounds, and only then settles and
//! releases.
//!
//! ```text
//! handle ─► Owned(future of the request) ── client leaves ──► Worker::leavers ─► a task of its own
//!               │ Custody: what must be completed                  Decision: the store's answer
//!               │                                                  Answer: the backend's answer
//! respond ─► Body ───────────────────────── client leaves ──► the rest of the body is read
//! ```
//!
//! A request that owes nothing is dropped where it stands, which breaks off its backend's work at once.

mod places;
mod tasks;

pub(crate) use places::places;
pub(crate) use tasks::Leavers;

use super::accept::Peer;
use super::body::Relayed;
use super::exchange::Exchange;
use super::forward;
use super::refusal::Refusal;
use super::relay::Answer;
use super::respond;
use crate::config::model::OnLeave;
use crate::incoming::Incoming;
use crate::worker::Worker;
use http::Request;
use std::cell::Cell;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// How long an answer is read on for a client that left, and how much of it.
const LONGEST: Duration = Duration::from_secs(30);
const MOST_BYTES: u64 = 1 << 20;

/// How long permits stay taken after a request was broken off: the backend has to notice.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// A client that reads nothing for this long, while there is more to send, has left.
pub(super) const STALLED: Duration = Duration::from_secs(30);

/// What a request has begun and must complete, whether its client stays or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Obligation {
    /// Nothing: it can be dropped.
    #[default]
    Nothing,
    /// A shared store is deciding: what it charges must be known.
    Decision,
    /// A backend has the request.
    Answer,
}

/// What is known of a request outside of its future.
#[derive(Debug)]
pub(super) struct Custody {
    worker: Rc<Worker>,
    peer: Rc<Peer>,
    address: IpAddr,
    obligation: Cell<Obligation>,
    on_leave: OnLeave,
    /// The client has left.
    left: Cell<bool>,
    /// The request was broken off: its permits stay taken for a moment.
    broken_off: Cell<bool>,
}

/// A request whose backend has answered, or which was refused.
pub(super) struct Finished {
    pub(super) exchange: Box<Exchange>,
    pub(super) request: Option<Request<Incoming>>,
    pub(super) outcome: Result<Answer, Refusal>,
}

type Work = Pin<Box<dyn Future<Output = Finished>>>;

/// The future of a request that outlives its client.
pub(super) struct Owned {
    work: Option<Work>,
    custody: Rc<Custody>,
}

impl Custody {
    pub(super) fn new(exchange: &Exchange) -> Rc<Self> {
        Rc::new(Self {
            worker: Rc::clone(&exchange.worker),
            peer: Rc::clone(&exchange.peer),
            address: exchange.origin.counted,
            obligation: Cell::default(),
            on_leave: exchange.on_leave(),
            left: Cell::new(false),
            broken_off: Cell::new(false),
        })
    }

    pub(super) fn owes(&self, obligation: Obligation) {
        self.obligation.set(obligation);
    }

    /// Whether the request goes on when its client sends no more. A client that closed its connection
    /// looks the same as one that only sends no more: where leaving breaks the request off, it is taken
    /// for the former.
    fn outlives(&self, owes_its_answer: bool) {
        self.peer.activity.outlive(owes_its_answer && self.on_leave == OnLeave::Finish);
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.get()
    }

    /// The decision is known. A client that left meanwhile is not served: the future is dropped.
    pub(super) async fn decided(&self) {
        self.owes(Obligation::Nothing);
        self.outlives(false);
        if self.left.get() {
            std::future::pending::<()>().await;
        }
    }

    /// The client leaves: its connection has nothing to wait for any more.
    fn leave(&self) {
        self.left.set(true);
        self.peer.activity.request_ended();
    }

    /// The gateway broke the request off at its backend, which may be working on it still.
    pub(super) fn break_off(&self) {
        self.broken_off.set(true);
    }

    /// Whether the request was broken off, so that its permits stay taken for a moment.
    pub(super) fn is_broken_off(&self) -> bool {
        self.broken_off.get()
    }

    /// Keeps a permit of a request that was broken off for a moment longer.
    pub(super) fn keep<P: 'static>(&self, permit: P) {
        let deadlines = Rc::clone(&self.worker.deadlines);
        self.worker.leavers.push(Box::pin(async move {
            let _ = deadlines.within(AFTERWARDS, std::future::pending::<()>()).await;
            drop(permit);
        }));
    }
}

/// Decides, if that is still to be done, and asks a backend, whether the client stays or not. A client
/// whose own deadline is over has left: `None`.
pub(super) async fn own(
    mut exchange: Box<Exchange>,
    mut request: Option<Request<Incoming>>,
    arrived: Option<Result<(), Refusal>>,
) -> Option<Finished> {
    let custody = Custody::new(&exchange);
    exchange.give_into(&custody);
    let limit = request.as_ref().and_then(|request| forward::hurry(&exchange, request.headers()));
    custody.peer.activity.outlive(arrived.is_some());
    let known = Rc::clone(&custody);
    let work = Box::pin(async move {
        let decided = match arrived {
            Some(arrived) => super::decide::<true>(&mut exchange, request.as_ref(), arrived).await,
            None => Ok(()),
        };
        known.outlives(exchange.owes_its_answer());
        let outcome = match decided {
            Ok(()) => super::forward::<true>(&mut exchange, &mut request).await,
            Err(refusal) => Err(refusal),
        };
        Finished { exchange, request, outcome }
    });
    let mut owned = Owned { work: Some(work), custody };
    let Some(limit) = limit else { return Some(owned.await) };
    let deadlines = Rc::clone(&owned.custody.worker.deadlines);
    deadlines.within(limit, &mut owned).await.ok()
}

impl Future for Owned {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let finished = ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(finished)
    }
}

/// The client left. What must be completed is completed by a task of its own.
impl Drop for Owned {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        let custody = Rc::clone(&self.custody);
        if custody.obligation.get() != Obligation::Nothing {
            custody.leave();
            let worker = Rc::clone(&custody.worker);
            worker.leavers.push(Box::pin(complete(custody, work)));
        }
    }
}

/// The client of an answer that is being passed on left: the rest of it is read.
pub(super) fn read_on(mut rest: Box<Relayed>, custody: Rc<Custody>) {
    custody.leave();
    let worker = Rc::clone(&custody.worker);
    worker.leavers.push(Box::pin(async move {
        if let Some(_place) = places::take(&custody) {
            let _ = custody.worker.deadlines.within(LONGEST, drain(&mut rest)).await;
        }
        if !rest.is_over() {
            custody.break_off();
        }
    }));
}

/// Completes a request without its client.
async fn complete(custody: Rc<Custody>, mut work: Work) {
    // A decision that is known leaves no obligation: the future gives back what was taken.
    let owes_an_answer = poll_fn(|cx| {
        let decided = match custody.obligation.get() {
            Obligation::Decision => work.as_mut().poll(cx).map(|_| ()),
            Obligation::Nothing | Obligation::Answer => Poll::Ready(()),
        };
        match (decided, custody.obligation.get()) {
            (Poll::Pending, Obligation::Decision) => Poll::Pending,
            (_, obligation) => Poll::Ready(obligation == Obligation::Answer),
        }
    });
    if !owes_an_answer.await {
        return;
    }
    let place = places::take(&custody);
    let mut reading = Box::pin(async { finish(work.as_mut().await, &custody).await });
    let limit = if place.is_some() { LONGEST } else { Duration::ZERO };
    let deadline = custody.worker.deadlines.register();
    deadline.set(limit);
    let read = place.is_some() && deadline.guard(&mut reading).await.is_ok();
    if !read {
        custody.break_off();
    }
    drop(reading);
}

/// Reads an answer that no client waits for, and settles by it.
async fn finish(finished: Finished, custody: &Custody) {
    let Finished { mut exchange, outcome, .. } = finished;
    match outcome {
        Err(refusal) => {
            drop(exchange.settle(refusal.end(exchange.was_sent())));
            exchange.note_answer(refusal.status(), Some(&refusal));
        }
        Ok(answer) => {
            if answer.switched {
                custody.break_off(); // a tunnel without a client
            }
            if let Some(mut rest) = respond::unheard(exchange, answer).take() {
                drain(&mut rest).await;
                if !rest.is_over() {
                    custody.break_off();
                }
            }
        }
    }
}

/// Reads a body to its end, or to its bound.
async fn drain(rest: &mut Relayed) {
    let before = rest.received();
    poll_fn(|cx| {
        loop {
            match rest.poll_next(cx) {
                Poll::Ready(Some(Ok(_))) if rest.received() - before < MOST_BYTES => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}
