//! `store`: where counters live, and what happens when that is away.

use super::edge::{positive, share};
use super::listeners::file;
use super::model::{OnFailure, RedisServers, RedisTls, RedisUrl, Saved, Sentinel, SharedStore};
use super::read::{Context, Fields, Read, one_of, parsed, text};
use super::section::{Bare, Grammar};
use super::sections::store::{BREAKER, MEMORY, REDIS, REDIS_TLS, SENTINEL, STORE};
use super::tree::{Kind, Node};
use redis::IntoConnectionInfo;
use std::path::Path;
use std::time::Duration;

/// What the section says.
pub(super) struct Store {
    pub(super) max_keys: usize,
    pub(super) saved: Option<Saved>,
    pub(super) shared: Option<SharedStore>,
}

impl Default for Store {
    fn default() -> Self {
        Self { max_keys: 1_000_000, saved: None, shared: None }
    }
}

pub(super) const FAILURES: [(&str, OnFailure); 3] =
    [("local", OnFailure::Local), ("allow", OnFailure::Allow), ("reject", OnFailure::Reject)];

/// `on_failure`, of the store or of one limit.
pub(super) fn on_failure(node: &Node, cx: &mut Context<'_>) -> Option<OnFailure> {
    one_of(node, cx, "something to do while the store is away", &FAILURES)
}

impl Read for Store {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let Kind::Map(_) = node.kind else {
            if text(node, cx, "a store")? == "redis" {
                let help = "store: { redis: { url: redis://127.0.0.1:6379 } }".to_owned();
                cx.error_with_help(node, "where is it?", help);
                return None;
            }
            return one_of(node, cx, "a store", &[("memory", ())]).map(|()| Self::default());
        };
        let fields = Fields::of(node, &STORE, cx)?;
        let mut store = Self::default();
        let (memory, redis) = (fields.get("memory"), fields.get("redis"));
        if let Some(node) = memory
            && let Some(fields) = Fields::of(node, &MEMORY, cx)
        {
            if let Some(node) = fields.get("max_keys")
                && let Some(max_keys) = usize::read(node, cx)
            {
                store.max_keys = max_keys;
                if max_keys < 1000 {
                    cx.error(node, "at least 1000 keys");
                }
            }
            store.saved = saved(&fields, cx);
        }
        if let (Some(_), Some(node)) = (memory, redis) {
            cx.error(node, "counters live in memory or in Redis, not in both");
        }
        let away = [fields.get("on_failure"), fields.get("local_share")];
        if let (None, Some(node)) = (redis, away.into_iter().flatten().next()) {
            cx.error(node, "the memory store is never away");
        }
        let on_failure = away[0].and_then(|node| on_failure(node, cx));
        let local_share = away[1].and_then(|node| {
            let share = share(node, cx)?;
            if share == 0.0 {
                cx.error_with_help(node, "a share of nothing", "on_failure: reject".to_owned());
            }
            Some(share)
        });
        if let Some(node) = redis {
            let shared = shared(node, cx)?;
            store.shared = Some(SharedStore {
                on_failure: on_failure.unwrap_or_default(),
                local_share: local_share.unwrap_or(0.2),
                max_keys: store.max_keys,
                ..shared
            });
        }
        Some(store)
    }
}

pub(super) static PREFIX: Grammar =
    Grammar::new("[!-z|~]{1,40}", "up to 40 visible ASCII characters, without '{' and '}'")
        .bare(Bare::Any);

/// `store.redis`.
fn shared(node: &Node, cx: &mut Context<'_>) -> Option<SharedStore> {
    let fields = Fields::of(node, &REDIS, cx)?;
    let places = [fields.get("url"), fields.get("cluster"), fields.get("sentinel")];
    let servers = match places {
        [Some(node), None, None] => RedisUrl::read(node, cx).map(RedisServers::One),
        [None, Some(node), None] => {
            let urls: Vec<RedisUrl> = Vec::read(node, cx)?;
            if urls.is_empty() {
                cx.error(node, "at least one node of the cluster");
            }
            Some(RedisServers::Cluster(urls))
        }
        [None, None, Some(node)] => Sentinel::read(node, cx).map(RedisServers::Sentinel),
        [None, None, None] => {
            cx.error(node, "the Redis store needs 'url', 'cluster' or 'sentinel'");
            None
        }
        _ => {
            cx.error(node, "one of 'url', 'cluster' and 'sentinel'");
            None
        }
    };
    let prefix = fields.get("prefix").and_then(|node| {
        parsed(node, cx, "a prefix", |text| {
            let plain = |c: char| c.is_ascii_graphic() && !"{}".contains(c);
            let fits = !text.is_empty() && text.len() <= 40 && text.chars().all(plain);
            fits.then(|| text.to_owned()).ok_or_else(|| PREFIX.help.to_owned())
        })
    });
    let timeout = positive(&fields, "timeout", cx, Duration::from_millis(50));
    let (failures, probe_after) = fields
        .get("breaker")
        .and_then(|node| {
            let fields = Fields::of(node, &BREAKER, cx)?;
            let failures = fields.get("failures").and_then(|node| {
                let count = u32::read(node, cx)?;
                if count == 0 {
                    cx.error(node, "at least one failure");
                }
                Some(count)
            });
            let probe_after = positive(&fields, "probe_after", cx, Duration::from_secs(1));
            Some((failures.unwrap_or(5), probe_after))
        })
        .unwrap_or((5, Duration::from_secs(1)));
    let tls = fields.get("tls").and_then(|node| {
        let secure = |url: &RedisUrl| url.as_str().starts_with("rediss:");
        let anywhere = match &servers {
            None => true, // has been reported
            Some(RedisServers::One(url)) => secure(url),
            Some(RedisServers::Cluster(urls)) => urls.iter().all(secure),
            Some(RedisServers::Sentinel(s)) => s.tls || s.nodes.iter().all(secure),
        };
        if !anywhere {
            cx.error_with_help(node, "nothing here speaks TLS", "rediss://".to_owned());
        }
        tls(node, cx)
    });
    let prefix = prefix.unwrap_or_else(|| "sluice".to_owned());
    let default = SharedStore::at(servers?);
    Some(SharedStore { tls, prefix, timeout, failures, probe_after, ..default })
}

