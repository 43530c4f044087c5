//! `sluice check` and the other commands, as the real binary; the files that ship; and one small
//! bad file per mistake, each with what must be said about it.

use crate::common::examples::{self, Example, root};
use std::process::{Command, Output};

fn sluice(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Each file in tests/bad ends with lines `#! line:column: message[: help]`: all of them, and
/// nothing else, must be reported, at that place.
#[test]
fn every_mistake_gets_its_message_at_its_place() {
    let mut files: Vec<_> =
        std::fs::read_dir(root("tests/bad")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 40);
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        let expected: Vec<&str> = source.lines().filter_map(|l| l.strip_prefix("#! ")).collect();
        let Err(sluice::config::LoadError::Invalid { diagnostics: found, .. }) =
            sluice::config::load(&file)
        else {
            panic!("{} is accepted", file.display());
        };
        let found: Vec<String> = found
            .iter()
            .map(|d| {
                let help = d.help.as_ref().map(|help| format!(": {help}")).unwrap_or_default();
                format!("{}:{}: {}{help}", d.span.line, d.span.column, d.message)
            })
            .collect();
        let fits = expected.len() == found.len()
            && expected.iter().zip(&found).all(|(expected, found)| {
                // `:text` leaves the place open.
                expected
                    .strip_prefix(':')
                    .map_or(found.starts_with(expected), |e| found.contains(e))
            });
        assert!(fits, "{}\nexpected {expected:#?}\nfound {found:#?}", file.display());
    }
}

#[test]
fn a_mistake_is_shown_with_its_line_and_a_caret_under_it() {
    let output = sluice(&["check", "tests/bad/unknown-field.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stderr);
    let expected = "\
error: a limit has no field 'rat'
 --> tests/bad/unknown-field.yaml:8:9
  |
8 |         rat: 100/minute
  |         ^^^ did you mean 'rate'?
  = at routes[0].limits[0].rat
";
    assert!(shown.contains(expected), "{shown}");
    assert!(shown.ends_with("tests/bad/unknown-field.yaml: 2 errors\n"), "{shown}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_good_file_is_ok_with_a_summary() {
    let output = sluice(&["check", "gateway.yaml"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.starts_with("ok: gateway.yaml: ") && said.contains(" routes, "), "{said}");
    assert_eq!(text(&output.stderr), "", "the shipped file gives no warning");
}

#[test]
fn what_cannot_be_read_is_said() {
    let output = sluice(&["check", "no/such/file.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("cannot read no/such/file.yaml: "));
    let output = sluice(&["run", "-c", "no/such/file.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    let output = sluice(&["run", "-c", "tests/bad/unknown-field.yaml"]);
    assert!(text(&output.stderr).contains("8 |         rat: 100/minute"));
    let output = sluice(&["run", "-c", "/proc/self/mem"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn every_example_is_valid() {
    for Example { name, text } in examples::all() {
        if let Err(error) = examples::parse(&text) {
            panic!("{name}: {error}\n{text}");
        }
    }
}

#[test]
fn a_new_key_works_once_its_line_is_pasted() {
    let output = sluice(&["key", "new", "--id", "acme", "--plan", "pro"]);
    assert!(output.status.success());
    let said = text(&output.stdout);
    let key = said.lines().map(str::trim).find(|line| line.starts_with("sk_")).unwrap();
    let line = said.lines().map(str::trim).find(|line| line.starts_with("- {")).unwrap();
    assert!(line.contains("id: \"acme\"") && line.ends_with("plan: \"pro\" }"), "{line}");
    let backend = crate::common::Backend::start();
    let yaml = format!(
        "plans: {{ pro: {{ rate: 5/s }} }}\nidentity:\n  api_key:\n    keys:\n      {line}\nupstreams: {{ app: 'http://{}' }}\nroutes: [{{ path: /, upstream: app, require: api_key }}]\n",
        backend.address()
    );
    let gateway = crate::common::Gateway::start(&yaml);
    assert_eq!(gateway.get_with("/", &[("x-api-key", key)]).status, 200);
    assert_eq!(gateway.get("/").status, 401);
    let other = text(&sluice(&["key", "new"]).stdout);
    assert!(!other.contains(key) && !other.contains("plan:"));
}

#[test]
fn the_version_is_told() {
    let said = text(&sluice(&["--version"]).stdout);
    assert_eq!(said, format!("sluice {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn curl_sees_a_reject_as_a_head_and_nothing_else() {
    let backend = crate::common::Backend::start();
    let yaml = crate::common::limited(&backend, "[{ name: per-ip, by: ip, rate: 1/minute }]");
    let gateway = crate::common::Gateway::start(&yaml);
    gateway.get("/");
    let url = format!("http://{}/", gateway.address());
    let output = Command::new("curl").args(["-si", &url]).output().expect("curl is installed");
    let said = text(&output.stdout);
    assert!(said.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{said}");
    for line in ["retry-after: 60\r\n", "x-ratelimit-remaining: 0\r\n", "content-length: 0\r\n"] {
        assert!(said.contains(line), "{line} in {said}");
    }
    assert!(said.ends_with("\r\n\r\n") && said.len() < 400, "{said}");
}

/// The demo, end to end: it says what to try, and that works.
#[test]
fn the_demo_runs_and_its_lines_work() {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["demo", "--listen", "127.0.0.1:0"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let curls: Vec<String> = lines
        .by_ref()
        .take_while(|line| !line.contains("Ctrl-C"))
        .filter(|line| line.trim_start().starts_with("curl"))
        .collect();
    let statuses: Vec<String> = curls
        .iter()
        .map(|curl| {
            let output = Command::new("sh").args(["-c", &format!("{curl} -s")]).output().unwrap();
            text(&output.stdout).lines().next().unwrap_or_default().to_owned()
        })
        .collect();
    let _ = Command::new("kill").arg(child.id().to_string()).status();
    assert!(child.wait().unwrap().success());
    let ok = "HTTP/1.1 200 OK";
    assert_eq!(statuses, [ok, ok, "HTTP/1.1 401 Unauthorized", ok, ok], "{curls:?}");
}
