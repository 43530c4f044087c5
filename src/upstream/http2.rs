//! Backends that speak HTTP/2: one connection carries many requests at once.
//!
//! ```text
//! Outgoing ── head ──► stream ──► Head
//!     └────── body ──►   │    ──► Stream::poll_frame ──► pieces of the answer's body, trailers
//! ```
//!
//! The connection has a task of its own; streams belong to the tasks of their requests. A stream
//! that is dropped before its end is reset, so the backend knows when a caller has left.

use super::answer::{AnswerError, Framing, Head, MAX_INTERIMS};
use super::connection::{AskError, BodyError, Guard, Outgoing, Sender};
use super::upload::{Upload, UploadError};
use crate::deadline::{Deadline, Deadlines};
use crate::incoming::Received;
use crate::patience::Patience;
use crate::socket::Socket;
use crate::socket::http2::StreamSocket;
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason, SendStream};
use http::header::CONTENT_LENGTH;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::spawn_local;

/// What one stream may send ahead of its caller. All of them together may send as much as each of
/// them: a caller who does not read holds up nobody else.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS;
const MAX_STREAMS: u32 = 512;

/// The largest head of an answer, and the most fields of one: as in HTTP/1.1.
const MAX_HEAD: u32 = 64 << 10;
const MAX_FIELDS: usize = 100;

/// How long a backend that did not answer in time may take to show that it is there.
const DOUBT: Duration = Duration::from_secs(2);

/// A connection that carries many requests.
#[derive(Debug)]
pub struct Shared {
    send: SendRequest<Bytes>,
    /// Streams under way.
    open: Rc<Cell<usize>>,
    /// Nothing new may begin on it.
    over: Rc<Cell<bool>>,
    /// When it was used last.
    pub used: Cell<u64>,
    ping: RefCell<Option<PingPong>>,
}

impl Shared {
    /// Takes up a connection. The backend says first of all how many requests it takes, and whether
    /// it takes tunnels: whoever has answered a ping has said it.
    pub async fn new(socket: Socket, deadlines: &Deadlines) -> Result<Rc<Self>, h2::Error> {
        let (send, mut connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false)
            .max_header_list_size(MAX_HEAD)
            .handshake(socket)
            .await?;
        let ping = connection.ping_pong();
        let over = Rc::new(Cell::new(false));
        spawn_local({
            let over = Rc::clone(&over);
            async move {
                let _ = connection.await;
                over.set(true);
            }
        });
        let mut ping = ping.ok_or(Reason::INTERNAL_ERROR)?;
        ping.ping(Ping::opaque()).await?;
        let ping = RefCell::new(Some(ping));
        let (open, used) = (Rc::default(), Cell::new(deadlines.tick()));
        Ok(Rc::new(Self { send, open, over, used, ping }))
    }

    /// Whether one more request can begin on it now.
    pub fn has_room(&self) -> bool {
        !self.over.get()
            && self.open.get() < self.send.current_max_send_streams().min(MAX_STREAMS as usize)
    }

    /// Whether the backend takes more than requests.
    pub fn takes_tunnels(&self) -> bool {
        self.send.is_extended_connect_protocol_enabled()
    }

    /// Whether it can be let go of.
    pub fn is_useless(&self) -> bool {
        self.over.get()
    }

    /// Whether nothing is under way on it.
    pub fn is_idle(&self) -> bool {
        self.open.get() == 0
    }

    /// Nothing new begins on it; what is under way goes on.
    pub fn retire(&self) {
        self.over.set(true);
    }

    /// An answer did not come in time. If nothing else comes either, nothing new begins here.
    async fn doubt(self: Rc<Self>, deadlines: Rc<Deadlines>) {
        // Whoever has it is asking already.
        let Some(mut ping) = self.ping.take() else { return };
        match deadlines.within(DOUBT, ping.ping(Ping::opaque())).await {
            Ok(Ok(_)) => drop(self.ping.replace(Some(ping))),
            _ => self.retire(),
        }
    }

