//! Running the scripts: by their hash, within the deadline, over a link that works.

use super::background::Amendment;
use super::breaker;
use super::link::{Link, Wire};
use super::wire::Layer;
use super::{Shared, Trouble};
use crate::clock::Micros;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// How old a connection must be to be given up for one late reply.
const LATE: Micros = 1_000_000;

/// A script: sent in full only where the store does not know it yet.
#[derive(Debug)]
pub(super) struct Script {
    source: String,
    hash: String,
    /// Whether it does no harm if it is run twice: what is charged twice is charged too much, what
    /// is given back twice is forgiven.
    may_repeat: bool,
}

impl Script {
    fn new(source: String, may_repeat: bool) -> Self {
        let hash = crate::digest::sha1_hex(source.as_bytes());
        Self { source, hash, may_repeat }
    }
}

/// The two there are.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) decide: Script,
    pub(super) amend: Script,
}

impl Scripts {
    /// As they are, or as a test wants them to be.
    pub(super) fn new(edit: impl Fn(&str) -> String) -> Self {
        let decide = concat!(include_str!("core.lua"), include_str!("decide.lua"));
        let amend = concat!(include_str!("core.lua"), include_str!("amend.lua"));
        Self { decide: Script::new(edit(decide), true), amend: Script::new(edit(amend), false) }
    }
}

/// A call of a script.
pub(super) struct Call {
    keys: Vec<u8>,
    /// Where each key ends.
    ends: Vec<usize>,
    arguments: Vec<Vec<u8>>,
}

impl Call {
    fn command(&self, script: &Script, in_full: bool) -> Cmd {
        let mut command = Cmd::new();
        if in_full {
            command.arg("EVAL").arg(&script.source);
        } else {
            command.arg("EVALSHA").arg(&script.hash);
        }
        command.arg(self.ends.len());
        let mut start = 0;
        for end in &self.ends {
            command.arg(&self.keys[start..*end]);
            start = *end;
        }
        for argument in &self.arguments {
            command.arg(argument.as_slice());
        }
        command
    }

    pub(super) fn amend(amendment: &Amendment, shared: &Shared, now: Micros) -> Self {
        let (what, with) = amendment.change.told(&amendment.key, shared);
        let arguments = vec![
            moment(shared.own_time.then_some(now)),
            moment(Some(now)),
            amendment.layer.to_vec(),
            what.as_bytes().to_vec(),
            with,
        ];
        let (keys, ends) = (amendment.key.to_vec(), vec![amendment.key.len()]);
        Self { keys, ends, arguments }
    }
}

fn moment(time: Option<Micros>) -> Vec<u8> {
    time.map_or_else(Vec::new, |time| time.to_string().into_bytes())
}

/// A call of the decision's script, being put together.
pub(super) struct Decide(Call);

impl Decide {
    pub(super) fn new(layers: usize, flight: &str, time: Option<Micros>) -> Self {
        let mut arguments = Vec::with_capacity(layers + 2);
        arguments.push(moment(time));
        arguments.push(flight.as_bytes().to_vec());
        let (keys, ends) = (Vec::with_capacity(48 * layers), Vec::with_capacity(layers));
        Self(Call { keys, ends, arguments })
    }

    /// Where the next key is to be written.
    pub(super) fn key(&mut self) -> &mut Vec<u8> {
        &mut self.0.keys
    }

    /// The layer that belongs to the key.
    pub(super) fn layer(&mut self, layer: Layer) {
        self.0.ends.push(self.0.keys.len());
        self.0.arguments.push(layer.to_vec());
    }

    pub(super) fn finish(self) -> Call {
        self.0
    }
}

impl Shared {
    /// Runs a script over one of this worker's links. A store that has forgotten it is told it
    /// anew; a link that leads nowhere is cut, and what broke off is asked once more if that does no
    /// harm.
    pub(super) async fn run(
        &self,
        script: &Script,
        call: Call,
        now: Micros,
    ) -> Result<Vec<u8>, Trouble> {
        let reply = self.run_over(self.link(), script, &call, now).await;
        if reply == Err(Trouble::Broken) && script.may_repeat {
            return self.run_over(self.link(), script, &call, now).await;
        }
        reply
    }

