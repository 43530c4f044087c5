//! The way to one endpoint: over an idle connection, a new one, or one that others use as well.

use super::Answer;
use crate::deadline::ticks;
use crate::proxy::body::Source;
use crate::proxy::exchange::Exchange;
use crate::socket::Socket;
use crate::upstream::answer::{AnswerError, Head};
use crate::upstream::budget::Budget;
use crate::upstream::connect::{ConnectError, connect};
use crate::upstream::connection::{AskError, Connection, Guard, Outgoing};
use crate::upstream::http2::{self, Shared};
use crate::upstream::pool::Pool;
use crate::upstream::{Endpoint, Fault, Upstream};
use http::{Request, StatusCode};
use std::rc::Rc;

/// How often a request is sent over HTTP/2 before its endpoint is given up, and how many connections
/// may turn out to have ended before anything was sent.
const ATTEMPTS: usize = 2;
const ENDED: usize = 16;

/// Why an endpoint did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Nothing sensible came over it.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// It takes requests, but no tunnels.
    #[error("the backend takes no tunnels")]
    NoTunnels,
}

impl Failure {
    /// Whether it was the gateway that ended the exchange: the backend may be working on it still.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self, Self::Ask(AskError::Upload(_) | AskError::TimedOut { .. }))
    }

    /// What was wrong with the endpoint, if it was the endpoint.
    pub(super) fn fault(&self) -> Option<Fault> {
        match self {
            Self::Connect(error) => (!error.is_ours()).then_some(Fault::Unreachable),
            // The caller was waited for, or has asked for something that the backend does not have.
            Self::Ask(
                AskError::Upload(_)
                | AskError::TimedOut { waiting: true }
                | AskError::GaveUp(_)
                | AskError::Answer(AnswerError::Switched),
            )
            | Self::NoTunnels => None,
            Self::Ask(AskError::TimedOut { waiting: false }) => Some(Fault::Late),
            Self::Ask(AskError::Gone { .. } | AskError::NotBegun(_) | AskError::Http2(_)) => {
                Some(Fault::Broke)
            }
            // Something of an answer has come: it is not asked for again.
            Self::Ask(AskError::BrokeOff | AskError::Answer(_)) => Some(Fault::Garbled),
        }
    }
}

/// One endpoint of an upstream, and the worker's connections to it.
pub(super) struct Way<'a> {
    pub(super) upstream: &'a Upstream,
    pub(super) endpoint: &'a Endpoint,
    pub(super) pool: &'a Rc<Pool>,
    pub(super) budget: &'a Budget,
}

impl Way<'_> {
    /// Sends over an idle connection, or a new one. An idle connection that turns out to be closed
    /// costs nothing but the attempt, as long as the request can be sent again.
    pub(super) async fn send<const OUTLIVES: bool>(
        &self,
        exchange: &Exchange,
        request: &mut Outgoing,
        guard: &mut Option<Guard>,
    ) -> Result<Answer, Failure> {
        let no_body = request.body.is_none();
        let heard = |head| exchange.interim(head);
        let max_idle = ticks(self.upstream.config.timeouts.idle);
        while let Some(mut connection) = self.pool.take(max_idle) {
            connection.keep_guard(guard.take());
            let before = exchange.reach();
            match connection.ask(request, &heard).await {
                Ok(head) => return Ok(self.answer(connection, head)),
                // The backend had closed it already.
                Err(AskError::Gone { sent: false, .. }) => {
                    exchange.unreach(before);
                    *guard = connection.take_guard();
                }
                // It may have been closing it at that very moment, or it dies of this request: one
                // more try tells.
                Err(AskError::Gone { .. })
                    if no_body && request.idempotent && self.may_repeat(exchange) =>
                {
                    *guard = connection.take_guard();
                    break;
                }
                Err(error) => {
                    *guard = connection.take_guard();
                    return Err(error.into());
                }
            }
        }
        let deadlines = &exchange.worker.deadlines;
        // Most requests find an idle connection, and need no room for the making of one.
        let socket = Box::pin(self.open(exchange)).await?;
        exchange.connected();
        let mut connection = Connection::new(socket, deadlines.register());
        connection.keep_guard(guard.take());
        let before = exchange.reach();
        match connection.ask(request, &heard).await {
            Ok(head) => Ok(self.answer(connection, head)),
            Err(error) => {
                if let AskError::Gone { sent: false, .. } = error {
                    exchange.unreach(before);
                }
                *guard = connection.take_guard();
                Err(error.into())
            }
        }
    }

    /// Whether the budget has room for a request that is sent twice.
    fn may_repeat(&self, exchange: &Exchange) -> bool {
        let share = self.upstream.config.retries.budget;
        self.budget.retry(exchange.worker.deadlines.tick(), share)
    }

    /// A new connection. Where there is no room for it, idle ones go.
    async fn open(&self, exchange: &Exchange) -> Result<Socket, ConnectError> {
        let deadlines = &exchange.worker.deadlines;
        match connect(self.upstream, self.endpoint, deadlines).await {
            Err(error) if error.is_ours() && exchange.generation.shed() => {
                connect(self.upstream, self.endpoint, deadlines).await
            }
            outcome => outcome,
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
    pub(super) async fn send_over_http2(
        &self,
        exchange: &Exchange,
        request: &mut Outgoing<Request<()>>,
        guard: &mut Option<Guard>,
    ) -> Result<Answer, Failure> {
        let heard = |head| exchange.interim(head);
        let deadlines = &exchange.worker.deadlines;
        let (mut left, mut ended) = (ATTEMPTS, ENDED);
        let had_body = request.body.is_some();
        loop {
            let shared = self.shared(exchange).await?;
            exchange.connected();
            let before = exchange.reach();
            if request.upgrade.is_some() && !shared.takes_tunnels() {
                // The backend is there. What it does not offer was the request's wish, and is not free.
                return Err(Failure::NoTunnels);
            }
            match shared.ask(request, deadlines, &heard, guard).await {
                Ok((head, stream)) => {
                    let switched = request.upgrade.is_some() && head.status.is_success();
                    let source = Source::Http2(Box::new(stream));
                    return Ok(Answer { head, source, switched });
                }
                Err(AskError::NotBegun(_)) if ended > 1 => {
                    exchange.unreach(before);
                    ended -= 1;
                }
                Err(AskError::Http2(error))
                    if left > 1
                        && request.body.is_some() == had_body
                        && !exchange.has_told()
                        && (http2::was_refused(&error)
                            || error.is_io()
                                && request.idempotent
                                && self.may_repeat(exchange)) =>
                {
                    left -= 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A connection with room for one more request. One opens it, the others wait for it.
    async fn shared(&self, exchange: &Exchange) -> Result<Rc<Shared>, Failure> {
        if let Some(shared) = self.pool.share() {
            return Ok(shared);
        }
        let deadlines = &exchange.worker.deadlines;
        let opening = async {
            let _turn = self.pool.opening.lock().await;
            if let Some(shared) = self.pool.share() {
                return Ok(shared);
            }
            let socket = self.open(exchange).await?;
            let shared = Shared::new(socket, deadlines).await.map_err(AskError::from)?;
            self.pool.add(&shared);
            Ok(shared)
        };
        let limit = self.upstream.config.timeouts.connect;
        let opened = deadlines.within(limit, opening).await;
        opened.unwrap_or(Err(ConnectError::TimedOut.into()))
    }
}
