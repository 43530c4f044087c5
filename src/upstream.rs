//! Backends: their endpoints, how requests are spread over them, and connections to them.
//!
//! ```text
//! names ──► Members ──► balance::pick ──► Endpoint ──► Pool ──► Connection
//!             ▲              ▲                              (one of each worker's)
//!           reload        health, failed requests
//! ```
//!
//! An [`Upstream`] belongs to a snapshot; its [`Endpoint`]s live on over reloads, with what is
//! known of them. Connections belong to the worker that opened them: see [`station`].

pub mod answer;
pub mod balance;
pub mod budget;
pub mod chunked;
pub mod connect;
pub mod connection;
pub mod endpoint;
pub mod health;
pub mod http2;
pub mod names;
pub mod pool;
pub mod station;
pub mod upload;

use crate::clock::Micros;
use crate::config::model;
use crate::metrics::UpstreamMetrics;
use crate::overload::gate::Gate;
use arc_swap::ArcSwap;
use balance::{Members, Wish};
use names::Names;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use endpoint::{Endpoint, InFlight, Witness};

/// A backend.
#[derive(Debug)]
pub struct Upstream {
    /// What is written about it.
    pub config: model::Upstream,
    /// Who there is.
    pub members: ArcSwap<Members>,
    /// Which set of members that is: cheaper to look at than the members.
    version: AtomicU64,
    /// Its counters.
    pub metrics: Arc<UpstreamMetrics>,
    /// Places for requests, where they are limited.
    pub gate: Option<Arc<Gate>>,
    /// Held by whoever takes endpoints out or brings others in.
    changing: Mutex<()>,
}

/// What was wrong with an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No connection came about.
    Unreachable,
    /// The connection broke.
    Broke,
    /// No answer came in time.
    Late,
    /// The answer makes no sense.
    Garbled,
    /// The answer was a 5xx.
    Status,
}

impl Fault {
    /// Every one of them.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Unreachable, "unreachable"),
        (Self::Broke, "broke"),
        (Self::Late, "late"),
        (Self::Garbled, "garbled"),
        (Self::Status, "status"),
    ];
}

