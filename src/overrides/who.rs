//! One caller, as operators name them: `ip:203.0.113.7`, `user:ada`, `api_key:acme`.

use crate::store::Part;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A caller by one attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Who {
    /// An address, IPv6 already cut to its prefix.
    Ip(IpAddr),
    /// A user's name.
    User(Box<str>),
    /// An API key's id.
    ApiKey(Box<str>),
}

/// What is no name of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a caller looks like ip:203.0.113.7, user:ada or api_key:acme")]
pub struct NoCaller;

impl Who {
    /// As limits count by it.
    pub fn part(&self) -> Part<'_> {
        match self {
            Self::Ip(ip) => Part::Ip(*ip),
            Self::User(user) => Part::User(user),
            Self::ApiKey(id) => Part::ApiKey(id),
        }
    }

    /// For logs: what does not print is escaped.
    pub fn quoted(&self) -> String {
        format!("{:?}", self.to_string())
    }

    /// The other way round; a header's value is nobody's name.
    pub fn of(part: Part<'_>) -> Option<Self> {
        match part {
            Part::Ip(ip) => Some(Self::Ip(ip)),
            Part::User(user) => Some(Self::User(user.into())),
            Part::ApiKey(id) => Some(Self::ApiKey(id.into())),
            Part::Header(_) => None,
        }
    }
}

/// Names may hold anything: where it is for people, show it [`quoted`](Who::quoted).
impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => write!(f, "ip:{ip}"),
            Self::User(user) => write!(f, "user:{user}"),
            Self::ApiKey(id) => write!(f, "api_key:{id}"),
        }
    }
}

impl FromStr for Who {
    type Err = NoCaller;

    fn from_str(text: &str) -> Result<Self, NoCaller> {
        let (kind, name) = text.split_once(':').ok_or(NoCaller)?;
        match kind {
            _ if name.is_empty() => Err(NoCaller),
            "ip" => name.parse().map(|ip: IpAddr| Self::Ip(ip.to_canonical())).or(Err(NoCaller)),
            "user" => Ok(Self::User(name.into())),
            "api_key" => Ok(Self::ApiKey(name.into())),
            _ => Err(NoCaller),
        }
    }
}

impl TryFrom<String> for Who {
    type Error = NoCaller;

    fn try_from(text: String) -> Result<Self, NoCaller> {
        text.parse()
    }
}

impl From<Who> for String {
    fn from(who: Who) -> Self {
        who.to_string()
    }
}

/// Something for each of some callers, found without an allocation.
#[derive(Debug)]
pub(super) struct ByCaller<T> {
    ips: HashMap<IpAddr, T>,
    users: HashMap<Box<str>, T>,
    keys: HashMap<Box<str>, T>,
}

impl<T> Default for ByCaller<T> {
    fn default() -> Self {
        Self { ips: HashMap::new(), users: HashMap::new(), keys: HashMap::new() }
    }
}

impl<T> ByCaller<T> {
    pub(super) fn get(&self, part: Part<'_>) -> Option<&T> {
        match part {
            Part::Ip(ip) => self.ips.get(&ip),
            Part::User(user) => self.users.get(user),
            Part::ApiKey(id) => self.keys.get(id),
            Part::Header(_) => None,
        }
    }

    pub(super) fn insert(&mut self, who: Who, value: T) {
        match who {
            Who::Ip(ip) => self.ips.insert(ip, value),
            Who::User(user) => self.users.insert(user, value),
            Who::ApiKey(id) => self.keys.insert(id, value),
        };
    }

    pub(super) fn remove(&mut self, who: &Who) -> Option<T> {
        match who {
            Who::Ip(ip) => self.ips.remove(ip),
            Who::User(user) => self.users.remove(user),
            Who::ApiKey(id) => self.keys.remove(id),
        }
    }

    pub(super) fn retain(&mut self, mut stays: impl FnMut(&mut T) -> bool) {
        self.ips.retain(|_, value| stays(value));
        self.users.retain(|_, value| stays(value));
        self.keys.retain(|_, value| stays(value));
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.ips.values().chain(self.users.values()).chain(self.keys.values())
    }

    pub(super) fn len(&self) -> usize {
        self.ips.len() + self.users.len() + self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_read_as_it_is_written() {
        for text in ["ip:203.0.113.7", "ip:2001:db8::", "user:a:b c", "api_key:acme"] {
            let who: Who = text.parse().unwrap();
            assert_eq!(who.to_string(), text);
            assert_eq!(Who::of(who.part()), Some(who));
        }
        assert_eq!("ip:::ffff:192.0.2.1".parse::<Who>().unwrap().to_string(), "ip:192.0.2.1");
        for text in ["", "acme", "ip:", "ip:x", "user:", "header:x", "key:a"] {
            assert_eq!(text.parse::<Who>(), Err(NoCaller), "{text}");
        }
    }
}
