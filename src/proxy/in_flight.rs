//! Whether there is room for the request now: in this process, and at its upstream.
//!
//! Both are asked before the limits, so that who is refused here is charged nothing. The process is
//! asked as soon as it is known how important the request is: before credentials are verified,
//! unless it is a plan that tells.

use super::exchange::Exchange;
use super::judge::{self, Purpose};
use super::refusal::Refusal;
use crate::clock::Micros;
use crate::config::model::Priority;
use crate::overload::Shed;
use crate::overload::gate::{Full, Gate, Place};
use crate::upstream::upload::Progress;
use http::{HeaderMap, StatusCode};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The places that a request has.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The process has said that it may go on.
    seated: bool,
    /// In this process, until its answer is out.
    seat: Option<Place>,
    /// At its upstream, until its answer has ended; or until it has begun, if that is what counts.
    place: Option<Place>,
    /// The upstream was asked, and the answer is of interest.
    asked: Option<Asked>,
}

#[derive(Debug)]
struct Asked {
    at: Micros,
    /// What it is sent; nobody can answer before that is over.
    upload: Option<Rc<Progress>>,
}

impl Room {
    /// It has to wait for something else: somebody else can use the place meanwhile.
    pub(super) fn step_aside(&mut self) {
        self.place = None;
    }
}

impl Exchange {
    /// How important it is; `None` as long as only a plan could tell.
    fn priority(&self) -> Option<Priority> {
        let of_route = self.route().and_then(|route| route.priority);
        let snapshot = self.snapshot();
        if of_route.is_some() || !snapshot.plans_prioritise {
            return Some(of_route.unwrap_or_default());
        }
        let caller = self.caller.as_ref()?;
        let of = |plan: usize| snapshot.plans.get(plan).and_then(|plan| plan.priority);
        let user = caller.user.as_ref().map(|_| caller.user_plan);
        let key = caller.api_key.as_ref().map(|_| caller.key_plan);
        // Whoever is somebody in two ways is the more important of them.
        let plans = user.into_iter().chain(key);
        let most = plans.map(|plan| of(plan).unwrap_or_default()).min();
        Some(most.or(of(snapshot.default_plan)).unwrap_or_default())
    }

    /// The answer has ended, or there will be none: the place is free.
    pub(super) fn leave_upstream(&mut self) {
        self.gave_up();
        self.room.place = None;
    }

    /// The answer is out.
    pub(super) fn leave(&mut self) {
        self.leave_upstream();
        self.room.seat = None;
    }

    /// The upstream is asked now, and sent this.
    #[inline]
    pub(super) fn ask(&mut self, upload: Option<Rc<Progress>>) {
        if self.room.place.as_ref().is_some_and(Place::is_watched) {
            self.room.asked = Some(Asked { at: self.worker.gateway.clock.now(), upload });
        }
    }

    /// The head of an answer has come: how long it took tells how the upstream is doing.
    #[inline]
    pub(super) fn answered(&mut self, status: StatusCode) {
        if self.room.asked.is_some() {
            self.watch(Some(status));
        }
    }

    /// The answer is handed on. Where it is found out how many places there are, they are for those who
    /// wait for a head: whoever takes their time to read what follows, or to say it, takes nobody's.
    #[inline]
    pub(super) fn hand_on(&mut self) {
        self.room.place.take_if(|place| place.is_watched());
    }

    /// No answer has come so far, and none is waited for any longer.
    pub(super) fn gave_up(&mut self) {
        if self.room.asked.is_some() {
            self.watch(None);
        }
    }

    fn watch(&mut self, status: Option<StatusCode>) {
        let (now, pace) = (self.worker.gateway.clock.now(), self.route().map_or(0, |r| r.pace));
        let Room { place: Some(place), asked, .. } = &mut self.room else { return };
        let Some(Asked { at, upload }) = asked.take() else { return };
        let since = upload.map_or(Some(at), |upload| upload.ended());
        // Whoever answers before having heard everything has not worked on it.
        let Some(waited) = since.map(|since| now.saturating_sub(since)) else { return };
        match status {
            None => place.gave_up(pace, waited, now),
            Some(StatusCode::SERVICE_UNAVAILABLE) => place.told(now),
            // Failures may be quicker than anything else, and say nothing of the rest.
            Some(status) if status.is_server_error() => {}
            Some(_) => place.answered(pace, waited, now),
        }
    }

