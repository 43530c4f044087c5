//! `sluice check`: says `ok` and what the file holds, or everything that is wrong.

use super::Outcome;
use super::output::{print, remark};
use crate::config::{self, Config, LoadError, Loaded};
use std::path::Path;

pub(super) fn check(path: &Path) -> Outcome {
    match config::load(path) {
        Ok(Loaded { config, warnings }) => {
            remark(&warnings.to_string());
            Ok(print(&format!("ok: {}: {}\n", path.display(), summary(&config)))?)
        }
        Err(LoadError::Invalid { diagnostics }) => {
            let errors = count(diagnostics.errors(), "error");
            Err(format!("{diagnostics}\n{}: {errors}", path.display()).into())
        }
        Err(error) => Err(error.into()),
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
