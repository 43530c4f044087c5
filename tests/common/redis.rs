//! A redis-server of our own, on a port and in a folder of its own; gone when dropped.

use super::{HeldPort, eventually};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub struct Redis {
    process: Option<Child>,
    pub port: u16,
    pub folder: TempDir,
    arguments: Vec<String>,
    /// Held from before it starts, so no other program can take the port, not even during a restart.
    held: HeldPort,
    /// The port of the cluster bus, in a cluster.
    bus: Option<HeldPort>,
}

impl Redis {
    /// A server that keeps nothing.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        Self::launch(arguments, None)
    }

    /// A node of a cluster. It does not know the others yet.
    fn start_node() -> Self {
        let bus = HeldPort::new();
        let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let mut arguments: Vec<String> = arguments.map(str::to_owned).into();
        arguments.extend(["--cluster-port".to_owned(), bus.port().to_string()]);
        Self::launch(arguments, Some(bus))
    }

    fn launch(arguments: Vec<String>, bus: Option<HeldPort>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let held = HeldPort::new();
        let mut redis = Self { process: None, port: held.port(), folder, arguments, held, bus };
        redis.spawn();
        redis
    }

    /// Starts the process, and returns when it answers.
    fn spawn(&mut self) {
        let log = self.folder.path().join("log");
        let output = std::fs::File::create(&log).expect("a file");
        let process = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(["--repl-diskless-sync-delay", "0"])
            .arg("--dir")
            .arg(self.folder.path())
            .args(&self.arguments)
            .stdout(output)
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed (scripts/test-deps.sh)");
        self.process = Some(process);
        eventually("redis-server", || {
            let ended = self.process.as_mut().and_then(|process| process.try_wait().ok()?);
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(ended.is_none(), "redis-server ended: {}", said());
            self.answers().then_some(())
        });
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
        self.spawn();
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
        let nodes: Vec<Redis> =
            (0..primaries * (1 + replicas)).map(|_| Redis::start_node()).collect();
        for (index, node) in nodes.iter().take(primaries).enumerate() {
            let (from, to) = (16384 * index / primaries, 16384 * (index + 1) / primaries - 1);
            let range = [from.to_string(), to.to_string()];
            node.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]);
        }
        for node in &nodes[1..] {
            let bus = node.bus.as_ref().expect("a node of a cluster").port().to_string();
            let port = node.port.to_string();
            nodes[0].run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
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
        let held = HeldPort::new();
        let process = Command::new("redis-server")
            .arg(&file)
            .args(["--sentinel", "--port", &held.port().to_string()])
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let (process, port, arguments) = (Some(process), held.port(), Vec::new());
        let sentinel = Redis { process, port, folder, arguments, held, bus: None };
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
