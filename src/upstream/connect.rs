//! Opening a connection to an endpoint.

use super::{Endpoint, Upstream};
use crate::deadline::Deadlines;
use crate::socket::Socket;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Refused, unreachable, or a name that does not resolve.
    #[error("cannot connect: {0}")]
    Unreachable(#[from] std::io::Error),
    /// Its certificate is not believed, or it does not speak TLS.
    #[error("the backend did not prove who it is: {0}")]
    Tls(std::io::Error),
    /// Something else than HTTP/2 is spoken there.
    #[error("the backend does not speak HTTP/2")]
    NoHttp2,
    /// It took too long.
    #[error("connecting took too long")]
    TimedOut,
}

impl ConnectError {
    /// Whether it is this machine that cannot, and no endpoint's fault: it is out of file descriptors,
    /// buffers or ports.
    pub fn is_ours(&self) -> bool {
        use rustix::io::Errno;
        let Self::Unreachable(error) = self else { return false };
        let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
        ours.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
    }
}

/// Connects within the upstream's limit.
pub async fn connect(
    upstream: &Upstream,
    endpoint: &Endpoint,
    deadlines: &Rc<Deadlines>,
) -> Result<Socket, ConnectError> {
    let limit = upstream.config.timeouts.connect;
    deadlines.within(limit, dial(upstream, endpoint)).await.unwrap_or(Err(ConnectError::TimedOut))
}

/// Connects, however long it takes.
pub(super) async fn dial(upstream: &Upstream, endpoint: &Endpoint) -> Result<Socket, ConnectError> {
    let stream = TcpStream::connect(&endpoint.addresses[..]).await?;
    stream.set_nodelay(true)?;
    let (Some(tls), Some(name)) = (&upstream.config.tls, &endpoint.server_name) else {
        return Ok(Socket::Plain(stream));
    };
    let connector = TlsConnector::from(Arc::clone(&tls.config));
    let stream = connector.connect(name.clone(), stream).await.map_err(ConnectError::Tls)?;
    let socket = Socket::Tls(Box::new(stream.into()));
    if upstream.config.http2 && !socket.agreed_on_http2() {
        return Err(ConnectError::NoHttp2);
    }
    Ok(socket)
}
