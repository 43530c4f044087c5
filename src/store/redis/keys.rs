//! What counters are called in the store: `prefix:1:limit:caller`.
//!
//! The 1 is the version of what is stored under such names. A limit's name or a caller that is
//! long, or that a cluster could mistake for a hash tag, is named by its hash, so keys are short
//! and nobody chooses the slot they are in. No two callers of a limit share a name: a part says
//! what it is, and where there are several, how long it is.

use crate::digest;
use crate::store::{Part, Subject};
use std::io::Write;

/// Longer ones are hashed.
const LONG: usize = 40;

/// `prefix:1:limit:`, the beginning of all of a limit's keys.
pub(super) fn of_limit(prefix: &str, limit: &str) -> Box<[u8]> {
    let mut key = format!("{prefix}:1:").into_bytes();
    // A colon in a limit's name would make it the beginning of another's keys.
    if limit.contains(':') {
        hashed(&mut key, limit.as_bytes());
    } else {
        shortened(&mut key, limit.as_bytes());
    }
    key.push(b':');
    key.into()
}

/// Appends the caller, and the shard of a limit that is split.
pub(super) fn write(key: &mut Vec<u8>, subject: &Subject<'_>, shard: Option<u16>) {
    match subject.0 {
        [] => key.push(b'*'),
        [Part::Ip(ip)] => {
            let _ = write!(key, "i{ip}");
        }
        [part] => {
            let (tag, text) = tagged(part);
            key.push(tag);
            shortened(key, text);
        }
        parts => {
            let mut text = Vec::with_capacity(64);
            for part in parts {
                match part {
                    Part::Ip(ip) => {
                        let _ = write!(text, "i{ip},");
                    }
                    _ => {
                        let (tag, value) = tagged(part);
                        let _ = write!(text, "{}{}:", char::from(tag), value.len());
                        text.extend_from_slice(value);
                        text.push(b',');
                    }
                }
            }
            shortened(key, &text);
        }
    }
    if let Some(shard) = shard {
        let _ = write!(key, "/{shard}");
    }
}

fn tagged<'a>(part: &Part<'a>) -> (u8, &'a [u8]) {
    match part {
        Part::Ip(_) => (b'i', b""),
        Part::User(user) => (b'u', user.as_bytes()),
        Part::ApiKey(id) => (b'k', id.as_bytes()),
        Part::Header(value) => (b'h', value),
    }
}

/// The text itself, or `#` and half of its SHA-256.
fn shortened(key: &mut Vec<u8>, text: &[u8]) {
    let plain = |byte: &u8| byte.is_ascii_graphic() && !b"{}#".contains(byte);
    if text.len() <= LONG && text.iter().all(plain) {
        return key.extend_from_slice(text);
    }
    hashed(key, text);
}

fn hashed(key: &mut Vec<u8>, text: &[u8]) {
    key.push(b'#');
    for byte in &digest::sha256(text)[..16] {
        let _ = write!(key, "{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[Part<'_>]) -> String {
        let mut key = of_limit("sluice", "per-ip").into_vec();
        write(&mut key, &Subject(parts), None);
        String::from_utf8(key).unwrap()
    }

    #[test]
    fn keys_are_short_and_say_whose_they_are() {
        let ip = Part::Ip([192, 0, 2, 1].into());
        assert_eq!(key(&[]), "sluice:1:per-ip:*");
        assert_eq!(key(&[ip]), "sluice:1:per-ip:i192.0.2.1");
        assert_eq!(key(&[Part::User("ada")]), "sluice:1:per-ip:uada");
        assert_eq!(key(&[Part::ApiKey("acme"), ip]), "sluice:1:per-ip:k4:acme,i192.0.2.1,");
        let long = key(&[Part::User(&"x".repeat(1000))]);
        assert_eq!(long.len(), "sluice:1:per-ip:u#".len() + 32);
        assert!(of_limit("sluice", &"x".repeat(128)).len() < 50);
    }

    #[test]
    fn nobody_chooses_their_slot_or_reads_like_somebody_else() {
        let tag = key(&[Part::Header(b"{x}")]);
        assert!(!tag.contains('{'), "{tag}");
        let one = key(&[Part::User("a,u1:b"), Part::User("c")]);
        let other = key(&[Part::User("a"), Part::User("b,u1:c")]);
        assert_ne!(one, other);
        assert_ne!(key(&[Part::User("#00")]), format!("{}#00", &key(&[Part::User("")])));
        assert_ne!(key(&[Part::User("k")]), key(&[Part::ApiKey("")]));
    }
}
