//! Which fields of a log tell what: by the names that others use, or as the user says.

use super::chunk::{Entry, Extra, Span, Unreadable};
use super::moment::Moments;
use http::HeaderName;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// What a field of a log tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// When.
    Time,
    /// Who connected.
    Ip,
    /// For whom: `X-Forwarded-For`.
    ForwardedFor,
    /// The method.
    Method,
    /// The path, with or without a query, or the whole URL.
    Path,
    /// Method, path and version: `GET /x HTTP/1.1`.
    Request,
    /// For which host.
    Host,
    /// The user.
    User,
    /// The user's plan.
    Plan,
    /// The API key or its id.
    ApiKey,
    /// The status of the answer.
    Status,
    /// Bytes of the answer.
    Bytes,
    /// Bytes of the request's body.
    RequestBytes,
    /// How long it took.
    Duration(Unit),
    /// Which upstream was asked.
    Upstream,
    /// Why the gateway refused it.
    Error,
    /// The share of such requests that is in the log.
    Sample,
    /// A header, by its place among those that are wanted.
    Header(u16),
    /// What a limit counted it as, by its place among those that are wanted.
    Cost(u16),
}

/// Whether both tell the same, perhaps in other units.
pub(super) fn is_same(one: Field, other: Field) -> bool {
    one == other || matches!((one, other), (Field::Duration(_), Field::Duration(_)))
}

/// What a length of time is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
    /// Nanoseconds.
    Nanos,
}

impl Unit {
    /// How many digits it is larger than a nanosecond.
    fn digits(self) -> usize {
        match self {
            Self::Seconds => 9,
            Self::Millis => 6,
            Self::Micros => 3,
            Self::Nanos => 0,
        }
    }
}

/// What `--fields` calls them, and what others call them, the likeliest first. A name with dots is a
/// way through objects.
const KNOWN: [(&str, Field, &[&str]); 17] = [
    (
        "time",
        Field::Time,
        &[
            "time",
            "timestamp",
            "@timestamp",
            "ts",
            "time_iso8601",
            "time_local",
            "StartUTC",
            "start_time",
            "datetime",
            "date",
            "msec",
        ],
    ),
    (
        "ip",
        Field::Ip,
        &[
            "ip",
            "client_ip",
            "clientip",
            "remote_addr",
            "remote_ip",
            "request.client_ip",
            "request.remote_ip",
            "ClientHost",
            "httpRequest.remoteIp",
            "downstream_remote_address",
            "remote_host",
            "client",
            "host_ip",
        ],
    ),
    (
        "forwarded_for",
        Field::ForwardedFor,
        &["forwarded_for", "http_x_forwarded_for", "x_forwarded_for", "xff"],
    ),
    (
        "method",
        Field::Method,
        &[
            "method",
            "request_method",
            "request.method",
            "RequestMethod",
            "http_method",
            "verb",
            "httpRequest.requestMethod",
        ],
    ),
    (
        "path",
        Field::Path,
        &[
            "path",
            "uri",
            "request_uri",
            "request.uri",
            "RequestPath",
            "url",
            "request_path",
            "httpRequest.requestUrl",
            "target",
        ],
    ),
    ("request", Field::Request, &["request", "request_line"]),
    (
        "host",
        Field::Host,
        &["host", "http_host", "request.host", "RequestHost", "server_name", "authority", "vhost"],
    ),
    (
        "user",
        Field::User,
        &["user", "user_id", "userid", "remote_user", "sub", "ClientUsername", "username"],
    ),
    ("plan", Field::Plan, &["plan"]),
    (
        "api_key",
        Field::ApiKey,
        &["api_key", "apikey", "api_key_id", "key_id", "consumer", "consumer.username"],
    ),
    (
        "status",
        Field::Status,
        &[
            "status",
            "status_code",
            "response_code",
            "DownstreamStatus",
            "response.status",
            "httpRequest.status",
            "code",
        ],
    ),
    (
        "bytes",
        Field::Bytes,
        &[
            "bytes",
            "body_bytes_sent",
            "bytes_sent",
            "size",
            "DownstreamContentSize",
            "response_size",
            "response.size",
        ],
    ),
    ("request_bytes", Field::RequestBytes, &["request_bytes", "bytes_received", "bytes_read"]),
    ("duration_ms", Field::Duration(Unit::Millis), &["duration_ms", "latency_ms", "took_ms"]),
    ("duration_s", Field::Duration(Unit::Seconds), &["duration_s", "request_time", "duration"]),
    ("duration_us", Field::Duration(Unit::Micros), &["duration_us", "request_time_us"]),
    ("duration_ns", Field::Duration(Unit::Nanos), &["duration_ns", "Duration"]),
];

/// Names that `--fields` takes, for messages.
pub(super) fn names() -> String {
    let names: Vec<&str> = KNOWN.iter().map(|(name, ..)| *name).collect();
    format!("{}, header:NAME", names.join(", "))
}

