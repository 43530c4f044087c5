//! The head of a backend's answer: read once, into what the caller may see of it.
//!
//! httparse reads the lines; here they become a status, the fields that are not for one connection
//! alone, and where the body ends. An answer that two readers could understand differently is no
//! answer.

use super::chunked::Chunked;
use crate::hop;
use bytes::{Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use std::mem::MaybeUninit;

/// The largest head.
const MAX_HEAD: usize = 64 << 10;

/// The most fields of a head.
const MAX_FIELDS: usize = 100;

/// The head of an answer.
#[derive(Debug)]
pub struct Head {
    /// Never an interim one.
    pub status: StatusCode,
    /// Without those that belong to the backend's connection.
    pub headers: HeaderMap,
    /// Where the body ends.
    pub framing: Framing,
    /// Whether the backend will take another request on the same connection.
    pub reusable: bool,
}

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// After so many bytes.
    Length(u64),
    /// Where its coding says so.
    Chunked(Chunked),
    /// Where the connection does.
    UntilClose,
}

impl Framing {
    /// Nothing more belongs to the body.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunked::Done))
    }
}

/// Why an answer is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// httparse could not read it.
    #[error("the backend's answer is garbled: {0}")]
    Garbled(#[from] httparse::Error),
    /// A status or a field that HTTP does not know.
    #[error("the backend's answer is garbled")]
    NotHttp,
    /// Too long, or too many fields.
    #[error("the head of the backend's answer is too large")]
    TooLarge,
    /// Nobody asked for it.
    #[error("the backend switched protocols unasked")]
    Switched,
    /// One of the two would be ignored.
    #[error("the backend sent both a length and a transfer coding")]
    LengthAndCoding,
    /// Not everybody knows them.
    #[error("the backend sent a transfer coding other than a single chunked")]
    Coding,
    /// They differ, or are none.
    #[error("the backend sent several lengths, or one that is no number")]
    Lengths,
}

/// Reads a head from the buffer, once it is there; interim answers before it are dropped. The
/// answer to a `HEAD` has no body, whatever it says.
pub fn parse(buffer: &mut BytesMut, to_head: bool) -> Result<Option<Head>, AnswerError> {
    loop {
        match parse_one(buffer, to_head)? {
            None => return Ok(None),
            Some(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                return Err(AnswerError::Switched);
            }
            Some(head) if head.status.is_informational() => {}
            Some(head) => return Ok(Some(head)),
        }
    }
}

/// A field by where it stands in the head.
struct Span {
    name: (usize, usize),
    value: (usize, usize),
}

fn parse_one(buffer: &mut BytesMut, to_head: bool) -> Result<Option<Head>, AnswerError> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut answer = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let parsed = parser.parse_response_with_uninit_headers(&mut answer, buffer, &mut fields);
    let length = match parsed {
        Err(httparse::Error::TooManyHeaders) => return Err(AnswerError::TooLarge),
        Err(error) => return Err(error.into()),
        Ok(httparse::Status::Partial) if buffer.len() >= MAX_HEAD => {
            return Err(AnswerError::TooLarge);
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Ok(httparse::Status::Complete(length)) => length,
    };
    let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(AnswerError::NotHttp)?;
    let old = answer.version == Some(0);
    let start = buffer.as_ptr() as usize;
    let span = |part: &[u8]| {
        let at = part.as_ptr() as usize - start;
        (at, at + part.len())
    };
    let spans: SmallVec<[Span; 24]> = answer
        .headers
        .iter()
        .map(|field| Span { name: span(field.name.as_bytes()), value: span(field.value) })
        .collect();
    let bytes = buffer.split_to(length).freeze();
    read(&bytes, &spans, status, old, to_head).map(Some)
}

/// Makes the head of its parts.
fn read(
    bytes: &Bytes,
    spans: &[Span],
    status: StatusCode,
    old: bool,
    to_head: bool,
) -> Result<Head, AnswerError> {
    let mut headers = HeaderMap::with_capacity(spans.len() + 5); // room for what the limits say
    let mut said = Said::default();
    for Span { name, value } in spans {
        let (name, value) = (&bytes[name.0..name.1], bytes.slice(value.0..value.1));
        let name = HeaderName::from_bytes(name).map_err(|_| AnswerError::NotHttp)?;
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| AnswerError::NotHttp)?;
        if said.hear(&name, &value)? {
            headers.append(name, value);
        }
    }
    for name in &said.named {
        headers.remove(name);
    }
    let bodiless = to_head
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let framing = match (said.chunked, said.length) {
        (true, Some(_)) => return Err(AnswerError::LengthAndCoding),
        (true, None) if old => return Err(AnswerError::Coding),
        _ if bodiless => Framing::Length(0),
        (true, None) => Framing::Chunked(Chunked::default()),
        (false, Some(length)) => Framing::Length(length),
        (false, None) => Framing::UntilClose,
    };
    let stays = !said.closes && (!old || said.keeps) && framing != Framing::UntilClose;
    Ok(Head { status, headers, framing, reusable: stays })
}

/// What the fields say of the connection and the body.
#[derive(Default)]
struct Said {
    chunked: bool,
    length: Option<u64>,
    closes: bool,
    keeps: bool,
    /// Fields that `Connection` says are for it alone.
    named: SmallVec<[HeaderName; 2]>,
}

impl Said {
    /// Takes note of a field; says whether it is for the caller, too.
    fn hear(&mut self, name: &HeaderName, value: &HeaderValue) -> Result<bool, AnswerError> {
        match name.as_str() {
            "connection" => {
                for token in value.as_bytes().split(|byte| *byte == b',') {
                    match token.trim_ascii() {
                        token if token.eq_ignore_ascii_case(b"close") => self.closes = true,
                        token if token.eq_ignore_ascii_case(b"keep-alive") => self.keeps = true,
                        token => self.named.extend(hop::named(token)),
                    }
                }
                Ok(false)
            }
            "transfer-encoding" => {
                if self.chunked || !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                    return Err(AnswerError::Coding);
                }
                self.chunked = true;
                Ok(false)
            }
            "content-length" => {
                let length = length(value.as_bytes()).ok_or(AnswerError::Lengths)?;
                match self.length.replace(length) {
                    // Said twice is said once.
                    Some(before) if before == length => Ok(false),
                    Some(_) => Err(AnswerError::Lengths),
                    None => Ok(true),
                }
            }
            _ => Ok(!hop::is_per_connection(name)),
        }
    }
}

/// Digits and nothing else: `+5` and ` 5` are read differently by different readers.
fn length(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| str::from_utf8(text).ok()?.parse().ok())?
}

/// A field of a head or a trailer section.
pub(super) fn field(name: &str, value: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    Some((name, HeaderValue::from_bytes(value).ok()?))
}
