//! What is noted of a request: counters, its line of the access log, its spans.

use super::destination::Destination;
use super::exchange::Exchange;
use super::identify::Caller;
use super::refusal::Refusal;
use super::settle::End;
use crate::access_log::Line;
use crate::clock::Micros;
use crate::config::model::AccessLog;
use crate::snapshot::Limit;
use crate::store::Part;
use crate::telemetry::{Attribute, Span};
use crate::upstream::{Endpoint, InFlight, Upstream};
use http::{HeaderMap, StatusCode};
use std::sync::Arc;

/// What is noted so far.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// When an endpoint was asked first.
    asked_at: Micros,
    /// How long endpoints took, up to the heads of their answers.
    upstream: Micros,
    /// How long it waited for its turn or for a place.
    waited: Micros,
    /// What the gateway itself has added.
    overhead: Micros,
    /// When it was refused, before what it still sends is read away.
    refused_at: Option<Micros>,
    /// Of its answer; nothing if the caller left before there was one.
    status: Option<StatusCode>,
    /// Who answered, if that is to be told in a span.
    endpoint: Option<Arc<Endpoint>>,
    line: Option<Line>,
    /// Headers of the request that are logged: which of those that the log names, and what it says.
    headers: Vec<(usize, Box<str>)>,
    /// What limits have counted it as, where that was not known from the start.
    pub(super) costs: Vec<(Arc<Limit>, u32)>,
    /// How long it took has been noted.
    timed: bool,
    done: bool,
}

impl Record {
    /// It waited, because a limit or the upstream's places wanted it to.
    pub(super) fn wait(&mut self, time: Micros) {
        self.waited += time;
    }
}

impl Exchange {
    /// An endpoint was asked, and has answered or was given up.
    pub(super) fn note_asked(&mut self, upstream: &Upstream, began: Micros) {
        let took = self.worker.gateway.clock.now().saturating_sub(began);
        upstream.metrics.took(self.worker.index, took);
        if self.record.asked_at == 0 {
            self.record.asked_at = began;
        }
        self.record.upstream += took;
    }

    /// The answer's head is decided: counts it, and begins its line of the log if it is one of
    /// those that are logged.
    pub(super) fn note_answer(&mut self, status: StatusCode, refusal: Option<&Refusal>) {
        let (gateway, worker) = (&self.worker.gateway, self.worker.index);
        let now = self.record.refused_at.unwrap_or_else(|| gateway.clock.now());
        let elsewhere = self.record.upstream + self.record.waited;
        let overhead = now.saturating_sub(self.started).saturating_sub(elsewhere);
        self.worker.metrics().overhead.record(overhead);
        let metrics = self.route().map_or(&gateway.metrics.unrouted, |route| &route.metrics);
        metrics.of(worker).count(status);
        let caller = self.caller.as_ref();
        let who = [
            Some(Part::Ip(self.origin.counted)),
            caller.and_then(|caller| caller.user.as_deref()).map(Part::User),
            caller.and_then(|caller| caller.api_key.as_deref()).map(Part::ApiKey),
        ];
        gateway.top.count(worker, &who, refusal.is_some_and(Refusal::is_own), now);
        (self.record.overhead, self.record.status) = (overhead, Some(status));
        if self.snapshot().telemetry.otlp.is_some() {
            self.record.endpoint = self.endpoint.as_ref().map(InFlight::endpoint);
        }
        let Some(log) = &self.snapshot().access_log else { return };
        let rejected = refusal.is_some_and(Refusal::is_rejection);
        let share = if rejected { log.rejected } else { log.allowed };
        if share >= 1.0 || fastrand::f64() < share {
            let mut line = self.line(log, status, refusal);
            if share < 1.0 {
                line.share("sample", share);
            }
            self.record.line = Some(line);
        }
    }

    /// Keeps those headers that are logged: the request is not there any more when it is.
    pub(super) fn note_headers(&mut self, headers: &HeaderMap) {
        let names = self.snapshot().access_log.as_ref().map_or(&[][..], |log| &log.headers);
        if !names.is_empty() {
            let values = names.iter().enumerate().filter_map(|(index, name)| {
                let value = headers.get(name)?;
                Some((index, String::from_utf8_lossy(value.as_bytes()).into()))
            });
            self.record.headers = values.collect();
        }
    }

    /// It is refused: what else the caller sends takes the caller's time, not ours.
    pub(super) fn note_refusal(&mut self) {
        self.record.refused_at = Some(self.worker.gateway.clock.now());
    }

    /// The answer's head is all that is timed: what follows is a tunnel.
    pub(super) fn note_switch(&mut self) {
        self.note_duration(self.worker.gateway.clock.now());
    }

    fn note_duration(&mut self, now: Micros) {
        if !std::mem::replace(&mut self.record.timed, true) {
            let unrouted = &self.worker.gateway.metrics.unrouted;
            let metrics = self.route().map_or(unrouted, |route| &route.metrics);
            metrics.of(self.worker.index).took(now.saturating_sub(self.started));
        }
    }

