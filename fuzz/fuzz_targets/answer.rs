//! A backend's answer: its head and its chunks, wherever they are cut.
//!
//! Input: a line with the lengths of pieces, its first byte telling whether the request was a `HEAD`
//! (`H`); then what the backend sends. A NUL stands for 4 KiB: heads and trailers can be too long.

#![no_main]

use bytes::BytesMut;
use http::{HeaderMap, StatusCode};
use libfuzzer_sys::fuzz_target;
use sluice::upstream::answer::{self, AnswerError, Framing};
use sluice::upstream::chunked::{Chunked, Step};
use sluice_fuzz::{line, pieces};

fuzz_target!(|data: &[u8]| {
    let (how, sent) = line(data);
    let to_head = how.first() == Some(&b'H');
    let (sent, scale) = &stretched(sent);
    let cuts = [how, b"", b"\x07\x01\x02"];
    let whole = read([&sent[..]].into_iter(), to_head);
    for cut in cuts {
        let again = read(pieces(sent, cut, *scale), to_head);
        // Which of two things is wrong may be noticed first.
        let refused = again.is_refused() && whole.is_refused();
        assert!(again == whole || refused, "a cut changes {whole:?} to {again:?}");
    }
    if let Some(Ok(head)) = &whole.head {
        let length = sent.len() - whole.left_by_head;
        check(&sent[..length], head, to_head);
    }
    // A body alone: the coding does not depend on the head.
    let chunked = Framing::Chunked(Chunked::default());
    let coded = body([&sent[..]].into_iter(), chunked, BytesMut::new());
    for cut in cuts {
        let again = body(pieces(sent, cut, *scale), chunked, BytesMut::new());
        assert!(again == coded, "a cut changes {coded:?} to {again:?}");
    }
    if coded.end == End::Whole {
        let used = &sent[..sent.len() - coded.left.len()];
        assert_eq!(plainly(used), Some(coded.body));
    }
});

/// What is sent with its NULs written out, and how much larger its pieces should be.
fn stretched(sent: &[u8]) -> (Vec<u8>, usize) {
    const MOST: usize = 24;
    let mut parts = sent.splitn(MOST, |byte| *byte == 0);
    let mut out = parts.next().unwrap_or_default().to_vec();
    let mut scale = 1;
    for part in parts {
        out.extend([b'x'; 4096]);
        out.extend_from_slice(part);
        scale = 2000;
    }
    (out, scale)
}

/// What became of an answer.
#[derive(Debug, PartialEq)]
struct Answer {
    /// `None`: more must come.
    head: Option<Result<Head, AnswerError>>,
    /// Bytes behind the head.
    left_by_head: usize,
    body: Option<Body>,
}

#[derive(Clone, Debug, PartialEq)]
struct Head {
    status: StatusCode,
    headers: HeaderMap,
    private: Vec<http::HeaderName>,
    framing: Framing,
    reusable: bool,
    upgrade: Option<http::HeaderValue>,
}

#[derive(Debug, PartialEq)]
struct Body {
    body: Vec<u8>,
    trailers: HeaderMap,
    end: End,
    left: Vec<u8>,
}

#[derive(Debug, PartialEq)]
enum End {
    Whole,
    More,
    Garbled,
}

impl Answer {
    fn is_refused(&self) -> bool {
        matches!(self.head, Some(Err(_)))
    }
}

fn read<'d>(mut pieces: impl Iterator<Item = &'d [u8]> + Clone, to_head: bool) -> Answer {
    let total: usize = pieces.clone().map(<[u8]>::len).sum();
    let (mut buffer, mut came) = (BytesMut::new(), 0);
    let head = loop {
        match answer::parse(&mut buffer, to_head) {
            Err(error) => break Some(Err(error)),
            Ok(Some(head)) => break Some(Ok(head)),
            Ok(None) => match pieces.next() {
                Some(piece) => {
                    came += piece.len();
                    buffer.extend_from_slice(piece);
                }
                None => break None,
            },
        }
    };
    let head = head.map(|head| {
        head.map(|head| Head {
            status: head.status,
            headers: head.headers,
            private: head.private.to_vec(),
            framing: head.framing,
            reusable: head.reusable,
            upgrade: head.upgrade.map(|value| *value),
        })
    });
    let left_by_head = match &head {
        Some(Ok(_)) => total - came + buffer.len(),
        _ => 0,
    };
    let framing = head.as_ref().and_then(|head| head.as_ref().ok()).map(|head| head.framing);
    let body = framing.map(|framing| body(pieces, framing, buffer));
    Answer { head, left_by_head, body }
}

