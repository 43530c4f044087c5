//! The head of a backend's answer: read once, into what the caller may see of it.
//!
//! httparse reads the lines; here they become a status, the fields that are not for one connection
//! alone, and where the body ends. An answer that two readers could understand differently is no
//! answer.

use super::chunked::Chunked;
use crate::hop;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use std::mem::MaybeUninit;

/// The largest head.
const MAX_HEAD: usize = 64 << 10;

/// The most interim answers before the final one.
pub(super) const MAX_INTERIMS: u32 = 100;

/// The most fields of a head.
const MAX_FIELDS: usize = 100;

/// The head of an answer.
#[derive(Debug)]
pub struct Head {
    /// An interim one, perhaps.
    pub status: StatusCode,
    /// Without those that HTTP says are for the backend's connection alone.
    pub headers: HeaderMap,
    /// Those that the backend says are for us alone.
    pub private: SmallVec<[HeaderName; 2]>,
    /// Where the body ends.
    pub framing: Framing,
    /// Whether the backend will take another request on the same connection.
    pub reusable: bool,
    /// What the backend would switch to, or has switched to.
    pub upgrade: Option<Box<HeaderValue>>,
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
    /// The backend does not come to the point.
    #[error("the backend sent too many interim answers")]
    TooManyInterims,
    /// Nobody asked for it, or for that.
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

/// A field by where it stands in the head.
struct Span {
    name: (usize, usize),
    value: (usize, usize),
}

/// Reads a head from the buffer, once it is there. The answer to a `HEAD` has no body, whatever it
/// says.
pub fn parse(buffer: &mut BytesMut, to_head: bool) -> Result<Option<Head>, AnswerError> {
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
        Ok(httparse::Status::Complete(length)) if length > MAX_HEAD => {
            return Err(AnswerError::TooLarge);
        }
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
    if status.is_informational() || status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH); // there is nothing that could have one
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
    let Said { named: private, upgrade, .. } = said;
    Ok(Head { status, headers, private, framing, reusable: stays, upgrade })
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
    upgrade: Option<Box<HeaderValue>>,
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
            "upgrade" => {
                self.upgrade = Some(Box::new(value.clone()));
                Ok(false)
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Option<Head>, AnswerError> {
        parse(&mut BytesMut::from(text), false)
    }

    fn framing(text: &str) -> Result<Framing, AnswerError> {
        read(text).map(|head| head.expect("a whole head").framing)
    }

    #[test]
    fn a_head_tells_where_its_body_ends() {
        let chunked = Framing::Chunked(Chunked::Size);
        let cases = [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Framing::Length(5)),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\n",
                Framing::Length(5),
            ),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", chunked),
            ("HTTP/1.1 200 OK\r\n\r\n", Framing::UntilClose),
            ("HTTP/1.1 204 No Content\r\n\r\n", Framing::Length(0)),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", Framing::Length(0)),
            ("HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n", Framing::Length(0)),
        ];
        for (text, expected) in cases {
            assert_eq!(framing(text), Ok(expected), "{text:?}");
        }
        let mut to_head = BytesMut::from("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n");
        let head = parse(&mut to_head, true).unwrap().unwrap();
        assert_eq!(
            (head.framing, &head.headers["content-length"]),
            (Framing::Length(0), &"5".parse().unwrap())
        );
    }

    #[test]
    fn what_two_readers_could_read_differently_is_no_answer() {
        let cases = [
            ("content-length: 5\r\ncontent-length: 6", AnswerError::Lengths),
            ("content-length: 5, 5", AnswerError::Lengths),
            ("content-length: +5", AnswerError::Lengths),
            ("content-length: ", AnswerError::Lengths),
            ("content-length: 99999999999999999999", AnswerError::Lengths),
            ("transfer-encoding: chunked\r\ncontent-length: 5", AnswerError::LengthAndCoding),
            ("transfer-encoding: gzip, chunked", AnswerError::Coding),
            ("transfer-encoding: chunked\r\ntransfer-encoding: chunked", AnswerError::Coding),
        ];
        for (fields, expected) in cases {
            assert_eq!(framing(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n")), Err(expected));
        }
        let old = "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(framing(old), Err(AnswerError::Coding));
        assert!(matches!(
            framing("HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n"),
            Err(AnswerError::Garbled(_))
        ));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS + 1));
        assert_eq!(framing(&many), Err(AnswerError::TooLarge));
        assert!(read(&format!("HTTP/1.1 200 OK\r\na: {}", "x".repeat(MAX_HEAD))).is_err());
    }

    #[test]
    fn what_belongs_to_the_backends_connection_stays_there() {
        let text = "HTTP/1.1 200 OK\r\nx-hop: 1\r\nconnection: X-Hop, content-type\r\ncontent-type: a\r\n\
                    keep-alive: 5\r\nupgrade: h2c\r\nset-cookie: a\r\nset-cookie: b\r\n\r\n";
        let head = read(text).unwrap().unwrap();
        let mut names: Vec<_> = head.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "set-cookie", "set-cookie", "x-hop"]);
        assert_eq!(head.private[..], ["x-hop"], "what callers rely on cannot be hidden");
    }

    #[test]
    fn a_connection_is_used_again_only_if_both_sides_know() {
        let cases = [
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: x, Close\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text).unwrap().unwrap().reusable, expected, "{text:?}");
        }
    }

    proptest! {
        /// However a head is cut, it is read once it is whole, and what follows stays.
        #[test]
        fn no_cut_changes_a_head(cut in 0_usize..60) {
            let text = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-a: b\r\n\r\n";
            let cut = cut.min(text.len() - 1);
            let mut buffer = BytesMut::from(&text[..cut]);
            prop_assert!(parse(&mut buffer, false).unwrap().is_none());
            buffer.extend_from_slice(&text.as_bytes()[cut..]);
            buffer.extend_from_slice(b"ok");
            let head = parse(&mut buffer, false).unwrap().unwrap();
            prop_assert_eq!((head.framing, head.headers.len()), (Framing::Length(2), 2));
            prop_assert_eq!(&buffer[..], b"ok");
        }

        #[test]
        fn no_bytes_panic(head in prop::collection::vec(any::<u8>(), 0..60), is_http in any::<bool>()) {
            let mut buffer = BytesMut::new();
            if is_http {
                buffer.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
            }
            buffer.extend_from_slice(&head);
            buffer.extend_from_slice(b"\r\n\r\n");
            let _ = parse(&mut buffer, false);
        }
    }
}
