//! The guards of the edge: time-outs and sizes.

use crate::common::{Backend, Connection, Gateway, eventually, open};
use crate::stopping::Process;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn guarded(backend: &Backend, server: &str) -> Gateway {
    Gateway::start(&format!("server: {{ {server} }}\n{}", open(backend)))
}

fn refused(gateway: &Gateway, reason: &str) -> u64 {
    let page = gateway
        .server()
        .gateway()
        .metrics
        .render(sluice::metrics::Format::Classic, &sluice::metrics::Readings::default());
    let line = format!("sluice_refused_total{{reason=\"{reason}\"}} ");
    page.lines().find_map(|text| text.strip_prefix(&line)?.parse().ok()).expect("a counter")
}

#[test]
fn a_head_that_does_not_come_is_408() {
    let backend = Backend::start();
    let gateway = guarded(&backend, "header_timeout: 200ms");
    for part in ["", "GET", "GET / HTTP/1.1\r\nhost: a\r\nx: "] {
        let mut connection = gateway.connect();
        let began = Instant::now();
        connection.write(part.as_bytes());
        let reply = connection.read_reply("GET");
        assert_eq!((reply.status, reply.header("connection")), (408, Some("close")), "{part:?}");
        assert!(connection.is_closed());
        assert!((150..5000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    }
}

#[test]
fn bytes_that_trickle_in_do_not_put_the_time_out_off() {
    let backend = Backend::start();
    let gateway = guarded(&backend, "header_timeout: 300ms");
    let mut connection = gateway.connect();
    connection.write(b"GET / HTTP/1.1\r\n");
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1500) {
        connection.write(b"x: y\r\n");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(connection.try_reply("GET").map(|reply| reply.status), Some(408));
}

#[test]
fn an_idle_connection_is_closed_quietly_and_a_busy_one_is_not() {
    let backend = Backend::with(|seen, stream| {
        if seen.target == "/slow" {
            std::thread::sleep(Duration::from_millis(1500));
        }
        std::io::Write::write_all(stream, &crate::common::backend::ok("x")).is_ok()
    });
    let gateway = guarded(&backend, "idle_timeout: 1s, header_timeout: 200ms");
    let mut connection = gateway.connect();
    assert_eq!(connection.get("/slow").status, 200);
    let began = Instant::now();
    assert_eq!(connection.get("/").status, 200);
    assert!(connection.is_closed(), "no byte before the end");
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
}

#[test]
fn a_head_too_large_is_refused() {
    let backend = Backend::start();
    let gateway = guarded(&backend, "max_headers: 10, max_header_bytes: 8KiB");
    let many: Vec<(String, &str)> = (0..20).map(|n| (format!("x-{n}"), "1")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), *v)).collect();
    assert_eq!(gateway.get_with("/", &many).status, 431);
    let large = "x".repeat(9000);
    assert_eq!(gateway.get_with("/", &[("x-large", &large)]).status, 431);
    assert_eq!(gateway.get_with("/", &[("x-large", &large[..4000])]).status, 200);
    assert_eq!(backend.seen().len(), 1);
}

