//! Picks an endpoint, sends the request over a pooled or a new connection, and reads the head of
//! the answer.

use super::body::Lease;
use super::exchange::Exchange;
use super::refusal::Refusal;
use crate::deadline::ticks;
use crate::upstream::Upstream;
use crate::upstream::answer::Head;
use crate::upstream::connect::{ConnectError, connect};
use crate::upstream::connection::{AskError, Connection, Guard, Outgoing};
use crate::upstream::pool::Pool;
use crate::upstream::upload::UploadError;
use std::rc::Rc;

/// The head of a backend's answer, and the connection its body comes over.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) head: Head,
    pub(super) lease: Lease,
}

/// Gets an answer from the route's upstream.
pub(super) async fn relay(
    exchange: &mut Exchange,
    route: usize,
    request: Outgoing,
) -> Result<Answer, Refusal> {
    let generation = Rc::clone(&exchange.generation);
    let index = generation.snapshot.routes[route].upstream;
    let upstream = &generation.snapshot.upstreams[index];
    let picked = upstream.pick();
    let pool = &generation.pools[index][picked];
    exchange.endpoint = Some(upstream.endpoints[picked].begin());
    if let Some(settlement) = &mut exchange.settlement {
        settlement.send(request.body.as_ref().map(|upload| upload.counter()));
    }
    let guard =
        exchange.admission.take_if(|admission| admission.holds()).map(|a| Box::new(a) as Guard);
    let (connection, head) = send(exchange, upstream, picked, pool, request, guard).await?;
    let lease = Lease { connection, pool: Rc::clone(pool) };
    Ok(Answer { head, lease })
}

/// Sends over an idle connection, or a new one. An idle connection that turns out to be closed
/// costs nothing but the attempt, as long as the request can be sent again.
async fn send(
    exchange: &Exchange,
    upstream: &Upstream,
    picked: usize,
    pool: &Pool,
    mut request: Outgoing,
    mut guard: Option<Guard>,
) -> Result<(Connection, Head), Refusal> {
    let limits = &upstream.timeouts;
    let no_body = request.body.is_none();
    while let Some(mut connection) = pool.take(ticks(limits.idle)) {
        connection.keep_guard(guard);
        match connection.ask(&mut request, limits.response).await {
            Ok(head) => return Ok((connection, head)),
            // The backend had closed it already.
            Err(AskError::Gone { sent: false, .. }) => guard = connection.take_guard(),
            // It may have been closing it at that very moment, or it dies of this request: one more
            // try tells.
            Err(AskError::Gone { .. }) if no_body && request.idempotent => {
                guard = connection.take_guard();
                break;
            }
            Err(error) => return Err(refusal(error)),
        }
    }
    let deadlines = &exchange.worker.deadlines;
    // Most requests find an idle connection, and need no room for the making of one.
    let connecting = connect(&upstream.endpoints[picked], deadlines, limits.connect);
    let connection = Box::pin(connecting).await;
    let mut connection = connection.map_err(|error| match error {
        ConnectError::TimedOut => Refusal::GatewayTimeout,
        error @ ConnectError::Unreachable(_) => Refusal::BadGateway(error.to_string()),
    })?;
    connection.keep_guard(guard);
    match connection.ask(&mut request, limits.response).await {
        Ok(head) => Ok((connection, head)),
        Err(error) => Err(refusal(error)),
    }
}

/// What it means for the caller that there is no answer.
fn refusal(error: AskError) -> Refusal {
    match error {
        AskError::Upload(UploadError::TooLarge) => Refusal::TooLarge,
        AskError::Upload(UploadError::BrokeOff) => Refusal::Malformed("the body broke off"),
        AskError::TimedOut { waiting: true } => Refusal::Stalled,
        AskError::TimedOut { waiting: false } => Refusal::GatewayTimeout,
        error => Refusal::BadGateway(error.to_string()),
    }
}
