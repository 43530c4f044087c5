//! The last save is in force soon, whenever in a reload it comes: a real gateway, whose files change
//! at chosen steps of what the control thread does.

use super::{Options, Server};
use crate::config::files::steps;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;

/// So long after the last save its content must be in force.
const SOON: Duration = Duration::from_secs(2);

/// How a file is saved.
#[derive(Clone, Copy, Debug)]
enum Save {
    /// Into the file that is there.
    InPlace,
    /// Into another one that takes its name.
    Rename,
    /// The file is gone for a moment.
    Anew,
    /// As Kubernetes does: the folder that a link names is another one from now on.
    Swap,
    /// The same, and the folder before it is removed.
    SwapAndRemove,
}

/// The file under test, with a number in it that says which save it is.
struct Folder {
    root: TempDir,
    saves: u64,
    swapped: Option<PathBuf>,
}

impl Folder {
    fn new() -> Self {
        let mut folder = Self { root: tempfile::tempdir().unwrap(), saves: 0, swapped: None };
        folder.save(Save::InPlace);
        folder
    }

    fn file(&self) -> PathBuf {
        self.root.path().join("gateway.yaml")
    }

    fn number(&self) -> Duration {
        Duration::from_secs(1000 + self.saves)
    }

    /// Every save is of the same size.
    fn save(&mut self, how: Save) {
        self.saves += 1;
        let (file, root) = (self.file(), self.root.path().to_owned());
        let text = format!(
            "listen: 127.0.0.1:0\nupstreams: {{}}\nroutes: []\nserver: {{ shutdown_grace: {}s }}\n",
            self.number().as_secs()
        );
        match how {
            Save::InPlace => std::fs::write(&file, text).unwrap(),
            Save::Anew => {
                std::fs::remove_file(&file).unwrap();
                std::fs::write(&file, text).unwrap();
            }
            Save::Rename => {
                std::fs::write(root.join("new"), text).unwrap();
                std::fs::rename(root.join("new"), &file).unwrap();
            }
            Save::Swap | Save::SwapAndRemove => {
                let data = root.join(format!("..{}", self.saves));
                std::fs::create_dir(&data).unwrap();
                std::fs::write(data.join("gateway.yaml"), text).unwrap();
                link(&data, &root.join("..data"));
                link(Path::new("..data/gateway.yaml"), &file);
                let before = self.swapped.replace(data);
                if let Some(before) = before.filter(|_| matches!(how, Save::SwapAndRemove)) {
                    std::fs::remove_dir_all(before).unwrap();
                }
            }
        }
    }
}

/// A link that takes the place of what is there in one step.
fn link(to: &Path, at: &Path) {
    if std::fs::read_link(at).is_ok_and(|there| there == to) {
        return;
    }
    let new = at.with_file_name("link");
    std::os::unix::fs::symlink(to, &new).unwrap();
    std::fs::rename(new, at).unwrap();
}

/// What the hook tells the test.
enum Told {
    Saved,
    Done,
}

/// Saves as the schedule says: after so many steps, or as soon as the save before is in force.
struct Saver {
    folder: Folder,
    schedule: Vec<(usize, Save)>,
    steps: usize,
    told: Sender<Told>,
}

impl Saver {
    fn at(&mut self, in_force: Option<Duration>) {
        self.steps += 1;
        let idle = in_force == Some(self.folder.number());
        let due = self.schedule.first().is_some_and(|(after, _)| self.steps > *after);
        if !self.schedule.is_empty() && (due || idle) {
            self.steps = 0;
            let (_, how) = self.schedule.remove(0);
            self.folder.save(how);
            let _ = self.told.send(Told::Saved);
        } else if idle {
            let _ = self.told.send(Told::Done);
        }
    }
}

fn drive(schedule: Vec<(usize, Save)>) {
    let folder = Folder::new();
    let (root, file) = (folder.root.path().to_owned(), folder.file());
    let (told, on_told) = channel();
    let saver = Mutex::new(Saver { folder, schedule, steps: 0, told });
    let server: Arc<OnceLock<Arc<crate::gateway::Gateway>>> = Arc::default();
    let gateway = Arc::clone(&server);
    steps::on_steps(&root, move |step| {
        let grace = || gateway.wait().snapshot.load().server.shutdown_grace;
        let in_force = (step == steps::IDLE).then(grace);
        saver.lock().at(in_force);
    });
    let options = Options {
        workers: Some(1),
        access_log: Box::new(std::io::sink()),
        memory: crate::overload::memory::Memory::default(),
        ..Options::new(&file)
    };
    let running = Server::start(options).unwrap();
    let _ = server.set(Arc::clone(running.gateway()));
    loop {
        match on_told.recv_timeout(SOON) {
            Ok(Told::Saved) => {}
            Ok(Told::Done) => break,
            Err(RecvTimeoutError::Timeout) => panic!("the last save is not in force"),
            Err(RecvTimeoutError::Disconnected) => unreachable!("the hook is never dropped"),
        }
    }
    running.stop();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn the_last_save_is_in_force_soon_whenever_it_comes(
        schedule in proptest::collection::vec((0_usize..8, any_save()), 1..8),
    ) {
        drive(schedule);
    }
}

fn any_save() -> impl Strategy<Value = Save> {
    use Save::{Anew, InPlace, Rename, Swap, SwapAndRemove};
    proptest::sample::select(vec![InPlace, Rename, Anew, Swap, SwapAndRemove])
}

/// Each step of one reload, with each kind of save.
#[test]
fn a_save_at_any_step_of_a_reload_is_not_lost() {
    for how in [Save::InPlace, Save::Rename, Save::Anew, Save::Swap, Save::SwapAndRemove] {
        for after in 0..7 {
            drive(vec![(0, how), (after, how)]);
        }
    }
}
