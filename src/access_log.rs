//! The access log: one JSON object a line. [`Lines`](crate::lines::Lines) writes them.

use crate::clock::{Micros, write_rfc3339};
use std::io::Write;

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
