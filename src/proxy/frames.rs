//! A second look at the frames of a caller's HTTP/2 connection, for the things that h2 lets pass.
//!
//! Frames that ask for nothing cost their sender next to nothing: pings, settings, priorities, empty
//! pieces, windows that grow. A connection may send some of them at once, some every second, and some
//! for each request and for everything that is sent to it or by it. So may it take requests back: some at once, some every second, and no
//! more than half of all. One that does more is no longer read, and ended by whoever serves it.
//!
//! A connection that does not begin with its settings is none.
//!
//! Trailers with pseudo-header fields: h2 drops those fields; RFC 9113 (section 8.1) wants such a
//! request refused. Here its connection is: the frame is put on stream 0, where h2 refuses it.
//!
//! Only the heads of frames are read, and the first bytes of trailers, since pseudo-header fields
//! after others are h2's to refuse. Fields of the static table and names that are spelt out are
//! seen; a reference to the caller's own table is not, and h2 drops what it stands for.

use super::watched::Watched;
use std::cell::RefCell;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE: usize = 24;
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// So many frames that ask for nothing may come at once, and so many with every tick of the worker
/// (there are twenty in a second); resets, too.
const IDLE_FRAMES: i64 = 1000;
const IDLE_PER_TICK: u64 = 10;
const RESETS: u64 = 1000;
const RESETS_PER_TICK: u64 = 25;

/// So many of them come along with a request or a piece of a body, in either direction, and one with
/// so many bytes that are sent to the caller. They may come later, but not all of them much later.
const PER_PIECE: i64 = 4;
const BYTES: usize = 1024;
const BANKED: i64 = 100_000;

/// A socket whose frames are looked at as they are read. When h2 lets go of it, it is left where
/// whoever began it finds it.
pub(super) struct Frames {
    /// There until the end.
    socket: Option<Watched>,
    walk: Walk,
    left: Left,
    /// Bytes that were written and have not been accounted for.
    written: usize,
}

/// Where a socket is left.
pub(super) type Left = Rc<RefCell<Option<Watched>>>;

impl Frames {
    pub(super) fn new(socket: Watched, left: &Left) -> Self {
        Self { socket: Some(socket), walk: Walk::new(), left: Rc::clone(left), written: 0 }
    }

    fn note(&mut self, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        if let Poll::Ready(Ok(count)) = written {
            self.written = self.written.saturating_add(count);
        }
        written
    }

    fn socket(&mut self) -> Result<Pin<&mut Watched>> {
        self.socket.as_mut().map(Pin::new).ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.left.replace(self.socket.take());
    }
}

/// Where in the stream of frames the last read ended.
struct Walk {
    /// Bytes until the next head.
    skip: usize,
    head: [u8; HEAD],
    /// Bytes of the head that have come.
    filled: usize,
    /// The newest stream: a head of fields on an older one is its trailers.
    newest: u32,
    trailers: Option<Trailers>,
    /// A head has begun, in this frame or one before it, and its last frame has not come.
    unfinished: bool,
    /// The first frame has come.
    begun: bool,
    /// Frames that ask for nothing, and resets, less those that time has forgiven.
    idle: i64,
    resets: u64,
    /// When that was.
    tick: u64,
    /// Requests in all, and those that were taken back.
    requests: u64,
    taken_back: u64,
}

/// Trailers whose first field has not been seen to its end.
#[derive(Clone, Copy)]
struct Trailers {
    /// Bytes before the first field.
    before: usize,
    name: Name,
}

/// What is known of a field's name.
#[derive(Clone, Copy)]
enum Name {
    Nothing,
    /// There is a number before it.
    Size,
    /// It is spelt out.
    Spelt,
    /// As it is, or in Huffman's code.
    As {
        coded: bool,
    },
}

/// Pseudo-header fields were found, in the frame that begins at this place of the read, or began
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found(Option<usize>);

impl Walk {
    fn new() -> Self {
        Self {
            skip: PREFACE,
            head: [0; HEAD],
            filled: 0,
            newest: 0,
            trailers: None,
            unfinished: false,
            begun: false,
            idle: 0,
            resets: 0,
            tick: 0,
            requests: 0,
            taken_back: 0,
        }
    }

