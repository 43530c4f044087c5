//! The response's body as it passes: nothing is held whole, and the backend waits for the caller.

use super::exchange::Exchange;
use super::leaving;
use super::settle::{End, Telling};
use super::tunnel;
use crate::deadline::{Deadlines, ticks};
use crate::hop;
use crate::incoming::Incoming;
use crate::upstream::answer::Framing;
use crate::upstream::connection::{BodyError, Connection, Guard};
use crate::upstream::http2::Stream;
use crate::upstream::pool::Pool;
use bytes::Bytes;
use http::header::EXPECT;
use http::{HeaderMap, HeaderName, Request, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// A request's body of at most this many bytes is read even if nobody wants it, so that the
/// connection can go on.
const SHORT: u64 = 4096;

/// A caller who takes longer for a piece of an answer holds the backend up.
const HELD_UP: Duration = Duration::from_millis(250);

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

/// A response's body on its way to the client: what the backend sends, or nothing.
#[derive(Debug)]
pub struct Body(Option<Box<Relayed>>);

/// A body that comes from the backend. It owns the exchange: when it ends, or is dropped because
/// the caller left, what the request held is let go.
#[derive(Debug)]
pub struct Relayed {
    /// Where it comes from, until it has ended.
    source: Option<Source>,
    exchange: Box<Exchange>,
    bytes: u64,
    whole: bool,
    /// When the client was given the last piece, if it has not asked for another yet.
    given: Option<u64>,
    /// The client took its time for a piece. From then on a backend that breaks its answer off may have
    /// given the client up: what it sent before is still on its way.
    held_up: bool,
    /// A shared store is being told what the request cost: the last frame waits for that.
    telling: Option<Telling>,
    last: Option<Frame<Bytes>>,
}

/// Where a body comes from.
#[derive(Debug)]
pub enum Source {
    /// A connection to the backend, which goes back to its pool when the body has ended in good
    /// order.
    Http1 {
        /// The connection.
        connection: Connection,
        /// Where it belongs.
        pool: Rc<Pool>,
        /// Where the body ends.
        framing: Framing,
        /// Whether the backend will take another request on it.
        reusable: bool,
    },
    /// A stream of a connection that others use, too.
    Http2(Box<Stream>),
}

impl Source {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut frame = match self {
            Self::Http1 { connection, framing, .. } => connection.poll_frame(framing, cx),
            Self::Http2(stream) => stream.poll_frame(cx),
        };
        if let Poll::Ready(Some(Ok(frame))) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            remove_what_may_not_trail(trailers);
        }
        frame
    }

    /// Nothing more belongs to the body. Over HTTP/2 a stream may end after its last byte; to
    /// HTTP/1.1 there is nothing to tell after it, and nobody would ask again.
    fn is_over(&self, to: Version) -> bool {
        match self {
            Self::Http1 { framing, .. } => framing.is_over(),
            Self::Http2(stream) => {
                stream.is_over() || to != Version::HTTP_2 && stream.left() == Some(0)
            }
        }
    }

    /// How many bytes are still to come, if that is known.
    fn left(&self) -> Option<u64> {
        match self {
            Self::Http1 { framing: Framing::Length(left), .. } => Some(*left),
            Self::Http1 { .. } => None,
            Self::Http2(stream) => stream.left(),
        }
    }

    /// The backend's end of a tunnel, once it has switched.
    pub(super) fn into_tunnel(self) -> Option<tunnel::Backend> {
        match self {
            Self::Http1 { connection, .. } => {
                let (socket, said, guard) = connection.into_tunnel()?;
                Some(tunnel::Backend { end: Box::new(socket), said: said.to_vec(), guard })
            }
            Self::Http2(stream) => {
                let (socket, guard) = stream.into_tunnel()?;
                let guard: Option<Guard> = Some(Box::new(guard));
                Some(tunnel::Backend { end: Box::new(socket), said: Vec::new(), guard })
            }
        }
    }

    /// Whether it was the caller who did not bring the exchange to its end.
    fn upload_failed(&self) -> bool {
        match self {
            Self::Http1 { connection, .. } => connection.upload_failed(),
            Self::Http2(stream) => stream.upload_failed(),
        }
    }

    /// Whether something is to be let go of when the request is over.
    fn has_guard(&self) -> bool {
        match self {
            Self::Http1 { connection, .. } => connection.has_guard(),
            Self::Http2(stream) => stream.has_guard(),
        }
    }

    /// Nobody wants this answer. What is to be let go of when the request is over is handed back.
    pub(super) fn give_up(self) -> Option<Guard> {
        match self {
            Self::Http1 { mut connection, pool, framing, reusable } => {
                let guard = connection.take_guard();
                if reusable && framing.is_over() {
                    pool.put(connection);
                }
                guard
            }
            Self::Http2(mut stream) => stream.take_guard(),
        }
    }

    /// The body came to its end in good order.
    fn end(self) {
        if let Self::Http1 { mut connection, pool, reusable, .. } = self {
            drop(connection.take_guard());
            if reusable {
                pool.put(connection);
            }
        }
    }
}

