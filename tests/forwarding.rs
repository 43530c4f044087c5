//! Requests and answers pass as HTTP says they should.

use crate::common::backend::ok;
use crate::common::{Backend, Gateway, HeldPort, open};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

fn answering(bytes: &'static str) -> (Backend, Gateway) {
    let backend = Backend::answering(move |_| bytes.as_bytes().to_vec());
    let gateway = Gateway::start(&open(&backend));
    (backend, gateway)
}

fn via(gateway: &Gateway) -> String {
    gateway.server().gateway().via.name().to_owned()
}

#[test]
fn a_request_is_forwarded_with_what_a_gateway_must_say() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let reply = gateway.send("POST", "/a/b?x=1&y=%20", &[("host", "api.test:81")], b"body");
    assert_eq!((reply.status, reply.text()), (200, "hello"));
    let seen = backend.last();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/a/b?x=1&y=%20"));
    assert_eq!(seen.body, b"body");
    assert_eq!(seen.header("host"), Some("api.test:81"));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x-forwarded-host"), Some("api.test:81"));
    assert_eq!(seen.header("via"), Some(format!("1.1 {}", via(&gateway)).as_str()));
    assert_eq!(seen.header("content-length"), Some("4"));
}

#[test]
fn what_belongs_to_one_connection_is_not_forwarded_in_either_direction() {
    let (backend, gateway) = answering(
        "HTTP/1.1 200 OK\r\nconnection: x-hop, keep-alive\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\n\
         proxy-authenticate: Basic\r\nupgrade: h2c\r\nx-stays: 1\r\ncontent-length: 0\r\n\r\n",
    );
    let headers = [
        ("connection", "close, x-mine, authorization"),
        ("x-mine", "1"),
        ("authorization", "Basic x"),
        ("keep-alive", "300"),
        ("proxy-connection", "keep-alive"),
        ("te", "gzip"),
        ("upgrade", "websocket"),
        ("via", "1.0 edge"),
        ("x-other", "1"),
    ];
    let reply = gateway.get_with("/", &headers);
    let mut names: Vec<_> = reply.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["connection", "content-length", "date", "x-stays"]);
    assert_eq!(reply.header("connection"), Some("close"), "ours, because the caller asked for it");
    let seen = backend.last();
    for name in ["connection", "x-mine", "keep-alive", "proxy-connection", "te", "upgrade"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
    assert_eq!(seen.header("authorization"), Some("Basic x"), "cannot be nominated away");
    assert_eq!(seen.header("via"), Some(format!("1.0 edge, 1.1 {}", via(&gateway)).as_str()));
    assert_eq!(seen.header("x-other"), Some("1"));
}

#[test]
fn upstream_connections_are_kept_alive_even_when_callers_are_not() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    for _ in 0..20 {
        assert_eq!(connection.get("/").status, 200);
    }
    assert_eq!(backend.connections(), 1);
    for _ in 0..20 {
        let reply = gateway.get_with("/", &[("connection", "close")]);
        assert_eq!(reply.header("connection"), Some("close"));
    }
    assert!(backend.connections() <= 2, "one a worker");
}

#[test]
fn bodies_pass_chunked_and_with_a_length_and_trailers_with_them() {
    let backend = Backend::answering(|seen| {
        assert_eq!(seen.body, b"hello world");
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n5\r\nabcde\r\n0\r\nx-sum: 7\r\n\r\n"
            .to_vec()
    });
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    connection.write(
        b"POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntransfer-encoding: chunked\r\ntrailer: x-md5\r\n\r\n\
          5\r\nhello\r\n6\r\n world\r\n0\r\nx-md5: 9\r\nx-unannounced: 1\r\n\r\n",
    );
    let reply = connection.read_reply("POST");
    assert_eq!((reply.status, reply.text()), (200, "abcde"));
    assert_eq!(reply.trailers, [("x-sum".to_owned(), "7".to_owned())]);
    let seen = backend.last();
    assert_eq!(seen.header("transfer-encoding"), Some("chunked"));
    assert_eq!(seen.header("te"), Some("trailers"));
    assert_eq!(seen.trailers, "x-md5: 9\r\n");
    for te in ["trailers", "gzip"] {
        let reply = connection.send("POST", "/", &[("te", te)], b"hello world");
        assert_eq!((reply.text(), reply.trailers.len()), ("abcde", usize::from(te == "trailers")));
    }
    assert_eq!(backend.connections(), 1, "an answer with trailers ends in good order, too");
    assert!(gateway.log.wait_for(3).iter().all(|line| line.get("aborted").is_none()));
}

