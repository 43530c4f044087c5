//! HTTP/2 on both sides of a gateway: a caller, and a backend that records what it sees.

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;

/// A caller with one connection.
pub struct Client {
    pub runtime: Runtime,
    pub send: SendRequest<Bytes>,
}

/// An answer, whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: HeaderMap,
    /// The head was all there was: `END_STREAM` came with it.
    pub head_only: bool,
    /// Statuses and fields that came before.
    pub interim: Vec<(u16, HeaderMap)>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// A `GET` of a path at a host.
pub fn get(path: &str) -> Request<()> {
    Request::get(format!("http://a.test{path}")).body(()).unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

impl Client {
    pub fn open(address: SocketAddr) -> Self {
        Self::with(address, &h2::client::Builder::new())
    }

    pub fn with(address: SocketAddr, builder: &h2::client::Builder) -> Self {
        let runtime = runtime();
        let send = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let (send, connection) = builder.handshake(stream).await.unwrap();
            tokio::spawn(async move {
                let _ = connection.await;
            });
            send
        });
        Self { runtime, send }
    }

    /// Sends a request without a body.
    pub fn ask(&mut self, request: Request<()>) -> Answer {
        self.ask_with(request, None, None)
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.ask(get(path))
    }

    pub fn ask_with(
        &mut self,
        request: Request<()>,
        body: Option<&[u8]>,
        trailers: Option<HeaderMap>,
    ) -> Answer {
        self.try_ask(request, body, trailers).expect("an answer")
    }

    pub fn try_ask(
        &mut self,
        request: Request<()>,
        body: Option<&[u8]>,
        trailers: Option<HeaderMap>,
    ) -> Result<Answer, h2::Error> {
        let send = self.send.clone();
        let asking = async {
            let mut send = send.ready().await?;
            let end = body.is_none() && trailers.is_none();
            let (response, mut stream) = send.send_request(request, end)?;
            let sending = async {
                if let Some(body) = body {
                    push(&mut stream, body, trailers.is_none()).await;
                }
                if let Some(trailers) = trailers {
                    let _ = stream.send_trailers(trailers);
                }
            };
            let (answer, ()) = tokio::join!(whole(response), sending);
            answer
        };
        let limit = Duration::from_secs(20);
        self.runtime.block_on(async { tokio::time::timeout(limit, asking).await }).expect("in time")
    }
}

/// Sends bytes as the other side takes them; says whether it took all.
pub async fn push(stream: &mut SendStream<Bytes>, bytes: &[u8], end: bool) -> bool {
    let mut left = Bytes::copy_from_slice(bytes);
    while !left.is_empty() {
        stream.reserve_capacity(left.len());
        match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(Ok(count)) => {
                let piece = left.split_to(count.min(left.len()));
                let last = end && left.is_empty();
                if stream.send_data(piece, last).is_err() {
                    return false;
                }
            }
            _ => return false,
        }
    }
    !bytes.is_empty() || !end || stream.send_data(Bytes::new(), true).is_ok()
}

async fn whole(mut response: h2::client::ResponseFuture) -> Result<Answer, h2::Error> {
    let mut interim = Vec::new();
    let response = std::future::poll_fn(|cx| {
        use std::task::Poll;
        while let Poll::Ready(Some(Ok(head))) = response.poll_informational(cx) {
            interim.push((head.status().as_u16(), head.headers().clone()));
        }
        std::pin::Pin::new(&mut response).poll(cx)
    })
    .await?;
    let (head, mut body) = response.into_parts();
    let head_only = body.is_end_stream();
    let (bytes, trailers) = drain(&mut body).await?;
    Ok(Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        body: bytes,
        trailers,
        head_only,
        interim,
    })
}

async fn drain(body: &mut RecvStream) -> Result<(Vec<u8>, HeaderMap), h2::Error> {
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, body.trailers().await?.unwrap_or_default()))
}

/// A request as a backend saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    pub uri: http::Uri,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: HeaderMap,
}

/// A backend that speaks HTTP/2 by prior knowledge; its thread ends with it.
pub struct Backend {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
    begun: AtomicUsize,
    cancelled: AtomicUsize,
    refuse: AtomicUsize,
    goodbye: AtomicUsize,
}

