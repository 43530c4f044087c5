//! Who gets the next request.
//!
//! As long as all endpoints are well, a pick looks at one byte of one or two of them. Otherwise there
//! are three rounds, each with the upstream's own way of balancing: those in service, where one that
//! is back takes only its share; all in service; and at last those that were ejected, since to ask
//! somebody who failed is better than to ask nobody. Unhealthy ones are never asked.

use super::endpoint::{Condition, Endpoint};
use crate::clock::Micros;
use crate::config::model::Balance;
use smallvec::SmallVec;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The endpoints of an upstream at one time, and their shares.
#[derive(Debug)]
pub struct Members {
    /// Never the same for two sets of one upstream.
    pub version: u64,
    /// Whom requests are spread over.
    pub endpoints: Box<[Arc<Endpoint>]>,
    /// Each endpoint's share, relative to the others'.
    weights: Box<[u32]>,
    /// Endpoints in turn, each as often as its weight says, spread evenly.
    turns: Box<[usize]>,
    turn: AtomicUsize,
    /// What tells endpoints apart when a caller's address decides: the same in every gateway.
    seeds: Box<[u64]>,
}

/// What a pick goes by.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// How to spread requests.
    pub balance: Balance,
    /// How long who is back takes to get its full share.
    pub slow_start: Duration,
    /// When it is.
    pub now: Micros,
    /// Who asks.
    pub caller: IpAddr,
    /// Who was asked already.
    pub tried: &'a [usize],
}

impl Members {
    /// These endpoints, each with its weight.
    pub fn new(version: u64, members: Vec<(Arc<Endpoint>, u32)>) -> Self {
        let (endpoints, weights): (Vec<_>, Vec<_>) = members.into_iter().unzip();
        Self {
            version,
            turns: turns(&weights),
            turn: AtomicUsize::new(0),
            seeds: endpoints.iter().map(|endpoint| seed(&endpoint.name)).collect(),
            endpoints: endpoints.into(),
            weights: weights.into(),
        }
    }

    /// The endpoint for the next request, by its index. `None` if there is nobody to ask.
    pub fn pick(&self, wish: &Wish<'_>) -> Option<usize> {
        let mut turn = None;
        if wish.tried.is_empty() {
            let quick = match wish.balance {
                _ if self.endpoints.len() < 2 => (!self.endpoints.is_empty()).then_some(0),
                Balance::RoundRobin => {
                    turn = Some(self.next_turn());
                    turn
                }
                Balance::LeastRequests => {
                    let one = self.turns[fastrand::usize(..self.turns.len())];
                    let other = another(&self.turns, one);
                    let both = self.endpoints[one].is_well() && self.endpoints[other].is_well();
                    both.then(|| self.less_busy(one, other))
                }
                Balance::HashIp => None,
            };
            if let Some(index) = quick.filter(|index| self.endpoints[*index].is_well()) {
                return Some(index);
            }
        }
        self.pick_carefully(wish, turn)
    }

    #[cold]
    fn pick_carefully(&self, wish: &Wish<'_>, turn: Option<usize>) -> Option<usize> {
        let fraction = match wish.balance {
            // The same callers come back first, so that each of them moves once.
            Balance::HashIp => (mix(hash(wish.caller)) >> 11) as f64 / (1_u64 << 53) as f64,
            _ => fastrand::f64(),
        };
        let rounds: [&dyn Fn(Condition) -> bool; 3] = [
            &|condition| matches!(condition, Condition::InService(share) if fraction < share),
            &|condition| matches!(condition, Condition::InService(_)),
            // A request that failed once already is not sent where it will fail again.
            &|condition| condition != Condition::Unhealthy && wish.tried.is_empty(),
        ];
        rounds.iter().find_map(|takes| {
            self.choose(wish, turn, |index| {
                let condition = self.endpoints[index].condition(wish.now, wish.slow_start);
                !wish.tried.contains(&index) && takes(condition)
            })
        })
    }

