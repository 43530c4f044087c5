//! Callers to whom other rates apply for a while: twice their rate for an hour, or half of it.
//!
//! A grant changes what a limit allows, not what was used of it: whoever has used 5 of 5 has used 5
//! of 10 under a grant of twice the rate, and 5 of 5 again when it is over. As long as there are no
//! grants, looking for one is one load.

use super::who::{ByCaller, Who};
use crate::clock::Micros;
use crate::store::Part;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The least and the most that a rate can be multiplied by.
pub const FACTORS: std::ops::RangeInclusive<f64> = 0.001..=1000.0;

/// All grants.
#[derive(Debug, Default)]
pub struct Grants {
    count: AtomicUsize,
    grants: RwLock<ByCaller<Vec<Grant>>>,
}

/// One grant.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// To whom.
    pub who: Who,
    /// For which limit; all that count by this attribute if none is named.
    pub limit: Option<Box<str>>,
    /// What their rate is multiplied by.
    pub factor: f64,
    /// Until when.
    pub until: Micros,
    /// Why.
    pub reason: Option<Box<str>>,
}

impl Grants {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// How many callers have one.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// What a limit is multiplied by for whoever these are: the word on this very limit goes before
    /// the one on all, and where several attributes have one, the most generous counts.
    pub fn factor(&self, parts: &[Part<'_>], limit: &str, now: Micros) -> Option<f64> {
        self.find(parts, limit, now).map(|(factor, _)| factor)
    }

    /// The same, and until when.
    pub fn find(&self, parts: &[Part<'_>], limit: &str, now: Micros) -> Option<(f64, Micros)> {
        let grants = self.grants.read();
        let of_part = |part: &Part<'_>| {
            let mut valid = grants.get(*part)?.iter().filter(|grant| grant.until > now);
            let own = valid.clone().find(|grant| grant.limit.as_deref() == Some(limit));
            let found = own.or_else(|| valid.find(|grant| grant.limit.is_none()));
            found.map(|grant| (grant.factor, grant.until))
        };
        parts.iter().filter_map(of_part).max_by(|(a, _), (b, _)| a.total_cmp(b))
    }

    /// Factors by which somebody is allowed less than the limits say. What they have used takes longer
    /// to come back than anybody else's.
    pub fn stricter(&self) -> Vec<f64> {
        let grants = self.grants.read();
        let less = grants.values().flatten().map(|grant| grant.factor).filter(|f| *f < 1.0);
        let mut factors: Vec<f64> = less.collect();
        factors.sort_by(f64::total_cmp);
        factors.dedup();
        factors
    }

    /// Grants, in the place of what was granted for the same limit before.
    pub fn add(&self, grant: Grant) {
        let mut grants = self.grants.write();
        let mut all = grants.remove(&grant.who).unwrap_or_default();
        all.retain(|before| before.limit != grant.limit);
        let who = grant.who.clone();
        all.push(grant);
        grants.insert(who, all);
        self.count.store(grants.len(), Ordering::Relaxed);
    }

    /// Takes a grant back.
    pub fn withdraw(&self, who: &Who, limit: Option<&str>) {
        let mut grants = self.grants.write();
        let mut all = grants.remove(who).unwrap_or_default();
        all.retain(|grant| grant.limit.as_deref() != limit);
        if !all.is_empty() {
            grants.insert(who.clone(), all);
        }
        self.count.store(grants.len(), Ordering::Relaxed);
    }

    /// Those in force, the longest first.
    pub fn list(&self, now: Micros) -> Vec<Grant> {
        let grants = self.grants.read();
        let valid = grants.values().flatten().filter(|grant| grant.until > now);
        let mut all: Vec<Grant> = valid.cloned().collect();
        all.sort_by(|a, b| b.until.cmp(&a.until).then_with(|| a.who.cmp(&b.who)));
        all
    }

    /// Forgets those that are over.
    pub fn sweep(&self, now: Micros) {
        if !self.is_empty() {
            let mut grants = self.grants.write();
            grants.retain(|all| {
                all.retain(|grant| grant.until > now);
                !all.is_empty()
            });
            self.count.store(grants.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(who: &str, limit: Option<&str>, factor: f64, until: Micros) -> Grant {
        let (who, limit) = (who.parse().unwrap(), limit.map(Into::into));
        Grant { who, limit, factor, until, reason: None }
    }

    #[test]
    fn the_word_on_a_limit_goes_before_the_word_on_all() {
        let grants = Grants::default();
        let acme = [Part::ApiKey("acme")];
        grants.add(grant("api_key:acme", None, 2.0, 100));
        grants.add(grant("api_key:acme", Some("search"), 0.5, 50));
        assert_eq!(grants.factor(&acme, "login", 0), Some(2.0));
        assert_eq!(grants.factor(&acme, "search", 0), Some(0.5));
        assert_eq!(grants.factor(&acme, "search", 50), Some(2.0), "over");
        assert_eq!(grants.factor(&[Part::User("acme")], "login", 0), None);
        grants.add(grant("api_key:acme", None, 3.0, 100));
        assert_eq!((grants.factor(&acme, "login", 0), grants.list(0).len()), (Some(3.0), 2));
        let pair = [Part::ApiKey("acme"), Part::Ip([192, 0, 2, 1].into())];
        grants.add(grant("ip:192.0.2.1", None, 4.0, 100));
        assert_eq!(grants.factor(&pair, "login", 0), Some(4.0));
        grants.withdraw(&"api_key:acme".parse().unwrap(), None);
        assert_eq!(grants.factor(&acme, "login", 0), None);
        grants.sweep(100);
        assert!(grants.is_empty());
    }
}