#[test]
fn a_get_can_have_a_body() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    gateway.send("GET", "/", &[], b"query");
    assert_eq!(backend.last().body, b"query");
    gateway.raw(
        b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    assert_eq!(backend.last().body, b"abc");
}

#[test]
fn answers_without_a_body_stay_without_one() {
    for (status, method) in
        [("204 No Content", "GET"), ("304 Not Modified", "GET"), ("200 OK", "HEAD")]
    {
        let backend = Backend::answering(move |_| {
            let length = if status.starts_with("204") { "" } else { "content-length: 42\r\n" };
            format!("HTTP/1.1 {status}\r\n{length}etag: x\r\n\r\n").into_bytes()
        });
        let gateway = Gateway::start(&open(&backend));
        let mut connection = gateway.connect();
        for _ in 0..3 {
            let reply = connection.send(method, "/", &[], b"");
            assert_eq!(reply.status.to_string(), status[..3]);
            assert_eq!(reply.header("etag"), Some("x"));
            if method == "HEAD" {
                assert_eq!(reply.header("content-length"), Some("42"));
            }
        }
        assert_eq!(backend.connections(), 1, "{status}");
    }
}

#[test]
fn interim_answers_pass_and_do_not_end_the_exchange() {
    let (_backend, gateway) = answering(
        "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    );
    let mut connection = gateway.connect();
    for _ in 0..2 {
        connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(connection.head().unwrap().status, 102);
        let early = connection.head().unwrap();
        assert_eq!((early.status, early.header("link")), (103, Some("x")));
        assert_eq!(connection.read_reply("GET").text(), "ok");
    }
    // HTTP/1.0 does not know them.
    let mut old = gateway.connect();
    old.write(b"GET / HTTP/1.0\r\nhost: a\r\n\r\n");
    assert_eq!(old.head().unwrap().status, 200);
}

#[test]
fn a_flood_of_interim_answers_is_not_passed_on() {
    let flood = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".repeat(10_000);
    let answer = format!("{flood}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let backend = Backend::answering(move |_| answer.clone().into_bytes());
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let statuses: Vec<u16> =
        std::iter::from_fn(|| connection.head()).take(33).map(|head| head.status).collect();
    assert_eq!(statuses, [&[103; 32][..], &[502]].concat(), "it does not come to the point");
}

#[test]
fn a_caller_who_asks_first_is_told_to_continue_only_if_admitted() {
    let backend = Backend::start();
    let gateway = Gateway::start(&crate::common::limited(&backend, "[{ by: ip, rate: 1/minute }]"));
    let head = b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";
    let mut connection = gateway.connect();
    connection.write(head);
    assert_eq!(connection.head().unwrap().status, 100);
    connection.write(b"body");
    assert_eq!(connection.read_reply("POST").status, 200);
    assert_eq!(backend.last().body, b"body");
    assert_eq!(backend.last().header("expect"), None);

    let mut connection = gateway.connect();
    connection.write(head);
    assert_eq!(connection.head().unwrap().status, 429, "no interim answer, no body");
    assert_eq!(backend.seen().len(), 1);
}

#[test]
fn an_unreachable_upstream_is_502_and_a_slow_one_504() {
    let dead = HeldPort::new();
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: 'http://{}' }}\nroutes: [{{ path: /, upstream: app }}]\n",
        dead.address()
    ));
    let mut connection = gateway.connect();
    let reply = connection.get("/");
    assert_eq!((reply.status, reply.header("connection")), (502, None));
    let reply = connection.get("/");
    assert_eq!(reply.status, 502, "the caller's connection goes on");
    assert_eq!(reply.header("content-length"), Some("0"));

    let backend = Backend::with(|_, stream| {
        std::thread::sleep(Duration::from_secs(30));
        stream.write_all(&ok("late")).is_ok()
    });
    let yaml = format!(
        "upstreams: {{ app: {{ endpoints: ['http://{}'], timeouts: {{ response: 200ms }} }} }}\nroutes: [{{ path: /, upstream: app }}]\n",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let began = Instant::now();
    let reply = gateway.get("/");
    assert_eq!(reply.status, 504);
    assert_eq!(reply.header("content-length"), Some("0"));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn a_name_that_does_not_resolve_is_503() {
    let yaml =
        "upstreams: { app: 'http://nowhere.invalid:80' }\nroutes: [{ path: /, upstream: app }]\n";
    assert_eq!(Gateway::start(yaml).get("/").status, 503);
}

#[test]
fn an_ambiguous_or_garbled_answer_is_502_and_its_connection_is_not_used_again() {
    let answers = [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ncontent-length: 2, 3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        "garbage\r\n\r\n",
        "",
    ];
    for answer in answers {
        let (backend, gateway) = answering(answer);
        let mut connection = gateway.connect();
        for _ in 0..2 {
            let reply = connection.get("/");
            assert_eq!(reply.status, 502, "{answer:?}");
            assert_eq!(reply.header("content-length"), Some("0"));
        }
        assert_eq!(backend.connections(), 2, "{answer:?}");
    }
}

#[test]
fn one_length_said_twice_is_one_length() {
    let (_backend, gateway) =
        answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nab");
    let reply = gateway.get("/");
    assert_eq!(
        (reply.status, reply.header("content-length"), reply.text()),
        (200, Some("2"), "ab")
    );
}

#[test]
fn a_body_that_breaks_off_never_looks_whole() {
    for head in ["content-length: 100", "transfer-encoding: chunked"] {
        let backend = Backend::with(move |_, stream| {
            let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n").as_bytes());
            let _ = stream.write_all(b"5\r\nhello\r\n");
            false
        });
        let gateway = Gateway::start(&open(&backend));
        let mut connection = gateway.connect();
        connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(connection.try_reply("GET").is_none(), "{head}");
    }
}

#[test]
fn an_answer_that_ends_with_the_connection_passes() {
    let backend = Backend::with(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nuntil the end");
        false
    });
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    for _ in 0..3 {
        assert_eq!(connection.get("/").text(), "until the end");
    }
}

