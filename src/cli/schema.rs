//! `sluice schema`: the JSON Schema of gateway.yaml, for editors.

use super::Outcome;
use std::io::Write;

pub(super) fn print() -> Outcome {
    let schema = serde_json::to_string_pretty(&crate::config::schema())?;
    writeln!(std::io::stdout(), "{schema}")?;
    Ok(())
}
