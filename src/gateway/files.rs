//! The files that a process has for itself: the snapshot of the counters, and the operator's acts. They
//! are locked as long as the process lives, and passed on to its successor.

use super::Gateway;
use crate::clock::Micros;
use crate::config::Config;
use crate::file_lock::{FileLock, LockError};
use crate::metrics::Metrics;
use crate::overrides::{Ban, Bans, Keeper, Overrides, Transfer};
use crate::saved::{self, Moment};
use crate::store::{Memory, Store};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What a process has locked before it reads anything.
#[derive(Debug, Default)]
pub struct StateFiles {
    pub(super) snapshot: Option<FileLock>,
    /// Further lock files of the predecessor.
    pub(super) passed_on: Vec<File>,
}

impl StateFiles {
    /// Locks the snapshot, if one is configured. `passed_on` are lock files of the predecessor.
    pub fn lock(config: &Config, mut passed_on: Vec<File>) -> Result<Self, LockError> {
        let path = snapshot_path(config).filter(|_| config.shared.is_none());
        let lock = path.map(|path| FileLock::acquire_if_possible(path, &mut passed_on));
        Ok(Self { snapshot: lock.transpose()?.flatten(), passed_on })
    }
}

/// The lock on the snapshot of another configuration.
#[derive(Debug)]
pub enum SnapshotLock {
    /// It names the same file.
    Same,
    /// It names another one, or none.
    Other(Option<FileLock>),
}

fn snapshot_path(config: &Config) -> Option<&Path> {
    config.saved.as_ref().map(|saved| saved.path.as_path())
}

impl Gateway {
    /// Locks the snapshot that a configuration names, unless it is the one in use.
    pub fn lock_snapshot(&self, config: &Config) -> Result<SnapshotLock, LockError> {
        let path = snapshot_path(config).filter(|_| !self.store.is_shared());
        if path == self.snapshot_lock.lock().as_ref().map(FileLock::path) {
            return Ok(SnapshotLock::Same);
        }
        let lock = path.map(|path| FileLock::acquire_if_possible(path, &mut Vec::new()));
        Ok(SnapshotLock::Other(lock.transpose()?.flatten()))
    }

    /// Writes what a restart must not forgive, if a file is configured for it. It may take a while.
    pub fn save(&self) -> io::Result<()> {
        let snapshot = self.snapshot.load();
        let (Some(saved), Store::Memory(memory)) = (&snapshot.saved, &self.store) else {
            return Ok(());
        };
        let now = self.clock.now();
        let moment = Moment { now, wall: self.clock.wall(now) };
        saved::write(&saved.path, memory, &self.overrides.bans, moment)
    }

    /// The locks for a successor: they are this process's and its own until one of the two has ended.
    pub fn pass_on_locks(&self) -> io::Result<Vec<OwnedFd>> {
        let snapshot = self.snapshot_lock.lock().as_mut().map(FileLock::pass_on);
        snapshot.into_iter().chain(self.overrides.pass_on_lock()).collect()
    }

    /// The locks are this process's alone.
    pub fn own_locks(&self) {
        if let Some(lock) = &mut *self.snapshot_lock.lock() {
            lock.own();
        }
        self.overrides.own_lock();
    }

    /// Puts into force what the predecessor passes on.
    pub fn adopt_transfer(&self, transfer: Transfer) {
        let metrics = |limit: &str| self.metrics.limit(limit, "");
        if let Err(error) = self.overrides.adopt_transfer(transfer, metrics) {
            tracing::error!("bans and grants cannot be written down: {error}");
        }
        self.heed_grants();
    }
}

/// What was used and who was banned before a restart, as far as it was saved. A file that cannot be
/// read is said and not used: a gateway that does not start would be worse.
pub(super) fn remembered(config: &Config, now: Micros, metrics: &Metrics) -> (Memory, Bans) {
    let path = config.saved.as_ref().map(|saved| saved.path.as_path());
    match path.map(|path| saved::read(path, config.max_keys, now)) {
        None | Some(Ok(None)) => (),
        Some(Ok(Some((memory, bans)))) => {
            tracing::info!("{} counters go on from before the restart", memory.keys());
            for ban in bans.list(now) {
                let metrics = Some(metrics.limit(ban.why.limit(), ""));
                bans.add(Ban { metrics, ..Ban::clone(&ban) }, now);
            }
            return (memory, bans);
        }
        Some(Err(error)) => {
            let path = path.unwrap_or(Path::new(""));
            tracing::error!("{} is not used, counters begin anew: {error}", path.display());
            // It is not overwritten: somebody may want to know what was in it.
            let kept = saved::beside(path, ".unusable");
            if fs::rename(path, &kept).is_ok() {
                tracing::error!("it is kept as {}", kept.display());
            }
        }
    }
    (Memory::new(config.max_keys), Bans::default())
}

/// Has bans and grants survive a restart, in the store that is in use or in a file. What cannot be read
/// or is another process's is said, and nothing is lost by it.
pub(super) fn keep(
    overrides: &Overrides,
    config: &Config,
    shared: bool,
    passed_on: &mut Vec<File>,
) {
    let keeper = match &config.admin {
        _ if shared => Keeper::Store,
        Some(admin) => {
            // A service has a folder for such things; otherwise it lies beside the configuration.
            let state = std::env::var_os("STATE_DIRECTORY").map(PathBuf::from);
            let state = state.map(|folder| folder.join("overrides.json"));
            let main = config.files.first().map(|file| file.with_extension("overrides.json"));
            admin.overrides.clone().or(state).or(main).map_or(Keeper::Nobody, Keeper::File)
        }
        None => Keeper::Nobody,
    };
    if let Err(error) = overrides.keep(keeper, passed_on) {
        tracing::error!("{error}");
    }
}
