//! As exact as one process: three gateways admit what one would.

use super::{fleet, metric, on, patient, sharing};
use crate::common::backend::ok;
use crate::common::load::Load;
use crate::common::redis::{Cluster, Redis};
use crate::common::{Backend, Connection, Gateway, eventually};
use crate::stopping::Process;
use std::io::Write;
use std::time::Duration;

/// All of a limit, and not one more, by 64 connections over three gateways.
fn admits_exactly(store: &str, limits: &str, count: usize) -> Vec<Gateway> {
    let backend = Backend::start();
    let gateways = fleet(3, &sharing(&backend, store, limits));
    let load = Load::start(&gateways.iter().collect::<Vec<_>>(), 64, Duration::ZERO);
    let served = || backend.count();
    eventually("the limit", || (served() >= count).then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    let outcome = load.stop();
    let statuses = outcome.statuses();
    println!("{limits}: {statuses:?}");
    assert_eq!(outcome.admitted(), count, "{statuses:?}");
    assert_eq!(statuses.len(), 2, "200 and 429: {statuses:?}");
    gateways
}

#[test]
fn three_gateways_admit_exactly_the_limit() {
    let redis = Redis::start();
    let log = "[{ by: ip, rate: 1000/minute, algorithm: sliding_log }]";
    admits_exactly(&on(&redis), log, 1000);
    let three = "[{ name: a, by: ip, rate: 5000/month }, { name: b, by: ip, rate: 1000/month },
                  { name: c, by: global, rate: 3000/month }]";
    let gateways = admits_exactly(&on(&redis), three, 1000);
    // A rejected request charges no layer.
    let reply = gateways[0].get("/");
    assert_eq!(reply.status, 429);
    let told = reply.header("ratelimit").unwrap();
    assert!(told.contains("\"a\";r=4000"), "{told}");
    // And a flood of them does not reach the store.
    let calls: u64 =
        gateways.iter().map(|gateway| metric(gateway, "sluice_store_calls_total")).sum();
    for gateway in &gateways {
        let mut connection = gateway.connect();
        for _ in 0..500 {
            assert_eq!(connection.get("/").status, 429);
        }
    }
    let after: u64 =
        gateways.iter().map(|gateway| metric(gateway, "sluice_store_calls_total")).sum();
    assert!(after - calls <= 3, "{} calls for 1500 rejects", after - calls);
}

#[test]
fn a_cluster_of_three_primaries_is_as_exact() {
    let cluster = Cluster::start(3, 0);
    let three = "[{ name: a, by: ip, rate: 5000/month }, { name: b, by: ip, rate: 1000/month },
                  { name: c, by: global, rate: 3000/month }]";
    let gateways = admits_exactly(&patient(&cluster.store()), three, 1000);
    // What rejected requests took is given back.
    let told = eventually("everything given back", || {
        let reply = gateways[0].get("/");
        assert_eq!(reply.status, 429);
        let told = reply.header("ratelimit").unwrap().to_owned();
        told.contains("\"a\";r=4000").then_some(told)
    });
    println!("{told}");
    for log in ["sliding_log", "sliding_window"] {
        let limits = format!(
            "[{{ name: d{log}, by: ip, rate: 800/day, algorithm: {log} }}, {{ name: e{log}, by: ip, rate: 900/month }}]"
        );
        admits_exactly(&patient(&cluster.store()), &limits, 800);
    }
}

#[test]
fn leases_admit_no_more_and_hardly_less() {
    let redis = Redis::start();
    let backend = Backend::start();
    let limits = "[{ by: ip, rate: 3000/month, consistency: leased }]";
    let gateways = fleet(3, &sharing(&backend, &on(&redis), limits));
    let load = Load::start(&gateways.iter().collect::<Vec<_>>(), 64, Duration::ZERO);
    // Blocks that lie with one gateway are back within a second, and then others can have them.
    eventually("all of it", || (backend.count() >= 3000).then_some(()));
    std::thread::sleep(Duration::from_millis(1500));
    let outcome = load.stop();
    assert_eq!(outcome.admitted(), 3000, "{:?}", outcome.statuses());
    let calls: u64 =
        gateways.iter().map(|gateway| metric(gateway, "sluice_store_calls_total")).sum();
    println!("{:?}, {calls} calls", outcome.statuses());
}

