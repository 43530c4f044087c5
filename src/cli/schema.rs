//! `sluice schema`: the JSON Schema of gateway.yaml, for editors.

use super::Outcome;
use super::output;

pub(super) fn print() -> Outcome {
    let schema = serde_json::to_string_pretty(&crate::config::schema())?;
    Ok(output::print(&format!("{schema}\n"))?)
}
