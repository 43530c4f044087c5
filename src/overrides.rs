//! What is otherwise for single callers than the file says: bans and grants.
//!
//! ```text
//! admin API ──► act ──► Bans, Grants          in force here, at once
//!                 ├───► a file                 survives a restart
//!                 └───► told ──► shared store ──► adopt ──► Bans, Grants of every other gateway
//! ```
//!
//! They last for their time and survive reloads; a successor gets them from the process before it
//! (`transfer`), and acts are refused meanwhile (`gate`). Bans for ignored rejects (`penalty`) are each
//! gateway's own; to lift one is an act, which reaches every gateway.

mod acts;
mod bans;
mod gate;
mod grants;
mod persistence;
mod transfer;
mod who;

pub use acts::{Act, Acts, What, name};
pub use bans::{Ban, Bans, Why};
pub use gate::{Closed, Gate, Permit};
pub use grants::{FACTORS, Grant, Grants};
pub use persistence::{KeepError, Keeper};
pub use transfer::Transfer;
pub use who::{NoCaller, Who};

use crate::clock::{Clock, Micros};
use crate::file_lock::FileLock;
use parking_lot::Mutex;
use persistence::Persistence;
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use tokio::sync::watch;

/// So many acts are told at once.
const HANDFUL: usize = 100;

/// Everything that was said of single callers.
#[derive(Debug)]
pub struct Overrides {
    /// Whoever is turned away.
    pub bans: Bans,
    /// Whoever has other rates.
    pub grants: Grants,
    /// Whether operators' acts are accepted.
    pub gate: Gate,
    clock: Clock,
    book: Mutex<Book>,
    /// Bans for ignored rejects that a successor knows of.
    passed_on: Mutex<transfer::PassedOn>,
    /// How many changes a shared store has not heard of.
    untold: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Book {
    acts: Acts,
    persistence: Persistence,
    /// What a shared store is to be told: acts, or names of acts that are withdrawn.
    untold: VecDeque<(String, Option<Act>)>,
    /// A shared store has said what it holds.
    heard: bool,
}

impl Overrides {
    /// No grants, and bans for ignored rejects from before a restart.
    pub fn new(clock: Clock, bans: Bans) -> Self {
        Self {
            bans,
            grants: Grants::default(),
            gate: Gate::default(),
            clock,
            book: Mutex::default(),
            passed_on: Mutex::default(),
            untold: watch::Sender::new(0),
        }
    }

    /// From now on acts are kept here. What a file holds from before is in force. `passed_on` are lock
    /// files of the predecessor.
    pub fn keep(&self, keeper: Keeper, passed_on: &mut Vec<File>) -> Result<(), KeepError> {
        let mut book = self.book.lock();
        if book.persistence.is(&keeper) {
            return Ok(());
        }
        let first = matches!(book.persistence, Persistence::Nowhere);
        book.persistence = Persistence::open(keeper, passed_on);
        if let Persistence::InUse(_, error) = &book.persistence {
            return Err(KeepError::InUse(error.clone()));
        }
        let Book { persistence: Persistence::File(file), acts, .. } = &mut *book else {
            return Ok(());
        };
        let remembered = acts::read(&file.path)?;
        let now = self.wall();
        for (name, act) in remembered {
            if act.until > now && !acts.contains_key(&name) {
                self.apply(&act);
                acts.insert(name, act);
            }
        }
        if !first {
            acts::write(&file.path, acts)?;
        }
        Ok(())
    }

    /// Tries again to keep acts in the file, if another process used it. Says whether acts may have
    /// come into force by that.
    pub fn look_for_file(&self) -> bool {
        let path = match &self.book.lock().persistence {
            Persistence::InUse(path, _) if !self.gate.is_closed() => path.clone(),
            _ => return false,
        };
        match self.keep(Keeper::File(path.clone()), &mut Vec::new()) {
            Ok(()) => tracing::info!("bans and grants are kept in {} from now on", path.display()),
            Err(KeepError::InUse(_)) => return false,
            Err(error) => tracing::error!("{error}"),
        }
        true
    }

    /// The lock on the file of acts for a successor, if there is one.
    pub fn pass_on_lock(&self) -> Option<io::Result<OwnedFd>> {
        self.book.lock().persistence.lock().map(FileLock::pass_on)
    }

    /// That lock is no other process's.
    pub fn own_lock(&self) {
        if let Some(lock) = self.book.lock().persistence.lock() {
            lock.own();
        }
    }

