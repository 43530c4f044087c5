//! HTTP/1.1 with a caller: hyper reads and writes, one request after the other. When a request has
//! switched to another protocol, the socket is the tunnel's.

use super::accept::Peer;
use super::watched::Watched;
use crate::deadline::TICK;
use crate::incoming::Incoming;
use crate::metrics::Refused;
use crate::socket::Socket;
use crate::worker::Worker;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long the goodbye of a connection may take.
pub(super) const GOODBYE: Duration = Duration::from_secs(1);

/// Serves a connection until it ends.
pub(super) async fn serve(worker: Rc<Worker>, peer: Rc<Peer>, socket: Watched) {
    let server = worker.generation().snapshot.server;
    let service = service_fn({
        let (worker, peer) = (Rc::clone(&worker), Rc::clone(&peer));
        move |request| {
            let request = request.map(Incoming::Http1);
            super::handle(Rc::clone(&worker), Rc::clone(&peer), request, None)
        }
    });
    let mut builder = http1::Builder::new();
    builder.max_header_size(server.max_header_bytes);
    builder.max_buf_size(server.max_header_bytes.max(64 << 10));
    if server.max_headers != 100 {
        builder.max_headers(server.max_headers); // hyper's default needs no allocation
    }
    let mut connection = builder.serve_connection(TokioIo::new(socket), service);

    let _untaken = Untaken(Rc::clone(&peer));
    let deadline = worker.deadlines.register();
    let mut draining = false;
    let outcome = poll_fn(|cx| {
        if worker.is_draining() && !draining && peer.activity.may_end() {
            draining = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        if let Poll::Ready(result) = Pin::new(&mut connection).poll(cx) {
            return Poll::Ready(Some(result));
        }
        // A first request that came at the last moment is its connection's only one.
        if worker.is_draining() && !draining && peer.activity.may_end() {
            cx.waker().wake_by_ref();
        }
        peer.activity.arm(&deadline, &worker.server(), worker.is_draining());
        while deadline.poll_elapsed(cx).is_ready() {
            if !peer.activity.is_only_looked_at() {
                return Poll::Ready(None);
            }
            // It is only time to see whether the caller is still there.
            if let Poll::Ready(result) = Pin::new(&mut connection).poll(cx) {
                return Poll::Ready(Some(result));
            }
            peer.activity.arm(&deadline, &worker.server(), worker.is_draining());
        }
        Poll::Pending
    })
    .await;

    let parts = connection.into_parts();
    let socket = parts.io.into_inner().into_socket();
    match outcome {
        Some(Err(error)) if error.is_parse() => {
            worker.gateway.metrics.refuse(Refused::BadRequest);
            linger(&worker, socket).await;
        }
        None if peer.activity.waits_for_a_head() => {
            worker.gateway.metrics.refuse(Refused::HeaderTimeout);
            time_out(&worker, socket).await;
        }
        // An answer that broke off must not look whole to somebody who goes by the connection's end.
        Some(Err(_)) if peer.activity.is_without_length() => socket.reset(),
        // What they do not take would stay with the kernel.
        None if peer.activity.is_stuck() => {
            worker.gateway.metrics.refuse(Refused::NotTaken);
            socket.reset();
        }
        Some(Ok(())) => {
            let tunnel = peer.tunnel.take();
            match tunnel {
                Some(tunnel) => Box::pin(tunnel.run(socket, &parts.read_buf)).await,
                None if peer.activity.lingers() => linger(&worker, socket).await,
                // hyper has said goodbye, unless a wish to switch came to nothing.
                None => close(&worker, socket).await,
            }
        }
        _ => {}
    }
}

/// A tunnel that never began goes when its connection does: the two hold each other.
struct Untaken(Rc<Peer>);

impl Drop for Untaken {
    fn drop(&mut self) {
        self.0.tunnel.take();
    }
}

/// Ends TLS in good order.
async fn close(worker: &Worker, mut socket: Socket) {
    if let Socket::Tls(_) = socket {
        let _ = worker.deadlines.within(GOODBYE, socket.shutdown()).await;
    }
}

/// Tells a caller whose head did not come in time. One try: whoever does not read it was told.
async fn time_out(worker: &Worker, mut socket: Socket) {
    let answer = b"HTTP/1.1 408 Request Timeout\r\ncache-control: no-store\r\n\
                   connection: close\r\ncontent-length: 0\r\n\r\n";
    let _ = worker.deadlines.within(TICK, socket.write_all(answer)).await;
    let _ = worker.deadlines.within(TICK, socket.shutdown()).await;
}

/// Closes a connection on which bytes may still arrive. A socket that is closed with unread bytes
/// resets the connection, and the caller might lose the answer that explains why.
pub(super) async fn linger(worker: &Worker, mut socket: Socket) {
    const MOST: usize = 256 << 10;
    // On the heap: a connection that needs no such end shall not hold the room for it.
    let mut bytes = vec![0; 4096];
    let reading = async {
        let _ = socket.shutdown().await;
        let mut total = 0;
        while let Ok(count @ 1..) = socket.read(&mut bytes).await {
            total += count;
            if total > MOST {
                break;
            }
        }
    };
    let _ = worker.deadlines.within(GOODBYE, reading).await;
}
