//! Decisions in a cluster, where the layers of a request live in different slots.

use super::background::{Amendment, Change};
use super::denials::skew;
use super::{Asked, Shared, Trouble, script, take_nothing, wire};
use crate::clock::Micros;
use crate::limit::Verdict;
use crate::store::{Charge, Decision, Hold};
use smallvec::SmallVec;
use std::sync::Arc;
use tokio::time::Instant;

impl Shared {
    /// Each layer is charged where it lives; what a rejected request had taken is given back. Places
    /// in a queue are asked for last: they cannot always be given back.
    pub(super) async fn charge_scattered(
        self: &Arc<Self>,
        charges: &mut [Charge<'_>],
        now: Micros,
        deadline: Instant,
    ) -> Result<Decision, Trouble> {
        let mut answers: SmallVec<[Option<Result<Asked, Trouble>>; 4]> =
            charges.iter().map(|_| None).collect();
        let mut decision = Decision::default();
        let mut failed = None;
        for queues in [false, true] {
            let these: SmallVec<[usize; 4]> =
                (0..charges.len()).filter(|i| charges[*i].quota.is_queue() == queues).collect();
            let asking = these.iter().map(|i| std::slice::from_ref(&charges[*i]));
            let asked = script::all(asking.map(|charge| self.ask(charge, now, deadline))).await;
            for (index, asked) in these.into_iter().zip(asked) {
                match &asked {
                    Ok(asked) => {
                        let skew = skew(asked.answer.now, now);
                        let charge = std::slice::from_mut(&mut charges[index]);
                        let own = self.decided(charge, asked, skew);
                        if own.rejected_by.is_some() {
                            let first =
                                decision.rejected_by.map_or(index, |first| first.min(index));
                            decision.rejected_by = Some(first);
                        }
                        let place = |hold| Hold { charge: index, ..hold };
                        decision.holds.extend(own.holds.into_iter().map(place));
                    }
                    Err(trouble) => failed = Some(*trouble),
                }
                answers[index] = Some(asked);
            }
            if decision.rejected_by.is_some() || failed.is_some() {
                break;
            }
        }
        if decision.rejected_by.is_none() && failed.is_none() {
            return Ok(decision);
        }
        for (charge, asked) in charges.iter_mut().zip(&answers) {
            match asked {
                Some(Ok(asked)) if charge.verdict.allowed => {
                    self.undo(charge, asked.flight, now);
                    take_nothing(charge, asked.answer.before[0].seen());
                }
                Some(Ok(_)) => {}
                // Layers that were not asked, or could not be, say nothing.
                None | Some(Err(_)) => charge.verdict = Verdict::SILENT,
            }
        }
        decision.holds.clear();
        match failed {
            Some(trouble) if decision.rejected_by.is_none() => Err(trouble),
            _ => Ok(decision),
        }
    }

    /// Takes back what a charge has taken.
    fn undo(&self, charge: &Charge<'_>, flight: u64, now: Micros) {
        let (quota, verdict) = (charge.quota, &charge.verdict);
        let change = match verdict.state() {
            _ if quota.is_concurrency() => Change::Land(flight),
            Some(after) if quota.is_queue() => Change::Leave(after),
            Some(after) => Change::Undo(after),
            None => Change::Strike(verdict.at),
        };
        let layer = wire::layer(quota, 0, charge.taken(), self.store_now(now));
        self.queue.put(Amendment {
            key: self.name_of(charge),
            layer,
            change,
            done: None,
            returns: None,
        });
    }
}