impl Backend {
    /// Says back what it hears, with a trailer. `/hang` is never answered; `/early` is hinted at
    /// before; a CONNECT becomes an echo.
    pub fn start() -> Self {
        Self::with_streams(100)
    }

    /// Takes so many streams of one connection at once.
    pub fn with_streams(streams: u32) -> Self {
        let shared = Arc::new(Shared::default());
        let (stop, on_stop) = tokio::sync::oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            runtime().block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    () = serving.accept(listener, streams) => {}
                    _ = on_stop => {}
                }
            });
        });
        Self { address: told.recv().unwrap(), shared, stop: Some(stop) }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().clone()
    }

    pub fn last(&self) -> Seen {
        self.seen().last().expect("a request").clone()
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many requests it has the head of, and did not refuse.
    pub fn begun(&self) -> usize {
        self.shared.begun.load(Ordering::SeqCst)
    }

    /// How many requests were given up by whoever sent them.
    pub fn cancelled(&self) -> usize {
        self.shared.cancelled.load(Ordering::SeqCst)
    }

    /// Refuses so many streams from now on, unseen.
    pub fn refuse(&self, count: usize) {
        self.shared.refuse.store(count, Ordering::SeqCst);
    }

    /// Every connection ends after its next request.
    pub fn say_goodbye(&self) {
        self.shared.goodbye.store(1, Ordering::SeqCst);
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }
}

impl Shared {
    async fn accept(self: Arc<Self>, listener: tokio::net::TcpListener, streams: u32) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            self.connections.fetch_add(1, Ordering::SeqCst);
            let shared = Arc::clone(&self);
            tokio::spawn(async move {
                let mut builder = h2::server::Builder::new();
                builder.max_concurrent_streams(streams).enable_connect_protocol();
                let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
                    return;
                };
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    if shared.refuse.load(Ordering::SeqCst) > 0 {
                        shared.refuse.fetch_sub(1, Ordering::SeqCst);
                        respond.send_reset(h2::Reason::REFUSED_STREAM);
                        continue;
                    }
                    shared.begun.fetch_add(1, Ordering::SeqCst);
                    if shared.goodbye.swap(0, Ordering::SeqCst) > 0 {
                        connection.graceful_shutdown();
                    }
                    tokio::spawn(Arc::clone(&shared).answer(request, respond));
                }
            });
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) {
        let (head, mut body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let seen = |body: Vec<u8>, trailers| Seen {
            method: head.method.clone(),
            uri: head.uri.clone(),
            headers: head.headers.clone(),
            body,
            trailers,
        };
        if head.method == Method::CONNECT {
            self.seen.lock().push(seen(Vec::new(), HeaderMap::new()));
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            while let Some(Ok(data)) = body.data().await {
                body.flow_control().release_capacity(data.len()).unwrap();
                if !push(&mut send, &data, false).await {
                    break;
                }
            }
            let _ = send.send_data(Bytes::new(), true);
            return;
        }
        if path == "/hang" {
            self.seen.lock().push(seen(Vec::new(), HeaderMap::new()));
            let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
            self.cancelled.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let Ok((bytes, trailers)) = drain(&mut body).await else {
            self.cancelled.fetch_add(1, Ordering::SeqCst);
            return;
        };
        self.seen.lock().push(seen(bytes.clone(), trailers));
        if path == "/early" {
            let mut early = Response::builder().status(StatusCode::EARLY_HINTS);
            early.headers_mut().unwrap().insert("link", "</a>".parse().unwrap());
            respond.send_informational(early.body(()).unwrap()).unwrap();
        }
        if path == "/length" {
            let head = Response::builder().header("content-length", "5").body(()).unwrap();
            let mut send = respond.send_response(head, false).unwrap();
            push(&mut send, b"hello", false).await;
            // The end comes by itself, and late.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let _ = send.send_data(Bytes::new(), true);
            return;
        }
        let mut send = respond.send_response(Response::new(()), false).unwrap();
        let echoed = if bytes.is_empty() { b"hello".to_vec() } else { bytes };
        if push(&mut send, &echoed, false).await {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-after", "it".parse().unwrap());
            let _ = send.send_trailers(trailers);
        }
    }
}
