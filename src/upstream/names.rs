//! Names of endpoints: looked up when a configuration comes, and again and again.
//!
//! Every address of a name is an endpoint of its own, balanced and watched like any other. A name
//! that has one address of each family is one endpoint whose second address stands in for the first:
//! `localhost` is one machine. Of other names IPv4 counts, unless there is none. A name that cannot
//! be looked up for a while keeps the addresses it had.

use super::endpoint::{Addresses, literal};
use crate::config::model;
use crate::gateway::Gateway;
use parking_lot::Mutex;
use smallvec::smallvec;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// How long a configuration may wait for its names.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// How often it is seen whose turn it is.
const STEP: Duration = Duration::from_millis(100);

/// Who knows names.
#[derive(Clone, Debug, Default)]
pub enum Resolver {
    /// The system: its hosts file, its DNS servers.
    #[default]
    System,
    /// A table that somebody keeps up.
    Table(Arc<Mutex<HashMap<String, Vec<IpAddr>>>>),
}

impl Resolver {
    /// All addresses of a name. It may take long.
    fn look_up(&self, name: &str) -> io::Result<BTreeSet<IpAddr>> {
        let found: BTreeSet<IpAddr> = match self {
            Self::System => (name, 0).to_socket_addrs()?.map(|address| address.ip()).collect(),
            Self::Table(table) => table.lock().get(name).into_iter().flatten().copied().collect(),
        };
        if found.is_empty() { Err(io::Error::other("the name has no address")) } else { Ok(found) }
    }
}

/// What is known of names.
#[derive(Debug, Default)]
pub struct Names {
    resolver: Resolver,
    known: Mutex<HashMap<String, BTreeSet<IpAddr>>>,
    /// Names whose last look-up failed.
    lost: Mutex<BTreeSet<String>>,
    /// Names that are being looked up.
    asked: Mutex<BTreeSet<String>>,
}

impl Names {
    /// Nothing known yet.
    pub fn new(resolver: Resolver) -> Self {
        Self { resolver, ..Self::default() }
    }

    /// Looks up what is new in a configuration, all at once, and waits a moment for it.
    pub fn learn(self: &Arc<Self>, upstreams: &[model::Upstream]) {
        let mut names: BTreeSet<&str> = upstreams.iter().flat_map(names_of).collect();
        names.retain(|name| !self.known.lock().contains_key(*name));
        let (done, on_done) = std::sync::mpsc::channel::<()>();
        for name in names {
            let (names, name, done) = (Arc::clone(self), name.to_owned(), done.clone());
            // A thread that cannot be had is a look-up that comes later.
            let _ = std::thread::Builder::new().name("names".into()).spawn(move || {
                names.renew(&name);
                drop(done);
            });
        }
        drop(done);
        // Ready when the last of them has let go.
        let _ = on_done.recv_timeout(FIRST_LOOK);
    }

    /// Looks a name up again. Says whether it has other addresses than before.
    fn renew(&self, name: &str) -> bool {
        match self.resolver.look_up(name) {
            Ok(found) => {
                if self.lost.lock().remove(name) {
                    tracing::info!("the name {name} can be looked up again");
                }
                self.known.lock().insert(name.to_owned(), found.clone()) != Some(found)
            }
            Err(error) => {
                if self.lost.lock().insert(name.to_owned()) {
                    let kept = if self.known.lock().contains_key(name) {
                        "it keeps the addresses it had"
                    } else {
                        "there is nobody to ask"
                    };
                    tracing::warn!("the name {name} cannot be looked up, {kept}: {error}");
                }
                false
            }
        }
    }