    /// Sends a request and waits for the head of its answer. Interim answers are `heard`.
    pub async fn ask(
        self: &Rc<Self>,
        request: &mut Outgoing<Request<()>>,
        deadlines: &Rc<Deadlines>,
        heard: &dyn Fn(Head),
        guard: &mut Option<Guard>,
    ) -> Result<(Head, Stream), AskError> {
        self.open.set(self.open.get() + 1);
        let open = OpenStream(Rc::clone(&self.open));
        let has_body = request.body.is_some();
        let tunnels = request.upgrade.is_some();
        let begun = self.send.clone().send_request(request.head.clone(), !has_body && !tunnels);
        let (mut response, send) = begun.map_err(|error| {
            let ended = error.is_go_away() || error.is_io();
            if ended {
                self.retire();
            }
            if ended { AskError::NotBegun(error) } else { AskError::Http2(error) }
        })?;
        let sending =
            Rc::new(RefCell::new(Sending { send, upload: request.body.take(), failed: false }));
        let deadline = deadlines.register();
        let mut interims = 0;
        let mut patience = Patience::new(&deadline, request.times);
        let answer = poll_fn(|cx| {
            let moved = sending.borrow_mut().poll_upload(cx)?;
            let answer = poll_answer(&mut response, &mut interims, heard, cx);
            if answer.is_pending() {
                let late = patience.poll(&deadline, sending.borrow().upload.as_deref(), moved, cx);
                return late.map(|waiting| Err(AskError::TimedOut { waiting }));
            }
            answer
        });
        let answer = answer.await;
        if answer.is_err() {
            // What nobody has taken from the caller can be sent elsewhere.
            let mut sending = sending.borrow_mut();
            let waiting = sending.upload.as_ref().is_some_and(|upload| upload.is_waiting());
            request.body = sending.upload.take_if(|upload| upload.is_untouched());
            if waiting
                && let Err(AskError::Http2(error)) = &answer
                && !was_refused(error)
            {
                return Err(AskError::GaveUp(error.to_string()));
            }
        }
        if let Err(AskError::TimedOut { waiting: false }) = &answer {
            spawn_local(Rc::clone(self).doubt(Rc::clone(deadlines)));
        }
        let (mut parts, body) = answer?.into_parts();
        if parts.headers.len() > MAX_FIELDS {
            return Err(AnswerError::TooLarge.into());
        }
        if parts.status == StatusCode::NO_CONTENT {
            parts.headers.remove(CONTENT_LENGTH);
        }
        let bodiless = request.is_head
            || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let said =
            parts.headers.get(CONTENT_LENGTH).and_then(|said| said.to_str().ok()?.parse().ok());
        let length = if bodiless { Some(0) } else { said };
        let body = Received::new(body, length);
        let framing = body.left().map_or(Framing::UntilClose, Framing::Length);
        let head = Head {
            status: parts.status,
            headers: parts.headers,
            private: SmallVec::new(),
            framing,
            reusable: true,
            upgrade: None,
        };
        deadline.clear();
        let wait = Wait { deadline, silence: request.times.silence, waiting: false };
        let mut stream = Stream { body, sender: None, sending, wait, open, guard: guard.take() };
        if stream.sending.borrow().upload.is_some() {
            let sending = spawn_local(send_on(Rc::downgrade(&stream.sending)));
            stream.sender = Some(Sender(sending.abort_handle()));
        }
        Ok((head, stream))
    }
}

fn poll_answer(
    response: &mut ResponseFuture,
    interims: &mut u32,
    heard: &dyn Fn(Head),
    cx: &mut Context<'_>,
) -> Poll<Result<Response<h2::RecvStream>, AskError>> {
    while let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx) {
        *interims += 1;
        if *interims > MAX_INTERIMS {
            return Poll::Ready(Err(AnswerError::TooManyInterims.into()));
        }
        let (parts, ()) = interim.into_parts();
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            continue; // HTTP/2 has no such thing
        }
        heard(Head {
            status: parts.status,
            headers: parts.headers,
            private: SmallVec::new(),
            framing: Framing::Length(0),
            reusable: true,
            upgrade: None,
        });
    }
    Pin::new(response).poll(cx).map_err(AskError::from)
}

