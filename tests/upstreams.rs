//! Several endpoints: how requests are spread, and what happens when some of them fail.

use crate::common::backend::ok;
use crate::common::{Backend, Connection, Gateway, HeldPort, Names, eventually};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A catch-all route to these endpoints, with these settings.
fn yaml(endpoints: &[SocketAddr], settings: &str) -> String {
    let urls: Vec<String> = endpoints.iter().map(|address| format!("'http://{address}'")).collect();
    let urls = urls.join(", ");
    format!(
        "admin: 127.0.0.1:0\nidentity: {{ trusted_proxies: [127.0.0.1] }}\nupstreams: {{ app: {{ endpoints: [{urls}], {settings} }} }}\nroutes: [{{ path: /, upstream: app }}]\n"
    )
}

fn addresses(backends: &[Backend]) -> Vec<SocketAddr> {
    backends.iter().map(Backend::address).collect()
}

fn three() -> Vec<Backend> {
    (0..3).map(|_| Backend::start()).collect()
}

/// Answers with this status, as long as it is switched on; otherwise `200`.
fn failing(status: u16) -> (Backend, Arc<AtomicBool>) {
    let on = Arc::new(AtomicBool::new(true));
    let fails = Arc::clone(&on);
    let backend = Backend::answering(move |_| {
        if fails.load(Ordering::SeqCst) {
            format!("HTTP/1.1 {status} No\r\ncontent-length: 2\r\n\r\nno").into_bytes()
        } else {
            ok("well")
        }
    });
    (backend, on)
}

/// Statuses of so many requests, each of another caller.
fn statuses_of_callers(gateway: &Gateway, path: &str, count: usize) -> Vec<u16> {
    let mut connection = gateway.connect();
    let ask = |n: usize| {
        let caller = format!("10.0.{}.{}", n / 256, n % 256);
        let reply = connection.send("GET", path, &[("x-forwarded-for", &caller)], b"");
        if reply.header("connection") == Some("close") {
            connection = gateway.connect();
        }
        reply.status
    };
    (0..count).map(ask).collect()
}

fn reload(gateway: &Gateway, yaml: &str) {
    gateway.reload(yaml).expect("a good file");
}

fn metrics(gateway: &Gateway) -> String {
    Connection::to_operator(gateway.admin()).get("/metrics").text().to_owned()
}

fn metric(gateway: &Gateway, line: &str) -> u64 {
    let page = metrics(gateway);
    let found = page.lines().find_map(|text| text.strip_prefix(line)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {line} in\n{page}"))
}

#[test]
fn a_dead_endpoint_costs_nobody_an_answer_and_is_left_alone_soon() {
    let backends = three();
    let mut all = addresses(&backends);
    let dead = HeldPort::new();
    all.push(dead.address());
    let gateway = Gateway::start(&yaml(&all, "balance: round_robin"));
    assert!(gateway.statuses("/", &[], 80).iter().all(|status| *status == 200));
    assert_eq!(metric(&gateway, "sluice_upstream_ejections_total{upstream=\"app\"}"), 1);
    assert_eq!(metric(&gateway, "sluice_upstream_retries_total{upstream=\"app\"}"), 5);
    let out = format!("sluice_endpoint_in_service{{upstream=\"app\",endpoint=\"{}\"}}", all[3]);
    assert_eq!(metric(&gateway, &out), 0);
    let tries = gateway.log.wait_for(80);
    assert_eq!(tries.iter().filter(|line| line.get("attempts").is_some()).count(), 5);
}

#[test]
fn what_was_sent_may_not_be_sent_again_unless_twice_is_as_once() {
    let backends = three();
    let mut all = addresses(&backends);
    let dead = HeldPort::new();
    all.push(dead.address());
    let gateway = Gateway::start(&yaml(&all, "balance: round_robin, eject: off"));
    // Nothing was sent where the connection is refused, so that even a POST can be sent elsewhere.
    let statuses: Vec<u16> =
        (0..8).map(|_| gateway.send("POST", "/", &[], b"body").status).collect();
    assert_eq!(statuses, [200; 8]);
    // So it is with a PUT, and its body was not touched.
    let statuses: Vec<u16> =
        (0..8).map(|_| gateway.send("PUT", "/", &[], b"body").status).collect();
    assert_eq!(statuses, [200; 8]);
    let bodies = backends.iter().flat_map(Backend::seen).filter(|seen| seen.method == "PUT");
    assert!(bodies.map(|seen| seen.body).eq(vec![b"body".to_vec(); 8]));
    // What was sent may have been done.
    let dying = Backend::answering(|_| Vec::new());
    let rude = [dying.address(), backends[0].address()];
    let gateway = Gateway::start(&yaml(&rude, "balance: round_robin, eject: off"));
    let statuses: Vec<u16> =
        (0..8).map(|_| gateway.send("POST", "/", &[], b"body").status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 502).count(), 4, "{statuses:?}");
}