    fn line(&self, log: &AccessLog, status: StatusCode, refusal: Option<&Refusal>) -> Line {
        let (snapshot, clock) = (self.snapshot(), &self.worker.gateway.clock);
        let path = self.destination().map(Destination::path);
        let time = clock.wall(self.started);
        let mut line = Line::begin(log.format, time, status, &self.method, path);
        line.text("ip", &self.origin.ip.to_string());
        let caller = self.caller.as_ref();
        let plan = |caller: &Caller| {
            let plan = snapshot.plans.get(caller.user_plan).filter(|_| caller.user.is_some());
            plan.map(|plan| plan.name.as_str())
        };
        let texts = [
            ("host", self.destination().map(|destination| destination.host.as_str())),
            ("user", caller.and_then(|caller| caller.user.as_deref())),
            ("plan", caller.and_then(plan)),
            ("api_key", caller.and_then(|caller| caller.api_key.as_deref())),
            ("route", self.route().map(|route| route.name.as_str())),
            ("upstream", self.endpoint.as_ref().map(|endpoint| endpoint.name.as_str())),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                line.text(name, text);
            }
        }
        let headers = self.record.headers.iter();
        line.texts("headers", headers.map(|(name, value)| (log.headers[*name].as_str(), &**value)));
        if self.attempts > 1 {
            line.number("attempts", self.attempts.into());
        }
        if let Some(said) = self.judgement.rejected_by.map(|index| self.judgement.said[index]) {
            line.text("limit", &self.limits()[said.limit].name);
        }
        if let Some(said) = self.judgement.speaker(self.limits()) {
            line.number("remaining", said.verdict.remaining().into());
        }
        if let Some(refusal) = refusal {
            line.text("error", &refusal.to_string());
        }
        line.id(|out| self.trace.write_request_id(out));
        line
    }

    /// The last byte is out, or will never be: writes the log's line. Only the first call counts.
    pub(super) fn finish(&mut self, bytes: u64, whole: bool) {
        if std::mem::replace(&mut self.record.done, true) {
            return;
        }
        self.leave();
        drop(self.settle(End::Left));
        self.admission = None;
        self.worker.metrics().add_in_flight(-1);
        // A client that left waits for nothing: its connection knows.
        if !self.client_has_left() {
            self.peer.activity.request_ended();
        }
        let now = self.worker.gateway.clock.now();
        // Whoever left before there was an answer has had none, and is not counted as one.
        if self.record.status.is_some() {
            self.note_duration(now);
        }
        let snapshot = self.snapshot();
        if snapshot.telemetry.otlp.is_some() && self.trace.is_exported(&snapshot.telemetry) {
            self.export(now);
        }
        let Record { upstream, overhead, .. } = self.record;
        let Some(mut line) = self.record.line.take() else { return };
        line.number("bytes", bytes);
        let costs = self.record.costs.iter();
        line.numbers("costs", costs.map(|(limit, cost)| (limit.name.as_str(), (*cost).into())));
        line.millis("duration_ms", now.saturating_sub(self.started));
        if self.record.asked_at > 0 {
            line.millis("upstream_ms", upstream);
        }
        line.millis("overhead_ms", overhead);
        if !whole {
            line.text("aborted", "the response was cut short");
        }
        self.worker.gateway.access_log.append(self.worker.index, &line.finish());
    }

    /// A span for the request, and one for asking its upstream.
    #[cold]
    fn export(&self, now: Micros) {
        let (gateway, snapshot) = (&self.worker.gateway, self.snapshot());
        let (trace, (parent, server, client)) = (self.trace.trace(), self.trace.spans());
        let wall = |moment| gateway.clock.wall(moment);
        let (route, record) = (self.route(), &self.record);
        let failed = record.status.is_none_or(|status| status.is_server_error());
        let status = record.status.map(|status| Attribute::Number(status.as_u16().into()));
        let mut request = Span {
            trace,
            id: server,
            parent,
            name: route.map_or_else(
                || self.method.to_string(),
                |route| format!("{} {}", self.method, route.name),
            ),
            client: false,
            began: wall(self.started),
            ended: wall(now),
            failed,
            attributes: status.map(|s| ("http.response.status_code", s)).into_iter().collect(),
        };
        request.attributes.extend(self.attributes());
        let asked = route.filter(|_| record.asked_at > 0).map(|route| {
            let upstream = &snapshot.upstreams[route.upstream];
            let mut attributes = vec![("sluice.upstream", upstream.name().into())];
            if let Some(endpoint) = &record.endpoint {
                attributes.push(("server.address", endpoint.name.as_str().into()));
            }
            Span {
                trace,
                id: client,
                parent: Some(server),
                name: format!("{} {}", self.method, upstream.name()),
                client: true,
                began: wall(record.asked_at),
                ended: wall(record.asked_at + record.upstream),
                failed,
                attributes,
            }
        });
        let dropped = gateway.spans.put(std::iter::once(request).chain(asked));
        gateway.metrics.spans_dropped.add(dropped);
    }

    fn attributes(&self) -> Vec<(&'static str, Attribute)> {
        let caller = self.caller.as_ref();
        let mut id = Vec::new();
        self.trace.write_request_id(&mut id);
        let rejected = self.judgement.rejected_by.map(|index| self.judgement.said[index].limit);
        let (ip, limits) = (self.origin.ip.to_string(), self.limits());
        let id = String::from_utf8_lossy(&id);
        let all = [
            ("http.request.method", Some(self.method.as_str())),
            ("url.path", self.destination().map(Destination::path)),
            ("http.route", self.route().map(|route| route.name.as_str())),
            ("server.address", self.destination().map(|destination| destination.host.as_str())),
            ("client.address", Some(ip.as_str())),
            ("enduser.id", caller.and_then(|caller| caller.user.as_deref())),
            ("sluice.api_key", caller.and_then(|caller| caller.api_key.as_deref())),
            ("sluice.limit", rejected.map(|limit| limits[limit].name.as_str())),
            ("sluice.request_id", Some(&*id)),
        ];
        let known = all.into_iter().filter_map(|(name, text)| Some((name, text?.into())));
        known.collect()
    }
}
