//! Picks an endpoint, sends the request over a pooled or a new connection, and reads the head of
//! the answer.

use super::body::Source;
use super::exchange::Exchange;
use super::forward::Prepared;
use super::refusal::Refusal;
use crate::deadline::ticks;
use crate::upstream::answer::Head;
use crate::upstream::connect::{ConnectError, connect};
use crate::upstream::connection::{AskError, Connection, Guard, Outgoing};
use crate::upstream::http2::{self, Shared};
use crate::upstream::pool::Pool;
use crate::upstream::upload::UploadError;
use crate::upstream::{Endpoint, Upstream};
use http::{Request, StatusCode};
use std::rc::Rc;

/// How often a request is sent over HTTP/2 before its backend is given up, and how many connections
/// may turn out to have ended before anything was sent.
const ATTEMPTS: usize = 2;
const ENDED: usize = 16;

/// The head of a backend's answer, and where its body comes from.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) head: Head,
    pub(super) source: Source,
    /// From now on it is a tunnel.
    pub(super) switched: bool,
}

/// One endpoint of an upstream, and the worker's connections to it.
struct Way<'a> {
    upstream: &'a Upstream,
    endpoint: &'a Endpoint,
    pool: &'a Rc<Pool>,
}

/// Gets an answer from the route's upstream.
pub(super) async fn relay(
    exchange: &mut Exchange,
    route: usize,
    request: Prepared,
) -> Result<Answer, Refusal> {
    let generation = Rc::clone(&exchange.generation);
    let index = generation.snapshot.routes[route].upstream;
    let upstream = &generation.snapshot.upstreams[index];
    let picked = upstream.pick();
    let endpoint = &upstream.endpoints[picked];
    let way = Way { upstream, endpoint, pool: &generation.pools[index][picked] };
    exchange.endpoint = Some(endpoint.begin());
    if let Some(settlement) = &mut exchange.settlement {
        let body = match &request {
            Prepared::Http1(request) => &request.body,
            Prepared::Http2(request) => &request.body,
        };
        settlement.send(body.as_ref().map(|upload| upload.counter()));
    }
    let guard =
        exchange.admission.take_if(|admission| admission.holds()).map(|a| Box::new(a) as Guard);
    match request {
        Prepared::Http1(request) => way.send(exchange, request, guard).await,
        // Fewer have it, and the others need no room for it.
        Prepared::Http2(request) => Box::pin(way.send_over_http2(exchange, request, guard)).await,
    }
}

impl Way<'_> {
    /// Sends over an idle connection, or a new one. An idle connection that turns out to be closed
    /// costs nothing but the attempt, as long as the request can be sent again.
    async fn send(
        &self,
        exchange: &Exchange,
        mut request: Outgoing,
        mut guard: Option<Guard>,
    ) -> Result<Answer, Refusal> {
        let no_body = request.body.is_none();
        let heard = |head| exchange.interim(head);
        while let Some(mut connection) = self.pool.take(ticks(self.upstream.timeouts.idle)) {
            connection.keep_guard(guard);
            match connection.ask(&mut request, &heard).await {
                Ok(head) => return Ok(self.answer(connection, head)),
                // The backend had closed it already.
                Err(AskError::Gone { sent: false, .. }) => guard = connection.take_guard(),
                // It may have been closing it at that very moment, or it dies of this request: one
                // more try tells.
                Err(AskError::Gone { .. }) if no_body && request.idempotent => {
                    guard = connection.take_guard();
                    break;
                }
                Err(error) => return Err(refusal(error)),
            }
        }
        let deadlines = &exchange.worker.deadlines;
        // Most requests find an idle connection, and need no room for the making of one.
        let connecting = Box::pin(connect(self.upstream, self.endpoint, deadlines));
        let socket = connecting.await.map_err(unreachable)?;
        let mut connection = Connection::new(socket, deadlines.register());
        connection.keep_guard(guard);
        match connection.ask(&mut request, &heard).await {
            Ok(head) => Ok(self.answer(connection, head)),
            Err(error) => Err(refusal(error)),
        }
    }

    fn answer(&self, connection: Connection, head: Head) -> Answer {
        let pool = Rc::clone(self.pool);
        let (framing, reusable) = (head.framing, head.reusable);
        let switched = head.status == StatusCode::SWITCHING_PROTOCOLS;
        Answer { head, source: Source::Http1 { connection, pool, framing, reusable }, switched }
    }

    /// Sends over a connection that others use, too. What a backend says it has not begun is sent
    /// once more.
    async fn send_over_http2(
        &self,
        exchange: &Exchange,
        mut request: Box<Outgoing<Request<()>>>,
        mut guard: Option<Guard>,
    ) -> Result<Answer, Refusal> {
        let heard = |head| exchange.interim(head);
        let deadlines = &exchange.worker.deadlines;
        let no_body = request.body.is_none();
        let (mut left, mut ended) = (ATTEMPTS, ENDED);
        loop {
            let shared = self.shared(exchange).await?;
            if request.upgrade.is_some() && !shared.takes_tunnels() {
                return Err(Refusal::BadGateway("the backend takes no tunnels".to_owned()));
            }
            let asked = shared.ask(&mut request, deadlines, &heard, &mut guard).await;
            match asked {
                Ok((head, stream)) => {
                    let switched = request.upgrade.is_some() && head.status.is_success();
                    let source = Source::Http2(Box::new(stream));
                    return Ok(Answer { head, source, switched });
                }
                Err(AskError::NotBegun(_)) if ended > 1 => ended -= 1,
                Err(AskError::Http2(error))
                    if left > 1
                        && no_body
                        && (http2::was_refused(&error) || error.is_io() && request.idempotent) =>
                {
                    left -= 1;
                }
                Err(error) => return Err(refusal(error)),
            }
        }
    }

    /// A connection with room for one more request. One opens it, the others wait for it.
    async fn shared(&self, exchange: &Exchange) -> Result<Rc<Shared>, Refusal> {
        if let Some(shared) = self.pool.share() {
            return Ok(shared);
        }
        let deadlines = &exchange.worker.deadlines;
        let opening = async {
            let _turn = self.pool.opening.lock().await;
            if let Some(shared) = self.pool.share() {
                return Ok(shared);
            }
            let socket =
                connect(self.upstream, self.endpoint, deadlines).await.map_err(unreachable)?;
            let shared = Shared::new(socket, deadlines).await;
            let shared = shared.map_err(|error| refusal(error.into()))?;
            self.pool.add(&shared);
            Ok(shared)
        };
        let opened = deadlines.within(self.upstream.timeouts.connect, opening).await;
        opened.unwrap_or(Err(Refusal::GatewayTimeout))
    }
}

fn unreachable(error: ConnectError) -> Refusal {
    match error {
        ConnectError::TimedOut => Refusal::GatewayTimeout,
        error => Refusal::BadGateway(error.to_string()),
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