impl Upstream {
    /// Endpoints that were there before go on as they are, and so does the gate. `reserve` is the
    /// share of places that is kept for critical requests.
    pub fn new(
        config: &model::Upstream,
        before: Option<&Self>,
        names: &Names,
        metrics: Arc<UpstreamMetrics>,
        reserve: f64,
    ) -> Self {
        let mut config = config.clone();
        let gate = config.concurrency.as_ref().map(|concurrency| {
            match before.and_then(|before| before.gate.as_ref()) {
                Some(gate) => {
                    gate.configure(concurrency, reserve);
                    Arc::clone(gate)
                }
                None => Gate::new(concurrency, reserve),
            }
        });
        // Those that are spoken to otherwise now are others: their connections do not go on.
        let as_now = |before: &&Self| {
            (&before.config.tls, before.config.http2) == (&config.tls, config.http2)
        };
        let before = before.filter(as_now);
        if let Some(before) = before {
            config.tls.clone_from(&before.config.tls);
        }
        let known = before.map(|before| before.members.load_full());
        let members = gather(&config, names, known.as_deref(), 1);
        Self {
            config,
            members: ArcSwap::from_pointee(members),
            version: AtomicU64::new(1),
            metrics,
            gate,
            changing: Mutex::default(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Which set of members is there now.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Goes by what names stand for now. Says whether anything has changed.
    pub fn move_endpoints(&self, names: &Names) -> bool {
        let _turn = self.changing.lock();
        let before = self.members.load_full();
        let next = gather(&self.config, names, Some(&before), before.version + 1);
        let ids = |members: &Members| members.endpoints.iter().map(|e| e.id).collect::<Vec<_>>();
        // Nobody known is no reason to forget who was.
        if next.endpoints.is_empty() || ids(&next) == ids(&before) {
            return false;
        }
        let names: Vec<&str> = next.endpoints.iter().map(|endpoint| &*endpoint.name).collect();
        tracing::info!("'{}' is at {}", self.name(), names.join(", "));
        let version = next.version;
        self.members.store(Arc::new(next));
        self.version.store(version, Ordering::Release);
        true
    }

    /// Whom to ask next, by its index. `None` if there is nobody.
    #[inline]
    pub fn pick(
        &self,
        members: &Members,
        now: Micros,
        caller: IpAddr,
        tried: &[usize],
    ) -> Option<usize> {
        let (balance, slow_start) = (self.config.balance, self.config.slow_start);
        members.pick(&Wish { balance, slow_start, now, caller, tried })
    }

    /// A request to one of its endpoints failed: one too many in a row, and it is left alone for a
    /// while. Never the last one; and one that can be reached only if enough others stay, because a
    /// fault that all of them have is not mended by asking fewer.
    pub fn failed(&self, endpoint: &Endpoint, fault: Fault, caller: Witness, now: Micros) {
        self.metrics.faults[fault as usize].increment();
        let Some(eject) = &self.config.eject else { return };
        let witness = match fault {
            Fault::Unreachable => Witness::Any,
            _ => caller,
        };
        if !endpoint.failed(now, witness, eject) {
            return;
        }
        let _turn = self.changing.lock();
        let members = self.members.load();
        let kept = match fault {
            Fault::Unreachable => 0.0,
            _ => members.endpoints.len() as f64 * eject.keep,
        };
        let is_one = members.endpoints.iter().any(|member| member.id == endpoint.id);
        let others = members.others_in_service(endpoint.id, now);
        if is_one && others > 0 && others as f64 >= kept {
            endpoint.eject(now, eject);
            self.metrics.ejections.increment();
            let (name, of, lasts) = (&endpoint.name, self.name(), eject.lasts);
            tracing::warn!("{name} of '{of}' failed too often, and is not asked for {lasts:?}");
        }
    }
}

/// The endpoints that a configuration means, those that were known before as they are.
fn gather(
    config: &model::Upstream,
    names: &Names,
    before: Option<&Members>,
    version: u64,
) -> Members {
    let mut members = Vec::new();
    for endpoint in &config.endpoints {
        for addresses in names.addresses(endpoint) {
            let known = before.and_then(|before| {
                before.endpoints.iter().find(|known| known.is(endpoint, &addresses)).cloned()
            });
            if let (Some(known), None) = (&known, &config.eject) {
                known.pardon();
            }
            let member = known.unwrap_or_else(|| {
                Arc::new(Endpoint::new(endpoint, addresses, config.tls.as_ref()))
            });
            members.push((member, endpoint.weight));
        }
    }
    Members::new(version, members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::Eject;
    use names::Resolver;
    use std::collections::HashMap;
    use std::time::Duration;

    const NOW: Micros = 1_000_000_000;

    fn at(host: &str, port: u16, weight: u32) -> model::Endpoint {
        model::Endpoint { https: false, host: host.to_owned(), port, weight }
    }

    fn config(endpoints: Vec<model::Endpoint>) -> model::Upstream {
        model::Upstream { endpoints, ..crate::config::upstream_for_tests("app") }
    }

    fn upstream(endpoints: Vec<model::Endpoint>) -> Upstream {
        Upstream::new(&config(endpoints), None, &Names::default(), Arc::default(), 0.0)
    }

    fn ids(upstream: &Upstream) -> Vec<u64> {
        upstream.members.load().endpoints.iter().map(|endpoint| endpoint.id).collect()
    }

    #[test]
    fn endpoints_go_on_over_a_reload() {
        let first = upstream(vec![at("127.0.0.1", 1, 1), at("127.0.0.1", 2, 1)]);
        // Another weight does not make it another endpoint.
        let next = config(vec![at("127.0.0.1", 2, 7), at("::1", 3, 1)]);
        let second = Upstream::new(&next, Some(&first), &Names::default(), Arc::default(), 0.0);
        assert_eq!(ids(&second)[0], ids(&first)[1]);
        assert!(ids(&second)[1] > ids(&first)[1]);
    }

    #[test]
    fn endpoints_follow_their_name() {
        let table: Arc<Mutex<HashMap<String, Vec<IpAddr>>>> = Arc::default();
        let set = |ips: &[&str]| {
            let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            table.lock().insert("app.test".to_owned(), ips);
        };
        let names = Arc::new(Names::new(Resolver::Table(Arc::clone(&table))));
        set(&["10.0.0.1", "10.0.0.2"]);
        let config = config(vec![at("app.test", 80, 1)]);
        names.learn(std::slice::from_ref(&config));
        let upstream = Upstream::new(&config, None, &names, Arc::default(), 0.0);
        let before = ids(&upstream);
        assert_eq!((before.len(), upstream.version()), (2, 1));
        assert!(!upstream.move_endpoints(&names), "nothing has changed");
        set(&["10.0.0.2", "10.0.0.3"]);
        // What is known already is looked up anew only when its time comes.
        names.learn(std::slice::from_ref(&config));
        assert!(!upstream.move_endpoints(&names));
        let names = Arc::new(Names::new(Resolver::Table(Arc::clone(&table))));
        names.learn(std::slice::from_ref(&config));
        assert!(upstream.move_endpoints(&names));
        let after = ids(&upstream);
        assert_eq!((after.len(), after[0], upstream.version()), (2, before[1], 2));
    }

    fn failing(upstream: &Upstream, index: usize, fault: Fault) -> bool {
        let endpoint = Arc::clone(&upstream.members.load().endpoints[index]);
        let before = upstream.metrics.ejections.value();
        let caller = |n| Witness::Caller { identity: n, address: n };
        (0..5).for_each(|n| upstream.failed(&endpoint, fault, caller(n), NOW));
        upstream.metrics.ejections.value() > before
    }

    #[test]
    fn the_last_endpoint_is_never_ejected() {
        let upstream = upstream((1..=3).map(|port| at("127.0.0.1", port, 1)).collect());
        let ejected: Vec<bool> =
            (0..3).map(|index| failing(&upstream, index, Fault::Unreachable)).collect();
        assert_eq!(ejected, [true, true, false]);
        let one = self::upstream(vec![at("127.0.0.1", 1, 1)]);
        assert!(!failing(&one, 0, Fault::Unreachable));
    }

    #[test]
    fn a_fault_that_all_have_leaves_a_share_in_service() {
        let mut config = config((1..=10).map(|port| at("127.0.0.1", port, 1)).collect());
        config.eject = Some(Eject { after: 5, lasts: Duration::from_secs(30), keep: 0.7 });
        let upstream = Upstream::new(&config, None, &Names::default(), Arc::default(), 0.0);
        let ejected = (0..10).filter(|index| failing(&upstream, *index, Fault::Status)).count();
        assert_eq!(ejected, 3);
        // Those that cannot be reached at all go nevertheless.
        assert!(failing(&upstream, 9, Fault::Unreachable));
    }

    #[test]
    fn an_ejection_leaves_the_slow_start_of_others_alone() {
        let upstream = upstream((1..=3).map(|port| at("127.0.0.1", port, 1)).collect());
        let back = Arc::clone(&upstream.members.load().endpoints[0]);
        back.fell_ill();
        back.recovered(NOW);
        assert!(failing(&upstream, 1, Fault::Unreachable));
        assert!(!back.is_well(), "it has only just come back");
    }

    #[test]
    fn nobody_is_ejected_where_that_is_off() {
        let mut config = config((1..=3).map(|port| at("127.0.0.1", port, 1)).collect());
        config.eject = None;
        let upstream = Upstream::new(&config, None, &Names::default(), Arc::default(), 0.0);
        assert!(!failing(&upstream, 0, Fault::Unreachable));
    }
}
