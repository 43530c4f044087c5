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
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The places that a request has. Most have none, and need no room for it.
#[derive(Debug, Default)]
pub(super) struct Room(Option<Box<Places>>);

#[derive(Debug, Default)]
struct Places {
    /// The process has said that it may go on.
    seated: bool,
    /// In this process, until its answer is out.
    seat: Option<Place>,
    /// It has left its place at the upstream to somebody else, and needs another.
    left: bool,
    /// At its upstream, until its answer has ended; or until it has begun, if that is what counts.
    place: Option<Rc<Place>>,
    /// The upstream was asked, and the answer is of interest.
    asked: Option<Asked>,
}

#[derive(Debug)]
struct Asked {
    at: Cell<Micros>,
    /// What it is sent; nobody can answer before that is over.
    upload: Option<Rc<Progress>>,
}

impl Room {
    fn have(&mut self, place: Option<Place>) {
        self.0.get_or_insert_default().place = place.map(Rc::new);
    }

    /// Whether it has a place at its upstream.
    pub(super) fn has_place(&self) -> bool {
        self.0.as_ref().is_some_and(|places| places.place.is_some())
    }

    /// It has to wait for something else: somebody else can use the place meanwhile.
    pub(super) fn step_aside(&mut self) {
        if let Some(places) = &mut self.0 {
            places.left |= places.place.take().is_some();
        }
    }

