//! What a request is called: its place in a trace (W3C Trace Context), and `X-Request-Id`.
//!
//! What a caller says is passed on if it is well formed; otherwise both begin here, and then the
//! trace's id is the request's as well. Where spans are exported, the backend's parent is a span of
//! ours. Ids are drawn when somebody asks for them: most rejected requests need none.

use crate::config::model::Telemetry;
use http::HeaderValue;
use std::cell::Cell;

/// The longest id of a request that is believed.
const LONGEST: usize = 128;

/// `traceparent`: who asks, in which trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The trace.
    pub trace: u128,
    /// The span that asks.
    pub span: u64,
    /// Whether it is recorded.
    pub sampled: bool,
}

impl Parent {
    /// Reads `00-TRACE-SPAN-FLAGS`, or what a later version says in the same places.
    pub fn read(text: &[u8]) -> Option<Self> {
        let (known, rest) = text.split_at_checked(55)?;
        let version = number(&known[..2])?;
        let ends = rest.is_empty() || version > 0 && rest[0] == b'-';
        let dashes = known[2] == b'-' && known[35] == b'-' && known[52] == b'-';
        let (trace, span) = (number(&known[3..35])?, number(&known[36..52])? as u64);
        let flags = number(&known[53..55])?;
        let fits = ends && dashes && version != 0xff && trace != 0 && span != 0;
        fits.then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }

    /// As it is sent.
    pub fn write(self) -> [u8; 55] {
        let mut out = *b"00-00000000000000000000000000000000-0000000000000000-00";
        out[3..35].copy_from_slice(&digits(self.trace));
        out[36..44].copy_from_slice(&hex((self.span >> 32) as u32));
        out[44..52].copy_from_slice(&hex(self.span as u32));
        out[54] += u8::from(self.sampled);
        out
    }
}

/// Lower-case hexadecimal digits, and nothing else.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

/// Eight digits at a time: each half of a byte gets a byte of its own, and those above nine become
/// letters.
fn hex(number: u32) -> [u8; 8] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let spread = u64::from(number);
    let spread = (spread | spread << 16) & 0x0000_ffff_0000_ffff;
    let spread = (spread | spread << 8) & 0x00ff_00ff_00ff_00ff;
    let spread = (spread | spread << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (spread + 6 * EACH) >> 4 & EACH;
    let to_letter = u64::from(b'a' - b'0' - 10);
    (spread + u64::from(b'0') * EACH + letters * to_letter).to_be_bytes()
}

fn digits(number: u128) -> [u8; 32] {
    let mut out = [0; 32];
    for (place, part) in out.chunks_exact_mut(8).zip([96, 64, 32, 0]) {
        place.copy_from_slice(&hex((number >> part) as u32));
    }
    out
}

/// One request's. Most callers say nothing, and then it is one number.
#[derive(Debug, Default)]
pub struct Trace {
    /// What the caller says.
    said: Option<Box<Said>>,
    /// What we call the request, and its trace if it begins here; nothing until somebody asks.
    id: Cell<u128>,
}

/// What a caller says of a request.
#[derive(Debug, Default)]
pub struct Said {
    /// `X-Request-Id`.
    pub request_id: Option<HeaderValue>,
    /// `traceparent`, as it was written and as it was read.
    pub parent: Option<(HeaderValue, Parent)>,
    /// Whether it may decide what is recorded.
    pub trusted: bool,
}

impl Said {
    /// An id of a request that can be passed on: short, and of characters that mean nothing anywhere.
    pub fn request_id(value: &HeaderValue) -> Option<HeaderValue> {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~+/=:@".contains(byte);
        let fits = (1..=LONGEST).contains(&value.len()) && value.as_bytes().iter().all(plain);
        fits.then(|| value.clone())
    }

    /// A parent that can be passed on.
    pub fn parent(value: &HeaderValue) -> Option<(HeaderValue, Parent)> {
        Some((value.clone(), Parent::read(value.as_bytes())?))
    }
}

impl Trace {
    /// With what the caller says, if anything.
    pub fn new(said: Option<Said>) -> Self {
        Self { said: said.map(Box::new), id: Cell::new(0) }
    }