#[test]
fn a_lease_saves_calls_and_gives_back_what_it_does_not_need() {
    let redis = Redis::start();
    let backend = Backend::start();
    let limits = "[{ name: all, by: ip, rate: 100000000/month, consistency: leased }]";
    let gateway = Gateway::start_in_real_time(&sharing(&backend, &on(&redis), limits));
    let load = Load::start(&[&gateway], 8, Duration::ZERO);
    std::thread::sleep(Duration::from_secs(2));
    let admitted = load.stop().admitted() as u64;
    let calls = metric(&gateway, "sluice_store_calls_total");
    let each = calls as f64 / admitted as f64;
    println!("{calls} calls for {admitted} requests: {each:.4} each");
    assert!(each < 0.05);
    // Used is what was admitted, and nothing else: the rest went back.
    let used = || {
        let state: Vec<u8> = redis.run(&["GET", "sluice:1:all:i127.0.0.1"]);
        u64::from(u32::from_le_bytes(state[9..13].try_into().unwrap()))
    };
    eventually("what is left goes back", || (used() <= admitted).then_some(()));
    // At this rate two tokens come back in a minute.
    assert!(used() + 200 >= admitted, "{} of {admitted}", used());
    // On a shutdown, too.
    assert_eq!(gateway.get("/").status, 200);
    let before = used();
    assert!(before > admitted - 200);
    gateway.stop();
    let after = used();
    assert!(after <= admitted + 1 && after + 200 > admitted, "{after} of {admitted} + 1");
}

#[test]
fn shards_split_a_global_limit_and_together_are_the_whole() {
    let mut redis = Redis::start();
    let backend = Backend::start();
    let limits = "[{ name: all, by: global, rate: 10/month, shards: 4 }]";
    let gateways = fleet(2, &sharing(&backend, &on(&redis), limits));
    let mut admitted = 0;
    for caller in 0..200 {
        let address = format!("10.0.{caller}.1");
        for gateway in &gateways {
            let reply = gateway.get_with("/", &[("X-Forwarded-For", &address)]);
            admitted += usize::from(reply.status == 200);
            assert!(reply.status == 200 || reply.status == 503, "{reply:?}");
        }
    }
    assert_eq!(admitted, 10);
    let keys: Vec<String> = redis.run(&["KEYS", "*"]);
    assert_eq!(keys.len(), 4, "{keys:?}");
    // Without Redis a gateway has a fifth of each part, and at least one request of it.
    let store = on(&redis);
    redis.kill();
    let alone = Gateway::start_in_real_time(&sharing(&backend, &store, limits));
    let admitted = (200..255)
        .map(|caller| format!("10.0.{caller}.1"))
        .filter(|address| alone.get_with("/", &[("X-Forwarded-For", address)]).status == 200);
    assert_eq!(admitted.count(), 4);
}

#[test]
fn what_a_dead_gateway_had_in_flight_is_free_again() {
    let redis = Redis::start();
    let backend = Backend::with(|seen, stream| {
        seen.target == "/hang" || stream.write_all(&ok("hello")).is_ok()
    });
    let yaml = sharing(&backend, &on(&redis), "[{ by: ip, concurrency: 50 }]");
    let process = Process::start(&yaml);
    let address = process.address;
    // Fifty requests that the backend does not answer.
    let hanging: Vec<Connection> = (0..50)
        .map(|_| {
            let mut connection = Connection::open(address);
            connection.write(b"GET /hang HTTP/1.1\r\nhost: a\r\n\r\n");
            connection
        })
        .collect();
    eventually("fifty in flight", || (backend.count() >= 50).then_some(()));
    let other = Gateway::start_in_real_time(&yaml);
    assert_eq!(other.get("/").status, 429, "all places are taken");
    // As long as it lives they stay taken.
    std::thread::sleep(Duration::from_millis(6500));
    assert_eq!(other.get("/").status, 429, "still");
    drop(process); // kill -9
    let died = std::time::Instant::now();
    eventually("free places", || (other.get("/").status == 200).then_some(()));
    let took = died.elapsed();
    println!("free after {took:?}");
    assert!(took < Duration::from_secs(6), "{took:?}");
    drop(hanging);
}

