//! A caller's socket: notes what happens on it, and writes short answers in one piece.

use super::accept::Peer;
use crate::worker::Worker;
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Up to so many bytes, copying a head and its body together is cheaper than `writev`.
const SHORT: usize = 2048;

/// A socket that notes what happens on it.
pub(super) struct Watched {
    stream: TcpStream,
    worker: Rc<Worker>,
    peer: Rc<Peer>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, worker: &Rc<Worker>, peer: &Rc<Peer>) -> Self {
        Self { stream, worker: Rc::clone(worker), peer: Rc::clone(peer) }
    }

    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    fn note(&self, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        match written {
            Poll::Ready(_) => self.peer.activity.bytes_written(),
            Poll::Pending => self.peer.activity.write_pending(),
        }
        written
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.peer.activity.bytes_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let Self { stream, worker, .. } = &mut *self;
        let stream = Pin::new(stream);
        let written = if let [one] = slices {
            stream.poll_write(cx, one)
        } else if slices.iter().map(|slice| slice.len()).sum::<usize>() <= SHORT {
            let mut whole = worker.scratch.borrow_mut();
            whole.clear();
            for slice in slices {
                whole.extend_from_slice(slice);
            }
            stream.poll_write(cx, &whole)
        } else {
            stream.poll_write_vectored(cx, slices)
        };
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        // hyper flushes the socket when it has nothing more to write to it.
        self.peer.activity.flushed();
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
