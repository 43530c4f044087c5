//! Opening a connection to an endpoint.

use super::Endpoint;
use super::upload::RequestBody;
use crate::deadline::Deadlines;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// An open connection: requests go in here, and a task of the same worker drives it. Whoever drops
/// it closes it, even if a body is still on its way.
#[derive(Debug)]
pub struct Connection {
    /// hyper's handle.
    pub sender: SendRequest<RequestBody>,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What is read ahead of a caller who takes their time; the head of an answer must fit, too.
const BUFFER: usize = 64 << 10;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Refused, unreachable, or a name that does not resolve.
    #[error("cannot connect: {0}")]
    Unreachable(#[from] std::io::Error),
    /// It took too long.
    #[error("connecting took too long")]
    TimedOut,
    /// hyper would not speak over it.
    #[error("cannot speak HTTP/1.1: {0}")]
    Handshake(#[from] hyper::Error),
}

/// Connects within `limit`.
pub async fn connect(
    endpoint: &Endpoint,
    deadlines: &Rc<Deadlines>,
    limit: Duration,
) -> Result<Connection, ConnectError> {
    let connecting = deadlines.within(limit, dial(endpoint)).await;
    let stream = connecting.map_err(|_| ConnectError::TimedOut)??;
    stream.set_nodelay(true)?;
    let (sender, connection) =
        http1::Builder::new().max_buf_size(BUFFER).handshake(TokioIo::new(stream)).await?;
    let driver = tokio::task::spawn_local(async move {
        // Its errors reach the request that was under way.
        let _ = connection.await;
    });
    Ok(Connection { sender, driver: driver.abort_handle() })
}

async fn dial(endpoint: &Endpoint) -> std::io::Result<TcpStream> {
    match endpoint.address {
        Some(address) => TcpStream::connect(address).await,
        None => TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await,
    }
}