#[test]
fn a_connection_the_backend_closed_meanwhile_costs_nobody_a_request() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    for round in 0..20 {
        let reply = connection.send("POST", "/", &[], b"x");
        assert_eq!(reply.status, 200, "round {round}");
        backend.hang_up();
    }
}

/// Takes the second request it gets and ends the connection without a word, as a backend does
/// whose keep-alive time is up at that very moment.
fn ending_at_the_second(reset: bool) -> Backend {
    let count = std::sync::atomic::AtomicUsize::new(0);
    Backend::with(move |_, stream| {
        let second = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 1;
        if second && reset {
            let socket = socket2::SockRef::from(&*stream);
            socket.set_linger(Some(Duration::ZERO)).unwrap(); // closing resets
        }
        !second && stream.write_all(&ok("fine")).is_ok()
    })
}

#[test]
fn a_connection_that_dies_under_a_repeatable_request_is_replaced() {
    for reset in [false, true] {
        for (method, expected) in [("GET", 200), ("POST", 502)] {
            let backend = ending_at_the_second(reset);
            let gateway = Gateway::start(&open(&backend));
            let mut connection = gateway.connect();
            assert_eq!(connection.get("/").status, 200);
            let status = connection.send(method, "/", &[], b"").status;
            assert_eq!(
                status, expected,
                "{method}, reset: {reset}: what cannot be repeated is not"
            );
        }
    }
}