    /// So many frames may come for something that was done.
    fn earn(&mut self, count: i64) {
        self.idle = (self.idle - count).max(-BANKED);
    }

    /// Whether too many frames have come that ask for nothing.
    fn is_flooded(&mut self, tick: u64) -> bool {
        let passed = tick - self.tick.min(tick);
        if self.idle > 0 {
            let forgiven = passed.saturating_mul(IDLE_PER_TICK);
            self.idle = (self.idle - i64::try_from(forgiven).unwrap_or(i64::MAX)).max(0);
        }
        self.resets = self.resets.saturating_sub(passed.saturating_mul(RESETS_PER_TICK));
        self.tick = tick;
        self.idle > IDLE_FRAMES || self.resets > RESETS && self.taken_back * 2 > self.requests
    }

    /// Whether a head, or the head of a frame, has come in part.
    fn is_within_a_head(&self) -> bool {
        let frame = self.skip > 0 && matches!(self.head[3], HEADERS | CONTINUATION);
        frame || self.unfinished || self.filled > 0
    }

    /// Looks at the bytes of one read.
    fn over(&mut self, bytes: &[u8]) -> std::result::Result<(), Found> {
        let (mut at, mut began) = (0, None);
        while at < bytes.len() {
            if self.skip > 0 {
                let end = bytes.len().min(at + self.skip);
                if self.trailers.is_some() && self.look(&bytes[at..end]) {
                    return Err(Found(began));
                }
                self.skip -= end - at;
                at = end;
                continue;
            }
            if self.filled == 0 {
                began = Some(at);
            }
            let end = bytes.len().min(at + HEAD - self.filled);
            self.head[self.filled..self.filled + end - at].copy_from_slice(&bytes[at..end]);
            self.filled += end - at;
            at = end;
            if self.filled == HEAD {
                if !std::mem::replace(&mut self.begun, true) && self.head[3] != SETTINGS {
                    return Err(Found(None)); // it has not said what it can take
                }
                self.begin();
            }
        }
        Ok(())
    }

    /// A head is there.
    fn begin(&mut self) {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = self.head;
        self.filled = 0;
        self.skip = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        self.trailers = None;
        match kind {
            HEADERS => {
                self.requests += 1;
                self.earn(PER_PIECE);
            }
            DATA if self.skip > 0 => self.earn(PER_PIECE),
            DATA if flags & END_STREAM != 0 => {}
            CONTINUATION if self.skip > 0 || flags & END_HEADERS != 0 => {}
            RST_STREAM => {
                self.resets += 1;
                self.taken_back += 1;
            }
            _ => self.idle += 1,
        }
        if matches!(kind, HEADERS | CONTINUATION) {
            self.unfinished = flags & END_HEADERS == 0;
        }
        if kind != HEADERS {
            return;
        }
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & (u32::MAX >> 1);
        if stream > self.newest {
            self.newest = stream;
        } else {
            let flagged = |flag, bytes| if flags & flag == 0 { 0 } else { bytes };
            let before = flagged(PADDED, 1) + flagged(PRIORITY, 5);
            self.trailers = Some(Trailers { before, name: Name::Nothing });
        }
    }

    /// Whether trailers begin with a pseudo-header field (RFC 7541, section 6).
    fn look(&mut self, payload: &[u8]) -> bool {
        let Some(mut trailers) = self.trailers.take() else { return false };
        for &byte in payload {
            if trailers.before > 0 {
                trailers.before -= 1;
                continue;
            }
            match (trailers.name, byte) {
                // The table's size, in several bytes perhaps; a field may follow.
                (Name::Nothing, 0x20..=0x3e) => {}
                (Name::Nothing, 0x3f) | (Name::Size, 0x80..) => trailers.name = Name::Size,
                (Name::Size, _) => trailers.name = Name::Nothing,
                // The fourteen pseudo-header fields of the static table, whole or by name.
                (Name::Nothing, 0x81..=0x8e | 0x41..=0x4e | 0x01..=0x0e | 0x11..=0x1e) => {
                    return true;
                }
                (Name::Nothing, 0x40 | 0x00 | 0x10) => trailers.name = Name::Spelt,
                (Name::Spelt, length) => trailers.name = Name::As { coded: length >= 0x80 },
                // A colon; its code is seven bits long.
                (Name::As { coded: true }, byte) => return byte >> 1 == 0b101_1100,
                (Name::As { coded: false }, byte) => return byte == b':',
                _ => return false,
            }
        }
        self.trailers = Some(trailers);
        false
    }
}

