//! Ports that belong to a test, whether a server listens on them or not.

use socket2::{Domain, Socket, Type};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

/// A port that the kernel gives to no other program until this is dropped.
///
/// The socket is bound and never listens, so a connection to it is refused. Its `SO_REUSEADDR` lets a
/// server of the test listen on the port, end, and listen again: redis-server, a backend, a gateway.
pub struct HeldPort(Socket);

impl HeldPort {
    pub fn new() -> Self {
        Self::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port")
    }

    /// The same port on another address of this machine, unless it is taken there.
    pub fn also_on(&self, ip: IpAddr) -> Option<Self> {
        Self::bind((ip, self.port()).into()).ok()
    }

    fn bind(address: SocketAddr) -> std::io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        Ok(Self(socket))
    }

    pub fn address(&self) -> SocketAddr {
        let address = self.0.local_addr().expect("it is bound");
        address.as_socket().expect("an IP address")
    }

    pub fn port(&self) -> u16 {
        self.address().port()
    }

    /// Whether no server listens on it now.
    pub fn is_refused(&self) -> bool {
        TcpStream::connect(self.address()).is_err()
    }
}

#[test]
fn a_held_port_refuses_connections_and_lets_servers_come_and_go() {
    use std::net::TcpListener;
    let port = HeldPort::new();
    for _ in 0..3 {
        assert!(port.is_refused());
        let listener = TcpListener::bind(port.address()).expect("a server of the test may");
        assert!(TcpStream::connect(port.address()).is_ok());
        drop(listener);
    }
}
