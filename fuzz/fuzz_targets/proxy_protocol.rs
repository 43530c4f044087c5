//! The PROXY protocol: one header, wherever the bytes are cut.
//!
//! Input: the first bytes of a connection.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::proxy_protocol::{Header, LONGEST, NoHeader, parse};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes);
    check(bytes, whole);
    // Byte by byte: more must come until it is decided, and no byte changes the decision.
    let mut decided = None;
    for length in 0..=bytes.len() {
        let now = parse(&bytes[..length]);
        match decided {
            Some(before) => assert_eq!(now, before, "{length} bytes change what fewer said"),
            None if now != Ok(None) => decided = Some(now),
            None => assert!(length < LONGEST, "{length} bytes, and no decision"),
        }
        if let Ok(Some(header)) = now {
            assert!(header.length <= length, "it takes what has not come");
            assert!(decided.is_none() || header.length <= bytes.len());
        }
    }
    assert_eq!(decided.unwrap_or(Ok(None)), whole);
    if let Ok(Some(header)) = whole {
        assert_eq!(parse(&bytes[..header.length]), whole, "the header alone is another");
        for length in 0..header.length {
            assert_eq!(parse(&bytes[..length]), Ok(None), "{length} bytes of it are another");
        }
        assert_eq!(parse(&rewritten(header)).map(|h| h.map(|h| h.source)), Ok(Some(header.source)));
    }
});

/// What is accepted looks like a header.
fn check(bytes: &[u8], result: Result<Option<Header>, NoHeader>) {
    let Ok(Some(Header { length, source })) = result else { return };
    assert!(length <= bytes.len() && length <= LONGEST);
    let header = &bytes[..length];
    if let Some(rest) = header.strip_prefix(SIGNATURE) {
        assert_eq!(length, 16 + usize::from(u16::from_be_bytes([rest[2], rest[3]])));
        assert!(matches!(rest[0], 0x20 | 0x21));
        assert_eq!(source.is_some(), rest[0] == 0x21 && matches!(rest[1], 0x11 | 0x21));
        return;
    }
    assert!(header.starts_with(b"PROXY ") && header.ends_with(b"\r\n") && length <= 107);
    assert_eq!(header.iter().filter(|byte| **byte == b'\n').count(), 1);
    let words: Vec<&[u8]> = header[..length - 2].split(|byte| *byte == b' ').collect();
    assert_eq!(source.is_none(), words[1] == b"UNKNOWN");
    if let Some(source) = source {
        assert_eq!(words.len(), 6);
        assert_eq!(words[1], if source.is_ipv4() { b"TCP4" } else { b"TCP6" });
        assert_eq!(str::from_utf8(words[2]).ok().and_then(|ip| ip.parse().ok()), Some(source.ip()));
        assert_eq!(words[4].trim_ascii_start(), words[4]);
    }
}

/// A header of the other version that says the same.
fn rewritten(header: Header) -> Vec<u8> {
    match header.source {
        None => [SIGNATURE, &[0x20, 0, 0, 0]].concat(),
        Some(source) => {
            let (ip, port) = (source.ip(), source.port());
            let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
            format!("PROXY {family} {ip} {ip} {port} 1\r\n").into_bytes()
        }
    }
}
