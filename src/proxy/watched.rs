//! A caller's socket: notes what happens on it, writes short answers in one piece, and puts interim
//! answers before the final one, which hyper cannot.

use super::accept::Peer;
use super::activity::Activity;
use crate::metrics::Refused;
use crate::socket::Socket;
use crate::upstream::answer::Head;
use crate::worker::Worker;
use bytes::{Buf, BytesMut};
use std::io::{ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Up to so many bytes, copying a head and its body together is cheaper than `writev`.
const SHORT: usize = 2048;

/// What a connection in HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How much is read to see what a connection begins with; most requests fit in.
const FIRST: usize = 4096;

/// A socket that notes what happens on it.
pub(super) struct Watched {
    socket: Socket,
    worker: Rc<Worker>,
    peer: Rc<Peer>,
    /// What was read to see what it is, and comes first now.
    first: BytesMut,
    /// Interim answers that are being written.
    interim: BytesMut,
    /// The client sends no more.
    ended: bool,
}

impl Watched {
    pub(super) fn new(socket: Socket, worker: &Rc<Worker>, peer: &Rc<Peer>) -> Self {
        let (worker, peer) = (Rc::clone(worker), Rc::clone(peer));
        Self {
            socket,
            worker,
            peer,
            first: BytesMut::new(),
            interim: BytesMut::new(),
            ended: false,
        }
    }

    pub(super) fn into_socket(self) -> Socket {
        self.socket
    }

    /// What happens on it.
    pub(super) fn activity(&self) -> &Activity {
        &self.peer.activity
    }

    /// Whether the connection begins as HTTP/2 does. No room is held before something has come.
    pub(super) fn poll_preface(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Socket::Plain(stream) = &mut self.socket else { return Poll::Ready(false) };
        loop {
            if self.first.starts_with(PREFACE) {
                return Poll::Ready(true);
            } else if !PREFACE.starts_with(&self.first)
                || ready!(stream.poll_read_ready(cx)).is_err()
            {
                return Poll::Ready(false);
            }
            self.first.reserve(FIRST);
            match stream.try_read_buf(&mut self.first) {
                Ok(0) => return Poll::Ready(false),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(false),
            }
        }
    }

    fn note(&self, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        match written {
            Poll::Ready(_) => self.peer.activity.bytes_written(),
            Poll::Pending => self.peer.activity.write_pending(),
        }
        written
    }

    /// An answer to what is no request is hyper's own: it is written with the field that every refusal
    /// carries. Says whether it is one.
    #[inline]
    fn is_refusal(&mut self, bytes: &[u8]) -> bool {
        self.peer.activity.waits_for_a_head() && self.amend_refusal(bytes)
    }

    #[cold]
    fn amend_refusal(&mut self, bytes: &[u8]) -> bool {
        if !bytes.starts_with(b"HTTP/1.") {
            return false;
        }
        let end = bytes.windows(2).position(|two| two == b"\r\n").map_or(0, |at| at + 2);
        let (status, rest) = bytes.split_at(end);
        for part in [status, b"cache-control: no-store\r\n", rest] {
            self.interim.extend_from_slice(part);
        }
        true
    }

    /// Writes interim answers, if nothing of an earlier answer is still to be written.
    #[inline]
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let waiting = !self.peer.interim.borrow().is_empty();
        if waiting && self.interim.is_empty() && self.peer.activity.is_clean() {
            for head in self.peer.interim.borrow_mut().drain(..) {
                write_head(&mut self.interim, &head);
            }
        }
        if self.interim.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while !self.interim.is_empty() {
            let written = Pin::new(&mut self.socket).poll_write(cx, &self.interim);
            let count = ready!(self.note(written))?;
            self.interim.advance(count);
        }
        self.peer.activity.cleared();
        Poll::Ready(Ok(()))
    }
}

fn write_head(out: &mut BytesMut, head: &Head) {
    let reason = head.status.canonical_reason().unwrap_or_default();
    out.extend_from_slice(format!("HTTP/1.1 {} {reason}\r\n", head.status.as_str()).as_bytes());
    for (name, value) in &head.headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"\r\n");
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        if self.first.is_empty() {
            ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
            if buffer.filled().len() == before {
                // hyper would give a request up whose client sends no more: whether it goes on is seen below.
                self.ended = self.peer.waits_for_an_answer();
                return if self.ended { Poll::Pending } else { Poll::Ready(Ok(())) };
            }
        } else {
            let count = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first[..count]);
            self.first.advance(count);
            if self.first.is_empty() {
                self.first = BytesMut::new();
            }
        }
        self.peer.activity.bytes_read();
        if !self.peer.activity.is_multiplexed() {
            let bytes = &buffer.filled()[before..];
            if let Err(refused) = self.peer.heard(bytes, &self.worker) {
                if refused == Refused::UnfinishedHeads {
                    self.worker.gateway.metrics.refuse(refused);
                }
                return Poll::Ready(Err(ErrorKind::InvalidData.into()));
            }
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
        ready!(self.poll_interim(cx))?;
        if self.is_refusal(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        ready!(self.poll_interim(cx))?;
        if let Some(first) = slices.iter().find(|slice| !slice.is_empty())
            && self.is_refusal(first)
        {
            return Poll::Ready(Ok(first.len()));
        }
        let Self { socket, worker, .. } = &mut *self;
        let socket = Pin::new(socket);
        let written = if let [one] = slices {
            socket.poll_write(cx, one)
        } else if slices.iter().map(|slice| slice.len()).sum::<usize>() <= SHORT {
            let mut whole = worker.scratch.borrow_mut();
            whole.clear();
            for slice in slices {
                whole.extend_from_slice(slice);
            }
            socket.poll_write(cx, &whole)
        } else {
            socket.poll_write_vectored(cx, slices)
        };
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        // The socket is flushed by whoever has nothing more to write to it.
        self.peer.activity.cleared();
        // hyper does not read on while it has something that it read ahead.
        if self.peer.activity.ends_with_the_client()
            && (self.ended || self.peer.activity.has_read_ahead() && self.socket.has_hung_up(cx))
        {
            return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
        }
        ready!(self.poll_interim(cx))?;
        // Over TLS, what was written may still be waiting inside.
        if Pin::new(&mut self.socket).poll_flush(cx)?.is_pending() {
            self.peer.activity.write_pending();
            return Poll::Pending;
        }
        self.peer.activity.flushed();
        // The answer is out, and no request can follow: hyper is to read the end that was kept from it.
        if self.ended && !self.peer.activity.is_busy() {
            self.ended = false;
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
