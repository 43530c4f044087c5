//! Picks an endpoint and gets an answer from it. What fails there may be sent once more, to another
//! one: if doing it twice is the same as doing it once, if nothing of an answer was passed on, and if
//! not too many others are sent twice already.

mod way;

use super::body::Source;
use super::exchange::Exchange;
use super::forward::Prepared;
use super::judge;
use super::refusal::Refusal;
use crate::upstream::answer::Head;
use crate::upstream::connect::ConnectError;
use crate::upstream::connection::{AskError, Guard};
use crate::upstream::station::{Crew, Station};
use crate::upstream::upload::{Upload, UploadError};
use crate::upstream::{Fault, InFlight, Upstream};
use http::StatusCode;
use smallvec::SmallVec;
use std::rc::Rc;
use way::{Failure, Way};

/// The head of a backend's answer, and where its body comes from.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) head: Head,
    pub(super) source: Source,
    /// From now on it is a tunnel.
    pub(super) switched: bool,
}

/// Gets an answer from the route's upstream. (Two instances, as of [`super::forward()`].)
pub(super) async fn relay<const OUTLIVES: bool>(
    exchange: &mut Exchange,
    route: usize,
    request: &mut Prepared,
) -> Result<Answer, Refusal> {
    let generation = Rc::clone(&exchange.generation);
    let index = generation.snapshot.routes[route].upstream;
    let (upstream, station) = (&generation.snapshot.upstreams[index], &generation.stations[index]);
    let crew = station.crew(upstream, &exchange.worker.deadlines);
    station.budget.request(exchange.worker.deadlines.tick());
    let mut guard =
        exchange.admission.take_if(|admission| admission.holds()).map(|a| Box::new(a) as Guard);
    let mut tries = Tries { upstream, station, crew: &crew, tried: SmallVec::new() };
    let Some(mut picked) = tries.first(exchange) else {
        upstream.metrics.unavailable.increment();
        return Err(Refusal::NoEndpoint);
    };
    loop {
        let endpoint = &crew.members.endpoints[picked];
        exchange.endpoint = Some(endpoint.begin());
        exchange.attempts += 1;
        exchange.ask(request.body().map(Upload::progress));
        let had_body = request.body().is_some();
        let began = exchange.worker.gateway.clock.now();
        let way = Way { upstream, endpoint, pool: &crew.pools[picked], budget: &station.budget };
        let asked = match request {
            // Most of them are answered, and the answer is handed on as it is.
            Prepared::Http1(request) => {
                let asked = way.send::<OUTLIVES>(exchange, request, &mut guard).await;
                exchange.note_asked(upstream, began);
                match asked {
                    Ok(answer) if !answer.head.status.is_server_error() => return Ok(answer),
                    asked => asked,
                }
            }
            // Fewer have it, and the others need no room for it.
            Prepared::Http2(request) => {
                let asked = Box::pin(way.send_over_http2(exchange, request, &mut guard)).await;
                exchange.note_asked(upstream, began);
                asked
            }
        };
        let status = asked.as_ref().ok().map(|answer| answer.head.status);
        let fault = match &asked {
            Ok(_) => status.filter(StatusCode::is_server_error).map(|_| Fault::Status),
            // Somebody in a hurry is nobody to blame a backend by.
            Err(failure) => {
                failure.fault().filter(|fault| *fault != Fault::Late || !request.is_hurried())
            }
        };
        match (status, fault) {
            (Some(_), _) => {}
            (None, Some(Fault::Late)) => exchange.gave_up(),
            (None, _) => exchange.failed(),
        }
        let next = fault.and_then(|fault| {
            if !status.is_some_and(is_the_requests) {
                exchange.endpoint.iter().for_each(InFlight::went_wrong);
                let now = exchange.worker.gateway.clock.now();
                upstream.failed(endpoint, fault, judge::witness(exchange), now);
            }
            // What was sent of a body is gone. What was not sent at all can be sent elsewhere, whatever
            // it does.
            let whole = request.body().is_some() == had_body;
            let once = request.is_idempotent() || !exchange.was_sent();
            let repeatable = whole && once && !exchange.has_told();
            repeatable.then(|| tries.another(exchange, fault, status)).flatten()
        });
        let Some(next) = next else {
            return asked.map_err(|failure| refusal(exchange, failure));
        };
        if let Some(status) = status {
            exchange.answered(status);
        }
        if let Ok(answer) = asked {
            guard = answer.source.give_up();
        }
        picked = next;
    }
}

/// Whether an answer tells of the request, and not of the endpoint: a method or a version of HTTP that it
/// does not know.
fn is_the_requests(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED)
}

/// Who was asked, and who may be asked next.
struct Tries<'a> {
    upstream: &'a Upstream,
    station: &'a Station,
    crew: &'a Crew,
    tried: SmallVec<[usize; 2]>,
}

impl Tries<'_> {
    fn first(&mut self, exchange: &Exchange) -> Option<usize> {
        let (now, caller) = (exchange.started, exchange.origin.counted);
        let picked = self.upstream.pick(&self.crew.members, now, caller, &[])?;
        self.tried.push(picked);
        Some(picked)
    }

    /// Whom to ask after this fault, if it is one to ask somebody else for.
    #[cold]
    fn another(
        &mut self,
        exchange: &Exchange,
        fault: Fault,
        status: Option<StatusCode>,
    ) -> Option<usize> {
        let retries = &self.upstream.config.retries;
        let wanted = match fault {
            Fault::Unreachable | Fault::Broke => retries.connect_failure,
            Fault::Late => retries.timeout,
            Fault::Garbled => false,
            Fault::Status => status.is_some_and(|s| retries.statuses.contains(&s.as_u16())),
        };
        if !wanted || self.tried.len() >= retries.attempts as usize {
            return None;
        }
        let (worker, caller) = (&exchange.worker, exchange.origin.counted);
        let now = worker.gateway.clock.now();
        let picked = self.upstream.pick(&self.crew.members, now, caller, &self.tried)?;
        let metrics = &self.upstream.metrics;
        if !self.station.budget.retry(worker.deadlines.tick(), retries.budget) {
            metrics.over_budget.increment();
            return None;
        }
        metrics.retries.increment();
        self.tried.push(picked);
        Some(picked)
    }
}

/// What it means for the caller that there is no answer.
fn refusal(exchange: &mut Exchange, failure: Failure) -> Refusal {
    if failure.is_ours() {
        exchange.break_off();
    }
    match failure {
        Failure::Ask(AskError::Upload(UploadError::OverLimit)) => exchange.over_limit(),
        Failure::Connect(ConnectError::TimedOut)
        | Failure::Ask(AskError::TimedOut { waiting: false }) => Refusal::GatewayTimeout,
        Failure::Ask(AskError::TimedOut { waiting: true }) => Refusal::Stalled,
        Failure::Ask(AskError::Upload(UploadError::TooLarge)) => Refusal::TooLarge,
        Failure::Ask(AskError::Upload(UploadError::BrokeOff)) => {
            Refusal::Malformed("the body broke off")
        }
        failure => Refusal::BadGateway(failure.to_string()),
    }
}
