//! Binding addresses to listen on.

use super::Error;
use crate::config::model;
use crate::handover::Inherited;
use crate::listener::{Greeting, Listener, Listeners};
use arc_swap::ArcSwap;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;

/// Listeners as configured, each with what is to be spoken on it from the moment it is
/// [put into force](Self::adopt).
pub(super) struct Bound(Vec<(Arc<Listener>, Arc<Greeting>)>);

impl Bound {
    /// Binds what is configured; what is bound already stays, here or by whoever started us.
    pub(super) fn new(
        config: &[model::Listener],
        bound: &Listeners,
        inherited: &mut Inherited,
    ) -> Result<Self, Error> {
        let mut before = bound.clone();
        let mut next = Vec::new();
        for listener in config {
            let address = listener.address;
            // Port 0 may be asked for twice: each listener is used once.
            match before.iter().position(|before| before.configured == address) {
                Some(index) => {
                    let before = before.swap_remove(index);
                    let greeting = Greeting::new(listener, Some(&before.greeting.load()))?;
                    next.push((before, Arc::new(greeting)));
                }
                None => {
                    // `[::]` takes IPv4 along, unless that has a listener of its own.
                    let ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
                    let any = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
                    let apart = any && config.iter().any(|other| other.address == ipv4);
                    let greeting = Arc::new(Greeting::new(listener, None)?);
                    let passed_on = inherited.take(address);
                    let socket = passed_on.map_or_else(|| bind(address, apart), Ok)?;
                    // Connections inherit it; whoever cannot has larger buffers.
                    let _ = SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT);
                    let local = socket.local_addr()?;
                    let first = ArcSwap::new(Arc::clone(&greeting));
                    let listener = Listener { configured: address, local, socket, greeting: first };
                    next.push((Arc::new(listener), greeting));
                }
            }
        }
        Ok(Self(next))
    }

    /// From now on this is what is spoken.
    pub(super) fn adopt(self) -> Listeners {
        let adopted = self.0.into_iter().map(|(listener, greeting)| {
            listener.greeting.store(greeting);
            listener
        });
        adopted.collect()
    }
}

/// What the kernel may hold of an answer that it cannot send yet. Callers who do not read would have
/// it hold megabytes each.
const UNSENT: u32 = 128 << 10;

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