impl AsyncRead for Frames {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        if self.socket()?.activity().is_flooded() {
            // Whoever serves it is on the way here.
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(self.socket()?.poll_read(cx, buffer))?;
        match self.walk.over(&buffer.filled()[before..]) {
            Ok(()) => {}
            Err(Found(Some(at))) => {
                let head = &mut buffer.filled_mut()[before + at..][..HEAD];
                head[HEAD - 4..].fill(0);
            }
            // h2 has its head already.
            Err(Found(None)) => return Poll::Ready(Err(Error::from(ErrorKind::InvalidData))),
        }
        let half = self.walk.is_within_a_head();
        let activity = self.socket()?.get_mut().activity();
        let (tick, pieces) = (activity.tick(), activity.take_pieces());
        let bytes = std::mem::take(&mut self.written);
        let sent = i64::try_from(bytes / BYTES).unwrap_or(BANKED);
        self.walk.earn(i64::from(pieces) * PER_PIECE + sent);
        self.written = bytes % BYTES;
        let flooded = self.walk.is_flooded(tick);
        let activity = self.socket()?.get_mut().activity();
        activity.half_a_head(half);
        if flooded {
            activity.flood();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Frames {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let written = self.socket()?.poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = self.socket()?.poll_write_vectored(cx, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.socket()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.socket()?.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// A connection with a request whose trailers are these, and where they begin.
    fn connection(flags: u8, trailers: &[u8]) -> (Vec<u8>, usize) {
        let mut bytes = vec![b'x'; PREFACE];
        bytes.extend(frame(4, 0, 0, &[0; 6]));
        bytes.extend(frame(HEADERS, 4, 1, &[0x83, 0x84, 0x87]));
        bytes.extend(frame(0, 0, 1, b"body"));
        let at = bytes.len();
        bytes.extend(frame(HEADERS, 5 | flags, 1, trailers));
        (bytes, at)
    }

    #[test]
    fn pseudo_header_fields_are_found_in_trailers_only() {
        let found: [(u8, &[u8]); 10] = [
            (0, &[0x83]),                            // :method: POST
            (0, &[0x20, 0x84]),                      // after the table's size
            (0, &[0x3f, 0xe1, 0x1f, 0x84]),          // in several bytes
            (0, &[0x44, 1, b'/']),                   // :path by name
            (0, &[0x04, 1, b'/']),                   // without being remembered
            (0, &[0x14, 1, b'/']),                   // never to be remembered
            (0, &[0x00, 5, b':', b'p', b'a', b't']), // spelt out
            (0, &[0x40, 0x84, 0b1011_1001, 0]),      // in Huffman's code
            (PADDED, &[1, 0x83, 0]),                 // behind padding
            (PADDED | PRIORITY, &[1, 0, 0, 0, 0, 16, 0x83, 0]),
        ];
        let passed: [(u8, &[u8]); 5] = [
            (0, &[]),
            (0, &[0x00, 3, b'a', b'b', b'c', 1, b':']), // a colon in the value
            (0, &[0x8f]),                               // accept-charset
            (0, &[0xbe]),                               // the caller's own table
            (0, &[0x40, 0x83, 0b0001_1100, 0, 0, 0]),
        ];
        for (flags, trailers) in found {
            let (bytes, at) = connection(flags, trailers);
            assert_eq!(Walk::new().over(&bytes), Err(Found(Some(at))), "{trailers:x?}");
            // However the reads are cut, it is found.
            for cut in 1..bytes.len() {
                let mut walk = Walk::new();
                let first = walk.over(&bytes[..cut]);
                let found = first.and_then(|()| walk.over(&bytes[cut..]));
                assert!(found.is_err(), "{trailers:x?} cut at {cut}");
            }
        }
        for (flags, trailers) in passed {
            let (mut bytes, _) = connection(flags, trailers);
            bytes.extend(frame(HEADERS, 5, 3, &[0x82, 0x84]));
            assert_eq!(Walk::new().over(&bytes), Ok(()), "{trailers:x?}");
            for cut in 1..bytes.len() {
                let mut walk = Walk::new();
                assert_eq!(walk.over(&bytes[..cut]), Ok(()));
                assert_eq!(walk.over(&bytes[cut..]), Ok(()), "{trailers:x?} cut at {cut}");
            }
        }
    }

    /// Whether so many rounds of these frames, each request on a stream of its own, are a flood.
    fn floods(rounds: u32, kinds: &[(u8, &[u8])]) -> bool {
        let mut walk = Walk::new();
        let mut bytes = vec![b'x'; PREFACE];
        bytes.extend(frame(SETTINGS, 0, 0, &[]));
        let mut stream = 1;
        for _ in 0..rounds {
            for (kind, payload) in kinds {
                stream += if *kind == HEADERS { 2 } else { 0 };
                bytes.extend(frame(*kind, 4, stream, payload));
            }
        }
        walk.over(&bytes).expect("nothing is found");
        walk.is_flooded(0)
    }

    #[test]
    fn frames_that_ask_for_nothing_are_a_flood_unless_something_is_asked_for() {
        const PING: u8 = 6;
        let request: (u8, &[u8]) = (HEADERS, &[0x82]);
        assert!(!floods(999, &[(PING, &[0; 8])]));
        assert!(floods(1001, &[(PING, &[0; 8])]));
        assert!(floods(1001, &[(SETTINGS, &[])]));
        assert!(floods(1001, &[(2, &[0; 5])]), "priorities");
        assert!(floods(1001, &[(DATA, &[])]));
        assert!(floods(1001, &[(77, b"unknown")]));
        assert!(floods(1001, &[(8, &[0; 4])]), "windows that grow");
        // A client that measures its bandwidth.
        assert!(!floods(100_000, &[request, (PING, &[0; 8]), (PING, &[0; 8])]));
        assert!(!floods(100_000, &[(DATA, b"x"), (PING, &[0; 8]), (PING, &[0; 8])]));
        // Windows may grow by what was sent.
        let mut walk = Walk::new();
        walk.earn(10_000);
        let updates: Vec<u8> = (0..10_900).flat_map(|_| frame(8, 0, 0, &[0; 4])).collect();
        let begins = [vec![b'x'; PREFACE], frame(SETTINGS, 0, 0, &[])].concat();
        walk.over(&[begins, updates].concat()).expect("nothing is found");
        assert!(!walk.is_flooded(0));
    }

    #[test]
    fn requests_may_be_taken_back_but_not_most_of_many_at_once() {
        let request: (u8, &[u8]) = (HEADERS, &[0x82]);
        let reset: (u8, &[u8]) = (RST_STREAM, &[0; 4]);
        assert!(!floods(999, &[request, reset]));
        assert!(floods(1001, &[request, reset]));
        assert!(!floods(10_000, &[request, request, reset]), "half of them");
        let mut walk = Walk::new();
        let mut bytes = vec![b'x'; PREFACE];
        bytes.extend(frame(SETTINGS, 0, 0, &[]));
        // Five hundred in a second, for as long as it likes.
        for second in 1..100_u32 {
            for stream in 0..500 {
                bytes.extend(frame(HEADERS, 4, 2 * (500 * second + stream) + 1, &[0x82]));
                bytes.extend(frame(RST_STREAM, 0, 2 * (500 * second + stream) + 1, &[0; 4]));
            }
            walk.over(&bytes).expect("nothing is found");
            assert!(!walk.is_flooded(u64::from(20 * second)));
            bytes.clear();
        }
    }
}
