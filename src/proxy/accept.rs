//! Connections of callers: taken from a listener, driven by hyper, and guarded by time-outs.
//!
//! hyper's own header timer costs a timer per request; here the socket notes what happens on it
//! ([`Activity`]) and the worker's coarse deadlines do the rest.

use super::watched::Watched;
use crate::config::model::Server;
use crate::deadline::{Deadline, Deadlines, TICK, ticks};
use crate::metrics::Refused;
use crate::snapshot::Snapshot;
use crate::worker::Worker;
use http::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::cell::Cell;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Who is at the other end of a connection.
#[derive(Debug)]
pub struct Peer {
    /// Their address, IPv4-mapped ones as IPv4.
    pub ip: IpAddr,
    /// The same as text.
    pub name: HeaderValue,
    /// What happens on the connection.
    pub activity: Activity,
    /// Whether they are a trusted proxy, and by which generation's list.
    trusted: Cell<(u64, bool)>,
}

impl Peer {
    fn new(address: SocketAddr, deadlines: Rc<Deadlines>) -> Self {
        let ip = address.ip().to_canonical();
        let name = HeaderValue::from_str(&ip.to_string());
        Self {
            ip,
            name: name.unwrap_or(HeaderValue::from_static("unknown")),
            activity: Activity::new(deadlines),
            trusted: Cell::new((0, false)),
        }
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

/// What a connection is doing, and since when.
#[derive(Debug)]
pub struct Activity {
    deadlines: Rc<Deadlines>,
    phase: Cell<Phase>,
    since: Cell<u64>,
    /// Since when the caller has not taken what we write.
    stuck: Cell<Option<u64>>,
    /// Bytes of the next request came before this one's answer was out.
    ahead: Cell<bool>,
    /// The caller may still be sending a body that nobody reads.
    lingers: Cell<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for the rest of a head, or for the very first byte.
    Head,
    /// A request is under way.
    Busy,
    /// Its answer is complete, but not all of it is out.
    Ending,
    /// Between two requests.
    Idle,
}

impl Activity {
    fn new(deadlines: Rc<Deadlines>) -> Self {
        let since = Cell::new(deadlines.tick());
        Self {
            deadlines,
            phase: Cell::new(Phase::Head),
            since,
            stuck: Cell::new(None),
            ahead: Cell::new(false),
            lingers: Cell::new(false),
        }
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(self.deadlines.tick());
    }

    /// A head has been read whole.
    pub fn request_began(&self) {
        self.ahead.set(false);
        self.enter(Phase::Busy);
    }

    /// The answer is complete.
    pub fn request_ended(&self) {
        self.enter(Phase::Ending);
    }

    /// Whether the caller may still be sending a body that nobody reads.
    pub fn linger(&self, lingers: bool) {
        self.lingers.set(lingers);
    }

    pub(super) fn bytes_read(&self) {
        match self.phase.get() {
            Phase::Idle => self.enter(Phase::Head),
            Phase::Ending => self.ahead.set(true),
            Phase::Head | Phase::Busy => {}
        }
    }

    pub(super) fn write_pending(&self) {
        if self.stuck.get().is_none() {
            self.stuck.set(Some(self.deadlines.tick()));
        }
    }

    pub(super) fn bytes_written(&self) {
        self.stuck.set(None);
    }

    pub(super) fn flushed(&self) {
        if self.phase.get() == Phase::Ending {
            self.enter(if self.ahead.take() { Phase::Head } else { Phase::Idle });
        }
    }

    /// Sets the deadline to when the connection has been at it for too long.
    fn arm(&self, deadline: &Deadline, server: &Server) {
        match (self.phase.get(), self.stuck.get()) {
            (Phase::Head, _) => deadline.set_from(self.since.get(), ticks(server.header_timeout)),
            (Phase::Idle, _) => deadline.set_from(self.since.get(), ticks(server.idle_timeout)),
            (Phase::Busy | Phase::Ending, Some(since)) => {
                deadline.set_from(since, ticks(server.idle_timeout));
            }
            (Phase::Busy | Phase::Ending, None) => deadline.clear(),
        }
    }
}

/// Serves one connection until it ends.
pub async fn serve(worker: Rc<Worker>, stream: TcpStream, address: SocketAddr) {
    let peer = Rc::new(Peer::new(address, Rc::clone(&worker.deadlines)));
    let _ = stream.set_nodelay(true);
    let server = worker.generation().snapshot.server;
    let socket = TokioIo::new(Watched::new(stream, &worker, &peer));
    let service = service_fn({
        let (worker, peer) = (Rc::clone(&worker), Rc::clone(&peer));
        move |request| super::handle(Rc::clone(&worker), Rc::clone(&peer), request)
    });
    let mut builder = http1::Builder::new();
    builder.max_header_size(server.max_header_bytes);
    builder.max_buf_size(server.max_header_bytes.max(64 << 10));
    if server.max_headers != 100 {
        builder.max_headers(server.max_headers); // hyper's default needs no allocation
    }
    let mut connection = builder.serve_connection(socket, service);

    let deadline = worker.deadlines.register();
    let mut draining = false;
    let outcome = poll_fn(|cx| {
        if worker.is_draining() && !std::mem::replace(&mut draining, true) {
            Pin::new(&mut connection).graceful_shutdown();
        }
        if let Poll::Ready(result) = Pin::new(&mut connection).poll(cx) {
            return Poll::Ready(Some(result));
        }
        peer.activity.arm(&deadline, &worker.server());
        deadline.poll_elapsed(cx).map(|_| None)
    })
    .await;

    let stream = connection.into_parts().io.into_inner().into_stream();
    match outcome {
        Some(Err(error)) if error.is_parse() => {
            worker.gateway.metrics.refuse(Refused::BadRequest);
            linger(&worker, stream).await;
        }
        None if peer.activity.phase.get() == Phase::Head => {
            worker.gateway.metrics.refuse(Refused::HeaderTimeout);
            time_out(&worker, stream).await;
        }
        Some(Ok(())) if peer.activity.lingers.get() => linger(&worker, stream).await,
        _ => {}
    }
}

/// Tells a caller whose head did not come in time. One try: whoever does not read it was told.
async fn time_out(worker: &Worker, mut stream: TcpStream) {
    let answer = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let _ = worker.deadlines.within(TICK, stream.write_all(answer)).await;
    let _ = worker.deadlines.within(TICK, stream.shutdown()).await;
}

/// Closes a connection on which bytes may still arrive. A socket that is closed with unread bytes
/// resets the connection, and the caller might lose the answer that explains why.
async fn linger(worker: &Worker, mut stream: TcpStream) {
    const MOST: usize = 256 << 10;
    // On the heap: a connection that needs no such end shall not hold the room for it.
    let mut bytes = vec![0; 4096];
    let reading = async {
        let _ = stream.shutdown().await;
        let mut total = 0;
        while let Ok(count @ 1..) = stream.read(&mut bytes).await {
            total += count;
            if total > MOST {
                break;
            }
        }
    };
    let _ = worker.deadlines.within(Duration::from_secs(1), reading).await;
}