#[test]
fn a_status_is_tried_elsewhere_only_if_that_is_said() {
    for (settings, expected) in [
        ("retries: { on: [connect_failure, 503] }", vec![200; 10]),
        ("retries: { on: connect_failure }", [503, 200].repeat(5)),
        ("retries: off", [503, 200].repeat(5)),
        ("retries: { attempts: 1, on: [503] }", [503, 200].repeat(5)),
        ("retries: { on: [500, 502] }", [503, 200].repeat(5)),
    ] {
        let ((bad, _), good) = (failing(503), Backend::start());
        let all = [bad.address(), good.address()];
        let settings = format!("balance: round_robin, eject: off, {settings}");
        let gateway = Gateway::start(&yaml(&all, &settings));
        let mut statuses = gateway.statuses("/", &[], 10);
        if expected[0] == 503 {
            // Who comes first is not said.
            statuses.sort_unstable_by_key(|status| std::cmp::Reverse(*status));
            statuses = [statuses[0], statuses[9]].repeat(5);
        }
        assert_eq!(statuses, expected, "{settings}");
    }
}

#[test]
fn the_last_answer_counts_when_every_endpoint_fails() {
    let ((one, _), (two, _)) = (failing(503), failing(503));
    let all = [one.address(), two.address()];
    let gateway = Gateway::start(&yaml(&all, "retries: { attempts: 5, on: [503] }, eject: off"));
    let reply = gateway.get("/");
    assert_eq!((reply.status, reply.text()), (503, "no"));
    assert_eq!(one.count() + two.count(), 2, "each is asked once");
}

#[test]
fn retries_have_a_budget() {
    let ((bad, _), good) = (failing(503), Backend::start());
    let all = [bad.address(), good.address()];
    let settings = "balance: round_robin, eject: off, retries: { on: [503], budget: 10% }";
    let gateway = Gateway::start(&yaml(&all, settings));
    let mut connection = gateway.connect();
    let statuses: Vec<u16> = (0..400).map(|_| connection.get("/").status).collect();
    let failed = statuses.iter().filter(|status| **status == 503).count();
    // Of 200 that meet the bad one, a tenth of all 400 and ten more are sent again; a little more if
    // it takes longer than a second.
    assert!((130..=160).contains(&failed), "{failed}");
    let refused = metric(&gateway, "sluice_upstream_retries_refused_total{upstream=\"app\"}");
    assert_eq!(refused as usize, failed);
}

#[test]
fn an_endpoint_that_answers_5xx_is_ejected_and_comes_back() {
    let ((bad, on), good) = (failing(500), Backend::start());
    let all = [bad.address(), good.address()];
    let settings = "balance: round_robin, eject: { after: 3, for: 30s }, slow_start: 0s";
    let gateway = Gateway::start(&yaml(&all, settings));
    let failed = |count| {
        let statuses = statuses_of_callers(&gateway, "/", count);
        statuses.into_iter().filter(|status| *status == 500).count()
    };
    assert_eq!(failed(40), 3);
    gateway.advance(Duration::from_secs(29));
    assert_eq!(failed(10), 0);
    gateway.advance(Duration::from_secs(1));
    assert_eq!(failed(10), 1, "once is enough right after it is back");
    gateway.advance(Duration::from_secs(30));
    on.store(false, Ordering::SeqCst);
    assert_eq!(failed(10), 0);
    assert_eq!(bad.count(), 3 + 1 + 5);
}

