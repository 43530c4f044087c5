//! Turning a refusal into something that a cache keeps, or that another client takes for an answer.

use crate::common::http2::{Client, get};
use crate::common::{Backend, Gateway, limited};
use http::Request;
use std::time::Duration;

const GRPC: (&str, &str) = ("content-type", "application/grpc");

#[test]
fn a_content_type_does_not_turn_a_refusal_into_a_200() {
    let backend = Backend::start();
    let gateway = Gateway::start(&limited(&backend, "[{ name: x, by: ip, rate: 1/hour }]"));
    assert_eq!(gateway.get("/").status, 200);
    for method in ["GET", "POST", "HEAD"] {
        let reply = gateway.send(method, "/", &[GRPC], b"");
        assert_eq!(reply.status, 429, "{method} over HTTP/1.1");
        assert_eq!(reply.header("grpc-status"), None);
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
    let mut client = Client::open(gateway.address());
    let kinds = ["application/grpc", "application/grpc+proto", "application/grpc;x=y"];
    for kind in kinds.into_iter().chain(["application/grpc-web", "application/grpcx"]) {
        for method in ["GET", "POST"] {
            let request = Request::builder().method(method).uri("http://a.test/");
            let answer = client.ask(request.header("content-type", kind).body(()).unwrap());
            let is_grpc = method == "POST" && kinds.contains(&kind);
            assert_eq!(answer.status, if is_grpc { 200 } else { 429 }, "{method} {kind}");
            assert_eq!(answer.header("grpc-status"), is_grpc.then_some("8"), "{method} {kind}");
            assert_eq!(answer.header("cache-control"), Some("no-store"));
        }
    }
}

#[test]
fn no_refusal_can_be_cached() {
    let backend = Backend::answering(|seen| match seen.target.as_str() {
        "/gone" => Vec::new(),
        _ => crate::common::backend::ok("hello"),
    });
    let gateway = Gateway::start(&format!(
        "server: {{ max_uri_bytes: 256B, max_headers: 20, max_header_bytes: 8KiB, header_timeout: 1s }}
identity: {{ api_key: {{ keys: [] }} }}
upstreams:
  app: {{ endpoints: ['http://{}'], retries: {{ attempts: 1 }} }}
limits: [{{ name: x, by: 'header:x-limited', rate: 1/hour }}]
routes:
  - {{ path: /gone, upstream: app }}
  - {{ path: /login, methods: [POST], upstream: app, max_body_bytes: 10 }}
  - {{ path: /private, upstream: app, require: api_key }}
",
        backend.address()
    ));
    gateway.get_with("/gone", &[("x-limited", "1")]);
    let long = "x".repeat(300);
    let requests: [(u16, String); 11] = [
        (429, "GET /gone HTTP/1.1\r\nhost: a\r\nx-limited: 1\r\n\r\n".into()),
        (404, "GET /nowhere HTTP/1.1\r\nhost: a\r\n\r\n".into()),
        (405, "GET /login HTTP/1.1\r\nhost: a\r\n\r\n".into()),
        (405, "TRACE / HTTP/1.1\r\nhost: a\r\n\r\n".into()),
        (413, "POST /login HTTP/1.1\r\nhost: a\r\ncontent-length: 11\r\n\r\nhello world".into()),
        (401, "GET /private HTTP/1.1\r\nhost: a\r\n\r\n".into()),
        (400, "GET /gone HTTP/1.1\r\n\r\n".into()),
        (414, format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n")),
        (502, "GET /gone HTTP/1.1\r\nhost: a\r\n\r\n".into()),
        // What is no request at all is answered before anything else sees it.
        (400, "nonsense\r\n\r\n".into()),
        (431, format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(9000))),
    ];
    for (status, request) in requests {
        let reply = gateway.raw(request.as_bytes());
        assert_eq!(reply.status, status, "{request}");
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{request}");
    }
    let late = gateway.raw(b"GET / HTTP/1.1\r\nhost");
    assert_eq!((late.status, late.header("cache-control")), (408, Some("no-store")));
    let mut client = Client::open(gateway.address());
    let answer = client.ask(get("/nowhere"));
    assert_eq!((answer.status, answer.header("cache-control")), (404, Some("no-store")));
}

#[test]
fn a_content_type_does_not_let_a_body_trickle_to_an_http1_backend() {
    let backend = Backend::start();
    let gateway = Gateway::start_in_real_time(&format!(
        "server: {{ body_timeout: 1s }}\nupstreams: {{ app: 'http://{}' }}\nroutes: [{{ path: /, upstream: app }}]\n",
        backend.address()
    ));
    let mut connection = gateway.connect();
    connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\ncontent-length: 1000\r\n\r\n");
    let mut writer = connection.stream.try_clone().unwrap();
    let trickle = std::thread::spawn(move || {
        // The client's own pace: a byte within every time-out.
        for _ in 0..30 {
            if std::io::Write::write_all(&mut writer, b"x").is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    assert_eq!(connection.read_reply("POST").status, 408);
    drop(connection);
    trickle.join().unwrap();
}
