//! What lives as long as the process: the store, the clock, the counters, and the snapshot that
//! requests run on. A reload builds the next snapshot and swaps it in; nothing else changes.

mod files;

pub use files::{SnapshotLock, StateFiles};

use crate::clock::{Clock, Micros, SECOND, write_rfc3339};
use crate::config::Config;
use crate::config::model::{PerIp, SharedStore};
use crate::connections::Connections;
use crate::file_lock::FileLock;
use crate::lines::Lines;
use crate::metrics::{EndpointReading, Metrics, Process, Readings, StoreMetrics};
use crate::overload::gate::Reading;
use crate::overload::memory::Memory as MemoryUse;
use crate::overrides::{Bans, Overrides};
use crate::proxy::leaving;
use crate::proxy::via::Via;
use crate::shares::Shares;
use crate::snapshot::{Lasting, Snapshot};
use crate::store::{Memory, Redis, Store};
use crate::telemetry::Spans;
use crate::top::Top;
use crate::upstream::names::{Names, Resolver};
use crate::upstream::{Endpoint, Upstream};
use arc_swap::ArcSwap;
use files::{keep, remembered};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

/// File descriptors that callers' connections leave alone.
const RESERVED: u64 = 40;

/// Bytes of heads that may have come in part, in all and from one address. (hyper holds as much again.)
const HEADS: usize = 32 << 20;
const HEADS_PER_ADDRESS: usize = HEADS / 16;

/// A worker that has not moved for so many seconds will not.
const STUCK: u32 = 15;

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
    /// What is otherwise for single callers.
    pub overrides: Arc<Overrides>,
    /// Who asks most, and who is rejected most.
    pub top: Top,
    /// Spans on their way to a collector.
    pub spans: Spans,
    /// When the process began, by the wall clock.
    started: Micros,
    /// How the last reload went, if there was one.
    last_reload: Mutex<Option<Reload>>,
    /// One line a request.
    pub access_log: Lines,
    /// Connections by address.
    pub connections: Connections,
    /// Bytes of heads that have come in part.
    pub unfinished_heads: Arc<Shares>,
    /// What this process is called in `Via`.
    pub via: Via,
    /// Requests that are finished without their clients.
    pub leaving: Arc<Shares>,
    /// Where endpoints are that have names.
    pub names: Arc<Names>,
    /// Told when endpoints have come or gone.
    pub changed: Notify,
    stopping: AtomicBool,
    /// The operator wants no more requests here.
    draining: AtomicBool,
    /// Since how many seconds each worker has not moved, and how far it had come.
    stuck: Mutex<Vec<(u64, u32)>>,
    /// Where it is written how much memory there is, and which share of it is used, as of late.
    memory: MemoryUse,
    memory_used: AtomicU64,
    /// File descriptors this process may have.
    descriptors: u64,
    /// The shared store that was configured when the process began.
    shared: Option<SharedStore>,
    /// No other process writes the snapshot.
    snapshot_lock: Mutex<Option<FileLock>>,
}

/// Whether a gateway wants requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It does.
    Ready,
    /// The operator says that it does not; those that come are served.
    Draining,
    /// It is about to end.
    Stopping,
}

impl State {
    /// Whether it does.
    pub fn is_ready(self) -> bool {
        self == Self::Ready
    }

    /// What the operator reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
        }
    }
}