#[test]
fn a_body_too_large_is_413_before_and_during_the_body() {
    let backend = Backend::start();
    let yaml = format!(
        "server: {{ max_body_bytes: 1KiB }}\nupstreams: {{ app: 'http://{}' }}\nroutes:\n  - {{ path: /, upstream: app }}\n  - {{ path: /large, upstream: app, max_body_bytes: 4KiB }}\n  - {{ path: /any, upstream: app, max_body_bytes: none }}\n",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let status =
        |path: &str, length: usize| gateway.send("POST", path, &[], &vec![b'x'; length]).status;
    assert_eq!([status("/", 1024), status("/", 1025)], [200, 413]);
    assert_eq!([status("/large", 4096), status("/large", 4097)], [200, 413]);
    assert_eq!(status("/any", 1 << 20), 200);
    let mut connection = gateway.connect();
    connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    for _ in 0..3 {
        connection.write(b"200\r\n");
        connection.write(&[b'x'; 512]);
        connection.write(b"\r\n");
    }
    assert_eq!(connection.read_reply("POST").status, 413);
    assert!(backend.seen().iter().all(|seen| seen.target != "/" || seen.body.len() == 1024));
}

#[test]
fn a_caller_who_stops_sending_is_408() {
    let backend = Backend::start();
    let gateway = guarded(&backend, "body_timeout: 200ms");
    let mut connection = gateway.connect();
    connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc");
    assert_eq!(connection.read_reply("POST").status, 408);
    assert!(connection.is_closed());
    assert_eq!(refused(&gateway, "body_timeout"), 1);
}

#[test]
fn a_body_that_trickles_in_is_408() {
    let backend = Backend::start();
    let gateway = guarded(&backend, "body_timeout: 400ms");
    for head in ["content-length: 100000", "transfer-encoding: chunked"] {
        let mut connection = gateway.connect();
        connection.write(format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n").as_bytes());
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1500) {
            connection.write(if head.starts_with('c') { b"x" } else { b"1\r\nx\r\n" });
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(connection.try_reply("POST").map(|reply| reply.status), Some(408), "{head}");
    }
    // Whoever sends enough may take as long as it takes, here half as long again as the time-out.
    let gateway = guarded(&backend, "body_timeout: 2s");
    let mut connection = gateway.connect();
    connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10240\r\n\r\n");
    for _ in 0..10 {
        connection.write(&[b'x'; 1024]);
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(connection.read_reply("POST").status, 200);
}

#[test]
fn a_target_too_long_is_414() {
    let backend = Backend::start();
    let gateway = guarded(&backend, "max_uri_bytes: 1KiB");
    let mut connection = gateway.connect();
    assert_eq!(connection.get(&format!("/{}", "x".repeat(1023))).status, 200);
    assert_eq!(connection.get(&format!("/{}", "x".repeat(1024))).status, 414);
    assert_eq!(connection.get(&format!("/?{}", "x".repeat(60_000))).status, 414);
    assert_eq!(connection.get("/").status, 200, "the connection goes on");
    assert_eq!((backend.count(), refused(&gateway, "uri_too_long")), (2, 2));
    let mut client = crate::common::http2::Client::open(gateway.address());
    assert_eq!(client.get(&format!("/{}", "x".repeat(1024))).status, 414);
}

#[test]
fn no_address_takes_all_connections() {
    let backend = Backend::start();
    // Half of them unless it is said.
    for (server, most) in [("max_connections: 6", 3), ("max_connections_per_ip: 2", 2)] {
        let gateway = guarded(&backend, server);
        let mut kept: Vec<_> = (0..most).map(|_| gateway.connect()).collect();
        for connection in &mut kept {
            assert_eq!(connection.get("/").status, 200, "{server}");
        }
        assert!(gateway.connect().is_closed(), "{server}");
        assert_eq!(refused(&gateway, "too_many_connections_per_ip"), 1);
        // Another address is another matter.
        let other = std::net::SocketAddr::from(([127, 0, 0, 9], 0));
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&other.into()).unwrap();
        socket.connect(&gateway.address().into()).unwrap();
        let mut connection = crate::common::Connection::over(std::net::TcpStream::from(socket));
        assert_eq!(connection.get("/").status, 200);
        kept.pop();
        eventually("room", || gateway.connect().try_get("/"));
    }
}

#[test]
fn trusted_proxies_may_have_as_many_connections_as_there_are() {
    let backend = Backend::start();
    let yaml = format!(
        "identity: {{ trusted_proxies: [127.0.0.1] }}\nserver: {{ max_connections_per_ip: 1 }}\n{}",
        open(&backend)
    );
    let gateway = Gateway::start(&yaml);
    let mut kept: Vec<_> = (0..5).map(|_| gateway.connect()).collect();
    assert!(kept.iter_mut().all(|connection| connection.get("/").status == 200));
}

#[test]
fn a_slow_upload_is_no_slow_backend() {
    let backend = Backend::start();
    let yaml = format!(
        "upstreams: {{ app: {{ endpoints: ['http://{}'], timeouts: {{ response: 1s }} }} }}\nroutes: [{{ path: /, upstream: app }}]\n",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let mut connection = gateway.connect();
    connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n");
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(150));
        connection.write(b"x");
    }
    assert_eq!(connection.read_reply("POST").status, 200);
}

#[test]
fn connections_are_capped() {
    let backend = Backend::start();
    let gateway = guarded(&backend, "max_connections: 3, max_connections_per_ip: none");
    let mut kept: Vec<_> = (0..3).map(|_| gateway.connect()).collect();
    for connection in &mut kept {
        assert_eq!(connection.get("/").status, 200);
    }
    let mut beyond = gateway.connect();
    assert!(beyond.is_closed());
    kept.pop();
    eventually("room", || gateway.connect().try_get("/"));
}

#[test]
fn a_caller_who_does_not_read_is_cut_off() {
    let backend = Backend::with(|_, stream| {
        let piece = vec![b'x'; 1 << 20];
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", piece.len() * 64);
        std::io::Write::write_all(stream, head.as_bytes()).is_ok()
            && (0..64).all(|_| std::io::Write::write_all(stream, &piece).is_ok())
    });
    let gateway = guarded(&backend, "idle_timeout: 300ms");
    let mut connection = gateway.connect();
    connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let lines = gateway.log.wait_for(1);
    assert!(lines[0].get("aborted").is_some(), "{lines:?}");
}

#[test]
fn an_early_answer_and_the_rest_of_the_upload_are_no_next_request() {
    let early = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = early.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = early.accept().unwrap();
        let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
        std::io::Write::write_all(&mut stream, &crate::common::backend::ok("early")).unwrap();
        while std::io::Read::read(&mut stream, &mut [0; 4096]).is_ok_and(|n| n > 0) {}
    });
    let yaml = format!(
        "server: {{ header_timeout: 100ms }}\nupstreams: {{ app: 'http://{address}' }}\nroutes: [{{ path: /, upstream: app }}]\n"
    );
    let gateway = Gateway::start(&yaml);
    let mut connection = gateway.connect();
    connection.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n");
    assert_eq!(connection.read_reply("POST").text(), "early");
    for _ in 0..5 {
        connection.write(b"more");
        std::thread::sleep(Duration::from_millis(60));
    }
    assert!(connection.is_closed(), "not a byte more");
}

