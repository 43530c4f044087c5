//! A client that hides nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer, as it came.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl Reply {
    /// A header's value; the test fails if there are several.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} is there twice: {self:?}");
        value
    }

    /// A header's value as a number.
    pub fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().expect("a number")
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

/// Names and values.
pub type Fields = Vec<(String, String)>;

/// One connection.
pub struct Connection<S = TcpStream> {
    pub stream: S,
    buffer: Vec<u8>,
    /// What the other side is called, unless a request says so itself.
    host: &'static str,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Self {
        Self::over(socket(address))
    }

    /// To an admin listener, which wants to be called by its address.
    pub fn to_operator(address: SocketAddr) -> Self {
        Self { host: "127.0.0.1", ..Self::open(address) }
    }
}

/// A socket that is connected, and does not wait for ever.
pub fn socket(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the gateway listens");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    stream
}

impl<S: Read + Write> Connection<S> {
    pub fn over(stream: S) -> Self {
        Self { stream, buffer: Vec::new(), host: "example.test" }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        // A gateway that refuses early may close before all is written.
        let _ = self.stream.write_all(bytes);
    }

    /// An answer, if one comes.
    pub fn try_get(&mut self, path: &str) -> Option<Reply> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.host);
        self.stream.write_all(request.as_bytes()).ok()?;
        self.try_reply("GET")
    }

    pub fn get(&mut self, path: &str) -> Reply {
        self.send("GET", path, &[], b"")
    }

    pub fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("host: {}\r\n", self.host));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        self.write(head.as_bytes());
        self.write(body);
        self.read_reply(method)
    }

    /// Reads one answer; `method` decides whether a HEAD's length is believed.
    pub fn read_reply(&mut self, method: &str) -> Reply {
        self.try_reply(method).expect("an answer")
    }

    /// `None`: the connection ended first, or its body was cut short.
    pub fn try_reply(&mut self, method: &str) -> Option<Reply> {
        let mut reply = self.head()?;
        if method == "HEAD" || reply.status == 204 || reply.status == 304 || reply.status < 200 {
            return Some(reply);
        }
        if reply.header("transfer-encoding") == Some("chunked") {
            (reply.body, reply.trailers) = self.chunked()?;
        } else if let Some(length) = reply.header("content-length") {
            let length = length.parse().expect("a length");
            reply.body = self.exactly(length)?;
        } else {
            while self.fill() {}
            reply.body = std::mem::take(&mut self.buffer);
        }
        Some(reply)
    }

    pub fn head(&mut self) -> Option<Reply> {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end + 4;
            }
            if !self.fill() {
                return None;
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end).collect();
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut parsed = httparse::Response::new(&mut headers);
        parsed.parse(&head).expect("a valid answer");
        Some(Reply {
            status: parsed.code.expect("a status"),
            headers: fields(parsed.headers),
            ..Reply::default()
        })
    }

    fn chunked(&mut self) -> Option<(Vec<u8>, Fields)> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let size = line.split(';').next().expect("a size").trim();
            let size = usize::from_str_radix(size, 16).expect("a size");
            if size == 0 {
                break;
            }
            body.extend(self.exactly(size)?);
            assert_eq!(self.line()?, "");
        }
        let mut trailers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else {
                return Some((body, trailers));
            };
            trailers.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    fn line(&mut self) -> Option<String> {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                break end;
            }
            if !self.fill() {
                return None;
            }
        };
        let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
        Some(String::from_utf8(line[..end].to_vec()).expect("text"))
    }

    pub fn exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < length {
            if !self.fill() {
                return None;
            }
        }
        Some(self.buffer.drain(..length).collect())
    }

    fn fill(&mut self) -> bool {
        let mut bytes = [0; 16384];
        match self.stream.read(&mut bytes) {
            Ok(0) | Err(_) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                true
            }
        }
    }

    /// How many bytes have been read but not yet asked for.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Whether the other side has ended the connection, waiting for it if need be.
    pub fn is_closed(&mut self) -> bool {
        !self.fill()
    }
}

pub fn fields(headers: &[httparse::Header<'_>]) -> Fields {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    headers.iter().map(|h| (h.name.to_ascii_lowercase(), text(h.value))).collect()
}

pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
