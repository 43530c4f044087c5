//! A second look at requests over HTTP/1.1 that come in chunks, since hyper lets pass what others read
//! differently: a bare line feed where a line should end hides a request behind the last chunk, and
//! control characters hide in extensions.
//!
//! hyper reads from the same socket, so every byte is seen here first. But where a body begins is
//! known only if everything that was read before its head had been used up: [`Inbound`] keeps account
//! of that. Where the account is lost, because requests come before the one before is answered, a
//! request with chunks is the last one of its connection.

/// What the bytes that have come over a connection belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Inbound {
    /// To requests that have come whole.
    #[default]
    Whole,
    /// To a head that has begun with the last read.
    Head,
    /// To a body of which so many bytes are still to come.
    Length(u64),
    /// To a body in chunks.
    Chunks(Chunks),
    /// To a request that has come whole, and to one that follows it.
    Ahead,
    /// Nobody knows.
    Lost,
}

/// How a request's body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framed {
    Not,
    Length(u64),
    Chunks,
}

impl Inbound {
    /// Bytes have come, of a head if one is waited for: those are to be kept until it is whole.
    pub(super) fn read(self, bytes: &[u8], waits_for_a_head: bool) -> Self {
        match self {
            Self::Whole | Self::Head if waits_for_a_head => Self::Head,
            // The request before has not been answered.
            Self::Whole | Self::Ahead => Self::Ahead,
            Self::Length(left) => Self::left(left, bytes.len()),
            Self::Chunks(chunks) => chunks.on(bytes),
            Self::Head | Self::Lost => Self::Lost,
        }
    }

    /// A head has been read whole; `read` is what came since the request before.
    pub(super) fn begin(self, read: &[u8], framed: Framed) -> Self {
        if self != Self::Head || read.starts_with(b"\r") || read.starts_with(b"\n") {
            return Self::Lost;
        }
        if framed == Framed::Not {
            // If what came ends with an empty line, it is all used up; or another whole head is in it,
            // which then begins without a read, and the account is lost.
            return if read.ends_with(b"\r\n\r\n") { Self::Whole } else { Self::Ahead };
        }
        match (head_end(read), framed) {
            (Some(end), Framed::Length(length)) => Self::left(length, read.len() - end),
            (Some(end), Framed::Chunks) => Chunks::new().on(&read[end..]),
            _ => Self::Lost,
        }
    }

    pub(super) fn is_garbled(self) -> bool {
        matches!(self, Self::Chunks(Chunks { at: At::Garbled, .. }))
    }

    fn left(length: u64, come: usize) -> Self {
        match length.checked_sub(come as u64) {
            Some(0) => Self::Whole,
            Some(left) => Self::Length(left),
            None => Self::Ahead,
        }
    }
}

/// How far a body has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    at: At,
    /// Of the chunk whose size was read last: what is left of it.
    left: u64,
    /// Digits of the size that is being read.
    digits: u8,
}

/// Where the next byte belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Size,
    /// Between a size and its line's end, where nothing but blanks may stand.
    Blank,
    /// Behind a semicolon.
    Extension,
    SizeFeed,
    Data,
    DataReturn,
    DataFeed,
    /// The first byte of a trailer, or of the empty line that ends them.
    Line,
    Name,
    Trailer,
    TrailerFeed,
    LastFeed,
    /// Nothing belongs to the body any more.
    Done,
    /// It can be read in two ways.
    Garbled,
}

impl Chunks {
    fn new() -> Self {
        Self { at: At::Size, left: 0, digits: 0 }
    }