/// Which names tell what.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// What the user says.
    pub said: Vec<(Field, String)>,
    /// Headers that limits count by.
    pub headers: Vec<HeaderName>,
    /// Limits whose cost is known only later.
    pub costs: Vec<String>,
    /// Whether it matters how long requests took, ...
    pub lengths: bool,
    /// ... and how large they and their answers were.
    pub sizes: bool,
}

impl Fields {
    /// `time=ts` and its like. A header that no limit counts by tells nothing.
    pub fn say(&mut self, text: &str) -> Result<(), String> {
        let (name, source) = text
            .split_once('=')
            .filter(|(name, source)| !name.is_empty() && !source.is_empty())
            .ok_or_else(|| format!("'{text}' names no field; it looks like time=ts"))?;
        if let Some(header) = name.strip_prefix("header:") {
            let at =
                self.headers.iter().position(|known| known.as_str().eq_ignore_ascii_case(header));
            let at = at.ok_or_else(|| format!("no limit counts by the header {header}"))?;
            self.said.push((Field::Header(at as u16), source.to_owned()));
            return Ok(());
        }
        let known = KNOWN.iter().find(|(known, ..)| *known == name);
        let (_, field, _) =
            known.ok_or_else(|| format!("'{name}' is nothing that is looked for; {}", names()))?;
        self.said.push((*field, source.to_owned()));
        Ok(())
    }

    /// Which of these names tell what: as the user says, and otherwise by the names that others use.
    pub(super) fn among(&self, has: impl Fn(&str) -> bool) -> Vec<(String, Field)> {
        let said = self.said.iter().map(|(field, name)| (name.clone(), *field));
        let mut all: Vec<(String, Field)> = said.collect();
        for (_, field, names) in &KNOWN {
            if !all.iter().any(|(_, known)| is_same(*known, *field))
                && let Some(name) = names.iter().find(|name| has(name))
            {
                all.push(((*name).to_owned(), *field));
            }
        }
        // Envoy's is in milliseconds.
        if has("response_code") || has("downstream_remote_address") {
            for (name, field) in &mut all {
                if name == "duration" && *field == Field::Duration(Unit::Seconds) {
                    *field = Field::Duration(Unit::Millis);
                }
            }
        }
        // One name tells one thing.
        let mut taken: Vec<String> = Vec::new();
        all.retain(|(name, _)| {
            let new = !taken.contains(name);
            taken.push(name.clone());
            new
        });
        for (index, header) in self.headers.iter().enumerate() {
            let names = [
                format!("headers.{header}"),
                header.as_str().to_owned(),
                format!("http_{}", header.as_str().replace('-', "_")),
            ];
            let field = Field::Header(index as u16);
            if !all.iter().any(|(_, known)| *known == field)
                && let Some(name) = names.into_iter().find(|name| has(name))
            {
                all.push((name, field));
            }
        }
        all
    }

    /// Every usual name of every field, headers apart.
    pub(super) fn usual(&self) -> impl Iterator<Item = (String, Field)> {
        let all = KNOWN.iter().flat_map(|(_, field, names)| {
            names.iter().map(move |name| ((*name).to_owned(), *field))
        });
        let headers = self.headers.iter().zip(0..);
        let headers = headers.map(|(name, at)| (name.as_str().to_owned(), Field::Header(at)));
        all.chain(headers.collect::<Vec<_>>())
    }

    /// Whether anybody wants to know.
    pub(super) fn wants(&self, field: Field) -> bool {
        match field {
            Field::Duration(_) => self.lengths,
            Field::Bytes | Field::RequestBytes => self.sizes,
            _ => true,
        }
    }

    /// What is missing so that lines could be replayed.
    pub(super) fn lacking(found: &[(String, Field)]) -> Option<&'static str> {
        let has = |wanted: Field| found.iter().any(|(_, field)| *field == wanted);
        match () {
            () if !has(Field::Time) => Some("time"),
            () if !has(Field::Ip) => Some("ip"),
            () if !has(Field::Path) && !has(Field::Request) => Some("path"),
            () => None,
        }
    }
}

/// Takes down what a field of a line says.
#[inline]
pub(super) fn put(
    field: Field,
    value: &[u8],
    span: Span,
    entry: &mut Entry,
    extras: &mut Vec<Extra>,
    moments: &mut Moments,
) -> Result<(), Unreadable> {
    match field {
        Field::Time => entry.time = moments.read(value).ok_or(Unreadable::BadTime)?,
        Field::Ip => entry.ip = address(value).ok_or(Unreadable::BadAddress)?,
        Field::Status => entry.status = status(value).ok_or(Unreadable::BadStatus)?,
        _ if matches!(value, b"" | b"-") => {}
        Field::Method => entry.method = span,
        Field::Path => entry.target = span,
        Field::Request => request(value, span, entry),
        Field::Host => entry.host = span,
        Field::ForwardedFor => entry.forwarded_for = span,
        Field::User => entry.user = span,
        Field::Plan => entry.plan = span,
        Field::ApiKey => entry.api_key = span,
        Field::Bytes => entry.bytes = whole(value),
        Field::RequestBytes => entry.request_bytes = whole(value),
        Field::Duration(unit) => entry.duration = length(value, unit),
        Field::Upstream => entry.upstream = true,
        Field::Error => entry.shed = value.starts_with(b"overloaded"),
        Field::Sample => {
            entry.sample = str::from_utf8(value).ok().and_then(|s| s.parse().ok()).unwrap_or(1.0);
        }
        Field::Header(which) => extras.push(Extra::Header(which, span)),
        Field::Cost(which) => {
            if let Some(cost) = whole(value) {
                extras.push(Extra::Cost(which, cost.try_into().unwrap_or(u32::MAX)));
            }
        }
    }
    Ok(())
}

