//! Callers who do not stop asking, and what came of it.

use super::{Connection, Gateway};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub at: Instant,
    pub took: Duration,
    pub status: u16,
}

/// Connections that ask again and again, each as soon as it is answered.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Asked>>>,
}

impl Load {
    /// So many connections, spread over the gateways. `pause` lies between two requests of one.
    pub fn start(gateways: &[&Gateway], connections: usize, pause: Duration) -> Self {
        Self::start_as(gateways, connections, pause, |_| Vec::new())
    }

    /// The same, each connection a caller of its own to a gateway that trusts it.
    pub fn start_as_callers(gateways: &[&Gateway], connections: usize, pause: Duration) -> Self {
        let caller = |index| vec![("x-forwarded-for", format!("10.1.0.{index}"))];
        Self::start_as(gateways, connections, pause, caller)
    }

    fn start_as(
        gateways: &[&Gateway],
        connections: usize,
        pause: Duration,
        headers: impl Fn(usize) -> Vec<(&'static str, String)>,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let addresses: Vec<SocketAddr> = gateways.iter().map(|gateway| gateway.address()).collect();
        let threads = (0..connections)
            .map(|index| {
                let (stop, address) = (Arc::clone(&stop), addresses[index % addresses.len()]);
                let headers = headers(index);
                std::thread::spawn(move || ask(address, &headers, pause, &stop))
            })
            .collect();
        Self { stop, threads }
    }

    /// Ends it.
    pub fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        let asked = self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        Outcome(asked)
    }
}

fn ask(
    address: SocketAddr,
    headers: &[(&'static str, String)],
    pause: Duration,
    stop: &AtomicBool,
) -> Vec<Asked> {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut connection = Connection::open(address);
    let mut asked = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let at = Instant::now();
        let status = connection.send("GET", "/", &headers, b"").status;
        asked.push(Asked { at, took: at.elapsed(), status });
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    asked
}

/// Everything that was asked.
pub struct Outcome(pub Vec<Asked>);

impl Outcome {
    pub fn statuses(&self) -> BTreeMap<u16, usize> {
        let mut statuses = BTreeMap::new();
        for asked in &self.0 {
            *statuses.entry(asked.status).or_default() += 1;
        }
        statuses
    }

    pub fn admitted(&self) -> usize {
        self.statuses().get(&200).copied().unwrap_or(0)
    }

    /// Admitted within this time.
    pub fn admitted_between(&self, from: Instant, to: Instant) -> usize {
        let within = |asked: &&Asked| asked.status == 200 && asked.at >= from && asked.at < to;
        self.0.iter().filter(within).count()
    }

    pub fn longest(&self) -> Duration {
        self.0.iter().map(|asked| asked.took).max().unwrap_or_default()
    }
}
