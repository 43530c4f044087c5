//! Decisions in which blocks of allowance that are here already take part.

use super::denials::skew;
use super::leases::{Block, LeftOver, Served};
use super::script::Decide;
use super::wire::{self, Answer};
use super::{Amendment, Change, Keys, Shared, Trouble, take_nothing};
use crate::clock::Micros;
use crate::limit::{Quota, Seen, State, Verdict};
use crate::store::{Charge, Decision, Subject};
use smallvec::SmallVec;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

impl Shared {
    /// Leased limits are served first, each from its block; then the others are charged together. If
    /// one of them rejects, what was served goes back into its block.
    pub(super) async fn charge_leased(
        self: &Arc<Self>,
        charges: &mut [Charge<'_>],
        keys: &[u64],
        now: Micros,
        deadline: Instant,
    ) -> Result<Decision, Trouble> {
        // The block that each was served from; `None` is charged by itself.
        let mut served: SmallVec<[Option<u64>; 4]> = SmallVec::from_elem(None, charges.len());
        let mut decision = Decision::default();
        for index in 0..charges.len() {
            if !charges[index].leased {
                continue;
            }
            match self.serve(&mut charges[index], keys[index], now, deadline).await {
                Ok(decided) => served[index] = decided,
                Err(trouble) => {
                    self.put_back(charges, keys, &served);
                    return Err(trouble);
                }
            }
            let charge = &charges[index];
            if served[index].is_some() && !charge.verdict.allowed && !charge.shadow {
                decision.rejected_by.get_or_insert(index);
            }
        }
        if decision.rejected_by.is_some() {
            self.put_back(charges, keys, &served);
            for (charge, served) in charges.iter_mut().zip(&served) {
                if served.is_none() {
                    charge.verdict = Verdict::SILENT;
                }
            }
            return Ok(decision);
        }
        let rest: SmallVec<[usize; 4]> =
            (0..charges.len()).filter(|index| served[*index].is_none()).collect();
        if !rest.is_empty() {
            let mut exact: SmallVec<[Charge<'_>; 4]> =
                rest.iter().map(|index| charges[*index]).collect();
            let exact_keys: Keys = rest.iter().map(|index| keys[*index]).collect();
            let decided = self.charge_exact(&mut exact, &exact_keys, now, deadline).await;
            for (index, charge) in rest.iter().zip(&exact) {
                charges[*index].verdict = charge.verdict;
            }
            let own = decided.inspect_err(|_| self.put_back(charges, keys, &served))?;
            if let Some(index) = own.rejected_by {
                decision.rejected_by = Some(rest[index]);
                self.put_back(charges, keys, &served);
            }
            decision.holds.extend(own.holds.into_iter().map(|mut hold| {
                hold.charge = rest[hold.charge];
                hold
            }));
        }
        if decision.rejected_by.is_none() {
            for (index, charge) in
                charges.iter().enumerate().filter(|(index, _)| served[*index].is_some())
            {
                let skew = skew(charge.verdict.at, now);
                decision.holds.extend(self.hold(index, charge, skew, 0));
            }
        }
        Ok(decision)
    }

    /// Serves a charge from its block, fetching one if there is none. `None`: it has to be charged
    /// by itself.
    async fn serve(
        self: &Arc<Self>,
        charge: &mut Charge<'_>,
        key: u64,
        now: Micros,
        deadline: Instant,
    ) -> Result<Option<u64>, Trouble> {
        for _ in 0..2 {
            match self.leases.serve(charge, key, now) {
                Served::Decided(verdict, block, soon) => {
                    charge.verdict = verdict;
                    self.metrics.leased.increment();
                    if soon {
                        drop(self.fetch(charge, key, None, now, deadline));
                    }
                    return Ok(Some(block));
                }
                Served::Ask(size) => {
                    let fetched = self.fetch(charge, key, Some(size), now, deadline).await;
                    fetched.unwrap_or(Err(Trouble::Late))?;
                }
                Served::Exact => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Fetches a block, of this size or of what there is. That goes on if nobody waits for it any
    /// more: what is taken must not be lost.
    fn fetch(
        self: &Arc<Self>,
        charge: &Charge<'_>,
        key: u64,
        size: Option<u32>,
        now: Micros,
        deadline: Instant,
    ) -> JoinHandle<Result<(), Trouble>> {
        let next = || self.leases.next_size(charge.quota, charge.cost, key, now);
        let size = size.unwrap_or_else(next);
        let (shared, quota, name) = (Arc::clone(self), charge.quota.clone(), self.name_of(charge));
        tokio::spawn(async move {
            let fetched = shared.take_block(&quota, key, &name, size, now, deadline).await;
            fetched.inspect_err(|_| shared.leases.not_renewed(key))
        })
    }

    async fn take_block(
        &self,
        quota: &Quota,
        key: u64,
        name: &[u8],
        size: u32,
        now: Micros,
        deadline: Instant,
    ) -> Result<(), Trouble> {
        let mut command = Decide::new(1, "", self.own_time.then_some(now));
        command.key().extend_from_slice(name);
        command.layer(wire::layer(quota, wire::UP_TO, size, self.store_now(now)));
        let run = self.run(&self.scripts.decide, command.finish(), now);
        let reply = self.guarded(now, deadline, run).await?;
        let any = Charge::new(crate::store::LimitId(0), quota, Subject::EVERYONE);
        let answer = Answer::read(&reply, &[any]).ok_or(Trouble::Refused)?;
        let Some(before) = answer.before.into_iter().next() else { return Err(Trouble::Refused) };
        let taken = size.min(quota.peek(&before, answer.now, 1).unused);
        self.leases.put(
            quota,
            key,
            name,
            Block { before, asked: now, at: answer.now, size, taken },
        );
        Ok(())
    }

    fn put_back(&self, charges: &mut [Charge<'_>], keys: &[u64], served: &[Option<u64>]) {
        for ((charge, key), served) in charges.iter_mut().zip(keys).zip(served) {
            let Some(block) = served.filter(|_| charge.verdict.allowed) else { continue };
            self.leases.put_back(*key, block, charge.cost);
            if let Some(state) = charge.verdict.state().filter(|_| !charge.verdict.is_silent()) {
                let before = State { used: state.used.saturating_sub(charge.cost), ..state };
                take_nothing(charge, Seen::State(before));
            }
        }
    }

    /// Gives back what is left of leases that are over, or of all.
    pub(super) fn end_leases(&self, now: Option<Micros>) {
        for LeftOver { key, quota, tokens, state } in self.leases.end(now) {
            let layer = wire::layer(&quota, 0, tokens, state.stamp);
            self.queue.put(Amendment {
                key,
                layer,
                change: Change::Undo(state),
                done: None,
                returns: None,
            });
        }
    }
}
