//! Lines that are written without ever being in anybody's way.
//!
//! A producer puts its finished line into a buffer of its own; one thread collects the buffers and
//! writes. When nobody reads the other end, buffers fill up, and further lines are dropped and
//! counted. So are lines that cannot be written, because the disk is full or the other end is gone.
//! The access log and the diagnostics
//! both go this way.

use crate::metrics::Counter;
use parking_lot::Mutex;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

/// What one producer may have waiting to be written.
const BUFFER: usize = 1 << 20;

/// How long lines are collected before they are written together.
const COLLECT: Duration = Duration::from_millis(5);

/// Lines of several producers on their way to one sink.
#[derive(Debug)]
pub struct Lines {
    shared: Arc<Shared>,
    thread: Thread,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    buffers: Box<[Mutex<Vec<u8>>]>,
    dropped: Arc<Counter>,
    ended: AtomicBool,
}

impl Lines {
    /// Lines that are written to `sink`.
    pub fn new(producers: usize, sink: Box<dyn Write + Send>, dropped: Arc<Counter>) -> Self {
        let buffers = (0..producers).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared { buffers, dropped, ended: AtomicBool::new(false) });
        let for_thread = Arc::clone(&shared);
        let writer = std::thread::spawn(move || for_thread.write_to(sink));
        Self { shared, thread: writer.thread().clone(), writer: Mutex::new(Some(writer)) }
    }

    /// Puts one line, its end included, where the writer will find it.
    pub fn append(&self, producer: usize, line: &[u8]) {
        let mut buffer = self.shared.buffers[producer].lock();
        if buffer.len() + line.len() > BUFFER {
            self.shared.dropped.increment();
            return;
        }
        let first = buffer.is_empty();
        buffer.extend_from_slice(line);
        drop(buffer);
        if first {
            self.thread.unpark();
        }
    }

    /// Writes what is still waiting, and ends. Gives up after a second if nobody reads.
    pub fn close(&self) {
        self.shared.ended.store(true, Ordering::Release);
        self.thread.unpark();
        let Some(writer) = self.writer.lock().take() else {
            return;
        };
        for _ in 0..100 {
            if writer.is_finished() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn write_to(&self, mut sink: Box<dyn Write + Send>) {
        let mut lines = Vec::new();
        // The last line may have been written in part.
        let mut torn = false;
        loop {
            let ended = self.ended.load(Ordering::Acquire);
            for buffer in &self.buffers {
                let mut buffer = buffer.lock();
                lines.append(&mut buffer);
                buffer.shrink_to(64 << 10);
            }
            if !lines.is_empty() {
                let mended = torn;
                if mended {
                    lines.insert(0, b'\n');
                }
                // A reader that went away, or a full disk, is no reason to stop serving.
                torn = sink.write_all(&lines).and_then(|()| sink.flush()).is_err();
                if torn {
                    let lost = memchr::memchr_iter(b'\n', &lines).count() - usize::from(mended);
                    self.dropped.add(lost as u64);
                }
                lines.clear();
                lines.shrink_to(64 << 10);
            } else if ended {
                return;
            } else {
                std::thread::park();
            }
            if !ended {
                std::thread::sleep(COLLECT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_is_written_by_the_time_the_log_is_closed() {
        let sink = Sink::default();
        let log = Lines::new(2, Box::new(sink.clone()), Arc::default());
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let log = &log;
                scope.spawn(move || (0..1000).for_each(|_| log.append(worker, b"line\n")));
            }
        });
        log.close();
        assert_eq!(sink.0.lock().len(), 2 * 1000 * 5);
    }

    #[test]
    fn a_reader_that_does_not_read_costs_lines_not_time() {
        struct Stuck(std::sync::mpsc::Receiver<()>);
        impl Write for Stuck {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                let _ = self.0.recv();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (release, stuck) = std::sync::mpsc::channel();
        let dropped = Arc::new(Counter::default());
        let log = Lines::new(1, Box::new(Stuck(stuck)), Arc::clone(&dropped));
        let line = vec![b'x'; 1024];
        (0..4096).for_each(|_| log.append(0, &line));
        assert!(dropped.value() >= 4096 - 2 * 1024, "{}", dropped.value());
        drop(release);
    }
}
