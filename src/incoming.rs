//! A request's body as it comes in, over HTTP/1.1 or HTTP/2.

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body, Frame, SizeHint};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// A body that is being received.
#[derive(Debug)]
pub enum Incoming {
    /// There is none.
    Empty,
    /// From hyper.
    Http1(hyper::body::Incoming),
    /// One stream of an HTTP/2 connection.
    Http2(Received),
}

/// What comes in over a stream of HTTP/2; whoever began the stream may hold it, too.
pub type Receiving = Rc<RefCell<RecvStream>>;

/// A body that comes in over a stream of HTTP/2. The sender may send more when what it sent has been passed
/// on: that is known when the next piece is asked for.
#[derive(Debug)]
pub struct Received {
    stream: Receiving,
    /// How many bytes are to come, if that was said.
    left: Option<u64>,
    /// Bytes of the last piece, which the sender's window lacks.
    held: usize,
    /// No data comes any more, but perhaps trailers.
    no_more_data: bool,
}

/// Why a body does not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum IncomingError {
    /// Over HTTP/1.1.
    #[error(transparent)]
    Http1(#[from] hyper::Error),
    /// Over HTTP/2.
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

impl Received {
    /// `length`: what the head said it would be.
    pub fn new(stream: RecvStream, length: Option<u64>) -> Self {
        let stream = Rc::new(RefCell::new(stream));
        Self { stream, left: length, held: 0, no_more_data: false }
    }

    /// The stream itself, for a tunnel.
    pub fn stream(&self) -> Receiving {
        Rc::clone(&self.stream)
    }

    /// Nothing comes any more.
    pub fn is_over(&self) -> bool {
        self.stream.borrow().is_end_stream()
    }

    /// How many bytes are still to come, if that is known.
    pub fn left(&self) -> Option<u64> {
        if self.is_over() { Some(0) } else { self.left }
    }

    /// The next piece, or the trailers.
    pub fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let stream = &mut *self.stream.borrow_mut();
        let held = std::mem::take(&mut self.held);
        if held > 0 {
            // It fails only for more than was taken.
            let _ = stream.flow_control().release_capacity(held);
        }
        if !self.no_more_data {
            match ready!(stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    self.held = data.len();
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.no_more_data = true,
            }
        }
        let trailers = ready!(stream.poll_trailers(cx));
        Poll::Ready(trailers.transpose().map(|trailers| trailers.map(Frame::trailers)))
    }
}

/// Whoever lets go of a body has done with what was taken of it.
impl Drop for Received {
    fn drop(&mut self) {
        if self.held > 0 {
            let _ = self.stream.borrow_mut().flow_control().release_capacity(self.held);
        }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = IncomingError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncomingError>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Http1(body) => Pin::new(body).poll_frame(cx).map_err(IncomingError::from),
            Self::Http2(body) => body.poll_frame(cx).map_err(IncomingError::from),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.left().map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
