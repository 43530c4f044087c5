//! The life of a request, from its head to the last byte of its response.
//!
//! [`handle`] is the whole product on one screen: each step is a file of this folder.

pub mod accept;
pub mod activity;
pub mod address;
pub mod body;
mod byte_meter;
mod chunks;
pub mod claims;
pub mod destination;
mod early_denial;
mod exchange;
mod forward;
mod frames;
mod http1;
mod http2;
pub mod identify;
mod in_flight;
pub mod judge;
pub(crate) mod leaving;
mod present;
mod record;
pub mod refusal;
pub mod relay;
pub mod respond;
pub(crate) mod settle;
mod tunnel;
pub mod via;
mod watched;
mod websocket;

use crate::incoming::Incoming;
use crate::upgrade::Upgrade;
use crate::worker::Worker;
use accept::Peer;
use body::Body;
use destination::Destination;
use exchange::Exchange;
use http::{Request, Response, Uri};
use judge::Purpose;
use present::Present;
use refusal::Refusal;
use relay::Answer;
use std::convert::Infallible;
use std::rc::Rc;

/// Answers one request. `upgrade` is what it wants to switch to, unless its headers tell.
///
/// What is known at once is put where it stays: the future that is handed on is a small one.
pub fn handle(
    worker: Rc<Worker>,
    peer: Rc<Peer>,
    request: Request<Incoming>,
    upgrade: Option<Box<Upgrade>>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> {
    let mut exchange = Exchange::begin(worker, peer, &request, upgrade);
    let mut request = Some(request);
    async move {
        let outcome = match admit(&mut exchange, request.as_ref()).await {
            Err(refusal) => Err(refusal),
            // A store's decision, and an answer that a cost or a permit depends on, are waited for even if
            // the client leaves.
            Ok(arrived) if arrived.is_some() || exchange.owes_its_answer() => {
                match leaving::own(exchange, request, arrived).await {
                    Some(done) => {
                        (exchange, request) = (done.exchange, done.request);
                        done.outcome
                    }
                    None => return Ok(respond::too_late()),
                }
            }
            Ok(_) => forward::<false>(&mut exchange, &mut request).await,
        };
        Ok(match outcome {
            Ok(answer) => {
                exchange.forget_interim();
                let mut response = respond::relayed(exchange, answer);
                response.body_mut().told().await;
                response
            }
            Err(refusal) => {
                exchange.leave_upstream();
                exchange.forget_interim();
                exchange.note_refusal();
                let headers = request.as_ref().map(Request::headers);
                if let Some(mut telling) = judge::refund(&mut exchange, &refusal, headers) {
                    std::future::poll_fn(|cx| telling.poll(cx)).await;
                }
                let read = exchange.no_body || {
                    let deadlines = &exchange.worker.deadlines;
                    Box::pin(body::discard(request.take(), deadlines)).await
                };
                respond::refused(exchange, &refusal, read)
            }
        })
    }
}

/// What needs no limit: where the request comes from, where it goes, who sends it, and whether it is
/// turned away for that. A bad request or a bad credential is no reason yet: its limits come first.
async fn screen(
    exchange: &mut Exchange,
    request: Option<&Request<Incoming>>,
) -> Result<Result<(), Refusal>, Refusal> {
    let Some(head) = request else { return Err(Refusal::Malformed("no request")) };
    exchange.origin = address::origin(exchange, head.headers());
    exchange.note_headers(head.headers());
    early_denial::address(exchange, head)?;
    let mut arrived = arrive(exchange, head);
    if in_flight::is_at_stake(exchange) {
        in_flight::early(exchange)?;
    }
    if arrived.is_ok() {
        arrived = identify::caller(exchange, head).map(|caller| exchange.caller = Some(caller));
    }
    early_denial::identity(exchange)?;
    if in_flight::is_at_stake(exchange) && in_flight::must_wait(exchange)? {
        Box::pin(in_flight::wait(exchange, head.headers())).await?;
    }
    Ok(arrived)
}

/// Screens the request, and asks its limits. A decision that a shared store has to make is left to
/// [`leaving::own`], together with what was wrong with the request.
async fn admit(
    exchange: &mut Exchange,
    request: Option<&Request<Incoming>>,
) -> Result<Option<Result<(), Refusal>>, Refusal> {
    let arrived = screen(exchange, request).await?;
    if exchange.worker.gateway.store.is_shared() {
        return Ok(Some(arrived));
    }
    decide::<false>(exchange, request, arrived).await?;
    Ok(None)
}

/// The limits, and then what was wrong with the request all the same. (A request that outlives its client
/// has an instance of this and of [`forward()`] of its own, so that the compiler inlines the usual one.)
async fn decide<const OUTLIVES: bool>(
    exchange: &mut Exchange,
    request: Option<&Request<Incoming>>,
    arrived: Result<(), Refusal>,
) -> Result<(), Refusal> {
    let Some(head) = request else { return Err(Refusal::Malformed("no request")) };
    judge::judge(exchange, head.headers(), Purpose::Decide).await?;
    arrived?;
    if exchange.room.was_left() && in_flight::must_wait(exchange)? {
        Box::pin(in_flight::wait(exchange, head.headers())).await?;
    }
    Ok(())
}

/// Asks a backend. The request is taken.
async fn forward<const OUTLIVES: bool>(
    exchange: &mut Exchange,
    request: &mut Option<Request<Incoming>>,
) -> Result<Answer, Refusal> {
    let (route, _) = exchange.found()?;
    let mut request = forward::prepare(exchange, route, request)?;
    relay::relay::<OUTLIVES>(exchange, route, &mut request).await
}

/// Bytes of a target, about as it was written.
fn target_length(uri: &Uri) -> usize {
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    authority + uri.path_and_query().map_or(0, |target| target.as_str().len())
}

/// Where the request wants to go.
fn arrive(exchange: &mut Exchange, request: &Request<Incoming>) -> Result<(), Refusal> {
    // In HTTP/1.1 hyper counts them; h2 counts only their bytes.
    if request.headers().len() > exchange.snapshot().server.max_headers {
        return Err(Refusal::TooManyHeaders);
    }
    if target_length(request.uri()) > exchange.snapshot().server.max_uri_bytes {
        return Err(Refusal::UriTooLong);
    }
    exchange.find_route(Destination::of(request, exchange.present)?, request.method());
    // The route is known: its limits by address are charged for these, too.
    if exchange.present.has(Present::VIA) && exchange.worker.gateway.via.is_in(request.headers()) {
        return Err(Refusal::Loop);
    }
    if exchange.peer.inbound.get().is_garbled() {
        return Err(Refusal::Malformed("the chunks can be read in two ways"));
    }
    Ok(())
}
