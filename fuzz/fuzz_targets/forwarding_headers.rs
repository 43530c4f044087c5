//! The caller's address: who is believed, and who is not.
//!
//! Input: a line with numbers (which peer, which networks are trusted, how headers are made of the
//! rest, and which header counts), then lines `X-Forwarded-For` and, behind a `|`, `Forwarded`.

#![no_main]

use config::model::{AddressSource, Identity};
use http::header::FORWARDED;
use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;
use libfuzzer_sys::fuzz_target;
use proxy::address::{Origin, is_in};
use sluice_fuzz::line;
use std::net::IpAddr;

/// The types that it is configured by.
mod config {
    pub(crate) use sluice::config::model;
}

/// The code under test among as little as it looks at of what stands around it: it needs a worker
/// and a connection otherwise.
#[path = "."]
mod proxy {
    #[path = "../../src/proxy/address.rs"]
    #[allow(dead_code)]
    pub(crate) mod address;
    #[path = "../../src/proxy/present.rs"]
    #[allow(dead_code)]
    mod present;

    mod exchange {
        use super::present::Present;
        use crate::config::model::Identity;
        use std::net::IpAddr;

        pub(crate) struct Exchange {
            pub(crate) peer: Peer,
            pub(crate) present: Present,
            pub(crate) snapshot: Snapshot,
        }

        pub(crate) struct Peer {
            pub(crate) ip: IpAddr,
        }

        pub(crate) struct Snapshot {
            pub(crate) identity: Identity,
        }

        impl Exchange {
            pub(super) fn snapshot(&self) -> &Snapshot {
                &self.snapshot
            }
        }

        impl Peer {
            pub(super) fn is_trusted(&self, snapshot: &Snapshot) -> bool {
                super::address::is_in(&snapshot.identity.trusted_proxies, self.ip)
            }
        }
    }

    /// The caller of a request with these headers.
    pub(crate) fn origin(
        peer: std::net::IpAddr,
        headers: &http::HeaderMap,
        identity: &crate::config::model::Identity,
    ) -> address::Origin {
        let exchange = exchange::Exchange {
            peer: exchange::Peer { ip: peer },
            present: present::Present::of(headers),
            snapshot: exchange::Snapshot { identity: identity.clone() },
        };
        address::origin(&exchange, headers)
    }
}

const PEERS: [&str; 6] =
    ["10.0.0.1", "192.0.2.1", "fd00::1", "2001:db8::1", "127.0.0.1", "0.0.0.0"];
const NETWORKS: [&str; 5] = ["10.0.0.0/8", "fd00::/8", "127.0.0.1/32", "192.0.2.0/24", "::/0"];
/// In none of the networks but the last.
const STRANGER: &str = "198.51.100.7";

/// A quote without an end, or a byte beyond ASCII, in what a stranger says makes the rest of the line
/// unreadable, and the peer the caller. To be set to `false` when it does not.
const LINE_UNREADABLE: bool = false;

