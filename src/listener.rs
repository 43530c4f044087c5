//! Sockets that listen, and what is spoken on them. A reload changes what is spoken, and leaves the
//! socket and the connections alone.

use crate::config::model;
use crate::tls::TlsError;
use crate::tls::listener::Tls;
use arc_swap::ArcSwap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// A socket that listens, shared by all workers.
#[derive(Debug)]
pub struct Listener {
    /// What the configuration says.
    pub configured: SocketAddr,
    /// Where it really listens: the system picks a port for port 0.
    pub local: SocketAddr,
    /// The socket.
    pub socket: TcpListener,
    /// What connections begin with, from now on.
    pub greeting: ArcSwap<Greeting>,
}

/// The listeners there should be.
pub type Listeners = Vec<Arc<Listener>>;

/// What a connection begins with, before HTTP.
#[derive(Debug)]
pub struct Greeting {
    /// A handshake; otherwise everything is in the clear.
    pub tls: Option<Tls>,
    /// A balancer says whom it connects.
    pub proxy_protocol: bool,
}

impl Greeting {
    /// What a listener is configured to begin with; sessions go on from what was `before`.
    pub fn new(config: &model::Listener, before: Option<&Self>) -> Result<Self, TlsError> {
        let before = before.and_then(|before| before.tls.as_ref());
        let tls = config.tls.as_ref();
        let tls = tls.map(|tls| Tls::new(&tls.certificates, tls.client_ca.clone(), before));
        Ok(Self { tls: tls.transpose()?, proxy_protocol: config.proxy_protocol })
    }

    /// Nothing at all.
    pub fn is_plain(&self) -> bool {
        self.tls.is_none() && !self.proxy_protocol
    }
}
