//! Banned callers, and until when they are banned.
//!
//! A limit's `penalty` counts a caller's rejects; beyond its number the caller is banned from all
//! routes. An operator can ban and unban as well. Each gateway counts the rejects that it gives, in a
//! bounded table of its own: neither a full store nor a flood of callers bans anyone. As long as there
//! are no bans, looking for one is one load.

use super::who::{ByCaller, Who};
use crate::clock::Micros;
use crate::limit::Quota;
use crate::metrics::LimitMetrics;
use crate::store::{Charge, LimitId, Memory, Part, Registry, Subject};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bans for ignored rejects there are at most. Beyond that, the ban that ends first is lifted.
const MOST: usize = 100_000;

/// How many callers' rejects are counted at a time.
const COUNTED: usize = 100_000;

/// How many shards of the counters one sweep goes through.
const SWEPT: usize = 16;

/// All bans.
#[derive(Debug)]
pub struct Bans {
    count: AtomicUsize,
    table: RwLock<Table>,
    /// How many rejects callers have had, by limit.
    rejects: Memory,
}

#[derive(Debug, Default)]
struct Table {
    by_caller: ByCaller<Arc<Ban>>,
    /// The same, the first to end first: those for ignored rejects, and the operator's.
    penalties: BTreeSet<(Micros, Who)>,
    operators: BTreeSet<(Micros, Who)>,
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

/// Why a caller is banned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The caller ignored the rejects of this limit.
    Penalty(Arc<str>),
    /// The operator banned the caller, and may have given a reason.
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

    fn is_penalty(&self) -> bool {
        matches!(self, Self::Penalty(_))
    }
}

impl Default for Bans {
    fn default() -> Self {
        Self::with(Memory::new(COUNTED))
    }
}

impl Bans {
    /// No bans, and rejects that were counted before a restart.
    pub(crate) fn with(rejects: Memory) -> Self {
        rejects.set_max_keys(COUNTED);
        Self { count: AtomicUsize::default(), table: RwLock::default(), rejects }
    }

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
        self.table.read().by_caller.get(part).cloned()
    }

    /// Bans a caller; says whether they were not banned already. A penalty does not replace an
    /// operator's ban.
    pub fn add(&self, ban: Ban, now: Micros) -> bool {
        let table = &mut *self.table.write();
        let before = table.by_caller.get(ban.who.part()).filter(|before| before.until > now);
        let fresh = before.is_none();
        let stays = before.is_some_and(|before| !before.why.is_penalty()) && ban.why.is_penalty();
        if !stays {
            table.insert(ban);
            if table.penalties.len() > MOST {
                table.drop_first_penalty();
            }
        }
        self.count.store(table.by_caller.len(), Ordering::Relaxed);
        fresh
    }

    /// Counts a reject of a caller; says whether they have had more than are tolerated.
    pub fn count_reject(
        &self,
        limit: LimitId,
        tolerated: &Quota,
        subject: Subject<'_>,
        now: Micros,
    ) -> bool {
        let mut charges = [Charge::new(limit, tolerated, subject)];
        let decision = self.rejects.charge_all(&mut charges, now);
        // In a full table strangers share a counter, which says nothing of one of them.
        decision.rejected_by.is_some() && !self.rejects.is_pooled(&charges[0])
    }

    /// The number under which rejects of a limit are counted.
    pub fn limit_id(&self, name: &str) -> LimitId {
        self.rejects.limit_id(name)
    }

    /// Tells for which limits rejects are counted from now on.
    pub fn adopt(&self, registry: Registry) {
        self.rejects.adopt(registry);
    }

    /// Forgets how many rejects a caller has had.
    pub fn forget_rejects(&self, part: Part<'_>) {
        self.rejects.forget_everywhere(&Subject(&[part]));
    }

    /// The counted rejects, to be saved.
    pub(crate) fn rejects(&self) -> &Memory {
        &self.rejects
    }

    /// Lifts a caller's ban; says whether there was one.
    pub fn lift(&self, who: &Who) -> bool {
        let mut table = self.table.write();
        let lifted = table.remove(who);
        self.count.store(table.by_caller.len(), Ordering::Relaxed);
        lifted
    }

    /// Lifts a caller's ban if the operator set it.
    pub fn withdraw(&self, who: &Who) {
        self.lift_if(who, |why| !why.is_penalty());
    }

    /// Lifts it if it was for ignoring rejects.
    pub fn forgive(&self, who: &Who) {
        self.lift_if(who, Why::is_penalty);
    }

    fn lift_if(&self, who: &Who, such: impl Fn(&Why) -> bool) {
        if self.look_up(who.part()).is_some_and(|ban| such(&ban.why)) {
            self.lift(who);
        }
    }

    /// Those in force, the longest first.
    pub fn list(&self, now: Micros) -> Vec<Arc<Ban>> {
        let mut bans: Vec<_> = self.table.read().by_caller.values().cloned().collect();
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

    /// Forgets those that are over, and rejects that no longer count.
    pub fn sweep(&self, now: Micros) {
        self.rejects.sweep(SWEPT, now);
        if !self.is_empty() {
            let mut table = self.table.write();
            table.drop_ended(now);
            self.count.store(table.by_caller.len(), Ordering::Relaxed);
        }
    }
}

impl Table {
    fn insert(&mut self, ban: Ban) {
        self.remove(&ban.who);
        self.by_end(&ban.why).insert((ban.until, ban.who.clone()));
        self.by_caller.insert(ban.who.clone(), Arc::new(ban));
    }

    fn remove(&mut self, who: &Who) -> bool {
        let Some(ban) = self.by_caller.remove(who) else { return false };
        self.by_end(&ban.why).remove(&(ban.until, who.clone()));
        true
    }

    fn by_end(&mut self, why: &Why) -> &mut BTreeSet<(Micros, Who)> {
        if why.is_penalty() { &mut self.penalties } else { &mut self.operators }
    }

    /// Lifts the penalty that ends first.
    fn drop_first_penalty(&mut self) {
        if let Some((_, who)) = self.penalties.pop_first() {
            self.by_caller.remove(&who);
        }
    }

    /// Forgets the bans that are over.
    fn drop_ended(&mut self, now: Micros) {
        for by_end in [&mut self.penalties, &mut self.operators] {
            while by_end.first().is_some_and(|(until, _)| *until <= now)
                && let Some((_, who)) = by_end.pop_first()
            {
                self.by_caller.remove(&who);
            }
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