    /// Says something of a caller: it holds at once. What fails is remembering it.
    pub fn act(&self, act: Act) -> io::Result<()> {
        let mut book = self.book.lock();
        let name = act.name();
        self.apply(&act);
        book.acts.insert(name.clone(), act.clone());
        self.tell(&mut book, name, Some(act))
    }

    /// Takes something back that was said; says whether it had been, and whether that could be written
    /// down.
    pub fn withdraw(&self, name: &str) -> (bool, io::Result<()>) {
        let mut book = self.book.lock();
        let act = book.acts.remove(name);
        if let Some(act) = &act {
            self.undo(act);
        }
        // Another gateway may have said it a moment ago.
        if act.is_none() && !matches!(book.persistence, Persistence::Store) {
            return (false, Ok(()));
        }
        (act.is_some(), self.tell(&mut book, name.to_owned(), None))
    }

    fn tell(&self, book: &mut Book, name: String, act: Option<Act>) -> io::Result<()> {
        match &book.persistence {
            Persistence::Nowhere => Ok(()),
            Persistence::File(file) => acts::write(&file.path, &book.acts),
            Persistence::InUse(_, error) => Err(io::Error::other(error.clone())),
            Persistence::Store => {
                book.untold.push_back((name, act));
                self.untold.send_replace(book.untold.len());
                Ok(())
            }
        }
    }

    /// Waits until a shared store has heard of everything.
    pub async fn told(&self) {
        // The sender lives as long as this does.
        let _ = self.untold.subscribe().wait_for(|untold| *untold == 0).await;
    }

    /// What a shared store has not heard of yet, a handful at a time.
    pub fn untold(&self) -> Vec<(String, Option<Act>)> {
        self.book.lock().untold.iter().take(HANDFUL).cloned().collect()
    }

    /// It has heard of the first so many.
    pub fn were_told(&self, count: usize) {
        let mut book = self.book.lock();
        book.untold.drain(..count);
        self.untold.send_replace(book.untold.len());
    }

    /// What all gateways have said, by the shared store's word: does as they say, and tells what is
    /// new.
    pub fn adopt(&self, all: &Acts) -> Vec<Act> {
        let (mut book, now) = (self.book.lock(), self.wall());
        book.heard = true;
        let untold = std::mem::take(&mut book.untold);
        let names: HashSet<&str> = untold.iter().map(|(name, _)| name.as_str()).collect();
        let is_untold = |name: &str| names.contains(name);
        let mut new = Vec::new();
        for (name, act) in all {
            if act.until > now && book.acts.get(name) != Some(act) && !is_untold(name) {
                self.apply(act);
                book.acts.insert(name.clone(), act.clone());
                new.push(act.clone());
            }
        }
        book.acts.retain(|name, act| {
            let stays = all.contains_key(name) || is_untold(name);
            if !stays {
                self.undo(act);
            }
            stays
        });
        book.untold = untold;
        new
    }

    /// The shared store has forgotten what it was told, but for these: it is told again.
    pub fn tell_again(&self, all: &Acts) {
        let (mut book, now) = (self.book.lock(), self.wall());
        let Book { acts, untold, .. } = &mut *book;
        let names: HashSet<&str> = untold.iter().map(|(name, _)| name.as_str()).collect();
        let lost = acts.iter().filter(|(name, act)| {
            act.until > now && !all.contains_key(*name) && !names.contains(name.as_str())
        });
        let lost: Vec<_> = lost.map(|(name, act)| (name.clone(), Some(act.clone()))).collect();
        untold.extend(lost);
        self.untold.send_replace(untold.len());
    }

    /// Forgets what is over.
    pub fn sweep(&self) {
        let now = self.clock.now();
        self.bans.sweep(now);
        self.grants.sweep(now);
        let wall = self.clock.wall(now);
        let mut book = self.book.lock();
        let before = book.acts.len();
        book.acts.retain(|_, act| act.until > wall);
        if book.acts.len() < before
            && let Persistence::File(file) = &book.persistence
            && !self.gate.is_closed()
        {
            // It would be forgotten at the next start anyway.
            let _ = acts::write(&file.path, &book.acts);
        }
    }

    fn wall(&self) -> Micros {
        self.clock.wall(self.clock.now())
    }

    /// A moment of the wall clock as limits count.
    fn here(&self, wall: Micros) -> Micros {
        let now = self.clock.now();
        now.saturating_add(wall.saturating_sub(self.clock.wall(now)))
    }