    /// Looks at the bytes that have come.
    fn on(mut self, mut bytes: &[u8]) -> Inbound {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.at {
                At::Done => return Inbound::Ahead,
                At::Garbled => break,
                At::Data => {
                    let here = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                    self.left -= here as u64;
                    if self.left == 0 {
                        self.at = At::DataReturn;
                    }
                    bytes = &bytes[here..];
                }
                _ => {
                    self.at = self.next(byte);
                    bytes = rest;
                }
            }
        }
        if self.at == At::Done { Inbound::Whole } else { Inbound::Chunks(self) }
    }

    fn next(&mut self, byte: u8) -> At {
        let plain = byte == b'\t' || byte >= b' ' && byte != 0x7f;
        match (self.at, byte) {
            (At::Size, _) if byte.is_ascii_hexdigit() && self.digits < 16 => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                self.left = self.left << 4 | u64::from(digit);
                self.digits += 1;
                At::Size
            }
            (At::Size, _) if self.digits == 0 => At::Garbled,
            (At::Size | At::Blank | At::Extension, b'\r') => At::SizeFeed,
            (At::Size | At::Blank, b';') => At::Extension,
            (At::Size | At::Blank, b' ' | b'\t') => At::Blank,
            (At::Extension, _) if plain => At::Extension,
            (At::SizeFeed, b'\n') if self.left == 0 => At::Line,
            (At::SizeFeed, b'\n') => At::Data,
            (At::DataReturn, b'\r') => At::DataFeed,
            (At::DataFeed, b'\n') => {
                self.digits = 0;
                At::Size
            }
            (At::Line, b'\r') => At::LastFeed,
            (At::Trailer, b'\r') => At::TrailerFeed,
            (At::Name, b':') => At::Trailer,
            (At::Line | At::Name, _) if is_of_a_name(byte) => At::Name,
            (At::Trailer, _) if plain => At::Trailer,
            (At::TrailerFeed, b'\n') => At::Line,
            (At::LastFeed, b'\n') => At::Done,
            _ => At::Garbled,
        }
    }
}

/// Whether a field's name may hold this byte.
fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether a head that began with these bytes cannot end with them.
pub(super) fn is_unfinished(read: &[u8]) -> bool {
    !read.ends_with(b"\r\n\r\n") && head_end(read).is_none()
}

