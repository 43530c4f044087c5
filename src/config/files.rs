//! The files that a configuration is made of, as they were when they were read.
//!
//! What a file held is noted from the very bytes that were parsed, so a later look is compared with
//! what is in force and with nothing else: a file that changed during a reload differs afterwards.

use crate::digest::sha256;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files and what they held.
#[derive(Clone, Debug, Default)]
pub struct Files(Vec<Noted>);

#[derive(Clone, Debug)]
struct Noted {
    path: PathBuf,
    /// Taken before the bytes were read: a later change shows in one or the other.
    look: Option<Look>,
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Unreadable,
    Sha256([u8; 32]),
    /// Two readings differed, so no later one can equal both.
    Torn,
}

/// What a file looks like from outside: which one it is, how large, and when it was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for Look {
    fn from(data: &Metadata) -> Self {
        Self {
            file: (data.dev(), data.ino()),
            size: data.size(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        }
    }
}

impl Files {
    /// Reads a file and notes what it held, or that it cannot be read.
    pub(super) fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let (noted, bytes) = Noted::read(path);
        steps::reached(steps::FILE_READ, path);
        match self.0.iter_mut().find(|known| known.path == path) {
            None => self.0.push(noted),
            Some(known) if known.content == noted.content => {}
            Some(known) => known.content = Content::Torn,
        }
        bytes
    }

    /// The same for a file that has to be text.
    pub(super) fn read_text(&mut self, path: &Path) -> io::Result<String> {
        let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not valid UTF-8");
        String::from_utf8(self.read(path)?).map_err(no_text)
    }

    /// The files, in the order in which they were read.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|noted| &*noted.path)
    }

    /// The same files as they are now.
    #[must_use]
    pub fn read_again(&self) -> Self {
        Self(self.0.iter().map(|noted| Noted::read(&noted.path).0).collect())
    }

    /// Whether these are the same files with the same contents.
    pub fn hold_the_same_as(&self, other: &Self) -> bool {
        let same = |(one, other): (&Noted, &Noted)| {
            one.path == other.path && one.content == other.content && one.content != Content::Torn
        };
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(same)
    }

    /// A cheap look at the files: whether each is the one that was read, and unchanged by its times.
    /// A change in the same tick of the file system's clock is not seen.
    pub fn look_the_same(&self) -> bool {
        let now = |path| std::fs::metadata(path).ok().as_ref().map(Look::from);
        self.0.iter().all(|noted| noted.look == now(&noted.path))
    }
}

impl Noted {
    fn read(path: &Path) -> (Self, io::Result<Vec<u8>>) {
        let opened = File::open(path);
        let data = match &opened {
            Ok(file) => file.metadata(),
            Err(_) => std::fs::metadata(path),
        };
        let look = data.ok().as_ref().map(Look::from);
        let bytes = opened.and_then(|mut file| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map(|_| bytes)
        });
        let content = bytes.as_ref().map_or(Content::Unreadable, |b| Content::Sha256(sha256(b)));
        (Self { path: path.to_owned(), look, content }, bytes)
    }
}

/// The steps of a reload. Tests change files at each of them.
pub(crate) mod steps {
    pub(crate) const NOTICED: &str = "noticed";
    pub(crate) const SETTLED: &str = "settled";
    pub(crate) const FILE_READ: &str = "file read";
    pub(crate) const LOADED: &str = "loaded";
    pub(crate) const IN_FORCE: &str = "in force";
    pub(crate) const FOLLOWED: &str = "followed";
    pub(crate) const IDLE: &str = "idle";

    #[cfg(not(test))]
    pub(crate) const fn reached(_step: &str, _file: &std::path::Path) {}

    #[cfg(test)]
    pub(crate) use hooks::{on_steps, reached};

    #[cfg(test)]
    mod hooks {
        use parking_lot::Mutex;
        use std::path::{Path, PathBuf};
        use std::sync::Arc;

        type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

        static HOOKS: Mutex<Vec<(PathBuf, Hook)>> = Mutex::new(Vec::new());

        /// Calls back at each step that concerns files in a folder, on the thread that takes it.
        pub(crate) fn on_steps(folder: &Path, hook: impl Fn(&'static str) + Send + Sync + 'static) {
            HOOKS.lock().push((folder.to_owned(), Arc::new(hook)));
        }

        pub(crate) fn reached(step: &'static str, file: &Path) {
            let hooks = HOOKS.lock();
            let hook = hooks.iter().find(|(folder, _)| file.starts_with(folder));
            let hook = hook.map(|(_, hook)| Arc::clone(hook));
            drop(hooks);
            if let Some(hook) = hook {
                hook(step);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_save_in_the_same_tick_differs_in_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.yaml");
        std::fs::write(&path, "one").unwrap();
        let mut files = Files::default();
        assert_eq!(files.read(&path).unwrap(), b"one");
        assert!(files.look_the_same() && files.hold_the_same_as(&files.read_again()));
        std::fs::write(&path, "two").unwrap();
        // The look may be the same, as far as the file system's clock can tell.
        files.0[0].look = std::fs::metadata(&path).ok().as_ref().map(Look::from);
        assert!(files.look_the_same() && !files.hold_the_same_as(&files.read_again()));
    }

    #[test]
    fn a_file_that_comes_or_goes_differs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.yaml");
        let mut files = Files::default();
        files.read(&path).unwrap_err();
        assert!(files.look_the_same() && files.hold_the_same_as(&files.read_again()));
        std::fs::write(&path, "").unwrap();
        assert!(!files.look_the_same() && !files.hold_the_same_as(&files.read_again()));
    }

    #[test]
    fn a_file_that_changes_between_two_readings_of_one_load_equals_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("both.pem");
        let mut files = Files::default();
        for text in ["certificate", "key"] {
            std::fs::write(&path, text).unwrap();
            files.read(&path).unwrap();
        }
        assert!(!files.hold_the_same_as(&files.read_again()));
        assert_eq!(files.paths().count(), 1);
    }
}
