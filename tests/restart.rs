//! `store.memory.snapshot`: a restart forgives nothing. With the real binary.

use crate::common::{Backend, Connection, HeldPort, eventually, limited};
use crate::stopping::Process;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

fn yaml(backend: &Backend, every: &str) -> String {
    let log = "{ name: b, by: ip, rate: 9/day, algorithm: sliding_log }";
    let limits = format!("[{{ name: a, by: ip, rate: 3/hour }}, {log}]");
    let store = format!("store: {{ memory: {{ snapshot: state/limits.bin{every} }} }}\n");
    store + &limited(backend, &limits)
}

fn statuses(process: &Process, count: usize) -> Vec<u16> {
    let mut connection = Connection::open(process.address);
    (0..count).map(|_| connection.get("/").status).collect()
}

fn quiet(lines: impl Iterator + Send + 'static) {
    std::thread::spawn(move || lines.for_each(drop));
}

#[test]
fn counters_survive_a_restart() {
    let backend = Backend::start();
    let process = Process::start(&yaml(&backend, ""));
    assert_eq!(statuses(&process, 2), [200, 200]);
    let folder = process.end("-TERM");
    let file = fs::metadata(folder.path().join("state/limits.bin")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600, "it holds a secret");
    let process = Process::start_in(folder, quiet);
    assert_eq!(statuses(&process, 3), [200, 429, 429]);
    // And once more: what was loaded is saved again.
    let process = Process::start_in(process.end("-INT"), quiet);
    assert_eq!(statuses(&process, 1), [429]);
}

#[test]
fn counters_are_saved_every_so_often_for_those_who_are_killed() {
    let backend = Backend::start();
    let process = Process::start(&yaml(&backend, ", snapshot_every: 1s"));
    assert_eq!(statuses(&process, 3), [200, 200, 200]);
    let file = process.folder().join("state/limits.bin");
    // Two writings have begun after the requests.
    for _ in 0..2 {
        let before = fs::metadata(&file).and_then(|file| file.modified()).ok();
        eventually("it is written", || {
            let now = fs::metadata(&file).and_then(|file| file.modified()).ok();
            (now != before).then_some(())
        });
    }
    let process = Process::start_in(process.end("-KILL"), quiet);
    assert_eq!(statuses(&process, 1), [429]);
}

#[test]
fn a_damaged_snapshot_is_reported_and_ignored() {
    let backend = Backend::start();
    let process = Process::start(&yaml(&backend, ""));
    assert_eq!(statuses(&process, 3), [200, 200, 200]);
    let folder = process.end("-TERM");
    let file = folder.path().join("state/limits.bin");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    let process = Process::start_in(folder, quiet);
    assert_eq!(statuses(&process, 1), [200], "it runs all the same");
    let expected =
        "limits.bin is not used, counters begin anew: it is damaged: its checksum is wrong";
    assert!(process.said.iter().any(|line| line.contains(expected)), "{:#?}", process.said);
}

/// A gateway that took over from another one; ended with the test.
struct Successor(String);

impl Drop for Successor {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kill").args(["-KILL", &self.0]).status();
    }
}

/// Sends requests over one new connection after the other, until it is told to stop. Says how many.
fn busy(address: std::net::SocketAddr, stop: &AtomicBool) -> usize {
    let mut count = 0;
    while !stop.load(Ordering::SeqCst) {
        let mut connection = Connection::open(address);
        assert_eq!(connection.get("/").status, 200);
        // The second may meet a gateway that is about to end, which says so in the first answer or
        // by closing; it is not lost by that.
        count += 1;
    }
    count
}

#[test]
fn a_new_process_takes_over_without_a_refused_connection() {
    let backend = Backend::start();
    let (tell, told) = std::sync::mpsc::channel();
    let port = HeldPort::new();
    let (address, open) = (port.address(), crate::common::open(&backend));
    let yaml = format!("listen: {address}\nadmin: 127.0.0.1:0\n{open}");
    let mut process = Process::with_stderr(&yaml, |lines| {
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("process ") {
                    let pid = rest.split(' ').next().unwrap().to_owned();
                    tell.send(Successor(pid)).unwrap();
                }
            }
        });
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| busy(process.address, &stop))).collect();
        let mut slow = Connection::open(process.address);
        slow.write(b"GET /slow HTTP/1.1\r\nhost: a\r\n"); // half a head
        process.signal("-USR2");
        let successor = told.recv_timeout(std::time::Duration::from_secs(30));
        // Asserted at the end, so that the callers are told to stop.
        slow.write(b"\r\n");
        let answered = slow.try_reply("GET").map(|reply| reply.status);
        let ended = process.child.wait().map(|status| status.success());
        let before = backend.count();
        eventually("requests to the new one", || (backend.count() > before + 20).then_some(()));
        stop.store(true, Ordering::SeqCst);
        let counts: Vec<usize> = callers.into_iter().map(|c| c.join().unwrap()).collect();
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        assert_eq!((answered, ended.ok()), (Some(200), Some(true)));
        assert!(successor.is_ok());
        // It obeys signals as the first one did.
        let Successor(pid) = successor.as_ref().unwrap();
        assert!(
            std::process::Command::new("kill").args(["-TERM", pid]).status().unwrap().success()
        );
        eventually("the end of the second", || port.is_refused().then_some(()));
    });
}

#[test]
fn a_successor_that_does_not_start_changes_nothing() {
    let backend = Backend::start();
    let (tell, told) = std::sync::mpsc::channel();
    let process = Process::with_stderr(&crate::common::open(&backend), |lines| {
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| drop(tell.send(line)));
        });
    });
    std::fs::write(process.folder().join("gateway.yaml"), "listen: nowhere").unwrap();
    process.signal("-USR2");
    let mut lines =
        std::iter::from_fn(|| told.recv_timeout(std::time::Duration::from_secs(30)).ok());
    assert!(lines.any(|line| line.contains("this process goes on")));
    assert_eq!(Connection::open(process.address).get("/").status, 200);
}

#[test]
fn a_handover_forgives_nothing() {
    let backend = Backend::start();
    let (tell, told) = std::sync::mpsc::channel();
    let mut process = Process::with_stderr(&yaml(&backend, ""), |lines| {
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("process ") {
                    tell.send(Successor(rest.split(' ').next().unwrap().to_owned())).unwrap();
                }
            }
        });
    });
    assert_eq!(statuses(&process, 2), [200, 200]);
    process.signal("-USR2");
    let _successor = told.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
    assert!(process.child.wait().unwrap().success());
    assert_eq!(statuses(&process, 3), [200, 429, 429]);
}

#[test]
fn a_socket_that_was_passed_on_is_used() {
    use command_fds::{CommandFdExt, FdMapping};
    let backend = Backend::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.yaml");
    fs::write(&path, format!("listen: {address}\n{}", crate::common::open(&backend))).unwrap();
    // Somebody connects before anybody accepts: they wait, and are answered.
    let mut early = Connection::open(address);
    early.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["run", "-c"]).arg(&path).env("LISTEN_FDS", "1");
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mapping = FdMapping { parent_fd: listener.try_clone().unwrap().into(), child_fd: 3 };
    command.fd_mappings(vec![mapping]).unwrap();
    let mut child = command.spawn().unwrap();
    assert_eq!(early.try_reply("GET").map(|reply| reply.status), Some(200));
    child.kill().unwrap();
    child.wait().unwrap();
    // It is still there for the next one.
    assert!(std::net::TcpStream::connect(address).is_ok());
}
