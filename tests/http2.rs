//! HTTP/2 with callers and with backends: the same requests, the same limits, in its own terms.

use crate::common::http2::{Backend as Http2Backend, Client, get, push};
use crate::common::{Backend, Gateway, HeldPort, eventually, limited, open};
use bytes::Bytes;
use h2::ext::Protocol;
use http::{HeaderMap, Method, Request};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A gateway in front of a backend that speaks HTTP/2.
fn fronting(backend: &Http2Backend) -> Gateway {
    Gateway::start(&to_http2(backend, "[]"))
}

fn to_http2(backend: &Http2Backend, limits: &str) -> String {
    format!(
        "headers: {{ retry_jitter: 0% }}\nupstreams: {{ app: {{ endpoints: ['http://{}'], http2: true }} }}\nroutes: [{{ path: /, upstream: app, limits: {limits} }}]\n",
        backend.address
    )
}

fn trailers(name: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(name, "after".parse().unwrap());
    trailers
}

fn post(path: &str) -> Request<()> {
    Request::post(format!("http://a.test{path}")).body(()).unwrap()
}

#[test]
fn a_plain_listener_takes_both_versions() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let mut client = Client::open(gateway.address());
    for _ in 0..3 {
        let answer = client.get("/x?y");
        assert_eq!((answer.status, answer.text()), (200, "hello"));
        assert!(answer.header("date").is_some());
    }
    assert_eq!(gateway.get("/").text(), "hello");
    let seen = &backend.seen()[0];
    assert_eq!((&*seen.target, seen.header("host")), ("/x?y", Some("a.test")));
    assert_eq!(
        seen.header("via"),
        Some(format!("2.0 {}", gateway.server().gateway().via.name()).as_str())
    );
    // However the preface is cut.
    let mut slow = gateway.connect();
    for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0" {
        slow.write(&[*byte]);
        std::thread::yield_now();
    }
    let settings = slow.exactly(9).unwrap();
    assert_eq!(settings[3], 4, "SETTINGS come first");
}

#[test]
fn a_reject_is_a_head_that_ends_its_stream() {
    let backend = Backend::start();
    let gateway = Gateway::start(&limited(&backend, "[{ by: ip, rate: 1/minute }]"));
    let mut client = Client::open(gateway.address());
    assert!(!client.get("/").head_only);
    for request in [get("/"), post("/")] {
        let answer = client.ask(request);
        assert!(answer.head_only);
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("60")));
        assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"));
        assert_eq!(answer.header("connection"), None);
    }
    // One whose body is still coming, too; and the connection goes on.
    let answer = client.ask_with(post("/"), Some(&vec![1; 100_000]), None);
    assert_eq!((answer.status, answer.head_only), (429, true));
    gateway.advance(Duration::from_secs(60));
    assert_eq!(client.get("/").status, 200);
    assert_eq!(backend.count(), 2);
}

#[test]
fn grpc_is_refused_in_its_own_terms() {
    let backend = Http2Backend::start();
    let gateway = Gateway::start(&to_http2(&backend, "[{ by: ip, rate: 1/minute }]"));
    let mut client = Client::open(gateway.address());
    let call = || {
        let call = Request::post("http://a.test/s/m").header("content-type", "application/grpc");
        call.header("te", "trailers").body(()).unwrap()
    };
    let message = b"\0\0\0\0\x02hi";
    let first = client.ask_with(call(), Some(message), None);
    assert_eq!((first.status, &first.body[..]), (200, &message[..]));
    assert_eq!(first.trailers["x-after"], "it");
    assert_eq!(backend.last().headers["te"], "trailers");
    let second = client.ask_with(call(), Some(message), None);
    assert!(second.head_only, "trailers-only");
    assert_eq!((second.status, second.header("grpc-status")), (200, Some("8")));
    assert_eq!(second.header("content-type"), Some("application/grpc"));
    assert_eq!(second.header("retry-after"), Some("60"));
}

