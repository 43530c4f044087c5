//! What came of all requests: in all, over time, by route, and for everybody who asked.

use super::callers::{Callers, Principal};
use super::replay::Logged;
use super::timeline::Timeline;
use super::trial::{Arrival, Outcome};
use crate::clock::{Micros, SECOND};
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// What came of all requests.
#[derive(Debug, Default)]
pub struct Tally {
    /// By outcome.
    pub passed: u64,
    /// See `passed`.
    pub exempt: u64,
    /// See `passed`.
    pub shed: u64,
    /// See `passed`.
    pub rejected: u64,
    /// See `passed`.
    pub banned: u64,
    /// Of those that no limit rejects, what the gateway itself would refuse, by status.
    pub refused: std::collections::BTreeMap<u16, u64>,
    /// Requests that were answered with 429 when they were there.
    pub logged_429: u64,
    /// With another configuration: rejected by this one alone, by the other alone.
    pub newly: u64,
    /// See `newly`.
    pub relieved: u64,
    /// By route; one beyond for those that have none.
    pub routes: Vec<OfRoute>,
    /// Over time.
    pub timeline: Timeline,
    callers: [Vec<OfCaller>; 3],
    /// How often which limit rejected whom.
    by_limit: HashMap<(Principal, u32), u32, RandomState>,
}

/// Requests for a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfRoute {
    /// How many.
    pub requests: u64,
    /// Those that are rejected.
    pub rejected: u64,
    /// Those that another configuration rejects.
    pub baseline: u64,
}

/// Requests of a caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfCaller {
    /// How many.
    pub requests: u32,
    /// Those that are rejected.
    pub rejected: u32,
    /// Those that another configuration rejects.
    pub baseline: u32,
    /// The minute that is counted, its requests and rejects.
    minute: u32,
    asked: u32,
    turned_away: u32,
    /// The minute with most rejects, its requests and rejects.
    pub worst: Minute,
}

/// A minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Minute {
    /// Minutes since 1970.
    pub number: u32,
    /// Requests.
    pub requests: u32,
    /// Rejects.
    pub rejected: u32,
}

const MINUTE: Micros = 60 * SECOND;

impl OfCaller {
    #[inline]
    fn note(&mut self, time: Micros, rejected: bool, baseline: bool) {
        self.requests = self.requests.saturating_add(1);
        self.rejected = self.rejected.saturating_add(rejected.into());
        self.baseline = self.baseline.saturating_add(baseline.into());
        let minute = (time / MINUTE) as u32;
        if minute != self.minute {
            (self.minute, self.asked, self.turned_away) = (minute, 0, 0);
        }
        self.asked = self.asked.saturating_add(1);
        if rejected {
            self.turned_away = self.turned_away.saturating_add(1);
        }
        // A minute that is the worst so far goes on counting.
        let worst = rejected && self.turned_away > self.worst.rejected;
        if worst || (self.worst.number == minute && self.worst.rejected > 0) {
            let (number, requests, rejected) = (minute, self.asked, self.turned_away);
            self.worst = Minute { number, requests, rejected };
        }
    }
}

impl Tally {
    /// Counts a request and what came of it, by this configuration and, perhaps, another.
    #[inline]
    pub fn count(
        &mut self,
        callers: &Callers,
        logged: Logged,
        arrival: &Arrival,
        outcome: Outcome,
        baseline: Option<Outcome>,
    ) {
        let Logged { time, status, .. } = logged;
        let rejected = outcome.is_rejection();
        let other = baseline.is_some_and(Outcome::is_rejection);
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Exempt => self.exempt += 1,
            Outcome::Shed => self.shed += 1,
            Outcome::Rejected(_) => self.rejected += 1,
            Outcome::Banned(_) => self.banned += 1,
        }
        if arrival.refused != 0 && !rejected {
            *self.refused.entry(arrival.refused).or_default() += 1;
        }
        self.logged_429 += u64::from(status == 429);
        if baseline.is_some() {
            self.newly += u64::from(rejected && !other);
            self.relieved += u64::from(other && !rejected);
        }
        let way = arrival.way as usize;
        if way >= self.routes.len() {
            self.routes.resize(way + 1, OfRoute::default());
        }
        let route = &mut self.routes[way];
        route.requests += 1;
        route.rejected += u64::from(rejected);
        route.baseline += u64::from(other);
        self.timeline.count(time, rejected, other);
        let principal = arrival.principal(callers);
        if let Some(limit) = outcome.limit() {
            let rejects = self.by_limit.entry((principal, limit)).or_default();
            *rejects = rejects.saturating_add(1);
        }
        self.caller(principal).note(time, rejected, other);
    }

    #[inline]
    fn caller(&mut self, principal: Principal) -> &mut OfCaller {
        let (kind, number) = match principal {
            Principal::Ip(number) => (0, number as usize),
            Principal::User(number) => (1, number as usize),
            Principal::ApiKey(number) => (2, number as usize),
        };
        let callers = &mut self.callers[kind];
        if number >= callers.len() {
            callers.resize(number + 1, OfCaller::default());
        }
        &mut callers[number]
    }

    /// All requests.
    pub fn requests(&self) -> u64 {
        self.passed + self.exempt + self.shed + self.rejected + self.banned
    }

    /// Everybody who asked.
    pub fn callers(&self) -> impl Iterator<Item = (Principal, &OfCaller)> {
        let of = [Principal::Ip, Principal::User, Principal::ApiKey];
        let all = self.callers.iter().zip(of).flat_map(|(callers, of)| {
            callers.iter().enumerate().map(move |(number, caller)| (of(number as u32), caller))
        });
        all.filter(|(_, caller)| caller.requests > 0)
    }

    /// Which limits rejected these callers, and how often, most first.
    pub fn limits_of(&self, who: &[Principal]) -> Vec<Vec<(u32, u32)>> {
        let mut all = vec![Vec::new(); who.len()];
        let places: HashMap<Principal, usize> = who.iter().copied().zip(0..).collect();
        for ((principal, limit), rejects) in &self.by_limit {
            if let Some(place) = places.get(principal) {
                all[*place].push((*limit, *rejects));
            }
        }
        for limits in &mut all {
            limits.sort_by_key(|(limit, rejects)| (std::cmp::Reverse(*rejects), *limit));
        }
        all
    }
}
