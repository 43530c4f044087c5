//! What admitted requests have of a shared store until they end: places in flight and in queues,
//! costs that are not known yet.

use super::background::{Amendment, Change};
use super::denials::skew;
use super::script::Decide;
use super::wire::Answer;
use super::{Flying, Shared, Trouble, wire};
use crate::clock::Micros;
use crate::config::model::OnFailure;
use crate::limit::{Kind, Seen};
use crate::store::{Charge, Hold, InStore, LimitId, NoMore, Settled, Subject};
use std::collections::HashMap;
use tokio::sync::oneshot;
use tokio::time::Instant;

impl Shared {
    /// What an admitted charge must give back, or settle.
    pub(super) fn hold(
        &self,
        index: usize,
        charge: &Charge<'_>,
        skew: i64,
        flight: u64,
    ) -> Option<Hold> {
        let quota = charge.quota;
        let at_once = quota.is_queue() && charge.verdict.delay() == 0;
        if !charge.verdict.allowed || at_once || !(charge.settles || quota.holds()) {
            return None;
        }
        Some(self.held(index, charge, skew, flight))
    }

    /// What a charge has taken.
    fn held(&self, index: usize, charge: &Charge<'_>, skew: i64, flight: u64) -> Hold {
        let key = self.name_of(charge);
        Hold {
            charge: index,
            limit: charge.limit,
            key: 0,
            quota: charge.quota.clone(),
            admitted: charge.verdict,
            overflow: false,
            granted: charge.granted,
            on_failure: charge.on_failure,
            shared: Some(InStore { key, skew, flight }),
        }
    }

    /// Charges more to an admitted request, if there is so much. While the store is away, the limit
    /// does as its `on_failure` says: what passes is charged when the store is back.
    pub(super) async fn extend(
        &self,
        hold: &mut Hold,
        more: u32,
        now: Micros,
    ) -> Result<(), NoMore> {
        let Some(InStore { key, .. }) = &hold.shared else { return Ok(()) };
        if !self.is_in_force(hold, now) {
            self.extend_unasked(hold, more, now);
            return Ok(());
        }
        let mut command = Decide::new(1, "", self.own_time.then_some(now));
        command.key().extend_from_slice(key);
        command.layer(wire::layer(&hold.quota, 0, more, self.store_now(now)));
        let run = self.run(&self.scripts.decide, command.finish(), now);
        let reply = self.guarded(now, Instant::now() + self.options.timeout, run).await;
        let any = Charge::new(LimitId(0), &hold.quota, Subject::EVERYONE);
        let answer = reply.and_then(|reply| Answer::read(&reply, &[any]).ok_or(Trouble::Refused));
        let Ok(Answer { now: at, admitted, before }) = answer else {
            return match hold.on_failure {
                OnFailure::Reject => Err(NoMore::Away),
                OnFailure::Local | OnFailure::Allow => {
                    self.extend_unasked(hold, more, now);
                    Ok(())
                }
            };
        };
        let Some(before) = before.first() else { return Err(NoMore::Away) };
        let said = hold.quota.check(before, at, more).by_store();
        if !admitted {
            return Err(NoMore::Over(said));
        }
        hold.admitted = said;
        Ok(())
    }

    /// Charges more without a decision.
    fn extend_unasked(&self, hold: &mut Hold, more: u32, now: Micros) {
        let none = Hold { admitted: hold.admitted.unasked(0), ..hold.clone() };
        drop(self.settle(&none, more, now));
        hold.admitted = hold.admitted.unasked(more);
    }

    /// Gives a charge back that was taken for nothing; the store is told in the background.
    pub(super) fn refund(&self, charge: &Charge<'_>, now: Micros) -> Settled {
        let hold = self.held(0, charge, skew(charge.verdict.at, now), 0);
        let returns = Some(self.key(charge));
        if charge.quota.can_settle() {
            return self.settle_returning(&hold, 0, now, returns).unwrap_or_default();
        }
        let change = match hold.admitted.state() {
            _ if charge.quota.kind() == Kind::Log => Change::Strike(charge.verdict.at),
            Some(after) if hold.is_queue() => Change::Leave(after),
            _ => return Settled::default(),
        };
        let layer = wire::layer(charge.quota, 0, charge.verdict.cost, self.store_now(now));
        let (done, told) = oneshot::channel();
        let key = self.name_of(charge);
        self.queue.put(Amendment { key, layer, change, done: Some(done), returns });
        Settled { verdict: None, told: Some(told) }
    }

