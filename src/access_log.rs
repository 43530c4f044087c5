//! The access log: one JSON object a line, on stdout, never in the way of a request.
//!
//! A worker puts the finished line into its own buffer; one thread collects the buffers and
//! writes. When nobody reads the other end, buffers fill up, and further lines are dropped and
//! counted.

use crate::clock::{Micros, write_rfc3339};
use crate::metrics::Counter;
use parking_lot::Mutex;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

/// What one worker may have waiting to be written.
const BUFFER: usize = 1 << 20;

/// How long lines are collected before they are written together.
const COLLECT: Duration = Duration::from_millis(5);

/// The log that all workers share.
#[derive(Debug)]
pub struct AccessLog {
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

impl AccessLog {
    /// A log that is written to `sink`.
    pub fn new(workers: usize, sink: Box<dyn Write + Send>, dropped: Arc<Counter>) -> Self {
        let buffers = (0..workers).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared { buffers, dropped, ended: AtomicBool::new(false) });
        let for_thread = Arc::clone(&shared);
        let writer = std::thread::spawn(move || for_thread.write_to(sink));
        Self { shared, thread: writer.thread().clone(), writer: Mutex::new(Some(writer)) }
    }

    /// Puts one line, its end included, where the writer will find it.
    pub fn append(&self, worker: usize, line: &[u8]) {
        let mut buffer = self.shared.buffers[worker].lock();
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

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn write_to(&self, mut sink: Box<dyn Write + Send>) {
        let mut lines = Vec::new();
        loop {
            let ended = self.ended.load(Ordering::Acquire);
            for buffer in &self.buffers {
                let mut buffer = buffer.lock();
                lines.append(&mut buffer);
                buffer.shrink_to(64 << 10);
            }
            if !lines.is_empty() {
                // A reader that went away is no reason to stop serving.
                let _ = sink.write_all(&lines).and_then(|()| sink.flush());
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

/// One line, written field by field.
#[derive(Debug)]
pub struct Line(Vec<u8>);

impl Line {
    /// Begins with the time.
    pub fn at(time: Micros) -> Self {
        let mut out = Vec::with_capacity(320);
        out.extend_from_slice(b"{\"time\":\"");
        write_rfc3339(&mut out, time);
        out.push(b'"');
        Self(out)
    }

    fn name(&mut self, name: &str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    /// Adds text; whatever it holds stays within its quotes.
    pub fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        // Writing to a vector cannot fail, and text is always representable.
        let _ = serde_json::to_writer(&mut self.0, text);
    }

    /// Adds a whole number.
    pub fn number(&mut self, name: &str, number: u64) {
        self.name(name);
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Adds a length of time in milliseconds, to the microsecond.
    pub fn millis(&mut self, name: &str, time: Micros) {
        self.name(name);
        let _ = write!(self.0, "{}.{:03}", time / 1000, time % 1000);
    }

    /// The finished line.
    pub fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(b"}\n");
        self.0
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
        let log = AccessLog::new(2, Box::new(sink.clone()), Arc::default());
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
        let log = AccessLog::new(1, Box::new(Stuck(stuck)), Arc::clone(&dropped));
        let line = vec![b'x'; 1024];
        (0..4096).for_each(|_| log.append(0, &line));
        assert!(dropped.value() >= 4096 - 2 * 1024, "{}", dropped.value());
        drop(release);
    }

    #[test]
    fn nothing_a_caller_sends_can_forge_a_line() {
        let mut line = Line::at(0);
        line.text("path", "/\"\n{\"time\":1}\u{2028}\u{7f}");
        line.number("status", 200);
        line.millis("duration_ms", 1_234);
        let bytes = line.finish();
        assert_eq!(bytes.iter().position(|b| *b == b'\n'), Some(bytes.len() - 1));
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["path"], "/\"\n{\"time\":1}\u{2028}\u{7f}");
        assert_eq!(value["duration_ms"], 1.234);
    }
}
