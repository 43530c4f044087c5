//! The PROXY protocol, versions 1 and 2: the first thing a balancer says on a connection, naming
//! whom it connects. Only the reading of it; who may say it is the listener's business.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// No version 1 header is longer.
const LONGEST_TEXT: usize = 107;

/// What follows the addresses of version 2 is not looked at; more than this is not taken.
const LONGEST_BINARY: usize = 4096;

/// The longest header there can be.
pub const LONGEST: usize = HEAD + LONGEST_BINARY;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const HEAD: usize = SIGNATURE.len() + 4;

/// A header that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its bytes.
    pub length: usize,
    /// The client that the balancer connects. `None` where the balancer speaks for itself or names no
    /// address of IP: the connection's own peer is the client.
    pub source: Option<SocketAddr>,
}

/// What came is no such header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection does not begin with a PROXY header")]
pub struct NoHeader;

/// Reads a header from the first bytes of a connection; `None` if all of them belong to it and more
/// must come.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, NoHeader> {
    let binary = bytes.iter().zip(&SIGNATURE).all(|(byte, expected)| byte == expected);
    if bytes.is_empty() {
        Ok(None)
    } else if binary {
        parse_binary(bytes)
    } else {
        parse_text(bytes)
    }
}

/// `PROXY TCP4 192.0.2.1 192.0.2.2 40000 443\r\n`
fn parse_text(bytes: &[u8]) -> Result<Option<Header>, NoHeader> {
    const BEGIN: &[u8] = b"PROXY ";
    if !bytes.iter().zip(BEGIN).all(|(byte, expected)| byte == expected) {
        return Err(NoHeader);
    }
    let Some(end) = bytes.iter().take(LONGEST_TEXT).position(|byte| *byte == b'\n') else {
        return if bytes.len() < LONGEST_TEXT { Ok(None) } else { Err(NoHeader) };
    };
    let line = bytes[..end].strip_suffix(b"\r").and_then(|line| line.strip_prefix(BEGIN));
    let line = line.and_then(|line| str::from_utf8(line).ok()).ok_or(NoHeader)?;
    let words: Vec<&str> = line.split(' ').collect();
    let source = match words[..] {
        ["UNKNOWN", ..] => None,
        ["TCP4", source, target, from, to] => {
            Some(ends::<Ipv4Addr>(source, target, from, to).ok_or(NoHeader)?)
        }
        ["TCP6", source, target, from, to] => {
            Some(ends::<Ipv6Addr>(source, target, from, to).ok_or(NoHeader)?)
        }
        _ => return Err(NoHeader),
    };
    Ok(Some(Header { length: end + 1, source }))
}

/// Both ends must make sense; the first is the caller.
fn ends<A>(source: &str, target: &str, from: &str, to: &str) -> Option<SocketAddr>
where
    A: std::str::FromStr + Into<IpAddr>,
{
    let port = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|_| digits)
    };
    target.parse::<A>().ok()?;
    port(to)?;
    Some(SocketAddr::new(source.parse::<A>().ok()?.into(), port(from)?))
}

fn parse_binary(bytes: &[u8]) -> Result<Option<Header>, NoHeader> {
    const LOCAL: u8 = 0x20;
    const PROXY: u8 = 0x21;
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    let [.., command, family, high, low] = *head;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if !matches!(command, LOCAL | PROXY) || length > LONGEST_BINARY {
        return Err(NoHeader);
    }
    let Some(rest) = bytes.get(HEAD..HEAD + length) else { return Ok(None) };
    let port = |at: usize| Some(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?]));
    let source = match (command, family) {
        // UNSPEC, and sockets of the UNIX family: the receiver uses the real endpoints.
        (LOCAL, _) | (_, 0x00 | 0x31 | 0x32) => None,
        (_, 0x11) => {
            let ip = rest.first_chunk::<4>().ok_or(NoHeader)?;
            Some(SocketAddr::new(Ipv4Addr::from(*ip).into(), port(8).ok_or(NoHeader)?))
        }
        (_, 0x21) => {
            let ip = rest.first_chunk::<16>().ok_or(NoHeader)?;
            Some(SocketAddr::new(Ipv6Addr::from(*ip).into(), port(32).ok_or(NoHeader)?))
        }
        _ => return Err(NoHeader),
    };
    // The other end's port comes last.
    if source.is_some_and(|source| rest.len() < if source.is_ipv4() { 12 } else { 36 }) {
        return Err(NoHeader);
    }
    Ok(Some(Header { length: HEAD + length, source }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend((rest.len() as u16).to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    fn good() -> Vec<(Vec<u8>, Option<&'static str>)> {
        let v4 = [192, 0, 2, 1, 192, 0, 2, 2, 0x9c, 0x40, 1, 187];
        let mut v6 = [0; 36];
        (v6[15], v6[31], v6[33], v6[35]) = (1, 2, 80, 81);
        let with_tlv = [&v4[..], &[0x04, 0, 1, 9]].concat();
        vec![
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 40000 443\r\n".to_vec(), Some("192.0.2.1:40000")),
            (b"PROXY TCP6 2001:db8::1 ::2 1 2\r\n".to_vec(), Some("[2001:db8::1]:1")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(), None),
            (binary(0x21, 0x11, &v4), Some("192.0.2.1:40000")),
            (binary(0x21, 0x11, &with_tlv), Some("192.0.2.1:40000")),
            (binary(0x21, 0x21, &v6), Some("[::1]:80")),
            (binary(0x20, 0x00, &[]), None),
            (binary(0x20, 0x11, &v4), None),
            (binary(0x21, 0x31, &[b'/'; 216]), None),
            (binary(0x21, 0x32, &[b'/'; 216]), None),
        ]
    }

    #[test]
    fn both_versions_name_the_caller() {
        for (bytes, source) in good() {
            let expected =
                Header { length: bytes.len(), source: source.map(|s| s.parse().unwrap()) };
            let followed = [&bytes[..], b"GET / HTTP/1.1\r\n"].concat();
            assert_eq!(parse(&followed), Ok(Some(expected)), "{}", bytes.escape_ascii());
            for length in 0..bytes.len() {
                assert_eq!(parse(&bytes[..length]), Ok(None), "{}", bytes[..length].escape_ascii());
            }
        }
    }

    #[test]
    fn nothing_else_is_taken_for_one() {
        let text: [&[u8]; 14] = [
            b"GET / HTTP/1.1\r\n",
            b"PROXY\r\n",
            b"proxy TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4  1 2\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n",
            b"\x16\x03\x01",
        ];
        for bytes in text {
            assert_eq!(parse(bytes), Err(NoHeader), "{}", bytes.escape_ascii());
        }
        let endless = [&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat();
        assert_eq!(parse(&endless), Err(NoHeader));
        for (command, family, length) in [
            (0x11, 0x11, 12),
            (0x22, 0x11, 12),
            (0x21, 0x12, 12),
            (0x21, 0x41, 216),
            (0x21, 0x11, 11),
        ] {
            let bytes = binary(command, family, &vec![0; length]);
            assert_eq!(parse(&bytes), Err(NoHeader), "{command:x} {family:x} {length}");
        }
        assert_eq!(parse(&binary(0x21, 0x11, &[0; 5000])), Err(NoHeader));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(index in 0_usize..11, at in 0_usize..60, byte: u8) {
            let (mut bytes, _) = good().swap_remove(index);
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(Some(header)) = parse(&bytes) {
                prop_assert!(header.length <= bytes.len());
            }
        }
    }
}