    /// Where an endpoint is: for each that it stands for, its addresses.
    pub fn addresses(&self, endpoint: &model::Endpoint) -> Vec<Addresses> {
        let at = |ip: &IpAddr| SocketAddr::new(*ip, endpoint.port);
        if let Some(ip) = literal(&endpoint.host) {
            return vec![smallvec![at(&ip)]];
        }
        let known = self.known.lock();
        let Some(found) = known.get(&endpoint.host) else { return Vec::new() };
        let (v4, v6): (Vec<&IpAddr>, Vec<&IpAddr>) = found.iter().partition(|ip| ip.is_ipv4());
        match (&v4[..], &v6[..]) {
            ([first], [second]) => vec![smallvec![at(first), at(second)]],
            ([], all) | (all, _) => all.iter().map(|ip| smallvec![at(ip)]).collect(),
        }
    }
}

fn names_of(upstream: &model::Upstream) -> impl Iterator<Item = &str> {
    let hosts = upstream.endpoints.iter().map(|endpoint| endpoint.host.as_str());
    hosts.filter(|host| literal(host).is_none())
}

/// Looks names up as often as their upstreams say, for as long as it is polled.
pub async fn follow(gateway: Arc<Gateway>) {
    let mut due: HashMap<String, Duration> = HashMap::new();
    let mut now = Duration::ZERO;
    loop {
        tokio::time::sleep(STEP).await;
        now += STEP;
        let snapshot = gateway.snapshot.load_full();
        let mut asked: BTreeSet<&str> = BTreeSet::new();
        for upstream in &snapshot.upstreams {
            let every = upstream.config.resolve;
            for name in names_of(&upstream.config) {
                let at = *due.entry(name.to_owned()).or_insert(now + every);
                if at <= now && asked.insert(name) {
                    // Not all gateways at once.
                    due.insert(name.to_owned(), now + every.mul_f64(0.9 + 0.2 * fastrand::f64()));
                    let (gateway, name) = (Arc::clone(&gateway), name.to_owned());
                    // One at a time: a slow answer must not come after a later one.
                    if gateway.names.asked.lock().insert(name.clone()) {
                        spawn_blocking(move || {
                            if gateway.names.renew(&name) {
                                gateway.move_endpoints();
                            }
                            gateway.names.asked.lock().remove(&name);
                        });
                    }
                }
            }
        }
        let names: BTreeSet<&str> =
            snapshot.upstreams.iter().flat_map(|upstream| names_of(&upstream.config)).collect();
        due.retain(|name, _| names.contains(name.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(addresses: &[&str]) -> Vec<Vec<String>> {
        let ips = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        let table = Arc::new(Mutex::new(HashMap::from([("app.test".to_owned(), ips)])));
        let names = Names::new(Resolver::Table(table));
        names.renew("app.test");
        let endpoint =
            model::Endpoint { https: false, host: "app.test".into(), port: 80, weight: 1 };
        let found = names.addresses(&endpoint);
        found.iter().map(|all| all.iter().map(ToString::to_string).collect()).collect()
    }

    #[test]
    fn every_address_is_an_endpoint_and_two_families_are_one_machine() {
        assert_eq!(known(&["10.0.0.2", "10.0.0.1"]), [["10.0.0.1:80"], ["10.0.0.2:80"]]);
        assert_eq!(known(&["::1", "127.0.0.1"]), [["127.0.0.1:80", "[::1]:80"]]);
        assert_eq!(known(&["fd00::1", "10.0.0.1", "10.0.0.2"]), [["10.0.0.1:80"], ["10.0.0.2:80"]]);
        assert_eq!(known(&["fd00::1", "fd00::2"]), [["[fd00::1]:80"], ["[fd00::2]:80"]]);
        assert!(known(&[]).is_empty());
    }

    #[test]
    fn a_name_that_cannot_be_looked_up_keeps_its_addresses() {
        let table = Arc::new(Mutex::new(HashMap::new()));
        let names = Names::new(Resolver::Table(Arc::clone(&table)));
        assert!(!names.renew("app.test"));
        table.lock().insert("app.test".to_owned(), vec!["10.0.0.1".parse().unwrap()]);
        assert!(names.renew("app.test"));
        assert!(!names.renew("app.test"), "nothing new");
        table.lock().clear();
        assert!(!names.renew("app.test"));
        assert_eq!(names.known.lock()["app.test"].len(), 1);
    }
}
