//! Where a request wants to go: exactly one host, one spelling of the path, and nothing that two
//! parsers could read differently.

use super::present::Present;
use super::refusal::Refusal;
use crate::path::normalise;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Version};
use std::borrow::Cow;

/// A target that can be routed.
#[derive(Debug)]
pub struct Destination {
    /// `Host` as it is forwarded.
    pub authority: HeaderValue,
    /// Lower case, without a port: what routes match.
    pub host: String,
    /// Normalised: what routes match and what is forwarded. `None`: it was spelt so already.
    normalised: Option<String>,
    original: http::uri::PathAndQuery,
}

impl Destination {
    /// Reads a request's target, or refuses it.
    pub(super) fn of<B>(request: &Request<B>, present: Present) -> Result<Self, Refusal> {
        if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
            return Err(Refusal::MethodRefused);
        }
        if present.has(Present::TRANSFER_ENCODING) {
            check_framing(request)?;
        }
        if present.has(Present::CONTENT_LENGTH) {
            check_length(request)?;
        }
        let authority = authority(request)?;
        let host = host(&authority)?;
        let uri = request.uri();
        let original = uri.path_and_query().ok_or(Refusal::Malformed("no path"))?.clone();
        if original.query().is_some_and(|query| !query.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(Refusal::Malformed("the query holds more than printable ASCII"));
        }
        // `http://example.com?x` has an empty path, which means `/`.
        let path = if original.path().is_empty() { "/" } else { original.path() };
        let normalised = match normalise(path) {
            Ok(Cow::Borrowed(same)) if same.len() == original.path().len() => None,
            Ok(path) => Some(path.into_owned()),
            Err(_) => return Err(Refusal::Malformed("the path has no one spelling")),
        };
        Ok(Self { authority, host, normalised, original })
    }

    /// The same for a request that nobody has looked at yet.
    pub fn read<B>(request: &Request<B>) -> Result<Self, Refusal> {
        Self::of(request, Present::of(request.headers()))
    }

    /// The normalised path.
    pub fn path(&self) -> &str {
        self.normalised.as_deref().unwrap_or_else(|| self.original.path())
    }

    /// The query, without its question mark.
    pub fn query(&self) -> Option<&str> {
        self.original.query()
    }
}

/// The longest name that DNS knows, and a dot.
const MAX_HOST: usize = 254;

/// hyper has refused conflicting lengths already; it accepts a list of transfer codings that ends
/// in `chunked`, which not every parser does.
fn check_framing<B>(request: &Request<B>) -> Result<(), Refusal> {
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(Refusal::Malformed("a transfer coding other than a single chunked")),
    }
}

/// hyper and h2 have compared lengths with each other and with the body; here it is about how they
/// are written: digits, and nothing else.
fn check_length<B>(request: &Request<B>) -> Result<(), Refusal> {
    let digits = |length: &HeaderValue| {
        !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit)
    };
    let mut lengths = request.headers().get_all(CONTENT_LENGTH).iter();
    if lengths.all(digits) { Ok(()) } else { Err(Refusal::Malformed("a length that is no number")) }
}

/// Exactly one Host; the authority of an absolute target overrides it. HTTP/2 says it in its target,
/// and may leave Host out, but may not contradict itself.
fn authority<B>(request: &Request<B>) -> Result<HeaderValue, Refusal> {
    const NOT_ONE: Refusal = Refusal::Malformed("not exactly one Host");
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host),
        (None, None) if request.version() == Version::HTTP_2 => None,
        _ => return Err(NOT_ONE),
    };
    let uri = request.uri();
    let target = match (uri.scheme_str(), uri.authority()) {
        (None, None) => return host.cloned().ok_or(NOT_ONE),
        (Some("http" | "https"), None) if request.version() == Version::HTTP_2 => {
            return host.cloned().ok_or(NOT_ONE);
        }
        (Some("http" | "https"), Some(authority)) => authority.as_str(),
        _ => return Err(Refusal::Malformed("the target is neither a path nor an http URL")),
    };
    let contradicts = |host: &HeaderValue| !host.as_bytes().eq_ignore_ascii_case(target.as_bytes());
    if request.version() == Version::HTTP_2 && host.is_some_and(contradicts) {
        return Err(Refusal::Malformed("Host is not the target's authority"));
    }
    HeaderValue::from_str(target)
        .map_err(|_| Refusal::Malformed("the target's authority is not valid"))
}

