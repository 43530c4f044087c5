//! More to do than can be done: places, priorities, and who hears what.

use crate::common::backend::ok;
use crate::common::redis::Redis;
use crate::common::{Backend, Connection, Gateway, Reply, eventually};
use crate::stopping::Process;
use parking_lot::{Condvar, Mutex};
use sluice::overload::memory::Memory;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A backend that answers when it is let.
struct Held {
    backend: Backend,
    hand: Arc<Hand>,
}

#[derive(Default)]
struct Hand {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many may still be answered.
    free: usize,
    /// How many are being worked on, and the most that were.
    working: usize,
    most: usize,
}

impl Held {
    fn start() -> Self {
        let hand: Arc<Hand> = Arc::default();
        let inner = Arc::clone(&hand);
        let backend = Backend::with(move |seen, stream| {
            if seen.target == "/free" {
                return stream.write_all(&ok("free")).is_ok();
            }
            let mut state = inner.state.lock();
            state.working += 1;
            state.most = state.most.max(state.working);
            inner.changed.wait_while(&mut state, |state| state.free == 0);
            state.free -= 1;
            state.working -= 1;
            drop(state);
            stream.write_all(&ok("done")).is_ok()
        });
        Self { backend, hand }
    }

    fn free(&self, count: usize) {
        self.hand.state.lock().free += count;
        self.hand.changed.notify_all();
    }

    fn most(&self) -> usize {
        self.hand.state.lock().most
    }

    /// Waits until so many are being worked on.
    fn works_on(&self, count: usize) {
        eventually("requests at the backend", || {
            (self.hand.state.lock().working == count).then_some(())
        });
    }

    /// A gateway with this `concurrency`, and what else there is.
    fn behind(&self, concurrency: &str, more: &str) -> Gateway {
        Gateway::start(&self.yaml(concurrency, more))
    }

    fn yaml(&self, concurrency: &str, more: &str) -> String {
        let address = self.backend.address();
        let routes =
            if more.contains("routes:") { "" } else { "\nroutes: [{ path: /, upstream: app }]" };
        format!(
            "upstreams:\n  app: {{ endpoints: ['http://{address}'], concurrency: {concurrency} }}\n{more}{routes}\n"
        )
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.free(10_000);
    }
}

/// A request that is under way; its answer can be waited for.
fn ask(gateway: &Gateway, path: &str) -> Connection {
    ask_with(gateway, path, "")
}

