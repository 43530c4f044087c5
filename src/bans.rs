//! Callers who ignored too many 429s, and until when they are turned away unheard.
//!
//! A limit's `penalty` counts a caller's rejects (in the store, as any limit counts); beyond its
//! number the caller is banned from everything, whichever route they ask for. Bans live as long as
//! the process and survive reloads; a `snapshot` of the store keeps them over a restart. As long as
//! there are none, looking for one is one load.

use crate::clock::Micros;
use crate::store::Part;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More bans than this are not remembered: a flood of callers must not fill the memory.
const MOST: usize = 100_000;

/// All bans.
#[derive(Debug, Default)]
pub struct Bans {
    count: AtomicUsize,
    bans: Mutex<HashMap<String, Ban>>,
}

/// One ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Who: `ip:203.0.113.7`, `user:ada`, `api_key:acme`.
    pub caller: String,
    /// The limit whose rejects they ignored.
    pub limit: String,
    /// Until when.
    pub until: Micros,
}

impl Bans {
    /// How long a caller is still banned, and by which limit.
    pub fn find(&self, part: Part<'_>, now: Micros) -> Option<(String, Micros)> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let bans = self.bans.lock();
        let ban = bans.get(&caller(part)).filter(|ban| ban.until > now)?;
        Some((ban.limit.clone(), ban.until - now))
    }

    /// Bans a caller; says whether they were not banned already.
    pub fn add(&self, part: Part<'_>, limit: &str, until: Micros, now: Micros) -> bool {
        let mut bans = self.bans.lock();
        if bans.len() >= MOST {
            bans.retain(|_, ban| ban.until > now);
        }
        let caller = caller(part);
        let fresh = bans.get(&caller).is_none_or(|ban| ban.until <= now);
        if bans.len() < MOST {
            let ban = Ban { caller: caller.clone(), limit: limit.to_owned(), until };
            bans.insert(caller, ban);
        }
        self.count.store(bans.len(), Ordering::Relaxed);
        fresh
    }

    /// Bans whoever was banned before a restart.
    pub fn restore(&self, ban: Ban) {
        let mut bans = self.bans.lock();
        bans.insert(ban.caller.clone(), ban);
        self.count.store(bans.len(), Ordering::Relaxed);
    }

    /// Lifts a caller's ban; says whether there was one.
    pub fn lift(&self, caller: &str) -> bool {
        let mut bans = self.bans.lock();
        let lifted = bans.remove(caller).is_some();
        self.count.store(bans.len(), Ordering::Relaxed);
        lifted
    }

    /// Those in force, the longest first.
    pub fn list(&self, now: Micros) -> Vec<Ban> {
        let mut bans: Vec<Ban> = self.bans.lock().values().cloned().collect();
        bans.retain(|ban| ban.until > now);
        bans.sort_by(|a, b| b.until.cmp(&a.until).then_with(|| a.caller.cmp(&b.caller)));
        bans
    }

    /// Forgets those that are over.
    pub fn sweep(&self, now: Micros) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut bans = self.bans.lock();
            bans.retain(|_, ban| ban.until > now);
            self.count.store(bans.len(), Ordering::Relaxed);
        }
    }
}

/// What a caller is called here and in the admin API.
fn caller(part: Part<'_>) -> String {
    match part {
        Part::Ip(ip) => format!("ip:{ip}"),
        Part::User(user) => format!("user:{user}"),
        Part::ApiKey(id) => format!("api_key:{id}"),
        Part::Header(value) => format!("header:{}", String::from_utf8_lossy(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_lasts_its_time_or_until_it_is_lifted() {
        let bans = Bans::default();
        let (ada, bob) = (Part::User("ada"), Part::User("bob"));
        assert_eq!(bans.find(ada, 0), None);
        assert!(bans.add(ada, "login", 100, 0));
        assert!(!bans.add(ada, "login", 200, 50), "longer, not again");
        assert_eq!(bans.find(ada, 150), Some(("login".into(), 50)));
        assert_eq!(bans.find(bob, 150), None);
        assert_eq!(bans.list(150).len(), 1);
        assert_eq!(bans.find(ada, 200), None);
        bans.sweep(200);
        assert!(!bans.lift("user:ada"), "over already");
        bans.add(bob, "login", 300, 200);
        assert!(bans.lift("user:bob"));
        assert_eq!(bans.find(bob, 200), None);
    }
}
