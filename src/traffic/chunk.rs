//! A piece of a log, and which part of its text is what.

use crate::clock::Micros;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};

/// Whole lines of a log.
#[derive(Debug, Default)]
pub struct Chunk {
    pub(super) text: Buffer,
    /// What stands in the text in another spelling: escapes.
    pub(super) spelt: Vec<u8>,
    pub(super) entries: Vec<Entry>,
    pub(super) extras: Vec<Extra>,
    /// Lines that are not empty.
    pub(super) lines: u64,
    /// Those that cannot be read.
    pub(super) unreadable: u64,
    /// The first of them: which line, and why.
    pub(super) shown: Vec<(u64, Unreadable, String)>,
    /// The latest moment of its lines.
    pub(super) latest: Micros,
}

/// Text, in memory that is used again: only what is read is written to it.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    length: usize,
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Buffer {
    /// Holds this, and nothing else.
    pub(super) fn set(&mut self, text: &[u8]) {
        self.bytes.resize(text.len().max(self.bytes.len()), 0);
        self.bytes[..text.len()].copy_from_slice(text);
        self.length = text.len();
    }

    /// Forgets what is behind.
    pub(super) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Reads until there are `wanted` bytes; says whether that was all there is.
    pub(super) fn fill(&mut self, input: &mut dyn Read, wanted: usize) -> io::Result<bool> {
        self.bytes.resize(wanted.max(self.bytes.len()), 0);
        while self.length < wanted {
            match input.read(&mut self.bytes[self.length..wanted]) {
                Ok(0) => return Ok(true),
                Ok(read) => self.length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// What one line tells. What is not there is empty.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Which line of its log it is, from one.
    pub line: u64,
    /// When.
    pub time: Micros,
    /// Who connected, or, where the log knows better, who the caller is.
    pub ip: IpAddr,
    /// The method; nothing if the request could not be read.
    pub method: Span,
    /// What was asked for: a path, perhaps with a query, or a URL.
    pub target: Span,
    /// For which host.
    pub host: Span,
    /// For whom a proxy asks.
    pub forwarded_for: Span,
    /// The user.
    pub user: Span,
    /// The user's plan.
    pub plan: Span,
    /// The API key, or its id.
    pub api_key: Span,
    /// The status of the answer; 0 if it is not told.
    pub status: u16,
    /// Whether an upstream was asked, as far as the log says.
    pub upstream: bool,
    /// It was turned away for want of room, and no limit was asked.
    pub shed: bool,
    /// The share of such requests that is in the log.
    pub sample: f32,
    /// How long it took.
    pub duration: Option<Micros>,
    /// Bytes of the answer's body.
    pub bytes: Option<u64>,
    /// Bytes of the request's body.
    pub request_bytes: Option<u64>,
    /// Where in the chunk's extras its own begin and end.
    pub(super) extras: (u32, u32),
}

/// What a configuration may want to know beside.
#[derive(Clone, Copy, Debug)]
pub enum Extra {
    /// A header: which of those that are wanted, and what it says.
    Header(u16, Span),
    /// What a limit counted the request as: which of those that are wanted.
    Cost(u16, u32),
}

/// Where something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    /// The highest bit is set for what is spelt otherwise than in the text.
    length: u32,
}

const SPELT: u32 = 1 << 31;

impl Span {
    /// Nowhere.
    pub const NONE: Self = Self { start: 0, length: 0 };

    pub(super) fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, length: (end - start) as u32 }
    }

    pub(super) fn spelt(start: usize, end: usize) -> Self {
        Self { start: start as u32, length: (end - start) as u32 | SPELT }
    }

    /// What stands there.
    pub(super) fn of<'t>(self, text: &'t [u8], spelt: &'t [u8]) -> &'t [u8] {
        let from = if self.length & SPELT == 0 { text } else { spelt };
        &from[self.start as usize..][..(self.length & !SPELT) as usize]
    }

    /// Whether there is nothing there.
    pub fn is_none(self) -> bool {
        self.length & !SPELT == 0
    }

    /// So many bytes of its beginning.
    pub(super) fn first(self, bytes: usize) -> Self {
        Self { length: bytes as u32 | self.length & SPELT, ..self }
    }

    /// Without so many bytes at its beginning.
    pub(super) fn skip(self, bytes: usize) -> Self {
        Self { start: self.start + bytes as u32, length: self.length - bytes as u32 }
    }
}

/// Why a line cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unreadable {
    /// It is no object, or breaks off.
    #[error("this is no JSON object")]
    NotJson,
    /// It is not as such lines are.
    #[error("this is no line of the combined format")]
    NotCombined,
    /// Quotes that do not end, or text behind them.
    #[error("the quotes of a field do not end")]
    NotCsv,
    /// Nothing says when.
    #[error("no time")]
    NoTime,
    /// Something says when, but nobody can read it.
    #[error("a time that cannot be read")]
    BadTime,
    /// Nothing says who.
    #[error("no address")]
    NoAddress,
    /// Something says who, but it is no address.
    #[error("an address that is none")]
    BadAddress,
    /// A status that is none.
    #[error("a status that is no number")]
    BadStatus,
    /// It would have to be held whole.
    #[error("longer than a line may be")]
    TooLong,
}

impl Entry {
    pub(super) const EMPTY: Self = Self {
        line: 0,
        time: Micros::MAX,
        ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        method: Span::NONE,
        target: Span::NONE,
        host: Span::NONE,
        forwarded_for: Span::NONE,
        user: Span::NONE,
        plan: Span::NONE,
        api_key: Span::NONE,
        status: 0,
        upstream: false,
        shed: false,
        sample: 1.0,
        duration: None,
        bytes: None,
        request_bytes: None,
        extras: (0, 0),
    };
}

impl Chunk {
    /// Empties it, and keeps its memory.
    pub(super) fn clear(&mut self) {
        self.text.truncate(0);
        self.spelt.clear();
        self.entries.clear();
        self.extras.clear();
        self.shown.clear();
        (self.lines, self.unreadable, self.latest) = (0, 0, 0);
    }

    /// The lines that could be read.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The latest moment of its lines, but for those few that are far ahead of all others: somebody's
    /// clock was wrong.
    pub(super) fn settle_latest(&mut self, far: Micros) {
        let last = self.entries.iter().rev().take(8).map(|entry| entry.time).min().unwrap_or(0);
        if self.latest > last.saturating_add(far) {
            let mut times: Vec<Micros> = self.entries.iter().map(|entry| entry.time).collect();
            let most = times.len() * 99 / 100;
            let (_, usual, _) = times.select_nth_unstable(most);
            self.latest = *usual;
        }
    }

    /// The latest moment of its lines.
    pub fn latest(&self) -> Micros {
        self.latest
    }

    /// Its lines, how many of them cannot be read, and the first of those: which line, why, and how
    /// it begins.
    pub fn unreadable(&self) -> (u64, u64, &[(u64, Unreadable, String)]) {
        (self.lines, self.unreadable, &self.shown)
    }

    /// What stands there.
    pub fn bytes(&self, span: Span) -> &[u8] {
        span.of(&self.text, &self.spelt)
    }

    /// What stands there, as text; nothing if there is nothing.
    pub fn text(&self, span: Span) -> Option<std::borrow::Cow<'_, str>> {
        (!span.is_none()).then(|| String::from_utf8_lossy(self.bytes(span)))
    }

    /// What else a line tells.
    pub fn extras(&self, entry: &Entry) -> &[Extra] {
        &self.extras[entry.extras.0 as usize..entry.extras.1 as usize]
    }
}
