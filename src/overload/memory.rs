//! How near the process is to the end of its memory: what its cgroup may have, and has.
//!
//! A limit may be set on the cgroup itself or on any above it, and counts for all below. Files that
//! the kernel has read and could forget are not counted: it forgets them before it kills anybody.

use std::fs;
use std::path::{Path, PathBuf};

/// Limits of version 1 that mean there is none.
const UNLIMITED: u64 = 1 << 60;

/// Where the limits are that hold for a process.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    groups: Vec<Group>,
}

/// One cgroup with a limit of its own.
#[derive(Clone, Debug)]
struct Group {
    folder: PathBuf,
    files: &'static Files,
}

/// What the files of a cgroup are called.
#[derive(Debug)]
struct Files {
    limit: &'static str,
    used: &'static str,
    /// The lines of `memory.stat` that tell what could be forgotten.
    forgettable: [&'static str; 2],
}

static VERSION_2: Files = Files {
    limit: "memory.max",
    used: "memory.current",
    forgettable: ["inactive_file", "active_file"],
};
static VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    forgettable: ["total_inactive_file", "total_active_file"],
};

impl Memory {
    /// This process's.
    pub fn of_this_process() -> Self {
        let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::find(&text, Path::new("/sys/fs/cgroup"))
    }

    /// What `/proc/self/cgroup` says, with the cgroups' files below `root`.
    pub fn find(text: &str, root: &Path) -> Self {
        let mut groups = Vec::new();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let (tops, files) = match controllers {
                "" => ([root.to_owned(), root.join("unified")], &VERSION_2),
                all if all.split(',').any(|name| name == "memory") => {
                    ([root.join("memory"), root.join(all)], &VERSION_1)
                }
                _ => continue,
            };
            let below = Path::new(path.trim_start_matches('/'));
            for top in tops {
                // In a container the group may be the root of what can be seen, whatever it is called.
                let folders = below.ancestors().map(|below| top.join(below));
                let all = folders.map(|folder| Group { folder, files });
                // A limit may be set later.
                groups.extend(all.filter(|group| group.folder.join(files.limit).exists()));
            }
        }
        groups.dedup_by(|a, b| a.folder == b.folder);
        Self { groups }
    }

    /// Which share of its memory is used, of the limit that is nearest. `None` without any.
    pub fn used(&self) -> Option<f64> {
        self.groups.iter().filter_map(Group::used).reduce(f64::max)
    }
}

impl Group {
    fn limit(&self) -> Option<u64> {
        let limit = number(&self.folder.join(self.files.limit))?;
        (1..UNLIMITED).contains(&limit).then_some(limit)
    }

    fn used(&self) -> Option<f64> {
        let (used, limit) = (number(&self.folder.join(self.files.used))?, self.limit()?);
        // Most of the time there is no need to look any closer.
        if used < limit / 2 {
            return Some(used as f64 / limit as f64);
        }
        let stat = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let of = |line: &str| {
            let (name, bytes) = line.split_once(' ')?;
            self.files.forgettable.contains(&name).then(|| bytes.parse::<u64>().ok())?
        };
        let forgettable: u64 = stat.lines().filter_map(of).sum();
        Some(used.saturating_sub(forgettable) as f64 / limit as f64)
    }
}

/// The number in a file; `max` is none.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn version_2_and_what_can_be_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let files = [("memory.max", "1000\n"), ("memory.current", "900\n")];
        write(&root.path().join("app"), &files);
        write(
            &root.path().join("app"),
            &[("memory.stat", "file 600\ninactive_file 400\nactive_file 100\n")],
        );
        let memory = Memory::find("0::/app\n", root.path());
        assert_eq!(memory.used(), Some(0.4));
        write(&root.path().join("app"), &[("memory.max", "max\n")]);
        assert_eq!(memory.used(), None, "the limit was lifted");
    }

    #[test]
    fn the_nearest_limit_counts_wherever_it_is() {
        let root = tempfile::tempdir().unwrap();
        let of = |max, current| [("memory.max", max), ("memory.current", current)];
        write(&root.path().join("a/b/c"), &of("max", "10"));
        write(&root.path().join("a/b"), &of("100", "50"));
        write(&root.path().join("a"), &of("100", "80"));
        assert_eq!(Memory::find("0::/a/b/c", root.path()).used(), Some(0.8));
    }

    #[test]
    fn version_1_and_containers_that_do_not_know_their_own_path() {
        let root = tempfile::tempdir().unwrap();
        let of = |max, used| [("memory.limit_in_bytes", max), ("memory.usage_in_bytes", used)];
        write(&root.path().join("memory"), &of("200", "150"));
        let text = "12:pids:/docker/x\n5:memory:/docker/x\n0::/docker/x\n";
        assert_eq!(Memory::find(text, root.path()).used(), Some(0.75));
        write(&root.path().join("memory"), &of("9223372036854771712", "150"));
        assert_eq!(Memory::find(text, root.path()).used(), None);
    }

    #[test]
    fn no_cgroup_is_no_limit() {
        let root = tempfile::tempdir().unwrap();
        for text in ["", "garbage", "0::/", "5:memory:/\n"] {
            assert_eq!(Memory::find(text, root.path()).used(), None, "{text:?}");
        }
    }
}