const BAD_HOST: Refusal = Refusal::Malformed("the Host is not valid");

fn host(authority: &HeaderValue) -> Result<String, Refusal> {
    host_name(authority.to_str().map_err(|_| BAD_HOST)?)
}

/// `host[:port]`, where host is a name or an address; no user name, no empty host. As routes match
/// it: in lower case, without the port.
pub fn host_name(text: &str) -> Result<String, Refusal> {
    const BAD: Refusal = BAD_HOST;
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(BAD)?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| BAD)?;
            (&text[..address.len() + 2], port)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port_fits = port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| {
            digits.bytes().all(|b| b.is_ascii_digit())
                && (digits.is_empty() || digits.parse::<u16>().is_ok())
        });
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&b);
    let name_fits = host.starts_with('[') || (!host.is_empty() && host.bytes().all(plain));
    if !port_fits || !name_fits || host.len() > MAX_HOST {
        return Err(BAD);
    }
    Ok(host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, hosts: &[&str]) -> Request<()> {
        let mut request = Request::get(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        request.body(()).unwrap()
    }

    fn read(target: &str, hosts: &[&str]) -> Result<(String, String), String> {
        let request = request(target, hosts);
        let destination = Destination::of(&request, Present::of(request.headers()));
        let destination = destination.map_err(|e| e.to_string())?;
        Ok((destination.host.clone(), destination.path().to_owned()))
    }

    #[test]
    fn a_target_has_one_host_and_one_path() {
        let cases = [
            ("/", "Example.COM", "example.com", "/"),
            ("/a//b?x=//", "example.com:8080", "example.com", "/a/b"),
            ("http://other.com/x", "example.com", "other.com", "/x"),
            ("http://other.com", "example.com", "other.com", "/"),
            ("http://other.com?q", "example.com", "other.com", "/"),
            ("/", "[2001:DB8::1]:80", "[2001:db8::1]", "/"),
            ("/", "example.com.", "example.com", "/"),
        ];
        for (target, host, expected_host, expected_path) in cases {
            let expected = (expected_host.to_owned(), expected_path.to_owned());
            assert_eq!(read(target, &[host]), Ok(expected), "{target} {host}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let bad_hosts: [&[&str]; 11] = [
            &[],
            &["a", "b"],
            &["a", "a"],
            &[""],
            &["a b"],
            &["a/b"],
            &["user@a"],
            &["a:99999"],
            &["a:b"],
            &["[::1"],
            &["[zz]"],
        ];
        for hosts in bad_hosts {
            assert!(read("/", hosts).is_err(), "{hosts:?}");
        }
        for target in ["ftp://a/", "/%zz", "/%00", "*", "example.com:80"] {
            assert!(read(target, &["a"]).is_err(), "{target}");
        }
    }

    #[test]
    fn only_a_single_chunked_coding_is_accepted() {
        for (codings, good) in [
            (vec!["chunked"], true),
            (vec!["Chunked"], true),
            (vec!["gzip, chunked"], false),
            (vec!["chunked", "chunked"], false),
            (vec!["identity"], false),
            (vec!["chunked, chunked"], false),
        ] {
            let mut request = request("/", &["a"]);
            for coding in &codings {
                let value = HeaderValue::from_str(coding).unwrap();
                request.headers_mut().append(TRANSFER_ENCODING, value);
            }
            let present = Present::of(request.headers());
            assert_eq!(Destination::of(&request, present).is_ok(), good, "{codings:?}");
        }
    }
}
