//! What lives as long as the process: the store, the clock, the counters, and the snapshot that
//! requests run on. A reload builds the next snapshot and swaps it in; nothing else changes.

use crate::bans::Bans;
use crate::clock::{Clock, Micros, SECOND};
use crate::config::Config;
use crate::config::model::{PerIp, SharedStore};
use crate::connections::Connections;
use crate::lines::Lines;
use crate::metrics::{EndpointReading, Metrics, Readings};
use crate::overload::gate::Reading;
use crate::overload::memory::Memory as MemoryUse;
use crate::saved::{self, Moment};
use crate::snapshot::{Lasting, Snapshot};
use crate::store::{Memory, Redis, Store};
use crate::upstream::names::{Names, Resolver};
use crate::upstream::{Endpoint, Upstream};
use arc_swap::ArcSwap;
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

/// File descriptors that callers' connections leave alone.
const RESERVED: u64 = 40;

/// Shared by all workers.
#[derive(Debug)]
pub struct Gateway {
    /// What requests run on.
    pub snapshot: ArcSwap<Snapshot>,
    /// The number of the snapshot in force: cheaper to look at than the snapshot.
    generation: AtomicU64,
    /// Where counters live.
    pub store: Store,
    /// The time.
    pub clock: Clock,
    /// What is counted.
    pub metrics: Metrics,
    /// Callers who are turned away unheard.
    pub bans: Bans,
    /// One line a request.
    pub access_log: Lines,
    /// Connections by address.
    pub connections: Connections,
    /// Where endpoints are that have names.
    pub names: Arc<Names>,
    /// Told when endpoints have come or gone.
    pub changed: Notify,
    draining: AtomicBool,
    /// Where it is written how much memory there is, and which share of it is used, as of late.
    memory: MemoryUse,
    memory_used: AtomicU64,
    /// File descriptors this process may have.
    descriptors: u64,
    /// The shared store that was configured when the process began.
    shared: Option<SharedStore>,
}

impl Gateway {
    /// A gateway that runs on `config`.
    pub fn new(
        config: Config,
        clock: Clock,
        workers: usize,
        log: Box<dyn Write + Send>,
        resolver: Resolver,
        memory: MemoryUse,
    ) -> Self {
        let names = Arc::new(Names::new(resolver));
        names.learn(&config.upstreams);
        let metrics = Metrics::new(workers);
        let (store, bans) = match config.shared.clone() {
            None => {
                let (memory, bans) = remembered(&config, clock.now());
                (Store::Memory(memory), bans)
            }
            Some(shared) => {
                let counters = Arc::clone(metrics.store.get_or_init(Arc::default));
                counters.up.set(1);
                let redis = Redis::new(shared, workers, clock.clone(), counters);
                (Store::Redis(redis), Bans::default())
            }
        };
        let shared = config.shared.clone();
        let lasting = Lasting { store: &store, metrics: &metrics, names: &names, previous: None };
        let snapshot = Snapshot::build(config, clock.now(), lasting);
        store.adopt(snapshot.registry());
        let access_log = Lines::new(workers, log, Arc::clone(&metrics.log_lines_dropped));
        let generation = AtomicU64::new(snapshot.generation);
        let snapshot = ArcSwap::from_pointee(snapshot);
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let draining = AtomicBool::new(false);
        let gateway = Self {
            snapshot,
            generation,
            store,
            clock,
            metrics,
            bans,
            access_log,
            connections: Connections::default(),
            names,
            changed: Notify::new(),
            draining,
            memory,
            memory_used: AtomicU64::new(f64::NAN.to_bits()),
            descriptors,
            shared,
        };
        let (wanted, most) = (gateway.wanted_connections(), gateway.max_connections());
        if most < wanted {
            tracing::warn!("{descriptors} open files allow {most} connections, not {wanted}");
        }
        gateway
    }

    fn wanted_connections(&self) -> u64 {
        self.snapshot.load().server.max_connections as u64
    }

    /// How many connections of callers there may be: what is configured, and never so many that
    /// none is left for backends, for the operator and for reading files.
    pub fn max_connections(&self) -> u64 {
        self.wanted_connections().min(self.descriptors.saturating_sub(RESERVED) / 2).max(1)
    }

    /// How many of them one address may have.
    pub fn max_connections_per_ip(&self) -> u64 {
        match self.snapshot.load().server.max_connections_per_ip {
            PerIp::Half => self.max_connections().div_ceil(2),
            PerIp::Most(most) => most as u64,
            PerIp::Any => u64::MAX,
        }
    }

