//! What the tests are made of: a gateway on port 0, a backend on a real socket that records what
//! it sees, and a client that reads answers byte by byte.

pub mod backend;
pub mod client;
pub mod examples;
pub mod faulty;
pub mod held;
pub mod http2;
pub mod load;
pub mod operator;
pub mod pki;
pub mod redis;

pub use backend::Backend;
pub use client::{Connection, Reply};
pub use held::HeldPort;

use parking_lot::Mutex;
use sluice::clock::Clock;
use sluice::overload::memory::Memory;
use sluice::server::{Error, Options, Server};
use sluice::upstream::names::Resolver;
use std::collections::HashMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// When the manual clock of the tests begins: 2024-02-08T22:50:00Z.
pub const START: u64 = 1_707_432_600_000_000;

/// Names and where they are.
pub type Names = Arc<Mutex<HashMap<String, Vec<IpAddr>>>>;

/// A gateway under test, with a folder and a clock of its own.
pub struct Gateway {
    server: Option<Server>,
    pub folder: TempDir,
    pub clock: Clock,
    pub log: Sink,
}

/// An access log that can be read.
#[derive(Clone, Default)]
pub struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Sink {
    /// The lines written so far, each a JSON object.
    pub fn lines(&self) -> Vec<serde_json::Value> {
        let bytes = self.0.lock().clone();
        let lines = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("a line is JSON")).collect()
    }

    /// Everything written so far.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).expect("text")
    }

    /// Waits until there are `count` lines.
    pub fn wait_for(&self, count: usize) -> Vec<serde_json::Value> {
        eventually("log lines", || Some(self.lines()).filter(|lines| lines.len() >= count))
    }
}

impl Gateway {
    /// Starts on a YAML text. `listen` is put in front if the text has none.
    pub fn start(yaml: &str) -> Self {
        Self::try_start(yaml, Clock::manual(START), |_| {}).expect("the gateway starts")
    }

    /// Starts by the system's clock, for what has to happen in real time.
    pub fn start_in_real_time(yaml: &str) -> Self {
        Self::try_start(yaml, Clock::system(), |_| {}).expect("the gateway starts")
    }

    /// Starts by a clock of the test's own.
    pub fn start_by(yaml: &str, clock: Clock) -> Self {
        Self::try_start(yaml, clock, |_| {}).expect("the gateway starts")
    }

    /// Starts after files have been put into its folder.
    pub fn start_with(yaml: &str, prepare: impl FnOnce(&Path)) -> Self {
        Self::try_start(yaml, Clock::manual(START), prepare).expect("the gateway starts")
    }

    /// Starts with names of its own, which can change.
    pub fn start_with_names(yaml: &str, names: &Names) -> Self {
        let resolver = Resolver::Table(Arc::clone(names));
        Self::start_adjusted(yaml, |options| options.resolver = resolver)
    }

    /// Starts with other options than usual.
    pub fn start_adjusted(yaml: &str, adjust: impl FnOnce(&mut Options)) -> Self {
        let (clock, prepare) = (Clock::manual(START), |_: &Path| {});
        Self::try_start_with(yaml, clock, prepare, adjust).expect("the gateway starts")
    }

    fn try_start(yaml: &str, clock: Clock, prepare: impl FnOnce(&Path)) -> Result<Self, Error> {
        Self::try_start_with(yaml, clock, prepare, |_| {})
    }

    fn try_start_with(
        yaml: &str,
        clock: Clock,
        prepare: impl FnOnce(&Path),
        adjust: impl FnOnce(&mut Options),
    ) -> Result<Self, Error> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        prepare(folder.path());
        let path = folder.path().join("gateway.yaml");
        std::fs::write(&path, complete(yaml)).expect("the file can be written");
        let log = Sink::default();
        let mut options = Options {
            workers: Some(2),
            clock: clock.clone(),
            access_log: Box::new(log.clone()),
            memory: Memory::default(), // what else runs here is none of the test's business
            ..Options::new(&path)
        };
        adjust(&mut options);
        let server = Server::start(options)?;
        Ok(Self { server: Some(server), folder, clock, log })
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("not stopped yet")
    }

    /// The first address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.server().addresses()[0]
    }

    pub fn admin(&self) -> SocketAddr {
        self.server().admin_address().expect("an admin listener")
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("gateway.yaml")
    }

    /// Writes the file as an editor would, and leaves the rest to the watcher.
    pub fn write(&self, yaml: &str) {
        std::fs::write(self.path(), complete(yaml)).expect("the file can be written");
    }

    /// Writes the file and reloads it now.
    pub fn reload(&self, yaml: &str) -> Result<(), Error> {
        self.write(yaml);
        self.server().reload()
    }

    pub fn generation(&self) -> u64 {
        self.server().gateway().snapshot.load().generation
    }

    /// Moves the limits' time on.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.address())
    }

    /// One request on a connection of its own.
    pub fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[])
    }

    pub fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.send("GET", path, headers, b"")
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.connect().send(method, path, headers, body)
    }

    /// Raw bytes on a connection of their own, and the first answer.
    pub fn raw(&self, bytes: &[u8]) -> Reply {
        let mut connection = self.connect();
        connection.write(bytes);
        connection.read_reply("GET")
    }

    /// Statuses of so many requests for the same path.
    pub fn statuses(&self, path: &str, headers: &[(&str, &str)], count: usize) -> Vec<u16> {
        (0..count).map(|_| self.get_with(path, headers).status).collect()
    }

    pub fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// With a listener on port 0 unless the text has one.
pub fn complete(yaml: &str) -> String {
    if yaml.contains("listen:") { yaml.to_owned() } else { format!("listen: 127.0.0.1:0\n{yaml}") }
}

/// A configuration with one catch-all route and these limits on it.
pub fn limited(backend: &Backend, limits: &str) -> String {
    let address = backend.address();
    format!(
        "headers: {{ retry_jitter: 0% }}\nupstreams: {{ app: 'http://{address}' }}\nroutes:\n  - path: /\n    name: all-paths\n    upstream: app\n    limits: {limits}\n"
    )
}

/// A configuration with one catch-all route and no limits.
pub fn open(backend: &Backend) -> String {
    limited(backend, "[]")
}

/// How long something may take that happens on its own. Only a test that fails waits for so long.
const CEILING: Duration = Duration::from_secs(60);

/// Tries until there is an answer; only for what happens on its own, such as a watched file.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = attempt() {
            return answer;
        }
        assert!(began.elapsed() < CEILING, "{what} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}