#[test]
fn a_queue_is_one_smooth_stream_over_two_gateways() {
    let redis = Redis::start();
    let backend = Backend::start();
    let limits =
        "[{ by: global, algorithm: leaky_bucket, rate: 50/second, queue: 100, max_wait: 5s }]";
    let gateways = fleet(2, &sharing(&backend, &on(&redis), limits));
    let load = Load::start(&gateways.iter().collect::<Vec<_>>(), 20, Duration::ZERO);
    std::thread::sleep(Duration::from_secs(2));
    let outcome = load.stop();
    let mut moments = backend.moments();
    moments.sort();
    let span = *moments.last().unwrap() - moments[0];
    let rate = (moments.len() - 1) as f64 / span.as_secs_f64();
    println!("{} requests, {rate:.1} a second; {:?}", moments.len(), outcome.statuses());
    assert!((48.0..=52.0).contains(&rate), "{rate}");
    // No bunches: in no 100 ms more than the five that belong there, and a few for the scheduler.
    let most = moments
        .iter()
        .map(|from| {
            moments
                .iter()
                .filter(|at| *at >= from && **at < *from + Duration::from_millis(100))
                .count()
        })
        .max()
        .unwrap();
    println!("at most {most} in 100 ms");
    assert!(most <= 9, "{most}");
}

#[test]
fn what_a_request_cost_is_in_the_store_before_its_last_byte_is_out() {
    let redis = Redis::start();
    let backend = Backend::answering(|seen| {
        let body = if seen.target == "/empty" { "" } else { "{\"cost\": 7}" };
        format!("HTTP/1.1 200 OK\r\nx-cost: 7\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            .into()
    });
    let used = |name: &str| -> u32 {
        let state: Vec<u8> = redis.run(&["GET", &format!("sluice:1:{name}:i127.0.0.1")]);
        u32::from_le_bytes(state[9..13].try_into().unwrap())
    };
    let limits = "[{ name: header, by: ip, rate: 100000/month, algorithm: fixed_window,
                     cost: { response_header: X-Cost, reserve: 2 } },
                   { name: json, by: ip, rate: 100000/month, algorithm: sliding_window,
                     cost: { response_json: cost, reserve: 9 } }]";
    let gateway = Gateway::start_in_real_time(&sharing(&backend, &on(&redis), limits));
    let mut connection = gateway.connect();
    for number in 1..=100 {
        let reply = connection.get("/");
        assert_eq!(reply.status, 200);
        assert_eq!(used("header"), 7 * number);
        assert_eq!(used("json"), 7 * number);
    }
    let reply = connection.get("/empty");
    assert_eq!((reply.status, used("header")), (200, 707));
}

