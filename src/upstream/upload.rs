//! The request's body on its way to the backend: nothing is held whole, and the caller waits for
//! the backend.

use crate::clock::{Clock, Micros};
use crate::hop;
use crate::incoming::Incoming;
use crate::overload::gate::Place;
use crate::socket::Socket;
use bytes::{Buf, Bytes};
use h2::SendStream;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Body as _;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// A body that is being sent.
pub struct Upload {
    incoming: Incoming,
    /// Sent in chunks, because nobody knows how long it is.
    chunked: bool,
    /// Bytes that may still come; beyond them the body is too large.
    left: u64,
    progress: Rc<Progress>,
    /// What has to be paid for each piece.
    toll: Option<Rc<dyn Toll>>,
    /// A piece that waits for that.
    unpaid: Option<Bytes>,
    /// What the socket has yet to take.
    pending: VecDeque<Bytes>,
    stage: Stage,
    /// Fields that a trailer may bring in.
    may_trail: Box<dyn Fn(&HeaderName) -> bool>,
}

/// Asked before each piece of a body is forwarded.
pub trait Toll {
    /// Ready when so many bytes more may pass.
    fn poll_pass(&self, bytes: u64, cx: &mut Context<'_>) -> Poll<Result<(), OverLimit>>;
}

/// A limit is used up; the toll knows which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit;

/// How far a body has come, for as long as anybody wants to know.
#[derive(Debug)]
pub struct Progress {
    /// Where anybody wants to know when it ended.
    clock: Option<Clock>,
    /// The place that it has at the upstream, where those who wait for their callers have none.
    place: RefCell<Weak<Place>>,
    passed: Cell<u64>,
    ended: Cell<Option<Micros>>,
}

impl Progress {
    /// Bytes that were taken from the caller.
    pub fn passed(&self) -> u64 {
        self.passed.get()
    }

    /// Has this place given back while the caller is waited for.
    pub fn watch(&self, place: &Rc<Place>) {
        self.place.replace(Rc::downgrade(place));
    }

    /// The caller is waited for.
    fn waits(&self) {
        if let Some(place) = self.place.borrow().upgrade() {
            place.step_aside();
        }
    }

    /// Everything was sent.
    fn end(&self) {
        self.ended.set(self.clock.as_ref().map(Clock::now));
        if let Some(place) = self.place.borrow().upgrade() {
            place.come_back();
        }
    }