#[test]
fn a_callers_deadline_in_grpc_is_the_gateways_too() {
    let backend = Http2Backend::start();
    let gateway = fronting(&backend);
    let mut client = Client::open(gateway.address());
    let call = Request::post("http://a.test/hang").header("content-type", "application/grpc");
    let call = call.header("grpc-timeout", "100m").body(()).unwrap();
    let answer = client.ask(call);
    assert_eq!(answer.header("grpc-status"), Some("4"), "DEADLINE_EXCEEDED");
    eventually("the cancellation", || Some(()).filter(|()| backend.cancelled() == 1));
    // It is not the connection's fault.
    assert_eq!(client.get("/").text(), "hello");
    assert_eq!(backend.connections(), 1);
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let mut client = Client::open(gateway.address());
    let with = |name: &str, value: &str| {
        Request::get("http://a.test/").header(name, value).body(()).unwrap()
    };
    assert_eq!(client.ask(with("host", "a.test")).status, 200);
    assert_eq!(client.ask(with("host", "b.test")).status, 400);
    assert_eq!(client.ask(Request::get("ftp://a.test/").body(()).unwrap()).status, 400);
    let plain = Request::builder().method(Method::CONNECT).uri("a.test:80").body(()).unwrap();
    assert_eq!(client.ask(plain).status, 405);
    let trace = Request::builder().method(Method::TRACE).uri("http://a.test/").body(()).unwrap();
    assert_eq!(client.ask(trace).status, 405);
    assert_eq!(client.get("/%00").status, 400);
    assert_eq!(client.ask(with("content-length", "")).status, 400);
    let many = (0..101)
        .fold(Request::get("http://a.test/"), |request, n| request.header(format!("x-{n}"), "y"));
    assert_eq!(client.ask(many.body(()).unwrap()).status, 431);
    let large = with("x-large", &"y".repeat(70 << 10));
    assert_eq!(client.ask(large).status, 431);
    assert_eq!(backend.count(), 1);
    assert_eq!(client.get("/").status, 200, "the connection goes on");
}

#[test]
fn trailers_with_pseudo_header_fields_end_the_connection() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let head = [0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        [&head[..], payload].concat()
    };
    // :method POST, :scheme http, :path /, :authority a
    let head = [0x83, 0x86, 0x84, 0x41, 1, b'a'];
    for (fields, refused) in [(&[0x83][..], true), (&[0x00, 1, b'x', 1, b'y'][..], false)] {
        let mut connection = gateway.connect();
        connection.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        connection.write(&frame(4, 0, 0, &[]));
        connection.write(&frame(1, 4, 1, &head));
        connection.write(&frame(0, 0, 1, b"body"));
        connection.write(&frame(1, 5, 1, fields));
        let mut kinds = Vec::new();
        while let Some(head) = connection.exactly(9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let payload = connection.exactly(length).unwrap();
            kinds.push((head[3], payload));
            if !refused && head[3] == 1 {
                break; // the answer
            }
        }
        let goodbye = kinds.iter().find(|(kind, _)| *kind == 7).map(|(_, payload)| payload[7]);
        assert_eq!(goodbye, refused.then_some(1), "PROTOCOL_ERROR: {kinds:?}");
    }
}

#[test]
fn split_cookies_are_one_for_http1() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let request = Request::get("http://a.test/").header("cookie", "a=1").header("cookie", "b=2");
    Client::open(gateway.address()).ask(request.header("cookie", "c=3").body(()).unwrap());
    assert_eq!(backend.last().header("cookie"), Some("a=1; b=2; c=3"));
}