fn ask_with(gateway: &Gateway, path: &str, header: &str) -> Connection {
    let mut connection = gateway.connect();
    connection.write(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{header}\r\n").as_bytes());
    connection
}

fn answer(connection: &mut Connection) -> Reply {
    connection.read_reply("GET")
}

fn waiting(gateway: &Gateway, count: usize) {
    eventually("requests that wait", || {
        let snapshot = gateway.server().gateway().snapshot.load();
        let gate = snapshot.upstreams[0].gate.as_ref().unwrap();
        (gate.reading().waiting == count).then_some(())
    });
}

#[test]
fn an_upstream_is_given_no_more_at_once_than_it_can_take() {
    let held = Held::start();
    let quiet = "logging: { access: { sample: { rejected: 0% } } }";
    let gateway = held.behind("{ max: 2, queue: 1, max_wait: 1h }", quiet);
    let mut first = [ask(&gateway, "/"), ask(&gateway, "/")];
    held.works_on(2);
    let mut third = ask(&gateway, "/");
    waiting(&gateway, 1);
    let refused = gateway.get("/");
    assert_eq!(refused.status, 503);
    assert_eq!((refused.number("content-length"), refused.body.len()), (0, 0));
    assert!((2..=4).contains(&refused.number("retry-after")), "{refused:?}");
    assert!(refused.header("ratelimit").is_none() && refused.header("x-ratelimit-limit").is_none());
    held.free(3);
    assert!(first.iter_mut().chain([&mut third]).all(|c| answer(c).status == 200));
    assert_eq!((held.most(), held.backend.count()), (2, 3));
    let line = gateway.log.wait_for(3);
    assert!(line.iter().all(|line| line["status"] == 200), "refusals are sampled");
}

#[test]
fn whoever_waits_too_long_is_turned_away_and_whoever_leaves_is_forgotten() {
    let held = Held::start();
    let gateway = held.behind("{ max: 1, max_wait: 200ms }", "");
    let first = ask(&gateway, "/");
    held.works_on(1);
    let began = Instant::now();
    assert_eq!(gateway.get("/").status, 503);
    assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
    gateway.reload(&held.yaml("{ max: 1, max_wait: 1h }", "")).unwrap();
    let leaves = ask(&gateway, "/");
    waiting(&gateway, 1);
    drop(leaves);
    waiting(&gateway, 0);
    // A client that leaves while the backend works on its request keeps the place until that is done.
    drop(first);
    let mut next = ask(&gateway, "/");
    waiting(&gateway, 1);
    held.free(1);
    eventually("the place", || (held.backend.count() == 2).then_some(()));
    held.free(1);
    assert_eq!(answer(&mut next).status, 200);
}

#[test]
fn what_is_turned_away_charges_no_limit() {
    let held = Held::start();
    let limits = "limits: [{ name: all, by: ip, rate: 5/hour }]";
    let gateway = held.behind("{ max: 1, queue: 0 }", limits);
    let mut first = ask(&gateway, "/");
    held.works_on(1);
    assert_eq!(gateway.statuses("/", &[], 10), [503; 10]);
    held.free(10);
    assert_eq!(answer(&mut first).number("x-ratelimit-remaining"), 4);
    assert_eq!(gateway.get("/").number("x-ratelimit-remaining"), 3);
}

#[test]
fn whoever_is_over_their_own_limit_hears_that_instead_of_waiting() {
    let held = Held::start();
    let more = "limits: [{ name: all, by: ip, rate: 1/hour }]\nheaders: { retry_jitter: 0% }";
    let gateway = held.behind("{ max: 1, max_wait: 1h }", more);
    let mut first = ask(&gateway, "/");
    held.works_on(1);
    let refused = gateway.get("/");
    assert_eq!((refused.status, refused.number("retry-after")), (429, 3600));
    assert_eq!(refused.number("x-ratelimit-remaining"), 0);
    held.free(1);
    assert_eq!(answer(&mut first).status, 200);
}

const PRIORITIES: &str = "
routes:
  - { path: /, upstream: app }
  - { path: /pay, upstream: app, priority: critical }
  - { path: /report, upstream: app, priority: sheddable }";

#[test]
fn sheddable_goes_first_then_normal() {
    let held = Held::start();
    let gateway = held.behind("{ max: 1, queue: 1, max_wait: 1h }", PRIORITIES);
    let mut first = ask(&gateway, "/");
    held.works_on(1);
    let mut sheddable = ask(&gateway, "/report");
    waiting(&gateway, 1);
    let mut normal = ask(&gateway, "/");
    let shed = answer(&mut sheddable);
    assert_eq!(shed.status, 503);
    assert!((5..=10).contains(&shed.number("retry-after")), "{shed:?}");
    assert_eq!(gateway.get("/report").status, 503);
    let mut critical = ask(&gateway, "/pay");
    assert_eq!(answer(&mut normal).status, 503);
    held.free(2);
    assert_eq!((answer(&mut first).status, answer(&mut critical).status), (200, 200));
}

#[test]
fn a_share_is_kept_for_critical_requests() {
    let held = Held::start();
    let overload = "overload: { max_in_flight: 5, reserve: { critical: 40% } }";
    let yaml = held.yaml("{ max: 1000 }", &format!("{overload}{PRIORITIES}"));
    let gateway = Gateway::start(&yaml);
    let mut normal: Vec<_> = (0..3).map(|_| ask(&gateway, "/")).collect();
    held.works_on(3);
    assert_eq!(gateway.get("/").status, 503);
    // The less important all the more so.
    assert_eq!(gateway.get("/report").status, 503);
    let mut critical: Vec<_> = (0..2).map(|_| ask(&gateway, "/pay")).collect();
    held.works_on(5);
    let refused = gateway.get("/pay");
    assert_eq!(refused.status, 503);
    assert!((1..=2).contains(&refused.number("retry-after")));
    held.free(100);
    assert!(normal.iter_mut().chain(&mut critical).all(|c| answer(c).status == 200));
    eventually("everybody has left", || (gateway.get("/").status == 200).then_some(()));
}

#[test]
fn a_plan_tells_where_the_route_does_not() {
    let held = Held::start();
    let (gold, tin) = (sluice::digest::sha256(b"gold"), sluice::digest::sha256(b"tin"));
    let hex = |hash: [u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let more = format!(
        "identity:\n  api_key:\n    keys:\n      - {{ id: gold, sha256: {}, plan: gold }}\n      - {{ id: tin, sha256: {}, plan: tin }}
plans: {{ gold: {{ rate: 9/s, priority: critical }}, tin: {{ rate: 9/s, priority: sheddable }} }}
default_plan: tin
routes:
  - {{ path: /, upstream: app }}
  - {{ path: /normal, upstream: app, priority: normal }}",
        hex(gold),
        hex(tin),
    );
    let gateway = held.behind("{ max: 1, queue: 1, max_wait: 1h }", &more);
    let (gold, tin) = ("x-api-key: gold\r\n", "x-api-key: tin\r\n");
    let mut first = ask(&gateway, "/");
    held.works_on(1);
    let mut lowest = ask_with(&gateway, "/", tin);
    waiting(&gateway, 1);
    let mut route = ask_with(&gateway, "/normal", tin);
    assert_eq!(answer(&mut lowest).status, 503, "the route has said normal");
    assert_eq!(ask(&gateway, "/").read_reply("GET").status, 503, "nobody has the default plan");
    let mut highest = ask_with(&gateway, "/", gold);
    assert_eq!(answer(&mut route).status, 503);
    assert_eq!(gateway.get_with("/normal", &[("x-api-key", "gold")]).status, 503);
    held.free(2);
    assert_eq!((answer(&mut first).status, answer(&mut highest).status), (200, 200));
}

#[test]
fn callers_take_turns() {
    let held = Held::start();
    let more = "identity: { trusted_proxies: [127.0.0.1] }";
    let gateway = held.behind("{ max: 1, queue: 4, max_wait: 1h }", more);
    let from = |ip: u8| ask_with(&gateway, "/", &format!("x-forwarded-for: 10.0.0.{ip}\r\n"));
    let mut first = from(1);
    held.works_on(1);
    let mut flood: Vec<_> = (1..=4)
        .map(|count| {
            let connection = from(1);
            waiting(&gateway, count);
            connection
        })
        .collect();
    let mut other = from(2);
    // The last of the flood makes room for somebody who has asked for nothing yet.
    assert_eq!(answer(&mut flood[3]).status, 503);
    waiting(&gateway, 4);
    held.free(1);
    assert_eq!(answer(&mut first).status, 200);
    held.free(1);
    assert_eq!(answer(&mut flood[0]).status, 200);
    held.free(1);
    assert_eq!(answer(&mut other).status, 200, "before the rest of the flood");
    held.free(2);
    assert_eq!((answer(&mut flood[1]).status, answer(&mut flood[2]).status), (200, 200));
}

#[test]
fn another_file_counts_at_once_and_throws_nobody_out() {
    let held = Held::start();
    let gateway = held.behind("{ max: 1, max_wait: 1h }", "");
    let mut all = [ask(&gateway, "/"), ask(&gateway, "/")];
    held.works_on(1);
    waiting(&gateway, 1);
    gateway.reload(&held.yaml("{ max: 2, max_wait: 1h }", "")).unwrap();
    held.works_on(2);
    gateway.reload(&held.yaml("{ max: 1, queue: 0 }", "")).unwrap();
    assert_eq!(gateway.get("/").status, 503);
    held.free(2);
    assert!(all.iter_mut().all(|connection| answer(connection).status == 200));
    held.free(1);
    eventually("a place", || (gateway.get("/").status == 200).then_some(()));
}

#[test]
fn who_waits_in_a_leaky_bucket_takes_nobodys_place() {
    let held = Held::start();
    let address = held.backend.address();
    let bucket = "{ by: global, algorithm: leaky_bucket, rate: 1/hour, queue: 5, max_wait: 2h }";
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: {{ endpoints: ['http://{address}'], concurrency: {{ max: 1, queue: 0 }} }} }}
routes:
  - {{ path: /slow, upstream: app, limits: [{bucket}] }}
  - {{ path: /free, upstream: app }}"
    ));
    held.free(1);
    assert_eq!(gateway.get("/slow").status, 200);
    let _waits = ask(&gateway, "/slow");
    let in_flight = || gateway.server().gateway().metrics.in_flight();
    eventually("it waits", || (in_flight() == 1).then_some(()));
    assert_eq!(gateway.get("/free").status, 200);
}

