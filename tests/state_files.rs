//! Files that a gateway writes are its own: a second process on the same snapshot does not start, and
//! one on the same file of bans and grants runs without it. With the real binary.

use crate::common::operator::Operator;
use crate::common::{Backend, Gateway, complete, eventually, limited};
use crate::handover::Generations;
use crate::stopping::Process;
use std::fs;
use std::path::Path;
use std::process::Command;

const X: &str = "[{ name: x, by: ip, rate: 4/hour }]";

fn with_snapshot(backend: &Backend, file: &Path) -> String {
    let file = file.display();
    format!("store: {{ memory: {{ snapshot: '{file}' }} }}\n{}", limited(backend, X))
}

fn with_overrides(backend: &Backend, file: &Path) -> String {
    let file = file.display();
    let admin = format!("admin: {{ address: '127.0.0.1:0', overrides: '{file}' }}\n");
    admin + &limited(backend, X)
}

/// The exit code and what is said by a gateway that must not start.
fn refused(yaml: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.yaml"), complete(yaml)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    let output = command.args(["run", "-c", "gateway.yaml"]).current_dir(folder.path()).output();
    let output = output.unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn in_use(file: &Path, process: u32) -> String {
    format!("{} is in use by process {process}", file.display())
}

#[test]
fn a_second_gateway_on_one_snapshot_does_not_start_and_says_why() {
    let backend = Backend::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state/limits.bin");
    let yaml = with_snapshot(&backend, &file);
    let first = Process::start(&yaml);
    let (code, said) = refused(&yaml);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&in_use(&file, first.child.id())), "{said}");
    // The lock dies with the process, however it dies; its file stays.
    first.end("-KILL");
    assert!(fs::exists(folder.path().join("state/limits.bin.lock")).unwrap());
    Process::start(&yaml);
}

#[test]
fn a_second_gateway_on_one_file_of_overrides_runs_without_and_says_so() {
    let backend = Backend::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("overrides.json");
    let yaml = with_overrides(&backend, &file);
    let first = Process::start(&yaml);
    let second = Process::start(&yaml);
    let expected = in_use(&file, first.child.id());
    assert!(second.said.iter().any(|line| line.contains(&expected)), "{:#?}", second.said);
    let [one, other] = [&first, &second].map(|process| Operator(process.admin.unwrap()));
    assert_eq!(one.ban("ip:9.9.9.1", "1h")["kept"], "file");
    let ban = other.ban("ip:9.9.9.2", "1h");
    assert_eq!(ban["kept"], "here");
    assert!(ban["warning"].as_str().unwrap().contains(&expected), "{ban}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("9.9.9.1") && !text.contains("9.9.9.2"), "{text}");
    // When the first has ended the file is the second's, and nothing in it is lost.
    first.end("-TERM");
    eventually("the file", || (other.ban("ip:9.9.9.3", "1h")["kept"] == "file").then_some(()));
    let text = fs::read_to_string(&file).unwrap();
    assert!((1..=3).all(|n| text.contains(&format!("9.9.9.{n}"))), "{text}");
}

#[test]
fn a_successor_has_the_files_of_the_process_before_it() {
    let backend = Backend::start();
    let folder = tempfile::tempdir().unwrap();
    let (snapshot, overrides) =
        (folder.path().join("limits.bin"), folder.path().join("overrides.json"));
    let admin =
        format!("admin: {{ address: '127.0.0.1:0', overrides: '{}' }}\n", overrides.display());
    let yaml = admin + &with_snapshot(&backend, &snapshot);
    let mut gateway = Generations::start(&yaml);
    let admin = Operator(gateway.first.admin.unwrap());
    for _ in 0..2 {
        gateway.hand_over();
        eventually("the successor's word", || {
            let (code, said) = refused(&yaml);
            assert_eq!(code, Some(1), "{said}");
            said.contains(&in_use(&snapshot, gateway.id())).then_some(())
        });
        let ban = eventually("an act that is accepted", || {
            let body = serde_json::json!({ "caller": "ip:9.9.9.1", "for": "1h" });
            let (status, ban) = admin.ask("POST", "/api/v1/bans", Some(&body));
            (status != 503).then_some(ban)
        });
        assert_eq!(ban["kept"], "file");
    }
}

#[test]
fn a_successor_that_does_not_start_leaves_the_files_locked() {
    let backend = Backend::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.bin");
    let yaml = with_snapshot(&backend, &file);
    let gateway = Generations::start(&yaml);
    fs::write(gateway.first.folder().join("gateway.yaml"), "listen: nowhere").unwrap();
    gateway.first.signal("-USR2");
    gateway.wait_for("this process goes on");
    let (code, said) = refused(&yaml);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&in_use(&file, gateway.id())), "{said}");
}

#[test]
fn a_reload_locks_the_snapshot_that_it_names() {
    let backend = Backend::start();
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one.bin", "other.bin"].map(|name| folder.path().join(name));
    let here = Gateway::start(&with_snapshot(&backend, &one));
    let there = Gateway::start(&with_snapshot(&backend, &other));
    let error = here.reload(&with_snapshot(&backend, &other)).unwrap_err().to_string();
    assert!(error.contains(&in_use(&other, std::process::id())), "{error}");
    assert_eq!(here.generation(), 1, "nothing has changed");
    there.stop();
    here.reload(&with_snapshot(&backend, &other)).unwrap();
    // The one that it does not name any more is free, the other is not.
    let third = Gateway::start(&with_snapshot(&backend, &one));
    assert!(third.reload(&with_snapshot(&backend, &other)).is_err());
}