/// Trailers that say how an answer is to be read come too late.
fn remove_what_may_not_trail(trailers: &mut HeaderMap) {
    let hidden = |name: &&HeaderName| !hop::may_trail(name);
    let hidden: Vec<HeaderName> = trailers.keys().filter(hidden).cloned().collect();
    for name in hidden {
        trailers.remove(name);
    }
}

impl Body {
    /// No body: the head says it all.
    pub(super) const EMPTY: Self = Self(None);

    pub(super) fn relayed(source: Source, exchange: Box<Exchange>) -> Self {
        let (telling, last) = (None, None);
        let source = Some(source);
        let mut body = Relayed {
            source,
            exchange,
            bytes: 0,
            whole: false,
            given: None,
            held_up: false,
            telling,
            last,
        };
        let to = body.exchange.version;
        if body.source.as_ref().is_some_and(|source| source.is_over(to)) {
            body.end();
        }
        Self(Some(Box::new(body)))
    }

    /// What is still to come from the backend, for a client that is not there to read it.
    pub(super) fn take(&mut self) -> Option<Box<Relayed>> {
        self.0.take()
    }

    /// If the head is all there is, it waits for what the request cost to be told.
    pub(super) async fn told(&mut self) {
        if let Some(body) = &mut self.0
            && body.source.is_none()
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
        self.exchange.leave_endpoint();
        self.source.take().into_iter().for_each(Source::end);
    }
}

impl Relayed {
    /// Whether a cost or a permit depends on what is still to come of it.
    pub(super) fn is_owed(&self) -> bool {
        let guarded = || self.source.as_ref().is_some_and(Source::has_guard);
        self.source.is_some() && (self.exchange.owes_its_answer() || guarded())
    }

    /// Whether it has come to its end.
    pub(super) fn is_over(&self) -> bool {
        self.source.is_none()
    }

    /// Bytes that came from the backend.
    pub(super) fn received(&self) -> u64 {
        self.bytes
    }

    /// The next piece.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        if let Some(telling) = &mut self.telling {
            ready!(telling.poll(cx));
            self.telling = None;
            return Poll::Ready(self.last.take().map(Ok));
        }
        let Some(source) = &mut self.source else { return Poll::Ready(None) };
        let given = self.given.take();
        let tick = self.exchange.worker.deadlines.tick();
        self.held_up |= given.is_some_and(|given| tick - given > ticks(HELD_UP));
        let frame = ready!(source.poll_frame(cx));
        self.given = Some(self.exchange.worker.deadlines.tick());
        let over = source.is_over(self.exchange.version);
        match &frame {
            None => self.end(),
            Some(Err(error)) => {
                // A backend that fell silent may be working on it still.
                if let (BodyError::Silent, Some(custody)) = (error, &self.exchange.custody) {
                    custody.break_off();
                }
                // A backend that gives a client up that does not come back for more is not to blame.
                let blameless = self.held_up || source.upload_failed();
                self.source = None;
                if !blameless {
                    self.exchange.backend_broke();
                }
                let end = if blameless { End::Left } else { End::Failed };
                drop(self.exchange.settle(end));
            }
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.bytes += data.len() as u64;
                    if let Some(settlement) = &mut self.exchange.settlement {
                        settlement.data(data);
                    }
                }
                // hyper does not ask again once the announced length, or a trailer, has passed.
                if over {
                    self.end();
                }
            }
        }
        if self.telling.is_some() {
            self.last = frame.and_then(Result::ok);
            return self.poll_next(cx);
        }
        Poll::Ready(frame)
    }
}

/// What a body gives next.
type Piece = Result<Frame<Bytes>, BodyError>;

impl Drop for Relayed {
    fn drop(&mut self) {
        self.exchange.finish(self.bytes, self.whole);
    }
}

/// The client left before the end, if it is not the end.
impl Drop for Body {
    fn drop(&mut self) {
        if let Some(body) = self.0.take_if(|body| body.is_owed())
            && let Some(custody) = body.exchange.custody.clone().filter(|c| !c.has_left())
        {
            leaving::read_on(body, custody);
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Some(body) => body.poll_next(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|body| body.source.is_none() && body.telling.is_none())
    }

    fn size_hint(&self) -> SizeHint {
        let source = self.0.as_ref().and_then(|body| body.source.as_ref());
        let left = source.map_or(Some(0), Source::left);
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
