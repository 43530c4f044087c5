//! `sluice key new`: a fresh API key, shown once. The file keeps only its SHA-256.

use super::Outcome;
use super::output::print;
use crate::digest::sha256_hex;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

pub(super) fn new(id: Option<String>, plan: Option<&str>) -> Outcome {
    let key = format!("sk_{}", random(32)?);
    let id = match id {
        Some(id) => id,
        None => format!("key-{}", random(6)?.to_ascii_lowercase()),
    };
    // JSON's strings are YAML's, whatever the name holds.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let plan = plan.map(|plan| format!(", plan: {}", quoted(plan))).unwrap_or_default();
    let (id, hash) = (quoted(&id), sha256_hex(key.as_bytes()));
    Ok(print(&format!(
        "The key, shown this once; give it to the caller:\n\n  {key}\n\n\
         The line for gateway.yaml, under identity.api_key.keys:\n\n  \
         - {{ id: {id}, sha256: \"{hash}\"{plan} }}\n"
    ))?)
}

/// Letters and digits from the system's random numbers, each equally likely.
fn random(length: usize) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::with_capacity(length);
    let mut bytes = [0; 64];
    while text.len() < length {
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| "the system has no random numbers")?;
        // 248 is the largest multiple of 62 that a byte can hold.
        let fair = bytes.iter().filter(|byte| **byte < 248);
        let letters = fair.map(|byte| char::from(ALPHABET[usize::from(byte % 62)]));
        text.extend(letters.take(length - text.len()));
    }
    Ok(text)
}
