//! Signals, with the real binary: what is in flight is finished.

use crate::common::{Backend, Connection, HeldPort, complete, eventually, open};
use std::io::{BufRead, BufReader, Lines, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// The real binary, ended with the test.
pub struct Process {
    pub child: Child,
    /// The first that it listens on.
    pub address: SocketAddr,
    pub addresses: Vec<SocketAddr>,
    pub admin: Option<SocketAddr>,
    /// What it said until it was ready.
    pub said: Vec<String>,
    folder: Option<tempfile::TempDir>,
}

impl Process {
    pub fn start(yaml: &str) -> Self {
        Self::with_stderr(yaml, |lines| drop(std::thread::spawn(move || lines.for_each(drop))))
    }

    /// On a port that the test holds, so that a refused connection there means that it has ended.
    pub fn on(port: &HeldPort, yaml: &str) -> Self {
        Self::start(&format!("listen: {}\n{yaml}", port.address()))
    }

    /// `rest` gets what comes on stderr after the gateway has said that it is ready.
    pub fn with_stderr(yaml: &str, rest: impl FnOnce(Lines<BufReader<ChildStderr>>)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("gateway.yaml"), complete(yaml)).unwrap();
        Self::start_in(folder, rest)
    }

    /// With the files that are there.
    pub fn start_in(
        folder: tempfile::TempDir,
        rest: impl FnOnce(Lines<BufReader<ChildStderr>>),
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.args(["run", "-c", "gateway.yaml"]).stdout(Stdio::null());
        Self::launch(folder, &mut command, rest)
    }

    /// By a command of the caller's own, in the folder.
    pub fn launch(
        folder: tempfile::TempDir,
        command: &mut Command,
        rest: impl FnOnce(Lines<BufReader<ChildStderr>>),
    ) -> Self {
        let command = command.current_dir(folder.path()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said: Vec<String> = Vec::new();
        while !said.last().is_some_and(|line| line.ends_with(" ready")) {
            let line = lines.next().unwrap_or_else(|| panic!("it does not start: {said:#?}"));
            said.push(line.unwrap());
        }
        rest(lines);
        let after = |words| said.iter().filter_map(move |line: &String| line.split_once(words));
        let addresses: Vec<SocketAddr> =
            after(" listening on ").map(|(_, address)| address.parse().unwrap()).collect();
        let admin = after(" admin on ").map(|(_, address)| address.parse().unwrap()).next();
        let folder = Some(folder);
        Self { child, address: addresses[0], addresses, admin, said, folder }
    }

    pub fn folder(&self) -> &std::path::Path {
        self.folder.as_ref().unwrap().path()
    }

    /// Ends it by a signal, and returns its files.
    pub fn end(mut self, signal: &str) -> tempfile::TempDir {
        self.signal(signal);
        self.child.wait().unwrap();
        self.folder.take().unwrap()
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers `done`, as often as it is told to.
fn held() -> (Backend, Sender<()>) {
    let (go, on_go) = channel();
    let on_go = parking_lot::Mutex::new(on_go);
    let backend = Backend::with(move |_, stream| {
        on_go.lock().recv().is_ok()
            && std::io::Write::write_all(stream, &crate::common::backend::ok("done")).is_ok()
    });
    (backend, go)
}

#[test]
fn where_it_listens_is_said_before_it_is_ready() {
    let backend = Backend::start();
    let listen = "listen: [127.0.0.1:0, 127.0.0.2:0, 127.0.0.1:0]\nadmin: 127.0.0.1:0\n";
    let process = Process::start(&format!("{listen}{}", open(&backend)));
    for address in &process.addresses {
        assert_eq!(Connection::open(*address).get("/").status, 200);
    }
    let ips: Vec<_> = process.addresses.iter().map(|address| address.ip().to_string()).collect();
    assert_eq!(ips, ["127.0.0.1", "127.0.0.2", "127.0.0.1"], "in the order of the file");
    assert_eq!(Connection::to_operator(process.admin.unwrap()).get("/livez").status, 200);
}

#[test]
fn a_signal_finishes_what_is_in_flight_and_exits_0() {
    for signal in ["-TERM", "-INT"] {
        let (backend, go) = held();
        let port = HeldPort::new();
        let mut process = Process::on(&port, &open(&backend));
        let mut idle = Connection::open(process.address);
        let mut busy = Connection::open(process.address);
        busy.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        eventually("the request", || (backend.seen().len() == 1).then_some(()));
        process.signal(signal);
        eventually("the listener's end", || port.is_refused().then_some(()));
        assert!(idle.is_closed());
        go.send(()).unwrap();
        let reply = busy.read_reply("GET");
        assert_eq!((reply.text(), reply.header("connection")), ("done", Some("close")));
        assert!(process.child.wait().unwrap().success());
    }
}

#[test]
fn what_does_not_finish_in_time_is_cut_and_a_second_signal_ends_at_once() {
    let (backend, _never) = held();
    for second in [false, true] {
        let grace = if second { "30s" } else { "300ms" };
        let port = HeldPort::new();
        let yaml = format!("server: {{ shutdown_grace: {grace} }}\n{}", open(&backend));
        let mut process = Process::on(&port, &yaml);
        let before = backend.seen().len();
        let mut busy = Connection::open(process.address);
        busy.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        eventually("the request", || (backend.seen().len() > before).then_some(()));
        let began = Instant::now();
        process.signal("-TERM");
        if second {
            eventually("the drain", || port.is_refused().then_some(()));
            process.signal("-TERM");
        }
        assert!(process.child.wait().unwrap().success());
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        assert!(busy.try_reply("GET").is_none());
    }
}

/// Whoever reads the diagnostics may go away, or never come: callers do not notice.
#[test]
fn a_stderr_that_nobody_reads_harms_nobody() {
    let backend = Backend::start();
    let mut process = Process::with_stderr(&open(&backend), drop);
    let path = process.folder().join("gateway.yaml");
    let good = std::fs::read_to_string(&path).unwrap();
    let status = |path: &str| Connection::open(process.address).get(path).status;
    for round in 0..3 {
        std::fs::write(&path, "nonsense").unwrap();
        process.signal("-HUP");
        std::fs::write(&path, good.replace("path: /\n", &format!("path: /{round}\n"))).unwrap();
        process.signal("-HUP");
        eventually("the reload", || (status(&format!("/{round}")) == 200).then_some(()));
    }
    process.signal("-TERM");
    assert!(process.child.wait().unwrap().success());
}

#[test]
fn requests_that_have_arrived_when_the_signal_comes_are_answered() {
    let backend = Backend::start();
    let process = Process::start(&open(&backend));
    let mut connections: Vec<_> = (0..40).map(|_| Connection::open(process.address)).collect();
    for connection in connections.iter_mut().take(20) {
        connection.get("/"); // idle and kept alive; the others are fresh
    }
    for connection in &mut connections {
        connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    process.signal("-TERM");
    for connection in &mut connections {
        assert_eq!(connection.read_reply("GET").status, 200);
    }
}

#[test]
fn sighup_reloads() {
    let backend = Backend::start();
    let process = Process::start(&open(&backend));
    let status = |path: &str| Connection::open(process.address).get(path).status;
    assert_eq!(status("/x"), 200);
    let path = process.folder().join("gateway.yaml");
    let text = std::fs::read_to_string(&path).unwrap().replace("path: /\n", "path: /only\n");
    std::fs::write(&path, text).unwrap();
    process.signal("-HUP");
    eventually("the reload", || (status("/x") == 404).then_some(()));
    assert_eq!(status("/only"), 200);
}

#[test]
fn a_gateway_that_stops_is_no_longer_ready() {
    let (backend, go) = held();
    let gateway = crate::common::Gateway::start(&format!("admin: 127.0.0.1:0\n{}", open(&backend)));
    let (address, admin) = (gateway.address(), gateway.admin());
    let mut busy = Connection::open(address);
    busy.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    eventually("the request", || (backend.seen().len() == 1).then_some(()));
    let stopping = std::thread::spawn(move || gateway.stop());
    eventually("the end of readiness", || {
        (Connection::to_operator(admin).get("/readyz").status == 503).then_some(())
    });
    assert_eq!(Connection::to_operator(admin).get("/livez").status, 200);
    go.send(()).unwrap();
    assert_eq!(busy.read_reply("GET").text(), "done");
    stopping.join().unwrap();
}

/// A body of 1 GiB passes up and down while the gateway's memory stays below 64 MiB.
#[test]
fn a_huge_body_passes_both_ways_in_little_memory() {
    const GIB: usize = 1 << 30;
    let backend = huge_backend();
    let yaml = format!(
        "server: {{ max_body_bytes: none }}\nupstreams: {{ app: 'http://{backend}' }}\nroutes: [{{ path: /, upstream: app }}]\n"
    );
    let process = Process::start(&yaml);
    let mut connection = Connection::open(process.address);
    connection
        .write(format!("POST /up HTTP/1.1\r\nhost: a\r\ncontent-length: {GIB}\r\n\r\n").as_bytes());
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..GIB / piece.len() {
        connection.write(&piece);
    }
    assert_eq!(connection.read_reply("POST").text(), GIB.to_string());
    connection.write(b"GET /down HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(connection.head().unwrap().status, 200);
    let mut left = GIB - connection.buffered();
    let mut bytes = vec![0; 1 << 20];
    while left > 0 {
        let count = connection.stream.read(&mut bytes).unwrap();
        assert!(count > 0);
        left -= count;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 64 << 10, "{kib} KiB at its peak");
}

/// Counts what it is sent, and sends a gibibyte, holding neither.
fn huge_backend() -> SocketAddr {
    const GIB: usize = 1 << 30;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::with_capacity(1 << 20, stream.try_clone().unwrap());
        let mut stream = stream;
        let skip_head = |reader: &mut BufReader<std::net::TcpStream>| {
            let mut line = String::new();
            while reader.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
        };
        skip_head(&mut reader);
        let mut left = GIB;
        while left > 0 {
            let available = reader.fill_buf().unwrap().len().min(left);
            reader.consume(available);
            left -= available;
        }
        std::io::Write::write_all(&mut stream, &crate::common::backend::ok(&GIB.to_string()))
            .unwrap();
        skip_head(&mut reader);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {GIB}\r\n\r\n");
        std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..GIB / piece.len() {
            std::io::Write::write_all(&mut stream, &piece).unwrap();
        }
    });
    address
}
