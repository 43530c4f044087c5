//! Starts and stops the whole: workers on their threads, and one control thread that reloads,
//! answers the admin listener and passes signals on.

mod control;
mod following;
#[cfg(test)]
mod following_tests;
mod listeners;
mod saving;
mod signals;

use crate::clock::Clock;
use crate::config::files::Files;
use crate::config::{self, LoadError, Loaded};
use crate::file_lock::LockError;
use crate::gateway::{Gateway, StateFiles};
use crate::handover::Inherited;
use crate::listener::Listeners;
use crate::overload::memory::Memory;
use crate::tls::TlsError;
use crate::upstream::names::Resolver;
use crate::worker::{self, Handover, Orders, Stop};
use control::{Command, Control};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot, watch};

/// How to run.
pub struct Options {
    /// The configuration file.
    pub path: PathBuf,
    /// How many workers; one per core if not given.
    pub workers: Option<usize>,
    /// The time.
    pub clock: Clock,
    /// Where the access log goes.
    pub access_log: Box<dyn Write + Send>,
    /// Whether SIGTERM, SIGINT, SIGHUP and SIGUSR2 are obeyed.
    pub signals: bool,
    /// Who knows the names of endpoints.
    pub resolver: Resolver,
    /// Where it is written how much memory there is.
    pub memory: Memory,
    /// What other processes have opened for this one.
    pub inherited: Inherited,
}

impl Options {
    /// Runs this file by the system's clock, logging to stdout.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            workers: None,
            clock: Clock::system(),
            access_log: Box::new(std::io::stdout()),
            signals: false,
            resolver: Resolver::System,
            memory: Memory::of_this_process(),
            inherited: Inherited::default(),
        }
    }
}

/// Why the gateway does not run, or why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// An address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    /// A certificate that was read cannot be used for TLS.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] TlsError),
    /// Another process writes the snapshot that is configured.
    #[error("the snapshot {0}; each gateway needs a file of its own (store.memory.snapshot)")]
    Snapshot(#[from] LockError),
    /// A reload that has to wait.
    #[error("a new process is taking over")]
    HandingOver,
    /// A thread panicked; what it held is gone, so the process must be started anew.
    #[error("{0} has died")]
    Died(&'static str),
    /// The system refused a thread, a socket or a signal.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// A gateway that runs.
pub struct Server {
    gateway: Arc<Gateway>,
    commands: mpsc::UnboundedSender<Command>,
    listeners: watch::Receiver<Listeners>,
    admin: watch::Receiver<Option<SocketAddr>>,
    control: Option<JoinHandle<Result<(), Error>>>,
}

impl Server {
    /// Starts; when this returns, callers can connect.
    pub fn start(mut options: Options) -> Result<Self, Error> {
        let mut files = Files::default();
        let Loaded { config, warnings } = config::load_noting(&options.path, &mut files)?;
        if warnings.iter().next().is_some() {
            tracing::warn!("{} can be used, but:\n{warnings}", options.path.display());
        }
        let passed_on = std::mem::take(&mut options.inherited.locks);
        let state_files = StateFiles::lock(&config, passed_on)?;
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let count = options.workers.unwrap_or_else(cores).max(1);
        let inherited = &mut options.inherited;
        let bound = listeners::Bound::new(&config.listen, &Listeners::new(), inherited)?.adopt();
        let admin = config.admin.as_ref().map(|admin| {
            let passed_on = inherited.take(admin.address);
            passed_on.map_or_else(|| listeners::bind(admin.address, false), Ok)
        });
        let admin_socket = admin.transpose()?;
        inherited.close_unused_sockets();
        let admin_config = config.admin.clone();
        let gateway = Arc::new(Gateway::new(
            config,
            options.clock,
            count,
            options.access_log,
            options.resolver,
            options.memory,
            state_files,
        ));
        let predecessor = options.inherited.predecessor.take();
        let predecessor = predecessor.and_then(|predecessor| {
            let acts_refused = gateway.overrides.gate.begin_closed()?;
            Some((predecessor, acts_refused))
        });

        let (listeners, on_listeners) = watch::channel(bound);
        let (stop, on_stop) = watch::channel(None);
        let (admin, on_admin) = watch::channel(None);
        let (commands, on_command) = mpsc::unbounded_channel();
        let workers = spawn_workers(&gateway, count, &on_listeners, &on_stop, &stop)?;
        let control = Control::new(
            Arc::clone(&gateway),
            options.path,
            files,
            listeners,
            admin,
            stop,
            commands.clone(),
        );
        let admin = admin_config.zip(admin_socket);
        let control = control.spawn(admin, predecessor, on_command, workers, options.signals)?;
        let control = Some(control);
        Ok(Self { gateway, commands, listeners: on_listeners, admin: on_admin, control })
    }

    /// Where callers can connect.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.borrow().iter().map(|listener| listener.local).collect()
    }

    /// Where the admin listener is, if there is one.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        *self.admin.borrow()
    }

    /// What all workers share.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Reads the configuration again, now.
    pub fn reload(&self) -> Result<(), Error> {
        let (reply, on_reply) = oneshot::channel();
        let ended = || Error::System(std::io::Error::other("the gateway has ended"));
        self.commands.send(Command::Reload(reply)).map_err(|_| ended())?;
        on_reply.blocking_recv().map_err(|_| ended())?
    }

    /// Stops accepting, lets requests in flight finish, and returns when all is over.
    pub fn stop(self) {
        drop(self);
    }

    /// Waits until a signal has ended the gateway, or it could not go on.
    pub fn wait(mut self) -> Result<(), Error> {
        self.join()
    }

    fn join(&mut self) -> Result<(), Error> {
        let Some(control) = self.control.take() else { return Ok(()) };
        control.join().unwrap_or(Err(Error::Died("the control thread")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        let _ = self.join();
    }
}

/// Starts the workers, and waits until all of them are ready. If one is not, none goes on.
fn spawn_workers(
    gateway: &Arc<Gateway>,
    count: usize,
    listeners: &watch::Receiver<Listeners>,
    on_stop: &watch::Receiver<Option<Stop>>,
    stop: &watch::Sender<Option<Stop>>,
) -> Result<Vec<JoinHandle<()>>, Error> {
    let (senders, receivers): (Vec<mpsc::UnboundedSender<Handover>>, Vec<_>) =
        (0..count).map(|_| mpsc::unbounded_channel()).unzip();
    let (ready, on_ready) = std::sync::mpsc::channel();
    let mut threads = Vec::new();
    let mut outcome = Ok(());
    for (index, handovers) in receivers.into_iter().enumerate() {
        let (gateway, peers) = (Arc::clone(gateway), senders.clone().into_boxed_slice());
        let orders = Orders { listeners: listeners.clone(), stop: on_stop.clone(), handovers };
        let ready = ready.clone();
        let run = move || worker::run(gateway, index, peers, orders, &ready);
        match std::thread::Builder::new().name(format!("worker-{index}")).spawn(run) {
            Ok(thread) => threads.push(thread),
            Err(error) => outcome = Err(error),
        }
    }
    drop(ready);
    outcome = on_ready.iter().take(threads.len()).fold(outcome, Result::and);
    if let Err(error) = outcome {
        stop.send_replace(Some(Stop::default()));
        return Err(error.into());
    }
    Ok(threads)
}