#[test]
fn trailers_pass_both_ways_between_the_versions() {
    let backend = Backend::answering(|_| {
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-after\r\n\r\n2\r\nok\r\n0\r\nx-after: all\r\n\r\n".to_vec()
    });
    let gateway = Gateway::start(&open(&backend));
    let mut client = Client::open(gateway.address());
    let answer = client.ask_with(post("/"), Some(b"body"), Some(trailers("x-sum")));
    assert_eq!((answer.text(), &answer.trailers["x-after"]), ("ok", &"all".parse().unwrap()));
    let seen = backend.last();
    assert_eq!((&seen.body[..], &*seen.trailers), (&b"body"[..], "x-sum: after\r\n"));

    let backend = Http2Backend::start();
    let gateway = fronting(&backend);
    let mut client = Client::open(gateway.address());
    let answer = client.ask_with(post("/"), Some(b"body"), Some(trailers("x-sum")));
    assert_eq!((answer.text(), &answer.trailers["x-after"]), ("body", &"it".parse().unwrap()));
    assert_eq!(backend.last().trailers["x-sum"], "after");
    // What callers may not say of themselves, they may not say in trailers either.
    client.ask_with(post("/"), Some(b"body"), Some(trailers("x-forwarded-for")));
    assert!(backend.last().trailers.is_empty());
    // HTTP/1.1 in front, HTTP/2 behind.
    let mut old = gateway.connect();
    old.write(b"POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: te\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n2\r\nhi\r\n0\r\nx-sum: 1\r\n\r\n");
    assert_eq!(old.read_reply("POST").text(), "hi");
    assert_eq!(backend.last().trailers["x-sum"], "1");
}

#[test]
fn many_requests_share_one_connection_on_both_sides() {
    let backend = Http2Backend::start();
    let gateway = fronting(&backend);
    let client = Client::open(gateway.address());
    let send = &client.send;
    client.runtime.block_on(async {
        let ask = |number: usize| {
            let send = send.clone();
            async move {
                let (response, mut stream) =
                    send.ready().await.unwrap().send_request(post("/"), false).unwrap();
                let body = vec![number as u8; number * 700];
                push(&mut stream, &body, true).await;
                let mut answer = response.await.unwrap().into_body();
                let mut bytes = Vec::new();
                while let Some(data) = answer.data().await {
                    let data = data.unwrap();
                    answer.flow_control().release_capacity(data.len()).unwrap();
                    bytes.extend_from_slice(&data);
                }
                assert_eq!(bytes, body);
            }
        };
        let all: Vec<_> = (1..=90).map(|n| tokio::task::spawn(ask(n))).collect();
        for one in all {
            one.await.unwrap();
        }
    });
    assert_eq!((backend.seen().len(), backend.connections()), (90, 1));
}

#[test]
fn a_full_connection_gets_another_beside_it() {
    let backend = Http2Backend::with_streams(2);
    let gateway = fronting(&backend);
    // Each hangs on a connection of its own; a worker's two connections take four of them.
    let hanging: Vec<_> = (0..4)
        .map(|_| {
            let mut connection = gateway.connect();
            connection.write(b"GET /hang HTTP/1.1\r\nhost: a\r\n\r\n");
            connection
        })
        .collect();
    eventually("all of them", || Some(()).filter(|()| backend.seen().len() == 4));
    assert!(backend.connections() >= 2);
    assert_eq!(gateway.get("/").text(), "hello");
    drop(hanging);
    eventually("their end", || Some(()).filter(|()| backend.cancelled() == 4));
}

#[test]
fn a_backend_that_refuses_a_stream_or_says_goodbye_loses_no_request() {
    let backend = Http2Backend::start();
    let gateway = fronting(&backend);
    let mut connection = gateway.connect();
    assert_eq!(connection.get("/").status, 200);
    backend.refuse(1);
    assert_eq!(connection.get("/").status, 200, "it was sent again");
    backend.refuse(2);
    assert_eq!(connection.get("/").status, 502, "but not for ever");
    for _ in 0..5 {
        backend.say_goodbye();
        assert_eq!(connection.get("/").status, 200);
        assert_eq!(connection.get("/").status, 200);
    }
    assert!(backend.connections() > 3, "{}", backend.connections());
}

#[test]
fn an_upload_that_was_refused_untouched_is_sent_again() {
    let backend = Http2Backend::start();
    let gateway = fronting(&backend);
    let mut connection = gateway.connect();
    assert_eq!(connection.get("/").status, 200);
    backend.refuse(1);
    connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n");
    // The gateway has heard of the refusal when it has sent the head again.
    eventually("the second try", || (backend.begun() == 2).then_some(()));
    connection.write(b"body");
    assert_eq!(connection.read_reply("POST").status, 200);
    assert_eq!(backend.last().body, b"body");
}