    /// The request is in flight from now on: this gateway says so as long as it is.
    pub(super) fn take_off(&self, holds: &[Hold]) {
        for hold in holds.iter().filter(|hold| hold.quota.is_concurrency()) {
            let Some(InStore { key, flight, .. }) = &hold.shared else { continue };
            let mut flying = self.flying.lock();
            let here = flying
                .entry(key.clone())
                .or_insert_with(|| Flying { flights: HashMap::new(), quota: hold.quota.clone() });
            here.flights.insert(*flight, hold.admitted.cost);
        }
    }

    /// What this gateway has in flight in a counter, one name for each place.
    pub(super) fn flights_in(&self, key: &[u8]) -> Vec<u8> {
        let flying = self.flying.lock();
        let flights = flying.get(key).map(|flying| &flying.flights);
        let places = flights.into_iter().flatten().flat_map(|(flight, places)| {
            (1..=*places).map(|place| format!("{}.{place} ", self.flight_name(*flight)))
        });
        places.collect::<String>().into_bytes()
    }

    /// A request is not in flight any more, as far as this gateway says.
    fn land(&self, hold: &Hold) {
        let Some(place) = hold.shared.as_ref().filter(|_| hold.quota.is_concurrency()) else {
            return;
        };
        let mut flying = self.flying.lock();
        if let Some(here) = flying.get_mut(&place.key) {
            here.flights.remove(&place.flight);
            if here.flights.is_empty() {
                flying.remove(&place.key);
            }
        }
    }

    pub(super) fn release(&self, hold: &Hold) {
        let Some(InStore { key, flight, .. }) = &hold.shared else { return };
        self.land(hold);
        let change = match hold.admitted.state() {
            _ if hold.quota.is_concurrency() => Change::Land(*flight),
            Some(after) if hold.quota.is_queue() && self.is_in_force(hold, self.clock.now()) => {
                Change::Leave(after)
            }
            _ => return,
        };
        let layer = wire::layer(&hold.quota, 0, hold.admitted.cost, hold.admitted.at);
        self.queue.put(Amendment { key: key.clone(), layer, change, done: None, returns: None });
    }

    /// Whether the limit still has the numbers by which the request was admitted.
    fn is_in_force(&self, hold: &Hold, now: Micros) -> bool {
        let registry = self.registry.load();
        hold.is_granted(now)
            || registry.get(&hold.limit).is_some_and(|quotas| quotas.contains(&hold.quota))
    }

    /// The store is told in the background; what the caller hears is what the limit holds then, as
    /// far as this gateway knows.
    pub(super) fn settle(&self, hold: &Hold, actual: u32, now: Micros) -> Option<Settled> {
        self.settle_returning(hold, actual, now, None)
    }

    /// The same; `returns`: what this counter denied before is forgotten then.
    fn settle_returning(
        &self,
        hold: &Hold,
        actual: u32,
        now: Micros,
        returns: Option<u64>,
    ) -> Option<Settled> {
        let InStore { key, skew, .. } = hold.shared.as_ref()?;
        let in_force = self.is_in_force(hold, self.clock.now());
        let Hold { quota, admitted, .. } = hold;
        let after = admitted.state()?;
        let flags = if in_force { 0 } else { wire::ELSEWHERE };
        let change = Change::Settle { actual, at: admitted.at, counted: after.stamp };
        let layer = wire::layer(quota, flags, admitted.cost, self.store_now(now));
        let (done, told) = oneshot::channel();
        let amendment = Amendment { key: key.clone(), layer, change, done: Some(done), returns };
        self.queue.put(amendment);
        let now = now.saturating_add_signed(*skew).max(admitted.at);
        let state = quota.settle(Some(after), admitted, now, actual).filter(|_| in_force);
        let verdict =
            state.map(|state| quota.peek(Seen::State(state), now, admitted.cost).by_store());
        Some(Settled { verdict, told: Some(told) })
    }
}
