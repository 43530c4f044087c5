//! A gateway with some of everything, and the traffic it has. What its page must say then is in `expected`.

use super::page::{Page, ask};
use crate::common::backend::ok;
use crate::common::pki::Authority;
use crate::common::{Backend, Connection, Gateway, HeldPort, Reply, eventually};
use jsonwebtoken::{EncodingKey, Header, encode};
use sluice::overload::memory::Memory;
use std::io::Write;
use std::sync::mpsc::{Sender, channel};

const SECRET: &str = "a secret that is long enough for HS256";

/// A gateway with some of everything, and all that it talks to.
pub struct World {
    pub gateway: Gateway,
    pub backend: Backend,
    pub failing: Backend,
    pub held: Backend,
    let_go: Sender<()>,
    pub sick: Backend,
    pub dead: HeldPort,
    collector: Backend,
    folder: tempfile::TempDir,
    pub yaml: String,
}

impl World {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        authority.issue_until(&["a.test"], 2100).write(folder.path(), "a");
        authority.issue_until(&["a.test"], 2090).write(folder.path(), "b");
        std::fs::write(folder.path().join("memory.max"), "1000000\n").unwrap();
        std::fs::write(folder.path().join("memory.current"), "250000\n").unwrap();
        let failing = Backend::answering(|_| b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n".into());
        let sick = Backend::answering(|_| b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n".into());
        let (let_go, wait) = channel();
        let wait = parking_lot::Mutex::new(wait);
        let held = Backend::with(move |_, stream| {
            wait.lock().recv().is_ok() && stream.write_all(&ok("hello")).is_ok()
        });
        let (backend, dead, collector) = (Backend::start(), HeldPort::new(), Backend::start());
        let digest = |key: &str| sluice::digest::sha256_hex(key.as_bytes());
        let at = folder.path().display();
        let yaml = format!(
            "
listen:
  - 127.0.0.1:0
  - address: 127.0.0.2:0
    tls: {{ certificates: [{{ cert: {at}/a.pem, key: {at}/a.key }}, {{ cert: {at}/b.pem, key: {at}/b.key }}] }}
admin: {{ address: '127.0.0.1:0', token: s3cret }}
headers: {{ retry_jitter: 0% }}
store: {{ memory: {{ max_keys: 5000 }} }}
telemetry: {{ otlp: 'http://{}' }}
server: {{ max_body_bytes: 1KiB, max_uri_bytes: 256 }}
overload: {{ max_in_flight: 100, max_lag: none }}
identity:
  trusted_proxies: [127.0.0.1]
  user: {{ jwt: {{ secret: '{SECRET}', plan_claim: plan }} }}
  api_key:
    keys:
      - {{ id: acme, sha256: {}, plan: pro }}
      - {{ id: small, sha256: {}, plan: free }}
plans: {{ free: {{ rate: 2/hour }}, pro: {{ rate: 5/hour }} }}
default_plan: free
exempt: {{ ips: [198.51.100.0/24] }}
limits:
  - {{ name: per-ip, by: ip, rate: 1000/month }}
  - {{ name: quota, by: api_key, rate: plan }}
  - {{ name: tighter, by: ip, rate: 3/hour, mode: shadow }}
upstreams:
  app: http://{}
  broken: {{ endpoints: ['http://{dead}'], eject: off, retries: off }}
  failing: {{ endpoints: ['http://{}'], eject: off, retries: off }}
  held: {{ endpoints: ['http://{}'], concurrency: {{ max: 1, queue: 0 }} }}
  sick: {{ endpoints: ['http://{}'], health: {{ path: /health, every: 100ms, unhealthy_after: 1 }} }}
  two: {{ endpoints: ['http://{dead}', 'http://{}'], balance: round_robin, eject: off, retries: {{ budget: 100% }} }}
routes:
  - {{ name: app, path: /app/*, upstream: app }}
  - name: login
    path: /login
    upstream: app
    limits: [{{ name: login, by: ip, rate: 2/hour, penalty: {{ after: 2 rejects in 1h, for: 10m }} }}]
  - name: priced
    path: /priced
    upstream: app
    limits: [{{ name: cost, by: ip, rate: 100/hour, cost: {{ response_header: X-Cost, reserve: 2 }} }}]
  - {{ name: broken, path: /broken, upstream: broken }}
  - {{ name: failing, path: /failing, upstream: failing }}
  - {{ name: held, path: /held, upstream: held }}
  - {{ name: sick, path: /sick, upstream: sick }}
  - {{ name: two, path: /two, upstream: two }}
",
            collector.address(),
            digest("acme-key"),
            digest("small-key"),
            backend.address(),
            failing.address(),
            held.address(),
            sick.address(),
            backend.address(),
            dead = dead.address(),
        );
        let memory = Memory::find("0::/", folder.path());
        let gateway = Gateway::start_adjusted(&yaml, |options| options.memory = memory);
        Self { gateway, backend, failing, held, let_go, sick, dead, collector, folder, yaml }
    }

    fn send(
        &self,
        ip: &str,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let headers: Vec<_> = [("x-forwarded-for", ip)].iter().chain(more).copied().collect();
        self.gateway.send(method, path, &headers, body)
    }

    fn statuses(&self, ip: &str, path: &str, more: &[(&str, &str)], count: usize) -> Vec<u16> {
        (0..count).map(|_| self.send(ip, "GET", path, more, b"").status).collect()
    }

    pub fn page(&self) -> Page {
        Page::scrape(&self.gateway)
    }

    /// 35 requests of all kinds. Every line says what becomes of them.
    pub fn traffic(&self) {
        let acme = [("x-api-key", "acme-key")];
        let small = [("x-api-key", "small-key")];
        assert_eq!(
            self.statuses("192.0.2.1", "/app/x", &acme, 7),
            [200, 200, 200, 200, 200, 429, 429]
        );
        assert_eq!(self.statuses("192.0.2.2", "/app/x", &small, 3), [200, 200, 429]);
        assert_eq!(self.statuses("198.51.100.7", "/app/x", &[], 2), [200, 200], "exempt");
        assert_eq!(self.statuses("192.0.2.3", "/nowhere", &[], 1), [404]);
        assert_eq!(self.statuses("192.0.2.4", "/login", &[], 4), [200, 200, 429, 429]);
        assert_eq!(self.statuses("192.0.2.4", "/app/x", &[], 1), [429], "banned");
        assert_eq!(self.statuses("192.0.2.5", "/broken", &[], 1), [502]);
        assert_eq!(self.statuses("192.0.2.5", "/failing", &[], 2), [500, 500]);
        let twice = b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n";
        assert_eq!(self.gateway.raw(twice).status, 400);
        assert_eq!(self.statuses("192.0.2.6", "/app/x", &[("x-api-key", "guess")], 1), [401]);
        let large = self.send("192.0.2.6", "POST", "/app/x", &[], &[b'x'; 2000]);
        assert_eq!(large.status, 413);
        let long = format!("/app/{}", "x".repeat(300));
        assert_eq!(self.statuses("192.0.2.6", &long, &[], 1), [414]);
        assert_eq!(self.statuses("192.0.2.7", "/sick", &[], 1), [503], "no endpoint in service");
        assert_eq!(self.statuses("192.0.2.8", "/priced", &[], 1), [200], "its cost is not told");
        let claims = serde_json::json!({ "sub": "ada", "plan": "gold" });
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        let token = format!("Bearer {}", encode(&Header::default(), &claims, &key).unwrap());
        let ada = [("authorization", token.as_str())];
        assert_eq!(self.statuses("192.0.2.10", "/app/x", &ada, 1), [200], "of an unknown plan");
        assert_eq!(self.statuses("192.0.2.11", "/two", &[], 4), [200; 4], "one endpoint is dead");
        let ban = "{\"caller\": \"ip:192.0.2.9\", \"for\": \"1h\"}";
        assert_eq!(ask(&self.gateway, "POST", "/api/v1/bans", ban).status, 200);
        assert_eq!(self.statuses("192.0.2.9", "/app/x", &[], 1), [429], "banned by the operator");
        let grant = "{\"caller\": \"api_key:acme\", \"rate\": \"x2\", \"for\": \"1h\"}";
        assert_eq!(ask(&self.gateway, "POST", "/api/v1/grants", grant).status, 200);
        let wrong = [("authorization", "Bearer wrong")];
        let mut operator = Connection::to_operator(self.gateway.admin());
        assert_eq!(operator.send("GET", "/metrics", &wrong, b"").status, 401);
    }

    /// One request is under way, and another finds no place.
    pub fn one_is_held(&self) {
        let mut first = self.gateway.connect();
        first.write(b"GET /held HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.8\r\n\r\n");
        eventually("the request at the backend", || (self.held.count() == 1).then_some(()));
        assert_eq!(self.statuses("192.0.2.8", "/held", &[], 1), [503], "no place");
        let endpoint = format!("{{upstream=\"held\",endpoint=\"{}\"}}", self.held.address());
        let held = eventually("the others' connections gone", || {
            Some(self.page()).filter(|page| page.get("sluice_connections") == Some(1.0))
        });
        for (sample, value) in [
            ("sluice_requests_in_flight", 1.0),
            ("sluice_upstream_places_taken{upstream=\"held\"}", 1.0),
            (&format!("sluice_endpoint_requests_in_flight{endpoint}"), 1.0),
        ] {
            assert_eq!(held.get(sample), Some(value), "{sample}");
        }
        self.let_go.send(()).unwrap();
        assert_eq!(first.read_reply("GET").status, 200);
    }
}
