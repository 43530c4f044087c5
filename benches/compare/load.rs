//! The load, and what it saw: wrk for HTTP/1.1, h2load for HTTP/2, openssl for handshakes.

use crate::contestants::{Running, Stage};
use crate::machine::Failure;
use serde::{Deserialize, Serialize};
use std::process::Command;

/// What is asked of a contestant.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) path: &'static str,
    pub(crate) connections: usize,
    /// Arguments of `load.lua`.
    pub(crate) arguments: Vec<(&'static str, String)>,
    pub(crate) tool: Tool,
    pub(crate) encrypted: bool,
}

/// Who makes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// HTTP/1.1.
    Wrk,
    /// HTTP/2, so many streams of each connection at once.
    H2load { streams: usize },
    /// Connections that begin and end, without a session to take up again.
    Handshakes,
}

impl Load {
    /// As many small requests as fit, over 64 connections.
    pub(crate) fn small() -> Self {
        let (arguments, tool) = (Vec::new(), Tool::Wrk);
        Self { path: "/", connections: 64, arguments, tool, encrypted: false }
    }

    /// The same through TLS.
    pub(crate) fn encrypted(self) -> Self {
        Self { encrypted: true, ..self }
    }

    /// The same over HTTP/2: 8 connections with 32 streams each.
    pub(crate) fn http2(self) -> Self {
        Self { connections: 8, tool: Tool::H2load { streams: 32 }, ..self }
    }

    fn url(&self, port: u16) -> String {
        let scheme = if self.encrypted { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{port}{}", self.path)
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl std::fmt::Display) -> Self {
        self.arguments.push((name, format!("{value}")));
        self
    }
}

/// What was seen.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Seen {
    pub(crate) requests: u64,
    pub(crate) micros: u64,
    pub(crate) bytes: u64,
    /// Answers of 400 and above.
    pub(crate) refused: u64,
    /// Connections that broke, and time-outs.
    pub(crate) failed: u64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Sample {
    pub(crate) requests_per_second: f64,
    pub(crate) p50_micros: f64,
    pub(crate) p99_micros: f64,
    /// Of the contestant, user and system.
    pub(crate) cpu_micros_per_request: f64,
    /// The part of it that the kernel spent, as far as its ticks can tell.
    pub(crate) system_micros_per_request: f64,
    pub(crate) memory_kib: f64,
}

/// Puts a load on a contestant for some seconds.
pub(crate) fn run(
    stage: &Stage,
    cores: &str,
    port: u16,
    load: &Load,
    seconds: f64,
) -> Result<Seen, Failure> {
    // All of them take whole seconds.
    let seconds = seconds.ceil().to_string();
    match load.tool {
        Tool::Wrk => wrk(stage, cores, port, load, &seconds),
        Tool::H2load { streams } => h2load(cores, port, load, streams, &seconds),
        Tool::Handshakes => handshakes(cores, port, &seconds),
    }
}

/// A command on these cores.
fn pinned(cores: &str, program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", cores, program]);
    command
}

/// Runs a command and finds figures in what it says.
fn figures(mut command: Command, find: impl Fn(&str) -> Option<Seen>) -> Result<Seen, Failure> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    find(&text).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        Failure::said(format!("no figures (is it installed?): {command:?} {text}{errors}"))
    })
}

fn wrk(stage: &Stage, cores: &str, port: u16, load: &Load, seconds: &str) -> Result<Seen, Failure> {
    let script = stage.folder().join("load.lua");
    std::fs::write(&script, include_str!("load.lua"))?;
    let threads = cores.split(',').count();
    let mut wrk = pinned(cores, "wrk");
    wrk.args(["--latency", "--timeout", "10s"])
        .args(["-t", &threads.to_string()])
        .args(["-c", &load.connections.to_string()])
        .args(["-d", &format!("{seconds}s")])
        .arg("-s")
        .arg(&script)
        .arg(load.url(port))
        .arg("--");
    for (name, value) in &load.arguments {
        wrk.args([*name, value]);
    }
    figures(wrk, |text| {
        let line = text.lines().find_map(|line| line.strip_prefix("@ "))?;
        serde_json::from_str(line).ok()
    })
}

/// h2load tells the mean, and no percentiles; they are left out.
fn h2load(
    cores: &str,
    port: u16,
    load: &Load,
    streams: usize,
    seconds: &str,
) -> Result<Seen, Failure> {
    let mut h2load = pinned(cores, "h2load");
    h2load
        .args(["-t", "1", "-D", seconds])
        .args(["-c", &load.connections.to_string()])
        .args(["-m", &streams.to_string()])
        .args(["-H", "x-user-id: ada", "-H", "x-api-key: bench-key"])
        .arg(load.url(port));
    let seconds: u64 = seconds.parse().unwrap_or(1);
    figures(h2load, |text| {
        let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        let before = |line: &str, word: &str| -> Option<u64> {
            line.split(", ").find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
        };
        let (requests, codes) = (line("requests:")?, line("status codes:")?);
        Some(Seen {
            requests: before(requests, "succeeded")?,
            micros: seconds * 1_000_000,
            bytes: 1,
            refused: before(codes, "4xx")? + before(codes, "5xx")?,
            failed: before(requests, "failed")?,
            p50: 0,
            p99: 0,
        })
    })
}

fn handshakes(cores: &str, port: u16, seconds: &str) -> Result<Seen, Failure> {
    let mut openssl = pinned(cores, "openssl");
    let address = format!("127.0.0.1:{port}");
    openssl.args(["s_time", "-new", "-connect", &address, "-time", seconds]);
    figures(openssl, |text| {
        // `1234 connections in 2 real seconds, 0 bytes read per connection`
        let line = text.lines().find(|line| line.contains("real seconds"))?;
        let mut words = line.split(' ');
        let requests = words.next()?.parse().ok()?;
        let seconds: u64 = words.nth(2)?.parse().ok()?;
        let micros = seconds.max(1) * 1_000_000;
        Some(Seen { requests, micros, bytes: 1, refused: 0, failed: 0, p50: 0, p99: 0 })
    })
}

/// Measures a contestant: a second to warm up, and then what it uses for what it does.
pub(crate) fn measure(
    stage: &Stage,
    running: &Running,
    load: &Load,
    seconds: u64,
) -> Result<(Sample, Seen), Failure> {
    measure_on(stage, &stage.load_core(), running, load, seconds)
}

/// The same, with wrk on these cores.
pub(crate) fn measure_on(
    stage: &Stage,
    cores: &str,
    running: &Running,
    load: &Load,
    seconds: u64,
) -> Result<(Sample, Seen), Failure> {
    run(stage, cores, running.port, load, 1.0)?;
    let before = running.process.cpu();
    let seen = run(stage, cores, running.port, load, seconds as f64)?;
    let after = running.process.cpu();
    let (user, system) = ((after.0 - before.0) as f64, (after.1 - before.1) as f64);
    let sample = Sample {
        requests_per_second: seen.requests as f64 / (seen.micros as f64 / 1e6),
        p50_micros: seen.p50 as f64,
        p99_micros: seen.p99 as f64,
        cpu_micros_per_request: (user + system) / seen.requests as f64,
        system_micros_per_request: system / seen.requests as f64,
        memory_kib: running.process.memory() as f64,
    };
    Ok((sample, seen))
}
