//! Asks a gateway's admin listener: plain HTTP/1.1, one request a connection.

use serde_json::Value;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// More than any answer.
const LONGEST: u64 = 64 << 20;

/// Where a gateway's admin listener is, and what opens it.
#[derive(Debug)]
pub(super) struct Admin {
    authority: String,
    token: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminError {
    #[error("'{0}' is no address of an admin listener; it looks like http://127.0.0.1:9901")]
    NoAddress(String),
    #[error("no answer from http://{0}: {1}")]
    NoAnswer(String, std::io::Error),
    #[error("http://{0} answers {1}: {2}")]
    Refused(String, u16, String),
    #[error("http://{0} does not answer as an admin listener does")]
    Nonsense(String),
}

impl Admin {
    /// `http://127.0.0.1:9901`; the token is the environment's unless it is given.
    pub(super) fn at(url: &str, token: Option<String>) -> Result<Self, AdminError> {
        let rest = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
        let plain = !rest.is_empty() && !rest.contains(['/', '@', ' ']) && !url.contains("https:");
        if !plain {
            return Err(AdminError::NoAddress(url.to_owned()));
        }
        let port = rest.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if port { rest.to_owned() } else { format!("{rest}:9901") };
        let token = token.or_else(|| std::env::var("SLUICE_ADMIN_TOKEN").ok());
        Ok(Self { authority, token })
    }

    /// `GET path`, which answers in JSON.
    pub(super) fn get(&self, path: &str) -> Result<Value, AdminError> {
        let failed = |error| AdminError::NoAnswer(self.authority.clone(), error);
        let (status, body) = self.ask(path).map_err(failed)?;
        let value: Option<Value> = serde_json::from_slice(&body).ok();
        match (status, value) {
            (200, Some(value)) => Ok(value),
            (200, None) => Err(AdminError::Nonsense(self.authority.clone())),
            (status, value) => {
                let said = value.and_then(|v| v["error"].as_str().map(str::to_owned));
                let said = said.unwrap_or_default();
                Err(AdminError::Refused(self.authority.clone(), status, said))
            }
        }
    }

    fn ask(&self, path: &str) -> std::io::Result<(u16, Vec<u8>)> {
        // A name may stand for several addresses, of which one listens.
        let mut stream = Err(std::io::Error::other("no such address"));
        for address in self.authority.to_socket_addrs()? {
            stream = TcpStream::connect_timeout(&address, PATIENCE);
            if stream.is_ok() {
                break;
            }
        }
        let mut stream = stream?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let token = self.token.as_ref();
        let token =
            token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\n{token}connection: close\r\n\r\n",
            self.authority
        );
        stream.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(LONGEST).read_to_end(&mut answer)?;
        let garbled = || std::io::Error::other("this is not HTTP");
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Response::new(&mut headers);
        match parsed.parse(&answer) {
            Ok(httparse::Status::Complete(end)) => {
                Ok((parsed.code.ok_or_else(garbled)?, answer.split_off(end)))
            }
            _ => Err(garbled()),
        }
    }
}

/// A value as it may stand in a query.
pub(super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b':' => {
                out.push(char::from(byte));
            }
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_listener_is_named_in_a_few_ways() {
        for url in
            ["http://127.0.0.1:9901", "http://127.0.0.1:9901/", "127.0.0.1", "127.0.0.1:9901"]
        {
            assert_eq!(Admin::at(url, None).unwrap().authority, "127.0.0.1:9901", "{url}");
        }
        for url in ["", "https://127.0.0.1", "http://a/b", "http://user@a"] {
            assert!(Admin::at(url, None).is_err(), "{url}");
        }
        assert_eq!(encoded("a b&c=ü"), "a%20b%26c%3D%C3%BC");
    }
}
