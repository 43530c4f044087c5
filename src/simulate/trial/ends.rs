//! What is left of a request until its end: places in flight, and costs that are known only then.

use super::Trial;
use super::arrive::Ending;
use crate::clock::Micros;
use crate::config::model::{Cost, Measure, SettledCost};
use crate::proxy::settle::units;
use crate::snapshot::{Limit, Limits};
use crate::store::Hold;
use std::cmp::Ordering;

/// What a request has until its end.
#[derive(Debug)]
pub(super) struct End {
    pub(super) at: Micros,
    /// What ends first began first.
    pub(super) number: u64,
    pub(super) hold: Hold,
    /// What it came to; otherwise it is given back.
    pub(super) actual: Option<u32>,
}

impl PartialEq for End {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for End {}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The first to end is the greatest.
impl Ord for End {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// What a hold comes to: `None` for nothing, otherwise what it is settled by, or that it is given
/// back.
#[expect(clippy::option_option, reason = "nothing, given back, or settled by a number")]
pub(super) fn end(
    hold: &Hold,
    limit: &Limit,
    ending: &Ending,
    names: &[String],
) -> Option<Option<u32>> {
    let Cost::Settled(SettledCost { by, .. }) = &limit.cost else {
        return (!hold.is_queue()).then_some(None);
    };
    let told = ending.told(limit, names);
    let measured = || match by {
        Measure::ResponseBytes(unit) => ending.bytes.map(|bytes| units(bytes, *unit)),
        Measure::RequestBytes(unit) => ending.request_bytes.map(|bytes| units(bytes, *unit)),
        Measure::ResponseHeader(_) | Measure::ResponseJson(_) => None,
    };
    told.or_else(measured).map(Some)
}

impl Trial {
    /// What happens to a hold at the request's end: it is given back, or settled by what it came to;
    /// or nothing, as nobody knows what it came to.
    pub(super) fn end_until(&mut self, time: Micros) {
        while let Some(end) = self.ends.peek().filter(|end| end.at <= time) {
            match end.actual {
                Some(actual) => drop(self.store.settle(&end.hold, actual, end.at)),
                None => self.store.release(&end.hold, end.at),
            }
            self.ends.pop();
        }
    }
}

impl Ending {
    /// What the log says that this limit counted it as.
    fn told(&self, limit: &Limit, names: &[String]) -> Option<u32> {
        self.costs.iter().find_map(|(which, cost)| {
            // A candidate is charged what its limit is.
            let name = &names[usize::from(*which)];
            let same = *name == limit.name || limit.name.strip_suffix("/candidate") == Some(name);
            same.then_some(*cost)
        })
    }

    /// How many bytes the request announced: as the log says, or as the cost that it came to tells.
    pub(super) fn announced(&self, limits: &Limits, names: &[String]) -> Option<u64> {
        let by_cost = || {
            limits.iter().find_map(|limit| match &limit.cost {
                Cost::Settled(SettledCost { by: Measure::RequestBytes(unit), .. }) => {
                    self.told(limit, names).map(|cost| u64::from(cost).saturating_mul(*unit))
                }
                _ => None,
            })
        };
        self.request_bytes.or_else(by_cost)
    }
}
