//! Opening a connection to an endpoint.

use super::Endpoint;
use super::upload::RequestBody;
use crate::deadline::Deadlines;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::any::Any;
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// An open connection: requests go in here, and a task of the same worker drives it. Whoever drops
/// it closes it, even if a body is still on its way.
pub struct Connection {
    /// hyper's handle.
    pub sender: SendRequest<RequestBody>,
    guard: Rc<Cell<Option<Guard>>>,
    driver: AbortHandle,
}

/// Something to let go of when a request is over at the backend's end.
pub type Guard = Box<dyn Any>;

impl Connection {
    /// Keeps a guard until it is [taken back](Self::take_guard), or else until the connection is
    /// closed: a request that is given up is not over before the backend can know.
    pub fn keep_guard(&self, guard: Option<Guard>) {
        self.guard.set(guard);
    }

    /// Takes the guard back.
    pub fn take_guard(&self) -> Option<Guard> {
        self.guard.take()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.sender.fmt(f)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Drives a connection. When it is dropped, the socket closes first, and then the guard goes.
struct Driver {
    connection: http1::Connection<TokioIo<TcpStream>, RequestBody>,
    _guard: Rc<Cell<Option<Guard>>>,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Its errors reach the request that was under way.
        Pin::new(&mut self.connection).poll(cx).map(drop)
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
    let guard = Rc::new(Cell::new(None));
    let driver = Driver { connection, _guard: Rc::clone(&guard) };
    let driver = tokio::task::spawn_local(driver).abort_handle();
    Ok(Connection { sender, guard, driver })
}

async fn dial(endpoint: &Endpoint) -> std::io::Result<TcpStream> {
    match endpoint.address {
        Some(address) => TcpStream::connect(address).await,
        None => TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await,
    }
}
