//! What attempts are made of: both stores, backends that wait for a word, clients that leave.

use crate::common::http2::Client;
use crate::common::operator::Operator;
use crate::common::redis::Redis;
use crate::common::{Connection, Gateway, eventually};
use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::Request;
use parking_lot::{Condvar, Mutex};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Makes the attempt on a gateway that counts in memory, and on one that counts in Redis. The attempt gets
/// the `store:` line of the file.
pub fn on_every_store(attempt: impl Fn(&str)) {
    attempt("store: memory");
    let redis = Redis::start();
    attempt(&format!("store: {{ redis: {{ url: '{}', timeout: 5s }} }}", redis.url()));
}

/// A gateway with one route, to one upstream.
pub struct Setup<'a> {
    pub store: &'a str,
    pub backend: SocketAddr,
    /// More fields of the upstream.
    pub upstream: &'a str,
    pub limits: &'a str,
    /// More of the file.
    pub more: &'a str,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        let backend = SocketAddr::from(([127, 0, 0, 1], 1));
        Self { store: "store: memory", backend, upstream: "", limits: "[]", more: "" }
    }
}

impl Setup<'_> {
    pub fn yaml(&self) -> String {
        let Self { store, backend, upstream, limits, more } = self;
        format!(
            "admin: 127.0.0.1:0\n{store}\n{more}\nheaders: {{ retry_jitter: 0% }}\n\
             identity: {{ trusted_proxies: [127.0.0.1] }}\n\
             upstreams: {{ app: {{ endpoints: ['http://{backend}'], {upstream} }} }}\n\
             routes: [{{ path: /, name: all-paths, upstream: app, limits: {limits} }}]\n"
        )
    }

    /// Its limits go by a clock that the test moves.
    pub fn start(&self) -> Gateway {
        Gateway::start(&self.yaml())
    }
}

/// A limit of 1,000,000 tokens an hour for each address, with this cost.
pub fn tokens(cost: &str) -> String {
    format!("[{{ name: tokens, by: ip, rate: 1000000/hour, cost: {cost} }}]")
}

/// What 127.0.0.1 has used of a limit.
pub fn used(gateway: &Gateway, limit: &str) -> u64 {
    used_by(gateway, "ip:127.0.0.1", limit)
}

pub fn used_by(gateway: &Gateway, caller: &str, limit: &str) -> u64 {
    Operator::of(gateway).limit(caller, limit)["used"].as_u64().expect("a number")
}

/// Waits until so much is used, and nothing is under way.
pub fn settles_at(gateway: &Gateway, limit: &str, expected: u64) {
    quiet(gateway);
    let last = Mutex::new(0);
    let reached = || {
        *last.lock() = used(gateway, limit);
        (*last.lock() == expected).then_some(())
    };
    let began = std::time::Instant::now();
    while reached().is_none() {
        let limit = Duration::from_secs(60);
        assert!(began.elapsed() < limit, "{} are used, and not {expected}", last.lock());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until no request is under way, with or without its client.
pub fn quiet(gateway: &Gateway) {
    eventually("nothing is under way", || (metric(gateway, IN_FLIGHT) == 0).then_some(()));
}

pub const IN_FLIGHT: &str = "sluice_requests_in_flight";
pub const FINISHED: &str = "sluice_clients_left_total{outcome=\"finished\"}";
pub const CANCELLED: &str = "sluice_clients_left_total{outcome=\"cancelled\"}";

/// A number from the metrics page; zero if it is not there.
pub fn metric(gateway: &Gateway, name: &str) -> u64 {
    let page = Connection::to_operator(gateway.admin()).get("/metrics");
    let line = page.text().lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map_or(0, |value| value.trim().parse().expect("a number"))
}

/// Waits until a number of the metrics page is this.
pub fn reaches(gateway: &Gateway, name: &str, expected: u64) {
    eventually(&format!("{name} {expected}"), || (metric(gateway, name) == expected).then_some(()));
}

/// Something that has happened, or has not yet.
#[derive(Clone, Default)]
pub struct Event(Arc<(Mutex<bool>, Condvar)>);

impl Event {
    pub fn happen(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }

    /// Waits for it, for a minute at most.
    pub fn wait(&self) {
        let mut happened = self.0.0.lock();
        while !*happened {
            let late = self.0.1.wait_for(&mut happened, Duration::from_secs(60)).timed_out();
            assert!(!late, "it never happened");
        }
    }
}

/// Closes a connection so that the other side is told it broke.
pub fn reset(connection: Connection) {
    let linger = socket2::SockRef::from(&connection.stream).set_linger(Some(Duration::ZERO));
    linger.expect("a socket");
    drop(connection);
}

/// A request of a client in HTTP/2 that is under way.
pub struct Stream {
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    send: SendStream<Bytes>,
}

/// Begins a request. `end`: it has no body.
pub fn begin(client: &mut Client, request: Request<()>, end: bool) -> Stream {
    let send = client.send.clone();
    let (response, send) = client.runtime.block_on(async {
        let mut send = send.ready().await.expect("a connection");
        let begun = send.send_request(request, end).expect("a stream");
        // What was written has to be sent.
        tokio::task::yield_now().await;
        begun
    });
    Stream { response: Some(response), body: None, send }
}

impl Stream {
    /// The status of the answer.
    pub fn head(&mut self, client: &Client) -> u16 {
        let response = self.response.take().expect("it was not read yet");
        let head = client.runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(20), response).await.expect("in time")
        });
        let (head, body) = head.expect("an answer").into_parts();
        self.body = Some(body);
        head.status.as_u16()
    }

    /// Reads so many bytes of the body, and gives no room for more.
    pub fn read(&mut self, client: &Client, bytes: usize) -> Vec<u8> {
        let body = self.body.as_mut().expect("the head was read");
        client.runtime.block_on(async {
            let mut read = Vec::new();
            while read.len() < bytes {
                let next = tokio::time::timeout(Duration::from_secs(20), body.data());
                match next.await.expect("in time") {
                    Some(data) => read.extend_from_slice(&data.expect("a piece")),
                    None => break,
                }
            }
            read
        })
    }

    /// Reads up to so many bytes of an answer, giving room for more, for so long. Says whether that was all;
    /// nothing if it was refused.
    pub fn try_read(&mut self, client: &Client, bytes: usize, limit: Duration) -> Option<bool> {
        let response = self.response.take()?;
        let reading = async {
            let (head, mut body) = response.await.ok()?.into_parts();
            let mut read = 0;
            while read < bytes && head.status == 200 {
                match body.data().await {
                    Some(data) => {
                        let length = data.ok()?.len();
                        let _ = body.flow_control().release_capacity(length);
                        read += length;
                    }
                    None => return Some(true),
                }
            }
            self.body = Some(body);
            (head.status == 200).then_some(false)
        };
        client.runtime.block_on(async { tokio::time::timeout(limit, reading).await.ok() })?
    }

    /// Gives room for as many bytes as were read.
    pub fn release(&mut self, bytes: usize) {
        let body = self.body.as_mut().expect("the head was read");
        let _ = body.flow_control().release_capacity(bytes);
    }

    /// Resets the stream.
    pub fn reset(mut self, client: &Client) {
        self.send.send_reset(Reason::CANCEL);
        drop(self);
        flush(client);
    }
}

/// Lets the connection of a client in HTTP/2 send what it has to send.
pub fn flush(client: &Client) {
    client.runtime.block_on(async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    });
}
