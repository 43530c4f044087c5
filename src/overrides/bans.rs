//! Callers who are turned away unheard, and until when.
//!
//! A limit's `penalty` counts a caller's rejects (in the store, as any limit counts); beyond its
//! number the caller is banned from everything, whichever route they ask for. An operator can ban
//! and unban as well. As long as there are no bans, looking for one is one load.

use super::who::{ByCaller, Who};
use crate::clock::Micros;
use crate::metrics::LimitMetrics;
use crate::store::Part;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More bans than this are not remembered: a flood of callers must not fill the memory.
const MOST: usize = 100_000;

/// All bans.
#[derive(Debug, Default)]
pub struct Bans {
    count: AtomicUsize,
    bans: RwLock<ByCaller<Arc<Ban>>>,
}

/// One ban.
#[derive(Clone, Debug)]
pub struct Ban {
    /// Who.
    pub who: Who,
    /// Why.
    pub why: Why,
    /// Until when.
    pub until: Micros,
    /// Where it counts, if that is known.
    pub metrics: Option<Arc<LimitMetrics>>,
}

/// Why somebody is banned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// They ignored the rejects of this limit.
    Penalty(Arc<str>),
    /// The operator says so, and perhaps for which reason.
    Operator(Option<Box<str>>),
}

impl Why {
    /// What logs and metrics call the limit.
    pub fn limit(&self) -> &str {
        match self {
            Self::Penalty(limit) => limit,
            Self::Operator(_) => crate::metrics::Metrics::OPERATOR,
        }
    }
}

impl Bans {
    /// The ban of a caller, if there is one.
    #[inline]
    pub fn find(&self, part: Part<'_>, now: Micros) -> Option<Arc<Ban>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.look_up(part).filter(|ban| ban.until > now)
    }

    #[cold]
    fn look_up(&self, part: Part<'_>) -> Option<Arc<Ban>> {
        self.bans.read().get(part).cloned()
    }

    /// Bans a caller; says whether they were not banned already. What the operator says stays.
    pub fn add(&self, ban: Ban, now: Micros) -> bool {
        let mut bans = self.bans.write();
        if bans.len() >= MOST {
            bans.retain(|ban| ban.until > now);
        }
        let before = bans.get(ban.who.part()).filter(|before| before.until > now);
        let fresh = before.is_none();
        let stays = before.is_some_and(|before| matches!(before.why, Why::Operator(_)))
            && matches!(ban.why, Why::Penalty(_));
        // A flood of callers fills the table by itself; the operator's word has room in any case.
        let has_room = bans.len() < MOST || !fresh || matches!(ban.why, Why::Operator(_));
        if has_room && !stays {
            bans.insert(ban.who.clone(), Arc::new(ban));
        }
        self.count.store(bans.len(), Ordering::Relaxed);
        fresh
    }

    /// Lifts a caller's ban; says whether there was one.
    pub fn lift(&self, who: &Who) -> bool {
        let mut bans = self.bans.write();
        let lifted = bans.remove(who).is_some();
        self.count.store(bans.len(), Ordering::Relaxed);
        lifted
    }

    /// Lifts a caller's ban if it was the operator who said so.
    pub fn withdraw(&self, who: &Who) {
        self.lift_if(who, |why| matches!(why, Why::Operator(_)));
    }

    /// Lifts it if it was for ignoring rejects.
    pub fn forgive(&self, who: &Who) {
        self.lift_if(who, |why| matches!(why, Why::Penalty(_)));
    }

    fn lift_if(&self, who: &Who, such: impl Fn(&Why) -> bool) {
        if self.look_up(who.part()).is_some_and(|ban| such(&ban.why)) {
            self.lift(who);
        }
    }

    /// Those in force, the longest first.
    pub fn list(&self, now: Micros) -> Vec<Arc<Ban>> {
        let mut bans: Vec<_> = self.bans.read().values().cloned().collect();
        bans.retain(|ban| ban.until > now);
        bans.sort_by(|a, b| b.until.cmp(&a.until).then_with(|| a.who.cmp(&b.who)));
        bans
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets those that are over.
    pub fn sweep(&self, now: Micros) {
        if !self.is_empty() {
            let mut bans = self.bans.write();
            bans.retain(|ban| ban.until > now);
            self.count.store(bans.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ban(who: &str, until: Micros, why: Why) -> Ban {
        Ban { who: who.parse().unwrap(), why, until, metrics: None }
    }

    fn login() -> Why {
        Why::Penalty("login".into())
    }

    #[test]
    fn a_ban_lasts_its_time_or_until_it_is_lifted() {
        let bans = Bans::default();
        let (ada, bob) = (Part::User("ada"), Part::User("bob"));
        assert!(bans.find(ada, 0).is_none());
        assert!(bans.add(ban("user:ada", 100, login()), 0));
        assert!(!bans.add(ban("user:ada", 200, login()), 50), "longer, not again");
        assert_eq!(bans.find(ada, 150).unwrap().until, 200);
        assert!(bans.find(bob, 150).is_none());
        assert_eq!(bans.list(150).len(), 1);
        assert!(bans.find(ada, 200).is_none());
        bans.sweep(200);
        assert!(!bans.lift(&"user:ada".parse().unwrap()), "over already");
        bans.add(ban("user:bob", 300, login()), 200);
        assert!(bans.lift(&"user:bob".parse().unwrap()));
        assert!(bans.find(bob, 200).is_none());
    }

    #[test]
    fn what_the_operator_says_is_not_shortened_by_a_penalty() {
        let bans = Bans::default();
        let (ip, who) = (Part::Ip([192, 0, 2, 1].into()), "ip:192.0.2.1".parse().unwrap());
        bans.add(ban("ip:192.0.2.1", 1000, Why::Operator(None)), 0);
        bans.add(ban("ip:192.0.2.1", 10, login()), 0);
        assert_eq!(bans.find(ip, 500).unwrap().why, Why::Operator(None));
        bans.withdraw(&who);
        assert!(bans.find(ip, 5).is_none());
        bans.add(ban("ip:192.0.2.1", 10, login()), 0);
        bans.withdraw(&who);
        assert!(bans.find(ip, 5).is_some(), "that was no operator");
    }
}
