//! Opening a connection to an endpoint.

use super::Endpoint;
use super::connection::Connection;
use crate::deadline::Deadlines;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Refused, unreachable, or a name that does not resolve.
    #[error("cannot connect: {0}")]
    Unreachable(#[from] std::io::Error),
    /// It took too long.
    #[error("connecting took too long")]
    TimedOut,
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
    Ok(Connection::new(stream, deadlines.register()))
}

async fn dial(endpoint: &Endpoint) -> std::io::Result<TcpStream> {
    match endpoint.address {
        Some(address) => TcpStream::connect(address).await,
        None => TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await,
    }
}
