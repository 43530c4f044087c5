//! What a gateway passes on to its successor: operators' acts, and bans for ignored rejects.
//!
//! The first transfer holds everything, so that acts whose file cannot be written, or of which a shared
//! store has not heard, are not lost either. Later ones hold the bans that came about since, while the
//! old process finished its requests.

use super::{Act, Acts, Ban, Book, Overrides, Persistence, Who, Why, acts};
use crate::clock::Micros;
use crate::metrics::LimitMetrics;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Times in it are the wall clock's.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Transfer {
    /// The file that holds the acts, where the old process could use one.
    file: Option<Box<Path>>,
    acts: Vec<Act>,
    /// What a shared store has not heard of: acts, or names of acts that are withdrawn.
    untold: Vec<(String, Option<Act>)>,
    penalties: Vec<Penalty>,
}

/// A ban for ignored rejects.
#[derive(Debug, Deserialize, Serialize)]
struct Penalty {
    caller: Who,
    limit: Box<str>,
    until: Micros,
}

/// Bans that the successor knows, and until when they last.
pub(super) type PassedOn = HashMap<Who, Micros>;

impl Overrides {
    /// Everything, for a successor that has just started. Acts are refused meanwhile.
    pub fn transfer(&self) -> Transfer {
        self.passed_on.lock().clear();
        let book = self.book.lock();
        let file = match &book.persistence {
            Persistence::File(file) => Some(file.path.as_path().into()),
            _ => None,
        };
        Transfer {
            file,
            acts: book.acts.values().cloned().collect(),
            untold: book.untold.iter().cloned().collect(),
            penalties: self.new_penalties(),
        }
    }

    /// What has come about since the last transfer, if anything has.
    pub fn transfer_more(&self) -> Option<Transfer> {
        let penalties = self.new_penalties();
        (!penalties.is_empty()).then(|| Transfer { penalties, ..Transfer::default() })
    }

    /// Bans of which the successor does not know. It must hear of each once: an operator may have
    /// lifted it there.
    fn new_penalties(&self) -> Vec<Penalty> {
        let mut passed_on = self.passed_on.lock();
        let bans = self.bans.list(self.clock.now());
        let penalties = bans.iter().filter_map(|ban| match &ban.why {
            Why::Penalty(limit) => Some((ban, limit)),
            Why::Operator(_) => None,
        });
        let new = penalties
            .filter(|(ban, _)| passed_on.insert(ban.who.clone(), ban.until) != Some(ban.until));
        let told = new.map(|(ban, limit)| Penalty {
            caller: ban.who.clone(),
            limit: (**limit).into(),
            until: self.clock.wall(ban.until),
        });
        told.collect()
    }

    /// Puts into force what the predecessor passes on. What fails is writing acts down.
    pub fn adopt_transfer(
        &self,
        transfer: Transfer,
        metrics: impl Fn(&str) -> Arc<LimitMetrics>,
    ) -> io::Result<()> {
        let written = self.adopt_acts(&transfer);
        let now = self.clock.now();
        for Penalty { caller: who, limit, until } in transfer.penalties {
            let (why, until) = (Why::Penalty((&*limit).into()), self.here(until));
            self.bans.add(Ban { who, why, until, metrics: Some(metrics(&limit)) }, now);
        }
        written
    }

    fn adopt_acts(&self, transfer: &Transfer) -> io::Result<()> {
        let (mut book, now) = (self.book.lock(), self.wall());
        let Book { acts, persistence, untold, heard } = &mut *book;
        let mut changed = false;
        // A shared store that was heard knows better, but for what it was not told.
        let acts_of_store = if *heard { &[][..] } else { &transfer.acts };
        let untold_acts = transfer.untold.iter().filter_map(|(_, act)| act.as_ref());
        for act in acts_of_store.iter().chain(untold_acts).filter(|act| act.until > now) {
            let name = act.name();
            if acts.get(&name) != Some(act) {
                self.apply(act);
                acts.insert(name, act.clone());
                changed = true;
            }
        }
        for name in transfer.withdrawn(acts, persistence) {
            changed |= acts.remove(&name).inspect(|act| self.undo(act)).is_some();
        }
        match persistence {
            Persistence::File(file) if changed => acts::write(&file.path, acts),
            Persistence::Store => {
                untold.extend(transfer.untold.iter().cloned());
                self.untold.send_replace(untold.len());
                Ok(())
            }
            Persistence::File(_) | Persistence::Nowhere | Persistence::InUse(..) => Ok(()),
        }
    }
}

