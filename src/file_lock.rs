//! A lock on a file that one process writes: an empty file beside it (`limits.bin.lock`) that holds
//! the process's id and is locked as long as the process lives.
//!
//! The system releases the lock of a process that ends, however it ends, so a lock file that is left
//! behind locks nothing. At a handover the successor gets the open lock file itself: the lock belongs
//! to both processes until one of them has ended.

use crate::saved::beside;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The lock on one file; released when this is dropped, unless another process has it too.
#[derive(Debug)]
pub struct FileLock {
    path: PathBuf,
    file: File,
    sharing: Sharing,
}

/// Which processes have a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// This one.
    Sole,
    /// This one, and its predecessor or successor.
    Both,
}

/// Why a file cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("{} is in use by {}", path.display(), process_name(*process))]
    InUse {
        /// The file.
        path: PathBuf,
        /// The process, if the lock file says which.
        process: Option<u32>,
    },
    /// The lock file cannot be used.
    #[error("{} cannot be locked, so another process may write it as well: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

fn process_name(process: Option<u32>) -> String {
    process.map_or("another process".to_owned(), |id| format!("process {id}"))
}

impl FileLock {
    /// Locks a file. `passed_on` are lock files that the predecessor has locked for this process; the
    /// one that is used is taken out.
    pub fn acquire(path: &Path, passed_on: &mut Vec<File>) -> Result<Self, LockError> {
        let failed = |error| LockError::Io { path: path.to_owned(), error };
        let file = open(&beside(path, ".lock")).map_err(failed)?;
        let same = |other: &File| Some(identity(other).ok()? == identity(&file).ok()?);
        if let Some(index) = passed_on.iter().position(|other| same(other).unwrap_or(false)) {
            let file = passed_on.swap_remove(index);
            return Ok(Self { path: path.to_owned(), file, sharing: Sharing::Both });
        }
        match file.try_lock() {
            Ok(()) => {
                let mut lock = Self { path: path.to_owned(), file, sharing: Sharing::Sole };
                lock.sign().map_err(failed)?;
                Ok(lock)
            }
            Err(TryLockError::WouldBlock) => {
                Err(LockError::InUse { path: path.to_owned(), process: signature(file) })
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// The same, where a file that cannot be locked is used without: the folder may be read-only, or
    /// the file system without locks. What fails is that another process has it.
    pub fn acquire_if_possible(
        path: &Path,
        passed_on: &mut Vec<File>,
    ) -> Result<Option<Self>, LockError> {
        match Self::acquire(path, passed_on) {
            Err(error @ LockError::Io { .. }) => {
                tracing::warn!("{error}");
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    }

    /// The file that is locked.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lock for a successor: from now on it belongs to both processes.
    pub fn pass_on(&mut self) -> io::Result<OwnedFd> {
        let copy = self.file.try_clone()?;
        self.sharing = Sharing::Both;
        Ok(copy.into())
    }

    /// There is no successor, or no predecessor any more: the lock is this process's alone.
    pub fn own(&mut self) {
        self.sharing = Sharing::Sole;
        // Only a message of another process goes by it.
        let _ = self.sign();
    }

    /// Writes down which process has the lock.
    fn sign(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        writeln!(self.file, "{}", std::process::id())
    }
}

impl Drop for FileLock {
    /// Closing the file is not enough: a child that is being started has a copy for a moment.
    fn drop(&mut self) {
        if self.sharing == Sharing::Sole {
            let _ = self.file.unlock();
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Which file it is, whatever its name.
fn identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|data| (data.dev(), data.ino()))
}

/// The process that has written its id.
fn signature(mut file: File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_locked_once_and_for_as_long_as_the_lock_lives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/limits.bin");
        let nothing = &mut Vec::new();
        let lock = FileLock::acquire(&path, nothing).unwrap();
        let error = FileLock::acquire(&path, nothing).unwrap_err();
        let expected = format!("{} is in use by process {}", path.display(), std::process::id());
        assert_eq!(error.to_string(), expected);
        assert!(FileLock::acquire(&path.with_extension("other"), nothing).is_ok());
        drop(lock);
        assert!(
            FileLock::acquire(&path, nothing).is_ok(),
            "a lock file that is left locks nothing"
        );
    }

    #[test]
    fn a_lock_that_was_passed_on_outlives_the_first_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.bin");
        let mut first = FileLock::acquire(&path, &mut Vec::new()).unwrap();
        let mut passed_on = vec![File::from(first.pass_on().unwrap())];
        let mut second = FileLock::acquire(&path, &mut passed_on).unwrap();
        assert!(passed_on.is_empty());
        drop(first);
        second.own();
        assert!(FileLock::acquire(&path, &mut Vec::new()).is_err());
        drop(second);
        assert!(FileLock::acquire(&path, &mut Vec::new()).is_ok());
    }

    #[test]
    fn a_successor_that_does_not_start_leaves_the_lock_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.bin");
        let mut first = FileLock::acquire(&path, &mut Vec::new()).unwrap();
        let mut passed_on = vec![File::from(first.pass_on().unwrap())];
        drop(FileLock::acquire(&path, &mut passed_on).unwrap());
        assert!(FileLock::acquire(&path, &mut Vec::new()).is_err());
        first.own();
        drop(first);
        assert!(FileLock::acquire(&path, &mut Vec::new()).is_ok());
    }
}