/// `GET /x HTTP/1.1`; what is not of this form could not be read by whoever logged it either.
pub(super) fn request(value: &[u8], span: Span, entry: &mut Entry) {
    let mut words = value.split(|byte| *byte == b' ');
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return };
    let version = words.next().is_none_or(|version| version.starts_with(b"HTTP/"));
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if version && words.next().is_none() && method.iter().all(token) {
        entry.method = span.first(method.len());
        entry.target = span.skip(method.len() + 1).first(target.len());
    }
}

/// An address, with or without a port, IPv6 with or without brackets.
pub(super) fn address(value: &[u8]) -> Option<IpAddr> {
    if let Some(ip) = quad(value) {
        return Some(ip.into());
    }
    let text = str::from_utf8(value).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let ip = bare.unwrap_or(text).parse::<IpAddr>().ok();
    let ip = ip.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    ip.map(|ip| ip.to_canonical())
}

/// `192.0.2.7`, the commonest by far.
fn quad(value: &[u8]) -> Option<Ipv4Addr> {
    let (mut octets, mut at) = ([0; 4], 0);
    for (index, octet) in octets.iter_mut().enumerate() {
        let begins = at;
        while let Some(digit @ b'0'..=b'9') = value.get(at) {
            *octet = u8::checked_mul(*octet, 10)?.checked_add(digit - b'0')?;
            at += 1;
        }
        let zeros = value[begins..at].len() > 1 && value[begins] == b'0';
        let ends = if index == 3 { at == value.len() } else { value.get(at) == Some(&b'.') };
        if begins == at || zeros || !ends {
            return None;
        }
        at += 1;
    }
    Some(octets.into())
}

pub(super) fn status(value: &[u8]) -> Option<u16> {
    match value {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
            let digit = |byte: &u8| u16::from(byte - b'0');
            Some(digit(a) * 100 + digit(b) * 10 + digit(c))
        }
        b"" | b"-" | b"0" => Some(0),
        _ => None,
    }
}

pub(super) fn whole(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    value.iter().try_fold(0, |number: u64, digit| {
        digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
    })
}

/// A number of such units, perhaps with a fraction, in microseconds.
fn length(value: &[u8], unit: Unit) -> Option<u64> {
    let (mut nanos, mut behind) = (0u64, None);
    for byte in value {
        match (byte, behind) {
            (b'.', None) => behind = Some(0),
            // Finer than a nanosecond.
            (b'0'..=b'9', Some(digits)) if digits == unit.digits() => {}
            (b'0'..=b'9', _) => {
                nanos = nanos.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
                behind = behind.map(|digits| digits + 1);
            }
            _ => return None,
        }
    }
    let missing = unit.digits() - behind.unwrap_or(0);
    let nanos = nanos.checked_mul(10u64.pow(missing as u32))?;
    (!value.is_empty()).then_some(nanos / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_is_read_to_the_microsecond() {
        for (text, unit, micros) in [
            ("12.345", Unit::Millis, 12_345),
            ("0.001", Unit::Seconds, 1000),
            ("2", Unit::Seconds, 2_000_000),
            ("1.23456789", Unit::Seconds, 1_234_567),
            ("0.0004999999999999", Unit::Millis, 0),
            ("7", Unit::Micros, 7),
            ("1999", Unit::Nanos, 1),
        ] {
            assert_eq!(length(text.as_bytes(), unit), Some(micros), "{text}");
        }
        for text in ["", "-1", "1e3", "1.2.3", "1s", "99999999999999999999"] {
            assert_eq!(length(text.as_bytes(), Unit::Millis), None, "{text}");
        }
    }

    #[test]
    fn an_address_may_have_a_port_and_brackets() {
        for (text, ip) in [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7:4711", "192.0.2.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("[2001:db8::7]:4711", "2001:db8::7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
        ] {
            assert_eq!(address(text.as_bytes()), ip.parse().ok(), "{text}");
        }
        for text in ["", "-", "localhost", "192.0.2", "192.0.2.256", "192.0.2.07", "192.0.2.7.1"] {
            assert_eq!(address(text.as_bytes()), None, "{text}");
        }
    }
}