#[test]
fn a_caller_who_leaves_takes_the_request_along() {
    let backend = Http2Backend::start();
    let yaml = to_http2(&backend, "[{ by: ip, concurrency: 1 }]");
    let gateway = Gateway::start(&yaml.replace("http2: true", "http2: true, on_leave: cancel"));
    let mut client = Client::open(gateway.address());
    let (response, stream) = client
        .runtime
        .block_on(async { client.send.clone().ready().await })
        .unwrap()
        .send_request(get("/hang"), true)
        .unwrap();
    let settle = |client: &Client| {
        // Drives the client.
        client.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    };
    eventually("the request", || {
        settle(&client);
        Some(()).filter(|()| backend.seen().len() == 1)
    });
    assert_eq!(client.get("/").status, 429, "its place is taken");
    drop((response, stream));
    eventually("the cancellation", || {
        settle(&client);
        Some(()).filter(|()| backend.cancelled() == 1)
    });
    assert_eq!(client.get("/").status, 429, "its place is taken for a second more");
    eventually("the place", || Some(()).filter(|()| client.get("/").status == 200));
}

#[test]
fn a_caller_who_does_not_read_holds_the_backend_up() {
    const LENGTH: usize = 16 << 20;
    let written = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&written);
    let backend = Backend::with(move |_, stream| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        for _ in 0..LENGTH >> 14 {
            if stream.write_all(&[7; 1 << 14]).is_err() {
                return false;
            }
            counted.fetch_add(1 << 14, Ordering::SeqCst);
        }
        true
    });
    let gateway = Gateway::start(&open(&backend));
    let mut client = Client::open(gateway.address());
    let (response, _stream) = client
        .runtime
        .block_on(async { client.send.clone().ready().await })
        .unwrap()
        .send_request(get("/"), true)
        .unwrap();
    let mut body = client.runtime.block_on(response).unwrap().into_body();
    // It writes until everything on the way is full, which is far from all of it.
    let mut before = 0;
    let stuck = eventually("a full way", || {
        client.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(200)).await });
        let now = written.load(Ordering::SeqCst);
        let stands = now == std::mem::replace(&mut before, now);
        stands.then_some(now)
    });
    assert!(stuck < LENGTH / 2, "{stuck} bytes were taken in advance");
    assert_eq!(client.get("/%00").status, 400, "other streams go on");
    let read = client.runtime.block_on(async {
        let mut total = 0;
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            total += data.len();
        }
        total
    });
    assert_eq!(read, LENGTH);
}

#[test]
fn a_body_that_is_too_large_ends_its_stream_and_no_other() {
    let backend = Backend::start();
    let gateway =
        Gateway::start(&format!("server: {{ max_body_bytes: 1KiB }}\n{}", open(&backend)));
    let mut client = Client::open(gateway.address());
    let announced =
        Request::post("http://a.test/").header("content-length", "5000").body(()).unwrap();
    assert_eq!(client.ask_with(announced, Some(&[1; 5000]), None).status, 413);
    assert_eq!(client.ask_with(post("/"), Some(&[1; 5000]), None).status, 413);
    assert_eq!(client.ask_with(post("/"), Some(&[1; 1000]), None).status, 200);
}

#[test]
fn what_comes_before_an_answer_is_told_before_it() {
    let backend = Http2Backend::start();
    let gateway = fronting(&backend);
    let mut client = Client::open(gateway.address());
    let early = client.get("/early");
    assert_eq!((early.interim[0].0, &early.interim[0].1["link"]), (103, &"</a>".parse().unwrap()));
    let mut old = gateway.connect();
    old.write(b"GET /early HTTP/1.1\r\nhost: a\r\n\r\n");
    let head = old.head().unwrap();
    assert_eq!((head.status, head.header("link")), (103, Some("</a>")));
    assert_eq!(old.read_reply("GET").text(), "hello");
    // Whoever waits to be asked for the body is asked.
    let asking = Request::post("http://a.test/").header("expect", "100-continue").body(()).unwrap();
    assert_eq!(client.ask_with(asking, Some(b"body"), None).interim[0].0, 100);
}