#[test]
fn connections_idle_for_too_long_are_not_used_again() {
    let backend = Backend::start();
    let yaml = format!(
        "upstreams: {{ app: {{ endpoints: ['http://{}'], timeouts: {{ idle: 100ms }} }} }}\nroutes: [{{ path: /, upstream: app }}]\n",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let mut connection = gateway.connect();
    connection.get("/");
    std::thread::sleep(Duration::from_millis(500)); // time has to pass on real sockets
    connection.get("/");
    assert_eq!(backend.connections(), 2);
}

#[test]
fn bodies_stream_without_waiting_for_their_end() {
    let backend = Backend::with(|_, stream| {
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n");
        // The rest only when the caller has seen the first part and hung up.
        let mut byte = [0];
        let _ = stream.read(&mut byte);
        false
    });
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(connection.head().unwrap().status, 200);
    assert_eq!(connection.exactly(10).unwrap(), b"5\r\nfirst\r\n");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let backend = Backend::answering(|seen| ok(&seen.target));
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    let requests: String =
        (0..10).map(|n| format!("GET /{n} HTTP/1.1\r\nhost: a\r\n\r\n")).collect();
    connection.write(requests.as_bytes());
    for n in 0..10 {
        assert_eq!(connection.read_reply("GET").text(), format!("/{n}"));
    }
}

#[test]
fn several_endpoints_take_turns() {
    let backends: Vec<_> =
        (0..3).map(|n| Backend::answering(move |_| ok(&n.to_string()))).collect();
    let yaml = format!(
        "upstreams:\n  app:\n    balance: round_robin\n    endpoints: ['http://{}', 'http://{}', {{ url: 'http://{}', weight: 2 }}]\nroutes: [{{ path: /, upstream: app }}]\n",
        backends[0].address(),
        backends[1].address(),
        backends[2].address()
    );
    let gateway = Gateway::start(&yaml);
    let picked: Vec<String> = (0..8).map(|_| gateway.get("/").text().to_owned()).collect();
    assert_eq!(picked, ["2", "0", "1", "2", "2", "0", "1", "2"]);
    gateway.reload(&yaml.replace("round_robin", "least_requests")).unwrap();
    let picked: Vec<String> = (0..200).map(|_| gateway.get("/").text().to_owned()).collect();
    for n in ["0", "1", "2"] {
        assert!(picked.iter().any(|p| p == n), "{n} is never picked");
    }
    assert!(backends.iter().all(|b| b.connections() <= 2), "pools go on over the reload");
}

#[test]
fn an_old_client_gets_an_answer_it_can_read() {
    let (_backend, gateway) =
        answering("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n");
    let mut connection = gateway.connect();
    connection.write(b"GET / HTTP/1.0\r\nhost: a\r\n\r\n");
    let reply = connection.read_reply("GET");
    assert_eq!((reply.status, reply.text()), (200, "ok"));
    assert_eq!(reply.header("transfer-encoding"), None);
}

#[test]
fn an_answer_before_the_end_of_the_upload_holds_up_nobody() {
    let early = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let yaml = format!(
        "upstreams: {{ early: 'http://{}' }}\nroutes: [{{ path: /early, upstream: early }}]\n",
        early.local_addr().unwrap()
    );
    let gateway = Gateway::start(&yaml);
    let answering = std::thread::spawn(move || {
        let mut answered = 0;
        while answered < 2 {
            let (mut stream, _) = early.accept().unwrap();
            let mut bytes = [0; 4096];
            if stream.read(&mut bytes).is_ok_and(|count| count > 0) {
                answered += 1;
                stream.write_all(&ok("early")).unwrap();
                std::thread::spawn(move || drop(stream.read(&mut bytes)));
            }
        }
    });
    let head = b"POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nabc";
    let mut uploading = gateway.connect();
    uploading.write(head);
    assert_eq!(uploading.read_reply("POST").text(), "early");
    // The next request does not wait for the rest of the first one's body.
    let mut next = gateway.connect();
    next.write(head);
    assert_eq!(next.read_reply("POST").text(), "early");
    answering.join().unwrap();
}

#[test]
fn a_refused_upload_still_gets_its_answer() {
    let backend = Backend::start();
    let gateway = Gateway::start(&crate::common::limited(&backend, "[{ by: ip, rate: 1/hour }]"));
    gateway.get("/");
    // A short body came with its head: the connection goes on.
    let mut connection = gateway.connect();
    for _ in 0..3 {
        let reply = connection.send("POST", "/", &[], b"short");
        assert_eq!((reply.status, reply.header("connection")), (429, None));
    }
    // A long one is not waited for, but the answer is not lost to a reset either.
    for _ in 0..20 {
        let mut connection = gateway.connect();
        connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n");
        connection.write(&vec![b'x'; 200_000]);
        let reply = connection.read_reply("POST");
        assert_eq!((reply.status, reply.header("connection")), (429, Some("close")));
    }
    assert_eq!(backend.seen().len(), 1);
}

#[test]
fn a_caller_who_leaves_lets_go_of_everything() {
    let backend = Backend::with(|_, stream| {
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
        let _ = stream.write_all(head);
        let mut byte = [0];
        let _ = stream.read(&mut byte); // until the gateway hangs up
        false
    });
    let yaml = format!("admin: 127.0.0.1:0\n{}", open(&backend));
    let gateway = Gateway::start(&yaml);
    for _ in 0..5 {
        let mut connection = gateway.connect();
        connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(connection.head().unwrap().status, 200);
    }
    let lines = gateway.log.wait_for(5);
    assert!(lines.iter().all(|line| line.get("aborted").is_some()));
    let metrics = crate::common::Connection::to_operator(gateway.admin()).get("/metrics");
    assert!(metrics.text().contains("sluice_requests_in_flight 0\n"), "{}", metrics.text());
}

/// Answers at once, keeps the connection, and never reads the rest of an upload.
fn answering_early(
    answer: &'static str,
) -> (std::net::SocketAddr, std::sync::mpsc::Receiver<Vec<u8>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, tell) = (stream.unwrap(), tell.clone());
            std::thread::spawn(move || {
                let (mut seen, mut bytes) = (Vec::new(), [0; 4096]);
                let mut answered = false;
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    seen.extend_from_slice(&bytes[..count]);
                    if !answered && seen.windows(4).any(|four| four == b"\r\n\r\n") {
                        answered = true;
                        let _ = stream.write_all(answer.as_bytes());
                    }
                }
                let _ = tell.send(seen);
            });
        }
    });
    (address, told)
}

