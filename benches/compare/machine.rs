//! Processes on cores of their own, and what they use: read from /proc.

use parking_lot::Mutex;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, setrlimit};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Why the run cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Said(String),
}

impl Failure {
    pub(crate) fn said(text: impl Into<String>) -> Self {
        Self::Said(text.into())
    }
}

/// A process and its children, gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts a command on the given cores, such as `1` or `0,1`.
    pub(crate) fn start(
        cores: &str,
        command: &Command,
        output: impl Into<Stdio>,
        errors: impl Into<Stdio>,
    ) -> Result<Self, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut pinned = Command::new("taskset");
        pinned.args(["-c", cores]).arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            pinned.env(key, value.unwrap_or_default());
        }
        pinned.process_group(0).stdin(Stdio::null()).stdout(output).stderr(errors);
        Ok(Self { child: pinned.spawn()?, name })
    }

    /// Waits until something listens on the port.
    pub(crate) fn listens(&mut self, port: u16) -> Result<(), Failure> {
        let began = now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(Failure::said(format!("{} ended at once: {status}", self.name)));
            }
            if began.elapsed() > Duration::from_secs(20) {
                return Err(Failure::said(format!("{} does not listen on {port}", self.name)));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// CPU time so far, user and system, of the process and its descendants, in microseconds.
    pub(crate) fn cpu(&self) -> (u64, u64) {
        let times = self.pids().into_iter().filter_map(cpu);
        times.fold((0, 0), |(users, systems), (user, system)| (users + user, systems + system))
    }

    /// Memory that is the process's own, and its share of what is shared, in KiB.
    pub(crate) fn memory(&self) -> u64 {
        self.pids().iter().filter_map(|pid| memory(*pid)).sum()
    }

    /// Waits until it has ended by itself: its CPU time in microseconds, and the most memory that it
    /// had, in KiB.
    pub(crate) fn used(mut self) -> Result<(u64, u64), Failure> {
        let (pid, mut memory) = (self.child.id(), 0);
        // What has ended keeps its times until somebody waits for it, but not its memory.
        while stat(pid).is_some_and(|fields| fields[0] != "Z") {
            memory = memory.max(peak(pid).unwrap_or(0));
            sleep(Duration::from_millis(10));
        }
        let (user, system) = cpu(pid).unwrap_or_default();
        match self.child.wait()? {
            status if status.success() => Ok((user + system, memory)),
            status => Err(Failure::said(format!("{} ended: {status}", self.name))),
        }
    }

    /// Asks it to end, and waits for that.
    pub(crate) fn stop(mut self) {
        if let Some(group) = self.group() {
            let _ = kill_process_group(group, Signal::TERM);
        }
        let _ = self.child.wait();
    }

    fn pids(&self) -> Vec<u32> {
        descendants(self.child.id())
    }

    fn group(&self) -> Option<Pid> {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(group) = self.group() else { return };
        let _ = kill_process_group(group, Signal::TERM);
        let began = now();
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if began.elapsed() > Duration::from_secs(2) {
                break;
            }
            sleep(Duration::from_millis(5));
        }
        // Whatever is left of the group, and then the child itself.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Sockets of the ports that are held.
static HELD: Mutex<Vec<Socket>> = Mutex::new(Vec::new());

/// A port that the kernel gives to no other program until this one ends. Every server that is measured
/// sets `SO_REUSEADDR`, as this socket does, which is bound and never listens: so the server may.
pub(crate) fn held_port() -> Result<u16, Failure> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let address = socket.local_addr()?.as_socket_ipv4();
    HELD.lock().push(socket);
    address.map(|address| address.port()).ok_or_else(|| Failure::said("not an IPv4 address"))
}

/// As many open files as the system lets us have.
pub(crate) fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map(|most| most.max(32_768)).or(Some(32_768));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    if raised.is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// The process and all that came from it, by the parents that /proc names.
fn descendants(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| Some((pid, stat(pid)?.get(1)?.parse().ok()?)))
        .collect();
    let mut family = vec![root];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    family
}

/// The fields of /proc/PID/stat behind the name, which may hold anything: state, parent, …
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// User and system time, those of children that have ended included; the kernel counts in ticks of
/// 10 ms.
fn cpu(pid: u32) -> Option<(u64, u64)> {
    let fields = stat(pid)?;
    let micros = |at: usize| Some(fields.get(at)?.parse::<u64>().ok()? * 10_000);
    Some((micros(11)? + micros(13)?, micros(12)? + micros(14)?))
}

/// The most memory that it had so far, in KiB.
fn peak(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn memory(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse().ok()
}
