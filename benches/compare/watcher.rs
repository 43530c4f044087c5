//! Somebody who looks at the gateway while it is measured: a dashboard that asks three times a second,
//! and a scraper every second.

use crate::contestants::Stage;
use crate::machine::Failure;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the dashboard waits between two looks.
const PAUSE: Duration = Duration::from_millis(333);

/// Looks until it is dropped.
pub(crate) struct Watcher {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Looks at the gateway whose file was written last.
    pub(crate) fn start(stage: &Stage) -> Result<Self, Failure> {
        let file = fs::read_to_string(stage.folder().join("gateway.yaml"))?;
        let admin = file.lines().find_map(|line| line.strip_prefix("admin: "));
        let admin = admin.ok_or_else(|| Failure::said("there is no admin listener"))?.to_owned();
        let ended = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            for look in 0_u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                ask(&admin, "/api/v1/live");
                if look.is_multiple_of(3) {
                    ask(&admin, "/metrics");
                }
                std::thread::sleep(PAUSE);
            }
        });
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One page, read to its end.
fn ask(admin: &str, path: &str) {
    let Ok(mut stream) = TcpStream::connect(admin) else { return };
    let head = format!("GET {path} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    let mut page = Vec::new();
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.read_to_end(&mut page));
}
