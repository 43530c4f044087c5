//! The access log: a line a request, as a JSON object or as words for people.
//! [`Lines`](crate::lines::Lines) writes them. Nothing a caller sends can forge a line: in JSON it
//! stays within its quotes, and in words it is quoted as soon as it holds anything but plain
//! characters.

use crate::clock::{Micros, write_rfc3339};
use crate::config::model::LogFormat;
use crate::printable::is_hidden;
use http::{Method, StatusCode};
use std::io::Write;

/// One line, written field by field.
#[derive(Debug)]
pub struct Line {
    format: LogFormat,
    out: Vec<u8>,
}

impl Line {
    /// Begins with what every line has: when, with which status, what was asked for.
    pub fn begin(
        format: LogFormat,
        time: Micros,
        status: StatusCode,
        method: &Method,
        path: Option<&str>,
    ) -> Self {
        let mut line = Self { format, out: Vec::with_capacity(384) };
        match format {
            LogFormat::Json => {
                line.out.extend_from_slice(b"{\"time\":\"");
                write_rfc3339(&mut line.out, time);
                line.out.push(b'"');
                line.text("method", method.as_str());
                if let Some(path) = path {
                    line.text("path", path);
                }
                line.number("status", status.as_u16().into());
            }
            LogFormat::Text => {
                write_rfc3339(&mut line.out, time);
                let _ = write!(line.out, " {} ", status.as_u16());
                line.word(method.as_str());
                line.out.push(b' ');
                line.word(path.unwrap_or("-"));
            }
        }
        line
    }

    fn name(&mut self, name: &str) {
        match self.format {
            LogFormat::Json => {
                self.out.extend_from_slice(b",\"");
                self.out.extend_from_slice(name.as_bytes());
                self.out.extend_from_slice(b"\":");
            }
            LogFormat::Text => {
                self.out.push(b' ');
                self.out.extend_from_slice(name.as_bytes());
                self.out.push(b'=');
            }
        }
    }

    /// Adds text; whatever it holds, it is one value.
    pub fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        self.value(text);
    }

    fn value(&mut self, text: &str) {
        match self.format {
            LogFormat::Json => {
                let start = self.out.len();
                // Writing to a vector cannot fail, and text is always representable.
                let _ = serde_json::to_writer(&mut self.out, text);
                if !text.bytes().all(|byte| byte.is_ascii() && byte != 0x7f) {
                    escape_hidden(&mut self.out, start);
                }
            }
            LogFormat::Text => self.word(text),
        }
    }

    /// Text as it is, or in quotes with everything escaped that does not print.
    fn word(&mut self, text: &str) {
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"\\=".contains(&byte);
        if !text.is_empty() && text.bytes().all(plain) {
            self.out.extend_from_slice(text.as_bytes());
        } else {
            let _ = write!(self.out, "{text:?}");
        }
    }

    /// Adds what the request is called, which is plain by its nature.
    pub fn id(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.name("request_id");
        let quote: &[u8] = if self.format == LogFormat::Json { b"\"" } else { b"" };
        self.out.extend_from_slice(quote);
        write(&mut self.out);
        self.out.extend_from_slice(quote);
    }

    /// Adds a whole number.
    pub fn number(&mut self, name: &str, number: u64) {
        self.name(name);
        self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Adds a length of time in milliseconds, to the microsecond.
    pub fn millis(&mut self, name: &str, time: Micros) {
        self.name(name);
        let _ = write!(self.out, "{}.{:03}", time / 1000, time % 1000);
    }

    /// Adds texts that have names of their own, as far as there are any.
    pub fn texts<'t>(&mut self, name: &str, texts: impl Iterator<Item = (&'t str, &'t str)>) {
        self.pairs(name, texts, Self::value);
    }

    /// Adds whole numbers that have names of their own, as far as there are any.
    pub fn numbers<'t>(&mut self, name: &str, numbers: impl Iterator<Item = (&'t str, u64)>) {
        self.pairs(name, numbers, |line, number| {
            line.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        });
    }

    /// An object, or words whose names are joined by a dot.
    fn pairs<'t, T>(
        &mut self,
        name: &str,
        pairs: impl Iterator<Item = (&'t str, T)>,
        write: impl Fn(&mut Self, T),
    ) {
        let mut open = false;
        for (key, value) in pairs {
            match self.format {
                LogFormat::Json => {
                    if open {
                        self.out.push(b',');
                    } else {
                        self.name(name);
                        self.out.push(b'{');
                    }
                    self.value(key);
                    self.out.push(b':');
                }
                LogFormat::Text => {
                    self.out.push(b' ');
                    self.word(&format!("{name}.{key}"));
                    self.out.push(b'=');
                }
            }
            write(self, value);
            open = true;
        }
        if open && self.format == LogFormat::Json {
            self.out.push(b'}');
        }
    }

    /// Adds a share of the whole.
    pub fn share(&mut self, name: &str, share: f64) {
        self.name(name);
        let _ = write!(self.out, "{share}");
    }

    /// The finished line.
    pub fn finish(mut self) -> Vec<u8> {
        let end: &[u8] = if self.format == LogFormat::Json { b"}\n" } else { b"\n" };
        self.out.extend_from_slice(end);
        self.out
    }
}

