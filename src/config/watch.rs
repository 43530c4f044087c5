//! Notices that a file of the configuration may have changed.
//!
//! Folders are watched, not files: editors replace a file by another one, and a Kubernetes
//! `ConfigMap` swaps a symbolic link two levels up. Whether anything really changed is for the
//! reader of the files to say, so too many notices do no harm.

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Watches the folders of some files.
#[derive(Debug)]
pub struct Watch {
    watcher: RecommendedWatcher,
    watched: HashSet<PathBuf>,
}

impl Watch {
    /// Every change in a watched folder sends a notice.
    pub fn new(notices: mpsc::UnboundedSender<()>) -> notify::Result<Self> {
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Reading a file is no change; an error may hide one.
            if !matches!(&event, Ok(event) if matches!(event.kind, EventKind::Access(_))) {
                let _ = notices.send(());
            }
        })?;
        Ok(Self { watcher, watched: HashSet::new() })
    }

    /// Watches the folders of these files, and no others.
    pub fn set(&mut self, files: &[PathBuf]) {
        let wanted: HashSet<PathBuf> = files.iter().flat_map(|file| folders(file)).collect();
        for gone in self.watched.difference(&wanted) {
            let _ = self.watcher.unwatch(gone);
        }
        // A folder that was replaced must be watched anew.
        for folder in &wanted {
            let _ = self.watcher.unwatch(folder);
            if let Err(error) = self.watcher.watch(folder, RecursiveMode::NonRecursive) {
                tracing::warn!("cannot watch {}: {error}", folder.display());
            }
        }
        self.watched = wanted;
    }
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

/// What the files hold, so that a notice without a change is no reload.
pub fn fingerprint(files: &[PathBuf]) -> Vec<Option<Vec<u8>>> {
    files.iter().map(|file| std::fs::read(file).ok()).collect()
}

/// What a file looks like from outside: which one it is, how large, and when it was changed.
pub type Look = (u64, u64, i64, i64);

/// A cheap look at the files, for those whose changes nobody tells of.
pub fn looks(files: &[PathBuf]) -> Vec<Option<Look>> {
    let look = |file: &PathBuf| {
        let data = std::fs::metadata(file).ok()?;
        Some((data.ino(), data.size(), data.mtime(), data.mtime_nsec()))
    };
    files.iter().map(look).collect()
}
