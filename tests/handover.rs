//! A new process takes over (SIGUSR2): what the operator was told is done stays done, and so does what
//! penalties say. With the real binary.

use crate::common::operator::Operator;
use crate::common::{Backend, Connection, HeldPort, eventually, limited, open};
use crate::stopping::Process;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// How long a handover may take. Only a test that fails waits for so long.
const CEILING: Duration = Duration::from_secs(60);

/// A gateway, the processes that take over from it, and what all of them say.
pub struct Generations {
    pub first: Process,
    /// The last of them, once there was a handover.
    last: Option<Successor>,
    lines: Receiver<String>,
}

/// A process that took over; it ends with the test.
struct Successor(u32);

impl Drop for Successor {
    fn drop(&mut self) {
        signal(self.0, "-KILL");
    }
}

fn signal(process: u32, name: &str) {
    let _ = std::process::Command::new("kill").args([name, &process.to_string()]).status();
}

/// Whether a process is there, and no zombie.
fn lives(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

impl Generations {
    pub fn start(yaml: &str) -> Self {
        let (tell, lines) = std::sync::mpsc::channel();
        let first = Process::with_stderr(yaml, |all| {
            std::thread::spawn(move || {
                all.map_while(Result::ok).for_each(|line| drop(tell.send(line)));
            });
        });
        Self { first, last: None, lines }
    }

    /// The process that serves.
    pub fn id(&self) -> u32 {
        self.last.as_ref().map_or(self.first.child.id(), |successor| successor.0)
    }

    /// Waits for a line with these words.
    pub fn wait_for(&self, words: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(CEILING).unwrap_or_else(|_| panic!("no '{words}'"));
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Starts a successor and waits until it has taken over. The process before it may live on.
    pub fn hand_over(&mut self) -> u32 {
        let before = self.id();
        signal(before, "-USR2");
        let line = self.wait_for("has taken over");
        let (_, rest) = line.split_once("process ").unwrap();
        let successor = Successor(rest.split(' ').next().unwrap().parse().unwrap());
        // The one before ends by itself.
        std::mem::forget(self.last.replace(successor));
        before
    }
}

/// An operator's requests to whichever process listens there.
struct Steady(SocketAddr);

impl Steady {
    /// `None`: refused for now, or the connection went with its process.
    fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let mut connection = Connection::to_operator(self.0);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.0,
            body.len()
        );
        connection.write(format!("{head}{body}").as_bytes());
        let reply = connection.try_reply(method)?;
        if reply.status == 503 {
            assert_eq!(reply.number("retry-after"), 1, "{reply:?}");
            return None;
        }
        Some((reply.status, serde_json::from_slice(&reply.body).ok()?))
    }

    fn page(&self, path: &str, list: &str) -> BTreeSet<String> {
        let page = eventually(path, || self.ask("GET", path, ""));
        let all = page.1[list].as_array().unwrap().iter();
        all.map(|entry| entry["caller"].as_str().unwrap().to_owned()).collect()
    }
}

/// What the operator was told is done: who is banned or has a grant, and who no longer.
#[derive(Default)]
struct Acknowledged {
    there: BTreeSet<String>,
    gone: BTreeSet<String>,
}

/// Adds an entry per round, and takes every second one back, until it is told to stop. `rounds` counts.
fn act(
    operator: &Steady,
    path: &str,
    more: &str,
    rounds: &AtomicUsize,
    stop: &AtomicBool,
) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    for n in 0_u32.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let caller = format!("ip:10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255);
        let body = format!("{{\"caller\": \"{caller}\", \"for\": \"1h\"{more}}}");
        let Some((status, _)) = operator.ask("POST", path, &body) else { continue };
        assert_eq!(status, 200);
        rounds.fetch_add(1, Ordering::SeqCst);
        acknowledged.there.insert(caller.clone());
        if n % 2 == 0 {
            // What is asked for and not answered may be done, or not.
            acknowledged.there.remove(&caller);
            let query = format!("{path}?caller={caller}");
            if let Some((status, _)) = operator.ask("DELETE", &query, "") {
                assert_eq!(status, 200, "{caller}");
                acknowledged.gone.insert(caller);
            }
        }
    }
    acknowledged
}

