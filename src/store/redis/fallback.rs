//! The store's absence is a decision: what each limit says while nobody can be asked.

use super::Shared;
use crate::clock::Micros;
use crate::config::model::OnFailure;
use crate::limit::{Quota, Verdict};
use crate::store::{Charge, Decision, Hold, Part, StoreError, Subject};
use smallvec::SmallVec;

impl Shared {
    /// Decides without the store, as the limits' `on_failure` says: by this gateway's share of them,
    /// by letting pass, or not at all. What is admitted is owed.
    #[cold]
    pub(super) fn fall_back(
        &self,
        charges: &mut [Charge<'_>],
        now: Micros,
    ) -> Result<Decision, StoreError> {
        self.metrics.fallbacks.increment();
        let refuses =
            |charge: &Charge<'_>| charge.on_failure == OnFailure::Reject && !charge.shadow;
        if charges.iter().any(refuses) {
            return Err(StoreError::Away);
        }
        let share = self.options.local_share;
        let by_itself: SmallVec<[usize; 4]> = (0..charges.len())
            .filter(|index| charges[*index].on_failure != OnFailure::Allow)
            .collect();
        let shares: SmallVec<[Quota; 4]> = by_itself
            .iter()
            .map(|index| charges[*index].quota.share(share, charges[*index].cost))
            .collect();
        // Shards are counters of their own here, too.
        let shards: SmallVec<[[u8; 2]; 4]> = by_itself
            .iter()
            .map(|index| charges[*index].shard.unwrap_or_default().to_le_bytes())
            .collect();
        let parts: SmallVec<[[Part<'_>; 1]; 4]> =
            shards.iter().map(|shard| [Part::Header(shard)]).collect();
        let mut own: SmallVec<[Charge<'_>; 4]> = by_itself
            .iter()
            .zip(shares.iter().zip(&parts))
            .map(|(index, (quota, part))| {
                let charge = charges[*index];
                let subject = if charge.shard.is_some() { Subject(part) } else { charge.subject };
                Charge { quota, subject, ..charge }
            })
            .collect();
        let mut decision = self.local.charge_all(&mut own, now);
        let verdicts: SmallVec<[Verdict; 4]> = own.iter().map(|charge| charge.verdict).collect();
        for charge in charges.iter_mut() {
            charge.verdict = Verdict::SILENT;
        }
        for (index, verdict) in by_itself.iter().zip(verdicts) {
            charges[*index].verdict = verdict;
        }
        decision.rejected_by = decision.rejected_by.map(|index| by_itself[index]);
        let place = |hold: Hold| Hold { charge: by_itself[hold.charge], ..hold };
        decision.holds = decision.holds.into_iter().map(place).collect();
        if decision.rejected_by.is_none() {
            for charge in charges.iter().filter(|charge| charge.verdict.allowed) {
                if !charge.quota.is_concurrency() {
                    self.owed.add(&self.name_of(charge), charge.quota, charge.taken(), now);
                }
            }
        }
        Ok(decision)
    }
}