    /// When the last of them was sent, if it was.
    pub fn ended(&self) -> Option<Micros> {
        self.ended.get()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The caller may send more, and may be waited for.
    Open { waiting: bool },
    /// Everything has come.
    Ended,
    /// The backend takes no more.
    GivenUp,
}

/// What the caller sends next.
enum Piece {
    Data(Bytes),
    End(Option<HeaderMap>),
}

/// Why a body cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    /// The caller broke off, or what came is no body.
    #[error("the body broke off")]
    BrokeOff,
    /// It is larger than the route takes.
    #[error("the body is too large")]
    TooLarge,
    /// The backend takes no more of it.
    #[error("the backend takes no more of the body")]
    Refused,
    /// A limit does not hold as much.
    #[error("a limit is used up in the middle of the body")]
    OverLimit,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl Upload {
    /// At most `limit` bytes, and no trailer but those that `may_trail`.
    pub fn new(
        incoming: Incoming,
        chunked: bool,
        limit: Option<u64>,
        clock: Option<Clock>,
        may_trail: impl Fn(&HeaderName) -> bool + 'static,
    ) -> Self {
        Self {
            incoming,
            chunked,
            left: limit.unwrap_or(u64::MAX),
            progress: Rc::new(Progress {
                clock,
                place: RefCell::default(),
                passed: Cell::new(0),
                ended: Cell::new(None),
            }),
            toll: None,
            unpaid: None,
            pending: VecDeque::new(),
            stage: Stage::Open { waiting: false },
            may_trail: Box::new(may_trail),
        }
    }

    /// From now on each piece is paid for before it is forwarded.
    pub fn charge(&mut self, toll: Rc<dyn Toll>) {
        self.toll = Some(toll);
    }

    /// Whether it is sent in chunks over HTTP/1.1.
    pub fn is_chunked(&self) -> bool {
        self.chunked
    }

    /// How far it has come.
    pub fn progress(&self) -> Rc<Progress> {
        Rc::clone(&self.progress)
    }

    /// Bytes of the body that were taken from the caller.
    pub fn sent(&self) -> u64 {
        self.progress.passed()
    }

    /// Whether it is the caller that everybody waits for.
    pub fn is_waiting(&self) -> bool {
        self.stage == Stage::Open { waiting: true }
    }

    /// Whether nothing of it was taken from the caller, so that it can be sent elsewhere.
    pub fn is_untouched(&self) -> bool {
        self.sent() == 0 && matches!(self.stage, Stage::Open { .. })
    }

    /// Sends no more; the connection cannot be used again.
    pub fn give_up(&mut self) {
        self.stage = Stage::GivenUp;
        self.pending.clear();
    }

    /// Sends on what is left of an upload, by one of the ways below; says whether anything moved. A
    /// backend that takes no more of it may still answer. A body that does not come to its end is
    /// not ended here either: whatever stops it, the way to the backend is not used again.
    pub fn poll_on(
        left: &mut Option<Box<Self>>,
        poll: impl FnOnce(&mut Self) -> Poll<Result<(), UploadError>>,
    ) -> Result<bool, UploadError> {
        let Some(upload) = left else { return Ok(false) };
        let before = upload.sent();
        let polled = poll(upload);
        let moved = upload.sent() > before;
        match polled {
            Poll::Pending => Ok(moved),
            Poll::Ready(Ok(())) => {
                upload.progress.end();
                *left = None;
                Ok(true)
            }
            Poll::Ready(Err(error)) => {
                upload.give_up();
                if error == UploadError::Refused { Ok(moved) } else { Err(error) }
            }
        }
    }

    /// Sends as much as has come and as the socket takes; ready when all is sent.
    pub fn poll(
        &mut self,
        socket: &mut Socket,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), UploadError>> {
        loop {
            while !self.pending.is_empty() {
                match ready!(poll_write(socket, &self.pending, cx)) {
                    Ok(count) => advance(&mut self.pending, count),
                    Err(_) => return Poll::Ready(Err(UploadError::Refused)),
                }
            }
            if ready!(Pin::new(&mut *socket).poll_flush(cx)).is_err() {
                return Poll::Ready(Err(UploadError::Refused));
            }
            match self.stage {
                Stage::Ended => return Poll::Ready(Ok(())),
                Stage::GivenUp => return Poll::Pending,
                Stage::Open { .. } => {}
            }
            match ready!(self.poll_caller(cx))? {
                Piece::Data(data) => self.queue(data),
                Piece::End(trailers) => self.end(trailers.as_ref()),
            }
            if !self.chunked && self.incoming.is_end_stream() {
                self.stage = Stage::Ended;
            }
        }
    }

    /// The same over a stream of HTTP/2, which brings its own framing.
    pub fn poll_stream(
        &mut self,
        stream: &mut SendStream<Bytes>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), UploadError>> {
        const REFUSED: Poll<Result<(), UploadError>> = Poll::Ready(Err(UploadError::Refused));
        loop {
            while let Some(data) = self.pending.front_mut() {
                stream.reserve_capacity(data.len());
                while stream.capacity() == 0 {
                    let Some(Ok(_)) = ready!(stream.poll_capacity(cx)) else { return REFUSED };
                }
                let piece = data.split_to(stream.capacity().min(data.len()));
                if data.is_empty() {
                    self.pending.pop_front();
                }
                let last = self.pending.is_empty() && self.incoming.is_end_stream();
                if stream.send_data(piece, last).is_err() {
                    return REFUSED;
                }
                if last {
                    self.stage = Stage::Ended;
                }
            }
            match self.stage {
                Stage::Ended => return Poll::Ready(Ok(())),
                Stage::GivenUp => return Poll::Pending,
                Stage::Open { .. } => {}
            }
            let sent = match ready!(self.poll_caller(cx))? {
                Piece::Data(data) => {
                    self.pending.extend((!data.is_empty()).then_some(data));
                    continue;
                }
                Piece::End(None) => stream.send_data(Bytes::new(), true),
                Piece::End(Some(trailers)) => {
                    let passes = |name: &HeaderName| hop::may_trail(name) && (self.may_trail)(name);
                    let passed = trailers.iter().filter(|(name, _)| passes(name));
                    let pair =
                        |(name, value): (&HeaderName, &HeaderValue)| (name.clone(), value.clone());
                    stream.send_trailers(passed.map(pair).collect())
                }
            };
            self.stage = Stage::Ended;
            if sent.is_err() {
                return REFUSED;
            }
        }
    }

    /// The next piece of what the caller sends, once it is paid for.
    fn poll_caller(&mut self, cx: &mut Context<'_>) -> Poll<Result<Piece, UploadError>> {
        if self.unpaid.is_none() {
            match ready!(self.poll_incoming(cx))? {
                Piece::Data(data) => self.unpaid = Some(data),
                end @ Piece::End(_) => return Poll::Ready(Ok(end)),
            }
        }
        if let (Some(toll), Some(data)) = (&self.toll, &self.unpaid) {
            let paid = ready!(toll.poll_pass(data.len() as u64, cx));
            paid.map_err(|OverLimit| UploadError::OverLimit)?;
        }
        Poll::Ready(Ok(Piece::Data(self.unpaid.take().unwrap_or_default())))
    }

    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Result<Piece, UploadError>> {
        self.stage = Stage::Open { waiting: true };
        let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) else {
            self.progress.waits();
            return Poll::Pending;
        };
        self.stage = Stage::Open { waiting: false };
        Poll::Ready(match frame {
            // It said how long it would be.
            None if !self.chunked && !self.incoming.is_end_stream() => Err(UploadError::BrokeOff),
            None => Ok(Piece::End(None)),
            Some(Err(_)) => Err(UploadError::BrokeOff),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => self.count(data.len() as u64).map(|()| Piece::Data(data)),
                Err(frame) => Ok(Piece::End(frame.into_trailers().ok())),
            },
        })
    }

