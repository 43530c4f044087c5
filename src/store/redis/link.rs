//! Connections to the store. A link is one of them: made in the background, shared by many decisions
//! at once, and made anew after whatever broke it.
//!
//! Each worker has links of its own, so that a decision does not change threads; more than one, so
//! that one slow reply does not stall the rest.

use super::Trouble;
use crate::clock::Micros;
use crate::config::model::{RedisServers, RedisTls, RedisUrl, SharedStore};
use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, RedisResult, Value};
use redis::{ClientTlsConfig, TlsCertificates, TlsMode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// How long after a failed attempt the next one is made, in microseconds.
const RETRY: Micros = 100_000;

/// How long an attempt may take.
const CONNECT: Duration = Duration::from_secs(1);

/// Commands that may be on their way to the socket.
const QUEUE: usize = 4096;

/// A connection.
#[derive(Clone)]
pub(super) enum Wire {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Wire {
    pub(super) async fn call(&mut self, command: &Cmd) -> RedisResult<Value> {
        let reply = match self {
            Self::One(connection) => connection.send_packed_command(command).await,
            Self::Cluster(connection) => connection.req_packed_command(command).await,
        };
        reply?.extract_error()
    }
}

#[derive(Default)]
enum Slot {
    #[default]
    Empty,
    /// The last attempt failed; the next one is made no sooner than this.
    Failed(Micros),
    Connecting,
    /// Since when.
    Ready(Wire, Micros),
}

/// What was last said of an attempt that failed; all links say the same only once.
pub(super) type Complaint = Arc<Mutex<Option<String>>>;

/// One connection, or the attempt to have one.
pub(super) struct Link {
    complaint: Complaint,
    slot: Mutex<Slot>,
    changed: Notify,
    /// Decisions that wait for its replies.
    waiting: AtomicUsize,
}

impl Link {
    pub(super) fn new(complaint: &Complaint) -> Self {
        let (slot, changed, waiting) = Default::default();
        Self { complaint: Arc::clone(complaint), slot, changed, waiting }
    }

    /// The connection; waits for one that is being made. The caller has a deadline.
    pub(super) async fn wire(
        self: &Arc<Self>,
        store: &Arc<SharedStore>,
        now: Micros,
    ) -> Result<Wire, Trouble> {
        loop {
            let changed = self.changed.notified();
            {
                let mut slot = self.slot.lock();
                match &*slot {
                    Slot::Ready(wire, _) => return Ok(wire.clone()),
                    Slot::Failed(until) if now < *until => return Err(Trouble::Untried),
                    Slot::Connecting => {}
                    Slot::Empty | Slot::Failed(_) => {
                        *slot = Slot::Connecting;
                        tokio::spawn(Arc::clone(self).connect(Arc::clone(store), now));
                    }
                }
            }
            changed.await;
            if matches!(*self.slot.lock(), Slot::Failed(_)) {
                return Err(Trouble::Unreachable);
            }
        }
    }

    async fn connect(self: Arc<Self>, store: Arc<SharedStore>, now: Micros) {
        // If the worker ends meanwhile, nobody is left waiting.
        let mut attempt = Attempt { link: &self, outcome: Slot::Failed(now + RETRY) };
        match tokio::time::timeout(2 * CONNECT, connected(&store)).await {
            Ok(Ok(wire)) => {
                attempt.outcome = Slot::Ready(wire, now);
                *self.complaint.lock() = None;
            }
            Ok(Err(error)) => self.complain(error.to_string()),
            Err(_) => self.complain("it takes too long".to_owned()),
        }
    }

    fn complain(&self, error: String) {
        let mut complaint = self.complaint.lock();
        if complaint.as_ref() != Some(&error) {
            tracing::warn!("cannot connect to the store: {error}");
            *complaint = Some(error);
        }
    }

    /// Forgets the connection: it is broken, or leads to the wrong place.
    pub(super) fn cut(&self) {
        let mut slot = self.slot.lock();
        if matches!(*slot, Slot::Ready(..)) {
            *slot = Slot::Empty;
        }
    }

    /// The same, if it was made before then.
    pub(super) fn cut_if_older(&self, then: Micros) {
        let mut slot = self.slot.lock();
        if matches!(*slot, Slot::Ready(_, since) if since < then) {
            *slot = Slot::Empty;
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts as waiting until dropped.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.waiting)
    }
}

pub(super) struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Attempt<'a> {
    link: &'a Link,
    outcome: Slot,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        *self.link.slot.lock() = std::mem::take(&mut self.outcome);
        self.link.changed.notify_waiters();
    }
}

