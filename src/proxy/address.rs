//! The caller's address: the peer's, or what trusted proxies say it is, in the one header that
//! `identity.client_ip` names.
//!
//! A list is walked from the right, past every address that is a trusted proxy; the first that is not
//! is the caller. An element that is no address ends the walk at the last address that was believed,
//! so nothing behind garbage is believed either.

use super::exchange::Exchange;
use super::present::Present;
use crate::config::model::{AddressSource, Identity};
use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use smallvec::SmallVec;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub(crate) static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The caller's address, IPv4-mapped ones as IPv4.
    pub ip: IpAddr,
    /// What limits count by: the same, IPv6 cut to its prefix.
    pub counted: IpAddr,
}

/// Finds out where a request comes from.
pub(super) fn origin(exchange: &Exchange, headers: &HeaderMap) -> Origin {
    let (peer, present) = (&exchange.peer, exchange.present);
    let identity = &exchange.snapshot().identity;
    let told = match &identity.client_ip {
        AddressSource::XForwardedFor => present.has(Present::X_FORWARDED_FOR),
        AddressSource::Forwarded => present.has(Present::FORWARDED),
        AddressSource::Header(name) => headers.contains_key(name),
    };
    let ip = if told && peer.is_trusted(exchange.snapshot()) {
        forwarded(peer.ip, headers, identity)
    } else {
        peer.ip
    };
    Origin { ip, counted: cut(ip, identity.ipv6_prefix) }
}

/// Whether an address is among the networks.
pub fn is_in(networks: &[IpNet], ip: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&ip))
}

/// The caller according to a trusted proxy: what the one configured header says. The other headers
/// may be the caller's own invention, which the proxy has passed on.
pub fn forwarded(peer: IpAddr, headers: &HeaderMap, identity: &Identity) -> IpAddr {
    let trusted = &identity.trusted_proxies;
    match &identity.client_ip {
        AddressSource::XForwardedFor => x_forwarded_for(peer, headers, trusted),
        AddressSource::Forwarded => {
            let lines = headers.get_all(FORWARDED).iter().rev();
            let elements = lines.flat_map(|line| from_the_right(line.as_bytes()));
            let elements =
                elements.map(|element| for_parameter(str::from_utf8(element).unwrap_or_default()));
            walk(peer, elements, trusted)
        }
        AddressSource::Header(name) => {
            let mut values = headers.get_all(name).iter();
            let value = values.next().filter(|_| values.next().is_none());
            let named = value.and_then(|value| address(value.to_str().ok()?.trim()));
            named.unwrap_or(peer)
        }
    }
}

/// The caller according to `X-Forwarded-For`.
pub fn x_forwarded_for(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    walk(peer, elements(headers, &X_FORWARDED_FOR).map(address), trusted)
}

/// The elements of a list, the last first; what is no text is empty, and so no address.
fn elements<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let lines = headers.get_all(name).iter().rev();
    let elements = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    elements.map(|element| str::from_utf8(element).unwrap_or_default().trim())
}

fn walk(peer: IpAddr, elements: impl Iterator<Item = Option<IpAddr>>, trusted: &[IpNet]) -> IpAddr {
    let mut believed = peer;
    for element in elements {
        match element {
            Some(ip) => believed = ip,
            None => return believed,
        }
        if !is_in(trusted, believed) {
            return believed;
        }
    }
    believed
}

/// The elements of a list, the last first, by commas that are not in quotes. It is read from the
/// right, so that nothing a caller put in front changes what a proxy has added behind it.
fn from_the_right(line: &[u8]) -> SmallVec<[&[u8]; 8]> {
    let (mut elements, mut end, mut quoted) = (SmallVec::new(), line.len(), false);
    for (at, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' => {
                let escapes = line[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
                quoted = !quoted || escapes % 2 == 1;
            }
            b',' if !quoted => {
                elements.push(&line[at + 1..end]);
                end = at;
            }
            _ => {}
        }
    }
    elements.push(&line[..end]);
    elements
}

/// The parts of a text between separators that are not in quotes. `None` if a quote has no end.
fn unquoted(text: &str, separator: char) -> Option<SmallVec<[&str; 8]>> {
    let (mut quoted, mut escaped) = (false, false);
    let parts = text.split(|c: char| {
        if quoted {
            quoted = escaped || c != '"';
            escaped = !escaped && c == '\\';
            return false;
        }
        quoted = c == '"';
        c == separator
    });
    let parts = parts.collect();
    (!quoted).then_some(parts)
}

/// `for=` of one element of `Forwarded`; quoted where it holds a port or is IPv6. Two of them are
/// none.
fn for_parameter(element: &str) -> Option<IpAddr> {
    let pairs = unquoted(element, ';')?;
    let mut values = pairs.iter().filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then_some(value.trim())
    });
    let value = values.next().filter(|_| values.next().is_none())?;
    address(value.strip_prefix('"').map_or(Some(value), |value| value.strip_suffix('"'))?)
}

/// An address, with or without a port, IPv6 with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    let ip = text
        .parse::<IpAddr>()
        .or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()))
        .or_else(|_| {
            text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or("").parse()
        });
    ip.ok().map(|ip| ip.to_canonical())
}