/// Windows of a second, hammered over their boundaries: each admits what it may, by Redis's clock.
#[test]
fn leases_end_with_their_window() {
    let redis = Redis::start();
    let backend = Backend::start();
    let limits =
        "[{ name: all, by: ip, rate: 300/2s, algorithm: fixed_window, consistency: leased }]";
    let gateways = fleet(2, &sharing(&backend, &on(&redis), limits));
    let load = Load::start(&gateways.iter().collect::<Vec<_>>(), 16, Duration::from_millis(1));
    std::thread::sleep(Duration::from_secs(9));
    let outcome = load.stop();
    // When the backend saw them, as windows of the wall clock, which is Redis's here.
    let (here, wall) = (std::time::Instant::now(), std::time::SystemTime::now());
    let wall = wall.duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut windows = std::collections::BTreeMap::<u128, u32>::new();
    for moment in backend.moments() {
        let at = wall.checked_sub(here - moment).unwrap();
        *windows.entry(at.as_millis() / 2000).or_default() += 1;
    }
    println!("{windows:?} {:?}", outcome.statuses());
    // A request that was admitted just before a boundary may arrive just after it.
    for count in windows.values() {
        assert!(*count <= 300 + 16, "{windows:?}");
    }
    let whole: Vec<u32> = windows.values().copied().skip(1).take(3).collect();
    assert!(whole.iter().sum::<u32>() <= 900 + 16, "{windows:?}");
    assert!(whole.iter().all(|count| *count >= 250), "and hardly less: {windows:?}");
}

#[test]
fn what_redis_forgot_of_requests_in_flight_it_is_told_again() {
    let redis = Redis::start();
    let backend = Backend::with(|seen, stream| {
        seen.target == "/hang" || stream.write_all(&ok("hello")).is_ok()
    });
    let yaml = sharing(&backend, &on(&redis), "[{ by: ip, concurrency: 10 }]");
    let url = format!("'http://{}'", backend.address());
    let yaml = yaml.replace(&url, &format!("{{ endpoints: [{url}], on_leave: cancel }}"));
    let gateways = fleet(2, &yaml);
    let hanging: Vec<Connection> = (0..9)
        .map(|_| {
            let mut connection = gateways[0].connect();
            connection.write(b"GET /hang HTTP/1.1\r\nhost: a\r\n\r\n");
            connection
        })
        .collect();
    eventually("nine in flight", || (backend.count() >= 9).then_some(()));
    redis.run::<()>(&["FLUSHALL"]);
    // One more before the gateway says that it is alive: nine, all the same, are told again.
    assert_eq!(gateways[0].get("/").status, 200);
    let places = || redis.run::<u32>(&["ZCARD", "sluice:1:all-paths/ip:i127.0.0.1"]);
    eventually("nine", || (places() == 9).then_some(()));
    assert_eq!(gateways[1].get("/").status, 200);
    eventually("nine again", || (places() == 9).then_some(()));
    let mut tenth = gateways[1].connect();
    tenth.write(b"GET /hang HTTP/1.1\r\nhost: a\r\n\r\n");
    eventually("ten in flight", || (backend.count() >= 12).then_some(()));
    assert_eq!(gateways[1].get("/").status, 429);
    // Whoever leaves gives their place back.
    drop(hanging);
    eventually("free places", || (gateways[1].get("/").status == 200).then_some(()));
    eventually("one left", || (places() == 1).then_some(()));
}

#[test]
fn callers_who_leave_while_the_store_is_asked_take_nothing_with_them() {
    let redis = Redis::start();
    let backend = Backend::start();
    let limits = "[{ name: all, by: ip, rate: 1000/month, consistency: leased }]";
    let gateway = Gateway::start_in_real_time(&sharing(&backend, &on(&redis), limits));
    for _ in 0..20 {
        redis.signal("-STOP");
        let mut leaving = gateway.connect();
        leaving.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        std::thread::sleep(Duration::from_millis(5));
        drop(leaving);
        redis.signal("-CONT");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut connection = gateway.connect();
    let mut admitted = 0;
    eventually("the whole limit, but for those who left", || {
        let reply = connection.get("/");
        admitted += u32::from(reply.status == 200);
        if reply.status != 200 {
            std::thread::sleep(Duration::from_millis(20));
        }
        (admitted >= 980).then_some(())
    });
    let calls = metric(&gateway, "sluice_store_calls_total");
    println!("{admitted} admitted with {calls} calls");
    assert!(calls < 500, "{calls}: it is still leased");
}
