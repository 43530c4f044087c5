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
use body::Body;
use destination::Destination;
use exchange::Exchange;
use http::{Request, Response};
use hyper::body::Incoming;
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

/// Every step may refuse; the first that does decides the answer.
async fn pass(exchange: &mut Exchange, request: Request<Incoming>) -> Result<Answer, Refusal> {
    let ip = address::caller(&exchange.peer, request.headers(), exchange.snapshot());
    let destination = Destination::of(&request)?;
    let route = exchange.find_route(&destination, request.method());

    let caller = identify::caller(exchange, ip, &request);
    exchange.note_caller(ip, caller.as_ref().ok());
    let (judgement, ruling) = judge::judge(exchange, ip, caller.as_ref(), request.headers()).await;
    exchange.judgement = judgement;
    exchange.admission = Some(ruling?);

    let _ = caller?;
    let route = route?;
    let request = forward::prepare(exchange, route, &destination, request)?;
    relay::relay(exchange, route, request).await
}
