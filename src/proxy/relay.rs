//! Picks an endpoint, sends the request over a pooled or a new connection, and reads the head of
//! the answer.

use super::body::Lease;
use super::exchange::Exchange;
use super::refusal::Refusal;
use crate::deadline::ticks;
use crate::upstream::Upstream;
use crate::upstream::connect::{ConnectError, Connection, Guard, connect};
use crate::upstream::pool::Pool;
use crate::upstream::upload::RequestBody;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The head of a backend's answer, and the connection its body comes over.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) response: Response<Incoming>,
    pub(super) lease: Lease,
}

/// Gets an answer from the route's upstream.
pub(super) async fn relay(
    exchange: &mut Exchange,
    route: usize,
    request: Request<RequestBody>,
) -> Result<Answer, Refusal> {
    let generation = Rc::clone(&exchange.generation);
    let index = generation.snapshot.routes[route].upstream;
    let upstream = &generation.snapshot.upstreams[index];
    let picked = upstream.pick();
    let endpoint = &upstream.endpoints[picked];
    let pool = &generation.pools[index][picked];
    exchange.endpoint = Some(Arc::clone(endpoint));
    let in_flight = endpoint.begin();

    if let Some(settlement) = &mut exchange.settlement {
        settlement.send(request.body().upload());
    }
    let guard =
        exchange.admission.take_if(|admission| admission.holds()).map(|a| Box::new(a) as Guard);
    let (connection, response) = send(exchange, upstream, picked, pool, request, guard).await?;
    let reusable =
        !closes(response.headers()) && response.status() != StatusCode::SWITCHING_PROTOCOLS;
    check(&response)?;
    let lease = Lease { connection, pool: Rc::clone(pool), in_flight, reusable };
    Ok(Answer { response, lease })
}

/// Sends over an idle connection, or a new one. An idle connection that turns out to be closed
/// costs nothing but the attempt, as long as the request can be sent again.
async fn send(
    exchange: &Exchange,
    upstream: &Upstream,
    picked: usize,
    pool: &Pool,
    mut request: Request<RequestBody>,
    mut guard: Option<Guard>,
) -> Result<(Connection, Response<Incoming>), Refusal> {
    let deadlines = &exchange.worker.deadlines;
    let limits = &upstream.timeouts;
    while let Some(connection) = pool.take(ticks(limits.idle)) {
        // The backend may be closing it at this very moment.
        let copy = repeatable(&request);
        connection.keep_guard(guard);
        match converse(exchange, limits.response, connection, request).await {
            Ok(answer) => return Ok(answer),
            Err(Failed { unsent: Some(again), guard: kept, .. }) => {
                (request, guard) = (*again, kept);
            }
            Err(Failed { gone: true, refusal, guard: kept, .. }) => {
                (request, guard) = (copy.ok_or(refusal)?, kept);
            }
            Err(failed) => return Err(failed.refusal),
        }
    }
    let connection = connect(&upstream.endpoints[picked], deadlines, limits.connect).await;
    let connection = connection.map_err(|error| match error {
        ConnectError::TimedOut => Refusal::GatewayTimeout,
        error => Refusal::BadGateway(error.to_string()),
    })?;
    connection.keep_guard(guard);
    converse(exchange, limits.response, connection, request).await.map_err(|f| f.refusal)
}

/// A copy of a request that may be sent twice: nothing follows its head, and doing it twice is the
/// same as once.
fn repeatable(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    if !request.body().is_end_stream() || !request.method().is_idempotent() {
        return None;
    }
    let mut copy = Request::new(RequestBody::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// A request that got no answer.
struct Failed {
    refusal: Refusal,
    /// The request, if nothing of it was sent.
    unsent: Option<Box<Request<RequestBody>>>,
    /// The backend closed the connection without a word.
    gone: bool,
    /// What the request held, if it is over at the backend's end.
    guard: Option<Guard>,
}

/// Sends the request and waits for the head of its answer.
async fn converse(
    exchange: &Exchange,
    limit: Duration,
    mut connection: Connection,
    request: Request<RequestBody>,
) -> Result<(Connection, Response<Incoming>), Failed> {
    let upload = request.body().upload();
    let deadline = Rc::new(exchange.worker.deadlines.register());
    deadline.set(limit);
    if let Some(upload) = &upload {
        upload.puts_off(Rc::clone(&deadline), limit);
    }
    let sent = deadline.guard(connection.sender.try_send_request(request)).await;
    match sent {
        Ok(Ok(response)) => Ok((connection, response)),
        Ok(Err(mut error)) => {
            let unsent = error.take_message().map(Box::new);
            let error = error.into_error();
            let refusal = match upload {
                Some(upload) if upload.is_too_large() => Refusal::TooLarge,
                Some(upload) if upload.has_failed() => Refusal::Malformed("the body broke off"),
                _ => Refusal::BadGateway(describe(&error)),
            };
            let guard = connection.take_guard();
            Err(Failed { refusal, unsent, gone: is_gone(&error), guard })
        }
        Err(_) => {
            let waiting = upload.is_some_and(|upload| upload.is_waiting());
            let refusal = if waiting { Refusal::Stalled } else { Refusal::GatewayTimeout };
            Err(Failed { refusal, unsent: None, gone: false, guard: None })
        }
    }
}

/// Whether the backend closed or reset the connection without a word.
fn is_gone(error: &hyper::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return matches!(io.kind(), BrokenPipe | ConnectionAborted | ConnectionReset);
        }
        source = cause.source();
    }
    error.is_incomplete_message() || error.is_closed() || error.is_canceled()
}

/// The error with its causes.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn closes(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION).iter();
    let mut tokens = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    tokens.any(|token| token.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// An answer that two readers could understand differently is no answer.
fn check(response: &Response<Incoming>) -> Result<(), Refusal> {
    let headers = response.headers();
    let bad = |why: &str| Err(Refusal::BadGateway(why.to_owned()));
    if response.status().is_informational() {
        return bad("the backend switched protocols unasked");
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => {}
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            if headers.contains_key(CONTENT_LENGTH) {
                return bad("the backend sent both a length and a transfer coding");
            }
        }
        _ => return bad("the backend sent a transfer coding other than a single chunked"),
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return Ok(()) };
    if !first.as_bytes().iter().all(u8::is_ascii_digit) || lengths.any(|length| length != first) {
        return bad("the backend sent several lengths");
    }
    Ok(())
}
