//! What commands do where their output cannot be written, as the real binary: a reader that has gone
//! ends them quietly, a full disk is an error.

use crate::common::{Backend, Gateway, limited};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn sluice(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command
}

/// With a pipe that nothing reads any more, and with a disk that is full.
fn printed_to_nothing(folder: &Path, arguments: &[&str]) -> [Output; 2] {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    [writer.into(), full.into()].map(|stdout: Stdio| {
        sluice(folder, arguments).stdout(stdout).stderr(Stdio::piped()).output().unwrap()
    })
}

#[test]
fn a_reader_that_has_gone_ends_a_command_quietly_and_a_full_disk_is_an_error() {
    let backend = Backend::start();
    let yaml = limited(&backend, "[{ name: a, by: ip, rate: 5/minute }]");
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{yaml}"));
    let admin = format!("http://{}", gateway.admin());
    let folder = gateway.folder.path();
    let mut log = std::fs::File::create(folder.join("access.log")).unwrap();
    for second in 0..60 {
        writeln!(
            log,
            r#"192.0.2.1 - - [08/Feb/2024:22:50:{second:02} +0000] "GET / HTTP/1.1" 200 5 "-" "-""#
        )
        .unwrap();
    }
    drop(log);
    for arguments in [
        &["key", "new"][..],
        &["schema"],
        &["check"],
        &["explain", "GET", "http://a/", "--ip", "192.0.2.1"],
        &["explain", "GET", "http://a/", "--ip", "192.0.2.1", "--json"],
        &["simulate", "access.log"],
        &["simulate", "access.log", "--json"],
        &["suggest", "access.log"],
        &["top", "--once", "--every", "0.1", "--admin", &admin],
    ] {
        let [gone, full] = printed_to_nothing(folder, arguments);
        let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(gone.status.success(), "{arguments:?}: {}", said(&gone));
        assert!(!said(&gone).contains("panicked") && !said(&gone).contains("output"), "{gone:?}");
        assert_eq!(full.status.code(), Some(1), "{arguments:?}: {}", said(&full));
        assert!(said(&full).contains("cannot write the output: "), "{}", said(&full));
    }
}

#[test]
fn errors_that_cannot_be_printed_still_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("gateway.yaml");
    std::fs::write(bad, "listen: nowhere\n").unwrap();
    for arguments in [&["check"][..], &["explain", "GET", "/"], &["simulate", "access.log"]] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = sluice(folder.path(), arguments).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn a_report_is_judged_though_nothing_reads_it() {
    let backend = Backend::start();
    let folder = tempfile::tempdir().unwrap();
    let yaml = limited(&backend, "[{ name: a, by: ip, rate: 1/hour }]");
    let yaml = format!("listen: 127.0.0.1:0\n{yaml}");
    std::fs::write(folder.path().join("gateway.yaml"), yaml).unwrap();
    let line = r#"192.0.2.1 - - [08/Feb/2024:22:50:00 +0000] "GET / HTTP/1.1" 200 5 "-" "-""#;
    std::fs::write(folder.path().join("access.log"), format!("{line}\n{line}\n")).unwrap();
    let arguments = ["simulate", "access.log", "--html", "page.html", "--fail-above", "1%"];
    let [gone, _] = printed_to_nothing(folder.path(), &arguments);
    assert_eq!(gone.status.code(), Some(3), "{gone:?}");
    assert!(folder.path().join("page.html").metadata().unwrap().len() > 1000);
}
