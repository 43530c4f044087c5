//! Decisions in which blocks of allowance that are here already take part.

use super::denials::skew;
use super::leases::{Block, LeftOver, Served};
use super::script::Decide;
use super::wire::{self, Answer};
use super::{Amendment, Change, Keys, Shared, Trouble, take_nothing};
use crate::clock::Micros;
use crate::limit::{Quota, Verdict};
use crate::store::{Charge, Decision, Subject};
use smallvec::SmallVec;
use std::sync::Arc;

impl Shared {
    /// Leased limits are served first, each from its block; then the others are charged together. If
    /// one of them rejects, what was served goes back into its block.
    pub(super) async fn charge_leased(
        self: &Arc<Self>,
        charges: &mut [Charge<'_>],
        keys: &[u64],
        now: Micros,
    ) -> Result<Decision, Trouble> {
        let mut served: SmallVec<[bool; 4]> = SmallVec::from_elem(false, charges.len());
        let mut decision = Decision::default();
        for index in 0..charges.len() {
            if !charges[index].leased {
                continue;
            }
            match self.serve(&mut charges[index], keys[index], now).await {
                Ok(decided) => served[index] = decided,
                Err(trouble) => {
                    self.put_back(charges, keys, &served);
                    return Err(trouble);
                }
            }
            let charge = &charges[index];
            if served[index] && !charge.verdict.allowed && !charge.shadow {
                decision.rejected_by.get_or_insert(index);
            }
        }
        if decision.rejected_by.is_some() {
            self.put_back(charges, keys, &served);
            for (charge, served) in charges.iter_mut().zip(&served) {
                if !served {
                    charge.verdict = Verdict::SILENT;
                }
            }
            return Ok(decision);
        }
        let rest: SmallVec<[usize; 4]> =
            (0..charges.len()).filter(|index| !served[*index]).collect();
        if !rest.is_empty() {
            let mut exact: SmallVec<[Charge<'_>; 4]> =
                rest.iter().map(|index| charges[*index]).collect();
            let exact_keys: Keys = rest.iter().map(|index| keys[*index]).collect();
            let decided = self.charge_exact(&mut exact, &exact_keys, now).await;
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
            for (index, charge) in charges.iter().enumerate().filter(|(index, _)| served[*index]) {
                let skew = skew(charge.verdict.at, now);
                decision.holds.extend(self.hold(index, charge, skew));
            }
        }
        Ok(decision)
    }

    /// Serves a charge from its block, fetching one if there is none. `false`: it has to be charged
    /// by itself.
    async fn serve(
        self: &Arc<Self>,
        charge: &mut Charge<'_>,
        key: u64,
        now: Micros,
    ) -> Result<bool, Trouble> {
        for _ in 0..2 {
            match self.leases.serve(charge, key, now) {
                Served::Decided(verdict, soon) => {
                    charge.verdict = verdict;
                    if soon {
                        self.renew(charge, key, now);
                    }
                    return Ok(true);
                }
                Served::Ask(size) => {
                    let name = self.name_of(charge);
                    let fetched = self.fetch(charge.quota, key, &name, size, now).await;
                    fetched.inspect_err(|_| self.leases.not_renewed(key))?;
                }
                Served::Exact => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Fetches the next block while this one is used up.
    fn renew(self: &Arc<Self>, charge: &Charge<'_>, key: u64, now: Micros) {
        let size = self.leases.next_size(charge.quota, charge.cost, key, now);
        let (shared, quota, name) = (Arc::clone(self), charge.quota.clone(), self.name_of(charge));
        tokio::spawn(async move {
            if shared.fetch(&quota, key, &name, size, now).await.is_err() {
                shared.leases.not_renewed(key);
            }
        });
    }

    /// Takes a block, of this size or of what there is.
    async fn fetch(
        &self,
        quota: &Quota,
        key: u64,
        name: &[u8],
        size: u32,
        now: Micros,
    ) -> Result<(), Trouble> {
        let mut command = Decide::new(1, &self.name, self.own_time.then_some(now));
        command.key().extend_from_slice(name);
        command.layer(wire::layer(quota, wire::UP_TO, size, now));
        let reply =
            self.guarded(now, self.run(&self.scripts.decide, command.finish(), now)).await?;
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

    fn put_back(&self, charges: &mut [Charge<'_>], keys: &[u64], served: &[bool]) {
        for ((charge, key), served) in charges.iter_mut().zip(keys).zip(served) {
            if *served && charge.verdict.allowed {
                self.leases.put_back(*key, charge.cost);
                if let Some(state) = charge.verdict.state() {
                    let before = crate::limit::State {
                        used: state.used.saturating_sub(charge.cost),
                        ..state
                    };
                    take_nothing(charge, crate::limit::Seen::State(before));
                }
            }
        }
    }

    /// Gives back what is left of leases that are over, or of all.
    pub(super) fn end_leases(&self, now: Option<Micros>) {
        for LeftOver { key, quota, tokens, state } in self.leases.end(now) {
            let layer = wire::layer(&quota, 0, tokens, state.stamp);
            self.queue.put(Amendment { key, layer, change: Change::Undo(state), done: None });
        }
    }
}
