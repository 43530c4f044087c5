//! A backend on a real socket: records every request byte by byte, and answers what a test says.

use super::client::{fields, find};
use super::held::HeldPort;
use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// A request as the backend saw it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub head: String,
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: String,
    /// Which connection it came over, counted from zero.
    pub connection: usize,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} is there twice: {self:?}");
        value
    }
}

type Answer = dyn Fn(&Seen, &mut TcpStream) -> bool + Send + Sync;

/// A backend under a test's control; its threads end with it.
pub struct Backend {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    seen: Mutex<Vec<Seen>>,
    moments: Mutex<Vec<Instant>>,
    open: Mutex<Vec<TcpStream>>,
    connections: AtomicUsize,
    closed: AtomicUsize,
    ended: AtomicBool,
    answer: Box<Answer>,
}

/// A complete answer with a length.
pub fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

impl Backend {
    /// Says `hello` to everything.
    pub fn start() -> Self {
        Self::answering(|_| ok("hello"))
    }

    /// Answers with these bytes; no bytes at all close the connection.
    pub fn answering(answer: impl Fn(&Seen) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::with(move |seen, stream| {
            let bytes = answer(seen);
            !bytes.is_empty() && stream.write_all(&bytes).is_ok()
        })
    }

    /// Does with the socket what it likes; `false` closes it.
    pub fn with(answer: impl Fn(&Seen, &mut TcpStream) -> bool + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("a free port"), answer)
    }

    /// Says `hello` on a port that the test holds, where another one may have been before.
    pub fn at(port: &HeldPort) -> Self {
        let listen = || TcpListener::bind(port.address()).ok();
        let listener = super::eventually("the end of the one before", listen);
        Self::on(listener, |_, stream| stream.write_all(&ok("hello")).is_ok())
    }

    fn on(
        listener: TcpListener,
        answer: impl Fn(&Seen, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            moments: Mutex::default(),
            open: Mutex::default(),
            connections: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            answer: Box::new(answer),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener));
        Self { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().clone()
    }

    /// How many requests so far.
    pub fn count(&self) -> usize {
        self.shared.seen.lock().len()
    }

    /// When each of them came.
    pub fn moments(&self) -> Vec<Instant> {
        self.shared.moments.lock().clone()
    }

    /// The last request.
    pub fn last(&self) -> Seen {
        self.seen().last().expect("a request").clone()
    }

    /// How many connections were opened to it.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many connections are open now.
    pub fn open(&self) -> usize {
        self.connections() - self.shared.closed.load(Ordering::SeqCst)
    }

    /// Closes every connection that is open now.
    pub fn hang_up(&self) {
        for stream in self.shared.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address); // wakes the accepting thread
        self.hang_up();
    }
}

impl Shared {
    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            let _ = stream.set_nodelay(true);
            let number = self.connections.fetch_add(1, Ordering::SeqCst);
            if let Ok(copy) = stream.try_clone() {
                self.open.lock().push(copy);
            }
            let shared = Arc::clone(&self);
            std::thread::spawn(move || shared.serve(stream, number));
        }
    }

    fn serve(&self, mut stream: TcpStream, number: usize) {
        let mut buffer = Vec::new();
        while let Some(mut seen) = read_request(&mut stream, &mut buffer) {
            seen.connection = number;
            self.moments.lock().push(Instant::now());
            self.seen.lock().push(seen.clone());
            if !(self.answer)(&seen, &mut stream) {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let mut bytes = vec![0; 65536];
    let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
    buffer.extend_from_slice(&bytes[..count]);
    Some(())
}

fn until(stream: &mut TcpStream, buffer: &mut Vec<u8>, end: &[u8]) -> Option<Vec<u8>> {
    let at = loop {
        if let Some(at) = find(buffer, end) {
            break at + end.len();
        }
        fill(stream, buffer)?;
    };
    Some(buffer.drain(..at).collect())
}

fn exactly(stream: &mut TcpStream, buffer: &mut Vec<u8>, length: usize) -> Option<Vec<u8>> {
    while buffer.len() < length {
        fill(stream, buffer)?;
    }
    Some(buffer.drain(..length).collect())
}

fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Seen> {
    let head = until(stream, buffer, b"\r\n\r\n")?;
    let mut headers = [httparse::EMPTY_HEADER; 256];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(&head).ok()?;
    let mut seen = Seen {
        head: String::from_utf8_lossy(&head).into_owned(),
        method: parsed.method?.to_owned(),
        target: parsed.path?.to_owned(),
        headers: fields(parsed.headers),
        ..Seen::default()
    };
    if seen.header("transfer-encoding").is_some() {
        loop {
            let line = until(stream, buffer, b"\r\n")?;
            let text = String::from_utf8_lossy(&line);
            let size = usize::from_str_radix(text.trim().split(';').next()?, 16).ok()?;
            if size == 0 {
                break;
            }
            seen.body.extend(exactly(stream, buffer, size)?);
            exactly(stream, buffer, 2)?;
        }
        loop {
            let line = until(stream, buffer, b"\r\n")?;
            if line == b"\r\n" {
                break;
            }
            seen.trailers.push_str(&String::from_utf8_lossy(&line));
        }
    } else if let Some(length) = seen.header("content-length") {
        seen.body = exactly(stream, buffer, length.parse().ok()?)?;
    }
    Some(seen)
}