    fn count(&mut self, length: u64) -> Result<(), UploadError> {
        self.left = self.left.checked_sub(length).ok_or(UploadError::TooLarge)?;
        self.progress.passed.set(self.sent() + length);
        Ok(())
    }

    /// Frames a piece for HTTP/1.1.
    fn queue(&mut self, data: Bytes) {
        if self.chunked && !data.is_empty() {
            self.pending.push_back(format!("{:x}\r\n", data.len()).into());
            self.pending.push_back(data);
            self.pending.push_back(Bytes::from_static(b"\r\n"));
        } else if !data.is_empty() {
            self.pending.push_back(data);
        }
    }

    /// Nothing comes any more, but for trailers.
    fn end(&mut self, trailers: Option<&HeaderMap>) {
        if self.stage == Stage::Ended {
            return;
        }
        self.stage = Stage::Ended;
        if self.chunked {
            let mut last = b"0\r\n".to_vec();
            for (name, value) in trailers.into_iter().flatten() {
                if hop::may_trail(name) && (self.may_trail)(name) {
                    last.extend(
                        [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat(),
                    );
                }
            }
            last.extend_from_slice(b"\r\n");
            self.pending.push_back(last.into());
        }
    }
}

fn poll_write(
    socket: &mut Socket,
    pending: &VecDeque<Bytes>,
    cx: &mut Context<'_>,
) -> Poll<std::io::Result<usize>> {
    if let [one] = pending.as_slices().0
        && pending.len() == 1
    {
        return Pin::new(socket).poll_write(cx, one);
    }
    let mut slices = [IoSlice::new(&[]); 4];
    for (slice, bytes) in slices.iter_mut().zip(pending) {
        *slice = IoSlice::new(bytes);
    }
    Pin::new(socket).poll_write_vectored(cx, &slices)
}

fn advance(pending: &mut VecDeque<Bytes>, mut count: usize) {
    while let Some(first) = pending.front_mut() {
        if count < first.len() {
            return first.advance(count);
        }
        count -= first.len();
        pending.pop_front();
    }
}
