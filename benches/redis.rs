//! What a shared store costs Redis itself: CPU time of one decision, and memory of one counter.
//!
//! `cargo bench --bench redis` starts a redis-server of its own, and needs `/proc`.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark speaks for itself")]

use sluice::clock::{Clock, SECOND};
use sluice::config::model::{RedisServers, RedisUrl, SharedStore};
use sluice::limit::{Quota, Rate};
use sluice::metrics::StoreMetrics;
use sluice::overrides::{Bans, Overrides};
use sluice::store::{Charge, LimitId, Part, Redis, Store, Subject};
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How many decisions are asked for at the same time.
const AT_ONCE: usize = 64;
const DECISIONS: usize = 100_000;
const CALLERS: u32 = 100_000;

struct Server {
    process: Child,
    port: u16,
    _held: Socket,
}

impl Server {
    fn start() -> Self {
        // Bound, not listening: the port is nobody else's, and redis-server may listen on it.
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        held.set_reuse_address(true).unwrap();
        held.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        let port = held.local_addr().unwrap().as_socket().unwrap().port();
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { process, port, _held: held }
    }

    /// CPU time so far, in microseconds.
    fn cpu(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10_000
    }

    fn ask(&self, words: &[&str]) -> String {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query(&mut client.get_connection().unwrap()).unwrap()
    }

    fn memory(&self) -> u64 {
        let info = self.ask(&["INFO", "memory"]);
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One decision of a caller over all limits.
async fn decide(store: &Store, quota: &Quota, limits: &[LimitId], caller: u32) {
    let parts = [Part::Ip(Ipv4Addr::from(caller).into())];
    let mut charges: Vec<_> =
        limits.iter().map(|limit| Charge::new(*limit, quota, Subject(&parts))).collect();
    let decision = store.charge_all(&mut charges, Clock::system().now()).await.unwrap();
    assert!(decision.rejected_by.is_none());
}

/// `count` decisions, many at a time, of callers one after the other.
async fn decisions(store: &Arc<Store>, quota: &Quota, limits: &[LimitId], count: usize, of: u32) {
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|task| {
            let (store, quota, limits) = (Arc::clone(store), quota.clone(), limits.to_vec());
            tokio::spawn(async move {
                for number in (task..count).step_by(AT_ONCE) {
                    decide(&store, &quota, &limits, number as u32 % of).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

fn adopt(store: &Store, quota: &Quota, limits: &[LimitId]) {
    store.adopt(limits.iter().map(|limit| (*limit, [quota.clone()].into())).collect());
}

fn main() {
    let server = Server::start();
    let url = format!("redis://127.0.0.1:{}", server.port);
    let options = SharedStore {
        timeout: Duration::from_secs(10),
        ..SharedStore::at(RedisServers::One(RedisUrl::new(&url)))
    };
    let store = Redis::new(
        options,
        1,
        Clock::system(),
        Arc::new(StoreMetrics::new(1)),
        Arc::new(Overrides::new(Clock::system(), Bans::default())),
    );
    let store = Arc::new(Store::Redis(store));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let rate = Rate { count: 1_000_000_000, window: 3600 * SECOND };
    let small = Rate { count: 10_000, window: SECOND / 100 };
    let quotas = [
        ("token_bucket", Quota::token_bucket(rate, None).unwrap()),
        ("fixed_window", Quota::fixed_window(rate).unwrap()),
        ("sliding_window", Quota::sliding_window(rate).unwrap()),
        ("sliding_log", Quota::sliding_log(small).unwrap()),
    ];
    println!(
        "{:<16}{:>8}{:>26}{:>22}",
        "", "layers", "µs of Redis a decision", "decisions/s and core"
    );
    for (name, quota) in &quotas {
        for layers in [1, 3, 5] {
            let limits: Vec<_> =
                (0..layers).map(|n| store.limit_id(&format!("{name}-{layers}-{n}"))).collect();
            adopt(&store, quota, &limits);
            runtime.block_on(decisions(&store, quota, &limits, 2000, 1000));
            let before = server.cpu();
            runtime.block_on(decisions(&store, quota, &limits, DECISIONS, 1000));
            let each = (server.cpu() - before) as f64 / DECISIONS as f64;
            println!("{name:<16}{layers:>8}{each:>26.1}{:>22.0}", 1e6 / each);
        }
    }
    // Counters that stay for a day.
    let slow = Quota::token_bucket(Rate { count: 100, window: 86_400 * SECOND }, None).unwrap();
    let limit = store.limit_id("per-ip");
    adopt(&store, &slow, &[limit]);
    let before = server.memory();
    runtime.block_on(decisions(&store, &slow, &[limit], CALLERS as usize, CALLERS));
    let each = (server.memory() - before) as f64 / f64::from(CALLERS);
    println!("{each:.0} bytes a counter, at {CALLERS} callers by address");
}