#[test]
fn who_is_back_gets_its_share_little_by_little() {
    let ((bad, on), good) = (failing(500), Backend::start());
    let all = [bad.address(), good.address()];
    let settings = "balance: round_robin, eject: { after: 2, for: 30s }, slow_start: 10s";
    let gateway = Gateway::start(&yaml(&all, settings));
    let send = |count| drop(statuses_of_callers(&gateway, "/", count));
    send(4);
    on.store(false, Ordering::SeqCst);
    gateway.advance(Duration::from_secs(30));
    let share = |gateway: &Gateway, seconds| {
        let before = bad.count();
        send(1000);
        gateway.advance(Duration::from_secs(seconds));
        bad.count() - before
    };
    let shares = [share(&gateway, 5), share(&gateway, 5), share(&gateway, 0)];
    assert!((20..90).contains(&shares[0]), "{shares:?}");
    assert!((180..320).contains(&shares[1]), "{shares:?}");
    assert_eq!(shares[2], 500);
}

#[test]
fn a_body_that_breaks_off_counts_as_a_failure_and_a_caller_who_leaves_does_not() {
    let broken =
        Backend::answering(|_| Vec::from(*b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort"));
    let good = Backend::start();
    // It keeps the connection open; closing it is what breaks the body off.
    let closing = Backend::with(|_, stream| {
        let _ =
            std::io::Write::write_all(stream, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort");
        false
    });
    let settings = "balance: round_robin, eject: { after: 3, for: 30s }";
    let gateway = Gateway::start(&yaml(&[closing.address(), good.address()], settings));
    for caller in 0..6 {
        let mut connection = gateway.connect();
        let head = format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.0.0.{caller}\r\n\r\n");
        connection.write(head.as_bytes());
        let _ = connection.try_reply("GET");
    }
    assert_eq!(metric(&gateway, "sluice_upstream_ejections_total{upstream=\"app\"}"), 1);
    let gateway = Gateway::start(&yaml(&[broken.address(), good.address()], settings));
    for caller in 0..12 {
        let mut connection = gateway.connect();
        let head = format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.0.0.{caller}\r\n\r\n");
        connection.write(head.as_bytes());
        connection.head();
    }
    eventually("everybody left", || {
        (metric(&gateway, "sluice_requests_in_flight") == 0).then_some(())
    });
    assert_eq!(metric(&gateway, "sluice_upstream_ejections_total{upstream=\"app\"}"), 0);
}

#[test]
fn an_endpoint_that_hangs_is_ejected() {
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap(); // accepts, and says nothing
    let good = Backend::start();
    let settings =
        "balance: round_robin, eject: { after: 2, for: 30s }, timeouts: { response: 100ms }";
    let all = [hanging.local_addr().unwrap(), good.address()];
    let gateway = Gateway::start(&yaml(&all, settings));
    let statuses = statuses_of_callers(&gateway, "/", 20);
    assert_eq!(statuses.iter().filter(|status| **status == 504).count(), 2, "{statuses:?}");
    // Whoever says so has it tried elsewhere.
    let settings = format!("{settings}, retries: {{ on: [timeout] }}");
    let gateway = Gateway::start(&yaml(&all, &settings));
    assert_eq!(gateway.statuses("/", &[], 20), [200; 20]);
}

const CHECKED: &str = "health: { path: /healthz, every: 100ms, unhealthy_after: 2, healthy_after: 2 }, balance: round_robin, slow_start: 0s, eject: off, retries: off";

/// Answers checks with what is said, and everything else with 200.
fn checked() -> (Backend, Arc<AtomicUsize>) {
    let status = Arc::new(AtomicUsize::new(200));
    let says = Arc::clone(&status);
    let backend = Backend::answering(move |seen| {
        if seen.target != "/healthz" {
            return ok("hello");
        }
        let status = says.load(Ordering::SeqCst);
        format!("HTTP/1.1 {status} So\r\ncontent-length: 0\r\n\r\n").into_bytes()
    });
    (backend, status)
}

fn in_service(gateway: &Gateway, endpoint: SocketAddr) -> bool {
    let line = format!("sluice_endpoint_in_service{{upstream=\"app\",endpoint=\"{endpoint}\"}}");
    metric(gateway, &line) == 1
}

#[test]
fn an_endpoint_whose_checks_fail_gets_no_requests_until_they_pass() {
    let ((ill, status), good) = (checked(), Backend::start());
    let gateway = Gateway::start(&yaml(&[ill.address(), good.address()], CHECKED));
    let requests = || ill.seen().iter().filter(|seen| seen.target == "/").count();
    eventually("a check", || ill.seen().iter().any(|s| s.target == "/healthz").then_some(()));
    gateway.statuses("/", &[], 10);
    assert_eq!(requests(), 5);
    status.store(500, Ordering::SeqCst);
    eventually("the check to fail", || (!in_service(&gateway, ill.address())).then_some(()));
    gateway.statuses("/", &[], 10);
    assert_eq!(requests(), 5);
    // It is asked as itself, and the connection is not kept.
    let check = ill.seen().into_iter().find(|seen| seen.target == "/healthz").unwrap();
    assert_eq!(check.header("host"), Some(ill.address().to_string().as_str()));
    assert_eq!(check.header("connection"), Some("close"));
    status.store(302, Ordering::SeqCst);
    eventually("the check to pass", || in_service(&gateway, ill.address()).then_some(()));
    gateway.statuses("/", &[], 10);
    assert_eq!(requests(), 10);
    assert!(metric(&gateway, "sluice_health_checks_failed_total{upstream=\"app\"}") >= 2);
}

#[test]
fn without_an_endpoint_in_service_it_is_503_at_once() {
    let ports = [(); 3].map(|()| HeldPort::new());
    let backends = ports.each_ref().map(Backend::at);
    let all = addresses(&backends);
    let gateway = Gateway::start(&yaml(&all, CHECKED));
    assert_eq!(gateway.get("/").status, 200);
    drop(backends);
    eventually("all of them to be out", || {
        (!all.iter().any(|address| in_service(&gateway, *address))).then_some(())
    });
    let reply = gateway.get("/");
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    assert_eq!(reply.header("content-length"), Some("0"));
    let began = Instant::now();
    let _backends = ports.each_ref().map(Backend::at);
    eventually("all of them to be back", || {
        all.iter().all(|address| in_service(&gateway, *address)).then_some(())
    });
    // Within a health interval, as far as a busy machine can tell.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(gateway.statuses("/", &[], 6), [200; 6]);
}

#[test]
fn a_first_check_that_fails_is_enough() {
    let ((ill, status), good) = (checked(), Backend::start());
    status.store(500, Ordering::SeqCst);
    let settings = CHECKED.replace("unhealthy_after: 2", "unhealthy_after: 1000");
    let gateway = Gateway::start(&yaml(&[ill.address(), good.address()], &settings));
    eventually("the check to fail", || (!in_service(&gateway, ill.address())).then_some(()));
}

#[test]
fn health_survives_a_reload_and_without_checks_nobody_is_ill() {
    let ((ill, status), good) = (checked(), Backend::start());
    let all = [ill.address(), good.address()];
    status.store(500, Ordering::SeqCst);
    let gateway = Gateway::start(&yaml(&all, CHECKED));
    eventually("the check to fail", || (!in_service(&gateway, ill.address())).then_some(()));
    reload(&gateway, &yaml(&all, &CHECKED.replace("every: 100ms", "every: 60s")));
    assert!(!in_service(&gateway, ill.address()));
    reload(&gateway, &yaml(&all, "balance: round_robin"));
    eventually("nobody to be ill", || in_service(&gateway, ill.address()).then_some(()));
}

#[test]
fn checks_go_through_tls_and_http2_as_requests_do() {
    // A backend in the clear is not well for an upstream that speaks HTTP/2 to it.
    let backend = Backend::start();
    let settings = "http2: true, health: { path: /, every: 100ms, timeout: 100ms }";
    let gateway = Gateway::start(&yaml(&[backend.address()], settings));
    eventually("the check to fail", || (!in_service(&gateway, backend.address())).then_some(()));
    let peer = crate::common::http2::Backend::start();
    let gateway = Gateway::start(&yaml(&[peer.address], settings));
    eventually("a check over HTTP/2", || (peer.seen().len() > 1).then_some(()));
    assert!(in_service(&gateway, peer.address));
}

#[test]
fn a_callers_address_decides_with_hash_ip() {
    let backends = three();
    let settings = "balance: hash_ip";
    let gateway = Gateway::start(&yaml(&addresses(&backends), settings));
    for caller in 0..60 {
        let header = format!("10.0.0.{caller}");
        let before: Vec<usize> = backends.iter().map(Backend::count).collect();
        for _ in 0..3 {
            gateway.get_with("/", &[("x-forwarded-for", &header)]);
        }
        let after = backends.iter().map(Backend::count);
        let got: Vec<usize> = after.zip(before).map(|(after, before)| after - before).collect();
        assert!(got.contains(&3), "one caller, one endpoint: {got:?}");
    }
    assert!(backends.iter().all(|backend| backend.count() > 0));
}

#[test]
fn endpoints_follow_their_name_as_its_records_change() {
    let names = Names::default();
    let set = |ips: &[&str]| {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        names.lock().insert("app.test".to_owned(), ips);
    };
    // Two addresses of one machine with the same port.
    let (first, second) = loop {
        let first = HeldPort::new();
        if let Some(second) = first.also_on([127, 0, 0, 2].into()) {
            break (first, second);
        }
    };
    let (one, two, port) = (Backend::at(&first), Backend::at(&second), first.port());
    let yaml = format!(
        "admin: 127.0.0.1:0\nupstreams: {{ app: {{ endpoints: ['http://app.test:{port}'], resolve: 100ms, balance: round_robin }} }}\nroutes: [{{ path: /, upstream: app }}]\n"
    );
    let gateway = Gateway::start_with_names(&yaml, &names);
    let reply = gateway.get("/");
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "no such name");
    set(&["127.0.0.1"]);
    eventually("the name", || (gateway.get("/").status == 200).then_some(()));
    assert_eq!((one.count(), two.count()), (1, 0));
    set(&["127.0.0.1", "127.0.0.2"]);
    eventually("the second address", || {
        gateway.get("/");
        (two.count() > 0).then_some(())
    });
    // The first address goes: what it was connected by goes with it.
    set(&["127.0.0.2"]);
    eventually("the first to be left alone", || {
        let before = one.count();
        gateway.statuses("/", &[], 4);
        (one.count() == before).then_some(())
    });
    // A name that cannot be looked up keeps what it had.
    names.lock().clear();
    std::thread::sleep(Duration::from_millis(300)); // it is looked up every 100 ms
    assert_eq!(gateway.statuses("/", &[], 4), [200; 4]);
    // And a reload keeps it too.
    reload(&gateway, &yaml.replace("round_robin", "least_requests"));
    assert_eq!(gateway.statuses("/", &[], 4), [200; 4]);
}

#[test]
fn an_endpoint_that_a_reload_removed_finishes_what_it_has() {
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = parking_lot::Mutex::new(gate);
    let old = Backend::with(move |seen, stream| {
        if seen.target == "/slow" {
            let _ = gate.lock().recv();
        }
        std::io::Write::write_all(stream, &ok("old")).is_ok()
    });
    let new = Backend::answering(|_| ok("new"));
    let gateway = Gateway::start(&yaml(&[old.address()], ""));
    let mut idle = gateway.connect();
    assert_eq!(idle.get("/").text(), "old");
    let mut slow = gateway.connect();
    slow.write(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    eventually("the slow request", || (old.count() == 2).then_some(()));
    reload(&gateway, &yaml(&[new.address()], ""));
    assert_eq!(idle.get("/").text(), "new");
    release.send(()).unwrap();
    assert_eq!(slow.read_reply("GET").text(), "old");
    // No connection to it is left.
    assert_eq!(slow.get("/").text(), "new");
    eventually("its connections to be closed", || (old.open() == 0).then_some(()));
}

fn ejections(gateway: &Gateway) -> u64 {
    metric(gateway, "sluice_upstream_ejections_total{upstream=\"app\"}")
}

#[test]
fn what_callers_do_is_no_fault_of_an_endpoint() {
    let settings = "eject: { after: 2, for: 30s }, retries: off";
    // They have no time.
    let slow: Vec<Backend> = (0..3)
        .map(|_| {
            Backend::with(|_, stream| {
                std::thread::sleep(Duration::from_millis(300));
                std::io::Write::write_all(stream, &ok("late")).is_ok()
            })
        })
        .collect();
    let gateway = Gateway::start(&yaml(&addresses(&slow), settings));
    let mut client = crate::common::http2::Client::open(gateway.address());
    for caller in 0..8 {
        let call = http::Request::post("http://a.test/")
            .header("content-type", "application/grpc")
            .header("grpc-timeout", "1m")
            .header("x-forwarded-for", format!("10.0.0.{caller}"));
        assert_eq!(client.ask(call.body(()).unwrap()).header("grpc-status"), Some("4"));
    }
    assert_eq!(ejections(&gateway), 0);
    // They break their upload off after the answer has begun, and so the answer.
    let early: Vec<TcpListener> =
        (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let all: Vec<SocketAddr> = early.iter().map(|l| l.local_addr().unwrap()).collect();
    for listener in early {
        std::thread::spawn(move || {
            for stream in listener.incoming().take(20) {
                let mut stream = stream.unwrap();
                let mut bytes = [0; 4096];
                let _ = std::io::Read::read(&mut stream, &mut bytes);
                let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nearly\r\n";
                let _ = std::io::Write::write_all(&mut stream, head);
                // Until the upload ends, which it does not do well.
                while std::io::Read::read(&mut stream, &mut bytes).is_ok_and(|n| n > 0) {}
            }
        });
    }
    let gateway = Gateway::start(&yaml(&all, settings));
    for _ in 0..8 {
        let mut connection = gateway.connect();
        connection
            .write(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n");
        assert_eq!(connection.head().unwrap().status, 200);
        connection.write(b"no chunk\r\n");
        assert!(connection.try_reply("POST").is_none());
    }
    eventually("everybody left", || {
        (metric(&gateway, "sluice_requests_in_flight") == 0).then_some(())
    });
    assert_eq!(ejections(&gateway), 0);
}

#[test]
fn a_request_that_kills_connections_leaves_a_share_in_service() {
    let backends: Vec<Backend> = (0..4)
        .map(|_| {
            Backend::answering(|seen| if seen.target == "/poison" { Vec::new() } else { ok("x") })
        })
        .collect();
    let gateway = Gateway::start(&yaml(&addresses(&backends), "eject: { after: 2, for: 30s }"));
    statuses_of_callers(&gateway, "/poison", 30);
    let in_service =
        addresses(&backends).iter().filter(|a| self::in_service(&gateway, **a)).count();
    assert_eq!((ejections(&gateway), in_service), (2, 2));
}

#[test]
fn an_answer_that_falls_silent_is_given_up() {
    let backend = Backend::with(|_, stream| {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort";
        std::io::Write::write_all(stream, head).is_ok()
    });
    let gateway = Gateway::start(&yaml(&[backend.address()], "timeouts: { body: 200ms }"));
    let mut connection = gateway.connect();
    connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(connection.try_reply("GET").is_none());
    assert_eq!(
        metric(&gateway, "sluice_upstream_failures_total{upstream=\"app\",reason=\"broke\"}"),
        1
    );
}
