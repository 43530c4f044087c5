//! What Prometheus' own tool says of the alerts, of their tests, of every expression, and of the page.

use super::page::text;
use super::shipped::dashboard;
use crate::common::Gateway;
use crate::common::examples::root;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs it, or says that it is not there; where everything is to be tested, it must be.
fn promtool(arguments: &[&str], folder: &Path, stdin: &str) -> Option<Output> {
    let child = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        assert!(std::env::var_os("CI").is_none(), "promtool is not installed");
        eprintln!(
            "promtool is not installed (apt-get install prometheus): {arguments:?} is skipped"
        );
        return None;
    };
    let (mut pipe, page) = (child.stdin.take().unwrap(), stdin.to_owned());
    let writing = std::thread::spawn(move || pipe.write_all(page.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let _ = writing.join().unwrap(); // who reads no input may close it
    Some(output)
}

/// It must have nothing to complain of.
fn passes(arguments: &[&str], folder: &Path, stdin: &str) -> Option<String> {
    let output = promtool(arguments, folder, stdin)?;
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "promtool {arguments:?}\n{}{}", said[0], said[1]);
    Some(said.concat())
}

/// The page of a gateway, in both formats.
pub fn check_page(gateway: &Gateway) {
    let here = gateway.folder.path();
    let said = passes(&["check", "metrics"], here, &text(gateway, "text/plain"));
    assert!(said.is_none_or(|said| said.is_empty()), "lint has nothing to say");
    // It reads OpenMetrics where samples say when they were: at the moment of the scrape.
    let open = text(gateway, "application/openmetrics-text; version=1.0.0");
    let dated = open.lines().map(|line| {
        let when = if line.starts_with('#') { "" } else { " 1707432600" };
        format!("{line}{when}\n")
    });
    std::fs::write(here.join("page.om"), dated.collect::<String>()).unwrap();
    let blocks = ["tsdb", "create-blocks-from", "openmetrics", "page.om", "blocks"];
    if passes(&blocks, here, "").is_some() {
        std::fs::create_dir(here.join("blocks/wal")).unwrap(); // it looks there, too
        let samples = open.lines().filter(|line| !line.starts_with('#')).count();
        let dump = passes(&["tsdb", "dump", "blocks"], here, "").unwrap();
        let dumped = dump.lines().filter(|line| line.starts_with('{')).count();
        assert_eq!(dumped, samples, "what was read is what was told");
    }
}

#[test]
fn the_alerts_are_valid_and_their_tests_pass() {
    let folder = root("deploy/prometheus");
    passes(&["check", "rules", "alerts.yaml"], &folder, "");
    passes(&["test", "rules", "alerts_test.yaml"], &folder, "");
}

#[test]
fn the_scrape_configuration_is_valid_beside_its_token() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["prometheus.yml", "alerts.yaml"] {
        std::fs::copy(root("deploy/prometheus").join(name), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("sluice-admin-token"), "s3cret").unwrap();
    passes(&["check", "config", "prometheus.yml"], folder.path(), "");
}

#[test]
fn every_expression_of_the_dashboard_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let rules = dashboard().into_iter().enumerate().map(|(number, (expr, _))| {
        format!("      - record: number_{number}\n        expr: {}\n", serde_json::json!(expr))
    });
    let rules: String = rules.collect();
    let file = format!("groups:\n  - name: dashboard\n    rules:\n{rules}");
    std::fs::write(folder.path().join("rules.yaml"), file).unwrap();
    passes(&["check", "rules", "rules.yaml"], folder.path(), "");
}
