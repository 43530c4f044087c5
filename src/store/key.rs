//! Which counter of a limit a request belongs to.
//!
//! A subject is what the caller is to one limit: an address, a user, a pair of both. Every store
//! writes it out the same way: each part with its kind and its length, so that no two subjects
//! read alike, whatever callers put into their names.

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

/// A secret of the store, so that nobody can choose names whose hashes collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seed(pub(super) u64, pub(super) u64);

impl Seed {
    pub(super) fn random() -> Self {
        use std::hash::{BuildHasher, RandomState};
        // std draws its hash keys from the operating system's random numbers.
        Self(RandomState::new().hash_one(0_u8), RandomState::new().hash_one(1_u8))
    }

    /// The 64 bits that stand for (limit, subject), never zero. Two callers with the same bits
    /// would share a counter, which is strict, not lax; a newcomer among a million has a chance of
    /// one in 10^13 to meet one.
    #[inline(always)]
    pub(super) fn key(self, limit: u32, subject: &Subject<'_>) -> u64 {
        let limit = u64::from(limit);
        let hash = match subject.0 {
            // An IPv4 address fits beside the limit: the commonest subject is one word.
            [Part::Ip(IpAddr::V4(ip))] if limit < 1 << 24 => {
                let word = Tag::V4 as u64 | limit << 8 | u64::from(u32::from(*ip)) << 32;
                Sip::new(self).word(word).finish()
            }
            _ => self.long(limit, subject),
        };
        hash.max(1)
    }

    fn long(self, limit: u64, subject: &Subject<'_>) -> u64 {
        let start = Sip::new(self).word(Tag::Limit as u64 | limit << 8);
        subject.0.iter().fold(start, |sip, part| sip.part(part)).finish()
    }
}

/// What a word is; no two ways of writing a subject begin alike.
#[derive(Clone, Copy)]
enum Tag {
    Limit,
    V4,
    V6,
    User,
    ApiKey,
    Header,
}

/// SipHash-1-3 of a sequence of words: what std's maps use, without its buffer for odd bytes.
#[derive(Clone, Copy)]
struct Sip([u64; 4]);

impl Sip {
    #[inline]
    fn new(Seed(a, b): Seed) -> Self {
        // The algorithm's constants: "somepseudorandomlygeneratedbytes".
        Self([
            a ^ 0x736f_6d65_7073_6575,
            b ^ 0x646f_7261_6e64_6f6d,
            a ^ 0x6c79_6765_6e65_7261,
            b ^ 0x7465_6462_7974_6573,
        ])
    }

    #[inline]
    fn word(mut self, word: u64) -> Self {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
        self
    }

    fn part(self, part: &Part<'_>) -> Self {
        match part {
            Part::Ip(IpAddr::V4(ip)) => self.word(Tag::V4 as u64 | u64::from(u32::from(*ip)) << 32),
            Part::Ip(IpAddr::V6(ip)) => {
                let bits = u128::from(*ip);
                self.word(Tag::V6 as u64).word((bits >> 64) as u64).word(bits as u64)
            }
            Part::User(user) => self.text(Tag::User, user.as_bytes()),
            Part::ApiKey(id) => self.text(Tag::ApiKey, id.as_bytes()),
            Part::Header(value) => self.text(Tag::Header, value),
        }
    }

    /// Its length comes first, so that zeros at its end are told from none.
    fn text(self, tag: Tag, text: &[u8]) -> Self {
        let start = self.word(tag as u64 | (text.len() as u64) << 8);
        text.chunks(8).fold(start, |sip, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            sip.word(u64::from_le_bytes(word))
        })
    }

    #[inline]
    fn finish(mut self) -> u64 {
        self.0[2] ^= 0xff;
        for _ in 0..3 {
            self.round();
        }
        self.0.iter().fold(0, |hash, word| hash ^ word)
    }

    #[inline]
    fn round(&mut self) {
        let [a, b, c, d] = &mut self.0;
        *a = a.wrapping_add(*b);
        *c = c.wrapping_add(*d);
        *b = b.rotate_left(13) ^ *a;
        *d = d.rotate_left(16) ^ *c;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*b);
        *a = a.wrapping_add(*d);
        *b = b.rotate_left(17) ^ *c;
        *d = d.rotate_left(21) ^ *a;
        *c = c.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{DefaultHasher, Hasher as _};

    #[test]
    fn it_is_the_hash_that_std_uses() {
        for words in 0..5 {
            let message: Vec<u64> = (0..words).map(|n| 0x0123_4567_89ab_cdef * (n + 3)).collect();
            let mut std = DefaultHasher::new();
            for word in &message {
                std.write(&word.to_le_bytes());
            }
            // Bytes are closed by their number; words of known kinds need no such end.
            let end = (8 * words) << 56;
            let sip = message.iter().fold(Sip::new(Seed(0, 0)), |sip, word| sip.word(*word));
            assert_eq!(sip.word(end).finish(), std.finish());
        }
    }

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
        subjects.push(Subject(&[Part::User("\0")]));
        subjects.extend(pairs.iter().map(|pair| Subject(pair)));
        subjects.extend(ips.iter().map(|ip| Subject(ip)));
        let keys: HashSet<_> = (0..2)
            .flat_map(|limit| subjects.iter().map(move |subject| (limit, subject)))
            .map(|(limit, subject)| seed.key(limit, subject))
            .collect();
        assert_eq!(keys.len(), 2 * subjects.len());
    }
}
