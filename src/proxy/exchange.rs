//! What is known of one request while it is under way, and the record made when it is over.

use super::accept::Peer;
use super::address::Origin;
use super::destination::Destination;
use super::identify::Caller;
use super::judge::{Admission, Judgement};
use super::refusal::Refusal;
use crate::access_log::Line;
use crate::clock::Micros;
use crate::snapshot::{Found, Limit, Route, Snapshot};
use crate::worker::{Generation, Worker};
use http::{Method, Request, StatusCode};
use std::rc::Rc;
use std::sync::Arc;

/// One request under way. The response body owns it until its end.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) worker: Rc<Worker>,
    pub(super) peer: Rc<Peer>,
    pub(super) generation: Rc<Generation>,
    /// When the head was read; every limit decides by this moment.
    pub(super) started: Micros,
    pub(super) judgement: Judgement,
    pub(super) admission: Option<Admission>,
    found: Found,
    log: Option<Line>,
    done: bool,
}

impl Exchange {
    pub(super) fn begin(worker: Rc<Worker>, peer: Rc<Peer>) -> Self {
        worker.metrics().add_in_flight(1);
        peer.activity.request_began();
        let generation = worker.generation();
        let started = worker.gateway.clock.now();
        Self {
            worker,
            peer,
            generation,
            started,
            judgement: Judgement::default(),
            admission: None,
            found: Found::Nothing,
            log: None,
            done: false,
        }
    }

    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.generation.snapshot
    }

    pub(super) fn route(&self) -> Option<&Route> {
        match self.found {
            Found::Route(index) => Some(&self.snapshot().routes[index]),
            _ => None,
        }
    }

    /// The limits that guard this request.
    pub(super) fn limits(&self) -> &[Arc<Limit>] {
        self.route().map_or(&self.snapshot().guards, |route| &route.limits)
    }

    /// Finds the route; whether there is one is asked after the limits.
    pub(super) fn find_route(&mut self, destination: &Destination, method: &Method) {
        if let Some(log) = &mut self.log {
            log.text("path", destination.path());
        }
        self.found = self.snapshot().router.find(&destination.host, destination.path(), method);
    }

    /// The route's index, or why there is none.
    pub(super) fn found_route(&self) -> Result<usize, Refusal> {
        match &self.found {
            Found::Route(index) => Ok(*index),
            Found::MethodNotAllowed(allow) => Err(Refusal::MethodNotAllowed(allow.clone())),
            Found::Nothing => Err(Refusal::NoRoute),
        }
    }

    /// Begins the log's line, if this request may be logged at all.
    pub(super) fn note_request<B>(&mut self, request: &Request<B>) {
        if self.snapshot().access_log.is_some() {
            let mut line = Line::at(self.started);
            line.text("method", request.method().as_str());
            self.log = Some(line);
        }
    }

    pub(super) fn note_caller(&mut self, origin: Origin, caller: Option<&Caller>) {
        let Some(log) = &mut self.log else { return };
        log.text("ip", &origin.ip.to_string());
        if let Some(user) = caller.and_then(|caller| caller.user.as_deref()) {
            log.text("user", user);
        }
        if let Some(id) = caller.and_then(|caller| caller.api_key.as_deref()) {
            log.text("api_key", id);
        }
    }

    pub(super) fn note_endpoint(&mut self, name: &str) {
        if let Some(log) = &mut self.log {
            log.text("upstream", name);
        }
    }

    /// The answer's head is decided: counts it, and samples it for the log.
    pub(super) fn note_answer(&mut self, status: StatusCode, refusal: Option<&Refusal>) {
        let metrics = self.route().map_or(&self.worker.gateway.metrics.unrouted, |r| &r.metrics);
        metrics.count(status);
        let Some(sample) = self.snapshot().access_log else {
            return;
        };
        let rejected = refusal.is_some_and(Refusal::is_rejection);
        let share = if rejected { sample.rejected } else { sample.allowed };
        if share < 1.0 && fastrand::f64() >= share {
            self.log = None;
        }
        let Some(mut log) = self.log.take() else {
            return;
        };
        if let Some(route) = self.route() {
            log.text("route", &route.name);
        }
        log.number("status", status.as_u16().into());
        if let Some(said) = self.judgement.rejected_by.map(|index| self.judgement.said[index]) {
            log.text("limit", &self.limits()[said.limit].name);
        }
        if let Some(said) = self.judgement.speaker(self.limits()) {
            log.number("remaining", said.verdict.remaining);
        }
        if let Some(refusal) = refusal {
            log.text("error", &refusal.to_string());
        }
        self.log = Some(log);
    }

    /// The last byte is out, or will never be: writes the log's line. Only the first call counts.
    pub(super) fn finish(&mut self, bytes: u64, whole: bool) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        self.admission = None;
        self.worker.metrics().add_in_flight(-1);
        self.peer.activity.request_ended();
        let Some(mut log) = self.log.take() else {
            return;
        };
        log.number("bytes", bytes);
        log.millis("duration_ms", self.worker.gateway.clock.now().saturating_sub(self.started));
        if !whole {
            log.text("aborted", "the response was cut short");
        }
        self.worker.gateway.access_log.append(self.worker.index, &log.finish());
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.finish(0, false);
    }
}
