//! The control thread: reloads as files change or a signal says so, runs the admin listener, and
//! stops the workers in good order.

mod succession;

use super::Error;
use super::following::Following;
use super::listeners::{Bound, bind};
use super::saving::Saving;
use super::signals::{Heard, Signals};
use crate::admin;
use crate::config::files::{Files, steps};
use crate::config::{self, Config, LoadError, Loaded, model};
use crate::gateway::Gateway;
use crate::handover::{self, Inherited, Predecessor};
use crate::listener::Listeners;
use crate::overrides::Closed;
use crate::telemetry;
use crate::upstream::{health, names};
use crate::worker::Stop;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use succession::{Heir, Step};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// What the control thread is told from outside.
pub(super) enum Command {
    Reload(oneshot::Sender<Result<(), Error>>),
    /// The same for the operator: the generation that is in force then, or what is wrong.
    ReloadFor(oneshot::Sender<Result<u64, String>>),
    Stop,
}

pub(super) struct Control {
    gateway: Arc<Gateway>,
    /// To this thread itself.
    commands: mpsc::UnboundedSender<Command>,
    path: PathBuf,
    following: Following,
    listeners: watch::Sender<Listeners>,
    admin: watch::Sender<Option<SocketAddr>>,
    admin_listener: Option<AdminListener>,
    stop: watch::Sender<Option<Stop>>,
    /// In how many seconds a reload is tried again that failed for want of something.
    retries: Option<u32>,
    /// What the last reload failed for, so that it is not said every time.
    failure: Option<String>,
    saving: Saving,
    /// The process that has the sockets and the counters now.
    heir: Option<Heir>,
    /// The process to take over from, while acts are refused here.
    predecessor: Option<(Predecessor, Closed)>,
    /// Hears the predecessor until it has ended.
    hears_predecessor: Option<tokio::task::JoinHandle<()>>,
    /// How long callers are told to come again by another connection before idle ones are closed.
    farewell: Duration,
    /// A process that is to take over, as long as it starts.
    successor: Option<JoinSet<Step>>,
}

/// The admin listener while it runs.
struct AdminListener {
    /// As configured.
    address: SocketAddr,
    token: admin::Token,
    /// For whoever takes over.
    socket: TcpListener,
    task: tokio::task::AbortHandle,
}

/// How long callers are told to come again by another connection, before idle ones are closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// Seconds until a reload is tried again that failed for want of something.
const RETRY: u32 = 5;

type Admin = (model::Admin, TcpListener);

impl Control {
    pub(super) fn new(
        gateway: Arc<Gateway>,
        path: PathBuf,
        files: Files,
        listeners: watch::Sender<Listeners>,
        admin: watch::Sender<Option<SocketAddr>>,
        stop: watch::Sender<Option<Stop>>,
        commands: mpsc::UnboundedSender<Command>,
    ) -> Self {
        Self {
            following: Following::new(&path, files),
            gateway,
            commands,
            path,
            listeners,
            admin,
            admin_listener: None,
            stop,
            retries: None,
            failure: None,
            saving: Saving::default(),
            heir: None,
            predecessor: None,
            hears_predecessor: None,
            farewell: Duration::ZERO,
            successor: None,
        }
    }

    /// Starts the thread, and returns when it is ready.
    pub(super) fn spawn(
        mut self,
        admin: Option<Admin>,
        predecessor: Option<(Predecessor, Closed)>,
        commands: mpsc::UnboundedReceiver<Command>,
        workers: Vec<JoinHandle<()>>,
        signals: bool,
    ) -> Result<JoinHandle<Result<(), Error>>, Error> {
        self.predecessor = predecessor;
        let (started, on_started) = std::sync::mpsc::channel();
        let stop = self.stop.clone();
        let run = move || self.run(admin, commands, workers, signals, &started);
        let thread = std::thread::Builder::new().name("control".into()).spawn(run);
        let outcome = thread.map_err(Error::from).and_then(|thread| {
            on_started.recv().map_err(|_| std::io::Error::other("the control thread ended"))??;
            Ok(thread)
        });
        if outcome.is_err() {
            stop.send_replace(Some(Stop::default()));
        }
        outcome
    }