/// What limits count an address by: IPv6 is cut to its prefix.
pub fn cut(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            Ipv6Addr::from(u128::from(ip) & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn trusted() -> Vec<IpNet> {
        ["10.0.0.0/8", "127.0.0.1/32", "fd00::/8"].map(|net| net.parse().unwrap()).to_vec()
    }

    fn identity(client_ip: AddressSource) -> Identity {
        Identity { trusted_proxies: trusted(), client_ip, ..Identity::default() }
    }

    fn source(name: &'static str) -> AddressSource {
        match name {
            "x-forwarded-for" => AddressSource::XForwardedFor,
            "forwarded" => AddressSource::Forwarded,
            _ => AddressSource::Header(HeaderName::from_static(name)),
        }
    }

    fn seen(name: &'static str, lines: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name, HeaderValue::from_str(line).unwrap());
        }
        forwarded("10.0.0.1".parse().unwrap(), &headers, &identity(source(name))).to_string()
    }

    #[test]
    fn the_walk_ends_at_the_first_address_that_is_no_proxy() {
        let cases: [(&[&str], &str); 9] = [
            (&["203.0.113.7"], "203.0.113.7"),
            (&["1.1.1.1, 203.0.113.7"], "203.0.113.7"),
            (&["1.1.1.1, 203.0.113.7, 10.2.3.4"], "203.0.113.7"),
            (&["1.1.1.1", "203.0.113.7,10.2.3.4"], "203.0.113.7"),
            (&["10.9.9.9, 10.2.3.4"], "10.9.9.9"),
            (&["203.0.113.7, garbage"], "10.0.0.1"),
            (&["203.0.113.7, "], "10.0.0.1"),
            (&["[2001:db8::1]:4711"], "2001:db8::1"),
            (&["::ffff:203.0.113.7, 10.1.1.1:80"], "203.0.113.7"),
        ];
        for (lines, expected) in cases {
            assert_eq!(seen("x-forwarded-for", lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn forwarded_is_read_the_same_way() {
        let cases: [(&[&str], &str); 13] = [
            // What is in quotes is no parameter and no element.
            (&["host=\"a;for=6.6.6.6\";for=203.0.113.7"], "203.0.113.7"),
            (&["host=\"a, for=6.6.6.6;x=\";for=203.0.113.7"], "203.0.113.7"),
            (&["host=\"\\\"; for=6.6.6.6\";for=203.0.113.7"], "203.0.113.7"),
            (&["for=203.0.113.7;for=6.6.6.6"], "10.0.0.1"),
            (&["for=6.6.6.6;host=\"a"], "10.0.0.1"),
            (&["for=6.6.6.6", "host=\"a, for=203.0.113.7"], "203.0.113.7"),
            // What comes before a proxy's own word changes nothing.
            (&["for=\"x, for=203.0.113.7;proto=https, for=10.0.0.2"], "203.0.113.7"),
            (&["for=\\\", for=\"203.0.113.7:80\", for=10.0.0.2"], "203.0.113.7"),
            (&["for=203.0.113.7;proto=https"], "203.0.113.7"),
            (&["for=1.1.1.1, proto=http;For=\"203.0.113.7:123\", for=10.1.1.1"], "203.0.113.7"),
            (&["for=\"[2001:db8::1]:80\""], "2001:db8::1"),
            (&["for=203.0.113.7, for=unknown"], "10.0.0.1"),
            (&["for=203.0.113.7, proto=https"], "10.0.0.1"),
        ];
        for (lines, expected) in cases {
            assert_eq!(seen("forwarded", lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_hide_nothing_behind_them() {
        let mut headers = HeaderMap::new();
        let line = b"\xc5, for=203.0.113.7, for=10.0.0.2";
        headers.insert(FORWARDED, HeaderValue::from_bytes(line).unwrap());
        let identity = identity(AddressSource::Forwarded);
        let seen = forwarded("10.0.0.1".parse().unwrap(), &headers, &identity);
        assert_eq!(seen.to_string(), "203.0.113.7");
    }

    #[test]
    fn ipv6_callers_are_one_per_prefix() {
        let cut = |ip: &str, prefix| cut(ip.parse().unwrap(), prefix).to_string();
        assert_eq!(cut("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::");
        assert_eq!(cut("2001:db8:1:2:3:4:5:6", 128), "2001:db8:1:2:3:4:5:6");
        assert_eq!(cut("192.0.2.1", 64), "192.0.2.1");
    }

    #[test]
    fn only_the_configured_header_counts() {
        let mut headers = HeaderMap::new();
        headers.insert(&X_FORWARDED_FOR, HeaderValue::from_static("203.0.113.7"));
        headers.insert(FORWARDED, HeaderValue::from_static("for=203.0.113.8"));
        headers.insert("cf-connecting-ip", HeaderValue::from_static("203.0.113.9"));
        let peer = "10.0.0.1".parse().unwrap();
        let sources = ["x-forwarded-for", "forwarded", "cf-connecting-ip", "x-real-ip"];
        let seen =
            sources.map(|name| forwarded(peer, &headers, &identity(source(name))).to_string());
        assert_eq!(seen, ["203.0.113.7", "203.0.113.8", "203.0.113.9", "10.0.0.1"]);
    }

    #[test]
    fn a_header_with_a_single_address_is_no_list() {
        assert_eq!(seen("x-real-ip", &["203.0.113.7"]), "203.0.113.7");
        assert_eq!(seen("x-real-ip", &[" 2001:db8::1 "]), "2001:db8::1");
        for bad in [&["1.1.1.1, 203.0.113.7"][..], &["1.1.1.1", "203.0.113.7"], &[""], &["x"]] {
            assert_eq!(seen("x-real-ip", bad), "10.0.0.1", "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_header_panics(line in "[ -~]{0,60}") {
            seen("x-forwarded-for", &[&line]);
            seen("forwarded", &[&line]);
        }
    }
}
