//! Checks: endpoints are asked whether they are well, each by a task of its own on the control
//! thread, over a new connection every time.
//!
//! The first check decides at once; after that it takes several in a row. An endpoint that is out is
//! asked more often, so that it is back within the configured interval. No two endpoints, and no two
//! gateways, ask in step for long.

use super::Upstream;
use super::answer;
use super::connect::{ConnectError, dial};
use super::endpoint::Endpoint;
use crate::config::model::Health;
use crate::gateway::Gateway;
use crate::socket::Socket;
use bytes::BytesMut;
use http::{Request, StatusCode};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{sleep, timeout};

/// Nobody is asked more often than this.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// How far an interval may be off.
const JITTER: f64 = 0.1;

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("no answer: {0}")]
    Io(#[from] std::io::Error),
    #[error("no answer: {0}")]
    Http2(#[from] h2::Error),
    #[error(transparent)]
    Garbled(#[from] answer::AnswerError),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("no answer in time")]
    TimedOut,
}

/// A check that runs.
struct Watch {
    upstream: Arc<Upstream>,
    endpoint: Arc<Endpoint>,
    task: AbortHandle,
}

impl Watch {
    /// Whether nothing has changed that it goes by.
    fn is_for(&self, upstream: &Upstream) -> bool {
        let (mine, theirs) = (&self.upstream.config, &upstream.config);
        (&mine.health, mine.timeouts.connect) == (&theirs.health, theirs.timeouts.connect)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Has every endpoint watched whose upstream says so, for as long as it is polled.
pub async fn follow(gateway: Arc<Gateway>) {
    let mut watches: HashMap<u64, Watch> = HashMap::new();
    loop {
        let changed = gateway.changed.notified();
        let mut before = std::mem::take(&mut watches);
        for upstream in &gateway.snapshot.load_full().upstreams {
            for endpoint in &upstream.members.load().endpoints {
                let watch = before.remove(&endpoint.id);
                let Some(health) = upstream.config.health.clone() else {
                    endpoint.recovered(gateway.clock.now()); // nobody would ever say so
                    continue;
                };
                let watch = watch.filter(|watch| watch.is_for(upstream)).unwrap_or_else(|| {
                    let (upstream, endpoint) = (Arc::clone(upstream), Arc::clone(endpoint));
                    let watching = watch_over(
                        Arc::clone(&gateway),
                        Arc::clone(&upstream),
                        Arc::clone(&endpoint),
                        health,
                    );
                    Watch { upstream, endpoint, task: spawn_local(watching).abort_handle() }
                });
                watches.insert(watch.endpoint.id, watch);
            }
        }
        drop(before);
        changed.await;
    }
}

/// Asks one endpoint again and again.
async fn watch_over(
    gateway: Arc<Gateway>,
    upstream: Arc<Upstream>,
    endpoint: Arc<Endpoint>,
    health: Health,
) {
    // Soon, but not all of them at the same moment.
    sleep(health.every.min(Duration::from_secs(1)).mul_f64(fastrand::f64() * JITTER)).await;
    let counters = &upstream.metrics;
    let (mut passed, mut failed) = (0, 0);
    loop {
        let first = !endpoint.was_checked();
        let outcome = timeout(health.timeout, check(&upstream, &endpoint, &health)).await;
        match outcome.unwrap_or(Err(CheckError::TimedOut)) {
            Ok(()) => {
                (passed, failed) = (passed + 1, 0);
                let enough = first || passed >= health.healthy_after;
                if enough && endpoint.recovered(gateway.clock.now()) {
                    tracing::info!("{} of '{}' is well again", endpoint.name, upstream.name());
                }
            }
            // It was not asked at all.
            Err(CheckError::Connect(error)) if error.is_ours() => {
                tracing::warn!("{} cannot be checked: {error}", endpoint.name);
            }
            Err(error) => {
                counters.checks_failed.increment();
                (passed, failed) = (0, failed + 1);
                let enough = first || failed >= health.unhealthy_after;
                if enough && endpoint.fell_ill() {
                    let (name, of) = (&endpoint.name, upstream.name());
                    tracing::warn!("{name} of '{of}' is not well, and is not asked: {error}");
                }
            }
        }
        let pause = if endpoint.is_unhealthy() {
            (health.every / (health.healthy_after + 1)).max(LEAST_PAUSE)
        } else {
            health.every
        };
        sleep(pause.mul_f64(1.0 - JITTER + 2.0 * JITTER * fastrand::f64())).await;
    }
}

/// One question over a connection of its own.
async fn check(
    upstream: &Upstream,
    endpoint: &Endpoint,
    health: &Health,
) -> Result<(), CheckError> {
    let socket = timeout(upstream.config.timeouts.connect, dial(upstream, endpoint)).await;
    let socket = socket.map_err(|_| ConnectError::TimedOut)??;
    let own = || format!("{}:{}", endpoint.host, endpoint.port);
    let host = health.host.clone().unwrap_or_else(own);
    let status = if upstream.config.http2 {
        ask_over_http2(socket, upstream.config.tls.is_some(), &host, &health.path).await?
    } else {
        ask(socket, &host, &health.path).await?
    };
    let well = status.is_success() || status.is_redirection();
    if well { Ok(()) } else { Err(CheckError::Status(status)) }
}

async fn ask(mut socket: Socket, host: &str, path: &str) -> Result<StatusCode, CheckError> {
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: sluice-health\r\nconnection: close\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await?;
    socket.flush().await?;
    let mut buffer = BytesMut::with_capacity(4096);
    let mut interims = 0;
    loop {
        if socket.read_buf(&mut buffer).await? == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        while let Some(head) = answer::parse(&mut buffer, false)? {
            if !head.status.is_informational() {
                return Ok(head.status);
            }
            interims += 1;
            if interims > answer::MAX_INTERIMS {
                return Err(answer::AnswerError::TooManyInterims.into());
            }
        }
    }
}

async fn ask_over_http2(
    socket: Socket,
    https: bool,
    host: &str,
    path: &str,
) -> Result<StatusCode, CheckError> {
    /// Ends the connection when the answer is there, or nobody waits for it any more.
    struct Driver(AbortHandle);
    impl Drop for Driver {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let (send, connection) = h2::client::handshake(socket).await?;
    let _driver = Driver(spawn_local(async move { drop(connection.await) }).abort_handle());
    let scheme = if https { "https" } else { "http" };
    let request = Request::get(format!("{scheme}://{host}{path}"))
        .header("user-agent", "sluice-health")
        .body(())
        .map_err(|_| h2::Error::from(h2::Reason::INTERNAL_ERROR))?;
    let (response, _) = send.ready().await?.send_request(request, true)?;
    Ok(response.await?.status())
}
