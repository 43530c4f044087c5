//! What two parsers could read differently is refused, and a path has one spelling.

use crate::common::{Backend, Gateway, open};

#[test]
fn every_spelling_of_a_path_meets_the_same_limit_and_is_forwarded_alike() {
    let backend = Backend::start();
    let yaml = format!(
        "upstreams: {{ app: 'http://{}' }}\nroutes:\n  - {{ path: /, upstream: app }}\n  - path: /login\n    upstream: app\n    limits: [{{ by: ip, rate: 5/hour }}]\n",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let spellings =
        ["/login", "/%6Cogin", "//login", "/x/../login", "/./login", "/%2e/%6c%6f%67in?x=1#frag"];
    for (index, spelling) in spellings.iter().enumerate() {
        let status = gateway.get(spelling).status;
        assert_eq!(status, if index < 5 { 200 } else { 429 }, "{spelling}");
    }
    assert!(backend.seen().iter().all(|seen| seen.target == "/login"));
}

#[test]
fn an_absolute_target_overrides_the_host() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let reply = gateway.raw(b"GET http://real.test/x?y HTTP/1.1\r\nhost: fake.test\r\n\r\n");
    assert_eq!(reply.status, 200);
    let seen = backend.last();
    assert_eq!(seen.target, "/x?y");
    assert_eq!(seen.header("host"), Some("real.test"));
    assert_eq!(seen.header("x-forwarded-host"), Some("real.test"));
}

#[test]
fn refused_requests_never_reach_the_backend_and_end_the_connection() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let cases: [(&str, u16); 38] = [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost:\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: u@a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a:port\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1, 2\r\n\r\nab", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\na", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\na", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\na", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999\r\n\r\na", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n", 405),
        ("TRACE / HTTP/1.1\r\nhost: a\r\n\r\n", 405),
        ("GET a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n", 400),
        ("GET ftp://a/ HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET x HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /%zz HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /%00 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /a\\b HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /\u{e4} HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /?\u{e4} HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nx: 1\r\n folded\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nbad header: 1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\n: empty\r\n\r\n", 400),
        ("GET / HTTP/9.9\r\nhost: a\r\n\r\n", 400),
        ("G\u{1}T / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ];
    for (request, expected) in cases {
        let mut connection = gateway.connect();
        connection.write(request.as_bytes());
        let reply = connection.read_reply("GET");
        assert_eq!(reply.status, expected, "{request:?}");
        assert_eq!(reply.header("content-length"), Some("0"), "{request:?}");
        assert!(connection.is_closed(), "{request:?}");
    }
    assert_eq!(backend.seen().len(), 0);
}

#[test]
fn a_request_behind_a_refused_one_is_never_read() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    connection.write(
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n\
          GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n",
    );
    assert_eq!(connection.read_reply("POST").status, 400);
    assert!(connection.is_closed());
    assert_eq!(backend.seen().len(), 0);
}

#[test]
fn a_length_beside_chunked_never_reaches_the_backend() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    for order in [
        "content-length: 3\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 3",
    ] {
        let mut connection = gateway.connect();
        let request = format!(
            "POST / HTTP/1.1\r\nhost: a\r\n{order}\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
        );
        connection.write(request.as_bytes());
        // As RFC 9112 6.3 has it: the coding counts, and the connection ends.
        assert_eq!(connection.read_reply("POST").header("connection"), Some("close"));
        assert!(connection.is_closed());
        let seen = backend.last();
        assert_eq!((seen.target.as_str(), seen.header("content-length")), ("/", None));
    }
    assert_eq!(backend.seen().len(), 2);
}

