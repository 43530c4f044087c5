//! Follows the files of the configuration: says when they no longer hold what was read last.
//!
//! ```text
//! notice of a folder, or a second ──► settle ──► differs from what was read? ──► reload
//!                                                      ▲                           │
//!                                                      └── what the reload read ◄──┘
//! ```

use crate::config::files::{Files, steps};
use crate::config::watch::Watch;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;

/// Editors write a file in several steps: it is read when it has not changed for this long.
const SETTLE: Duration = Duration::from_millis(50);

/// How often it may change meanwhile before it is read anyway.
const PATIENCE: usize = 40;

/// For so many seconds after a reading, contents are compared each second. A change in the same tick
/// of the file system's clock leaves no other trace, and no clock in use ticks slower than 2 s.
const COARSE_CLOCK: u32 = 3;

pub(super) struct Following {
    /// The main file: all others are named in it.
    main: PathBuf,
    /// As they were read for the last reload.
    files: Files,
    watch: Option<Watch>,
    notices: mpsc::UnboundedSender<()>,
    on_notice: mpsc::UnboundedReceiver<()>,
    /// For so many seconds more, contents are compared.
    compare_for: u32,
}

impl Following {
    /// `files` is what the configuration in force was read from.
    pub(super) fn new(main: &Path, files: Files) -> Self {
        let (notices, on_notice) = mpsc::unbounded_channel();
        let (main, watch, compare_for) = (main.to_owned(), None, COARSE_CLOCK);
        Self { main, files, watch, notices, on_notice, compare_for }
    }

    /// Watches the folders from now on.
    pub(super) fn start(&mut self) {
        match Watch::new(self.notices.clone()) {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => tracing::warn!("files are compared once a second only: {error}"),
        }
        self.watch_folders();
    }

    /// Waits for a sign that files may have changed.
    pub(super) async fn noticed(&mut self) {
        // Both ends are here, so the channel never closes.
        if self.on_notice.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the files stand still, and says whether they differ from what was read.
    pub(super) async fn has_changed(&mut self) -> bool {
        self.reached(steps::NOTICED);
        self.watch_folders();
        let now = self.settled().await;
        self.reached(steps::SETTLED);
        let same = now.hold_the_same_as(&self.files);
        if same {
            // They may have been touched, and look different although they are the same.
            self.files = now;
            self.compare_for = COARSE_CLOCK;
        }
        !same
    }

    /// Compares with these files from now on: what a reload has read, in force or refused.
    pub(super) fn adopt(&mut self, files: Files) {
        self.files = files;
        self.compare_for = COARSE_CLOCK;
        self.watch_folders();
        self.reached(steps::FOLLOWED);
    }

    /// Folders come and go, and not every file system tells of changes.
    pub(super) fn each_second(&mut self) {
        self.watch_folders();
        let compare = self.compare_for > 0;
        self.compare_for = self.compare_for.saturating_sub(1);
        let same = self.files.look_the_same()
            && (!compare || self.files.hold_the_same_as(&self.files.read_again()));
        if !same {
            self.notice();
        }
    }

    /// What changed in a folder before it was watched is looked for afterwards.
    fn watch_folders(&mut self) {
        let new = self.watch.as_mut().is_some_and(|watch| watch.set(self.files.paths()));
        if new {
            self.notice();
        }
    }

    fn notice(&self) {
        let _ = self.notices.send(());
    }

    /// What the files hold once they have not changed for a moment, or have for too long. A notice
    /// that comes after the last reading stays for the next time.
    async fn settled(&mut self) -> Files {
        let mut before = self.files.read_again();
        for _ in 0..PATIENCE {
            tokio::time::sleep(SETTLE).await;
            while self.on_notice.try_recv().is_ok() {}
            let now = self.files.read_again();
            if now.hold_the_same_as(&before) {
                return now;
            }
            before = now;
        }
        before
    }

    /// For tests, which change files at each step.
    pub(super) fn reached(&self, step: &'static str) {
        steps::reached(step, &self.main);
    }
}
