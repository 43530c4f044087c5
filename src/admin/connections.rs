//! Connections of the admin listener: few, shared fairly, and none for long without a request.

use super::access::Access;
use super::{Answer, Operator, answer};
use crate::proxy::address::cut;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How many there may be.
const MOST: usize = 256;

/// How many each address may have; of IPv6, each /64.
const MOST_PER_ADDRESS: usize = 16;

/// How many are kept for loopback, where health checks and the operator's shell are.
const RESERVED_FOR_LOOPBACK: usize = 8;

/// How long the head of a request may take. A connection that is idle between two requests is waiting
/// for a head, too.
const HEAD: Duration = Duration::from_secs(5);

/// How long an answer may wait for its client to take it.
const UNREAD: Duration = Duration::from_secs(10);

/// Answers the operator until the task is aborted; its connections end with it.
pub async fn serve(listener: TcpListener, operator: Operator) {
    let shared = Rc::new((Access::new(&operator), operator));
    let permits = Permits::default();
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let peer = peer.ip().to_canonical();
        // Without a permit the connection is closed.
        if let Some(permit) = permits.acquire(peer) {
            let shared = Rc::clone(&shared);
            connections.spawn_local(async move {
                serve_one(stream, peer, &shared).await;
                drop(permit);
            });
        }
    }
}

async fn serve_one(stream: TcpStream, peer: IpAddr, shared: &Rc<(Access, Operator)>) {
    // Where the system does not know the option, the number of connections still is bounded.
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD));
    let service = service_fn(|request: Request<Incoming>| {
        let shared = Rc::clone(shared);
        async move {
            let (access, operator) = &*shared;
            Ok::<Answer, Infallible>(answer(access, operator, peer, request).await)
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
    // A client that breaks off a connection needs no answer.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

/// Permits for connections.
#[derive(Clone, Debug, Default)]
struct Permits(Rc<RefCell<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    by_address: HashMap<IpAddr, usize>,
    all: usize,
    /// All but those of loopback.
    remote: usize,
}

/// A permit for one connection.
#[derive(Debug)]
struct Permit {
    permits: Permits,
    address: IpAddr,
    remote: bool,
}

impl Permits {
    fn acquire(&self, peer: IpAddr) -> Option<Permit> {
        let (address, remote) = (cut(peer, 64), !peer.is_loopback());
        let taken = &mut *self.0.borrow_mut();
        let full = taken.all >= MOST
            || remote && taken.remote >= MOST - RESERVED_FOR_LOOPBACK
            || taken.by_address.get(&address).is_some_and(|count| *count >= MOST_PER_ADDRESS);
        if full {
            return None;
        }
        *taken.by_address.entry(address).or_default() += 1;
        taken.all += 1;
        taken.remote += usize::from(remote);
        Some(Permit { permits: self.clone(), address, remote })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let taken = &mut *self.permits.0.borrow_mut();
        taken.all -= 1;
        taken.remote -= usize::from(self.remote);
        if let Some(count) = taken.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn an_address_has_sixteen_and_all_others_leave_eight_to_loopback() {
        let permits = Permits::default();
        let remote = |n: u8| IpAddr::from([192, 0, 2, n]);
        let mut held: Vec<Permit> =
            (0..32 * 17_u16).filter_map(|n| permits.acquire(remote((n % 32) as u8))).collect();
        assert_eq!(held.len(), 248);
        assert!(permits.acquire(remote(99)).is_none());
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        held.extend((0..9).filter_map(|_| permits.acquire(local)));
        assert_eq!(held.len(), 256);
        held.remove(0);
        assert!(permits.acquire(remote(0)).is_some());
        held.clear();
        assert!(permits.0.borrow().by_address.is_empty());
        let own: Vec<_> = (0..20).filter_map(|_| permits.acquire(local)).collect();
        assert_eq!(own.len(), 16);
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let permits = Permits::default();
        let held: Vec<_> = (1..20_u16)
            .filter_map(|n| permits.acquire(IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, n])))
            .collect();
        assert_eq!(held.len(), 16);
        assert!(permits.acquire(IpAddr::from([0x2001, 0xdb8, 0, 2, 0, 0, 0, 1])).is_some());
    }
}
