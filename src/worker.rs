//! One core's share of the gateway: a single-threaded runtime with its own accepts, connections
//! and pools of upstream connections. Nothing in here is shared with other workers but the
//! [`Gateway`].
//!
//! Every worker accepts from every listener; a connection goes to the worker that has the fewest,
//! so that a handful of long-lived connections is spread evenly too.

use crate::clock::SECOND;
use crate::config::model::Server;
use crate::deadline::{Deadlines, TICK, ticks};
use crate::gateway::Gateway;
use crate::listener::{Listener, Listeners};
use crate::metrics::{Refused, WorkerMetrics};
use crate::overload::pressure::Pressure;
use crate::proxy::accept;
use crate::proxy::leaving::Leavers;
use crate::snapshot::Snapshot;
use crate::upstream::station::Station;
use http::HeaderValue;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::net::TcpStream;
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, spawn_local};

/// A connection on its way to the worker that serves it.
pub type Handover = (std::net::TcpStream, SocketAddr, Arc<Listener>);

/// What a worker is told from outside.
#[derive(Debug)]
pub struct Orders {
    /// Which listeners to accept from.
    pub listeners: watch::Receiver<Listeners>,
    /// When and how to finish.
    pub stop: watch::Receiver<Option<Stop>>,
    /// Connections that other workers accepted for this one.
    pub handovers: mpsc::UnboundedReceiver<Handover>,
}

/// How a worker finishes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stop {
    /// How long connections are told that they end with the next answer, before idle ones are closed:
    /// a request that is on its way would be lost.
    pub farewell: Duration,
    /// How long requests in flight may take after that.
    pub grace: Duration,
}

/// How long requests that have arrived unseen may take to be seen when the gateway stops.
const LAST_CALL: Duration = Duration::from_millis(50);

/// How often a listener's trouble is reported.
const COMPLAIN: Duration = Duration::from_secs(10);

/// One worker.
#[derive(Debug)]
pub struct Worker {
    /// What all workers share.
    pub gateway: Arc<Gateway>,
    /// Which of the workers this is.
    pub index: usize,
    /// Time-outs of this worker.
    pub deadlines: Rc<Deadlines>,
    /// How it is doing.
    pub pressure: Pressure,
    /// Room to put short things together, for a moment.
    pub scratch: RefCell<Vec<u8>>,
    /// What was read last from a caller who had no request under way.
    pub last_read: RefCell<Vec<u8>>,
    /// Room for what a tunnel moves, for a moment.
    pub piece: RefCell<Vec<u8>>,
    /// Requests whose clients left.
    pub leavers: Leavers,
    generation: RefCell<Rc<Generation>>,
    /// Where other workers take connections.
    peers: Box<[mpsc::UnboundedSender<Handover>]>,
    /// Answers say that their connection ends with them.
    leaving: Cell<bool>,
    /// Idle connections are closed.
    draining: Cell<bool>,
    /// What the date was when somebody asked last, and in which second that was.
    date: RefCell<(u64, HeaderValue)>,
}

/// A snapshot as one worker runs it: with the worker's own connections to its upstreams.
#[derive(Debug)]
pub struct Generation {
    /// What requests run on.
    pub snapshot: Arc<Snapshot>,
    /// By the upstreams' index.
    pub stations: Box<[Station]>,
}

impl Generation {
    /// Connections to endpoints that were there before go on.
    fn new(snapshot: Arc<Snapshot>, deadlines: &Rc<Deadlines>, before: Option<&Self>) -> Self {
        let before = before.map_or(&[][..], |before| &before.stations);
        let stations: Box<[Station]> = snapshot
            .upstreams
            .iter()
            .map(|upstream| Station::new(upstream, deadlines, before))
            .collect();
        for station in before {
            station.close_unless_in(&stations);
        }
        Self { snapshot, stations }
    }
}

impl Generation {
    /// Closes idle connections to backends, to make room for others. Says whether there were any.
    pub fn shed(&self) -> bool {
        self.stations.iter().fold(false, |any, station| any | station.shed())
    }
}

impl Worker {
    fn new(
        gateway: Arc<Gateway>,
        index: usize,
        peers: Box<[mpsc::UnboundedSender<Handover>]>,
    ) -> Self {
        let deadlines = Rc::new(Deadlines::default());
        let generation = Generation::new(gateway.snapshot.load_full(), &deadlines, None);
        Self {
            gateway,
            index,
            generation: RefCell::new(Rc::new(generation)),
            deadlines,
            pressure: Pressure::default(),
            scratch: RefCell::default(),
            last_read: RefCell::default(),
            piece: RefCell::default(),
            leavers: Leavers::default(),
            peers,
            leaving: Cell::new(false),
            draining: Cell::new(false),
            date: RefCell::new((0, HeaderValue::from_static(""))),
        }
    }

