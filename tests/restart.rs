//! `store.memory.snapshot`: a restart forgives nothing. With the real binary.

use crate::common::{Backend, Connection, eventually, limited};
use crate::stopping::Process;
use std::fs;
use std::os::unix::fs::PermissionsExt;

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
