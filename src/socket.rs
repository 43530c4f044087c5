//! A connection's bytes, in the clear or through TLS; the same for callers and for backends.

pub mod http2;

use std::io::{ErrorKind, IoSlice, Result};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// A connected socket. Over TLS, what is written may wait inside until it is flushed.
#[derive(Debug)]
pub enum Socket {
    /// In the clear.
    Plain(TcpStream),
    /// Through TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Whether the other end has hung up, whatever is still to be read. If not, the task may be woken
    /// when it has.
    pub fn has_hung_up(&self, cx: &mut Context<'_>) -> bool {
        let ready = pin!(self.stream().ready(Interest::READABLE)).poll(cx);
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    /// Ends the connection so that the other side takes it for broken.
    pub fn reset(self) {
        self.reset_when_closed();
    }

    /// Once this is dropped, the other side takes the connection for broken.
    pub fn reset_when_closed(&self) {
        let stream = self.stream();
        let _ = socket2::SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO));
    }

    /// Whether the other end has neither hung up nor said anything. Costs no system call while
    /// nothing happens.
    pub fn is_quiet(&mut self) -> bool {
        match self {
            Self::Plain(stream) => {
                stream.try_read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            }
            // What TLS has to say to itself, new tickets for example, is no matter of ours.
            Self::Tls(stream) => {
                let mut cx = Context::from_waker(Waker::noop());
                Pin::new(stream).poll_read(&mut cx, &mut ReadBuf::new(&mut [0])).is_pending()
            }
        }
    }

    /// Whether the other end has agreed to speak HTTP/2.
    pub fn agreed_on_http2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }
}

impl AsyncRead for Socket {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self.get_mut() {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