#[test]
fn what_the_operator_was_told_is_done_survives_handovers() {
    let backend = Backend::start();
    let (port, admin) = (HeldPort::new(), HeldPort::new());
    let limits = "[{ name: x, by: ip, rate: 4/hour }]";
    let yaml = format!(
        "listen: {}\nadmin: {}\nserver: {{ shutdown_grace: 1s }}\n{}",
        port.address(),
        admin.address(),
        limited(&backend, limits)
    );
    let mut gateway = Generations::start(&yaml);
    let (stop, operator) = (AtomicBool::new(false), Steady(admin.address()));
    let rounds = [AtomicUsize::new(0), AtomicUsize::new(0)];
    std::thread::scope(|scope| {
        let bans = scope.spawn(|| act(&operator, "/api/v1/bans", "", &rounds[0], &stop));
        let grants = scope
            .spawn(|| act(&operator, "/api/v1/grants", ", \"rate\": \"x2\"", &rounds[1], &stop));
        for round in 1..=4 {
            eventually("acts", || {
                rounds.iter().all(|count| count.load(Ordering::SeqCst) >= 10 * round).then_some(())
            });
            let before = gateway.hand_over();
            eventually("the end of the one before", || {
                let _ = gateway.first.child.try_wait();
                (!lives(before)).then_some(())
            });
        }
        stop.store(true, Ordering::SeqCst);
        for (acknowledged, kind) in
            [(bans.join().unwrap(), "bans"), (grants.join().unwrap(), "grants")]
        {
            assert!(acknowledged.there.len() > 10 && acknowledged.gone.len() > 5);
            let now = operator.page(&format!("/api/v1/{kind}"), kind);
            let lost: Vec<_> = acknowledged.there.difference(&now).collect();
            let back: Vec<_> = acknowledged.gone.intersection(&now).collect();
            assert!(lost.is_empty() && back.is_empty(), "{kind}: lost {lost:?}, back {back:?}");
        }
    });
}

#[test]
fn what_a_caller_has_used_stays_forgotten() {
    const CALLERS: usize = 200;
    let backend = Backend::start();
    let (port, admin) = (HeldPort::new(), HeldPort::new());
    let yaml = format!(
        "listen: {}\nadmin: {}\nstore: {{ memory: {{ snapshot: limits.bin }} }}\nidentity: {{ trusted_proxies: [127.0.0.1] }}\n{}",
        port.address(),
        admin.address(),
        limited(&backend, "[{ name: x, by: ip, rate: 1/hour }]")
    );
    let mut gateway = Generations::start(&yaml);
    let operator = Steady(admin.address());
    let status = |connection: &mut Connection, n: usize| {
        connection.send("GET", "/", &[("x-forwarded-for", &format!("9.9.9.{n}"))], b"").status
    };
    let mut connection = Connection::open(port.address());
    let used: Vec<u16> = (0..CALLERS).map(|n| status(&mut connection, n)).collect();
    assert_eq!(used, [200; CALLERS]);
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let forgotten = std::thread::scope(|scope| {
        let reset = scope.spawn(|| {
            let mut forgotten = Vec::new();
            for n in (0..CALLERS).take_while(|_| !stop.load(Ordering::SeqCst)) {
                let body = format!("{{\"caller\": \"ip:9.9.9.{n}\"}}");
                if operator.ask("POST", "/api/v1/callers/reset", &body).is_some() {
                    forgotten.push(n);
                }
                rounds.fetch_add(1, Ordering::SeqCst);
            }
            forgotten
        });
        eventually("a reset", || (rounds.load(Ordering::SeqCst) > 0).then_some(()));
        gateway.hand_over();
        eventually("the end of the first", || {
            let _ = gateway.first.child.try_wait();
            (!lives(gateway.first.child.id())).then_some(())
        });
        stop.store(true, Ordering::SeqCst);
        reset.join().unwrap()
    });
    let mut connection = Connection::open(port.address());
    let again: Vec<u16> = forgotten.iter().map(|n| status(&mut connection, *n)).collect();
    assert_eq!(again, vec![200; forgotten.len()], "{forgotten:?}");
}

