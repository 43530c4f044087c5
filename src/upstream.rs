//! Backends: their endpoints, how requests are spread over them, and connections to them.
//!
//! An [`Upstream`] belongs to a snapshot; its [`Endpoint`]s live on over reloads, with what is
//! known of them. Connections belong to the worker that opened them: see [`pool`].

pub mod answer;
pub mod chunked;
pub mod connect;
pub mod connection;
pub mod pool;
pub mod upload;

use crate::config::model::{self, Balance, Timeouts};
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
    in_flight: AtomicU32,
}

impl Upstream {
    /// Endpoints that were there before go on as they are.
    pub fn new(config: &model::Upstream, before: Option<&Self>) -> Self {
        let known = |endpoint: &model::Endpoint| {
            before?
                .endpoints
                .iter()
                .find(|known| (&known.host, known.port) == (&endpoint.host, endpoint.port))
        };
        let endpoint = |endpoint| {
            known(endpoint).map_or_else(|| Arc::new(Endpoint::new(endpoint)), Arc::clone)
        };
        let endpoints: Box<[_]> = config.endpoints.iter().map(endpoint).collect();
        let weights: Box<[u32]> = config.endpoints.iter().map(|endpoint| endpoint.weight).collect();
        Self {
            name: config.name.clone(),
            turns: turns(&weights),
            weights,
            endpoints,
            timeouts: config.timeouts,
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
    fn new(endpoint: &model::Endpoint) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let host = endpoint.host.trim_matches(['[', ']']);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            host: endpoint.host.clone(),
            port: endpoint.port,
            name: format!("{}:{}", endpoint.host, endpoint.port),
            address: host.parse().ok().map(|ip| SocketAddr::new(ip, endpoint.port)),
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
            host: "127.0.0.1".into(),
            port,
            weight: *weight,
        };
        let endpoints = (1..).zip(weights).map(endpoint).collect();
        let timeouts = Timeouts::default();
        Upstream::new(&model::Upstream { name: "app".into(), endpoints, balance, timeouts }, None)
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
        let same = model::Endpoint { host: "127.0.0.1".into(), port: 2, weight: 7 };
        let endpoints = vec![same, model::Endpoint { host: "::1".into(), port: 3, weight: 1 }];
        let balance = Balance::RoundRobin;
        let config = model::Upstream { name: "app".into(), endpoints, balance, timeouts };
        let second = Upstream::new(&config, Some(&first));
        assert_eq!(second.endpoints[0].id, first.endpoints[1].id);
        assert!(second.load(0) > 0);
        assert!(second.endpoints[1].id > first.endpoints[1].id);
    }
}