    /// One of those that take it, by the upstream's own way of balancing.
    fn choose(
        &self,
        wish: &Wish<'_>,
        turn: Option<usize>,
        takes: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if wish.balance == Balance::HashIp {
            let caller = hash(wish.caller);
            let taking = (0..self.endpoints.len()).filter(|index| takes(*index));
            let scores = taking.map(|index| (index, self.score(index, caller)));
            return scores.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(index, _)| index);
        }
        // Whoever has its turn and does not take it is stood in for by any of the others: to give it
        // to the next one would have that one do the work of two.
        turn.filter(|index| takes(*index)).or_else(|| {
            let turns = self.turns.iter().copied();
            let taking: SmallVec<[usize; 64]> = turns.filter(|index| takes(*index)).collect();
            let one = *taking.get(fastrand::usize(..taking.len().max(1)))?;
            Some(self.less_busy(one, another(&taking, one)))
        })
    }

    /// How many could be asked, were it not for this one.
    pub fn others_in_service(&self, id: u64, now: Micros) -> usize {
        let others = self.endpoints.iter().filter(|endpoint| endpoint.id != id);
        others.filter(|endpoint| endpoint.is_in_service(now)).count()
    }

    fn next_turn(&self) -> usize {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.turns.get(turn % self.turns.len().max(1)).copied().unwrap_or(0)
    }

    fn less_busy(&self, one: usize, other: usize) -> usize {
        if self.load(other) < self.load(one) { other } else { one }
    }

    /// Requests under way at an endpoint, relative to its weight, in fine units.
    fn load(&self, index: usize) -> u64 {
        (u64::from(self.endpoints[index].in_flight()) << 16) / u64::from(self.weights[index])
    }

    /// Highest random weight: each endpoint throws a die of its own for each caller, and whoever
    /// comes or goes moves nobody but its own callers.
    fn score(&self, index: usize, caller: u64) -> f64 {
        // Never zero, so that the logarithm is finite.
        let thrown = ((mix(caller ^ self.seeds[index]) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        f64::from(self.weights[index]) / -thrown.ln().min(-f64::MIN_POSITIVE)
    }
}

/// One of those in turn that is not the first one, if there is any. The turns hold each endpoint as
/// often as its weight, so picks are weighted.
fn another(turns: &[usize], one: usize) -> usize {
    let start = fastrand::usize(..turns.len());
    let (before, after) = turns.split_at(start);
    after.iter().chain(before).copied().find(|other| *other != one).unwrap_or(one)
}

/// The smooth weighted order: of weights 5, 1, 1 it makes a a b a c a a, not a a a a a b c.
fn turns(weights: &[u32]) -> Box<[usize]> {
    let total: u32 = weights.iter().sum();
    let mut standing = vec![0_i64; weights.len()];
    (0..total)
        .map(|_| {
            for (standing, weight) in standing.iter_mut().zip(weights) {
                *standing += i64::from(*weight);
            }
            // The first of those that stand highest.
            let next = (0..standing.len()).rev().max_by_key(|&i| standing[i]).unwrap_or(0);
            standing[next] -= i64::from(total);
            next
        })
        .collect()
}

/// A hash that is the same in every process: a fleet sends a caller to the same endpoint.
fn hash(ip: IpAddr) -> u64 {
    match ip {
        IpAddr::V4(ip) => mix(u64::from(ip.to_bits())),
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            mix(mix((bits >> 64) as u64) ^ bits as u64)
        }
    }
}

fn seed(name: &str) -> u64 {
    name.bytes().fold(0, |seed, byte| mix(seed ^ u64::from(byte)))
}

