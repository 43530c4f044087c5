//! docs/calibrating.md says what the program prints: every command in it is run.

use super::kit::{Lab, stderr, stdout};
use std::path::Path;

/// The commands of a page, and what they are said to print. A line `…` stands for any others.
fn commands(page: &str) -> Vec<(String, Vec<String>)> {
    let mut commands: Vec<(String, Vec<String>)> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            line => match line.strip_prefix("$ sluice ") {
                Some(command) => commands.push((command.to_owned(), Vec::new())),
                None => commands.last_mut().unwrap().1.push(line.to_owned()),
            },
        }
    }
    commands
}

/// Whether the lines are as they are said to be.
fn is_as_said(printed: &[&str], said: &[String]) -> bool {
    match said {
        [] => printed.is_empty(),
        [any, rest @ ..] if any == "…" => {
            (0..=printed.len()).any(|skipped| is_as_said(&printed[skipped..], rest))
        }
        [first, rest @ ..] => {
            printed.first().is_some_and(|line| line == first) && is_as_said(&printed[1..], rest)
        }
    }
}

#[test]
fn the_guide_says_what_is_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lab = Lab::new();
    for file in std::fs::read_dir(root.join("examples/calibrating")).unwrap() {
        let path = file.unwrap().path();
        lab.write(path.file_name().unwrap().to_str().unwrap(), std::fs::read(&path).unwrap());
    }
    let page = std::fs::read_to_string(root.join("docs/calibrating.md")).unwrap();
    let commands = commands(&page);
    assert!(commands.len() >= 4, "{commands:?}");
    for (command, said) in commands {
        let output = lab.sluice(&command.split(' ').collect::<Vec<_>>());
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        let text = stdout(&output);
        let printed: Vec<&str> = text.lines().collect();
        assert!(
            is_as_said(&printed, &said),
            "sluice {command} prints\n{text}\nnot\n{}",
            said.join("\n")
        );
    }
    for file in ["gateway.yaml", "first.yaml", "sizes.yaml", "tuned.yaml", "enforced.yaml"] {
        let output = lab.sluice(&["check", file]);
        assert!(output.status.success(), "{file}: {}", stderr(&output));
    }
}
