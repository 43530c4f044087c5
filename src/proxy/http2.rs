//! HTTP/2 with a caller: one connection, many requests at once, each a stream with a task of its
//! own. What a request is and what becomes of it is the same as in HTTP/1.1.

use super::accept::Peer;
use super::body::Body;
use super::frames::{Frames, Left};
use super::leaving::STALLED;
use super::respond::GoesOn;
use super::watched::Watched;
use crate::deadline::ticks;
use crate::incoming::{Incoming, Received, Receiving};
use crate::metrics::Refused;
use crate::socket::Socket;
use crate::socket::http2::StreamSocket;
use crate::upgrade::Upgrade;
use crate::worker::Worker;
use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, DATE};
use http::{Request, Response};
use http_body::Body as _;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_local;

/// Requests of one connection under way at once.
const MAX_STREAMS: u32 = 128;

/// What one request may send ahead of its backend. All of a connection's together may send as much as
/// each of them: a slow backend holds up nobody else's requests.
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS;

/// What a stream may hold of an answer that waits to be written.
const MAX_SEND_BUFFER: usize = 64 << 10;

/// Requests that were reset before anybody saw them, requests that broke the rules, and requests that
/// were reset and are remembered for what may still come of them. Beyond the first two a connection
/// is ended.
const MAX_UNSEEN_RESETS: usize = 20;
const MAX_FAULTS: usize = 1024;
const MAX_REMEMBERED: usize = 50;

/// What a client must take of an answer before it counts as stalled, unless it is all there is.
const WORTH: usize = 1024;

/// How long a caller who was told that the connection ends may take to let go of it.
const GOODBYE: Duration = Duration::from_secs(1);

/// Serves a connection until it ends.
pub(super) async fn serve(worker: Rc<Worker>, peer: Rc<Peer>, socket: Watched) {
    let server = worker.generation().snapshot.server;
    let left = Left::default();
    let handshake = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(u32::try_from(server.max_header_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(MAX_SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_UNSEEN_RESETS)
        .max_local_error_reset_streams(Some(MAX_FAULTS))
        .max_concurrent_reset_streams(MAX_REMEMBERED)
        .enable_connect_protocol()
        .handshake::<_, Bytes>(Frames::new(socket, &left));
    let mut connection = match worker.deadlines.within(server.header_timeout, handshake).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(_)) => return worker.gateway.metrics.refuse(Refused::BadRequest),
        Err(_) => return worker.gateway.metrics.refuse(Refused::HeaderTimeout),
    };
    peer.activity.multiplex();

    let deadline = worker.deadlines.register();
    let (mut ending, mut flooded) = (None, false);
    let in_order = poll_fn(|cx| {
        if worker.is_leaving() && ending.is_none() {
            ending = Some(worker.deadlines.tick());
            connection.graceful_shutdown();
        }
        loop {
            match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    spawn_local(answer(&worker, &peer, request, respond));
                    continue;
                }
                Poll::Ready(Some(Err(error))) => {
                    if error.is_library() {
                        worker.gateway.metrics.refuse(Refused::BadRequest);
                    }
                    return Poll::Ready(true);
                }
                Poll::Ready(None) => return Poll::Ready(true),
                Poll::Pending => {}
            }
            if peer.activity.is_flooded() && !std::mem::replace(&mut flooded, true) {
                ending.get_or_insert(worker.deadlines.tick());
                worker.gateway.metrics.refuse(Refused::Flood);
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                continue;
            }
            match (ending, peer.activity.quiet_since()) {
                (Some(ending), Some(since)) => deadline.set_from(since.max(ending), ticks(GOODBYE)),
                _ => peer.activity.arm(&deadline, &worker.server(), false),
            }
            ready!(deadline.poll_elapsed(cx));
            let quiet = peer.activity.quiet_since().is_some();
            if ending.is_some() || !quiet {
                return Poll::Ready(quiet); // they do not let go, or take nothing
            }
            ending = Some(worker.deadlines.tick());
            connection.graceful_shutdown();
        }
    })
    .await;
    drop(connection);
    match left.take().map(Watched::into_socket) {
        Some(socket) if flooded => socket.reset(),
        Some(socket) if in_order => part(&worker, socket).await,
        // What they do not take would stay with the kernel.
        Some(socket) if peer.activity.is_stuck() => {
            worker.gateway.metrics.refuse(Refused::NotTaken);
            socket.reset();
        }
        _ => {}
    }
}

/// What was written last may still be on its way, and callers go on telling how much of it they have
/// taken: a socket that is closed meanwhile takes it all back. So they are heard for as long as they
/// say something.
async fn part(worker: &Worker, mut socket: Socket) {
    const WORD: Duration = Duration::from_secs(5);
    const ALL: Duration = Duration::from_secs(30);
    const MOST: usize = 1 << 20;
    let _ = worker.deadlines.within(GOODBYE, socket.shutdown()).await;
    let hearing = async {
        let mut bytes = vec![0; 4096];
        let mut heard = async || worker.deadlines.within(WORD, socket.read(&mut bytes)).await;
        let mut total = 0;
        while let Ok(Ok(count @ 1..)) = heard().await
            && total < MOST
        {
            total += count;
        }
    };
    let _ = worker.deadlines.within(ALL, hearing).await;
}

