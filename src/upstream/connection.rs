//! One connection to a backend: HTTP/1.1, one exchange at a time, driven by the task of the request
//! it serves.
//!
//! ```text
//! Outgoing ── head ──► socket ──► answer::parse ──► Head
//!     └────── body ──►   │   ──► poll_frame ──────► pieces of the answer's body
//! ```
//!
//! Nobody stands between the socket and whoever waits for it: no task of its own, no channel. That,
//! and a head that is written once, halves what forwarding costs over a general client. The body of
//! a request goes on being sent while the answer is already read.

use super::answer::{self, AnswerError, Framing, Head};
use super::chunked::{Garbled, Step};
use super::upload::{Upload, UploadError};
use crate::deadline::Deadline;
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use std::any::Any;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

/// Room for a read: what most answers fit in, what an idle connection may keep, and the most that is
/// read ahead of the caller.
const FIRST: usize = 4 << 10;
const KEPT: usize = 16 << 10;
const MOST: usize = 256 << 10;

/// Something to let go of when a request is over at the backend's end.
pub type Guard = Box<dyn Any>;

/// A request on its way to a backend.
#[derive(Debug)]
pub struct Outgoing {
    /// The head as it is sent, to its empty line.
    pub head: Vec<u8>,
    /// What follows it.
    pub body: Option<Box<Upload>>,
    /// It is a `HEAD`: nothing follows the head of its answer.
    pub is_head: bool,
    /// Doing it twice is the same as doing it once.
    pub idempotent: bool,
}

