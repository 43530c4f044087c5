//! Sockets that listen.

use super::Error;
use crate::worker::{Listener, Listeners};
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;

/// Binds what is configured; what is bound already stays.
pub(super) fn bind_all(addresses: &[SocketAddr], bound: &Listeners) -> Result<Listeners, Error> {
    let mut before = bound.clone();
    let mut next = Listeners::new();
    for &address in addresses {
        // Port 0 may be asked for twice: each listener is used once.
        match before.iter().position(|listener| listener.configured == address) {
            Some(index) => next.push(before.swap_remove(index)),
            None => {
                // `[::]` takes IPv4 along, unless that has a listener of its own.
                let ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
                let any = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
                let socket = bind(address, any && addresses.contains(&ipv4))?;
                let local = socket.local_addr()?;
                next.push(Arc::new(Listener { configured: address, local, socket }));
            }
        }
    }
    Ok(next)
}

/// Binds one address; `only_v6` leaves IPv4 to another socket.
pub(super) fn bind(address: SocketAddr, only_v6: bool) -> Result<TcpListener, Error> {
    let open = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if only_v6 {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        Ok(socket.into())
    };
    open().map_err(|error| Error::Listen(address, error))
}
