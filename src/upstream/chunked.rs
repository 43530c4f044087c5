//! The chunked coding of an answer's body, taken off as it comes.
//!
//! A pure function of the bytes that have come: it neither reads nor waits. It is strict, because
//! what two readers could read differently must not pass: lines end in CRLF, sizes are hexadecimal
//! digits, and lines and trailers are bounded.

use super::answer::field;
use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;

/// The longest line with a size, extensions included.
const MAX_LINE: usize = 1024;

/// The longest trailer section, and its most fields.
const MAX_TRAILERS: usize = 16 << 10;
const MAX_FIELDS: usize = 64;

/// Where in the coding the next byte belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Chunked {
    /// A line with the next chunk's size.
    #[default]
    Size,
    /// So many bytes of a chunk.
    Data(u64),
    /// The line end behind a chunk.
    DataEnd,
    /// Fields behind the last chunk.
    Trailers,
    /// Nothing belongs to the body any more.
    Done,
}

/// What the bytes that have come amount to.
#[derive(Debug)]
pub enum Step {
    /// A piece of the body.
    Data(Bytes),
    /// The body has ended, with these fields behind it.
    Trailers(HeaderMap),
    /// The body has ended.
    End,
    /// More must come first.
    More,
}

/// The body is not coded as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backend's chunks are garbled")]
pub struct Garbled;

impl Chunked {
    /// Takes the next step from the buffer.
    pub fn step(&mut self, buffer: &mut BytesMut) -> Result<Step, Garbled> {
        loop {
            match *self {
                Self::Size => {
                    let Some(line) = line(buffer)? else { return Ok(Step::More) };
                    *self = match size(&line)? {
                        0 => Self::Trailers,
                        size => Self::Data(size),
                    };
                }
                Self::Data(left) => {
                    if buffer.is_empty() {
                        return Ok(Step::More);
                    }
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
                    let left = left - here as u64;
                    *self = if left == 0 { Self::DataEnd } else { Self::Data(left) };
                    return Ok(Step::Data(buffer.split_to(here).freeze()));
                }
                Self::DataEnd => match buffer.get(..2) {
                    None if b"\r\n".starts_with(buffer) => return Ok(Step::More),
                    Some(b"\r\n") => {
                        buffer.advance(2);
                        *self = Self::Size;
                    }
                    _ => return Err(Garbled),
                },
                Self::Trailers => return self.trailers(buffer),
                Self::Done => return Ok(Step::End),
            }
        }
    }

    fn trailers(&mut self, buffer: &mut BytesMut) -> Result<Step, Garbled> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let (end, trailers) = match httparse::parse_headers(buffer, &mut fields) {
            Err(_) => return Err(Garbled),
            Ok(httparse::Status::Partial) if buffer.len() >= MAX_TRAILERS => return Err(Garbled),
            Ok(httparse::Status::Complete((end, _))) if end > MAX_TRAILERS => return Err(Garbled),
            Ok(httparse::Status::Partial) => return Ok(Step::More),
            Ok(httparse::Status::Complete((end, fields))) => {
                let mut trailers = HeaderMap::with_capacity(fields.len());
                for header in fields {
                    let (name, value) = field(header.name, header.value).ok_or(Garbled)?;
                    trailers.append(name, value);
                }
                (end, trailers)
            }
        };
        buffer.advance(end);
        *self = Self::Done;
        Ok(if trailers.is_empty() { Step::End } else { Step::Trailers(trailers) })
    }
}

/// The next line without its end, once it is there.
fn line(buffer: &mut BytesMut) -> Result<Option<BytesMut>, Garbled> {
    let within = &buffer[..buffer.len().min(MAX_LINE)];
    match within.iter().position(|byte| *byte == b'\n') {
        None if within.len() == MAX_LINE => Err(Garbled),
        None => Ok(None),
        Some(end) => {
            let mut line = buffer.split_to(end + 1);
            line.truncate(end);
            if line.last() != Some(&b'\r') {
                return Err(Garbled);
            }
            line.truncate(end - 1);
            Ok(Some(line))
        }
    }
}

