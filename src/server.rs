//! Starts and stops the whole: workers on their threads, and one control thread that reloads,
//! answers the admin listener and passes signals on.

use crate::admin;
use crate::clock::Clock;
use crate::config::watch::{Watch, fingerprint};
use crate::config::{self, Config, LoadError, Loaded, model};
use crate::gateway::Gateway;
use crate::worker::{self, Handover, Listener, Listeners, Orders};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
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
    /// Whether SIGTERM, SIGINT and SIGHUP are obeyed.
    pub signals: bool,
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
    /// The system refused a thread, a socket or a signal.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

enum Command {
    Reload(oneshot::Sender<Result<(), Error>>),
    Stop,
}

/// A gateway that runs.
pub struct Server {
    gateway: Arc<Gateway>,
    commands: mpsc::UnboundedSender<Command>,
    listeners: watch::Receiver<Listeners>,
    admin: watch::Receiver<Option<SocketAddr>>,
    control: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts; when this returns, callers can connect.
    pub fn start(options: Options) -> Result<Self, Error> {
        let Loaded { config, warnings } = config::load(&options.path)?;
        if warnings.iter().next().is_some() {
            tracing::warn!("{} can be used, but:\n{warnings}", options.path.display());
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let count = options.workers.unwrap_or_else(cores).max(1);
        let files = config.files.clone();
        let addresses = config.listen.clone();
        let admin_config = config.admin.clone();
        let gateway =
            Arc::new(Gateway::new(config, options.clock.clone(), count, options.access_log));
        let bound = bind_all(&addresses, &Vec::new())?;
        let admin_socket = admin_config.as_ref().map(|admin| bind(admin.address)).transpose()?;

        let (listeners, on_listeners) = watch::channel(bound);
        let (stop, on_stop) = watch::channel(None);
        let workers = spawn_workers(&gateway, count, &on_listeners, &on_stop)?;
        let (admin, on_admin) = watch::channel(None);
        let (commands, on_command) = mpsc::unbounded_channel();
        let control = Control {
            gateway: Arc::clone(&gateway),
            path: options.path,
            fingerprint: fingerprint(&files),
            files,
            listeners,
            admin,
            admin_listener: None,
            stop,
            watch: None,
        };
        let (started, on_started) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            let admin = admin_config.zip(admin_socket);
            control.run(admin, on_command, workers, options.signals, &started);
        })?;
        on_started.recv().map_err(|_| std::io::Error::other("the control thread ended"))??;
        let control = Some(thread);
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
    pub fn stop(mut self) {
        let _ = self.commands.send(Command::Stop);
        self.join();
    }

    /// Waits until a signal has ended the gateway.
    pub fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        self.join();
    }
}

fn spawn_workers(
    gateway: &Arc<Gateway>,
    count: usize,
    listeners: &watch::Receiver<Listeners>,
    stop: &watch::Receiver<Option<Duration>>,
) -> Result<Vec<JoinHandle<()>>, Error> {
    let (senders, receivers): (Vec<mpsc::UnboundedSender<Handover>>, Vec<_>) =
        (0..count).map(|_| mpsc::unbounded_channel()).unzip();
    let spawn = |(index, handovers)| {
        let (gateway, peers) = (Arc::clone(gateway), senders.clone().into_boxed_slice());
        let orders = Orders { listeners: listeners.clone(), stop: stop.clone(), handovers };
        let run = move || {
            if let Err(error) = worker::run(gateway, index, peers, orders) {
                tracing::error!("worker {index} cannot run: {error}");
            }
        };
        Ok(std::thread::Builder::new().name(format!("worker-{index}")).spawn(run)?)
    };
    receivers.into_iter().enumerate().map(spawn).collect()
}

/// Binds what is configured; what is bound already stays.
fn bind_all(addresses: &[SocketAddr], bound: &Listeners) -> Result<Listeners, Error> {
    let mut before = bound.clone();
    let mut next = Listeners::new();
    for &address in addresses {
        // Port 0 may be asked for twice: each listener is used once.
        match before.iter().position(|listener| listener.configured == address) {
            Some(index) => next.push(before.swap_remove(index)),
            None => {
                let socket = bind(address)?;
                let local = socket.local_addr()?;
                next.push(Arc::new(Listener { configured: address, local, socket }));
            }
        }
    }
    Ok(next)
}