/// Every bit of the result depends on every bit given (the finisher of `SplitMix64`).
fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::{self, Eject};
    use crate::upstream::endpoint::Addresses;
    use std::net::Ipv4Addr;

    const NOW: Micros = 1_000_000_000;

    fn members(weights: &[u32]) -> Members {
        let endpoint = |(port, weight): (u16, &u32)| {
            let config =
                model::Endpoint { https: false, host: "127.0.0.1".into(), port, weight: *weight };
            (Arc::new(Endpoint::new(&config, Addresses::new(), None)), *weight)
        };
        Members::new(1, (1..).zip(weights).map(endpoint).collect())
    }

    fn wish(balance: Balance, tried: &[usize]) -> Wish<'_> {
        let (slow_start, caller) = (Duration::from_secs(10), Ipv4Addr::LOCALHOST.into());
        Wish { balance, slow_start, now: NOW, caller, tried }
    }

    fn counts(members: &Members, wish: impl Fn(u32) -> Wish<'static>) -> Vec<usize> {
        let mut counts = vec![0; members.endpoints.len()];
        for number in 0..10_000 {
            counts[members.pick(&wish(number)).expect("somebody to ask")] += 1;
        }
        counts
    }

    const ALL: [Balance; 3] = [Balance::RoundRobin, Balance::LeastRequests, Balance::HashIp];

    fn callers(balance: Balance) -> impl Fn(u32) -> Wish<'static> {
        move |number| Wish { caller: Ipv4Addr::from_bits(number).into(), ..wish(balance, &[]) }
    }

    #[test]
    fn round_robin_goes_by_weight_and_spreads_evenly() {
        let members = members(&[5, 1, 1]);
        let picks: Vec<_> =
            (0..14).map(|_| members.pick(&wish(Balance::RoundRobin, &[])).unwrap()).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn every_way_of_balancing_goes_by_weight() {
        for balance in ALL {
            let members = members(&[1, 2, 5]);
            let seen = counts(&members, callers(balance));
            for (count, share) in seen.iter().zip([0.125, 0.25, 0.625]) {
                let expected = 10_000.0 * share;
                assert!((*count as f64 - expected).abs() < 400.0, "{balance:?}: {seen:?}");
            }
        }
    }

    #[test]
    fn the_less_busy_endpoint_is_preferred() {
        let members = members(&[1, 1]);
        let busy: Vec<_> = (0..50).map(|_| members.endpoints[0].begin()).collect();
        let seen = counts(&members, callers(Balance::LeastRequests));
        assert_eq!(seen, [0, 10_000], "of two, both are looked at");
        drop(busy);
        assert_eq!(members.load(0), 0);
    }

    #[test]
    fn a_caller_stays_where_it_is_when_others_come_or_go() {
        let (three, four) = (members(&[1, 1, 1]), members(&[1, 1, 1, 1]));
        let wish = callers(Balance::HashIp);
        let (mut moved, mut away) = (0, 0);
        for number in 0..10_000 {
            let before = three.pick(&wish(number)).unwrap();
            assert_eq!(three.pick(&wish(number)), Some(before));
            match four.pick(&wish(number)).unwrap() {
                3 => moved += 1,
                after => assert_eq!(after, before, "nobody moves but to the new one"),
            }
            three.endpoints[1].fell_ill();
            let without = three.pick(&wish(number)).unwrap();
            assert!(without != 1);
            if before == 1 {
                away += usize::from(without == 0);
            } else {
                assert_eq!(without, before, "nobody moves but its own callers");
            }
            three.endpoints[1].recovered(0);
        }
        assert!((2200..2800).contains(&moved), "{moved}");
        assert!((1300..2000).contains(&away), "they are spread over the others: {away}");
    }

    #[test]
    fn who_is_out_is_not_asked_and_who_is_back_gets_a_share() {
        let eject = Eject { after: 1, lasts: Duration::from_secs(30), keep: 0.0 };
        for balance in ALL {
            let members = members(&[1, 1, 1]);
            members.endpoints[0].fell_ill();
            members.endpoints[1].eject(NOW, &eject);
            assert_eq!(counts(&members, callers(balance)), [0, 0, 10_000], "{balance:?}");
            // Thirty-five seconds later the ejected one has half of its share.
            let later = |number| Wish { now: NOW + 35_000_000, ..callers(balance)(number) };
            let seen = counts(&members, later);
            assert_eq!(seen[0], 0, "{balance:?}: {seen:?}");
            assert!((1800..3200).contains(&seen[1]), "{balance:?}: {seen:?}");
        }
    }

    #[test]
    fn the_ejected_are_asked_if_there_is_nobody_else_and_the_unhealthy_never() {
        let eject = Eject { after: 1, lasts: Duration::from_secs(30), keep: 0.0 };
        for balance in ALL {
            let members = members(&[1, 1]);
            members.endpoints[0].fell_ill();
            members.endpoints[1].eject(NOW, &eject);
            assert_eq!(members.pick(&wish(balance, &[])), Some(1));
            assert_eq!(members.pick(&wish(balance, &[0])), None, "no second try there");
            members.endpoints[1].fell_ill();
            assert_eq!(members.pick(&wish(balance, &[])), None);
        }
    }

    #[test]
    fn a_second_try_goes_elsewhere() {
        for balance in ALL {
            let members = members(&[1, 1, 1]);
            for _ in 0..100 {
                assert_eq!(members.pick(&wish(balance, &[0, 2])), Some(1));
            }
            assert_eq!(members.pick(&wish(balance, &[0, 1, 2])), None);
        }
    }

    #[test]
    fn nobody_is_nobody() {
        for balance in ALL {
            assert_eq!(members(&[]).pick(&wish(balance, &[])), None);
        }
    }
}