pub(super) static REDIS_URL: Grammar = Grammar::new(
    r"(rediss?|unix|redis\+unix)://[\s\S]+",
    "it looks like redis://127.0.0.1:6379, or rediss:// for TLS",
);

impl Read for RedisUrl {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        parsed(node, cx, "a Redis URL", |text| {
            let known = ["redis://", "rediss://", "unix://", "redis+unix://"];
            let help = REDIS_URL.help;
            if !known.iter().any(|scheme| text.starts_with(scheme)) {
                return Err(help.to_owned());
            }
            text.into_connection_info().map_err(|_| help.to_owned())?;
            Ok(Self::new(text))
        })
    }
}

impl Read for Sentinel {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &SENTINEL, cx)?;
        let master = fields.read("master", cx);
        let nodes: Option<Vec<RedisUrl>> = fields.read("nodes", cx);
        if nodes.as_ref().is_some_and(Vec::is_empty) {
            cx.error(node, "at least one Sentinel");
        }
        let (username, password) = (fields.read("username", cx), fields.read("password", cx));
        let database: Option<u32> = fields.read("database", cx);
        let tls = fields.read("tls", cx).unwrap_or(false);
        let database = database.unwrap_or(0).into();
        Some(Self { master: master?, nodes: nodes?, username, password, database, tls })
    }
}

/// Certificates for `rediss://`, where the system's do not do.
fn tls(node: &Node, cx: &mut Context<'_>) -> Option<RedisTls> {
    let fields = Fields::of(node, &REDIS_TLS, cx)?;
    let file =
        |name: &'static str, cx: &mut Context<'_>| fields.get(name).and_then(|node| file(node, cx));
    let (ca, cert, key) = (file("ca", cx), file("cert", cx), file("key", cx));
    if cert.is_some() != key.is_some() {
        cx.error(node, "a certificate of our own needs both 'cert' and 'key'");
    }
    Some(RedisTls { ca, client: cert.zip(key) })
}

/// What is written replaces what is there: that must be nothing that somebody needs.
pub(super) fn check_written(path: &Path, what: &str, node: &Node, cx: &mut Context<'_>) {
    let real = |path: &Path| path.canonicalize().ok();
    let here = real(path);
    let main = cx.folder.join(Path::new(&cx.source.name).file_name().unwrap_or_default());
    let is_ours = cx.files.paths().chain([&*main]).any(|file| real(file) == here);
    if path.is_dir() || here.is_some() && is_ours {
        let message = format!("{what} would replace a file of the configuration, or is a folder");
        cx.error_with_help(node, message, "choose another name".to_owned());
    }
}

/// Where counters survive a restart.
fn saved(fields: &Fields<'_>, cx: &mut Context<'_>) -> Option<Saved> {
    let (snapshot, every) = (fields.get("snapshot"), fields.get("snapshot_every"));
    let Some(snapshot) = snapshot else {
        if let Some(node) = every {
            cx.error(node, "without a 'snapshot' there is nothing to write");
        }
        return None;
    };
    let path = text(snapshot, cx, "a file")?;
    if path.is_empty() || path.ends_with('/') {
        cx.error(snapshot, "a snapshot is written to a file, this names none");
        return None;
    }
    let every = match every {
        None => Duration::from_secs(30),
        Some(node) => {
            let every = Duration::read(node, cx)?;
            if every < Duration::from_secs(1) {
                cx.error(node, "at least 1s");
            }
            every
        }
    };
    Some(Saved { path: cx.resolve(path), every })
}
