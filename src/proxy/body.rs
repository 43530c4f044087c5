//! The response's body as it passes: nothing is held whole, and the backend waits for the caller.

use super::exchange::Exchange;
use crate::upstream::InFlight;
use crate::upstream::connect::Connection;
use crate::upstream::pool::Pool;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

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
    incoming: Incoming,
    /// The backend's connection goes back to its pool when the body has ended in good order.
    lease: Option<Lease>,
    exchange: Exchange,
    bytes: u64,
    whole: bool,
}

/// A connection in use, and where it belongs.
#[derive(Debug)]
pub struct Lease {
    /// The connection.
    pub connection: Connection,
    /// Where it belongs.
    pub pool: Rc<Pool>,
    /// Counts as under way at its endpoint.
    pub in_flight: InFlight,
    /// Whether the backend will take another request on it.
    pub reusable: bool,
}

impl Body {
    pub(super) fn relayed(incoming: Incoming, lease: Lease, exchange: Exchange) -> Self {
        let mut body = Relayed { incoming, lease: Some(lease), exchange, bytes: 0, whole: false };
        if body.incoming.is_end_stream() {
            body.end();
        }
        Self::Relayed(Box::new(body))
    }
}

impl Relayed {
    /// The body came to its end in good order.
    fn end(&mut self) {
        self.whole = true;
        if let Some(Lease { connection, pool, reusable: true, .. }) = self.lease.take() {
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
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self::Relayed(body) = &mut *self else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut body.incoming).poll_frame(cx));
        // hyper does not ask again once the announced length, or a trailer, has passed.
        let ended = match &frame {
            None => true,
            Some(Err(_)) => {
                body.lease = None;
                false
            }
            Some(Ok(frame)) => {
                body.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
                frame.is_trailers() || body.incoming.is_end_stream()
            }
        };
        if ended {
            body.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Relayed(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Relayed(body) => body.incoming.size_hint(),
        }
    }
}
