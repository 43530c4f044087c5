//! `sluice check`: says `ok` and what the file holds, or everything that is wrong.

use crate::config::{self, Config, LoadError, Loaded};
use std::path::Path;
use std::process::ExitCode;

pub(super) fn check(path: &Path) -> ExitCode {
    match config::load(path) {
        Ok(Loaded { config, warnings }) => {
            eprint!("{warnings}");
            println!("ok: {}: {}", path.display(), summary(&config));
            ExitCode::SUCCESS
        }
        Err(LoadError::Invalid { diagnostics, .. }) => {
            eprintln!("{diagnostics}");
            eprintln!("{}: {}", path.display(), count(diagnostics.errors(), "error"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn summary(config: &Config) -> String {
    let limits = config.limits.len() + config.routes.iter().map(|r| r.limits.len()).sum::<usize>();
    let parts = [
        count(config.routes.len(), "route"),
        count(limits, "limit"),
        count(config.upstreams.len(), "upstream"),
    ];
    parts.join(", ")
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}