    fn id(&self) -> u128 {
        if self.id.get() == 0 {
            self.id.set(u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(..) | 1));
        }
        self.id.get()
    }

    fn parent(&self) -> Option<&(HeaderValue, Parent)> {
        self.said.as_ref()?.parent.as_ref()
    }

    /// Whether the caller has said in which trace it is.
    pub fn has_parent(&self) -> bool {
        self.parent().is_some()
    }

    /// Appends what the request is called.
    pub fn write_request_id(&self, out: &mut Vec<u8>) {
        match self.said.as_ref().and_then(|said| said.request_id.as_ref()) {
            Some(id) => out.extend_from_slice(id.as_bytes()),
            None => out.extend_from_slice(&digits(self.id())),
        }
    }

    /// Appends what the backend is told of the trace; nothing if none is to be begun.
    pub fn write_parent(&self, telemetry: &Telemetry, out: &mut Vec<u8>) {
        match self.parent() {
            Some((written, _)) if telemetry.otlp.is_none() => {
                out.extend_from_slice(written.as_bytes());
            }
            None if !telemetry.begin => {}
            _ => {
                let (trace, sampled) = (self.trace(), self.is_sampled(telemetry));
                out.extend_from_slice(&Parent { trace, span: self.client(), sampled }.write());
            }
        }
    }

    /// Whether its spans are exported.
    pub fn is_exported(&self, telemetry: &Telemetry) -> bool {
        telemetry.otlp.is_some() && self.is_sampled(telemetry)
    }

    /// By our own number: what a stranger calls a trace must not choose that it is recorded.
    fn is_sampled(&self, telemetry: &Telemetry) -> bool {
        const ALL: f64 = (1_u64 << 56) as f64;
        match &self.said {
            Some(said) if said.trusted && said.parent.is_some() => {
                said.parent.as_ref().is_some_and(|(_, parent)| parent.sampled)
            }
            _ => telemetry.sample >= 1.0 || (self.id() as u64 >> 8) as f64 / ALL < telemetry.sample,
        }
    }

    /// The trace it belongs to.
    pub fn trace(&self) -> u128 {
        self.parent().map_or_else(|| self.id(), |(_, parent)| parent.trace)
    }

    /// Who asks, if anybody has said so; the span of this request; and the one of asking a backend.
    pub fn spans(&self) -> (Option<u64>, u64, u64) {
        (self.parent().map(|(_, parent)| parent.span), self.server(), self.client())
    }

    fn server(&self) -> u64 {
        (self.id() >> 64) as u64 | 1
    }

    /// Neither half of the id: where the trace begins here, that is no secret.
    fn client(&self) -> u64 {
        (self.id() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn written(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_parent_is_read_as_it_is_written() {
        let parent = Parent::read(GOOD).unwrap();
        assert_eq!(parent.trace, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!((parent.span, parent.sampled), (0xb7ad_6b71_6920_3331, true));
        assert_eq!(parent.write(), GOOD);
        let mut later = GOOD.to_vec();
        later[1] = b'1';
        assert_eq!(Parent::read(&[&later[..], b"-more"].concat()), Some(parent));
        let bad: [&[u8]; 7] = [
            b"",
            &GOOD[..54],
            &[GOOD, b"-more"].concat(),
            b"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            b"00-00000000000000000000000000000000-b7ad6b7169203331-01",
            b"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            b"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        ];
        for text in bad {
            assert_eq!(Parent::read(text), None, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn what_is_well_formed_is_passed_on_and_the_rest_begins_here() {
        let telemetry = Telemetry::default();
        let begun = Trace::default();
        let id = written(|out| begun.write_request_id(out));
        let parent = written(|out| begun.write_parent(&telemetry, out));
        assert_eq!(id.len(), 32);
        assert!(parent.starts_with(&format!("00-{id}-")) && parent.ends_with("-01"), "{parent}");
        let value = HeaderValue::from_bytes(GOOD).unwrap();
        let (request_id, parent) = (Some("a-1".parse().unwrap()), Said::parent(&value));
        let said = Trace::new(Some(Said { request_id, parent, trusted: false }));
        assert_eq!(written(|out| said.write_request_id(out)), "a-1");
        assert_eq!(written(|out| said.write_parent(&telemetry, out)).as_bytes(), GOOD);
        let quiet = Telemetry { begin: false, ..telemetry };
        assert_eq!(written(|out| Trace::default().write_parent(&quiet, out)), "");
        for id in ["", "a b", "a\"b", &"x".repeat(129)] {
            assert_eq!(Said::request_id(&id.parse().unwrap()), None, "{id}");
        }
    }
}
