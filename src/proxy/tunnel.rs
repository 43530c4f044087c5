//! A tunnel: after a protocol was switched, bytes go both ways until both ends are done, neither has said
//! anything for too long, or a limit that counts them is used up. It owns the exchange, and so its place
//! among those in flight.
//!
//! Where a limit counts bytes, each piece is charged before it is forwarded.

use super::byte_meter::ByteMeter;
use super::exchange::Exchange;
use super::http1::GOODBYE;
use super::settle::End as Ended;
use super::websocket::{self, Frames};
use crate::deadline::Deadline;
use crate::socket::Socket;
use crate::socket::http2::StreamSocket;
use crate::upstream::connection::Guard;
use crate::upstream::upload::{OverLimit, Toll};
use crate::worker::Worker;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// How much is moved at once. All tunnels of a worker share the room for it: one that is silent
/// holds none.
const PIECE: usize = 64 << 10;

/// One end of a tunnel.
pub(super) trait End: AsyncRead + AsyncWrite + Unpin {
    /// Once it is dropped, the other side takes it for broken.
    fn reset(&mut self);
}

impl End for Socket {
    fn reset(&mut self) {
        self.reset_when_closed();
    }
}

impl End for StreamSocket {
    fn reset(&mut self) {
        StreamSocket::reset(self);
    }
}

/// The backend's end of a tunnel.
pub(super) struct Backend {
    pub(super) end: Box<dyn End>,
    /// What it has said already.
    pub(super) said: Vec<u8>,
    /// What is held as long as the tunnel lives.
    pub(super) guard: Option<Guard>,
}

/// A tunnel whose one end is there.
pub(super) struct Tunnel {
    pub(super) backend: Backend,
    pub(super) exchange: Box<Exchange>,
    /// How long it may be silent.
    pub(super) idle: Duration,
    pub(super) is_websocket: bool,
}

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Both ends were done.
    Whole,
    /// One of them broke off, or both were silent for too long.
    Broken,
    /// A limit is used up.
    OverLimit,
}

/// Why a direction does not go on.
enum Stop {
    Broken,
    OverLimit,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

impl From<OverLimit> for Stop {
    fn from(OverLimit: OverLimit) -> Self {
        Self::OverLimit
    }
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").field("idle", &self.idle).finish_non_exhaustive()
    }
}

impl Tunnel {
    /// Moves bytes between the backend and `caller`, who has said something `already`.
    pub(super) async fn run(self, mut caller: impl End, already: &[u8]) {
        let Self { backend, mut exchange, idle, is_websocket } = self;
        let Backend { end: mut backend, said, guard } = backend;
        let worker = Rc::clone(&exchange.worker);
        let deadline = worker.deadlines.register();
        let (uploaded, downloaded) = exchange.byte_meters();
        let follows = is_websocket && (uploaded.is_some() || downloaded.is_some());
        let mut up = Direction::new(already.to_vec(), uploaded, follows);
        let mut down = Direction::new(said, downloaded, follows);
        let mut watch = Watch { worker: &worker, deadline: &deadline, idle };
        deadline.set(idle);
        let outcome = poll_fn(|cx| {
            let up = up.poll(&mut caller, &mut *backend, &mut watch, cx);
            let down = down.poll(&mut *backend, &mut caller, &mut watch, cx);
            match (up, down) {
                (Poll::Ready(Err(Stop::OverLimit)), _) | (_, Poll::Ready(Err(Stop::OverLimit))) => {
                    Poll::Ready(Outcome::OverLimit)
                }
                (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => Poll::Ready(Outcome::Broken),
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Outcome::Whole),
                _ => deadline.poll_elapsed(cx).map(|_| Outcome::Broken),
            }
        })
        .await;
        if outcome == Outcome::OverLimit {
            exchange.note_used_up();
            let closing = async {
                tokio::join!(down.close(&mut caller, false), up.close(&mut *backend, true));
            };
            let _ = worker.deadlines.within(GOODBYE, closing).await;
        }
        // The backend's end closes before the place it held is given back.
        drop(backend);
        drop(guard);
        drop(exchange.settle(Ended::Whole));
        exchange.finish(down.moved, outcome == Outcome::Whole);
    }
}

/// What both directions look at.
struct Watch<'a> {
    worker: &'a Worker,
    deadline: &'a Deadline,
    idle: Duration,
}