    /// The upstream failed: whatever that took is no measure.
    pub(super) fn failed(&mut self) {
        self.room.asked = None;
    }
}

/// Asks the process for room, if it is known already how important the request is.
#[inline]
pub(super) fn early(exchange: &mut Exchange) -> Result<(), Refusal> {
    match exchange.priority() {
        Some(priority) => be_seated(exchange, priority),
        None => Ok(()),
    }
}

#[inline]
fn be_seated(exchange: &mut Exchange, priority: Priority) -> Result<(), Refusal> {
    if std::mem::replace(&mut exchange.room.seated, true) {
        return Ok(());
    }
    let refused = |why| Refusal::Overloaded { why, priority };
    if let Some(why) = exchange.worker.pressure.refuses(priority, fastrand::f64) {
        return Err(refused(why));
    }
    if let Some(gate) = &exchange.generation.snapshot.gate {
        let crowded = priority == Priority::Sheddable && fastrand::f64() < gate.crowd();
        let seat = (!crowded).then(|| gate.enter(priority, exchange.started)).flatten();
        exchange.room.seat = Some(seat.ok_or_else(|| refused(Shed::InFlight))?);
    }
    Ok(())
}

/// Asks for room wherever the request has none yet. It may have to wait for a moment.
#[inline]
pub(super) async fn enter(exchange: &mut Exchange, headers: &HeaderMap) -> Result<(), Refusal> {
    let priority = exchange.priority().unwrap_or_default();
    be_seated(exchange, priority)?;
    if exchange.room.place.is_some() || exchange.caller.is_none() {
        return Ok(()); // it will be refused for its credentials
    }
    let generation = Rc::clone(&exchange.generation);
    let Some(route) = exchange.route() else { return Ok(()) };
    let upstream = &generation.snapshot.upstreams[route.upstream];
    let Some(gate) = &upstream.gate else { return Ok(()) };
    let judged = !exchange.judgement.said.is_empty();
    let now = if judged { exchange.worker.gateway.clock.now() } else { exchange.started };
    exchange.room.place = gate.enter(priority, now);
    if exchange.room.place.is_none() {
        let max_wait = upstream.config.concurrency.map_or(Duration::ZERO, |c| c.max_wait);
        // Few come this far, and the others need no room for it.
        Box::pin(wait(exchange, headers, gate, priority, max_wait)).await?;
    }
    Ok(())
}

/// Waits for a place. Whoever is over a limit of their own hears that instead.
async fn wait(
    exchange: &mut Exchange,
    headers: &HeaderMap,
    gate: &Arc<Gate>,
    priority: Priority,
    max_wait: Duration,
) -> Result<(), Refusal> {
    let judged = !exchange.judgement.said.is_empty();
    if !judged {
        judge::judge(exchange, headers, Purpose::Foresee).await?;
    }
    let full = |Full| Refusal::Overloaded { why: Shed::Upstream, priority };
    // Who is charged already is not turned away for the length of a queue.
    let (caller, now) = (judge::hash_of(exchange), exchange.worker.gateway.clock.now());
    let mut waiting = gate.wait(priority, caller, judged, now).map_err(full)?;
    let deadlines = Rc::clone(&exchange.worker.deadlines);
    let turn = deadlines.within(max_wait, waiting.turn()).await;
    let mut place = turn.unwrap_or(Err(Full)).map_err(full)?;
    // Limits decide by the moment in which it goes on.
    exchange.decides = exchange.worker.gateway.clock.now();
    place.begins(exchange.decides);
    exchange.room.place = Some(place);
    Ok(())
}
