//! What an operator has said of single callers, act by act, until each is over.
//!
//! Acts are kept in a file, or in a shared store by all gateways together; times in them are the wall
//! clock's, which gateways have in common.

use super::who::Who;
use crate::clock::Micros;
use crate::saved;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::{fs, io};

/// Something an operator has said.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Act {
    /// Of whom.
    pub caller: Who,
    /// What.
    pub act: What,
    /// Which limit it is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Box<str>>,
    /// What rates are multiplied by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
    /// When it was said.
    pub at: Micros,
    /// Until when it counts.
    pub until: Micros,
}

/// What can be said of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// They are turned away.
    Ban,
    /// Other rates apply to them.
    Grant,
    /// Whatever they were banned for is forgiven.
    Lift,
    /// What they have used is forgotten.
    Reset,
}

impl Act {
    /// Acts of the same name replace each other.
    pub fn name(&self) -> String {
        name(self.act, &self.caller, self.limit.as_deref())
    }
}

/// What an act of this kind is called. A limit's name holds no control characters, so no two acts
/// have the same.
pub fn name(act: What, caller: &Who, limit: Option<&str>) -> String {
    let act = match act {
        What::Ban => "ban",
        What::Grant => "grant",
        What::Lift => "lift",
        What::Reset => "reset",
    };
    format!("{act}\n{}\n{caller}", limit.unwrap_or_default())
}

/// Acts by their names.
pub type Acts = BTreeMap<String, Act>;

/// Reads a file of acts; none if there is no such file.
pub(super) fn read(path: &Path) -> io::Result<Acts> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Acts::new()),
        bytes => bytes?,
    };
    let acts: Result<Vec<Act>, _> = serde_json::from_slice(&bytes);
    let acts = acts.map_err(|error| {
        // It is not overwritten: somebody may want to know what was in it.
        let kept = saved::beside(path, ".unusable");
        let _ = fs::rename(path, &kept);
        io::Error::other(format!("{error}; it is kept as {}", kept.display()))
    })?;
    Ok(acts.into_iter().map(|act| (act.name(), act)).collect())
}

/// Writes it. There is no file where there is nothing to say.
pub(super) fn write(path: &Path, acts: &Acts) -> io::Result<()> {
    if acts.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let acts: Vec<&Act> = acts.values().collect();
    let text = serde_json::to_string_pretty(&acts)? + "\n";
    saved::replace(path, |mut file| file.write_all(text.as_bytes()))
}