/// One direction of a tunnel.
struct Direction {
    /// What was read and found no room yet.
    left: Vec<u8>,
    /// How much of that has been written.
    written: usize,
    /// How much of it has yet to be charged.
    unpaid: usize,
    /// What charges it.
    meter: Option<Rc<ByteMeter>>,
    /// Where frames end, if that matters.
    frames: Option<Frames>,
    moved: u64,
    stage: Stage,
}

#[derive(Default)]
enum Stage {
    #[default]
    Open,
    /// The one end has said all; the other is to be told.
    Closing,
    Closed,
}

impl Direction {
    fn new(left: Vec<u8>, meter: Option<Rc<ByteMeter>>, follows_frames: bool) -> Self {
        let unpaid = if meter.is_some() { left.len() } else { 0 };
        let frames = follows_frames.then(Frames::default);
        Self { left, written: 0, unpaid, meter, frames, moved: 0, stage: Stage::default() }
    }

    fn poll(
        &mut self,
        from: &mut (impl End + ?Sized),
        to: &mut (impl End + ?Sized),
        watch: &mut Watch<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Stop>> {
        loop {
            if let Some(meter) = self.meter.as_ref().filter(|_| self.unpaid > 0) {
                ready!(meter.poll_pass(self.unpaid as u64, cx))?;
                self.unpaid = 0;
            }
            while self.written < self.left.len() {
                let count = ready!(Pin::new(&mut *to).poll_write(cx, &self.left[self.written..]))?;
                if count == 0 {
                    return Poll::Ready(Err(Stop::Broken));
                }
                if let Some(frames) = &mut self.frames {
                    frames.pass(&self.left[self.written..self.written + count]);
                }
                self.moved(count, watch);
                self.written += count;
            }
            (self.left, self.written) = (Vec::new(), 0);
            match self.stage {
                Stage::Closed => return Poll::Ready(Ok(())),
                Stage::Closing => {
                    ready!(Pin::new(&mut *to).poll_shutdown(cx))?;
                    self.stage = Stage::Closed;
                }
                Stage::Open => {
                    if self.poll_piece(from, to, watch, cx)?.is_pending() {
                        ready!(Pin::new(&mut *to).poll_flush(cx))?;
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Reads a piece and writes what finds room; the rest is kept, and so is a piece that has to be
    /// charged first.
    fn poll_piece(
        &mut self,
        from: &mut (impl End + ?Sized),
        to: &mut (impl End + ?Sized),
        watch: &mut Watch<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut room = watch.worker.piece.borrow_mut();
        room.resize(PIECE, 0);
        let mut buffer = ReadBuf::new(&mut room);
        ready!(Pin::new(from).poll_read(cx, &mut buffer))?;
        let piece = buffer.filled();
        if piece.is_empty() {
            self.stage = Stage::Closing;
            return Poll::Ready(Ok(()));
        }
        let count = if self.meter.is_some() {
            self.unpaid = piece.len();
            0
        } else {
            match Pin::new(to).poll_write(cx, piece) {
                Poll::Ready(count) => count?,
                Poll::Pending => 0,
            }
        };
        if let Some(frames) = &mut self.frames {
            frames.pass(&piece[..count]);
        }
        self.moved(count, watch);
        self.left.extend_from_slice(&piece[count..]);
        Poll::Ready(Ok(()))
    }

    fn moved(&mut self, count: usize, watch: &Watch<'_>) {
        self.moved += count as u64;
        watch.deadline.set(watch.idle);
    }

    /// Ends this direction because a limit is used up: with a Close frame where one can stand, otherwise
    /// with a reset.
    async fn close(&self, to: &mut (impl End + ?Sized), masked: bool) {
        let is_refused = self.unpaid > 0 && self.written == 0;
        let is_out = is_refused || self.written == self.left.len();
        if !self.frames.as_ref().is_some_and(|frames| frames.is_at_boundary() && is_out) {
            return to.reset();
        }
        let closed = to.write_all(&websocket::close(masked)).await;
        if closed.is_err() || to.shutdown().await.is_err() {
            return;
        }
        // A socket that is closed with unread bytes resets the connection, and the frame may be lost.
        let mut unread = vec![0; 4096];
        while to.read(&mut unread).await.is_ok_and(|count| count > 0) {}
    }
}
