//! What nobody waits for: a thread that gives back, settles, says that this gateway is alive, and
//! charges what was admitted while the store was away.

use super::operated::Heard;
use super::script::{self, Call};
use super::wire::{self, Layer};
use super::{RedisServers, Shared, Trouble};
use crate::clock::Micros;
use crate::limit::State;
use redis::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// How often leases are looked through, and how often this gateway says that it is alive.
const TICK: Duration = Duration::from_millis(250);
const BEAT: u32 = 6;

/// How many amendments may wait here for a store that is away, and once more on their way to here:
/// beyond that nothing more is remembered.
const MOST: usize = 100_000;

/// How many are sent at once.
const BATCH: usize = 256;

/// How long the end may take.
const FAREWELL: Duration = Duration::from_millis(500);

/// How long the store has for one of these; nobody waits for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// A change to a counter after the decision.
#[derive(Debug)]
pub(super) struct Amendment {
    pub(super) key: Box<[u8]>,
    /// The limit, and what was taken.
    pub(super) layer: Layer,
    pub(super) change: Change,
    /// Somebody waits for it.
    pub(super) done: Option<oneshot::Sender<()>>,
    /// Something is given back to this counter: what it denied before is forgotten then.
    pub(super) returns: Option<u64>,
}

impl Amendment {
    /// What had been taken.
    fn taken(&self) -> u32 {
        let [.., a, b, c, d] = self.layer[..6] else { return 0 };
        u32::from_le_bytes([a, b, c, d])
    }
}

/// What is to be done; see amend.lua.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    /// A request in flight has ended.
    Land(u64),
    /// This gateway is alive, and these are in flight.
    Beat,
    /// Nothing: is it there?
    Probe,
    /// Somebody has left the queue, who had made this state.
    Leave(State),
    /// A cost is known.
    Settle { actual: u32, at: Micros, counted: Micros },
    /// What was taken was not needed; it had made this state.
    Undo(State),
    /// Admitted without the store.
    Owe(State),
    /// An entry of a log is taken back.
    Strike(Micros),
    /// The counter is forgotten.
    Forget,
}

impl Change {
    /// Whether it may be tried again although it may have been done: what is given back twice is
    /// forgiven.
    fn may_repeat(&self, taken: u32) -> bool {
        match self {
            Self::Land(_) | Self::Beat | Self::Probe | Self::Owe(_) | Self::Forget => true,
            Self::Settle { actual, .. } => *actual >= taken,
            Self::Leave(_) | Self::Undo(_) | Self::Strike(_) => false,
        }
    }

    /// As the script is told. What is in flight is looked up now: it may have ended meanwhile.
    pub(super) fn told(&self, key: &[u8], shared: &Shared) -> (&'static str, Vec<u8>) {
        match *self {
            Self::Land(flight) => ("land", shared.flight_name(flight).into_bytes()),
            Self::Beat => ("beat", shared.flights_in(key)),
            Self::Probe => ("probe", Vec::new()),
            Self::Forget => ("forget", Vec::new()),
            Self::Leave(state) => ("leave", wire::stored(state).to_vec()),
            Self::Undo(state) => ("undo", wire::stored(state).to_vec()),
            Self::Owe(state) => ("owe", wire::stored(state).to_vec()),
            Self::Strike(at) => ("strike", wire::double(at).to_vec()),
            Self::Settle { actual, at, counted } => {
                let numbers = [u64::from(actual), at, counted];
                ("settle", numbers.iter().flat_map(|number| wire::double(*number)).collect())
            }
        }
    }
}

pub(super) enum Job {
    Amend(Amendment),
    Reconcile,
}

/// Where decisions put what nobody waits for.
pub(super) struct Queue {
    jobs: UnboundedSender<Job>,
    waiting: Arc<AtomicUsize>,
    stop: Arc<Notify>,
}

/// The other end.
pub(super) struct Jobs {
    receiver: UnboundedReceiver<Job>,
    waiting: Arc<AtomicUsize>,
    stop: Arc<Notify>,
}

pub(super) fn queue() -> (Queue, Jobs) {
    let (sender, receiver) = unbounded_channel();
    let (waiting, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let queue = Queue { jobs: sender, waiting: Arc::clone(&waiting), stop: Arc::clone(&stop) };
    (queue, Jobs { receiver, waiting, stop })
}

impl Queue {
    pub(super) fn put(&self, amendment: Amendment) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < 2 * MOST {
            let _ = self.jobs.send(Job::Amend(amendment));
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether nothing is left to be told.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    pub(super) fn reconcile(&self) {
        let _ = self.jobs.send(Job::Reconcile);
    }
}

/// The thread.
pub(super) struct Background {
    stop: Arc<Notify>,
    thread: JoinHandle<()>,
}

impl Background {
    /// `None` if the system gives us no thread; then nothing is given back but by time.
    pub(super) fn start(shared: Arc<Shared>, jobs: Jobs, worker: usize) -> Option<Self> {
        let stop = Arc::clone(&shared.queue.stop);
        let run = move || {
            super::on_worker(worker);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    runtime.block_on(Loop::new(shared, jobs).run());
                    // A name that is still being looked up is waited for by nobody.
                    runtime.shutdown_background();
                }
                Err(error) => tracing::error!("the store's thread cannot run: {error}"),
            }
        };
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(run);
        match thread {
            Ok(thread) => Some(Self { stop, thread }),
            Err(error) => {
                tracing::error!("the store has no thread: {error}");
                None
            }
        }
    }

    /// Sends what is left, and ends.
    pub(super) fn stop(self) {
        self.stop.notify_one();
        let _ = self.thread.join();
    }
}

