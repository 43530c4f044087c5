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
            .args(["--repl-diskless-sync-delay", "0"])
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

/// Primaries that share the slots evenly, and replicas of them.
pub struct Cluster {
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// So many primaries, each with so many replicas.
    pub fn start(primaries: usize, replicas: usize) -> Self {
        let node = || {
            let bus = free_port().to_string();
            let timeout = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
            let mut arguments = timeout.to_vec();
            arguments.extend(["--cluster-port", &bus]);
            Redis::start_with(&arguments)
        };
        let nodes: Vec<Redis> = (0..primaries * (1 + replicas)).map(|_| node()).collect();
        for (index, node) in nodes.iter().take(primaries).enumerate() {
            let (from, to) = (16384 * index / primaries, 16384 * (index + 1) / primaries - 1);
            let range = [from.to_string(), to.to_string()];
            node.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]);
        }
        let bus = |node: &Redis| {
            let at = node.arguments.iter().position(|word| word == "--cluster-port").unwrap();
            node.arguments[at + 1].clone()
        };
        for node in &nodes[1..] {
            let port = node.port.to_string();
            nodes[0].run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus(node)]);
        }
        let knows_all = |node: &Redis| {
            let info: String = node.run(&["CLUSTER", "INFO"]);
            info.contains(&format!("cluster_known_nodes:{}", nodes.len()))
        };
        eventually("a cluster that knows itself", || nodes.iter().all(knows_all).then_some(()));
        for (index, replica) in nodes.iter().enumerate().skip(primaries) {
            let id: String = nodes[index % primaries].run(&["CLUSTER", "MYID"]);
            replica.run::<()>(&["CLUSTER", "REPLICATE", &id]);
        }
        for replica in &nodes[primaries..] {
            eventually("a replica in step", || {
                let info: String = replica.run(&["INFO", "replication"]);
                info.contains("master_link_status:up").then_some(())
            });
        }
        let cluster = Self { nodes };
        cluster.wait();
        cluster
    }

    /// Until all nodes that run say that all is well.
    pub fn wait(&self) {
        eventually("a cluster in order", || {
            let well = |node: &Redis| {
                let info: String = node.run(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok")
            };
            self.nodes.iter().filter(|node| node.process.is_some()).all(well).then_some(())
        });
    }

    /// As `gateway.yaml` has it.
    pub fn store(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(|node| format!("'{}'", node.url())).collect();
        format!("{{ redis: {{ cluster: [{}] }} }}", urls.join(", "))
    }
}

/// A primary, a replica, and a Sentinel that watches over them.
pub struct Watched {
    pub primary: Redis,
    pub replica: Redis,
    sentinel: Redis,
}

impl Watched {
    pub fn start() -> Self {
        let primary = Redis::start();
        let port = primary.port.to_string();
        let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]);
        eventually("a replica in step", || {
            let info: String = primary.run(&["INFO", "replication"]);
            info.contains("state=online").then_some(())
        });
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("sentinel.conf");
        let text = format!(
            "sentinel monitor mymaster 127.0.0.1 {port} 1\n\
             sentinel down-after-milliseconds mymaster 500\n\
             sentinel failover-timeout mymaster 3000\n"
        );
        std::fs::write(&file, text).expect("a file");
        let sentinel_port = free_port();
        let process = Command::new("redis-server")
            .arg(&file)
            .args(["--sentinel", "--port", &sentinel_port.to_string()])
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let sentinel =
            Redis { process: Some(process), port: sentinel_port, folder, arguments: Vec::new() };
        eventually("the Sentinel", || sentinel.answers().then_some(()));
        eventually("a replica that is known", || {
            let known: Vec<redis::Value> = sentinel.run(&["SENTINEL", "REPLICAS", "mymaster"]);
            (known.len() == 1).then_some(())
        });
        Self { primary, replica, sentinel }
    }

    /// As `gateway.yaml` has it.
    pub fn store(&self) -> String {
        let url = self.sentinel.url();
        format!("{{ redis: {{ sentinel: {{ master: mymaster, nodes: ['{url}'] }} }} }}")
    }

    /// Which port the Sentinel says is the primary's.
    pub fn primary_port(&self) -> u16 {
        let address: Vec<String> =
            self.sentinel.run(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
        address[1].parse().expect("a port")
    }

    pub fn run_sentinel(&self, words: &[&str]) {
        self.sentinel.run::<redis::Value>(words);
    }
}
