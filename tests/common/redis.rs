//! A redis-server of our own, on a free port, in a folder of its own; gone when dropped.

use super::eventually;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub struct Redis {
    process: Option<Child>,
    pub port: u16,
    pub folder: TempDir,
    arguments: Vec<String>,
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

impl Redis {
    /// A server that keeps nothing.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(arguments: &[&str]) -> Self {
        for _ in 0..10 {
            let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
            let folder = tempfile::tempdir().expect("a temporary folder");
            let mut redis = Self { process: None, port: free_port(), folder, arguments };
            if redis.spawn() {
                return redis;
            }
        }
        panic!("redis-server does not start: is it installed? (scripts/test-deps.sh)");
    }

    fn spawn(&mut self) -> bool {
        let mut process = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.folder.path())
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed (scripts/test-deps.sh)");
        for _ in 0..1000 {
            if self.answers() {
                self.process = Some(process);
                return true;
            }
            if process.try_wait().expect("a process").is_some() {
                return false; // somebody was quicker to take the port
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = process.kill();
        let _ = process.wait();
        false
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address()) else { return false };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        let mut answer = [0; 1];
        stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut answer).is_ok()
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// On the same port again.
    pub fn restart(&mut self) {
        self.kill();
        eventually("redis-server again", || self.spawn().then_some(()));
    }

    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let done = Command::new("kill").args([name, &pid]).status().expect("kill");
        assert!(done.success());
    }

    /// Runs a command and returns its reply.
    pub fn run<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let client = redis::Client::open(self.url()).expect("a URL");
        let mut connection = client.get_connection().expect("redis-server answers");
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query(&mut connection).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.signal("-CONT");
        }
        self.kill();
    }
}
