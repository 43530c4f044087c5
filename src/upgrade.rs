//! Switching from HTTP to another protocol: what is asked for, and whether an answer agrees.
//!
//! Over HTTP/1.1 it is asked for by `Upgrade`, and granted by 101; over HTTP/2 by an extended
//! CONNECT (RFC 8441), and granted by 200. WebSocket is known to both, so one can be turned into the
//! other: the key that HTTP/1.1 needs is made here, and its answer is checked here.

use crate::upstream::answer::Head;
use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use h2::ext::Protocol;
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Version};

/// What a caller wants to switch to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// The protocol, as HTTP/1.1 names it.
    pub protocol: HeaderValue,
    /// The key of a WebSocket: the caller's, or ours if the caller's protocol needs none.
    pub key: Option<HeaderValue>,
}

impl Upgrade {
    /// What an HTTP/1.1 request asks for. A request that has a body is answered as HTTP: whether
    /// the other side reads the body before it switches is anybody's guess.
    pub fn asked<B: http_body::Body>(request: &Request<B>) -> Option<Box<Self>> {
        let headers = request.headers();
        let mut wanted = headers.get_all(UPGRADE).iter();
        let (Some(protocol), None) = (wanted.next(), wanted.next()) else { return None };
        let for_us = tokens(headers).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
        let plain = request.version() == Version::HTTP_11 && request.body().is_end_stream();
        (for_us && plain && is_one(protocol.as_bytes())).then(|| {
            let key = headers.get(SEC_WEBSOCKET_KEY).cloned();
            Box::new(Self { protocol: protocol.clone(), key })
        })
    }

    /// What an extended CONNECT asks for. It is a GET from here on; a CONNECT that asks for nothing
    /// that can be passed on stays what it is.
    pub fn connected<B>(request: &mut Request<B>) -> Option<Box<Self>> {
        let protocol = request.extensions_mut().remove::<Protocol>()?;
        let protocol = HeaderValue::from_str(protocol.as_str()).ok();
        let protocol = protocol.filter(|protocol| is_one(protocol.as_bytes()))?;
        let mut upgrade = Self { protocol, key: None };
        if upgrade.is_websocket() {
            let bytes: [u8; 16] = std::array::from_fn(|_| fastrand::u8(..));
            upgrade.key = HeaderValue::from_str(&BASE64_STANDARD.encode(bytes)).ok();
        }
        *request.method_mut() = Method::GET;
        Some(Box::new(upgrade))
    }

    const WEBSOCKET: &str = "websocket";

    /// Whether it is WebSocket, which both versions of HTTP know.
    pub fn is_websocket(&self) -> bool {
        self.protocol.as_bytes().eq_ignore_ascii_case(Self::WEBSOCKET.as_bytes())
    }

    /// Whether a 101 switches to what was asked for.
    pub fn agrees(&self, head: &Head) -> bool {
        let to = head.upgrade.as_ref().map(|to| to.as_bytes());
        let key_fits = |key| head.headers.get(SEC_WEBSOCKET_ACCEPT) == accept(key).as_ref();
        to.is_some_and(|to| to.eq_ignore_ascii_case(self.protocol.as_bytes()))
            && (!self.is_websocket() || self.key.as_ref().is_none_or(key_fits))
    }

    /// What the head of a 101 says beside what the backend says.
    pub fn grant(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
        if let Some(accept) = self.key.as_ref().filter(|_| self.is_websocket()).and_then(accept) {
            headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        }
    }

    /// The same over HTTP/2, where the head has nothing to say of it.
    pub fn grant_over_http2(headers: &mut HeaderMap) {
        headers.remove(SEC_WEBSOCKET_ACCEPT);
    }
}

/// Whether this names one protocol that can be passed on. HTTP cannot: its requests would pass
/// unseen.
fn is_one(protocol: &[u8]) -> bool {
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~/".contains(byte);
    let is_http = [&b"h2"[..], b"http", b"tls"].iter().any(|name| {
        protocol.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
    });
    !protocol.is_empty() && protocol.iter().all(token) && !is_http
}

/// What `Connection` names.
fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let lines = headers.get_all(CONNECTION).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// The answer to a WebSocket's key (RFC 6455, section 4.2.2).
fn accept(key: &HeaderValue) -> Option<HeaderValue> {
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key.as_bytes());
    digest.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    HeaderValue::from_str(&BASE64_STANDARD.encode(digest.finish())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{Empty, Full};

    #[test]
    fn the_answer_to_a_key_is_the_standards() {
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept(&key).unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn only_a_clear_wish_is_one() {
        let asked = |pairs: &[(&str, &str)], version| {
            let request = Request::get("/").version(version);
            let request =
                pairs.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            Upgrade::asked(&request.body(Empty::<bytes::Bytes>::new()).unwrap()).is_some()
        };
        let both = [("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
        assert!(asked(&both, Version::HTTP_11));
        assert!(asked(&[both[0], ("upgrade", "some/1.0")], Version::HTTP_11));
        assert!(!asked(&both, Version::HTTP_10));
        assert!(!asked(&both[1..], Version::HTTP_11));
        assert!(!asked(&both[..1], Version::HTTP_11));
        for protocol in ["h2c", "H2C", "HTTP/2.0", "TLS/1.0", "websocket, h2c", "a b", ""] {
            assert!(!asked(&[both[0], ("upgrade", protocol)], Version::HTTP_11), "{protocol}");
            let mut connect = Request::builder().method(Method::CONNECT).body(()).unwrap();
            connect.extensions_mut().insert(Protocol::from(protocol));
            assert_eq!(
                (Upgrade::connected(&mut connect), connect.method()),
                (None, &Method::CONNECT)
            );
        }
        assert!(!asked(&[both[0], both[1], ("upgrade", "b")], Version::HTTP_11));
        let with_body = Request::get("/").header(both[0].0, both[0].1).header(both[1].0, both[1].1);
        assert!(
            Upgrade::asked(&with_body.body(Full::new(bytes::Bytes::from("x"))).unwrap()).is_none()
        );
    }
}