struct Loop {
    shared: Arc<Shared>,
    jobs: UnboundedReceiver<Job>,
    waiting: Arc<AtomicUsize>,
    stop: Arc<Notify>,
    pending: VecDeque<Amendment>,
    checked: bool,
    probe_at: Instant,
    /// What was heard of operators' acts.
    acts: Option<Heard>,
    /// It was said that they cannot be heard.
    deaf: bool,
}

impl Loop {
    fn new(shared: Arc<Shared>, Jobs { receiver, waiting, stop }: Jobs) -> Self {
        Self {
            shared,
            jobs: receiver,
            waiting,
            stop,
            pending: VecDeque::new(),
            checked: false,
            probe_at: Instant::now(),
            acts: None,
            deaf: false,
        }
    }

    async fn run(mut self) {
        let stop = Arc::clone(&self.stop);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick = 0_u32;
        // After a failure the store is left alone for a moment.
        let mut wait_until = Instant::now();
        loop {
            let can_send = !self.pending.is_empty() && Instant::now() >= wait_until;
            // In this order: however much there is to be told, time goes on.
            tokio::select! {
                biased;
                () = stop.notified() => break,
                _ = ticks.tick() => {
                    tick = tick.wrapping_add(1);
                    self.tick(tick).await;
                }
                Some(job) = self.jobs.recv(), if self.pending.len() < MOST => match job {
                    Job::Amend(amendment) => {
                        self.pending.push_back(amendment);
                        if self.pending.len() < BATCH && !self.jobs.is_empty() {
                            continue;
                        }
                    }
                    Job::Reconcile => {
                        self.beat();
                        let counters = self.reconcile();
                        tracing::info!("{counters} counters are charged with what passed meanwhile");
                    }
                },
                () = std::future::ready(()), if can_send => {}
            }
            let waits = self.pending.is_empty() || Instant::now() < wait_until;
            if !waits && self.send().await.is_err() {
                wait_until = Instant::now() + TICK;
            }
        }
        let _ = timeout(FAREWELL, self.farewell()).await;
    }

    async fn tick(&mut self, tick: u32) {
        let now = self.now();
        self.shared.end_leases(Some(now));
        if self.shared.breaker.is_open() {
            // Nobody waits for these probes, so there may be more of them; and what is in flight has
            // to be told even if no further request comes.
            if Instant::now() >= self.probe_at {
                self.probe_at = Instant::now() + self.shared.options.probe_after / 4;
                self.probe().await;
            }
            return;
        }
        if tick.is_multiple_of(BEAT) {
            self.beat();
        }
        // What single failures let pass is charged as well, without a word.
        self.reconcile();
        self.share_acts().await;
        if !self.checked {
            let _ = timeout(PATIENCE, self.check()).await;
        }
    }

    /// Hears what operators have said elsewhere, and says what they said here. It must not hold up
    /// what requests wait for.
    async fn share_acts(&mut self) {
        let shared = timeout(TICK, self.shared.share_acts(self.acts)).await;
        match shared.unwrap_or(Err(Trouble::Late)) {
            Ok(acts) => {
                self.acts = acts;
                self.deaf = false;
            }
            Err(trouble) => {
                if trouble == Trouble::Late {
                    self.shared.cut_late();
                }
                if !std::mem::replace(&mut self.deaf, true) {
                    let why = trouble.name();
                    tracing::warn!(
                        "bans and grants are not shared until the store answers ({why})"
                    );
                }
            }
        }
    }

    async fn probe(&self) {
        let (shared, now) = (&self.shared, self.now());
        // No limit's name begins so but for a hash, which is longer.
        let key = format!("{}:1:#probe", shared.options.prefix).into_bytes();
        let amendment = Amendment {
            key: key.into(),
            layer: [0; 50],
            change: Change::Probe,
            done: None,
            returns: None,
        };
        let call = Call::amend(&amendment, shared, now);
        let deadline = Instant::now() + shared.options.timeout;
        let _ = shared.noted(now, deadline, shared.run(&shared.scripts.amend, call, now)).await;
    }

    async fn farewell(&mut self) {
        while let Ok(job) = self.jobs.try_recv() {
            match job {
                Job::Amend(amendment) => self.pending.push_back(amendment),
                Job::Reconcile => drop(self.reconcile()),
            }
        }
        while !self.pending.is_empty() && self.send().await.is_ok() {}
    }

    /// Milliseconds are enough here.
    fn now(&self) -> Micros {
        self.shared.clock.now()
    }