fn bind(address: SocketAddr) -> Result<std::net::TcpListener, Error> {
    let open = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        Ok(socket.into())
    };
    open().map_err(|error| Error::Listen(address, error))
}

struct Control {
    gateway: Arc<Gateway>,
    path: PathBuf,
    files: Vec<PathBuf>,
    fingerprint: Vec<Option<Vec<u8>>>,
    listeners: watch::Sender<Listeners>,
    admin: watch::Sender<Option<SocketAddr>>,
    admin_listener: Option<AdminListener>,
    stop: watch::Sender<Option<Duration>>,
    watch: Option<Watch>,
}

/// The admin listener while it runs.
struct AdminListener {
    /// As configured.
    address: SocketAddr,
    token: admin::Token,
    task: tokio::task::AbortHandle,
}

/// Editors write a file in several steps; a notice is acted upon when this long nothing more came.
const SETTLE: Duration = Duration::from_millis(50);

/// The signals that are obeyed; without them, a future that never comes.
struct Signals(Option<[Signal; 3]>);

enum Heard {
    Hangup,
    Stop,
}

impl Signals {
    fn new(obey: bool) -> std::io::Result<Self> {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let [term, int, hup] = kinds.map(|kind| obey.then(|| signal(kind)).transpose());
        Ok(Self(term?.zip(int?).zip(hup?).map(|((term, int), hup)| [term, int, hup])))
    }

    async fn next(&mut self) -> Heard {
        match &mut self.0 {
            None => std::future::pending().await,
            Some([term, int, hup]) => tokio::select! {
                _ = term.recv() => Heard::Stop,
                _ = int.recv() => Heard::Stop,
                _ = hup.recv() => Heard::Hangup,
            },
        }
    }
}