impl Transfer {
    /// Which of these acts the operator has withdrawn from the old process.
    fn withdrawn(&self, acts: &Acts, persistence: &Persistence) -> Vec<String> {
        match persistence {
            // They are still in a file that cannot be written.
            Persistence::File(file) if self.file.as_deref() == Some(&*file.path) => {
                let there: HashSet<String> = self.acts.iter().map(Act::name).collect();
                acts.keys().filter(|name| !there.contains(*name)).cloned().collect()
            }
            // A shared store has not heard of it.
            _ => {
                let withdrawn = self.untold.iter().filter(|(_, act)| act.is_none());
                withdrawn.map(|(name, _)| name.clone()).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::metrics::Metrics;
    use crate::overrides::{Bans, Keeper, What, name};

    const HOUR: Micros = 3_600_000_000;

    fn ban(user: &str) -> Act {
        let caller = Who::User(user.into());
        let (limit, factor, reason) = (None, None, None);
        Act { caller, act: What::Ban, limit, factor, reason, at: 1000, until: HOUR }
    }

    fn banned(overrides: &Overrides) -> Vec<String> {
        let mut names: Vec<String> =
            overrides.bans.list(1000).iter().map(|ban| ban.who.to_string()).collect();
        names.sort();
        names
    }

    /// What arrives, as it is written.
    fn sent(transfer: &Transfer) -> Transfer {
        serde_json::from_slice(&serde_json::to_vec(transfer).unwrap()).unwrap()
    }

    fn pair() -> [Overrides; 2] {
        [(); 2].map(|()| Overrides::new(Clock::manual(1000), Bans::default()))
    }

    fn adopt(overrides: &Overrides, transfer: &Transfer) {
        let metrics = Metrics::new(1);
        overrides.adopt_transfer(sent(transfer), |limit| metrics.limit(limit, "")).unwrap();
    }

    #[test]
    fn acts_that_are_kept_nowhere_are_passed_on() {
        let [old, new] = pair();
        old.act(ban("ada")).unwrap();
        adopt(&new, &old.transfer());
        assert_eq!(banned(&new), ["user:ada"]);
    }

    #[test]
    fn a_shared_store_hears_from_the_successor_what_it_was_not_told() {
        let [old, new] = pair();
        for overrides in [&old, &new] {
            overrides.keep(Keeper::Store, &mut Vec::new()).unwrap();
        }
        let bob = ban("bob");
        new.adopt(&[(bob.name(), bob.clone())].into());
        old.adopt(&[(bob.name(), bob.clone())].into());
        old.act(ban("ada")).unwrap();
        assert!(old.withdraw(&name(What::Ban, &bob.caller, None)).0);
        adopt(&new, &old.transfer());
        assert_eq!(banned(&new), ["user:ada"]);
        assert_eq!(new.untold(), [(ban("ada").name(), Some(ban("ada"))), (bob.name(), None)]);
    }

    #[test]
    fn a_penalty_is_passed_on_once_and_again_if_it_lasts_longer() {
        let [old, new] = pair();
        let penalty = |until| {
            let (who, why) = (Who::User("eve".into()), Why::Penalty("login".into()));
            old.bans.add(Ban { who, why, until, metrics: None }, 1000);
        };
        penalty(2000);
        adopt(&new, &old.transfer());
        assert_eq!(banned(&new), ["user:eve"]);
        assert!(old.transfer_more().is_none(), "an operator may lift it there");
        penalty(3000);
        new.bans.lift(&Who::User("eve".into()));
        adopt(&new, &old.transfer_more().unwrap());
        assert_eq!(new.bans.list(1000)[0].until, 3000);
        assert_eq!(old.transfer().penalties.len(), 1, "another successor hears of it anew");
    }
}
