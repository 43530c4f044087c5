//! wrk: the load, and what it saw.

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
}

impl Load {
    /// As many small requests as fit, over 64 connections.
    pub(crate) fn small() -> Self {
        Self { path: "/", connections: 64, arguments: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl std::fmt::Display) -> Self {
        self.arguments.push((name, format!("{value}")));
        self
    }
}

/// What wrk saw.
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
    let script = stage.folder().join("load.lua");
    std::fs::write(&script, include_str!("load.lua"))?;
    // wrk takes whole seconds.
    let seconds = seconds.ceil();
    let threads = cores.split(',').count();
    let mut wrk = Command::new("taskset");
    wrk.args(["-c", cores, "wrk", "--latency", "--timeout", "10s"])
        .args(["-t", &threads.to_string()])
        .args(["-c", &load.connections.to_string()])
        .args(["-d", &format!("{seconds}s")])
        .arg("-s")
        .arg(&script)
        .arg(format!("http://127.0.0.1:{port}{}", load.path))
        .arg("--");
    for (name, value) in &load.arguments {
        wrk.args([*name, value]);
    }
    let output = wrk.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("@ "));
    line.and_then(|line| serde_json::from_str(line).ok()).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        Failure::said(format!("wrk gave no figures (is it installed?): {text}{errors}"))
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