    /// Sends a batch; what fails is kept for later.
    async fn send(&mut self) -> Result<(), Trouble> {
        let now = self.now();
        if self.shared.breaker.is_open() {
            return Err(Trouble::Untried);
        }
        let mut batch: Vec<Amendment> =
            self.pending.drain(..self.pending.len().min(BATCH)).collect();
        // An operator who was told that a counter could not be forgotten must not find it forgotten later.
        let given_up = |amendment: &Amendment| {
            let done = amendment.done.as_ref();
            amendment.change == Change::Forget && done.is_some_and(oneshot::Sender::is_closed)
        };
        let before = batch.len();
        batch.retain(|amendment| !given_up(amendment));
        self.waiting.fetch_sub(before - batch.len(), Ordering::Release);
        let shared = &self.shared;
        let calls = batch.iter().map(|amendment| {
            let call = Call::amend(amendment, shared, now);
            async move {
                timeout(PATIENCE, shared.run(&shared.scripts.amend, call, now))
                    .await
                    .unwrap_or(Err(Trouble::Late))
            }
        });
        let outcomes = script::all(calls).await;
        if outcomes.contains(&Err(Trouble::Late)) {
            shared.cut_late();
        }
        let mut trouble = None;
        for (amendment, outcome) in batch.into_iter().zip(outcomes) {
            match outcome {
                Err(other) if other != Trouble::Refused => {
                    trouble = Some(other);
                    if !other.in_doubt() || amendment.change.may_repeat(amendment.taken()) {
                        // To the end: what one node of a cluster does not take must not hold up the
                        // rest.
                        self.pending.push_back(amendment);
                        continue;
                    }
                }
                // It does not become right by being repeated; whoever waits hears that nothing came of it.
                Err(refused) => self.shared.metrics.fail(refused.name()),
                Ok(_) => {
                    if let Some(key) = amendment.returns {
                        self.shared.denials.returned(key);
                    }
                    if let Some(done) = amendment.done {
                        let _ = done.send(());
                    }
                }
            }
            self.waiting.fetch_sub(1, Ordering::Release);
        }
        trouble.map_or(Ok(()), Err)
    }

    /// What was admitted while the store was away; says of how many counters.
    fn reconcile(&mut self) -> usize {
        let now = self.now();
        let due = self.shared.owed.take();
        let counters = due.len();
        self.waiting.fetch_add(due.len(), Ordering::Relaxed);
        self.pending.extend(due.into_iter().map(|(key, due)| {
            let layer = wire::layer(&due.quota, 0, 1, now);
            Amendment { key, layer, change: Change::Owe(due.state), done: None, returns: None }
        }));
        counters
    }

    /// Places in flight count as long as their gateway says that it is alive. That comes before
    /// everything else, and what was to be said before is said with it.
    fn beat(&mut self) {
        let now = self.now();
        let before = self.pending.len();
        self.pending.retain(|amendment| amendment.change != Change::Beat);
        self.waiting.fetch_sub(before - self.pending.len(), Ordering::Relaxed);
        let flying = self.shared.flying.lock();
        self.waiting.fetch_add(flying.len(), Ordering::Relaxed);
        for (key, flying) in &*flying {
            self.pending.push_front(Amendment {
                key: key.clone(),
                layer: wire::layer(&flying.quota, 0, 1, now),
                change: Change::Beat,
                done: None,
                returns: None,
            });
        }
    }

    /// Says, once, if the store could forget what it is told.
    async fn check(&mut self) {
        let now = self.now();
        let link = self.shared.link();
        let Ok(Ok(mut wire)) = timeout(PATIENCE, link.wire(&self.shared.options, now)).await else {
            return;
        };
        self.checked = true;
        tracing::info!("the store answers: limits are shared");
        // Nodes of a cluster may differ; their operators know.
        if matches!(self.shared.options.servers, RedisServers::Cluster(_)) {
            return;
        }
        let policy = setting(wire.tell(&["CONFIG", "GET", "maxmemory-policy"]).await);
        if let Some(policy) = policy
            && policy != "noeviction"
        {
            tracing::warn!(
                "the store's maxmemory-policy is {policy}: what it evicts is forgiven; noeviction is safe"
            );
        }
        let append = setting(wire.tell(&["CONFIG", "GET", "appendonly"]).await);
        let save = setting(wire.tell(&["CONFIG", "GET", "save"]).await);
        if let (Some(append), Some(save)) = (append, save) {
            self.check_days(append == "yes" || !save.is_empty());
        }
    }

    fn check_days(&self, persists: bool) {
        const DAY: Micros = 86_400_000_000;
        let registry = self.shared.registry.load();
        let long = registry.values().flatten().any(|quota| quota.rate().window >= DAY);
        if long && !persists {
            tracing::warn!(
                "the store keeps nothing over a restart, and a limit's window is a day or more: \
                 a restart would forgive it"
            );
        }
    }
}

/// The value of `CONFIG GET`; `None` where it may not be asked for.
fn setting(reply: redis::RedisResult<Value>) -> Option<String> {
    match reply.ok()? {
        Value::Array(mut items) => match items.pop()? {
            Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
            Value::SimpleString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}