/// An open connection. Whoever drops it closes it.
pub struct Connection {
    // The order matters: when it is dropped, the socket closes first, and then the guard goes.
    stream: TcpStream,
    /// Bytes that have come and belong to nobody yet.
    buffer: BytesMut,
    /// How much the next read may bring.
    room: usize,
    /// What is still to be sent.
    upload: Option<Box<Upload>>,
    /// The backend's time to answer.
    deadline: Deadline,
    guard: Option<Guard>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The backend closed the connection without a word.
    #[error("the backend closed the connection: {cause}")]
    Gone {
        /// Something of the request was sent before.
        sent: bool,
        /// How it was noticed.
        cause: io::Error,
    },
    /// It closed it in the middle of a word.
    #[error("the backend closed the connection in the middle of its answer")]
    BrokeOff,
    /// What it said makes no sense.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// The caller's body cannot be passed on.
    #[error(transparent)]
    Upload(#[from] UploadError),
    /// It took too long; and whether it was the caller who was waited for.
    #[error("no answer in time")]
    TimedOut {
        /// The caller has yet to send more.
        waiting: bool,
    },
}

/// Why an answer's body does not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The socket failed.
    #[error("the backend's connection failed: {0}")]
    Io(#[from] io::Error),
    /// Something is missing.
    #[error("the backend closed the connection in the middle of a body")]
    BrokeOff,
    /// Its coding is wrong.
    #[error(transparent)]
    Garbled(#[from] Garbled),
}

impl Connection {
    /// A connection on which nothing has happened yet.
    pub fn new(stream: TcpStream, deadline: Deadline) -> Self {
        let buffer = BytesMut::new();
        Self { stream, buffer, room: FIRST, upload: None, deadline, guard: None }
    }

    /// Keeps a guard until it is [taken back](Self::take_guard), or else until the connection is
    /// closed: a request that is given up is not over before the backend can know.
    pub fn keep_guard(&mut self, guard: Option<Guard>) {
        self.guard = guard;
    }

    /// Takes the guard back.
    pub fn take_guard(&mut self) -> Option<Guard> {
        self.guard.take()
    }

    /// Whether the next request can be sent: the last one is over on both sides, and the backend
    /// has neither hung up nor said something unasked. Costs no system call while nothing happens.
    pub fn is_idle(&self) -> bool {
        let quiet = |tried: io::Result<usize>| {
            tried.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        self.buffer.is_empty() && self.upload.is_none() && quiet(self.stream.try_read(&mut [0]))
    }

    /// Lets go of what only a busy connection needs.
    pub fn rest(&mut self) {
        if self.room > KEPT {
            (self.buffer, self.room) = (BytesMut::new(), FIRST);
        }
    }

    /// Sends a request and waits for the head of its answer, for `limit` after the last piece was
    /// sent. A body stays with the request until its head is out.
    pub async fn ask(&mut self, request: &mut Outgoing, limit: Duration) -> Result<Head, AskError> {
        self.deadline.set(limit);
        let mut sent = 0;
        let answer = poll_fn(|cx| {
            let asked = self.poll_ask(cx, request, &mut sent, limit);
            if asked.is_pending() && self.deadline.poll_elapsed(cx).is_ready() {
                let waiting = self.upload.as_ref().is_some_and(|upload| upload.is_waiting());
                return Poll::Ready(Err(AskError::TimedOut { waiting }));
            }
            asked
        })
        .await;
        self.deadline.clear();
        answer
    }

    fn poll_ask(
        &mut self,
        cx: &mut Context<'_>,
        request: &mut Outgoing,
        sent: &mut usize,
        limit: Duration,
    ) -> Poll<Result<Head, AskError>> {
        while *sent < request.head.len() {
            let written = Pin::new(&mut self.stream).poll_write(cx, &request.head[*sent..]);
            match ready!(written) {
                Ok(count) => *sent += count,
                Err(cause) => return Poll::Ready(Err(AskError::Gone { sent: *sent > 0, cause })),
            }
            if *sent == request.head.len() {
                self.upload = request.body.take();
            }
        }
        if self.poll_upload(cx)? {
            self.deadline.set(limit);
        }
        loop {
            if !self.buffer.is_empty()
                && let Some(head) = answer::parse(&mut self.buffer, request.is_head)?
            {
                return Poll::Ready(Ok(head));
            }
            match ready!(self.poll_read(cx)) {
                Ok(1..) => {}
                end if self.buffer.is_empty() => {
                    let cause = end.err().unwrap_or(io::ErrorKind::UnexpectedEof.into());
                    return Poll::Ready(Err(AskError::Gone { sent: true, cause }));
                }
                _ => return Poll::Ready(Err(AskError::BrokeOff)),
            }
        }
    }

    /// Sends on what the caller sends; says whether anything moved. A backend that takes no more of
    /// it may still answer.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<bool, UploadError> {
        let Some(upload) = &mut self.upload else { return Ok(false) };
        let before = upload.sent();
        let polled = upload.poll(&mut self.stream, cx);
        let moved = upload.sent() > before;
        match polled {
            Poll::Pending => Ok(moved),
            Poll::Ready(Ok(())) => {
                self.upload = None;
                Ok(true)
            }
            Poll::Ready(Err(UploadError::Refused)) => {
                upload.give_up();
                Ok(moved)
            }
            Poll::Ready(Err(error)) => Err(error),
        }
    }

    /// The next piece of the answer's body.
    pub fn poll_frame(
        &mut self,
        framing: &mut Framing,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // Whatever becomes of the upload now, the answer decides.
        let _ = self.poll_upload(cx);
        loop {
            match self.take(framing) {
                Ok(Step::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(Step::Trailers(trailers)) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Ok(Step::End) => return Poll::Ready(None),
                Ok(Step::More) => {}
                Err(garbled) => return Poll::Ready(Some(Err(garbled.into()))),
            }
            match ready!(self.poll_read(cx)) {
                Ok(1..) => {}
                Ok(0) if *framing == Framing::UntilClose => {
                    *framing = Framing::Length(0);
                }
                Ok(0) => return Poll::Ready(Some(Err(BodyError::BrokeOff))),
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    /// What of the bytes that have come belongs to the body.
    fn take(&mut self, framing: &mut Framing) -> Result<Step, Garbled> {
        let here = match framing {
            Framing::Length(0) => return Ok(Step::End),
            Framing::Chunked(chunked) => return chunked.step(&mut self.buffer),
            _ if self.buffer.is_empty() => return Ok(Step::More),
            Framing::UntilClose => self.buffer.len(),
            Framing::Length(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(self.buffer.len());
                *left -= here as u64;
                here
            }
        };
        Ok(Step::Data(self.buffer.split_to(here).freeze()))
    }

    /// Reads what has come. Reads that fill their room make the next one larger.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Short answers are read to the same place again and again, which the cache then knows;
        // long ones fill what there is.
        let spare = self.buffer.capacity() - self.buffer.len();
        if self.room <= KEPT || spare < self.room / 2 {
            self.buffer.reserve(self.room);
        }
        let room = self.buffer.capacity() - self.buffer.len();
        let count = ready!(pin!(self.stream.read_buf(&mut self.buffer)).poll(cx))?;
        if count == room {
            self.room = (self.room * 2).min(MOST);
        }
        Poll::Ready(Ok(count))
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("stream", &self.stream).finish_non_exhaustive()
    }
}