/// What is behind the last chunk hides behind a line end that some take for one and some do not. What
/// others send at the same time does not help.
#[test]
fn no_request_hides_behind_the_last_chunk() {
    let backend = Backend::with(|seen, stream| {
        if seen.target == "/slow" {
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        std::io::Write::write_all(stream, &crate::common::backend::ok("x")).is_ok()
    });
    let gateway = Gateway::start(&open(&backend));
    let post = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let hidden = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    for end in ["0\r\n\n", "0\r\nx: 1\n\n"] {
        // At once, in two reads, and behind a request that takes its time.
        let mut connection = gateway.connect();
        connection.write(format!("{post}3\r\nabc\r\n{end}{hidden}").as_bytes());
        assert_eq!(connection.read_reply("POST").status, 400, "{end:?}");
        let mut connection = gateway.connect();
        connection.write(&post.as_bytes()[..30]);
        std::thread::sleep(std::time::Duration::from_millis(50));
        connection.write(format!("{}3\r\nabc\r\n{end}{hidden}", &post[30..]).as_bytes());
        assert_eq!(connection.read_reply("POST").status, 400, "{end:?}");
        let mut connection = gateway.connect();
        let mut others: Vec<_> = (0..3).map(|_| gateway.connect()).collect();
        let before = backend.count();
        connection.write(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
        crate::common::eventually("it", || (backend.count() > before).then_some(()));
        connection.write(format!("{post}3\r\nabc\r\n{end}{hidden}").as_bytes());
        std::thread::sleep(std::time::Duration::from_millis(50));
        for other in &mut others {
            other.write(
                b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nfffffffff\r\n",
            );
        }
        assert_eq!(connection.read_reply("GET").status, 200);
        let _ = connection.try_reply("POST");
        assert!(connection.is_closed());
    }
    assert!(backend.seen().iter().all(|seen| seen.target != "/smuggled"));
}

#[test]
fn chunks_after_chunks_keep_their_connection() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    let cookie = "x".repeat(5000);
    for turn in 0..20 {
        // Heads in one read and in several, bodies at once and piece by piece.
        let long = if turn % 3 == 0 { cookie.as_str() } else { "" };
        let head = format!(
            "POST /{turn} HTTP/1.1\r\nhost: a\r\nx-long: {long}\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        connection.write(&head.as_bytes()[..head.len() / 2]);
        if turn % 2 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        connection.write(&head.as_bytes()[head.len() / 2..]);
        for piece in ["3\r\nabc\r\n", "2;x=y\r\nde\r", "\n0\r\n", "\r\n"] {
            connection.write(piece.as_bytes());
            std::thread::sleep(std::time::Duration::from_millis(turn % 5));
        }
        let reply = connection.read_reply("POST");
        assert_eq!((reply.status, reply.header("connection")), (200, None), "{turn}");
        assert_eq!(backend.last().body, b"abcde");
        assert_eq!(connection.get("/").status, 200);
    }
    assert_eq!(backend.count(), 40);
}

#[test]
fn broken_chunks_end_the_exchange() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    for chunks in ["x\r\n", "5\r\nabc\r\n0\r\n\r\n", "-1\r\n", "fffffffffffffffff\r\n", "1;\n\r\na"]
    {
        let mut connection = gateway.connect();
        let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        connection.write(format!("{head}{chunks}").as_bytes());
        let _ = connection.stream.shutdown(std::net::Shutdown::Write);
        assert_eq!(connection.read_reply("POST").status, 400, "{chunks:?}");
    }
    assert_eq!(backend.seen().len(), 0, "no whole request came out of it");
}

/// No bytes make a worker panic: after each the gateway still answers.
#[test]
fn nothing_on_the_network_makes_it_panic() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let seeds: [&[u8]; 4] = [
        b"GET /a?b HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 1.2.3.4\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ];
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize % bound
    };
    for round in 0..400 {
        let mut bytes = seeds[round % seeds.len()].to_vec();
        for _ in 0..=next(6) {
            let at = next(bytes.len());
            match next(3) {
                0 => bytes[at] = next(256) as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, next(256) as u8),
            }
        }
        let mut connection = gateway.connect();
        connection.write(&bytes);
        let _ = connection.stream.shutdown(std::net::Shutdown::Write);
        while !connection.is_closed() {}
    }
    assert_eq!(gateway.get("/").status, 200);
}