fuzz_target!(|data: &[u8]| {
    let (how, rest) = line(data);
    let &[peer, networks, prefix, chain, ..] = how else { return };
    let peer: IpAddr = PEERS[usize::from(peer) % PEERS.len()].parse().expect("an address");
    let chosen = NETWORKS.iter().enumerate().filter(|(index, _)| networks >> index & 1 == 1);
    let trusted: Vec<IpNet> = chosen.map(|(_, net)| net.parse().expect("a network")).collect();
    let prefix = 16 + prefix % 113;
    let Some(headers) = headers(rest) else { return };
    let identity = |client_ip: AddressSource| Identity {
        trusted_proxies: trusted.clone(),
        ipv6_prefix: prefix,
        client_ip,
        ..Identity::default()
    };
    let source = |name: &str| match name {
        "forwarded" => AddressSource::Forwarded,
        _ => AddressSource::XForwardedFor,
    };
    let seen_in = |name: &str, headers: &HeaderMap| -> Origin {
        let origin = proxy::origin(peer, headers, &identity(source(name)));
        assert_eq!(origin.ip, origin.ip.to_canonical());
        let cut = match origin.ip {
            IpAddr::V4(_) => origin.ip,
            ip => IpNet::new(ip, prefix).expect("a prefix").trunc().addr(),
        };
        assert_eq!(origin.counted, cut);
        origin
    };

    for name in ["x-forwarded-for", "forwarded"] {
        let ip = seen_in(name, &headers).ip;
        if !headers.contains_key(name) || !is_in(&trusted, peer) {
            assert_eq!(ip, peer, "a peer that is not trusted, or another header, was believed");
        }
        // Only the peer, or an address that the header names.
        if ip != peer {
            let lines = headers.get_all(name).iter();
            let all: Vec<u8> = lines.flat_map(|v| [v.as_bytes(), b","].concat()).collect();
            assert!(names(&all, ip), "no {name} names {ip}");
        }
    }
    if !is_in(&trusted, peer) {
        return;
    }

    // What a stranger says of somebody else before a trusted proxy names the stranger is nothing.
    let stranger: IpAddr = STRANGER.parse().expect("an address");
    if is_in(&trusted, stranger) {
        return;
    }
    let hops = usize::from(chain % 4);
    let hop = |how: &str| {
        let hops = (0..hops).map(|_| format!(", {how}{}", quoted(peer, !how.is_empty())));
        hops.collect::<String>()
    };
    let said = [
        ("x-forwarded-for", format!("{STRANGER}{}", hop(""))),
        ("forwarded", format!("for={STRANGER};proto=https{}", hop("for="))),
    ];
    for (name, proof) in said {
        let mut alone = HeaderMap::new();
        alone.append(name, HeaderValue::from_str(&proof).expect("a value"));
        let seen = |headers: &HeaderMap| seen_in(name, headers);
        assert_eq!(seen(&alone).ip, stranger, "{proof}");
        for before in headers.get_all(name) {
            let mut one_line = HeaderMap::new();
            let text = [before.as_bytes(), b", ", proof.as_bytes()].concat();
            one_line.append(name, HeaderValue::from_bytes(&text).expect("a value"));
            let unreadable = |byte: &u8| *byte == b'"' || !byte.is_ascii();
            let tolerated = LINE_UNREADABLE && before.as_bytes().iter().any(unreadable);
            let ip = seen(&one_line).ip;
            assert!(ip == stranger || tolerated && ip == peer, "{ip} for {one_line:?}");
            let mut two_lines = HeaderMap::new();
            two_lines.append(name, before.clone());
            two_lines.append(name, HeaderValue::from_str(&proof).expect("a value"));
            assert_eq!(seen(&two_lines).ip, stranger, "{two_lines:?}");
        }
    }
    // A trusted proxy that passes on what it was told, properly quoted, is not taken to say it.
    for told in headers.get_all("x-told") {
        let quoted = escaped(told.as_bytes());
        for element in [
            format!("for={STRANGER};host=\"{quoted}\""),
            format!("host=\"{quoted}\";for={STRANGER}"),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(FORWARDED, HeaderValue::from_str(&element).expect("a value"));
            assert_eq!(seen_in("forwarded", &headers).ip, stranger, "{element}");
        }
    }
});

/// Lines, those behind a `|` as `Forwarded`, behind a `>` as what a proxy was told by the caller.
fn headers(text: &[u8]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for line in text.split(|byte| *byte == b'\n').take(8) {
        let (name, value) = match line {
            [b'|', value @ ..] => ("forwarded", value),
            [b'>', value @ ..] => ("x-told", value),
            value => ("x-forwarded-for", value),
        };
        headers.append(name, HeaderValue::from_bytes(value).ok()?);
    }
    Some(headers)
}

/// Whether an address stands somewhere in a text.
fn names(text: &[u8], ip: IpAddr) -> bool {
    let mut words = text.split(|byte| !byte.is_ascii_hexdigit() && !b".:%".contains(byte));
    words.any(|word| {
        let text = String::from_utf8_lossy(word);
        let mut ends = (0..=text.len()).rev().filter_map(|end| text.get(..end));
        ends.any(|text| text.parse::<IpAddr>().is_ok_and(|found| found.to_canonical() == ip))
    })
}

fn quoted(ip: IpAddr, quotes: bool) -> String {
    match ip {
        IpAddr::V6(ip) if quotes => format!("\"[{ip}]\""),
        ip => ip.to_string(),
    }
}

/// A quoted string's inside.
fn escaped(text: &[u8]) -> String {
    let text: String =
        text.iter().filter(|b| (b' '..0x7f).contains(*b)).map(|b| char::from(*b)).collect();
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
