//! Where operators' acts are kept over a restart: a file that no other process writes, or the store that
//! a fleet shares.

use crate::file_lock::FileLock;
use std::fs::File;
use std::io;
use std::path::PathBuf;

/// Where acts are to be kept over a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// Nowhere.
    Nobody,
    /// A file.
    File(PathBuf),
    /// A store that others share.
    Store,
}

/// Where acts are kept over a restart.
#[derive(Debug, Default)]
pub(super) enum Persistence {
    #[default]
    Nowhere,
    File(ActFile),
    /// Another process uses the file, as it says here.
    InUse(PathBuf, String),
    Store,
}

/// A file that no other process writes.
#[derive(Debug)]
pub(super) struct ActFile {
    pub(super) path: PathBuf,
    /// `None` where a file beside it cannot be made, or the file system has no locks.
    lock: Option<FileLock>,
}

/// Why acts are not kept over a restart.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// Another process writes the file.
    #[error("bans and grants will not survive a restart: {0}")]
    InUse(String),
    /// The file cannot be used.
    #[error("bans and grants from before cannot be read: {0}")]
    Io(#[from] io::Error),
}

impl Persistence {
    pub(super) fn is(&self, keeper: &Keeper) -> bool {
        match (self, keeper) {
            (Self::Nowhere, Keeper::Nobody) | (Self::Store, Keeper::Store) => true,
            (Self::File(file), Keeper::File(path)) => file.path == *path,
            _ => false,
        }
    }

    pub(super) fn open(keeper: Keeper, passed_on: &mut Vec<File>) -> Self {
        match keeper {
            Keeper::Nobody => Self::Nowhere,
            Keeper::Store => Self::Store,
            Keeper::File(path) => match FileLock::acquire_if_possible(&path, passed_on) {
                Ok(lock) => Self::File(ActFile { path, lock }),
                Err(error) => Self::InUse(path, error.to_string()),
            },
        }
    }

    pub(super) fn lock(&mut self) -> Option<&mut FileLock> {
        match self {
            Self::File(file) => file.lock.as_mut(),
            _ => None,
        }
    }
}