#[test]
fn a_penalty_of_the_old_process_holds_in_the_new_one() {
    let backend = Backend::start();
    let (port, admin) = (HeldPort::new(), HeldPort::new());
    let limits =
        "[{ name: x, by: ip, rate: 1/hour, penalty: { after: 2 rejects in 1m, for: 1h } }]";
    let yaml = format!(
        "listen: {}\nadmin: {}\nidentity: {{ trusted_proxies: [127.0.0.1] }}\n{}",
        port.address(),
        admin.address(),
        limited(&backend, limits)
    );
    let mut gateway = Generations::start(&yaml);
    let mut connections = 0;
    let mut begun = |ip: &str| {
        let mut connection = Connection::open(port.address());
        // The first process has it, once it has answered.
        connections += 1;
        let other = [("x-forwarded-for", &*format!("9.9.8.{connections}"))];
        assert_eq!(connection.send("GET", "/", &other, b"").status, 200);
        connection
            .write(format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {ip}\r\n").as_bytes());
        connection
    };
    // One is banned before, the other after the new process has taken over.
    let (before, after): (Vec<_>, Vec<_>) =
        (0..4).map(|_| (begun("9.9.9.1"), begun("9.9.9.2"))).unzip();
    let finish = |connections: Vec<Connection>| -> Vec<u16> {
        let finished = connections.into_iter().map(|mut connection| {
            connection.write(b"\r\n");
            connection.read_reply("GET").status
        });
        finished.collect()
    };
    assert_eq!(finish(before), [200, 429, 429, 429]);
    gateway.hand_over();
    assert_eq!(finish(after), [200, 429, 429, 429]);
    let operator = Steady(admin.address());
    let banned = ["ip:9.9.9.1", "ip:9.9.9.2"].map(str::to_owned).into();
    eventually("both bans", || (operator.page("/api/v1/bans", "bans") == banned).then_some(()));
}

#[test]
fn processes_that_have_handed_over_end_when_the_last_request_is_answered() {
    let (go, on_go) = std::sync::mpsc::channel::<()>();
    let on_go = parking_lot::Mutex::new(on_go);
    let backend = Backend::with(move |_, stream| {
        on_go.lock().recv().is_ok()
            && std::io::Write::write_all(stream, &crate::common::backend::ok("done")).is_ok()
    });
    let yaml = format!("admin: 127.0.0.1:0\n{}", open(&backend));
    let mut gateway = Generations::start(&yaml);
    let mut busy = Connection::open(gateway.first.address);
    busy.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    eventually("the request", || (backend.seen().len() == 1).then_some(()));
    // The second passes on to the third what it hears from the first, until that has ended.
    let before = [gateway.hand_over(), gateway.hand_over()];
    assert!(before.iter().all(|process| lives(*process)));
    go.send(()).unwrap();
    assert_eq!(busy.read_reply("GET").text(), "done");
    eventually("the end of both", || {
        let _ = gateway.first.child.try_wait();
        before.iter().all(|process| !lives(*process)).then_some(())
    });
    assert!(lives(gateway.id()));
}

#[test]
fn after_a_handover_that_failed_acts_are_accepted_again() {
    let backend = Backend::start();
    let yaml = format!("admin: 127.0.0.1:0\n{}", open(&backend));
    let gateway = Generations::start(&yaml);
    let operator = Operator(gateway.first.admin.unwrap());
    operator.ban("ip:9.9.9.1", "1h");
    // The file is not to be in force here, only in the way of the new process.
    let file = gateway.first.folder().join("gateway.yaml");
    fs::write(&file, "listen: nowhere").unwrap();
    signal(gateway.id(), "-USR2");
    gateway.wait_for("this process goes on");
    assert_eq!(operator.ban("ip:9.9.9.2", "1h")["kept"], "file");
    fs::write(&file, crate::common::complete(&yaml)).unwrap();
    let again = Process::start_in(gateway.first.end("-TERM"), |lines| {
        std::thread::spawn(move || lines.for_each(drop));
    });
    let bans = Operator(again.admin.unwrap()).get("/api/v1/bans");
    assert_eq!(bans["bans"].as_array().map(Vec::len), Some(2), "{bans}");
    assert_eq!(bans["bans"][0]["caller"], json!("ip:9.9.9.2"));
}