#[test]
fn a_stream_that_ends_after_its_last_byte_is_whole_to_either_version() {
    let backend = Http2Backend::start();
    let gateway = fronting(&backend);
    let mut old = gateway.connect();
    for _ in 0..3 {
        assert_eq!(old.get("/length").text(), "hello");
    }
    assert_eq!(Client::open(gateway.address()).get("/length").text(), "hello");
    let lines = gateway.log.wait_for(4);
    assert!(lines.iter().all(|line| line.get("aborted").is_none()), "{lines:?}");
}

#[test]
fn a_stop_lets_streams_finish_and_says_goodbye() {
    let (go, on_go) = std::sync::mpsc::channel::<()>();
    let on_go = parking_lot::Mutex::new(on_go);
    let backend = Backend::with(move |_, stream| {
        on_go.lock().recv().unwrap();
        stream.write_all(&crate::common::backend::ok("late")).is_ok()
    });
    let port = HeldPort::new();
    let gateway = Gateway::start(&format!("listen: {}\n{}", port.address(), open(&backend)));
    let mut client = Client::open(gateway.address());
    let asking = std::thread::spawn(move || (client.get("/"), client));
    eventually("the request", || Some(()).filter(|()| backend.count() == 1));
    let stopping = std::thread::spawn(move || gateway.stop());
    eventually("the stop", || port.is_refused().then_some(()));
    go.send(()).unwrap();
    let (answer, mut client) = asking.join().unwrap();
    assert_eq!(answer.text(), "late");
    assert!(client.try_ask(get("/"), None, None).is_err());
    stopping.join().unwrap();
}

#[test]
fn a_connection_without_requests_is_closed_whatever_else_it_says() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!("server: {{ idle_timeout: 300ms }}\n{}", open(&backend)));
    let mut connection = gateway.connect();
    connection.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let mut pinging = connection.stream.try_clone().unwrap();
    std::thread::spawn(move || {
        while pinging.write_all(b"\0\0\x08\x06\0\0\0\0\0pingpong").is_ok() {
            std::thread::sleep(Duration::from_millis(20)); // it keeps on talking
        }
    });
    while !connection.is_closed() {}
    // The gateway hears what is said behind its goodbye for half a minute, and would not stop before.
    connection.stream.shutdown(std::net::Shutdown::Both).unwrap();
}

