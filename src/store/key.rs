//! Which counter of a limit a request belongs to.
//!
//! A subject is what the caller is to one limit: an address, a user, a pair of both. Every store
//! writes it out the same way: each part with its kind and its length, so that no two subjects
//! read alike, whatever callers put into their names.

use siphasher::sip128::{Hash128, Hasher128, SipHasher13};
use std::hash::Hasher as _;
use std::net::IpAddr;

/// One attribute of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// An address, IPv6 already cut to its prefix.
    Ip(IpAddr),
    /// A user's name.
    User(&'a str),
    /// An API key's id.
    ApiKey(&'a str),
    /// A header's value.
    Header(&'a [u8]),
}

/// The attributes a limit counts by, in the order it names them. None: everybody shares one
/// counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject<'a>(pub &'a [Part<'a>]);

impl Subject<'_> {
    /// Everybody.
    pub const EVERYONE: Self = Self(&[]);
}

/// A secret of this process, so that nobody can choose names whose hashes collide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed(u64, u64);

impl Seed {
    pub(super) fn random() -> Self {
        use std::hash::{BuildHasher, RandomState};
        // std draws its hash keys from the operating system's random numbers.
        Self(RandomState::new().hash_one(0_u8), RandomState::new().hash_one(1_u8))
    }

    /// The 128 bits that stand for (limit, subject). Two subjects with the same bits would share
    /// a counter; among a billion keys that has a chance of one in 10^20.
    pub(super) fn key(&self, limit: u32, subject: &Subject<'_>) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(self.0, self.1);
        hasher.write_u32(limit);
        for part in subject.0 {
            match part {
                Part::Ip(IpAddr::V4(ip)) => hasher.write(&tagged(b'4', u32::from(*ip).into())),
                Part::Ip(IpAddr::V6(ip)) => hasher.write(&tagged(b'6', u128::from(*ip))),
                Part::User(user) => write_text(&mut hasher, b'u', user.as_bytes()),
                Part::ApiKey(id) => write_text(&mut hasher, b'k', id.as_bytes()),
                Part::Header(value) => write_text(&mut hasher, b'h', value),
            }
        }
        let Hash128 { h1, h2 } = hasher.finish128();
        u128::from(h1) << 64 | u128::from(h2)
    }
}

fn tagged(tag: u8, value: u128) -> [u8; 17] {
    let mut bytes = [tag; 17];
    bytes[1..].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn write_text(hasher: &mut SipHasher13, tag: u8, text: &[u8]) {
    hasher.write_u8(tag);
    hasher.write_u64(text.len() as u64);
    hasher.write(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn different_subjects_have_different_keys() {
        let seed = Seed::random();
        let pairs = [
            [Part::User("ab"), Part::User("c")],
            [Part::User("a"), Part::User("bc")],
            [Part::ApiKey("ab"), Part::User("c")],
            [Part::Header(b"ab"), Part::User("c")],
        ];
        let ips = ["1.2.3.4", "::1.2.3.4", "::ffff:1.2.3.4"].map(|ip| ip.parse().unwrap());
        let ips = ips.map(|ip| [Part::Ip(ip)]);
        let mut subjects = vec![Subject::EVERYONE, Subject(&[Part::User("")])];
        subjects.extend(pairs.iter().map(|pair| Subject(pair)));
        subjects.extend(ips.iter().map(|ip| Subject(ip)));
        let keys: HashSet<_> = (0..2)
            .flat_map(|limit| subjects.iter().map(move |subject| (limit, subject)))
            .map(|(limit, subject)| seed.key(limit, subject))
            .collect();
        assert_eq!(keys.len(), 2 * subjects.len());
    }
}