    /// Swaps the next generation in.
    pub fn adopt(&self, config: Config) {
        if config.shared != self.shared {
            tracing::warn!("'store' has changed: that takes effect when the gateway is restarted");
        }
        self.store.set_max_keys(config.max_keys);
        self.names.learn(&config.upstreams);
        let previous = self.snapshot.load();
        let lasting = Lasting {
            store: &self.store,
            metrics: &self.metrics,
            names: &self.names,
            previous: Some(&previous),
        };
        let next = Snapshot::build(config, self.clock.now(), lasting);
        for name in next.begun_anew(&previous) {
            tracing::warn!(
                "the limit '{name}' begins anew: it counts otherwise (requests in flight are no used \
                 tokens, and other shards are other counters)"
            );
        }
        self.store.adopt(next.registry());
        let generation = next.generation;
        self.snapshot.store(Arc::new(next));
        self.generation.store(generation, Ordering::Release);
        // Names may have been looked up meanwhile.
        self.move_endpoints();
        self.changed.notify_one();
    }

    /// Has upstreams go by what names stand for now.
    pub fn move_endpoints(&self) {
        let snapshot = self.snapshot.load();
        let moved = snapshot.upstreams.iter().map(|upstream| upstream.move_endpoints(&self.names));
        if moved.fold(false, |any, moved| any | moved) {
            self.changed.notify_one();
        }
    }

    /// The number of the snapshot in force.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// No longer ready for new requests.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the process is about to end.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Looks at how much memory is used.
    pub fn look_at_memory(&self) {
        let used = self.memory.used().unwrap_or(f64::NAN);
        self.memory_used.store(used.to_bits(), Ordering::Relaxed);
    }

    /// Which share of its memory the process has, where there is a limit to it.
    pub fn memory_used(&self) -> Option<f64> {
        let used = f64::from_bits(self.memory_used.load(Ordering::Relaxed));
        (!used.is_nan()).then_some(used)
    }

    /// What has to be done every second: callers who are whole again are let go, a part of them at
    /// a time, and the wall clock is looked at.
    pub fn tick(&self) {
        self.clock.sync();
        self.store.sweep(self.clock.now());
        self.bans.sweep(self.clock.now());
    }

    /// Writes what a restart must not forgive, if a file is configured for it. It may take a while.
    pub fn save(&self) -> io::Result<()> {
        let snapshot = self.snapshot.load();
        let (Some(saved), Store::Memory(memory)) = (&snapshot.saved, &self.store) else {
            return Ok(());
        };
        let now = self.clock.now();
        let moment = Moment { now, wall: self.clock.wall(now) };
        saved::write(&saved.path, memory, &self.bans, moment)
    }

    /// Numbers for the metrics page.
    pub fn readings(&self) -> Readings {
        let snapshot = self.snapshot.load();
        Readings {
            generation: snapshot.generation,
            loaded_at: snapshot.loaded_at / SECOND,
            memory_keys: self.store.keys(),
            bans: self.bans.list(self.clock.now()).len(),
            endpoints: self.endpoints(),
            memory_used: self.memory_used(),
            gate: snapshot.gate.as_ref().map(|gate| gate.reading()),
            gates: self.gates(),
        }
    }

    fn gates(&self) -> Vec<(String, Reading)> {
        let snapshot = self.snapshot.load();
        let gates = snapshot.upstreams.iter().filter_map(|upstream| {
            Some((upstream.name().to_owned(), upstream.gate.as_ref()?.reading()))
        });
        gates.collect()
    }

    fn endpoints(&self) -> Vec<EndpointReading> {
        let now = self.clock.now();
        let of = |upstream: &Arc<Upstream>| {
            let members = upstream.members.load_full();
            let read = |endpoint: &Arc<Endpoint>| EndpointReading {
                upstream: upstream.name().to_owned(),
                name: endpoint.name.clone(),
                in_service: endpoint.is_in_service(now),
                in_flight: endpoint.in_flight(),
            };
            members.endpoints.iter().map(read).collect::<Vec<_>>()
        };
        self.snapshot.load().upstreams.iter().flat_map(of).collect()
    }
}

/// What was used and who was banned before a restart, as far as it was saved. A file that cannot be
/// read is said and not used: a gateway that does not start would be worse.
fn remembered(config: &Config, now: Micros) -> (Memory, Bans) {
    let path = config.saved.as_ref().map(|saved| saved.path.as_path());
    match path.map(|path| saved::read(path, config.max_keys, now)) {
        None | Some(Ok(None)) => (),
        Some(Ok(Some((memory, bans)))) => {
            tracing::info!("{} counters go on from before the restart", memory.keys());
            return (memory, bans);
        }
        Some(Err(error)) => {
            let path = path.unwrap_or(Path::new(""));
            tracing::error!("{} is not used, counters begin anew: {error}", path.display());
            // It is not overwritten: somebody may want to know what was in it.
            let kept = saved::beside(path, ".unusable");
            if fs::rename(path, &kept).is_ok() {
                tracing::error!("it is kept as {}", kept.display());
            }
        }
    }
    (Memory::new(config.max_keys), Bans::default())
}
