//! The life of a request, from its head to the last byte of its response.
//!
//! [`handle`] is the whole product on one screen: each step is a file of this folder, in the order
//! in which the names sort.

pub mod accept;
pub mod address;
pub mod body;
pub mod destination;
mod exchange;
mod forward;
pub mod identify;
pub mod judge;
pub mod refusal;
pub mod relay;
pub mod respond;

use crate::worker::Worker;
use accept::Peer;
use address::Origin;
use body::Body;
use destination::Destination;
use exchange::Exchange;
use http::{Request, Response};
use hyper::body::Incoming;
use identify::Caller;
use refusal::Refusal;
use relay::Answer;
use std::rc::Rc;

/// Answers one request.
pub async fn handle(
    worker: Rc<Worker>,
    peer: Rc<Peer>,
    request: Request<Incoming>,
) -> Response<Body> {
    let mut exchange = Exchange::begin(worker, peer);
    exchange.note_request(&request);
    match pass(&mut exchange, request).await {
        Ok(answer) => respond::relayed(exchange, answer),
        Err(refusal) => respond::refused(exchange, &refusal),
    }
}

/// Every step may refuse. Whatever a request is refused for, its limits are asked first: bad
/// requests and bad credentials are limited too.
async fn pass(exchange: &mut Exchange, request: Request<Incoming>) -> Result<Answer, Refusal> {
    let origin = address::origin(&exchange.peer, request.headers(), exchange.snapshot());
    let arrived = arrive(exchange, origin, &request);
    let caller = arrived.as_ref().map(|(_, caller)| caller).ok();
    exchange.note_caller(origin, caller);

    let (judgement, ruling) = judge::judge(exchange, origin, caller, request.headers()).await;
    exchange.judgement = judgement;
    exchange.admission = Some(ruling?);

    let (destination, _) = arrived?;
    let route = exchange.found_route()?;
    let request = forward::prepare(exchange, route, &destination, request)?;
    relay::relay(exchange, route, request).await
}

/// Where the request wants to go, and who asks.
fn arrive(
    exchange: &mut Exchange,
    origin: Origin,
    request: &Request<Incoming>,
) -> Result<(Destination, Caller), Refusal> {
    let destination = Destination::of(request)?;
    exchange.find_route(&destination, request.method());
    let caller = identify::caller(exchange, origin, request)?;
    Ok((destination, caller))
}