/// Hexadecimal digits; extensions mean nothing to us, but must not hide anything.
fn size(line: &[u8]) -> Result<u64, Garbled> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at(digits);
    let rest = rest.trim_ascii_start();
    let plain = |byte: &u8| (b' '..0x7f).contains(byte) || *byte == b'\t' || *byte >= 0x80;
    if !(rest.is_empty() || rest[0] == b';') || !rest.iter().all(plain) {
        return Err(Garbled);
    }
    let digits = str::from_utf8(digits).map_err(|_| Garbled)?;
    u64::from_str_radix(digits, 16).map_err(|_| Garbled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds the pieces one after the other: the body, its trailers, and what is left over.
    fn decode(pieces: &[&[u8]]) -> Result<(Vec<u8>, HeaderMap, Vec<u8>), Garbled> {
        let mut chunked = Chunked::default();
        let (mut buffer, mut body) = (BytesMut::new(), Vec::new());
        let mut pieces = pieces.iter();
        loop {
            match chunked.step(&mut buffer)? {
                Step::Data(data) => body.extend_from_slice(&data),
                Step::Trailers(trailers) => return Ok((body, trailers, buffer.to_vec())),
                Step::End => return Ok((body, HeaderMap::new(), buffer.to_vec())),
                Step::More => buffer.extend_from_slice(pieces.next().ok_or(Garbled)?),
            }
        }
    }

    #[test]
    fn chunks_extensions_and_trailers_are_taken_off() {
        let coded = b"5;x=\"y\"\r\nhello\r\n6 ; z\r\n world\r\n0\r\nX-Sum: 7\r\nx-b: 8\r\n\r\nnext";
        let (body, trailers, rest) = decode(&[coded]).unwrap();
        assert_eq!(body, b"hello world");
        assert_eq!(
            (&trailers["x-sum"], &trailers["x-b"]),
            (&"7".parse().unwrap(), &"8".parse().unwrap())
        );
        assert_eq!(rest, b"next");
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        let long = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(MAX_LINE));
        let endless = format!("0\r\nx: {}", "y".repeat(MAX_TRAILERS));
        let bad: [&[u8]; 13] = [
            b"\r\n",
            b"g\r\n",
            b"-1\r\n",
            b"+1\r\na\r\n0\r\n\r\n",
            b"0x1\r\na\r\n0\r\n\r\n",
            b"1\na\r\n0\r\n\r\n",
            b"1\r\nab\r\n0\r\n\r\n",
            b"1\r\na\n0\r\n\r\n",
            b"1 1\r\na\r\n0\r\n\r\n",
            b"1;\x01\r\na\r\n0\r\n\r\n",
            b"fffffffffffffffff\r\n",
            long.as_bytes(),
            endless.as_bytes(),
        ];
        for coded in bad {
            assert_eq!(decode(&[coded]).unwrap_err(), Garbled, "{}", coded.escape_ascii());
        }
    }

    proptest! {
        /// However the body was cut into chunks, and the coding into reads, it comes out whole.
        #[test]
        fn no_cut_changes_the_body(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            trailer in any::<bool>(),
            step in 1_usize..50,
        ) {
            let mut coded = Vec::new();
            for chunk in &chunks {
                coded.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                coded.extend_from_slice(chunk);
                coded.extend_from_slice(b"\r\n");
            }
            coded.extend_from_slice(if trailer { b"0\r\na: b\r\n\r\n" } else { b"0\r\n\r\n" });
            let pieces: Vec<&[u8]> = coded.chunks(step).collect();
            let (body, trailers, rest) = decode(&pieces).unwrap();
            prop_assert_eq!(body, chunks.concat());
            prop_assert_eq!(trailers.len(), usize::from(trailer));
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn no_bytes_panic(coded in prop::collection::vec(any::<u8>(), 0..80), step in 1_usize..20) {
            let pieces: Vec<&[u8]> = coded.chunks(step).collect();
            let _ = decode(&pieces);
        }
    }
}
