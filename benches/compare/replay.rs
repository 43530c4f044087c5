//! Logs that are replayed: how quick on one core, and in how much memory. Ours alone.

use crate::contestants::{Contestant, Stage};
use crate::machine::{Failure, Process};
use crate::options::Options;
use crate::report::{Replayed, Report};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A log, and what is done with it.
struct Case {
    what: &'static str,
    file: &'static str,
    lines: u64,
    callers: u64,
    combined: bool,
    packed: bool,
    /// What it goes through.
    config: &'static str,
}

const MILLION: u64 = 1_000_000;

const OWN: Case = Case {
    what: "own log",
    file: "own.log",
    lines: MILLION,
    callers: 10_000,
    combined: false,
    packed: false,
    config: THREE,
};

fn cases() -> [Case; 6] {
    [
        Case { what: "own log, one limit", config: ONE, ..OWN },
        OWN,
        Case { what: "combined", file: "combined.log", combined: true, ..OWN },
        Case { what: "own log, gzip", file: "own.log.gz", packed: true, ..OWN },
        Case { what: "own log, lines × 4", file: "long.log", lines: 4 * MILLION, ..OWN },
        Case {
            what: "own log, lines × 4, callers × 100",
            file: "many.log",
            lines: 4 * MILLION,
            callers: MILLION,
            ..OWN
        },
    ]
}

/// The smallest file.
const ONE: &str = "\
listen: 127.0.0.1:0
upstreams: { app: http://127.0.0.1:3000 }
routes: [{ path: /, upstream: app, limits: [{ by: ip, rate: 1000/minute, burst: 200 }] }]
";

/// Three layers, as gateways have them.
const THREE: &str = "\
listen: 127.0.0.1:0
upstreams: { app: http://127.0.0.1:3000 }
limits:
  - { name: per-ip, by: ip, rate: 1000/minute, burst: 200 }
  - { name: ceiling, by: global, rate: 5000/second }
routes:
  - { name: search, path: /api/v1/search/*, upstream: app, limits: [{ by: ip, rate: 100/minute, algorithm: sliding_window }] }
  - { name: items, path: /api/v1/items/*, upstream: app, limits: [{ by: ip, rate: 600/minute }] }
  - { name: rest, path: /, upstream: app, limits: [{ by: ip, rate: 5000/hour, algorithm: fixed_window }] }
";

pub(crate) fn run(options: &Options, stage: &Stage, report: &mut Report) -> Result<(), Failure> {
    if !options.wants("replay") {
        return Ok(());
    }
    let cases = cases();
    let written: Vec<PathBuf> =
        cases.iter().map(|case| write(stage.folder(), case)).collect::<Result<_, _>>()?;
    let mut all: Vec<Replayed> =
        cases.iter().map(|case| Replayed::new(case.what, case.lines)).collect();
    for _ in 0..options.rounds {
        for ((replayed, log), case) in all.iter_mut().zip(&written).zip(&cases) {
            let (cpu, memory) = replay(stage, log, case.config)?;
            replayed.micros_per_line.push(cpu as f64 / replayed.lines as f64);
            replayed.memory_mib.push(memory as f64 / 1024.0);
        }
    }
    for replayed in &all {
        println!("replay {}", replayed.text());
    }
    report.replay = all;
    Ok(())
}

/// The load that profile-guided optimisation learns from.
pub(crate) fn train(stage: &Stage) -> Result<(), Failure> {
    for case in [OWN, Case { file: "combined.log", combined: true, ..OWN }] {
        let case = Case { lines: MILLION / 4, ..case };
        let log = write(stage.folder(), &case)?;
        replay(stage, &log, case.config)?;
    }
    Ok(())
}

/// Replays a log on one core: CPU time in microseconds, and the most memory in KiB.
fn replay(stage: &Stage, log: &Path, limits: &str) -> Result<(u64, u64), Failure> {
    let config = stage.folder().join("replay.yaml");
    std::fs::write(&config, limits)?;
    let (program, _) = stage.find(Contestant::Sluice).map_err(Failure::said)?;
    let mut command = Command::new(program);
    command.arg("simulate").arg("-c").arg(config).arg(log).arg("--json");
    let process = Process::start(&stage.own_core(), &command, Stdio::null(), Stdio::inherit())?;
    process.used()
}

/// Writes a log of requests that come two thousand a second, most of few callers.
fn write(folder: &Path, case: &Case) -> Result<PathBuf, Failure> {
    let path = folder.join(case.file);
    let out = BufWriter::with_capacity(1 << 20, File::create(&path)?);
    if case.packed {
        let mut out = GzEncoder::new(out, Compression::new(6));
        write_lines(&mut out, case)?;
        out.finish()?.flush()?;
    } else {
        let mut out = out;
        write_lines(&mut out, case)?;
        out.flush()?;
    }
    Ok(path)
}

fn write_lines(out: &mut impl Write, case: &Case) -> std::io::Result<()> {
    let mut random = fastrand::Rng::with_seed(1);
    for line in 0..case.lines {
        let millis = line / 2;
        let (hour, minute, second) =
            (millis / 3_600_000 % 24, millis / 60_000 % 60, millis / 1000 % 60);
        // The square makes some callers busier than others.
        let share = random.f64();
        #[expect(clippy::cast_sign_loss, reason = "it is not negative")]
        let caller = (share * share * case.callers as f64) as u64;
        let (a, b, c) = (caller >> 16 & 255, caller >> 8 & 255, caller & 255);
        let path = match line % 4 {
            0 => "/".to_owned(),
            1 => "/api/v1/search/books".to_owned(),
            _ => format!("/api/v1/items/{}", random.u32(0..1000)),
        };
        if case.combined {
            writeln!(
                out,
                "10.{a}.{b}.{c} - - [09/Feb/2026:{hour:02}:{minute:02}:{second:02} +0000] \
                 \"GET {path} HTTP/1.1\" 200 5321 \"-\" \"Mozilla/5.0 (X11; Linux x86_64)\""
            )?;
        } else {
            writeln!(
                out,
                "{{\"time\":\"2026-02-09T{hour:02}:{minute:02}:{second:02}.{:03}Z\",\
                 \"method\":\"GET\",\"path\":\"{path}\",\"status\":200,\"ip\":\"10.{a}.{b}.{c}\",\
                 \"host\":\"api.example.com\",\"route\":\"items\",\"upstream\":\"127.0.0.1:3000\",\
                 \"remaining\":12,\"request_id\":\"{line:032x}\",\"bytes\":5321,\
                 \"duration_ms\":12.345,\"upstream_ms\":11.200,\"overhead_ms\":0.045}}",
                millis % 1000
            )?;
        }
    }
    Ok(())
}