/// How a reload went.
#[derive(Clone, Debug)]
pub struct Reload {
    /// When.
    pub at: Micros,
    /// Why the file is not in force, if it is not.
    pub error: Option<String>,
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
        mut files: StateFiles,
    ) -> Self {
        let names = Arc::new(Names::new(resolver));
        names.learn(&config.upstreams);
        let metrics = Metrics::new(workers);
        let (counters, bans) = match config.shared {
            None => remembered(&config, clock.now(), &metrics),
            Some(_) => (Memory::new(0), Bans::default()),
        };
        let overrides = Arc::new(Overrides::new(clock.clone(), bans));
        let store = match config.shared.clone() {
            None => Store::Memory(counters),
            Some(shared) => {
                let new = || Arc::new(StoreMetrics::new(workers));
                let counters = Arc::clone(metrics.store.get_or_init(new));
                counters.up.set(1);
                let overrides = Arc::clone(&overrides);
                Store::Redis(Redis::new(shared, workers, clock.clone(), counters, overrides))
            }
        };
        keep(&overrides, &config, store.is_shared(), &mut files.passed_on);
        let shared = config.shared.clone();
        let lasting = Lasting {
            store: &store,
            bans: &overrides.bans,
            metrics: &metrics,
            names: &names,
            previous: None,
        };
        let snapshot = Snapshot::build(config, clock.now(), lasting);
        store.adopt(snapshot.registry(&overrides.grants.stricter()));
        overrides.bans.adopt(snapshot.penalties());
        let access_log = Lines::new(workers, log, Arc::clone(&metrics.log_lines_dropped));
        let generation = AtomicU64::new(snapshot.generation);
        let snapshot = ArcSwap::from_pointee(snapshot);
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let gateway = Self {
            snapshot,
            generation,
            store,
            started: clock.wall(clock.now()),
            clock,
            metrics,
            overrides,
            top: Top::new(workers),
            spans: Spans::default(),
            last_reload: Mutex::default(),
            access_log,
            connections: Connections::default(),
            unfinished_heads: Shares::new(HEADS, HEADS_PER_ADDRESS),
            via: Via::new(),
            leaving: leaving::places(),
            names,
            changed: Notify::new(),
            stopping: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            stuck: Mutex::new(vec![(0, 0); workers]),
            memory,
            memory_used: AtomicU64::new(f64::NAN.to_bits()),
            descriptors,
            shared,
            snapshot_lock: Mutex::new(files.snapshot),
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

    /// Swaps the next generation in, whose snapshot is locked.
    pub fn adopt(&self, config: Config, lock: SnapshotLock) {
        if config.shared != self.shared {
            tracing::warn!("'store' has changed: that takes effect when the gateway is restarted");
        }
        self.store.set_max_keys(config.max_keys);
        keep(&self.overrides, &config, self.store.is_shared(), &mut Vec::new());
        self.names.learn(&config.upstreams);
        let previous = self.snapshot.load();
        let lasting = Lasting {
            store: &self.store,
            bans: &self.overrides.bans,
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
        self.store.adopt(next.registry(&self.overrides.grants.stricter()));
        self.overrides.bans.adopt(next.penalties());
        let generation = next.generation;
        self.snapshot.store(Arc::new(next));
        if let SnapshotLock::Other(lock) = lock {
            *self.snapshot_lock.lock() = lock;
        }
        self.generation.store(generation, Ordering::Release);
        // Names may have been looked up meanwhile.
        self.move_endpoints();
        self.changed.notify_one();
    }

    /// Grants have changed: whoever has less than the limits say must not be forgotten too soon. (A
    /// shared store goes by what each caller is allowed.)
    pub fn heed_grants(&self) {
        if !self.store.is_shared() {
            self.store.adopt(self.snapshot.load().registry(&self.overrides.grants.stricter()));
        }
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

    /// The process is about to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether the operator wants requests here.
    pub fn drain(&self, drains: bool) {
        self.draining.store(drains, Ordering::Release);
    }

    /// Whether it wants requests.
    pub fn state(&self) -> State {
        match (self.stopping.load(Ordering::Acquire), self.draining.load(Ordering::Acquire)) {
            (true, _) => State::Stopping,
            (false, true) => State::Draining,
            (false, false) => State::Ready,
        }
    }

    /// Whether every worker moves; otherwise which does not, and the process had better be started
    /// anew.
    pub fn is_alive(&self) -> Result<(), String> {
        let stuck = self.stuck.lock();
        match stuck.iter().enumerate().find(|(_, (_, seconds))| *seconds >= STUCK) {
            None => Ok(()),
            Some((index, (_, seconds))) => {
                Err(format!("worker {index} has not moved for {seconds} seconds"))
            }
        }
    }

    fn look_at_workers(&self) {
        let workers = self.metrics.workers.iter().map(|worker| worker.ticks.value());
        for ((seen, seconds), now) in self.stuck.lock().iter_mut().zip(workers) {
            *seconds = if *seen == now { seconds.saturating_add(1) } else { 0 };
            *seen = now;
        }
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
        if self.overrides.look_for_file() {
            self.heed_grants();
        }
        self.overrides.sweep();
        self.metrics.tick();
        self.look_at_workers();
    }

    /// A moment as others read it: seconds since 1970, by the wall clock.
    pub fn seconds(&self, moment: Micros) -> f64 {
        self.clock.wall(moment) as f64 / SECOND as f64
    }

    /// When the process began, in seconds since 1970: the same as long as it lives.
    pub fn started_seconds(&self) -> f64 {
        self.started as f64 / SECOND as f64
    }

    /// The wall clock's time.
    pub fn wall_now(&self) -> Micros {
        self.clock.wall(self.clock.now())
    }

    /// A moment of the wall clock, for the log.
    pub fn wall_text(&self, wall: Micros) -> String {
        let mut text = Vec::with_capacity(24);
        write_rfc3339(&mut text, wall);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// How the last reload went, if there was one.
    pub fn last_reload(&self) -> Option<Reload> {
        self.last_reload.lock().clone()
    }

    /// A reload was tried, and failed for this reason if for any.
    pub fn note_reload(&self, error: Option<String>) {
        let counter = match error {
            None => &self.metrics.reloads_ok,
            Some(_) => &self.metrics.reloads_failed,
        };
        counter.increment();
        *self.last_reload.lock() = Some(Reload { at: self.clock.now(), error });
    }

    /// Numbers for the metrics page.
    pub fn readings(&self) -> Readings {
        let (snapshot, reload) = (self.snapshot.load(), self.last_reload());
        Readings {
            started: self.started_seconds(),
            generation: snapshot.generation,
            loaded_at: self.seconds(snapshot.loaded_at),
            reloaded_at: self.seconds(reload.as_ref().map_or(snapshot.loaded_at, |r| r.at)),
            reload_ok: reload.is_none_or(|reload| reload.error.is_none()),
            memory_keys: self.store.keys(),
            max_keys: self.store.max_keys(),
            bans: self.overrides.bans.len(),
            grants: self.overrides.grants.len(),
            certificates: snapshot.certificates.to_vec(),
            process: Process::read(),
            max_files: self.descriptors,
            endpoints: self.endpoints(),
            memory_used: self.memory_used(),
            gate: snapshot.gate.as_ref().map(|gate| gate.reading()),
            gates: self.gates(),
        }
    }

    /// Places at upstreams, where they are limited.
    pub fn gates(&self) -> Vec<(String, Reading)> {
        let snapshot = self.snapshot.load();
        let gates = snapshot.upstreams.iter().filter_map(|upstream| {
            Some((upstream.name().to_owned(), upstream.gate.as_ref()?.reading()))
        });
        gates.collect()
    }

    /// Every endpoint there is.
    pub fn endpoints(&self) -> Vec<EndpointReading> {
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
