//! The life of a request, from its head to the last byte of its response.
//!
//! [`handle`] is the whole product on one screen: each step is a file of this folder.

pub mod accept;
pub mod address;
pub mod body;
pub mod destination;
mod early_denial;
mod exchange;
mod forward;
mod frames;
mod http1;
mod http2;
pub mod identify;
pub mod judge;
mod present;
pub mod refusal;
pub mod relay;
pub mod respond;
mod settle;
mod tunnel;
mod watched;

use crate::incoming::Incoming;
use crate::upgrade::Upgrade;
use crate::worker::Worker;
use accept::Peer;
use body::Body;
use destination::Destination;
use exchange::Exchange;
use http::{Request, Response};
use http_body::Body as _;
use refusal::Refusal;
use relay::Answer;
use std::convert::Infallible;
use std::rc::Rc;

/// Answers one request. `upgrade` is what it wants to switch to, unless its headers tell.
pub async fn handle(
    worker: Rc<Worker>,
    peer: Rc<Peer>,
    request: Request<Incoming>,
    upgrade: Option<Upgrade>,
) -> Result<Response<Body>, Infallible> {
    let mut exchange = Exchange::begin(worker, peer, &request, upgrade);
    // Over HTTP/2 a body that nobody reads is in nobody's way.
    let no_body = request.body().is_end_stream() || matches!(request.body(), Incoming::Http2(_));
    let mut request = Some(request);
    let outcome = pass(&mut exchange, &mut request).await;
    exchange.forget_interim();
    Ok(match outcome {
        Ok(answer) => {
            let mut response = respond::relayed(exchange, answer);
            response.body_mut().told().await;
            response
        }
        Err(refusal) => {
            let read = no_body || body::discard(request, &exchange.worker.deadlines).await;
            respond::refused(exchange, &refusal, read)
        }
    })
}

/// Every step may refuse. Whatever a request is refused for, its limits are asked first: bad
/// requests and bad credentials are limited too. The request is taken when it is forwarded.
async fn pass(
    exchange: &mut Exchange,
    request: &mut Option<Request<Incoming>>,
) -> Result<Answer, Refusal> {
    let Some(head) = request else { return Err(Refusal::Malformed("no request")) };
    exchange.origin = address::origin(exchange, head.headers());
    early_denial::address(exchange)?;
    let arrived = arrive(exchange, head);
    early_denial::identity(exchange)?;
    judge::judge(exchange, head.headers()).await?;
    arrived?;
    let (route, _) = exchange.found()?;
    let request = forward::prepare(exchange, route, request)?;
    relay::relay(exchange, route, request).await
}

/// Where the request wants to go, and who asks.
fn arrive(exchange: &mut Exchange, request: &Request<Incoming>) -> Result<(), Refusal> {
    // In HTTP/1.1 hyper counts them; h2 counts only their bytes.
    if request.headers().len() > exchange.snapshot().server.max_headers {
        return Err(Refusal::TooManyHeaders);
    }
    exchange.find_route(Destination::of(request, exchange.present)?, request.method());
    exchange.caller = Some(identify::caller(exchange, request)?);
    Ok(())
}
