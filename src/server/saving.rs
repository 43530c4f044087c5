//! Writes the counters to their file every so often, and when the gateway stops. During a handover the
//! file stays as the successor reads it.

use crate::gateway::Gateway;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Writes counters to their file every so often, on a thread of its own.
#[derive(Default)]
pub(super) struct Saving {
    seconds: u64,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// So that a full disk is not said every time.
    failed: bool,
}

impl Saving {
    pub(super) fn each_second(&mut self, gateway: &Arc<Gateway>) {
        self.seconds += 1;
        let every = gateway.snapshot.load().saved.as_ref().map(|saved| saved.every.as_secs());
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            self.note(&thread.join().unwrap_or(Err(io::ErrorKind::Other.into())));
        }
        let due = every.is_some_and(|every| self.seconds >= every);
        if due && self.thread.is_none() && !gateway.overrides.gate.is_closed() {
            self.seconds = 0;
            let gateway = Arc::clone(gateway);
            let thread = std::thread::Builder::new().name("saving".into());
            match thread.spawn(move || gateway.save()) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => self.note(&Err(error)),
            }
        }
    }

    /// Waits for whoever is writing, and writes once more.
    pub(super) fn finish(&mut self, gateway: &Gateway) {
        let _ = self.thread.take().map(JoinHandle::join);
        self.failed = false;
        self.note(&gateway.save());
    }

    fn note(&mut self, outcome: &io::Result<()>) {
        if let Err(error) = outcome
            && !self.failed
        {
            tracing::error!("the counters could not be saved: {error}");
        }
        self.failed = outcome.is_err();
    }
}