    /// The generation in force; a request keeps the one it began with.
    pub fn generation(&self) -> Rc<Generation> {
        let mut mine = self.generation.borrow_mut();
        if self.gateway.generation() != mine.snapshot.generation {
            let current = self.gateway.snapshot.load_full();
            *mine = Rc::new(Generation::new(current, &self.deadlines, Some(&mine)));
        }
        Rc::clone(&mine)
    }

    /// The guards of the edge, as of the last request: good enough for time-outs.
    pub fn server(&self) -> Server {
        self.generation.borrow().snapshot.server
    }

    /// The date as answers tell it.
    pub fn date(&self) -> HeaderValue {
        let clock = &self.gateway.clock;
        let second = clock.wall(clock.now()) / SECOND;
        let (known, date) = &mut *self.date.borrow_mut();
        if *known != second {
            let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
            *known = second;
            *date = HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""));
        }
        date.clone()
    }

    /// This worker's gauges.
    pub fn metrics(&self) -> &WorkerMetrics {
        &self.gateway.metrics.workers[self.index]
    }

    /// Whether connections should end with the next answer.
    pub fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// Whether connections should end now, unless a request is under way.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Runs until told to stop, and then until what is in flight is done or the time is up.
    async fn run(self: Rc<Self>, mut orders: Orders) {
        let ticking = spawn_local(tick(Rc::clone(&self)));
        let worker = Rc::clone(&self);
        let leaving = spawn_local(async move { worker.leavers.run().await });
        self.gateway.store.warm();
        let mut accepting: HashMap<SocketAddr, (Arc<Listener>, AbortHandle)> = HashMap::new();
        let Stop { farewell, grace } = loop {
            let wanted = orders.listeners.borrow_and_update().clone();
            self.reconcile(&mut accepting, &wanted);
            tokio::select! {
                Ok(()) = orders.listeners.changed() => {}
                Some(handover) = orders.handovers.recv() => self.take(handover),
                Ok(()) = orders.stop.changed() => {
                    if let Some(stop) = *orders.stop.borrow_and_update() {
                        break stop;
                    }
                }
                else => return,
            }
        };
        // What has arrived already is still served: it is in no way to be told from what is under way.
        tokio::time::sleep(LAST_CALL.min(grace)).await;
        self.reconcile(&mut accepting, &[]);
        self.leaving.set(true);
        self.deadlines.wake_all();
        let mut stop = orders.stop.clone();
        tokio::select! {
            () = async {
                let _ = tokio::time::timeout(farewell.max(LAST_CALL), self.finish(&mut orders)).await;
                self.draining.set(true);
                self.deadlines.wake_all();
                let _ = tokio::time::timeout(grace, self.finish(&mut orders)).await;
            } => {}
            // Told a second time: at once.
            _ = stop.wait_for(|stop| stop.is_some_and(|stop| stop.grace.is_zero())) => {}
        }
        ticking.abort();
        leaving.abort();
        self.leavers.close();
    }

    /// Until no connection is left, none is on its way, and what clients left behind is done.
    async fn finish(self: &Rc<Self>, orders: &mut Orders) {
        while self.metrics().connections() > 0 || !self.leavers.is_empty() {
            tokio::select! {
                Some(handover) = orders.handovers.recv() => self.take(handover),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    }

    /// Begins to accept from new listeners and stops accepting from those that are gone.
    fn reconcile(
        self: &Rc<Self>,
        accepting: &mut HashMap<SocketAddr, (Arc<Listener>, AbortHandle)>,
        wanted: &[Arc<Listener>],
    ) {
        accepting.retain(|_, (listener, task)| {
            let stays = wanted.iter().any(|wanted| Arc::ptr_eq(wanted, listener));
            if !stays {
                task.abort();
            }
            stays
        });
        for listener in wanted {
            accepting.entry(listener.local).or_insert_with(|| {
                let task = spawn_local(Rc::clone(self).accept(Arc::clone(listener)));
                (Arc::clone(listener), task.abort_handle())
            });
        }
    }

    async fn accept(self: Rc<Self>, listener: Arc<Listener>) {
        let socket = listener.socket.try_clone().and_then(tokio::net::TcpListener::from_std);
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => return tracing::error!("cannot accept on {}: {error}", listener.local),
        };
        let mut complained = None;
        loop {
            match socket.accept().await {
                Ok((stream, address)) => self.place(stream, address, &listener),
                Err(error) if is_passing(&error) => {}
                Err(error) => {
                    // Out of file descriptors, most likely: let some close. Said once in a while.
                    let now = self.deadlines.tick();
                    if complained.is_none_or(|then| now - then > ticks(COMPLAIN)) {
                        tracing::warn!("cannot accept on {}: {error}", listener.local);
                        complained = Some(now);
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Gives a connection to the worker that has the fewest.
    fn place(self: &Rc<Self>, stream: TcpStream, address: SocketAddr, listener: &Arc<Listener>) {
        let metrics = &self.gateway.metrics;
        let limit = self.gateway.max_connections();
        if metrics.connections() >= limit {
            return metrics.refuse(Refused::TooManyConnections);
        }
        let counts = metrics.workers.iter().map(WorkerMetrics::connections);
        let fewest = counts.enumerate().min_by_key(|&(_, count)| count);
        let (index, fewest) = fewest.unwrap_or((self.index, 0));
        let index = if fewest < self.metrics().connections() { index } else { self.index };
        metrics.workers[index].assign_connection();
        if index == self.index {
            return self.serve(stream, address, listener);
        }
        let handover = |stream| (stream, address, Arc::clone(listener));
        let sent = stream.into_std().map(|stream| self.peers[index].send(handover(stream)));
        if let Ok(Err(mpsc::error::SendError(handover))) = sent {
            // It has ended, so it is ours after all.
            metrics.workers[index].end_connection();
            self.metrics().assign_connection();
            self.take(handover);
        }
    }

    /// Takes over a connection that was accepted for this worker.
    fn take(self: &Rc<Self>, (stream, address, listener): Handover) {
        match TcpStream::from_std(stream) {
            Ok(stream) => self.serve(stream, address, &listener),
            Err(_) => self.metrics().end_connection(),
        }
    }

    /// Serves a connection that has been assigned to this worker.
    fn serve(self: &Rc<Self>, stream: TcpStream, address: SocketAddr, listener: &Listener) {
        let open = Open(Rc::clone(self));
        let greeting = listener.greeting.load_full();
        spawn_local(async move {
            accept::serve(Rc::clone(&open.0), stream, address, greeting).await;
        });
    }
}

impl Worker {
    /// How late it comes to its work, and how much memory is left, tell what it can take on.
    fn look_at_itself(&self, lag: Duration, since: Duration) {
        let overload = self.generation.borrow().snapshot.overload;
        let memory = self.gateway.memory_used();
        let changed = self.pressure.look(lag, since, memory, &overload);
        self.metrics().note_pressure(lag, self.pressure.level());
        match changed {
            Some(true) => {
                let memory = memory
                    .map_or(String::new(), |used| format!(", {:.0}% of its memory", used * 100.0));
                tracing::warn!("worker {} sheds load: {lag:?} late{memory}", self.index);
            }
            Some(false) => tracing::info!("worker {} sheds no more load", self.index),
            None => {}
        }
    }
}

/// A connection counts until its task is gone, however that comes about.
struct Open(Rc<Worker>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.metrics().end_connection();
    }
}

/// The caller gave up before we came to them.
fn is_passing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Moves the worker's deadlines on, and closes upstream connections nobody has used for long.
async fn tick(worker: Rc<Worker>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let began = interval.tick().await;
    let mut next_sweep = 0;
    let mut looked = began;
    loop {
        let due = interval.tick().await;
        let (now, elapsed) = (tokio::time::Instant::now(), due - began);
        worker.look_at_itself(now - due, now - looked);
        looked = now;
        let tick = (elapsed.as_millis() / TICK.as_millis()) as u64;
        worker.deadlines.advance_to(tick);
        if tick >= next_sweep {
            next_sweep = tick + 20;
            let generation = worker.generation();
            for (upstream, station) in
                generation.snapshot.upstreams.iter().zip(&generation.stations)
            {
                station.sweep(upstream, &worker.deadlines);
            }
        }
    }
}

/// Runs a worker on this thread until it is told to stop; says when it is ready, or why not.
pub fn run(
    gateway: Arc<Gateway>,
    index: usize,
    peers: Box<[mpsc::UnboundedSender<Handover>]>,
    orders: Orders,
    ready: &std::sync::mpsc::Sender<std::io::Result<()>>,
) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = match builder.enable_all().build_local(LocalOptions::default()) {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error))),
    };
    crate::store::on_worker(index);
    let worker = Rc::new(Worker::new(gateway, index, peers));
    let _ = ready.send(Ok(()));
    runtime.block_on(worker.run(orders));
    // A name that is still being looked up is waited for by nobody.
    runtime.shutdown_background();
}
