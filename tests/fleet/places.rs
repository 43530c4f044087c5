//! Where Redis is, and who may use it: TLS, users and passwords, a cluster that is rearranged.

use super::{Process, metric, on, patient, sharing};
use crate::common::load::Load;
use crate::common::redis::{Cluster, Redis};
use crate::common::{Backend, Gateway, HeldPort, eventually};
use std::time::Duration;

const LIMITS: &str = "[{ name: wide, by: ip, rate: 3/month }]";

/// Three pass and are counted there, the fourth does not.
fn counts(store: &str) {
    let backend = Backend::start();
    let gateway = Gateway::start_in_real_time(&sharing(&backend, store, LIMITS));
    assert_eq!(gateway.statuses("/", &[], 4), [200, 200, 200, 429], "{store}");
    assert_eq!(metric(&gateway, "sluice_store_fallbacks_total"), 0, "{store}");
}

/// Without the store each gateway has one of the three.
fn does_not_count(store: &str) {
    let backend = Backend::start();
    let gateway = Gateway::start_in_real_time(&sharing(&backend, store, LIMITS));
    assert_eq!(gateway.statuses("/", &[], 4), [200, 429, 429, 429], "{store}");
    assert!(metric(&gateway, "sluice_store_fallbacks_total") > 0, "{store}");
}

#[test]
fn over_tls_with_a_certificate_that_is_believed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let mut ca = rcgen::CertificateParams::new([]).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca_cert = ca.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
    let cert = params.signed_by(&key, &issuer).unwrap();
    std::fs::write(file("ca.pem"), ca_cert.pem()).unwrap();
    std::fs::write(file("redis.pem"), cert.pem()).unwrap();
    std::fs::write(file("redis.key"), key.serialize_pem()).unwrap();
    let held = HeldPort::new();
    let port = held.port().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("redis.pem"), file("redis.key"));
    let arguments = ["--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key];
    let with_ca = [arguments.as_slice(), &["--tls-ca-cert-file", &ca]].concat();
    let anyone = [with_ca.as_slice(), &["--tls-auth-clients", "no"]].concat();
    let redis = Redis::start_with(&anyone);
    let url = format!("rediss://localhost:{port}");
    does_not_count(&format!("{{ redis: {{ url: '{url}', prefix: a, timeout: 10s }} }}"));
    counts(&format!(
        "{{ redis: {{ url: '{url}', prefix: b, timeout: 10s, tls: {{ ca: '{ca}' }} }} }}"
    ));
    // One that wants to know who we are, too.
    redis.run::<()>(&["CONFIG", "SET", "tls-auth-clients", "yes"]);
    does_not_count(&format!(
        "{{ redis: {{ url: '{url}', prefix: c, timeout: 10s, tls: {{ ca: '{ca}' }} }} }}"
    ));
    let own = format!("tls: {{ ca: '{ca}', cert: '{cert}', key: '{key}' }}");
    counts(&format!("{{ redis: {{ url: '{url}', prefix: d, timeout: 10s, {own} }} }}"));
}

#[test]
fn with_a_users_password() {
    let redis = Redis::start();
    // What a gateway needs, and nothing else.
    redis.run::<()>(&[
        "ACL",
        "SETUSER",
        "gateway",
        "on",
        ">secret",
        "~sluice:*",
        "-@all",
        "+evalsha",
        "+eval",
        "+time",
        "+mget",
        "+get",
        "+set",
        "+del",
        "+type",
        "+pttl",
        "+pexpire",
        "+@sortedset",
        "+@hash",
        "+hello",
        "+auth",
        "+client",
    ]);
    redis.run::<()>(&["ACL", "SETUSER", "default", "-@all", "+ping"]);
    let at = format!("127.0.0.1:{}", redis.port);
    counts(&patient(&format!("{{ redis: {{ url: 'redis://gateway:secret@{at}' }} }}")));
    does_not_count(&format!("{{ redis: {{ url: 'redis://gateway:wrong@{at}' }} }}"));
    does_not_count(&format!("{{ redis: {{ url: 'redis://{at}' }} }}"));
}