    /// Whether it needs another place.
    pub(super) fn was_left(&self) -> bool {
        self.0.as_ref().is_some_and(|places| places.left)
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
    #[inline]
    pub(super) fn leave_upstream(&mut self) {
        if self.room.0.is_some() {
            self.gave_up();
            let custody = self.custody.as_ref().filter(|custody| custody.is_broken_off());
            if let (Some(custody), Some(places)) = (custody, &mut self.room.0)
                && let Some(place) = places.place.take()
            {
                custody.keep(place);
            }
            self.room.step_aside();
        }
    }

    /// The answer is out.
    #[inline]
    pub(super) fn leave(&mut self) {
        self.leave_upstream();
        self.room.0 = None;
    }

    /// The upstream is asked now, and sent this.
    #[inline]
    pub(super) fn ask(&mut self, upload: Option<Rc<Progress>>) {
        if let Some(places) = &mut self.room.0
            && let Some(place) = places.place.as_ref().filter(|place| place.is_watched())
        {
            if let Some(upload) = &upload {
                upload.watch(place);
            }
            let at = Cell::new(self.worker.gateway.clock.now());
            places.asked = Some(Asked { at, upload });
        }
    }

    /// There is a connection now: how long that took is not the backend's affair.
    #[inline]
    pub(super) fn connected(&self) {
        if let Some(Asked { at, .. }) = self.room.0.as_ref().and_then(|room| room.asked.as_ref()) {
            at.set(self.worker.gateway.clock.now());
        }
    }

    /// The head of an answer has come: how long it took tells how the upstream is doing.
    #[inline]
    pub(super) fn answered(&mut self, status: StatusCode) {
        if self.room.0.is_some() {
            self.watch(Some(status));
        }
    }

    /// The answer is handed on. Where it is found out how many places there are, they are for those who
    /// wait for a head: whoever takes their time to read what follows, or to say it, takes nobody's.
    #[inline]
    pub(super) fn hand_on(&mut self, status: StatusCode) {
        self.answered(status);
        if let Some(places) = &mut self.room.0 {
            places.place.take_if(|place| place.is_watched());
        }
    }

    /// No answer has come so far, and none is waited for any longer.
    pub(super) fn gave_up(&mut self) {
        if self.room.0.is_some() {
            self.watch(None);
        }
    }

    #[cold]
    fn watch(&mut self, status: Option<StatusCode>) {
        let asked = self.room.0.as_mut().and_then(|places| places.asked.take());
        let Some(Asked { at, upload }) = asked else { return };
        let (now, pace) = (self.worker.gateway.clock.now(), self.route().map_or(0, |r| r.pace));
        let Some(place) = self.room.0.as_ref().and_then(|places| places.place.as_ref()) else {
            return;
        };
        let since = upload.map_or(Some(at.get()), |upload| upload.ended());
        // Whoever answers before having heard everything has not worked on it.
        let Some(waited) = since.map(|since| now.saturating_sub(since)) else { return };
        match status {
            None => place.gave_up(pace, waited, now),
            Some(StatusCode::SERVICE_UNAVAILABLE) => place.told(now),
            // Refusals may be quicker than anything else, and say nothing of the rest.
            Some(status) if status.is_client_error() || status.is_server_error() => {}
            Some(_) => place.answered(pace, waited, now),
        }
    }

    /// The upstream failed: whatever that took is no measure.
    pub(super) fn failed(&mut self) {
        if let Some(places) = &mut self.room.0 {
            places.asked = None;
        }
    }
}

/// Whether there is anything to ask: nothing is limited, and nothing is late, for most.
#[inline]
pub(super) fn is_at_stake(exchange: &Exchange) -> bool {
    exchange.snapshot().gated || exchange.worker.pressure.level() > 0.0
}

/// Asks the process for room, if it is known already how important the request is.
pub(super) fn early(exchange: &mut Exchange) -> Result<(), Refusal> {
    match exchange.priority() {
        Some(priority) => be_seated(exchange, priority),
        None => Ok(()),
    }
}

fn be_seated(exchange: &mut Exchange, priority: Priority) -> Result<(), Refusal> {
    let places = exchange.room.0.get_or_insert_default();
    if std::mem::replace(&mut places.seated, true) {
        return Ok(());
    }
    let refused = |why| Refusal::Overloaded { why, priority };
    if let Some(why) = exchange.worker.pressure.refuses(priority, fastrand::f64) {
        return Err(refused(why));
    }
    if let Some(gate) = &exchange.generation.snapshot.gate {
        let crowded = priority == Priority::Sheddable && fastrand::f64() < gate.crowd();
        let seat = (!crowded).then(|| gate.enter(priority, exchange.started)).flatten();
        places.seat = Some(seat.ok_or_else(|| refused(Shed::InFlight))?);
    }
    Ok(())
}

/// Asks for room wherever the request has none yet. Says whether it has to [`wait`].
pub(super) fn must_wait(exchange: &mut Exchange) -> Result<bool, Refusal> {
    let priority = exchange.priority().unwrap_or_default();
    be_seated(exchange, priority)?;
    let has_place = exchange.room.0.as_ref().is_some_and(|places| places.place.is_some());
    if has_place || exchange.caller.is_none() {
        return Ok(false); // it will be refused for its credentials
    }
    let Some((gate, _)) = gate(exchange) else { return Ok(false) };
    let now = if exchange.room.was_left() {
        exchange.worker.gateway.clock.now()
    } else {
        exchange.started
    };
    let place = gate.enter(priority, now);
    let full = place.is_none();
    exchange.room.have(place);
    Ok(full)
}

/// The gate of its upstream, and how long it may be waited at.
fn gate(exchange: &Exchange) -> Option<(&Arc<Gate>, Duration)> {
    let upstream = &exchange.snapshot().upstreams[exchange.route()?.upstream];
    Some((upstream.gate.as_ref()?, upstream.config.concurrency?.max_wait))
}

/// Waits for a place. Whoever is over a limit of their own hears that instead.
pub(super) async fn wait(exchange: &mut Exchange, headers: &HeaderMap) -> Result<(), Refusal> {
    let judged = exchange.room.was_left();
    if !judged {
        judge::judge(exchange, headers, Purpose::Foresee).await?;
    }
    let priority = exchange.priority().unwrap_or_default();
    let full = |Full| Refusal::Overloaded { why: Shed::Upstream, priority };
    let Some((gate, max_wait)) = gate(exchange) else { return Ok(()) };
    // Who is charged already is not turned away for the length of a queue.
    let (caller, now) = (judge::number_of(exchange), exchange.worker.gateway.clock.now());
    let mut waiting = gate.wait(priority, caller, judged, now).map_err(full)?;
    let deadlines = Rc::clone(&exchange.worker.deadlines);
    let turn = deadlines.within(max_wait, waiting.turn()).await;
    let since = exchange.worker.gateway.clock.now();
    exchange.record.wait(since.saturating_sub(now));
    let mut place = turn.unwrap_or(Err(Full)).map_err(full)?;
    // Limits decide by the moment in which it goes on.
    exchange.decides = since;
    place.begins(exchange.decides);
    exchange.room.have(Some(place));
    Ok(())
}