/// Escapes what JSON allows in a string and a viewer of the log may obey: ends of lines that are not
/// ASCII, and characters that turn text around or hide it.
fn escape_hidden(out: &mut Vec<u8>, start: usize) {
    let written = out.split_off(start);
    let mut units = [0; 2];
    for c in String::from_utf8_lossy(&written).chars() {
        if is_hidden(c) {
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str =
        "/\"\n{\"time\":1}\u{2028}\u{7f}\u{202e} status=200\r\u{1b}[2J\u{9b}\u{feff}\u{e0041}é";

    fn line(format: LogFormat) -> String {
        let mut line = Line::begin(format, 0, StatusCode::NOT_FOUND, &Method::GET, Some(HOSTILE));
        line.text("user", HOSTILE);
        line.text("route", "login page");
        line.id(|out| out.extend_from_slice(b"a-1"));
        line.texts("headers", [("x-a", HOSTILE), ("x-b", "b")].into_iter());
        line.numbers("costs", std::iter::empty());
        line.millis("duration_ms", 1_234);
        line.numbers("costs", [("tokens a day", 12)].into_iter());
        String::from_utf8(line.finish()).unwrap()
    }

    #[test]
    fn nothing_a_caller_sends_can_forge_a_line() {
        let json = line(LogFormat::Json);
        assert_eq!(json.find('\n'), Some(json.len() - 1));
        assert!(!json.trim_end().contains(is_hidden), "{json:?}");
        assert!(json.contains(r"\u2028\u007f\u202e") && json.contains(r"\udb40\udc41é"), "{json}");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&value["path"], &value["user"]), (&HOSTILE.into(), &HOSTILE.into()));
        assert_eq!((&value["duration_ms"], &value["request_id"]), (&1.234.into(), &"a-1".into()));
        assert_eq!(value["headers"], serde_json::json!({ "x-a": HOSTILE, "x-b": "b" }));
        assert_eq!(value["costs"], serde_json::json!({ "tokens a day": 12 }));
        let text = line(LogFormat::Text);
        assert_eq!(text.find('\n'), Some(text.len() - 1));
        assert!(
            text.trim_end().chars().all(|c| matches!(c, ' ' | 'é') || c.is_ascii_graphic()),
            "{text}"
        );
        let path = format!("{HOSTILE:?}");
        let expected = format!(
            "1970-01-01T00:00:00.000Z 404 GET {path} user={path} route=\"login page\" \
             request_id=a-1 headers.x-a={path} headers.x-b=b duration_ms=1.234 \
             \"costs.tokens a day\"=12\n"
        );
        assert_eq!(text, expected);
    }
}