/// A peer that is gone without a word is noticed.
fn tcp() -> TcpSettings {
    let alive = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(2))
        .with_retries(3);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(alive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(5));
    settings
}

fn certificates(tls: &RedisTls) -> TlsCertificates {
    let client_tls = tls
        .client
        .as_ref()
        .map(|(cert, key)| ClientTlsConfig { client_cert: cert.clone(), client_key: key.clone() });
    TlsCertificates { client_tls, root_cert: tls.ca.clone() }
}

/// Connects, to whatever is the primary now.
async fn connected(store: &SharedStore) -> RedisResult<Wire> {
    // Which crypto there is has to be said once in a process; whoever was first is right.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT))
        // Decisions have deadlines of their own.
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE);
    let client = match &store.servers {
        RedisServers::One(url) => {
            let info = url.as_str().into_connection_info()?.set_tcp_settings(tcp());
            match &store.tls {
                Some(tls) => Client::build_with_tls(info, certificates(tls))?,
                None => Client::open(info)?,
            }
        }
        RedisServers::Cluster(urls) => {
            let nodes: Vec<&str> = urls.iter().map(RedisUrl::as_str).collect();
            let mut builder = ClusterClientBuilder::new(nodes)
                .tcp_settings(tcp())
                .connection_timeout(CONNECT)
                .overall_response_timeout(None)
                .retries(3)
                .min_retry_wait(5)
                .max_retry_wait(100);
            if let Some(tls) = &store.tls {
                builder = builder.certs(certificates(tls));
            }
            return builder.build()?.get_async_connection().await.map(Wire::Cluster);
        }
        RedisServers::Sentinel(sentinel) => {
            let nodes: RedisResult<Vec<_>> =
                sentinel.nodes.iter().map(|url| url.as_str().into_connection_info()).collect();
            let nodes = nodes?;
            let of_sentinels = nodes.first().map(|node| node.redis_settings().clone());
            let addresses = nodes.iter().map(|node| node.addr().clone());
            let mut builder = SentinelClientBuilder::new(
                addresses,
                &sentinel.master,
                SentinelServerType::Master,
            )?;
            if let Some(settings) = of_sentinels {
                if let Some(user) = settings.username() {
                    builder = builder.set_client_to_sentinel_username(user);
                }
                if let Some(password) = settings.password() {
                    builder = builder.set_client_to_sentinel_password(password);
                }
            }
            if let Some(user) = &sentinel.username {
                builder = builder.set_client_to_redis_username(user);
            }
            if let Some(password) = &sentinel.password {
                builder = builder.set_client_to_redis_password(password);
            }
            builder = builder
                .set_client_to_redis_db(sentinel.database)
                .set_client_to_redis_tcp_settings(tcp());
            if sentinel.tls {
                builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
            }
            if let Some(tls) = store.tls.as_ref().filter(|_| sentinel.tls) {
                builder = builder.set_client_to_redis_certificates(certificates(tls));
            }
            let secure = |url: &RedisUrl| url.as_str().starts_with("rediss:");
            if let Some(tls) = store.tls.as_ref().filter(|_| sentinel.nodes.iter().all(secure)) {
                builder = builder.set_client_to_sentinel_certificates(certificates(tls));
            }
            builder.build()?.async_get_client().await?
        }
    };
    client.get_multiplexed_async_connection_with_config(&config).await.map(Wire::One)
}
