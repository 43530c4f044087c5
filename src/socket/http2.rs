//! One stream of an HTTP/2 connection, used as if it were a socket: what a tunnel is over HTTP/2.

use crate::incoming::Receiving;
use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Both directions of a stream.
#[derive(Debug)]
pub struct StreamSocket {
    receive: Receiving,
    send: SendStream<Bytes>,
    /// What has come and was not read yet.
    here: Bytes,
}

impl StreamSocket {
    /// A stream whose heads have been exchanged.
    pub fn new(receive: Receiving, send: SendStream<Bytes>) -> Self {
        Self { receive, send, here: Bytes::new() }
    }

    /// Ends the stream as broken: what a reset is to a socket.
    pub fn reset(&mut self) {
        self.send.send_reset(Reason::CANCEL);
    }
}

impl AsyncRead for StreamSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        while self.here.is_empty() {
            let next = ready!(self.receive.borrow_mut().poll_data(cx));
            match next {
                Some(Ok(data)) => self.here = data,
                // The other end is done with the stream: that is how some say goodbye.
                Some(Err(error)) if matches!(error.reason(), Some(Reason::NO_ERROR)) => {
                    return Poll::Ready(Ok(()));
                }
                Some(Err(error)) => return Poll::Ready(Err(Error::other(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let count = self.here.len().min(buffer.remaining());
        buffer.put_slice(&self.here[..count]);
        self.here.advance(count);
        let released = self.receive.borrow_mut().flow_control().release_capacity(count);
        Poll::Ready(released.map_err(Error::other))
    }
}

impl AsyncWrite for StreamSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        self.send.reserve_capacity(bytes.len());
        while self.send.capacity() == 0 {
            match ready!(self.send.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(Error::other(error))),
                None => return Poll::Ready(Err(ErrorKind::BrokenPipe.into())),
            }
        }
        let count = self.send.capacity().min(bytes.len());
        let sent = self.send.send_data(Bytes::copy_from_slice(&bytes[..count]), false);
        Poll::Ready(sent.map(|()| count).map_err(Error::other))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        // It fails only where the stream is closed already.
        let _ = self.send.send_data(Bytes::new(), true);
        Poll::Ready(Ok(()))
    }
}
