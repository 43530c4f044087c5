//! Gateways that share their counters through Redis.

mod drills;
mod exactness;
mod parity;
mod places;

use crate::common::redis::Redis;
use crate::common::{Backend, Gateway};

/// A gateway's file: one catch-all route with these limits, and this store.
pub fn sharing(backend: &Backend, store: &str, limits: &str) -> String {
    format!(
        "headers: {{ retry_jitter: 0% }}\nlogging: {{ access: off }}\nadmin: 127.0.0.1:0\n\
         identity: {{ trusted_proxies: [127.0.0.1], user: {{ header: X-User-Id }} }}\n\
         store: {store}\nupstreams: {{ app: 'http://{}' }}\n\
         routes:\n  - path: /\n    name: all-paths\n    upstream: app\n    limits: {limits}\n",
        backend.address()
    )
}

/// `store:` on one server, which may take its time: a gateway that waits no longer than the default
/// deadline decides alone on a busy machine, and tests of counting are not about that.
pub fn on(redis: &Redis) -> String {
    patient(&with_deadline(redis))
}

/// `store:` on one server, with the default deadline.
pub fn with_deadline(redis: &Redis) -> String {
    format!("{{ redis: {{ url: '{}' }} }}", redis.url())
}

/// The same store with more time than it could need.
pub fn patient(store: &str) -> String {
    store.replacen("redis: {", "redis: { timeout: 10s,", 1)
}

/// So many gateways with the same file.
pub fn fleet(count: usize, yaml: &str) -> Vec<Gateway> {
    (0..count).map(|_| Gateway::start_in_real_time(yaml)).collect()
}

/// A number from the metrics page.
pub fn metric(gateway: &Gateway, name: &str) -> u64 {
    let page = crate::common::Connection::to_operator(gateway.admin()).get("/metrics");
    let line = page.text().lines().find(|line| line.starts_with(&format!("{name} ")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// The real binary, killed when dropped.
pub struct Process(std::process::Child);

impl Process {
    pub fn start(path: &std::path::Path, stderr: std::process::Stdio) -> Self {
        let child = std::process::Command::new(env!("CARGO_BIN_EXE_sluice"))
            .arg("run")
            .arg("-c")
            .arg(path)
            .stdout(std::process::Stdio::null())
            .stderr(stderr)
            .spawn();
        Self(child.expect("the binary runs"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