#[test]
fn a_tunnel_takes_nobodys_place() {
    let backend = Backend::with(|seen, stream| {
        if seen.header("upgrade").is_none() {
            return stream.write_all(&ok("plain")).is_ok();
        }
        let agree =
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(agree).unwrap();
        let _ = std::io::Read::read(stream, &mut [0]);
        false
    });
    let address = backend.address();
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: {{ endpoints: ['http://{address}'], concurrency: {{ max: 1, queue: 0 }} }} }}
routes: [{{ path: /, upstream: app }}]"
    ));
    let mut tunnel = gateway.connect();
    tunnel.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n");
    assert_eq!(tunnel.head().unwrap().status, 101);
    assert_eq!(gateway.get("/").status, 200);
}

/// Sends the head and half of the body, and no more.
fn dripping() -> Backend {
    Backend::with(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello").unwrap();
        let _ = std::io::Read::read(stream, &mut [0]);
        false
    })
}

#[test]
fn an_answer_has_its_place_to_its_end_unless_places_are_found_out() {
    let statuses = |concurrency: &str| {
        let backend = dripping();
        let address = backend.address();
        let upstream = format!(
            "endpoints: ['http://{address}'], on_leave: cancel, concurrency: {concurrency}"
        );
        let gateway = Gateway::start(&format!(
            "upstreams: {{ app: {{ {upstream} }} }}\nroutes: [{{ path: /, upstream: app }}]"
        ));
        let mut both = [ask(&gateway, "/"), gateway.connect()];
        let first = both[0].head().unwrap().status;
        both[1].write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let second = both[1].head().unwrap().status;
        backend.hang_up(); // a stop would wait for it, though its caller has left
        (first, second)
    };
    assert_eq!(statuses("{ max: 1, queue: 0 }"), (200, 503));
    assert_eq!(statuses("{ adaptive: { min: 1, max: 1 }, queue: 0 }"), (200, 200));
}