    fn apply(&self, act: &Act) {
        let (who, until) = (act.caller.clone(), self.here(act.until));
        match act.act {
            What::Ban => {
                let why = Why::Operator(act.reason.clone());
                self.bans.add(Ban { who, why, until, metrics: None }, self.clock.now());
            }
            What::Grant => self.grants.add(Grant {
                who,
                limit: act.limit.clone(),
                factor: act.factor.unwrap_or(1.0),
                until,
                reason: act.reason.clone(),
            }),
            // What the operator has said since is taken back by itself.
            What::Lift => self.bans.forgive(&who),
            What::Reset => {}
        }
    }

    fn undo(&self, act: &Act) {
        match act.act {
            What::Ban => self.bans.withdraw(&act.caller),
            What::Grant => self.grants.withdraw(&act.caller, act.limit.as_deref()),
            What::Lift | What::Reset => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Part;
    use std::time::Duration;

    const IP: Part<'static> = Part::Ip(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));

    fn act(what: What, at: Micros, until: Micros) -> Act {
        let caller = "ip:192.0.2.1".parse().unwrap();
        Act { caller, act: what, limit: None, factor: Some(2.0), reason: None, at, until }
    }

    #[test]
    fn acts_survive_a_restart_in_their_file_and_are_gone_when_they_are_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("overrides.json");
        let clock = Clock::manual(1000);
        let first = Overrides::new(clock.clone(), Bans::default());
        first.keep(Keeper::File(path.clone()), &mut Vec::new()).unwrap();
        first.act(act(What::Ban, 1000, 5000)).unwrap();
        first.act(act(What::Grant, 1000, 3000)).unwrap();
        drop(first);
        let second = Overrides::new(clock.clone(), Bans::default());
        second.keep(Keeper::File(path.clone()), &mut Vec::new()).unwrap();
        assert_eq!(second.bans.find(IP, 1000).unwrap().until, 5000);
        assert_eq!(second.grants.factor(&[IP], "x", 1000), Some(2.0));
        clock.advance(Duration::from_micros(2000));
        second.sweep();
        assert_eq!(second.grants.factor(&[IP], "x", 3000), None);
        let ban = name(What::Ban, &"ip:192.0.2.1".parse().unwrap(), None);
        assert!(second.withdraw(&ban).0);
        assert!(!second.withdraw(&ban).0);
        assert!(second.bans.is_empty());
        assert!(!path.exists(), "nothing is left to say");
    }

    #[test]
    fn what_one_gateway_says_holds_on_the_others() {
        let clock = Clock::manual(1000);
        let (here, there) = (
            Overrides::new(clock.clone(), Bans::default()),
            Overrides::new(clock, Bans::default()),
        );
        here.keep(Keeper::Store, &mut Vec::new()).unwrap();
        there.keep(Keeper::Store, &mut Vec::new()).unwrap();
        here.act(act(What::Ban, 1000, 5000)).unwrap();
        let mut all = Acts::new();
        let mut hear = |from: &Overrides| {
            let untold = from.untold();
            from.were_told(untold.len());
            for (name, act) in untold {
                match act {
                    Some(act) => drop(all.insert(name, act)),
                    None => drop(all.remove(&name)),
                }
            }
            all.clone()
        };
        there.adopt(&hear(&here));
        assert!(there.bans.find(IP, 1000).is_some());
        // What it is about to say itself is not taken for withdrawn.
        there.act(act(What::Grant, 1000, 5000)).unwrap();
        there.adopt(&hear(&here));
        assert!(there.grants.factor(&[IP], "x", 1000).is_some());
        here.adopt(&hear(&there));
        assert!(here.grants.factor(&[IP], "x", 1000).is_some());
        assert!(here.withdraw(&name(What::Ban, &"ip:192.0.2.1".parse().unwrap(), None)).0);
        there.adopt(&hear(&here));
        assert!(there.bans.is_empty());
        here.act(act(What::Reset, 1000, 5000)).unwrap();
        let said = hear(&here);
        assert_eq!(there.adopt(&said).len(), 1, "there is something to do");
        assert_eq!(there.adopt(&said).len(), 0, "once");
        // Whoever was forgiven once and is banned since is banned, in whatever order it is heard.
        here.act(act(What::Lift, 1000, 5000)).unwrap();
        here.act(act(What::Ban, 1500, 5000)).unwrap();
        let newcomer = Overrides::new(Clock::manual(1500), Bans::default());
        newcomer.adopt(&hear(&here));
        assert!(newcomer.bans.find(IP, 1500).is_some());
        // A store that forgets is told again what it does not know.
        there.tell_again(&Acts::new());
        assert_eq!(there.untold().len(), 2, "a grant and a reset");
        there.tell_again(&said);
        assert_eq!(there.untold().len(), 2, "not twice");
    }
}
