//! Connections of callers: taken from a listener, greeted, and guarded by time-outs.
//!
//! ```text
//! PROXY header ─► TLS ─► HTTP/2, if that was agreed on or is what comes first ─► http2
//!                    └─► otherwise HTTP/1.1 ─► http1 ─► a tunnel, perhaps
//! ```
//!
//! hyper's own header timer costs a timer per request; here the socket notes what happens on it
//! ([`Activity`]) and the worker's coarse deadlines do the rest.

use super::activity::Activity;
use super::address::{cut, is_in};
use super::chunks::{self, Framed, Inbound};
use super::tunnel::Tunnel;
use super::watched::Watched;
use super::{http1, http2};
use crate::deadline::Deadlines;
use crate::listener::Greeting;
use crate::metrics::Refused;
use crate::proxy_protocol;
use crate::shares::Share;
use crate::snapshot::Snapshot;
use crate::socket::Socket;
use crate::upstream::answer::Head;
use crate::worker::Worker;
use http::HeaderValue;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// Who is at the other end of a connection.
#[derive(Debug)]
pub struct Peer {
    /// Their address, IPv4-mapped ones as IPv4.
    pub ip: IpAddr,
    /// The same as text.
    pub name: HeaderValue,
    /// Whether what they say is encrypted.
    pub secure: bool,
    /// What happens on the connection.
    pub activity: Activity,
    /// Interim answers that are to be told, by whoever polls the request: they are its own.
    pub(super) interim: RefCell<Vec<Head>>,
    /// What the bytes that have come belong to, over HTTP/1.1.
    pub(super) inbound: Cell<Inbound>,
    /// A head that has come in part, and what it takes of all that such heads may.
    unfinished: RefCell<(Vec<u8>, Option<Share>)>,
    /// Nobody can tell what comes after the request under way.
    last: Cell<bool>,
    /// What the request that was just answered has switched to.
    pub(super) tunnel: RefCell<Option<Tunnel>>,
    /// Whether they are a trusted proxy, and by which generation's list.
    trusted: Cell<(u64, bool)>,
}

impl Peer {
    fn new(address: SocketAddr, secure: bool, deadlines: Rc<Deadlines>) -> Self {
        let ip = address.ip().to_canonical();
        let name = HeaderValue::from_str(&ip.to_string());
        Self {
            ip,
            name: name.unwrap_or(HeaderValue::from_static("unknown")),
            secure,
            activity: Activity::new(deadlines),
            interim: RefCell::default(),
            inbound: Cell::default(),
            unfinished: RefCell::default(),
            last: Cell::new(false),
            tunnel: RefCell::default(),
            trusted: Cell::new((0, false)),
        }
    }

    /// Bytes have come over HTTP/1.1. A head that came whole is kept in the worker's own place: it is
    /// read before anybody else can come. Heads that come in part may together be so large.
    pub(super) fn heard(&self, bytes: &[u8], worker: &Worker) -> Result<Inbound, Refused> {
        let before = self.inbound.get();
        let inbound = before.read(bytes, self.activity.waits_for_a_head());
        self.inbound.set(inbound);
        self.activity.read_ahead(inbound == Inbound::Ahead || inbound == Inbound::Lost);
        if inbound == Inbound::Head {
            if before == Inbound::Head || chunks::is_unfinished(bytes) {
                let (unfinished, share) = &mut *self.unfinished.borrow_mut();
                if !self.grows(share, bytes.len(), worker) {
                    return Err(Refused::UnfinishedHeads);
                }
                unfinished.extend_from_slice(bytes);
            } else {
                let mut last_read = worker.last_read.borrow_mut();
                last_read.clear();
                last_read.extend_from_slice(bytes);
            }
        }
        if inbound.is_garbled() { Err(Refused::BadRequest) } else { Ok(inbound) }
    }

    /// Whether heads that come in part may take so much more. A trusted proxy's connections carry many
    /// callers: its heads are not counted.
    #[cold]
    fn grows(&self, share: &mut Option<Share>, bytes: usize, worker: &Worker) -> bool {
        let generation = worker.generation();
        if self.is_trusted(&generation.snapshot) {
            return true;
        }
        let address = cut(self.ip, generation.snapshot.identity.ipv6_prefix);
        let none = || worker.gateway.unfinished_heads.none(Some(address));
        share.get_or_insert_with(none).grow(bytes)
    }

    /// A request begins; `last_read` is its head, unless that came in parts.
    pub(super) fn account_for(&self, last_read: &[u8], framed: Framed) {
        let (unfinished, _share) = self.unfinished.take();
        let read = if unfinished.is_empty() { last_read } else { &unfinished };
        let inbound = self.inbound.get().begin(read, framed);
        self.inbound.set(inbound);
        self.activity.read_ahead(inbound == Inbound::Ahead || inbound == Inbound::Lost);
        self.last.set(inbound == Inbound::Lost && framed == Framed::Chunks);
    }

    /// Whether a request that has come whole is under way, over HTTP/1.1.
    pub(super) fn waits_for_an_answer(&self) -> bool {
        let whole = matches!(self.inbound.get(), Inbound::Whole | Inbound::Ahead);
        whole && self.activity.is_busy() && !self.activity.is_multiplexed()
    }

    /// Whether the connection may carry no request after the one under way.
    pub(super) fn is_last(&self) -> bool {
        self.last.get()
    }

    /// Whether their forwarding headers count.
    pub fn is_trusted(&self, snapshot: &Snapshot) -> bool {
        let (generation, trusted) = self.trusted.get();
        if generation == snapshot.generation {
            return trusted;
        }
        let trusted = super::address::is_in(&snapshot.identity.trusted_proxies, self.ip);
        self.trusted.set((snapshot.generation, trusted));
        trusted
    }
}