#[test]
fn nobody_is_refused_before_anything_is_known() {
    let held = Held::start();
    let gateway = held.behind("{ adaptive: { min: 5, max: 500 }, max_wait: 1h }", "");
    let mut all: Vec<_> = (0..64).map(|_| ask(&gateway, "/")).collect();
    waiting(&gateway, 54);
    held.free(64);
    assert!(all.iter_mut().all(|connection| answer(connection).status == 200));
    assert!(held.most() < 64, "{}", held.most());
}

#[test]
fn an_upload_that_is_waited_for_takes_nobodys_place_where_places_are_found_out() {
    let held = Held::start();
    let gateway = held.behind("{ adaptive: { min: 1, max: 1 }, max_wait: 1h }", "");
    let mut upload = gateway.connect();
    upload.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhello");
    let taken = || {
        let snapshot = gateway.server().gateway().snapshot.load();
        snapshot.upstreams[0].gate.as_ref().unwrap().reading().taken
    };
    eventually("the backend has the head", || (held.backend.connections() == 1).then_some(()));
    eventually("the place is free", || (taken() == 0).then_some(()));
    assert_eq!(gateway.get("/free").status, 200);
    upload.write(b"world");
    held.works_on(1);
    assert_eq!(taken(), 1);
    held.free(1);
    assert_eq!(upload.read_reply("POST").status, 200);
    eventually("it is over", || (taken() == 0).then_some(()));
}