impl Control {
    fn run(
        mut self,
        admin: Option<(model::Admin, std::net::TcpListener)>,
        commands: mpsc::UnboundedReceiver<Command>,
        workers: Vec<JoinHandle<()>>,
        signals: bool,
        started: &std::sync::mpsc::Sender<Result<(), Error>>,
    ) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(started.send(Err(error.into()))),
        };
        let gateway = Arc::clone(&self.gateway);
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, async move {
            let ready = self.prepare(admin).and_then(|()| Ok(Signals::new(signals)?));
            let mut signals = match ready {
                Ok(signals) => signals,
                Err(error) => return drop(started.send(Err(error))),
            };
            let _ = started.send(Ok(()));
            self.serve(commands, &mut signals).await;
            self.finish(workers, &mut signals).await;
        });
        gateway.access_log.close();
    }

    fn prepare(
        &mut self,
        admin: Option<(model::Admin, std::net::TcpListener)>,
    ) -> Result<(), Error> {
        match admin {
            Some((config, socket)) => self.start_admin(config, socket),
            None => Ok(()),
        }
    }

    /// Reloads as files change, until told to stop.
    async fn serve(
        &mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        signals: &mut Signals,
    ) {
        let (notices, mut on_notice) = mpsc::unbounded_channel();
        match Watch::new(notices.clone()) {
            Ok(mut watch) => {
                watch.set(&self.files);
                self.watch = Some(watch);
            }
            Err(error) => tracing::warn!("files are not watched, SIGHUP reloads: {error}"),
        }
        // What changed between reading and watching is noticed now.
        let _ = notices.send(());
        let mut sweep = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Reload(reply)) => drop(reply.send(self.reload())),
                    Some(Command::Stop) | None => return,
                },
                heard = signals.next() => match heard {
                    Heard::Hangup => drop(self.reload()),
                    Heard::Stop => return,
                },
                Some(()) = on_notice.recv() => {
                    tokio::time::sleep(SETTLE).await;
                    while on_notice.try_recv().is_ok() {}
                    if fingerprint(&self.files) != self.fingerprint {
                        let _ = self.reload();
                    }
                }
                _ = sweep.tick() => self.gateway.sweep(),
            }
        }
    }

    /// Takes the file into force, or leaves everything as it is and says why.
    fn reload(&mut self) -> Result<(), Error> {
        let read = self.files.iter().cloned().zip(fingerprint(&self.files)).collect();
        let outcome = self.try_reload();
        match &outcome {
            Ok(()) => {
                let snapshot = self.gateway.snapshot.load();
                self.gateway.metrics.reloads_ok.increment();
                tracing::info!(
                    "{} is in force: generation {}, {} routes",
                    self.path.display(),
                    snapshot.generation,
                    snapshot.routes.len()
                );
            }
            Err(error) => {
                self.gateway.metrics.reloads_failed.increment();
                tracing::error!(
                    "{} is not in force, the configuration before it stays:\n{error}",
                    self.path.display()
                );
            }
        }
        // A file that the refused configuration names may be what has to change.
        if let Err(Error::Config(LoadError::Invalid { files, .. })) = &outcome {
            let named = files.iter().filter(|file| !self.files.contains(file));
            let all = self.files.iter().chain(named).cloned().collect();
            self.follow(all, &read);
        } else {
            self.follow(self.files.clone(), &read);
        }
        outcome
    }

    /// Watches these files from now on. Those that were known count as they were before they were
    /// read, so that a change during the reading is not missed.
    fn follow(&mut self, files: Vec<PathBuf>, read: &HashMap<PathBuf, Option<Vec<u8>>>) {
        let now = files.iter().zip(fingerprint(&files));
        self.fingerprint = now.map(|(file, now)| read.get(file).cloned().unwrap_or(now)).collect();
        if let Some(watch) = &mut self.watch {
            watch.set(&files);
        }
        self.files = files;
    }

    fn try_reload(&mut self) -> Result<(), Error> {
        let Loaded { config, warnings } = config::load(&self.path)?;
        if warnings.iter().next().is_some() {
            tracing::warn!("{} can be used, but:\n{warnings}", self.path.display());
        }
        let listeners = bind_all(&config.listen, &self.listeners.borrow())?;
        self.reload_admin(&config)?;
        self.files.clone_from(&config.files);
        self.gateway.adopt(config);
        self.listeners.send_replace(listeners);
        Ok(())
    }

    /// The admin listener as configured. It is bound before anything else changes.
    fn reload_admin(&mut self, config: &Config) -> Result<(), Error> {
        match (&config.admin, &mut self.admin_listener) {
            (None, _) => self.stop_admin(),
            (Some(admin), Some(running)) if running.address == admin.address => {
                running.token.lock().clone_from(&admin.token);
            }
            (Some(admin), _) => {
                let socket = bind(admin.address)?;
                self.stop_admin();
                self.start_admin(admin.clone(), socket)?;
            }
        }
        Ok(())
    }

    fn start_admin(
        &mut self,
        config: model::Admin,
        socket: std::net::TcpListener,
    ) -> Result<(), Error> {
        let local = socket.local_addr()?;
        let listener = tokio::net::TcpListener::from_std(socket)?;
        let token = admin::Token::new(config.token.into());
        let serving =
            admin::serve(listener, Arc::clone(&self.gateway), admin::Token::clone(&token));
        let task = tokio::task::spawn_local(serving).abort_handle();
        self.admin_listener = Some(AdminListener { address: config.address, token, task });
        self.admin.send_replace(Some(local));
        Ok(())
    }

    fn stop_admin(&mut self) {
        if let Some(listener) = self.admin_listener.take() {
            listener.task.abort();
        }
        self.admin.send_replace(None);
    }

    /// Lets what is in flight finish; a second signal ends it at once.
    async fn finish(&mut self, workers: Vec<JoinHandle<()>>, signals: &mut Signals) {
        let grace = self.gateway.snapshot.load().server.shutdown_grace;
        tracing::info!("stopping; requests in flight have {grace:?}");
        self.gateway.drain();
        self.stop.send_replace(Some(grace));
        // Nobody may queue up at a door that nobody opens any more.
        self.listeners.send_replace(Listeners::new());
        loop {
            if workers.iter().all(JoinHandle::is_finished) {
                return;
            }
            tokio::select! {
                Heard::Stop = signals.next() => {
                    tracing::warn!("stopping at once");
                    self.stop.send_replace(Some(Duration::ZERO));
                }
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    }
}