/// Whether the backend says that it has done nothing of a request.
pub fn was_refused(error: &h2::Error) -> bool {
    error.reason() == Some(Reason::REFUSED_STREAM) || error.is_go_away() && error.is_remote()
}

/// A stream under way counts until it is gone.
#[derive(Debug)]
struct OpenStream(Rc<Cell<usize>>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The way to the backend, and what is still to be sent over it.
struct Sending {
    send: SendStream<Bytes>,
    upload: Option<Box<Upload>>,
    /// The caller did not bring it to its end.
    failed: bool,
}

impl Sending {
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<bool, UploadError> {
        Upload::poll_on(&mut self.upload, |upload| upload.poll_stream(&mut self.send, cx))
    }
}

/// Sends on after the answer has begun. A body that breaks off ends the stream: the backend shall
/// not take what it has for all there is.
async fn send_on(sending: Weak<RefCell<Sending>>) {
    poll_fn(|cx| {
        let Some(sending) = sending.upgrade() else { return Poll::Ready(()) };
        let sending = &mut *sending.borrow_mut();
        if sending.poll_upload(cx).is_err() {
            sending.failed = true;
            sending.send.send_reset(Reason::CANCEL);
            return Poll::Ready(());
        }
        if sending.upload.is_some() { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

/// An answer that is being read.
pub struct Stream {
    // The order matters: when it is dropped, the stream is reset first, and then the guard goes.
    body: Received,
    sender: Option<Sender>,
    sending: Rc<RefCell<Sending>>,
    wait: Wait,
    open: OpenStream,
    guard: Option<Guard>,
}

/// The wait for the next piece of an answer.
struct Wait {
    deadline: Deadline,
    silence: Duration,
    waiting: bool,
}

impl Stream {
    /// The next piece of the answer's body.
    pub fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = self.body.poll_frame(cx).map_err(BodyError::from);
        let Wait { deadline, silence, waiting } = &mut self.wait;
        if frame.is_ready() {
            *waiting = false;
            return frame;
        }
        // Only while it is waited for: a caller may be slow, too.
        if !std::mem::replace(waiting, true) {
            deadline.set(*silence);
        }
        deadline.poll_elapsed(cx).map(|_| Some(Err(BodyError::Silent)))
    }

    /// Whether it was the caller who did not bring the exchange to its end.
    pub fn upload_failed(&self) -> bool {
        self.sending.borrow().failed
    }

    /// Nothing more belongs to the body.
    pub fn is_over(&self) -> bool {
        self.body.is_over()
    }

    /// How many bytes are still to come, if that is known.
    pub fn left(&self) -> Option<u64> {
        self.body.left()
    }

    /// Whether something is to be let go of when it is over.
    pub fn has_guard(&self) -> bool {
        self.guard.is_some()
    }

    /// Takes back what is to be let go of when it is over.
    pub fn take_guard(&mut self) -> Option<Guard> {
        self.guard.take()
    }

    /// Both directions as a socket, and what is to be let go of when it is closed.
    pub fn into_tunnel(self) -> Option<(StreamSocket, StreamGuard)> {
        let Self { body, sending, open, guard, .. } = self;
        let Sending { send, .. } = Rc::into_inner(sending)?.into_inner();
        Some((StreamSocket::new(body.stream(), send), StreamGuard { _open: open, _guard: guard }))
    }
}

/// What a tunnel holds of the connection that carries it.
pub struct StreamGuard {
    _open: OpenStream,
    _guard: Option<Guard>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("body", &self.body).finish_non_exhaustive()
    }
}
