//! What the system says of this process: its processor time, memory and open files.

use std::fs;

/// As of now; nothing where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// Processor time so far, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Bytes that are resident.
    pub resident_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_files: Option<u64>,
}

impl Process {
    /// Asks the system.
    pub fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").ok();
        Self {
            cpu_seconds: stat.as_deref().and_then(cpu_seconds),
            resident_bytes: fs::read_to_string("/proc/self/status").ok().as_deref().and_then(rss),
            // Looking takes one itself.
            open_files: fs::read_dir("/proc/self/fd").ok().map(|all| all.count() as u64 - 1),
        }
    }
}

/// User and system time are the 14th and 15th field, in hundredths of a second; the second field is
/// a name in parentheses that may hold anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 / 100.0)
}

fn rss(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_files_and_time() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 150 25 0 0 20 0 3 0 100 1 1";
        assert_eq!(cpu_seconds(stat), Some(1.75));
        assert_eq!(rss("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        let read = Process::read();
        assert!(read.resident_bytes.is_some_and(|bytes| bytes > 1 << 20), "{read:?}");
        assert!(read.open_files.is_some_and(|count| count >= 3), "{read:?}");
    }
}
