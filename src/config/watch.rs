//! Notices that a file of the configuration may have changed.
//!
//! Folders are watched, not files: editors replace a file by another one, and a Kubernetes
//! `ConfigMap` swaps a symbolic link two levels up. Whether anything really changed is for the
//! reader of the files to say, so too many notices do no harm.

use notify::event::ModifyKind;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::mpsc;

/// Watches the folders of some files.
#[derive(Debug)]
pub struct Watch {
    watcher: RecommendedWatcher,
    watched: Arc<Mutex<Folders>>,
}

/// Folders by what they are rather than by name: a folder that was replaced is another one, and one
/// with two names is watched once.
type Folders = HashMap<Identity, PathBuf>;

/// Device, inode, and when it was made, as inodes are used again.
type Identity = (u64, u64, Option<SystemTime>);

impl Watch {
    /// Every change in a watched folder sends a notice.
    pub fn new(notices: mpsc::UnboundedSender<()>) -> notify::Result<Self> {
        let watched = Arc::new(Mutex::new(Folders::new()));
        let known = Arc::clone(&watched);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if let Ok(event) = &event {
                forget_lost(&mut known.lock(), event);
            }
            // Reading a file is no change; an error may hide one.
            if !matches!(&event, Ok(event) if matches!(event.kind, EventKind::Access(_))) {
                let _ = notices.send(());
            }
        })?;
        Ok(Self { watcher, watched })
    }

    /// Watches the folders of these files, and no others. A watch that stands is left alone. Says
    /// whether a folder is watched that was not before: a change in it may have gone unnoticed.
    pub fn set<'a>(&mut self, files: impl Iterator<Item = &'a Path>) -> bool {
        let wanted: Folders = files.flat_map(folders).filter_map(|path| identify(&path)).collect();
        let mut gone = Vec::new();
        let mut standing = self.watched.lock();
        standing.retain(|identity, path| {
            let stays = wanted.contains_key(identity);
            if !stays {
                gone.push(std::mem::take(path));
            }
            stays
        });
        let new: Vec<_> =
            wanted.into_iter().filter(|(identity, _)| !standing.contains_key(identity)).collect();
        // The watcher's thread may be waiting for the lock.
        drop(standing);
        for path in &gone {
            let _ = self.watcher.unwatch(path);
        }
        let mut added = false;
        for (identity, path) in new {
            let _ = self.watcher.unwatch(&path); // of a folder that had this name
            match self.watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.lock().insert(identity, path);
                    added = true;
                }
                Err(error) => tracing::warn!("cannot watch {}: {error}", path.display()),
            }
        }
        added
    }
}

/// The watcher drops a folder that is removed or moved away, even if it comes back.
fn forget_lost(watched: &mut Folders, event: &Event) {
    if matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))) {
        watched.retain(|_, path| !event.paths.contains(path));
    }
}

/// A folder's identity and its real name, if it is there.
fn identify(path: &Path) -> Option<(Identity, PathBuf)> {
    let real = path.canonicalize().ok()?;
    let data = std::fs::metadata(&real).ok()?;
    Some(((data.dev(), data.ino(), data.created().ok()), real))
}

/// The folder of a file, and the folders of what it and its folder link to.
fn folders(file: &Path) -> Vec<PathBuf> {
    let parent = |path: &Path| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.map_or_else(|| PathBuf::from("."), Path::to_owned)
    };
    let mut folders = vec![parent(file)];
    let mut link = file.to_owned();
    // Links to links, as many as the system itself would follow.
    for _ in 0..40 {
        let Ok(target) = std::fs::read_link(&link) else {
            break;
        };
        link = parent(&link).join(target);
        folders.push(parent(&link));
    }
    folders.extend(file.canonicalize().ok().map(|real| parent(&real)));
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct Watched {
        watch: Watch,
        notices: mpsc::UnboundedReceiver<()>,
    }

    impl Watched {
        fn new() -> Self {
            let (sender, notices) = mpsc::unbounded_channel();
            Self { watch: Watch::new(sender).unwrap(), notices }
        }

        fn set(&mut self, file: &Path) -> bool {
            self.watch.set(std::iter::once(file))
        }

        fn noticed(&mut self) -> bool {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let outcome = runtime.unwrap().block_on(async {
                tokio::time::timeout(Duration::from_secs(10), self.notices.recv()).await
            });
            while self.notices.try_recv().is_ok() {}
            outcome.is_ok()
        }
    }

    #[test]
    fn a_watch_that_stands_is_left_alone_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.yaml");
        let mut watched = Watched::new();
        assert!(watched.set(&file));
        for text in ["one", "two"] {
            assert!(!watched.set(&file), "nothing differs");
            std::fs::write(&file, text).unwrap();
            assert!(watched.noticed());
        }
    }

    #[test]
    fn a_folder_that_was_replaced_is_watched_again() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("conf");
        let file = folder.join("gateway.yaml");
        std::fs::create_dir(&folder).unwrap();
        let mut watched = Watched::new();
        assert!(watched.set(&file));
        std::fs::remove_dir(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
        assert!(watched.noticed() && watched.set(&file));
        std::fs::write(&file, "one").unwrap();
        assert!(watched.noticed());
    }

    #[test]
    fn a_folder_that_moves_away_and_back_is_watched_again() {
        let root = tempfile::tempdir().unwrap();
        let (folder, aside) = (root.path().join("conf"), root.path().join("aside"));
        let file = folder.join("gateway.yaml");
        std::fs::create_dir(&folder).unwrap();
        let mut watched = Watched::new();
        assert!(watched.set(&file));
        std::fs::rename(&folder, &aside).unwrap();
        std::fs::rename(&aside, &folder).unwrap();
        assert!(watched.noticed() && watched.set(&file));
        std::fs::write(&file, "one").unwrap();
        assert!(watched.noticed());
    }
}