/// Where a head ends, by the lines that hyper takes for empty.
fn head_end(read: &[u8]) -> Option<usize> {
    let mut feeds = memchr::memchr_iter(b'\n', read);
    feeds.find_map(|feed| match read[feed + 1..] {
        [b'\n', ..] => Some(feed + 2),
        [b'\r', b'\n', ..] => Some(feed + 3),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::chunked::{Chunked, Step};
    use bytes::BytesMut;
    use proptest::prelude::*;

    const HEAD: &str = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";

    fn after(reads: &[&str]) -> Inbound {
        let mut inbound = Inbound::Whole.read(b"", true);
        for (index, read) in reads.iter().enumerate() {
            inbound = match index {
                0 => inbound.begin(format!("{HEAD}{read}").as_bytes(), Framed::Chunks),
                _ => inbound.read(read.as_bytes(), false),
            };
        }
        inbound
    }

    #[test]
    fn what_everybody_reads_alike_passes() {
        for body in [
            "0\r\n\r\n",
            "3\r\nabc\r\n0\r\n\r\n",
            "A;x=\"y z\";q\r\n0123456789\r\n000\r\nx-sum: 1\r\n\r\n",
            "1 \t;a\r\nx\r\n0\r\n\r\n",
        ] {
            assert_eq!(after(&[body]), Inbound::Whole, "{body:?}");
            let next = format!("{body}GET");
            assert_eq!(after(&[&next]), Inbound::Ahead, "another one has begun");
        }
        assert!(matches!(after(&[""]), Inbound::Chunks(Chunks { at: At::Size, .. })));
        assert!(matches!(
            after(&["5\r\nab"]),
            Inbound::Chunks(Chunks { at: At::Data, left: 3, .. })
        ));
    }

    #[test]
    fn the_account_is_kept_from_request_to_request() {
        let head = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let upload = b"PUT / HTTP/1.1\r\ncontent-length: 9\r\n\r\n12345";
        let mut inbound = Inbound::default();
        inbound = inbound.read(head, true).begin(head, Framed::Not);
        assert_eq!(inbound, Inbound::Whole);
        // In two reads.
        inbound = inbound.read(&upload[..9], true).read(&upload[9..], true);
        inbound = inbound.begin(upload, Framed::Length(9));
        assert_eq!(inbound, Inbound::Length(4));
        inbound = inbound.read(b"67", false).read(b"89", false);
        assert_eq!(inbound, Inbound::Whole);
        // More than belongs to it, one without a read, and one that came too early.
        let two = [&head[..], head].concat();
        let ahead = inbound.read(&two, true).begin(&two, Framed::Not);
        assert_eq!(ahead.begin(&two, Framed::Not), Inbound::Lost);
        let half = [&head[..], b"GET /"].concat();
        assert_eq!(inbound.read(&half, true).begin(&half, Framed::Not), Inbound::Ahead);
        assert_eq!(inbound.begin(head, Framed::Not), Inbound::Lost);
        assert_eq!(inbound.read(head, false), Inbound::Ahead);
        assert_eq!(Inbound::Length(4).read(b"67890", false), Inbound::Ahead);
        // What comes before the first line is not for us to judge.
        let late = b"\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n";
        assert_eq!(inbound.read(late, true).begin(late, Framed::Not), Inbound::Lost);
        assert!(is_unfinished(&upload[..20]) && !is_unfinished(upload) && !is_unfinished(head));
    }

    #[test]
    fn what_can_be_read_in_two_ways_does_not() {
        for body in [
            "0\r\n\nGET /smuggled HTTP/1.1\r\n\r\n",
            "0\r\nx-sum: 1\n\nGET /smuggled HTTP/1.1\r\n\r\n",
            "0\n\r\n",
            "3\nabc\r\n0\r\n\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "3\r\nabcd\r\n",
            "3;a=\0\r\nabc\r\n",
            "3;a=\x07\r\nabc\r\n",
            "3;a\rb\r\nabc\r\n",
            "\r\n",
            ";a\r\n",
            " 3\r\nabc\r\n",
            "3 3\r\nabc\r\n",
            "0x3\r\nabc\r\n",
            "+3\r\nabc\r\n",
            "00000000000000003\r\nabc\r\n",
            "0\r\nx\0: 1\r\n\r\n",
            "0\r\n0\r\n\r\n",
            "0\r\n: 1\r\n\r\n",
            "0\r\nx : 1\r\n\r\n",
            "0\r\n x: 1\r\n\r\n",
        ] {
            assert!(after(&[body]).is_garbled(), "{body:?}");
        }
    }

    proptest! {
        /// However the reads are cut, the verdict is the same; and what passes is read by the strict
        /// decoder of answers, too.
        #[test]
        fn no_cut_changes_the_verdict(
            body in "[0-3a]{0,2}(;x)?(\r\n|\n)[ab\r\n]{0,6}(0(\r\n|\n)){0,1}(a: b(\r\n|\n)){0,1}(\r\n|\n|\0)",
            cut in 0_usize..40,
        ) {
            let cut = cut.min(body.len());
            let whole = after(&[&body]);
            // What follows a body that has ended is the next one's.
            if cut < body.len() && whole != Inbound::Ahead {
                prop_assert_eq!(whole, after(&[&body[..cut], &body[cut..]]));
            }
            if whole == Inbound::Whole {
                let (mut chunked, mut buffer) = (Chunked::default(), BytesMut::from(&body[..]));
                loop {
                    match chunked.step(&mut buffer) {
                        Ok(Step::Data(_) | Step::Trailers(_)) => {}
                        Ok(Step::End) => break,
                        other => return Err(TestCaseError::fail(format!("{other:?}"))),
                    }
                }
            }
        }
    }

    #[test]
    fn a_head_ends_where_hyper_says_so() {
        let cases: [(&str, Option<usize>); 4] = [
            ("GET / HTTP/1.1\r\na: b\r\n\r\nx", Some(24)),
            ("GET / HTTP/1.1\na: b\n\nx\r\n\r\n", Some(21)),
            ("GET / HTTP/1.1\n\r\nx", Some(17)),
            ("GET / HTTP/1.1\r\na: b\r\n", None),
        ];
        for (read, expected) in cases {
            assert_eq!(head_end(read.as_bytes()), expected, "{read:?}");
        }
    }
}