/// Serves one connection until it ends.
pub async fn serve(
    worker: Rc<Worker>,
    stream: TcpStream,
    address: SocketAddr,
    greeting: Arc<Greeting>,
) {
    let _ = stream.set_nodelay(true);
    let (socket, address, _counted) = if greeting.is_plain() {
        match Counted::new(&worker, address) {
            Some(counted) => (Socket::Plain(stream), address, counted),
            None => return worker.gateway.metrics.refuse(Refused::TooManyConnectionsPerIp),
        }
    } else {
        // On the heap: a connection that was greeted shall not hold the room for it.
        match Box::pin(greet(&worker, stream, address, &greeting)).await {
            Ok(greeted) => greeted,
            Err(refused) => return worker.gateway.metrics.refuse(refused),
        }
    };
    drop(greeting);
    let secure = matches!(socket, Socket::Tls(_));
    let agreed = socket.agreed_on_http2();
    let peer = Rc::new(Peer::new(address, secure, Rc::clone(&worker.deadlines)));
    let mut socket = Watched::new(socket, &worker, &peer);
    // Without a word on it in the handshake, what comes first tells.
    if agreed || !secure && first_word(&worker, &peer, &mut socket).await {
        Box::pin(http2::serve(worker, peer, socket)).await;
    } else {
        http1::serve(worker, peer, socket).await;
    }
}

/// A connection counts for its address until it ends. Those of trusted proxies carry many callers,
/// and do not.
struct Counted(Option<(Rc<Worker>, IpAddr)>);

impl Counted {
    /// `None` if the address has too many.
    fn new(worker: &Rc<Worker>, address: SocketAddr) -> Option<Self> {
        let generation = worker.generation();
        let (identity, ip) = (&generation.snapshot.identity, address.ip().to_canonical());
        if is_in(&identity.trusted_proxies, ip) {
            return Some(Self(None));
        }
        let (gateway, ip) = (&worker.gateway, cut(ip, identity.ipv6_prefix));
        let enters = gateway.connections.enter(ip, gateway.max_connections_per_ip());
        enters.then(|| Self(Some((Rc::clone(worker), ip))))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some((worker, ip)) = &self.0 {
            worker.gateway.connections.leave(*ip);
        }
    }
}

/// What comes before HTTP, within its time-out. Says who is there in the end.
async fn greet(
    worker: &Rc<Worker>,
    stream: TcpStream,
    address: SocketAddr,
    greeting: &Greeting,
) -> Result<(Socket, SocketAddr, Counted), Refused> {
    const FAILED: Refused = Refused::Handshake;
    let greeted = worker.deadlines.within(worker.server().handshake_timeout, async {
        let mut stream = stream;
        let mut source = None;
        if greeting.proxy_protocol {
            // Until then, it counts for the peer.
            let _waiting = Counted::new(worker, address).ok_or(Refused::TooManyConnectionsPerIp)?;
            source = read_source(&mut stream).await.map_err(|_| FAILED)?;
        }
        // Before the handshake, which is what costs most.
        let address = source.unwrap_or(address);
        let counted = Counted::new(worker, address).ok_or(Refused::TooManyConnectionsPerIp)?;
        let socket = match &greeting.tls {
            None => Socket::Plain(stream),
            Some(_) if speaks_in_the_clear(&stream).await => {
                answer_in_the_clear(worker, stream).await;
                return Err(FAILED);
            }
            Some(tls) => {
                let accept = TlsAcceptor::from(Arc::clone(&tls.config)).accept(stream);
                Socket::Tls(Box::new(accept.await.map_err(|_| FAILED)?.into()))
            }
        };
        Ok((socket, address, counted))
    });
    greeted.await.unwrap_or(Err(FAILED))
}

/// Whom a balancer connects, if it does not speak for itself. Nothing is read beyond its header.
async fn read_source(stream: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let mut bytes = vec![0; proxy_protocol::LONGEST];
    let mut read = 0;
    loop {
        let here = read + stream.peek(&mut bytes[read..]).await?;
        if here == read {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let header = proxy_protocol::parse(&bytes[..here]).map_err(io::Error::other)?;
        let end = header.map_or(here, |header| header.length);
        stream.read_exact(&mut bytes[read..end]).await?;
        if let Some(header) = header {
            return Ok(header.source);
        }
        read = end;
    }
}

/// Whether a method comes where a handshake should.
async fn speaks_in_the_clear(stream: &TcpStream) -> bool {
    let mut first = [0];
    stream.peek(&mut first).await.is_ok() && first[0].is_ascii_uppercase()
}

/// Somebody who speaks HTTP where TLS is expected is told so.
async fn answer_in_the_clear(worker: &Worker, mut stream: TcpStream) {
    let answer = b"HTTP/1.1 400 Bad Request\r\ncache-control: no-store\r\n\
                   connection: close\r\ncontent-length: 0\r\n\r\n";
    let _ = stream.write_all(answer).await;
    http1::linger(worker, Socket::Plain(stream)).await;
}

/// Whether a connection in the clear begins with the preface of HTTP/2. Whoever says nothing for too
/// long is left to HTTP/1.1, which knows how to deal with that.
async fn first_word(worker: &Worker, peer: &Peer, socket: &mut Watched) -> bool {
    let deadline = worker.deadlines.register();
    poll_fn(|cx| match socket.poll_preface(cx) {
        Poll::Pending if worker.is_draining() && peer.activity.may_end() => Poll::Ready(false),
        Poll::Pending => {
            peer.activity.arm(&deadline, &worker.server(), worker.is_draining());
            deadline.poll_elapsed(cx).map(|_| false)
        }
        ready @ Poll::Ready(_) => ready,
    })
    .await
}