#[test]
fn a_slot_moves_while_it_is_used() {
    let cluster = Cluster::start(3, 0);
    let backend = Backend::start();
    let limits = "[{ name: wide, by: ip, rate: 100000000/month }]";
    let gateway =
        Gateway::start_in_real_time(&sharing(&backend, &patient(&cluster.store()), limits));
    assert_eq!(gateway.get("/").status, 200);
    let key = "sluice:1:wide:i127.0.0.1";
    let slot: u32 = cluster.nodes[0].run(&["CLUSTER", "KEYSLOT", key]);
    let from = (slot * 3 / 16384) as usize;
    let (from, to) = (&cluster.nodes[from], &cluster.nodes[(from + 1) % 3]);
    let id = |node: &Redis| -> String { node.run(&["CLUSTER", "MYID"]) };
    let (slot, from_id, to_id) = (slot.to_string(), id(from), id(to));
    let load = Load::start(&[&gateway], 4, Duration::from_millis(1));
    std::thread::sleep(Duration::from_millis(300));
    to.run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    from.run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    std::thread::sleep(Duration::from_millis(200));
    let port = to.port.to_string();
    from.run::<()>(&["MIGRATE", "127.0.0.1", &port, key, "0", "1000"]);
    std::thread::sleep(Duration::from_millis(200)); // ASK
    for node in [to, from] {
        node.run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
    }
    std::thread::sleep(Duration::from_millis(500)); // MOVED
    let outcome = load.stop();
    let fallbacks = metric(&gateway, "sluice_store_fallbacks_total");
    println!("{:?}, {fallbacks} decided without the store", outcome.statuses());
    assert_eq!(outcome.statuses().len(), 1, "{:?}", outcome.statuses());
    assert!(fallbacks * 50 <= outcome.admitted() as u64, "{fallbacks}");
    // Nothing was lost on the way.
    let used = eventually("all of them", || {
        let state: Option<Vec<u8>> = to.run(&["GET", key]);
        state.map(|state| u32::from_le_bytes(state[9..13].try_into().unwrap()))
    });
    // Tokens come back at 39 a second.
    assert!(used as usize + 200 >= outcome.admitted(), "{used} of {}", outcome.admitted());
}

#[test]
fn whoever_could_forget_is_named_at_the_start() {
    let yaml = |redis: &Redis| {
        let backend =
            "upstreams: { app: 'http://127.0.0.1:9' }\nroutes: [{ path: /, upstream: app }]";
        let limits = "limits: [{ by: ip, rate: 100/day }]";
        format!(
            "listen: 127.0.0.1:0\nstore: {{ redis: {{ url: '{}' }} }}\n{limits}\n{backend}\n",
            redis.url()
        )
    };
    let said = |redis: &Redis| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.yaml");
        std::fs::write(&path, yaml(redis)).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let _process = Process::start(&path, log.into());
        let read = || std::fs::read_to_string(folder.path().join("log")).unwrap();
        eventually("the check", || read().contains("the store answers").then_some(()));
        std::thread::sleep(Duration::from_millis(300));
        read()
    };
    let evicting =
        Redis::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let text = said(&evicting);
    assert!(text.contains("maxmemory-policy is allkeys-lru"), "{text}");
    assert!(text.contains("a restart would forgive it"), "{text}");
    let safe = Redis::start_with(&["--appendonly", "yes"]);
    let text = said(&safe);
    assert!(!text.contains("WARN the store"), "{text}");
}

