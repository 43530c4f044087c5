//! The guard: how many instructions a request costs in user space, counted by valgrind on the real
//! binary, and compared with what is recorded. Counts do not depend on what else the machine does,
//! so a change that costs some percent shows, where a stopwatch would not tell it from noise.
//!
//! The whole process is counted, with few requests and with many; the difference is what the
//! requests cost, and starting and stopping fall out of it.

use crate::contestants::{Limits, Setup, Stage};
use crate::idle::ask;
use crate::machine::{Failure, Process};
use crate::report::Counted;
use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Where counts are recorded.
const RECORD: &str = "benches/results/instructions.json";

/// The binary that is counted: as cargo builds it, since every training makes another optimum.
const BINARY: &str = "target/release/sluice";

const FEW: u32 = 500;
const MANY: u32 = 2500;

/// A change above this is worth a look.
const TOLERANCE: f64 = 0.05;

/// Counts, and compares or records.
pub(crate) fn run(stage: &Stage, update: bool) -> Result<(), Failure> {
    let counts = compare(stage)?;
    for counted in &counts {
        println!("{}", counted.text());
    }
    if update {
        let record: BTreeMap<_, _> =
            counts.iter().map(|c| (c.what.as_str(), c.instructions.round())).collect();
        let json =
            serde_json::to_string_pretty(&record).map_err(|e| Failure::said(e.to_string()))?;
        fs::write(RECORD, json + "\n")?;
        println!("recorded in {RECORD}");
        return Ok(());
    }
    match counts.iter().filter_map(Counted::change).find(|change| *change > TOLERANCE) {
        None => Ok(()),
        Some(_) => Err(Failure::said(format!(
            "a request costs more than {:.0}% more than recorded; if that is meant: guard --update",
            TOLERANCE * 100.0
        ))),
    }
}

/// What requests cost now, beside what is recorded.
pub(crate) fn compare(stage: &Stage) -> Result<Vec<Counted>, Failure> {
    if std::process::Command::new("valgrind").arg("--version").output().is_err() {
        println!("instructions are not counted: valgrind is not installed");
        return Ok(Vec::new());
    }
    let record: BTreeMap<String, f64> = fs::read_to_string(RECORD)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let kinds = [("forwarded", Limits::Admit), ("rejected", Limits::Reject)];
    let mut counts = Vec::new();
    for (what, limits) in kinds {
        let setup = Setup::new(limits);
        let (few, many) = (count(stage, &setup, FEW)?, count(stage, &setup, MANY)?);
        let instructions = (many - few) / f64::from(MANY - FEW);
        let recorded = record.get(what).copied();
        counts.push(Counted { what: what.to_owned(), instructions, recorded });
    }
    Ok(counts)
}

/// All instructions of a gateway that answers so many requests, one after the other.
fn count(stage: &Stage, setup: &Setup, requests: u32) -> Result<f64, Failure> {
    let binary = PathBuf::from(BINARY).canonicalize();
    let binary = binary.map_err(|_| Failure::said(format!("{BINARY} is not there: make build")))?;
    let log = stage.folder().join("valgrind.log");
    let (command, port) = stage.counted(&binary, &log, setup)?;
    let mut process = Process::start(&stage.load_core(), &command, Stdio::null(), Stdio::null())?;
    process.listens(port)?;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    for _ in 0..requests {
        ask(&mut stream)?;
    }
    drop(stream);
    process.stop();
    collected(&log).ok_or_else(|| Failure::said("valgrind counted nothing"))
}

fn collected(log: &Path) -> Option<f64> {
    let text = fs::read_to_string(log).ok()?;
    let (_, count) = text.rsplit_once("Collected :")?;
    count.split_whitespace().next()?.parse().ok()
}