#[test]
fn connections_are_spread_evenly_over_the_workers() {
    let backend = Backend::start();
    let gateway = guarded(&backend, "max_connections: 100");
    let mut kept: Vec<_> = (0..40).map(|_| gateway.connect()).collect();
    for connection in &mut kept {
        connection.get("/");
    }
    let workers = &gateway.server().gateway().metrics.workers;
    let counts: Vec<u64> =
        workers.iter().map(sluice::metrics::WorkerMetrics::connections).collect();
    assert_eq!(counts.iter().sum::<u64>(), 40);
    assert!(counts[0].abs_diff(counts[1]) <= 2, "{counts:?}");
}

/// The real binary, with this before it on a shell's line.
fn launched(backend: &Backend, stdout: Stdio, shell: &str) -> (Process, std::net::SocketAddr) {
    let folder = tempfile::tempdir().unwrap();
    let yaml = format!("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{}", open(backend));
    std::fs::write(folder.path().join("gateway.yaml"), yaml).unwrap();
    let line = format!("{shell}; exec {} run -c gateway.yaml", env!("CARGO_BIN_EXE_sluice"));
    let mut command = Command::new("bash");
    command.args(["-c", &line]).stdout(stdout);
    let quiet = |lines: std::io::Lines<std::io::BufReader<std::process::ChildStderr>>| {
        std::thread::spawn(move || lines.for_each(drop));
    };
    let process = Process::launch(folder, &mut command, quiet);
    let admin = process.admin.expect("an admin listener");
    (process, admin)
}

#[test]
fn running_out_of_file_descriptors_harms_nobody_for_long() {
    let backend = Backend::start();
    let (process, admin) = launched(&backend, Stdio::null(), "ulimit -n 100");
    let flood: Vec<_> = (0..300)
        .map(|_| {
            let mut connection = Connection::open(process.address);
            let _ = std::io::Write::write_all(&mut connection.stream, b"GET / HTTP/1.1\r\n");
            connection
        })
        .collect();
    // The operator gets through, and so do those who had come before.
    let page = eventually("the operator's page", || {
        Connection::to_operator(admin).try_get("/metrics").filter(|page| page.status == 200)
    });
    assert!(page.text().contains("sluice_refused_total{reason=\"too_many_connections"));
    drop(flood);
    eventually("room", || Connection::open(process.address).try_get("/"));
}

#[test]
fn a_full_disk_under_the_access_log_costs_lines_and_nothing_else() {
    let backend = Backend::start();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (process, admin) = launched(&backend, full.into(), "true");
    let mut connection = Connection::open(process.address);
    for _ in 0..20 {
        assert_eq!(connection.get("/").status, 200);
    }
    eventually("lost lines", || {
        let page = Connection::to_operator(admin).get("/metrics");
        page.text().contains("sluice_access_log_dropped_total 20").then_some(())
    });
}

/// hyper does not read on while it has read ahead, and would not hear of it.
#[test]
fn a_caller_who_has_left_is_noticed_whatever_they_sent_ahead() {
    let backend = Backend::with(|_, stream| {
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n";
        std::io::Write::write_all(stream, head).is_ok()
    });
    let gateway = guarded(&backend, "max_connections_per_ip: 6");
    let much = vec![b'x'; 100_000];
    for ahead in [&b"G"[..], b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n", &much] {
        for _ in 0..3 {
            let mut connection = gateway.connect();
            connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            assert_eq!(connection.head().unwrap().status, 200);
            let _ = std::io::Write::write_all(&mut connection.stream, ahead);
        }
        eventually("nobody to be there", || {
            (gateway.server().gateway().metrics.connections() == 0).then_some(())
        });
    }
}