#[test]
fn every_key_expires_when_its_state_is_whole_and_not_before() {
    let redis = Redis::start();
    let backend = Backend::start();
    let limits = "[{ name: bucket, by: ip, rate: 7/minute, burst: 5 },
                   { name: gcra, by: ip, rate: 100/minute, algorithm: gcra, burst: 4 },
                   { name: fixed, by: ip, rate: 10/90s, algorithm: fixed_window },
                   { name: day, by: ip, rate: 10/day, algorithm: fixed_window, time_zone: Asia/Tokyo },
                   { name: sliding, by: ip, rate: 10/minute, algorithm: sliding_window },
                   { name: log, by: ip, rate: 10/minute, algorithm: sliding_log },
                   { name: queue, by: ip, rate: 2/second, algorithm: leaky_bucket },
                   { name: flying, by: ip, concurrency: 10 }]";
    let store = on(&redis);
    let gateway = Gateway::start_in_real_time(&sharing(&backend, &store, limits));
    for _ in 0..3 {
        let reply = gateway.get("/");
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let keys: Vec<String> = redis.run(&["KEYS", "*"]);
    assert!(keys.len() >= 7, "{keys:?}");
    for key in &keys {
        // One that has gone meanwhile is none.
        assert_ne!(redis.run::<i64>(&["PTTL", key]), -1, "{key} stays for ever");
    }
    let life = |name: &str| redis.run::<i64>(&["PTTL", &format!("sluice:1:{name}:i127.0.0.1")]);
    // Three tokens at seven a minute, less what came back while two of them waited in the queue.
    assert!((23_000..=25_715).contains(&life("bucket")), "{}", life("bucket"));
    assert!((58_000..=60_002).contains(&life("log")), "{}", life("log"));
    assert!((1..=90_002).contains(&life("fixed")), "{}", life("fixed"));
    assert!((60_000..=120_002).contains(&life("sliding")), "{}", life("sliding"));
    assert!((1..=86_400_002).contains(&life("day")), "{}", life("day"));
    // Requests in flight are over, and so is what was kept of them.
    eventually("nothing in flight", || (life("flying") == -2).then_some(()));
}

#[test]
fn another_store_takes_a_restart_and_a_reload_says_so() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.yaml");
    let write = |store: &str| {
        let rest = "upstreams: { app: 'http://127.0.0.1:9' }\nroutes: [{ path: /, upstream: app }]";
        std::fs::write(&path, format!("listen: 127.0.0.1:0\nstore: {store}\n{rest}\n")).unwrap();
    };
    write(&format!("{{ redis: {{ url: '{}' }} }}", redis.url()));
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let _process = Process::start(&path, log.into());
    let read = || std::fs::read_to_string(folder.path().join("log")).unwrap();
    eventually("the store", || read().contains("the store answers").then_some(()));
    write("memory");
    eventually("a word about it", || {
        read().contains("'store' has changed: that takes effect when").then_some(())
    });
}

#[test]
fn an_edited_algorithm_keeps_what_was_used_in_redis_too() {
    let redis = Redis::start();
    let backend = Backend::start();
    let store = on(&redis);
    let yaml =
        |limit: &str| sharing(&backend, &store, &format!("[{{ name: x, by: ip, {limit} }}]"));
    let gateway = Gateway::start_in_real_time(&yaml("rate: 5/month"));
    assert_eq!(gateway.statuses("/", &[], 2), [200; 2]);
    let algorithms = ["fixed_window", "sliding_log", "sliding_window"];
    for (algorithm, remaining) in algorithms.iter().zip([2, 1, 0]) {
        gateway.reload(&yaml(&format!("rate: 5/month, algorithm: {algorithm}"))).unwrap();
        assert_eq!(gateway.get("/").number("x-ratelimit-remaining"), remaining, "{algorithm}");
    }
    gateway.reload(&yaml("rate: 5/month")).unwrap();
    assert_eq!(gateway.get("/").status, 429);
    // Five used of five become five used of nine.
    gateway.reload(&yaml("rate: 9/month")).unwrap();
    assert_eq!(gateway.get("/").number("x-ratelimit-remaining"), 3);
    // Requests in flight are no used tokens, in whatever form they were kept.
    for other in ["rate: 5/month", "rate: 5/month, algorithm: sliding_log"] {
        gateway.reload(&yaml("concurrency: 2")).unwrap();
        assert_eq!(gateway.get("/").number("x-ratelimit-remaining"), 1, "before {other}");
        gateway.reload(&yaml(other)).unwrap();
        assert_eq!(gateway.get("/").number("x-ratelimit-remaining"), 4, "{other}");
    }
}
