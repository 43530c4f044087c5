//! A tunnel: after a protocol was switched, bytes go both ways until both ends are done, or neither
//! has said anything for too long. It owns the exchange, and so its place among those in flight.

use super::exchange::Exchange;
use crate::deadline::Deadline;
use crate::upstream::connection::Guard;
use crate::worker::Worker;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is moved at once. All tunnels of a worker share the room for it: one that is silent
/// holds none.
const PIECE: usize = 64 << 10;

/// One end of a tunnel.
pub(super) trait End: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> End for T {}

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
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").field("idle", &self.idle).finish_non_exhaustive()
    }
}

impl Tunnel {
    /// Moves bytes between the backend and `caller`, who has said something `already`.
    pub(super) async fn run(self, mut caller: impl End, already: &[u8]) {
        let Self { backend: Backend { end: mut backend, said, guard }, mut exchange, idle } = self;
        let worker = Rc::clone(&exchange.worker);
        let deadline = worker.deadlines.register();
        let mut up = Direction { left: already.to_vec(), ..Direction::default() };
        let mut down = Direction { left: said, ..Direction::default() };
        let mut watch = Watch { worker: &worker, deadline: &deadline, idle };
        deadline.set(idle);
        let whole = poll_fn(|cx| {
            let up = up.poll(&mut caller, &mut backend, &mut watch, cx);
            let down = down.poll(&mut backend, &mut caller, &mut watch, cx);
            match (up, down) {
                (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => Poll::Ready(false),
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(true),
                _ => deadline.poll_elapsed(cx).map(|_| false),
            }
        })
        .await;
        // The backend's end closes before the place it held is given back.
        drop(backend);
        drop(guard);
        exchange.finish(down.moved, whole);
    }
}

/// What both directions look at.
struct Watch<'a> {
    worker: &'a Worker,
    deadline: &'a Deadline,
    idle: Duration,
}

/// One direction of a tunnel.
#[derive(Default)]
struct Direction {
    /// What was read and found no room yet.
    left: Vec<u8>,
    /// How much of that has been written.
    written: usize,
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
    fn poll(
        &mut self,
        from: &mut (impl End + ?Sized),
        to: &mut (impl End + ?Sized),
        watch: &mut Watch<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            while self.written < self.left.len() {
                let count = ready!(Pin::new(&mut *to).poll_write(cx, &self.left[self.written..]))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
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

    /// Reads a piece and writes what finds room; the rest is kept.
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
        let count = match Pin::new(to).poll_write(cx, piece) {
            Poll::Ready(count) => count?,
            Poll::Pending => 0,
        };
        self.moved(count, watch);
        self.left.extend_from_slice(&piece[count..]);
        Poll::Ready(Ok(()))
    }

    fn moved(&mut self, count: usize, watch: &Watch<'_>) {
        self.moved += count as u64;
        watch.deadline.set(watch.idle);
    }
}
