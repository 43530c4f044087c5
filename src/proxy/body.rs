//! The response's body as it passes: nothing is held whole, and the backend waits for the caller.

use super::exchange::Exchange;
use super::settle::{End, Telling};
use crate::deadline::Deadlines;
use crate::upstream::answer::Framing;
use crate::upstream::connection::{BodyError, Connection};
use crate::upstream::pool::Pool;
use bytes::Bytes;
use http::Request;
use http::header::EXPECT;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// A request's body of at most this many bytes is read even if nobody wants it, so that the
/// connection can go on.
const SHORT: u64 = 4096;

/// How long a short body is waited for: it was sent together with its head.
const PATIENCE: Duration = Duration::from_millis(200);

/// Reads away the body of a request that is refused, if it is short. Says whether it was read to
/// its end; a request that is gone was given to a backend, which may not have taken all of it.
pub(super) async fn discard(request: Option<Request<Incoming>>, deadlines: &Rc<Deadlines>) -> bool {
    let Some(request) = request else { return false };
    let asks_first = request.headers().contains_key(EXPECT);
    let mut body = request.into_body();
    // Whoever asks first would be told to go on by the mere reading.
    if asks_first || body.size_hint().exact().is_none_or(|length| length > SHORT) {
        return false;
    }
    let reading = async {
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    deadlines.within(PATIENCE, reading).await.unwrap_or(false)
}

/// A response's body on its way to the caller.
#[derive(Debug)]
pub enum Body {
    /// The head says it all.
    Empty,
    /// What the backend sends.
    Relayed(Box<Relayed>),
}

/// A body that comes from the backend. It owns the exchange: when it ends, or is dropped because
/// the caller left, what the request held is let go.
#[derive(Debug)]
pub struct Relayed {
    /// The backend's connection goes back to its pool when the body has ended in good order.
    lease: Option<Lease>,
    framing: Framing,
    /// Whether the backend will take another request on it.
    reusable: bool,
    exchange: Box<Exchange>,
    bytes: u64,
    whole: bool,
    /// A shared store is being told what the request cost: the last frame waits for that.
    telling: Option<Telling>,
    last: Option<Frame<Bytes>>,
}

/// A connection in use, and where it belongs.
#[derive(Debug)]
pub struct Lease {
    /// The connection.
    pub connection: Connection,
    /// Where it belongs.
    pub pool: Rc<Pool>,
}

impl Body {
    pub(super) fn relayed(
        framing: Framing,
        reusable: bool,
        lease: Lease,
        exchange: Box<Exchange>,
    ) -> Self {
        let lease = Some(lease);
        let (telling, last) = (None, None);
        let mut body =
            Relayed { lease, framing, reusable, exchange, bytes: 0, whole: false, telling, last };
        if body.framing.is_over() {
            body.end();
        }
        Self::Relayed(Box::new(body))
    }
}

impl Body {
    /// If the head is all there is, it waits for what the request cost to be told.
    pub(super) async fn told(&mut self) {
        if let Self::Relayed(body) = self
            && body.framing.is_over()
            && let Some(telling) = &mut body.telling
        {
            std::future::poll_fn(|cx| telling.poll(cx)).await;
            body.telling = None;
        }
    }
}

impl Relayed {
    /// The body came to its end in good order.
    fn end(&mut self) {
        self.whole = true;
        self.telling = self.exchange.settle(End::Whole);
        self.exchange.endpoint = None;
        let Some(Lease { mut connection, pool }) = self.lease.take() else { return };
        drop(connection.take_guard());
        if self.reusable {
            pool.put(connection);
        }
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        self.exchange.finish(self.bytes, self.whole);
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self::Relayed(body) = &mut *self else {
            return Poll::Ready(None);
        };
        if let Some(telling) = &mut body.telling {
            ready!(telling.poll(cx));
            body.telling = None;
            return Poll::Ready(body.last.take().map(Ok));
        }
        let Some(lease) = &mut body.lease else { return Poll::Ready(None) };
        let frame = ready!(lease.connection.poll_frame(&mut body.framing, cx));
        match &frame {
            None => body.end(),
            Some(Err(_)) => {
                body.lease = None;
                drop(body.exchange.settle(End::Failed));
            }
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    body.bytes += data.len() as u64;
                    if let Some(settlement) = &mut body.exchange.settlement {
                        settlement.data(data);
                    }
                }
                // hyper does not ask again once the announced length, or a trailer, has passed.
                if body.framing.is_over() {
                    body.end();
                }
            }
        }
        if body.telling.is_some() {
            body.last = frame.and_then(Result::ok);
            return self.poll_frame(cx);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Relayed(body) => body.framing.is_over() && body.telling.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Relayed(body) => match body.framing {
                Framing::Length(left) => SizeHint::with_exact(left),
                Framing::Chunked(_) | Framing::UntilClose => SizeHint::default(),
            },
        }
    }
}
