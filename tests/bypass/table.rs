//! The table in docs/hostile-clients.md and the tests of this folder name each other.

use std::collections::BTreeSet;
use std::fs;

/// `file::name` of every test of this folder.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir("tests/bypass").unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        // Those that take minutes are the same again, for longer.
        let functions = text.split("#[test]\n").skip(1).filter(|f| !f.starts_with("#[ignore"));
        let name = |text: &str| {
            let (_, rest) = text.split_once("fn ").unwrap();
            rest.split('(').next().unwrap().to_owned()
        };
        names.extend(functions.map(|text| format!("{file}::{}", name(text))));
    }
    names.retain(|name| !name.starts_with("table::") && !name.starts_with("kit::"));
    names
}

/// What the table names; a name may be cut short by an ellipsis, and the file left out after it was named.
fn named() -> Vec<String> {
    let page = fs::read_to_string("docs/hostile-clients.md").unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.contains("::"));
    let mut names = Vec::new();
    for row in rows {
        let cell = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let mut file = "";
        for name in cell.split('`').skip(1).step_by(2) {
            let name = match name.split_once("::") {
                Some((before, name)) => {
                    file = before;
                    name
                }
                None => name,
            };
            names.push(format!("{file}::{name}"));
        }
    }
    names
}

fn is_named(test: &str, name: &str) -> bool {
    let (file, wanted) = name.split_once("::").unwrap();
    let Some(own) = test.strip_prefix(file).and_then(|test| test.strip_prefix("::")) else {
        return false;
    };
    match wanted.split_once('…') {
        Some((begin, end)) => own.starts_with(begin) && own.ends_with(end),
        None => own == wanted,
    }
}

#[test]
fn every_attempt_is_in_the_table_and_every_row_has_its_test() {
    let (tests, named) = (tests(), named());
    for name in &named {
        assert!(tests.iter().any(|test| is_named(test, name)), "there is no test {name}");
    }
    let missing: Vec<_> =
        tests.iter().filter(|test| !named.iter().any(|name| is_named(test, name))).collect();
    assert!(missing.is_empty(), "not in the table: {missing:#?}");
}