#[test]
fn a_connection_whose_last_stream_was_reset_is_closed_like_any_other() {
    let backend = Http2Backend::start();
    let gateway =
        Gateway::start(&format!("server: {{ idle_timeout: 300ms }}\n{}", to_http2(&backend, "[]")));
    let mut connection = gateway.connect();
    connection.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    // GET /hang of a
    connection.write(b"\0\0\x0c\x01\x05\0\0\0\x01\x82\x86\x04\x05/hang\x41\x01a");
    eventually("the request", || Some(()).filter(|()| backend.seen().len() == 1));
    connection.write(b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08");
    eventually("its end", || Some(()).filter(|()| backend.cancelled() == 1));
    while !connection.is_closed() {}
}

/// An extended CONNECT, as RFC 8441 has it.
fn websocket() -> Request<()> {
    let request = Request::builder().method(Method::CONNECT).uri("http://a.test/chat");
    let request = request.header("sec-websocket-version", "13");
    request.extension(Protocol::from_static("websocket")).body(()).unwrap()
}

/// Opens a tunnel and says something through it.
fn echoes(client: &mut Client) -> http::HeaderMap {
    let mut send = client.runtime.block_on(client.send.clone().ready()).unwrap();
    let (response, mut stream) = send.send_request(websocket(), false).unwrap();
    client.runtime.block_on(async {
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        let (head, mut body) = response.into_parts();
        for word in [vec![1; 10], vec![2; 300_000]] {
            let mut heard = Vec::new();
            let speaking = push(&mut stream, &word, false);
            let hearing = async {
                while heard.len() < word.len() {
                    let data = body.data().await.unwrap().unwrap();
                    body.flow_control().release_capacity(data.len()).unwrap();
                    heard.extend_from_slice(&data);
                }
            };
            tokio::join!(speaking, hearing);
            assert_eq!(heard, word);
        }
        stream.send_data(Bytes::new(), true).unwrap();
        while let Some(data) = body.data().await {
            assert_eq!(data.unwrap(), "", "both ends are done");
        }
        head.headers
    })
}

#[test]
fn a_websocket_over_http2_reaches_a_backend_of_either_version() {
    let backend = Backend::with(|seen, stream| {
        use std::io::Read;
        assert_eq!((&*seen.method, seen.header("upgrade")), ("GET", Some("websocket")));
        let key = seen.header("sec-websocket-key").unwrap();
        let accept = accept(key);
        let head = format!(
            "HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: WebSocket\r\nsec-websocket-accept: {accept}\r\nx-more: 1\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut bytes = vec![0; 65536];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            stream.write_all(&bytes[..count]).unwrap();
        }
        false
    });
    let gateway = Gateway::start(&limited(&backend, "[{ by: ip, concurrency: 1 }]"));
    let mut client = Client::open(gateway.address());
    let headers = echoes(&mut client);
    assert_eq!(headers["x-more"], "1");
    assert!(!headers.contains_key("sec-websocket-accept") && !headers.contains_key("upgrade"));
    eventually("its place", || Some(()).filter(|()| client.get("/%00").status != 429));

    let backend = Http2Backend::start();
    let gateway = fronting(&backend);
    echoes(&mut Client::open(gateway.address()));
    assert_eq!((backend.last().method, backend.last().uri.path()), (Method::CONNECT, "/chat"));
    // HTTP/1.1 in front, HTTP/2 behind.
    let mut old = gateway.connect();
    old.write(b"GET /chat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n");
    let head = old.head().unwrap();
    assert_eq!((head.status, head.header("upgrade")), (101, Some("websocket")));
    assert_eq!(head.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    old.write(b"echo");
    assert_eq!(old.exactly(4).unwrap(), b"echo");
    // What HTTP/2 does not know is answered as a request.
    assert_eq!(
        gateway
            .raw(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n")
            .text(),
        "hello"
    );
}

#[test]
fn nothing_but_what_can_be_seen_through_is_tunnelled() {
    let backend = Backend::answering(|seen| {
        let to = seen.header("upgrade").unwrap_or("none");
        format!("HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: {to}\r\n\r\n").into_bytes()
    });
    let gateway = Gateway::start(&open(&backend));
    let mut client = Client::open(gateway.address());
    for protocol in ["h2c", "HTTP/2.0", "websocket, h2c", "TLS/1.0", "", "a b", "other"] {
        let mut request = websocket();
        request.extensions_mut().insert(Protocol::from(protocol));
        let answer = client.ask(request);
        assert_eq!((answer.status, answer.head_only), (405, true), "{protocol:?}");
    }
    assert_eq!(backend.count(), 0);
}

#[test]
fn a_burst_of_websockets_finds_a_fresh_backend_ready() {
    let backend = Http2Backend::start();
    let gateway = fronting(&backend);
    let ask = b"GET /chat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut all: Vec<_> = (0..20).map(|_| gateway.connect()).collect();
    for connection in &mut all {
        connection.write(ask);
    }
    for connection in &mut all {
        assert_eq!(connection.head().unwrap().status, 101);
    }
}

#[test]
fn callers_who_do_not_read_hold_up_nobody_else_on_a_shared_connection() {
    let backend = Http2Backend::start();
    let gateway = fronting(&backend);
    // Eight who take a byte of what they asked for.
    let mut builder = h2::client::Builder::new();
    let client = Client::with(gateway.address(), builder.initial_window_size(1));
    let much = vec![7; 500_000];
    let lying = client.runtime.block_on(async {
        let mut lying = Vec::new();
        for _ in 0..8 {
            let mut send = client.send.clone().ready().await.unwrap();
            let (response, mut stream) = send.send_request(post("/"), false).unwrap();
            push(&mut stream, &much, true).await;
            lying.push(response.await.unwrap());
        }
        lying
    });
    // On either worker, what others ask for comes.
    for _ in 0..8 {
        assert_eq!(gateway.send("POST", "/", &[], &much).body.len(), much.len());
    }
    drop(lying);
}

#[test]
fn uploads_leave_their_connections_window_as_it_was() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let mut client = Client::open(gateway.address());
    // More than the window in all, each with its length said.
    let body = vec![1; 1 << 20];
    for _ in 0..40 {
        let request = Request::post("http://a.test/").header("content-length", body.len());
        let answer = client.ask_with(request.body(()).unwrap(), Some(&body), None);
        assert_eq!(answer.status, 200);
    }
}

#[test]
fn half_a_head_is_not_waited_for_longer_than_a_head() {
    let backend = Backend::start();
    let gateway =
        Gateway::start(&format!("server: {{ header_timeout: 300ms }}\n{}", open(&backend)));
    let start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let unfinished: [&[u8]; 3] = [
        b"\0\0\x03\x01\x01\0\0\0\x01\x82\x84\x86", // no END_HEADERS
        b"\0\0\x03\x01\x05\0\0\0\x01\x82",         // half a frame
        b"\0\0\x03\x01",                           // half the head of one
    ];
    for frames in unfinished {
        let mut connection = gateway.connect();
        connection.write(&[&start[..], frames].concat());
        let began = std::time::Instant::now();
        while !connection.is_closed() {}
        assert!(began.elapsed() < Duration::from_secs(10), "{frames:x?}");
    }
}

#[test]
fn a_host_that_the_route_sets_is_the_backends_authority() {
    let backend = Http2Backend::start();
    let yaml = to_http2(&backend, "[], request_headers: { set: { Host: inner.test } }");
    let gateway = Gateway::start(&yaml);
    assert_eq!(gateway.get("/").status, 200);
    let seen = backend.last();
    assert_eq!(seen.uri.authority().unwrap(), "inner.test");
    assert!(!seen.headers.contains_key("host"));
}

fn accept(key: &str) -> String {
    use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
    use base64::Engine as _;
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    base64::prelude::BASE64_STANDARD.encode(digest)
}

#[test]
fn a_connection_on_which_nothing_comes_any_more_is_left() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let opened = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&opened);
    // It says its settings, and then nothing to anybody.
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.write_all(b"\0\0\0\x04\0\0\0\0\0").unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            silent.push(stream);
        }
    });
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: {{ endpoints: ['http://{address}'], http2: true, timeouts: {{ response: 200ms }} }} }}\nroutes: [{{ path: /, upstream: app }}]\n"
    ));
    let mut connection = gateway.connect();
    eventually("another connection", || {
        assert_eq!(connection.get("/").status, 504);
        Some(()).filter(|()| opened.load(Ordering::SeqCst) > 1)
    });
}

#[test]
fn a_backend_that_is_away_or_speaks_something_else_is_a_bad_gateway() {
    let http1 = Backend::start();
    let yaml = |address| {
        format!(
            "upstreams: {{ app: {{ endpoints: ['http://{address}'], http2: true, timeouts: {{ connect: 500ms }} }} }}\nroutes: [{{ path: /, upstream: app }}]\n"
        )
    };
    let gateway = Gateway::start(&yaml(http1.address()));
    assert!([502, 504].contains(&gateway.get("/").status));
    let dead = HeldPort::new();
    gateway.reload(&yaml(dead.address())).unwrap();
    assert_eq!(gateway.get("/").status, 502);
    let call = Request::post("http://a.test/").header("content-type", "application/grpc");
    let call = Client::open(gateway.address()).ask(call.body(()).unwrap());
    assert_eq!((call.status, call.header("grpc-status")), (200, Some("14")), "UNAVAILABLE");
}