    async fn run_over(
        &self,
        link: &Arc<Link>,
        script: &Script,
        call: &Call,
        now: Micros,
    ) -> Result<Vec<u8>, Trouble> {
        let mut wire = link.wire(&self.options, now).await?;
        let _waiting = link.wait();
        self.metrics.calls.increment();
        let began = self.clock.now();
        let reply = match wire.call(&call.command(script, false)).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                wire.call(&call.command(script, true)).await
            }
            reply => reply,
        };
        self.metrics.took(super::WORKER.get(), self.clock.now().saturating_sub(began));
        match reply {
            Ok(Value::BulkString(bytes)) => Ok(bytes),
            Ok(_) => Ok(Vec::new()),
            Err(error) => {
                let trouble = trouble(&error);
                if matches!(trouble, Trouble::Broken | Trouble::ReadOnly) {
                    link.cut();
                }
                if trouble == Trouble::Refused {
                    tracing::debug!("the store refuses: {error}");
                }
                Err(trouble)
            }
        }
    }

    /// Within the deadline, and if the breaker lets it pass; what comes of it is noted.
    pub(super) async fn guarded<T>(
        &self,
        now: Micros,
        deadline: Instant,
        asking: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Trouble> {
        if !self.breaker.admits(now) {
            return Err(Trouble::Untried);
        }
        self.noted(now, deadline, asking).await
    }

    /// The same, whatever the breaker says.
    pub(super) async fn noted<T>(
        &self,
        now: Micros,
        deadline: Instant,
        asking: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Trouble> {
        let outcome = tokio::time::timeout_at(deadline, asking).await;
        let outcome = outcome.unwrap_or(Err(Trouble::Late));
        match &outcome {
            Ok(_) => self.note_success(),
            Err(Trouble::Untried) => self.breaker.untried(now),
            Err(trouble) => self.note_failure(*trouble, now),
        }
        outcome
    }

    /// A reply did not come: it may be a connection that is dead without knowing it.
    pub(super) fn cut_late(&self) {
        let then = self.clock.now().saturating_sub(LATE);
        for link in self.links() {
            link.cut_if_older(then);
        }
    }

    fn note_success(&self) {
        if self.breaker.succeeded() == breaker::Change::Closed {
            tracing::info!("the store is back: limits are shared again");
            self.metrics.up.set(1);
            self.queue.reconcile();
        }
        if self.troubled.load(Ordering::Relaxed) {
            self.troubled.store(false, Ordering::Relaxed);
        }
    }

    fn note_failure(&self, trouble: Trouble, began: Micros) {
        let now = self.clock.now();
        self.metrics.fail(trouble.name());
        if trouble == Trouble::Late {
            self.cut_late();
        }
        if !self.troubled.swap(true, Ordering::Relaxed) {
            tracing::warn!("the store gave no decision ({})", trouble.name());
        }
        if self.breaker.failed(began, now) == breaker::Change::Opened {
            self.metrics.up.set(0);
            self.metrics.opened.increment();
            let left = Duration::from_micros(crate::clock::micros(self.options.probe_after));
            tracing::error!(
                "the store is away ({}): each limit does as its 'on_failure' says; it is probed every {left:?}",
                trouble.name()
            );
            // Whatever was under way is not coming, or too late.
            for link in &self.links {
                link.cut();
            }
        }
    }
}

pub(super) fn trouble(error: &RedisError) -> Trouble {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => {
            Trouble::ReadOnly
        }
        ErrorKind::Server(ServerErrorKind::BusyLoading) => Trouble::Loading,
        _ if error.code() == Some("OOM") => Trouble::Full,
        ErrorKind::ClusterConnectionNotFound => Trouble::Unreachable,
        ErrorKind::Io => Trouble::Broken,
        _ if error.is_unrecoverable_error() => Trouble::Broken,
        _ => Trouble::Refused,
    }
}

/// All of them at once.
pub(super) async fn all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pending: Vec<Pin<Box<_>>> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<T>> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in pending.iter_mut().zip(&mut done) {
            if done.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *done = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

impl Wire {
    /// Some other command, as the background uses them.
    pub(super) async fn tell(&mut self, words: &[&str]) -> redis::RedisResult<Value> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        self.call(&command).await
    }
}