#[test]
fn an_upload_that_breaks_off_after_the_answer_began_never_looks_whole() {
    let begun = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
    let too_large = format!("40\r\n{}\r\n0\r\n\r\n", "z".repeat(64));
    let uploads = [
        ("content-length: 40", "abc", ""),
        ("transfer-encoding: chunked", "5\r\nhello\r\n", "ZZ\r\n"),
        ("transfer-encoding: chunked", "5\r\nhello\r\n", too_large.as_str()),
    ];
    for (framing, start, end) in uploads {
        let (address, told) = answering_early(begun);
        let gateway = Gateway::start(&format!(
            "upstreams: {{ app: 'http://{address}' }}\nroutes: [{{ path: /, upstream: app, max_body_bytes: 40 }}]\n"
        ));
        let mut connection = gateway.connect();
        connection
            .write(format!("POST / HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n{start}").as_bytes());
        assert_eq!(connection.head().unwrap().status, 200);
        connection.write(end.as_bytes());
        connection.stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The backend's connection ends: nothing is left to be taken for the next request's bytes.
        let seen = told.recv_timeout(Duration::from_secs(10)).expect("the connection is closed");
        let seen = String::from_utf8(seen).unwrap();
        let (_, body) = seen.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, start, "{framing}");
    }
}

#[test]
fn a_caller_may_send_everything_before_reading_anything() {
    const SIZE: usize = 24 << 20;
    let echo = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let yaml = format!(
        "upstreams: {{ app: 'http://{}' }}\nroutes: [{{ path: /, upstream: app, max_body_bytes: none }}]\n",
        echo.local_addr().unwrap()
    );
    // Sends as much as it gets, from the first byte on, and never holds up the one for the other.
    let backend = std::thread::spawn(move || {
        let (mut stream, _) = echo.accept().unwrap();
        let mut bytes = vec![0; 1 << 20];
        let count = stream.read(&mut bytes).unwrap();
        let head = bytes[..count].windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let mut writing = stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n");
            let _ = writing.write_all(head.as_bytes());
            let _ = writing.write_all(&vec![b'y'; SIZE]);
        });
        let mut got = count - head;
        while got < SIZE {
            got += stream.read(&mut bytes).unwrap();
        }
        writer.join().unwrap();
    });
    let gateway = Gateway::start(&yaml);
    let mut connection = gateway.connect();
    connection
        .write(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {SIZE}\r\n\r\n").as_bytes());
    connection.write(&vec![b'x'; SIZE]);
    assert_eq!(connection.read_reply("POST").body.len(), SIZE);
    backend.join().unwrap();
}

#[test]
fn a_backend_that_dies_of_a_request_is_asked_twice_at_most() {
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&asked);
    let backend = Backend::with(move |seen, stream| {
        if seen.target == "/deadly" {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            return false;
        }
        std::thread::sleep(Duration::from_millis(100)); // so that several connections are needed
        stream.write_all(&ok("fine")).is_ok()
    });
    let gateway = Gateway::start(&open(&backend));
    let connections: Vec<_> = (0..6)
        .map(|_| {
            let mut connection = gateway.connect();
            connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            connection
        })
        .collect();
    for mut connection in connections {
        assert_eq!(connection.read_reply("GET").status, 200);
    }
    assert_eq!(gateway.get("/deadly").status, 502);
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 2);
}
