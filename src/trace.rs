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
        hex(self.trace, &mut out[3..35]);
        hex(self.span.into(), &mut out[36..52]);
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

/// Fills a place with digits.
fn hex(number: u128, place: &mut [u8]) {
    let digits = place.len();
    for (at, digit) in place.iter_mut().enumerate() {
        let value = (number >> (4 * (digits - 1 - at))) as usize & 15;
        *digit = b"0123456789abcdef"[value];
    }
}

/// One request's.
#[derive(Debug, Default)]
pub struct Trace {
    /// What the caller says.
    said: Said,
    /// What we say, once somebody has asked.
    own: Cell<Option<Own>>,
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

#[derive(Clone, Copy, Debug)]
struct Own {
    /// Of the request, and of its trace if it begins here.
    id: u128,
    server: u64,
    client: u64,
    sampled: bool,
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
    /// With what the caller says.
    pub fn new(said: Said) -> Self {
        Self { said, own: Cell::new(None) }
    }

    fn own(&self, telemetry: &Telemetry) -> Own {
        if let Some(own) = self.own.get() {
            return own;
        }
        let sampled = match &self.said.parent {
            Some((_, parent)) if self.said.trusted => parent.sampled,
            _ => telemetry.sample >= 1.0 || fastrand::f64() < telemetry.sample,
        };
        let [id, spans] = [fastrand::u128(1..), fastrand::u128(1..)];
        let own = Own { id, server: (spans >> 64) as u64 | 1, client: spans as u64 | 1, sampled };
        self.own.set(Some(own));
        own
    }

    /// Appends what the request is called.
    pub fn write_request_id(&self, telemetry: &Telemetry, out: &mut Vec<u8>) {
        match &self.said.request_id {
            Some(id) => out.extend_from_slice(id.as_bytes()),
            None => {
                let mut id = [0; 32];
                hex(self.own(telemetry).id, &mut id);
                out.extend_from_slice(&id);
            }
        }
    }

    /// Appends what the backend is told of the trace; nothing if none is to be begun.
    pub fn write_parent(&self, telemetry: &Telemetry, out: &mut Vec<u8>) {
        match &self.said.parent {
            Some((written, _)) if telemetry.otlp.is_none() => {
                out.extend_from_slice(written.as_bytes());
            }
            None if !telemetry.begin => {}
            _ => {
                let Own { client: span, sampled, .. } = self.own(telemetry);
                let parent = Parent { trace: self.trace(telemetry), span, sampled };
                out.extend_from_slice(&parent.write());
            }
        }
    }

    /// Whether its spans are exported.
    pub fn is_exported(&self, telemetry: &Telemetry) -> bool {
        telemetry.otlp.is_some() && self.own(telemetry).sampled
    }

    /// The trace it belongs to.
    pub fn trace(&self, telemetry: &Telemetry) -> u128 {
        self.said.parent.as_ref().map_or_else(|| self.own(telemetry).id, |(_, p)| p.trace)
    }

    /// Who asks, if anybody has said so; the span of this request; and the one of asking a backend.
    pub fn spans(&self, telemetry: &Telemetry) -> (Option<u64>, u64, u64) {
        let Own { server, client, .. } = self.own(telemetry);
        (self.said.parent.as_ref().map(|(_, parent)| parent.span), server, client)
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
        let id = written(|out| begun.write_request_id(&telemetry, out));
        let parent = written(|out| begun.write_parent(&telemetry, out));
        assert_eq!(id.len(), 32);
        assert!(parent.starts_with(&format!("00-{id}-")) && parent.ends_with("-01"), "{parent}");
        let value = HeaderValue::from_bytes(GOOD).unwrap();
        let (request_id, parent) = (Some("a-1".parse().unwrap()), Said::parent(&value));
        let said = Trace::new(Said { request_id, parent, trusted: false });
        assert_eq!(written(|out| said.write_request_id(&telemetry, out)), "a-1");
        assert_eq!(written(|out| said.write_parent(&telemetry, out)).as_bytes(), GOOD);
        let quiet = Telemetry { begin: false, ..telemetry };
        assert_eq!(written(|out| Trace::default().write_parent(&quiet, out)), "");
        for id in ["", "a b", "a\"b", &"x".repeat(129)] {
            assert_eq!(Said::request_id(&id.parse().unwrap()), None, "{id}");
        }
    }
}