    fn run(
        mut self,
        admin: Option<Admin>,
        commands: mpsc::UnboundedReceiver<Command>,
        workers: Vec<JoinHandle<()>>,
        signals: bool,
        started: &std::sync::mpsc::Sender<Result<(), Error>>,
    ) -> Result<(), Error> {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = started.send(Err(error.into()));
                return Ok(());
            }
        };
        let gateway = Arc::clone(&self.gateway);
        // Its questions to a shared store go over links of their own.
        crate::store::on_worker(gateway.metrics.workers.len() + 1);
        let tasks = tokio::task::LocalSet::new();
        let outcome = tasks.block_on(&runtime, async move {
            let admin = admin.map_or(Ok(()), |(config, socket)| self.start_admin(config, socket));
            let mut signals = match admin.and_then(|()| Ok(Signals::new(signals)?)) {
                Ok(signals) => signals,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return Ok(());
                }
            };
            let _ = started.send(Ok(()));
            if let Some((predecessor, closed)) = self.predecessor.take() {
                let gateway = Arc::clone(&self.gateway);
                let taking_over = succession::take_over(gateway, predecessor, closed);
                self.hears_predecessor = Some(tokio::task::spawn_local(taking_over));
            }
            tokio::task::spawn_local(health::follow(Arc::clone(&self.gateway)));
            tokio::task::spawn_local(names::follow(Arc::clone(&self.gateway)));
            tokio::task::spawn_local(telemetry::follow(Arc::clone(&self.gateway)));
            let outcome = self.serve(commands, &workers, &mut signals).await;
            self.finish(workers, &mut signals).await;
            if self.heir.is_none() {
                self.saving.finish(&self.gateway);
            }
            outcome
        });
        // A name that is still being looked up is waited for by nobody.
        drop(tasks);
        runtime.shutdown_background();
        gateway.store.close();
        gateway.access_log.close();
        outcome
    }

    /// Reloads as files change, until told to stop.
    async fn serve(
        &mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        workers: &[JoinHandle<()>],
        signals: &mut Signals,
    ) -> Result<(), Error> {
        self.following.start();
        let mut second = tokio::time::interval(Duration::from_secs(1));
        // A process that was stopped for a while has not had all those seconds.
        second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut moment = tokio::time::interval(Duration::from_millis(250));
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Reload(reply)) => drop(reply.send(self.reload())),
                    Some(Command::ReloadFor(reply)) => {
                        let outcome = self.reload();
                        let outcome = outcome.map_err(|error| error.to_string());
                        let _ = reply.send(outcome.map(|()| self.gateway.generation()));
                    }
                    Some(Command::Stop) | None => return Ok(()),
                },
                heard = signals.next() => match heard {
                    Heard::Hangup => drop(self.reload()),
                    Heard::HandOver => self.hand_over(),
                    Heard::Stop => {
                        handover::say_stopping();
                        self.successor = None;
                        self.farewell = FAREWELL;
                        return Ok(());
                    }
                },
                Some(Ok(step)) = next_of(&mut self.successor) => {
                    self.go_on_handing_over(step);
                    if self.heir.is_some() {
                        return Ok(());
                    }
                }
                () = self.following.noticed() => {
                    if self.following.has_changed().await {
                        let _ = self.reload();
                    }
                    self.following.reached(steps::IDLE);
                }
                _ = moment.tick() => self.gateway.look_at_memory(),
                _ = second.tick() => {
                    self.each_second();
                    if workers.iter().any(JoinHandle::is_finished) {
                        tracing::error!("a worker has died: stopping, to be started anew");
                        return Err(Error::Died("a worker"));
                    }
                }
            }
        }
    }

    fn each_second(&mut self) {
        self.gateway.tick();
        self.saving.each_second(&self.gateway);
        self.following.each_second();
        if self.retries == Some(0) {
            let _ = self.reload();
        } else {
            self.retries = self.retries.map(|left| left - 1);
        }
    }

    /// Takes the file into force, or leaves everything as it is and says why.
    fn reload(&mut self) -> Result<(), Error> {
        if self.gateway.overrides.gate.is_closed() {
            // It may name other files, which would have to be passed on as well.
            self.retries = Some(0);
            return Err(Error::HandingOver);
        }
        let mut files = Files::default();
        let outcome = self.try_reload(&mut files);
        match &outcome {
            Ok(()) => {
                let snapshot = self.gateway.snapshot.load();
                self.gateway.note_reload(None);
                self.failure = None;
                tracing::info!(
                    "{} is in force: generation {}, {} routes",
                    self.path.display(),
                    snapshot.generation,
                    snapshot.routes.len()
                );
            }
            Err(error) => {
                let text = error.to_string();
                self.gateway.note_reload(Some(text.clone()));
                if self.failure.as_ref() != Some(&text) {
                    tracing::error!(
                        "{} is not in force, the configuration before it stays:\n{text}",
                        self.path.display()
                    );
                }
                self.failure = Some(text);
            }
        }
        // A mistake in the file needs an editor; a busy port or a missing file may heal.
        self.retries = match &outcome {
            Ok(()) | Err(Error::Config(LoadError::Invalid { .. })) => None,
            Err(_) => Some(RETRY),
        };
        self.following.adopt(files);
        outcome
    }

    fn try_reload(&mut self, files: &mut Files) -> Result<(), Error> {
        let Loaded { config, warnings } = config::load_noting(&self.path, files)?;
        self.following.reached(steps::LOADED);
        if warnings.iter().next().is_some() {
            tracing::warn!("{} can be used, but:\n{warnings}", self.path.display());
        }
        let nothing = &mut Inherited::default();
        let listeners = Bound::new(&config.listen, &self.listeners.borrow(), nothing)?;
        let lock = self.gateway.lock_snapshot(&config)?;
        self.reload_admin(&config)?;
        self.gateway.adopt(config, lock);
        self.listeners.send_replace(listeners.adopt());
        self.following.reached(steps::IN_FORCE);
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
                let socket = bind(admin.address, false)?;
                self.stop_admin();
                self.start_admin(admin.clone(), socket)?;
            }
        }
        Ok(())
    }

    fn start_admin(&mut self, config: model::Admin, socket: TcpListener) -> Result<(), Error> {
        let local = socket.local_addr()?;
        let copy = socket.try_clone()?;
        let listener = tokio::net::TcpListener::from_std(socket)?;
        let token = admin::Token::new(config.token.into());
        let commands = self.commands.clone();
        let serving = admin::serve(
            listener,
            admin::Operator {
                gateway: Arc::clone(&self.gateway),
                token: admin::Token::clone(&token),
                reload: Box::new(move || {
                    let (reply, on_reply) = oneshot::channel();
                    let _ = commands.send(Command::ReloadFor(reply));
                    on_reply
                }),
                file: self.path.clone(),
            },
        );
        let task = tokio::task::spawn_local(serving).abort_handle();
        self.admin_listener =
            Some(AdminListener { address: config.address, token, socket: copy, task });
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
        self.gateway.stop();
        if self.heir.is_some() {
            self.stop_admin(); // the operator is the next one's
        }
        let farewell = self.farewell;
        self.stop.send_replace(Some(Stop { farewell, grace }));
        // Nobody may queue up at a door that nobody opens any more.
        self.listeners.send_replace(Listeners::new());
        let mut second = tokio::time::interval(Duration::from_secs(1));
        loop {
            if workers.iter().all(JoinHandle::is_finished) && !self.passes_on_for_another() {
                return self.pass_on().await;
            }
            tokio::select! {
                Heard::Stop = signals.next() => {
                    tracing::warn!("stopping at once");
                    self.hears_predecessor = None;
                    self.stop.send_replace(Some(Stop::default()));
                }
                _ = second.tick() => self.pass_on().await,
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    }
}

/// What comes of a task, if there is one.
async fn next_of<T: 'static>(
    tasks: &mut Option<JoinSet<T>>,
) -> Option<Result<T, tokio::task::JoinError>> {
    match tasks {
        Some(tasks) => tasks.join_next().await,
        None => std::future::pending().await,
    }
}