/// As a connection takes it.
fn body<'d>(
    mut pieces: impl Iterator<Item = &'d [u8]>,
    mut framing: Framing,
    mut buffer: BytesMut,
) -> Body {
    let (mut body, mut trailers) = (Vec::new(), HeaderMap::new());
    let end = loop {
        let step = match &mut framing {
            Framing::Chunked(chunked) => chunked.step(&mut buffer),
            Framing::Length(0) => Ok(Step::End),
            _ if buffer.is_empty() => Ok(Step::More),
            Framing::UntilClose => Ok(Step::Data(buffer.split().freeze())),
            Framing::Length(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
                *left -= here as u64;
                Ok(Step::Data(buffer.split_to(here).freeze()))
            }
        };
        match step {
            Err(_) => break End::Garbled,
            Ok(Step::Data(data)) => {
                assert!(!data.is_empty(), "a step that goes nowhere");
                body.extend_from_slice(&data);
            }
            Ok(Step::Trailers(fields)) => {
                assert!(framing.is_over());
                trailers = fields;
                break End::Whole;
            }
            Ok(Step::End) => break End::Whole,
            Ok(Step::More) => match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => break End::More,
            },
        }
    };
    // What is left of a body that is no whole one is nobody's.
    let left = if end == End::Whole {
        pieces.for_each(|piece| buffer.extend_from_slice(piece));
        buffer.to_vec()
    } else {
        Vec::new()
    };
    Body { body, trailers, end, left }
}

/// A head that was accepted has exactly one framing.
fn check(text: &[u8], head: &Head, to_head: bool) {
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    let values = |wanted: &str| -> Vec<&[u8]> {
        let fields = lines.iter().filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at(colon);
            name.eq_ignore_ascii_case(wanted.as_bytes()).then_some(value[1..].trim_ascii())
        });
        fields.collect()
    };
    let (lengths, codings) = (values("content-length"), values("transfer-encoding"));
    let length = lengths.first().map(|length| {
        let text = str::from_utf8(length).expect("digits");
        assert!(text.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        text.parse::<u64>().expect("a number")
    });
    assert!(lengths.windows(2).all(|two| {
        let number = |text: &[u8]| str::from_utf8(text).ok()?.parse::<u64>().ok();
        number(two[0]) == number(two[1])
    }));
    assert!(codings.len() <= 1 && (codings.is_empty() || lengths.is_empty()), "two framings");
    assert!(codings.iter().all(|coding| coding.eq_ignore_ascii_case(b"chunked")));
    let bodiless =
        to_head || head.status.is_informational() || [204, 304].contains(&head.status.as_u16());
    let expected = match (length, codings.is_empty()) {
        _ if bodiless => Framing::Length(0),
        (Some(length), true) => Framing::Length(length),
        (None, false) => Framing::Chunked(Chunked::default()),
        (None, true) => Framing::UntilClose,
        (Some(_), false) => unreachable!("asserted above"),
    };
    assert_eq!(head.framing, expected);
    assert!(head.headers.get_all("content-length").iter().count() <= 1);
    assert!(!head.reusable || head.framing != Framing::UntilClose);
    for own in ["connection", "transfer-encoding", "keep-alive", "te", "upgrade"] {
        assert!(!head.headers.contains_key(own), "{own} is passed on");
    }
}

/// The coding, taken off by its definition alone.
fn plainly(mut coded: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = coded.windows(2).position(|two| two == b"\r\n")?;
        let digits = coded[..end].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let size = usize::from_str_radix(str::from_utf8(&coded[..digits]).ok()?, 16).ok()?;
        coded = &coded[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(coded.get(..size)?);
        coded = coded[size..].strip_prefix(b"\r\n")?;
    }
}
