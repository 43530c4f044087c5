//! Callers who ask whether or not anybody answers, and give up after a second.

use crate::machine::{Failure, now};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

/// How long an answer is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Requests of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    /// Requests a second.
    pub(crate) rate: f64,
    pub(crate) path: &'static str,
    /// The address they are said to come from.
    pub(crate) ip: String,
    /// At even distances rather than at random.
    pub(crate) even: bool,
}

impl Traffic {
    pub(crate) fn new(path: &'static str, rate: f64) -> Self {
        Self { rate, path, ip: "10.0.0.1".to_owned(), even: false }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Which traffic it belongs to.
    pub(crate) traffic: usize,
    /// When it was sent, from the beginning.
    pub(crate) at: Duration,
    pub(crate) took: Duration,
    /// Nothing if the caller gave up, or the connection broke.
    pub(crate) status: Option<u16>,
}

struct Callers {
    address: SocketAddr,
    began: Instant,
    /// Connections that are open and idle.
    idle: RefCell<Vec<TcpStream>>,
    asked: RefCell<Vec<Asked>>,
}

/// Asks for so long. `each` is called every so often, with the time that has passed.
pub(crate) fn ask(
    address: SocketAddr,
    traffic: &[Traffic],
    lasts: Duration,
    mut each: impl FnMut(Duration),
) -> Result<Vec<Asked>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())?;
    let callers = Rc::new(Callers {
        address,
        began: now(),
        idle: RefCell::default(),
        asked: RefCell::default(),
    });
    runtime.block_on(async {
        for (index, traffic) in traffic.iter().enumerate() {
            spawn_local(Rc::clone(&callers).come(index, traffic.clone(), lasts));
        }
        while callers.began.elapsed() < lasts {
            each(callers.began.elapsed());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(PATIENCE + Duration::from_millis(100)).await;
    });
    Ok(std::mem::take(&mut *callers.asked.borrow_mut()))
}

impl Callers {
    async fn come(self: Rc<Self>, index: usize, traffic: Traffic, lasts: Duration) {
        let head = format!(
            "GET {} HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {}\r\n\r\n",
            traffic.path, traffic.ip
        );
        let head: Rc<[u8]> = head.into_bytes().into();
        // Those who come at even distances do not all come at once.
        let mut next = Duration::from_secs_f64(fastrand::f64() / traffic.rate);
        while next < lasts {
            // What is late is caught up with: a timer has a millisecond's grain.
            if let Some(wait) = next.checked_sub(self.began.elapsed()) {
                tokio::time::sleep(wait).await;
            }
            spawn_local(Rc::clone(&self).one(index, Rc::clone(&head)));
            let pause = if traffic.even { 1.0 } else { -fastrand::f64().max(1e-9).ln() };
            next += Duration::from_secs_f64(pause / traffic.rate);
        }
    }

    async fn one(self: Rc<Self>, traffic: usize, head: Rc<[u8]>) {
        let at = self.began.elapsed();
        let status = tokio::time::timeout(PATIENCE, self.exchange(&head)).await.ok().flatten();
        let took = self.began.elapsed().saturating_sub(at);
        self.asked.borrow_mut().push(Asked { traffic, at, took, status });
    }

    async fn exchange(&self, head: &[u8]) -> Option<u16> {
        let idle = self.idle.borrow_mut().pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.address).await.ok()?;
                stream.set_nodelay(true).ok()?;
                stream
            }
        };
        stream.write_all(head).await.ok()?;
        let mut bytes = Vec::with_capacity(1024);
        let (status, length) = loop {
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
            if let Some(found) = parse(&bytes) {
                break found;
            }
        };
        while bytes.len() < length {
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
        }
        self.idle.borrow_mut().push(stream);
        Some(status)
    }
}

/// The status, and how long the whole answer is, once its head is there.
fn parse(bytes: &[u8]) -> Option<(u16, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = str::from_utf8(&bytes[..end]).ok()?;
    let status = head.get(9..12)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    Some((status, end + length.parse::<usize>().ok()?))
}