#[test]
fn a_body_that_nobody_reads_takes_nobodys_place() {
    let held = Held::start();
    held.free(10);
    let gateway = held.behind("{ max: 1, queue: 0 }", "limits: [{ by: ip, rate: 2/hour }]");
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(gateway.get("/").status, 200);
    // It will be refused, and its body is waited for, for a moment.
    let mut slow = gateway.connect();
    slow.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n");
    let in_flight = || gateway.server().gateway().metrics.in_flight();
    eventually("it is there", || (in_flight() == 1).then_some(()));
    eventually("its place is free", || {
        let snapshot = gateway.server().gateway().snapshot.load();
        (snapshot.upstreams[0].gate.as_ref().unwrap().reading().taken == 0).then_some(())
    });
    assert_eq!(slow.read_reply("POST").status, 429);
}

#[test]
fn grpc_hears_it_in_its_own_terms() {
    let held = Held::start();
    let gateway = held.behind("{ max: 1, queue: 0 }", "");
    let _first = ask(&gateway, "/");
    held.works_on(1);
    let request = http::Request::post("http://a.test/").header("content-type", "application/grpc");
    let mut client = crate::common::http2::Client::open(gateway.address());
    let reply = client.ask(request.body(()).unwrap());
    assert_eq!((reply.status, reply.header("grpc-status")), (200, Some("14")));
    let retry_after: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((2..=4).contains(&retry_after));
    held.free(1); // a stop would wait for it, though its caller has left
}

/// A ceiling for all, in parts that a fleet shares, with places behind it.
#[test]
fn what_is_turned_away_charges_no_shared_limit() {
    let held = Held::start();
    let redis = Redis::start();
    let more = format!(
        "store: {{ redis: {{ url: '{}', timeout: 10s }} }}
headers: {{ retry_jitter: 0% }}
limits:
  - {{ name: own, by: ip, rate: 10/hour }}
  - {{ name: ceiling, by: global, rate: 6/hour, shards: 2 }}",
        redis.url()
    );
    let gateway = Gateway::start_in_real_time(&held.yaml("{ max: 1, queue: 0 }", &more));
    let mut first = ask(&gateway, "/");
    held.works_on(1);
    assert_eq!(gateway.statuses("/", &[], 20), [503; 20]);
    held.free(100);
    assert_eq!(answer(&mut first).number("x-ratelimit-remaining"), 9);
    // One part of the ceiling is the caller's: half of it, of which one is used.
    let rest: Vec<Reply> = (0..3).map(|_| gateway.get("/")).collect();
    assert_eq!(rest.iter().map(|reply| reply.status).collect::<Vec<_>>(), [200, 200, 503]);
    assert_eq!(rest[1].number("x-ratelimit-remaining"), 7);
    // It is the ceiling that speaks now: there are places.
    assert!(rest[2].number("retry-after") > 600, "{:?}", rest[2]);
    assert_eq!(held.backend.count(), 3);
}

/// A cgroup of which so much is used.
fn use_memory(root: &Path, percent: u32) {
    std::fs::write(root.join("memory.max"), "1000000\n").unwrap();
    std::fs::write(root.join("memory.current"), format!("{}\n", percent * 10_000)).unwrap();
}