/// Answers one request.
fn answer(
    worker: &Rc<Worker>,
    peer: &Rc<Peer>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> impl Future<Output = ()> + 'static {
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let mut receiving = None;
    let mut request = request.map(|stream| {
        if stream.is_end_stream() {
            return Incoming::Empty;
        }
        let received = Received::new(stream, length);
        receiving = Some(received.stream());
        Incoming::Http2(received)
    });
    let upgrade = Upgrade::connected(&mut request);
    let (worker, peer) = (Rc::clone(worker), Rc::clone(peer));
    let handling = Box::pin(super::handle(Rc::clone(&worker), Rc::clone(&peer), request, upgrade));
    drive(worker, peer, handling, respond, receiving)
}

/// Waits for the answer to a request and sends it, unless the caller leaves.
async fn drive(
    worker: Rc<Worker>,
    peer: Rc<Peer>,
    mut handling: Pin<Box<impl Future<Output = Result<Response<Body>, Infallible>>>>,
    mut respond: SendResponse<Bytes>,
    receiving: Option<Receiving>,
) {
    let outcome = poll_fn(|cx| {
        let handled = handling.as_mut().poll(cx);
        for head in peer.interim.borrow_mut().drain(..) {
            let mut interim = Response::new(());
            (*interim.status_mut(), *interim.headers_mut()) = (head.status, head.headers);
            let _ = respond.send_informational(interim);
        }
        match handled {
            Poll::Ready(Ok(response)) => Poll::Ready(Some((response, peer.tunnel.take()))),
            // A caller who is gone waits for nothing.
            Poll::Pending => respond.poll_reset(cx).map(|_| None),
        }
    });
    let Some((response, tunnel)) = outcome.await else { return };
    let (mut head, body) = response.into_parts();
    let receiving = receiving.filter(|_| head.extensions.get::<GoesOn>().is_none());
    head.headers.entry(DATE).or_insert_with(|| worker.date());
    let over = body.is_end_stream() && tunnel.is_none();
    let Ok(send) = respond.send_response(Response::from_parts(head, ()), over) else { return };
    peer.activity.piece();
    if let Some(mut tunnel) = tunnel
        && let Some(receive) = tunnel.exchange.tunnelled.take()
    {
        return Box::pin(tunnel.run(StreamSocket::new(receive, send), &[])).await;
    }
    if over {
        drop(body);
    } else {
        send_body(&worker, &peer, body, send).await;
    }
    if let Some(receiving) = receiving {
        Box::pin(linger(&worker, &receiving)).await;
    }
}

/// A request that was answered before it was read to its end is read a while longer, as far as its
/// window goes. Most have ended by then; the others are told to stop.
async fn linger(worker: &Worker, receiving: &Receiving) {
    let reading = poll_fn(|cx| {
        while let Some(Ok(_)) = ready!(receiving.borrow_mut().poll_data(cx)) {}
        Poll::Ready(())
    });
    let _ = worker.deadlines.within(GOODBYE, reading).await;
}

/// Sends a body. A caller who takes nothing of what is there for too long is given up.
async fn send_body(worker: &Worker, peer: &Peer, body: Body, send: SendStream<Bytes>) {
    let stalled = worker.server().idle_timeout.min(STALLED);
    let deadline = worker.deadlines.register();
    let mut sending = Sending { body, send, peer, piece: Bytes::new(), moved: 0 };
    poll_fn(|cx| {
        if sending.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if sending.piece.is_empty() {
            deadline.clear();
        } else if sending.moved >= WORTH {
            sending.moved = 0;
            deadline.set(stalled);
        }
        deadline.poll_elapsed(cx).map(|_| sending.send.send_reset(Reason::CANCEL))
    })
    .await;
}

/// An answer's body on its way.
struct Sending<'a> {
    body: Body,
    send: SendStream<Bytes>,
    peer: &'a Peer,
    /// What the caller has yet to take.
    piece: Bytes,
    /// How much the caller has taken since that was looked at; a new piece is as good as much.
    moved: usize,
}

impl Sending<'_> {
    /// Ready when all is sent, or cannot be.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            while !self.piece.is_empty() {
                self.send.reserve_capacity(self.piece.len());
                while self.send.capacity() == 0 {
                    let Some(Ok(_)) = ready!(self.send.poll_capacity(cx)) else {
                        return Poll::Ready(());
                    };
                }
                let piece = self.piece.split_to(self.send.capacity().min(self.piece.len()));
                self.moved = self.moved.saturating_add(piece.len());
                self.peer.activity.piece();
                let last = self.piece.is_empty() && self.body.is_end_stream();
                if self.send.send_data(piece, last).is_err() || last {
                    return Poll::Ready(());
                }
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => (self.piece, self.moved) = (data, WORTH),
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        if self.send.send_trailers(trailers).is_err() {
                            let _ = self.send.send_data(Bytes::new(), true);
                        }
                        return Poll::Ready(());
                    }
                },
                Poll::Ready(Some(Err(_))) => {
                    self.send.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(());
                }
                Poll::Ready(None) => {
                    let _ = self.send.send_data(Bytes::new(), true);
                    return Poll::Ready(());
                }
                // A caller who is gone waits for nothing.
                Poll::Pending => return self.send.poll_reset(cx).map(|_| ()),
            }
        }
    }
}
