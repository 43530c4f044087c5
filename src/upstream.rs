//! Backends: their endpoints, how requests are spread over them, and connections to them.
//!
//! An [`Upstream`] belongs to a snapshot; its [`Endpoint`]s live on over reloads, with what is
//! known of them. Connections belong to the worker that opened them: see [`pool`].

pub mod answer;
pub mod chunked;
pub mod connect;
pub mod connection;
pub mod http2;
pub mod pool;
pub mod upload;

use crate::config::model::{self, Balance, Timeouts};
use crate::tls::client::Tls;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A backend.
#[derive(Debug)]
pub struct Upstream {
    /// Its name.
    pub name: String,
    /// Where it runs.
    pub endpoints: Box<[Arc<Endpoint>]>,
    /// How long each step may take.
    pub timeouts: Timeouts,
    /// How backends prove who they are, where they are spoken to through TLS.
    pub tls: Option<Tls>,
    /// Whether they are spoken to in HTTP/2.
    pub http2: bool,
    balance: Balance,
    /// Each endpoint's share, relative to the others'.
    weights: Box<[u32]>,
    /// Endpoints in turn, each as often as its weight says, spread evenly.
    turns: Box<[usize]>,
    turn: AtomicUsize,
}

/// One address of a backend.
#[derive(Debug)]
pub struct Endpoint {
    /// Never the same for two endpoints of this process.
    pub id: u64,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Host and port, for logs.
    pub name: String,
    /// The address, where the host is one.
    pub address: Option<SocketAddr>,
    /// The name that it must prove to have, where it is spoken to through TLS.
    pub server_name: Option<ServerName<'static>>,
    in_flight: AtomicU32,
}

impl Upstream {
    /// Endpoints that were there before go on as they are.
    pub fn new(config: &model::Upstream, before: Option<&Self>) -> Self {
        // Those that are spoken to otherwise now are others: their connections do not go on.
        let before =
            before.filter(|before| (&before.tls, before.http2) == (&config.tls, config.http2));
        let known = |endpoint: &model::Endpoint| {
            let found = before?.endpoints.iter().find(|known| {
                (&known.host, known.port, known.server_name.is_some())
                    == (&endpoint.host, endpoint.port, endpoint.https)
            });
            found.map(Arc::clone)
        };
        let tls = before.map_or(&config.tls, |before| &before.tls);
        let endpoint = |endpoint| {
            known(endpoint).unwrap_or_else(|| Arc::new(Endpoint::new(endpoint, tls.as_ref())))
        };
        let endpoints: Box<[_]> = config.endpoints.iter().map(endpoint).collect();
        let weights: Box<[u32]> = config.endpoints.iter().map(|endpoint| endpoint.weight).collect();
        Self {
            name: config.name.clone(),
            turns: turns(&weights),
            weights,
            endpoints,
            timeouts: config.timeouts,
            tls: tls.clone(),
            http2: config.http2,
            balance: config.balance,
            turn: AtomicUsize::new(0),
        }
    }

    /// The endpoint for the next request, by its index.
    pub fn pick(&self) -> usize {
        match self.balance {
            _ if self.endpoints.len() == 1 => 0,
            Balance::RoundRobin => {
                self.turns[self.turn.fetch_add(1, Ordering::Relaxed) % self.turns.len()]
            }
            Balance::LeastRequests => {
                // The turns hold each endpoint as often as its weight, so picks are weighted.
                let pick = || self.turns[fastrand::usize(..self.turns.len())];
                let (one, other) = (pick(), pick());
                if self.load(other) < self.load(one) { other } else { one }
            }
        }
    }

    /// Requests under way at an endpoint, relative to its weight, in fine units.
    fn load(&self, index: usize) -> u64 {
        let in_flight = self.endpoints[index].in_flight.load(Ordering::Relaxed);
        (u64::from(in_flight) << 16) / u64::from(self.weights[index])
    }
}

/// The smooth weighted order: of weights 5, 1, 1 it makes a a b a c a a, not a a a a a b c.
fn turns(weights: &[u32]) -> Box<[usize]> {
    let total: u32 = weights.iter().sum();
    let mut standing = vec![0_i64; weights.len()];
    (0..total)
        .map(|_| {
            for (standing, weight) in standing.iter_mut().zip(weights) {
                *standing += i64::from(*weight);
            }
            // The first of those that stand highest.
            let next = (0..standing.len()).rev().max_by_key(|&i| standing[i]).unwrap_or(0);
            standing[next] -= i64::from(total);
            next
        })
        .collect()
}

impl Endpoint {
    fn new(endpoint: &model::Endpoint, tls: Option<&Tls>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let host = endpoint.host.trim_matches(['[', ']']);
        let tls = tls.filter(|_| endpoint.https);
        let server_name = tls.and_then(|tls| {
            let own = || ServerName::try_from(host.to_owned()).ok();
            tls.server_name.clone().or_else(own)
        });
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            host: endpoint.host.clone(),
            port: endpoint.port,
            name: format!("{}:{}", endpoint.host, endpoint.port),
            address: host.parse().ok().map(|ip| SocketAddr::new(ip, endpoint.port)),
            server_name,
            in_flight: AtomicU32::new(0),
        }
    }

    /// Counts a request under way for as long as the guard lives.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }
}

/// A request under way at an endpoint.
#[derive(Debug)]
pub struct InFlight(Arc<Endpoint>);

impl InFlight {
    /// What logs call the endpoint.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(balance: Balance, weights: &[u32]) -> Upstream {
        let endpoint = |(port, weight): (u16, &u32)| model::Endpoint {
            https: false,
            host: "127.0.0.1".into(),
            port,
            weight: *weight,
        };
        let endpoints = (1..).zip(weights).map(endpoint).collect();
        let timeouts = Timeouts::default();
        let name = "app".to_owned();
        let (tls, http2) = (None, false);
        let config = model::Upstream { name, endpoints, balance, timeouts, tls, http2 };
        Upstream::new(&config, None)
    }

    #[test]
    fn round_robin_goes_by_weight_and_spreads_evenly() {
        let upstream = upstream(Balance::RoundRobin, &[5, 1, 1]);
        let picks: Vec<_> = (0..14).map(|_| upstream.pick()).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn the_less_busy_endpoint_is_preferred() {
        let upstream = upstream(Balance::LeastRequests, &[1, 1]);
        let busy: Vec<_> = (0..50).map(|_| upstream.endpoints[0].begin()).collect();
        let to_busy = (0..1000).filter(|_| upstream.pick() == 0).count();
        // Only when both random picks are the busy one.
        assert!((150..350).contains(&to_busy), "{to_busy}");
        drop(busy);
        assert_eq!(upstream.load(0), 0);
    }

    #[test]
    fn endpoints_go_on_over_a_reload() {
        let first = upstream(Balance::RoundRobin, &[1, 1]);
        let _under_way = first.endpoints[1].begin();
        let timeouts = Timeouts::default();
        // Another weight does not make it another endpoint.
        let at = |host: &str, port, weight| {
            let host = host.to_owned();
            model::Endpoint { https: false, host, port, weight }
        };
        let endpoints = vec![at("127.0.0.1", 2, 7), at("::1", 3, 1)];
        let (name, balance) = ("app".to_owned(), Balance::RoundRobin);
        let (tls, http2) = (None, false);
        let config = model::Upstream { name, endpoints, balance, timeouts, tls, http2 };
        let second = Upstream::new(&config, Some(&first));
        assert_eq!(second.endpoints[0].id, first.endpoints[1].id);
        assert!(second.load(0) > 0);
        assert!(second.endpoints[1].id > first.endpoints[1].id);
    }
}