#[test]
fn sheddable_requests_are_refused_when_memory_runs_short() {
    let held = Held::start();
    held.free(1_000_000);
    let root = tempfile::tempdir().unwrap();
    use_memory(root.path(), 50);
    let yaml = format!(
        "admin: 127.0.0.1:0{}",
        held.yaml("{ max: 1000 }", PRIORITIES).replace("upstreams", "\nupstreams")
    );
    let gateway = Gateway::start_adjusted(&yaml, |options| {
        options.memory = Memory::find("0::/", root.path());
    });
    let mut connection = gateway.connect();
    let mut statuses =
        |path: &str| (0..20).map(|_| connection.get(path).status).collect::<Vec<_>>();
    assert_eq!(statuses("/report"), [200; 20]);
    use_memory(root.path(), 95);
    eventually("it is noticed", || (gateway.get("/report").status == 503).then_some(()));
    eventually("and for all of them", || (statuses("/report") == [503; 20]).then_some(()));
    assert_eq!((statuses("/"), statuses("/pay")), (vec![200; 20], vec![200; 20]));
    let page = eventually("both workers know", || {
        let page = Connection::to_operator(gateway.admin()).get("/metrics").text().to_owned();
        let level =
            |worker| page.contains(&format!("sluice_overload_level{{worker=\"{worker}\"}} 1\n"));
        (level(0) && level(1)).then_some(page.clone())
    });
    assert!(page.contains("sluice_memory_used_ratio 0.95\n"), "{page}");
    assert!(!page.contains("sluice_shed_total{reason=\"memory\",priority=\"sheddable\"} 0\n"));
    assert!(page.contains("sluice_shed_total{reason=\"memory\",priority=\"normal\"} 0\n"));
    use_memory(root.path(), 120);
    eventually("normal ones as well", || (statuses("/") == [503; 20]).then_some(()));
    assert_eq!(statuses("/pay"), [200; 20]);
    use_memory(root.path(), 50);
    eventually("it is over", || (statuses("/report") == [200; 20]).then_some(()));
}

/// A process that is stopped now and then comes to its work late.
#[test]
fn sheddable_requests_are_refused_while_the_gateway_does_not_keep_up() {
    let backend = Backend::start();
    let address = backend.address();
    let process = Process::start(&format!(
        "overload: {{ max_lag: 100ms }}
upstreams: {{ app: 'http://{address}' }}
routes:
  - {{ path: /, upstream: app, priority: critical }}
  - {{ path: /report, upstream: app, priority: sheddable }}"
    ));
    let report = || Connection::open(process.address).get("/report").status;
    assert_eq!(report(), 200);
    eventually("requests are shed", || {
        for _ in 0..2 {
            process.signal("-STOP");
            std::thread::sleep(Duration::from_millis(220));
            process.signal("-CONT");
            // Long enough for a worker to look, and too short to be late on time.
            std::thread::sleep(Duration::from_millis(20));
        }
        (report() == 503).then_some(())
    });
    eventually("they are served again", || (report() == 200).then_some(()));
}

#[test]
fn the_metrics_tell_how_many_places_there_are() {
    let held = Held::start();
    let gateway = held.behind(
        "{ adaptive: { min: 2, max: 4 } }",
        "admin: 127.0.0.1:0\noverload: { max_in_flight: 9 }",
    );
    let _first = [ask(&gateway, "/"), ask(&gateway, "/")];
    held.works_on(2);
    let page = Connection::to_operator(gateway.admin()).get("/metrics").text().to_owned();
    for line in [
        "sluice_upstream_places{upstream=\"app\"} 4\n",
        "sluice_upstream_places_taken{upstream=\"app\"} 2\n",
        "sluice_upstream_waiting{upstream=\"app\"} 0\n",
        "sluice_max_in_flight 9\n",
        "sluice_shed_total{reason=\"upstream\",priority=\"critical\"} 0\n",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    assert!(page.contains("sluice_worker_lag_seconds{worker=\"0\"} 0"), "{page}");
    held.free(2); // a stop would wait for them, though their callers have left
}
