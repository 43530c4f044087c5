//! A reload forgives nothing and drops nothing; a bad file changes nothing.

use crate::common::{Backend, Connection, Gateway, eventually, limited};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn an_edited_rate_applies_to_what_was_used_already() {
    let backend = Backend::start();
    let yaml = |rate: &str| limited(&backend, &format!("[{{ name: a, by: ip, rate: {rate} }}]"));
    let gateway = Gateway::start(&yaml("5/hour"));
    assert_eq!(gateway.statuses("/", &[], 6), [200, 200, 200, 200, 200, 429]);
    gateway.reload(&yaml("9/hour")).unwrap();
    assert_eq!(gateway.statuses("/", &[], 5), [200, 200, 200, 200, 429], "5 of 9 were used");
    gateway.reload(&yaml("5/hour")).unwrap();
    assert_eq!(gateway.get("/").status, 429);
    gateway.reload(&yaml("3/minute")).unwrap();
    assert_eq!(gateway.get("/").status, 429, "another window keeps what was used, too");
    gateway.advance(Duration::from_secs(139));
    assert_eq!(gateway.get("/").status, 429);
    gateway.advance(Duration::from_secs(1));
    assert_eq!(gateway.get("/").status, 200, "7 of 9 came back at 3 a minute");
}

#[test]
fn a_bad_file_is_reported_and_changes_nothing() {
    let backend = Backend::start();
    let good = limited(&backend, "[{ by: ip, rate: 2/hour }]");
    let gateway = Gateway::start(&good);
    assert_eq!(gateway.get("/").status, 200);
    for bad in [
        "",
        "routes: [",
        "listen: nowhere\n",
        &good.replace("rate", "rat"),
        &good.replace("upstream: app", "upstream: ap"),
    ] {
        let error = gateway.reload(bad).unwrap_err().to_string();
        assert!(error.contains("gateway.yaml:"), "{error}");
    }
    assert_eq!(gateway.generation(), 1);
    assert_eq!(gateway.statuses("/", &[], 2), [200, 429]);
    let metrics = &gateway.server().gateway().metrics;
    assert!(metrics.reloads_failed.value() >= 5);
    std::fs::remove_file(gateway.path()).unwrap();
    assert!(gateway.server().reload().is_err());
    assert_eq!(gateway.get("/").status, 429);
}

#[test]
fn a_save_an_atomic_rename_and_a_config_maps_swap_are_noticed() {
    let backend = Backend::start();
    let yaml = |n: usize| limited(&backend, &format!("[{{ by: ip, rate: {n}00/hour }}]"));
    let gateway = Gateway::start(&yaml(1));
    let limit = |n: u64| {
        eventually("the new limit", || {
            (gateway.get("/").number("x-ratelimit-limit") == n * 100).then_some(())
        });
    };
    limit(1);
    gateway.write(&yaml(2));
    limit(2);
    let temporary = gateway.folder.path().join(".gateway.yaml.swp");
    std::fs::write(&temporary, format!("listen: 127.0.0.1:0\n{}", yaml(3))).unwrap();
    std::fs::rename(&temporary, gateway.path()).unwrap();
    limit(3);
    // Written piece by piece, as slow editors do: no piece is taken for the whole, although each
    // would be a valid file.
    let generation = gateway.generation();
    let mut file = std::fs::File::create(gateway.path()).unwrap();
    write!(file, "listen: 127.0.0.1:0\n{}", yaml(4)).unwrap();
    let (mut before, mut longest_gap) = (Instant::now(), Duration::ZERO);
    for _ in 0..20 {
        writeln!(file, "# more to come").unwrap();
        longest_gap = longest_gap.max(before.elapsed());
        before = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(file);
    limit(4);
    // A busy machine may hold the writer up for so long that the file counts as written.
    if longest_gap < Duration::from_millis(45) {
        assert_eq!(gateway.generation(), generation + 1);
    }
}

#[test]
fn a_kubernetes_config_map_is_followed() {
    let backend = Backend::start();
    let folder = tempfile::tempdir().unwrap();
    let put = |version: &str, rate: &str| {
        let data = folder.path().join(format!("..{version}"));
        std::fs::create_dir(&data).unwrap();
        let yaml = limited(&backend, &format!("[{{ by: ip, rate: {rate} }}]"));
        std::fs::write(data.join("gateway.yaml"), format!("listen: 127.0.0.1:0\n{yaml}")).unwrap();
        let link = folder.path().join("..data_tmp");
        std::os::unix::fs::symlink(format!("..{version}"), &link).unwrap();
        std::fs::rename(&link, folder.path().join("..data")).unwrap();
    };
    put("v1", "100/hour");
    let path = folder.path().join("gateway.yaml");
    std::os::unix::fs::symlink("..data/gateway.yaml", &path).unwrap();
    let options = sluice::server::Options {
        access_log: Box::new(std::io::sink()),
        ..sluice::server::Options::new(&path)
    };
    let server = sluice::server::Server::start(options).unwrap();
    let limit = || Connection::open(server.addresses()[0]).get("/").number("x-ratelimit-limit");
    assert_eq!(limit(), 100);
    for (version, rate, expected) in [("v2", "200/hour", 200), ("v3", "300/hour", 300)] {
        put(version, rate);
        eventually("the swapped map", || (limit() == expected).then_some(()));
    }
    server.stop();
}

#[test]
fn a_file_of_keys_is_watched_as_well() {
    let backend = Backend::start();
    let hash = |key: &str| sluice::digest::sha256_hex(key.as_bytes());
    let keys = |names: &[&str]| -> String {
        names.iter().map(|n| format!("- {{ id: {n}, sha256: {} }}\n", hash(n))).collect()
    };
    let yaml = format!(
        "identity: {{ api_key: {{ keys_file: secrets/keys.yaml }} }}\n{}",
        limited(&backend, "[]")
    );
    let gateway = Gateway::start_with(&yaml, |folder| {
        std::fs::create_dir(folder.join("secrets")).unwrap();
        std::fs::write(folder.join("secrets/keys.yaml"), keys(&["one"])).unwrap();
    });
    let status = |key: &str| gateway.get_with("/", &[("x-api-key", key)]).status;
    assert_eq!([status("one"), status("two")], [200, 401]);
    let path = gateway.folder.path().join("secrets/keys.yaml");
    std::fs::write(&path, keys(&["two"])).unwrap();
    eventually("the new key", || (status("two") == 200).then_some(()));
    assert_eq!(status("one"), 401);
    std::fs::write(&path, "- { id: three }\n").unwrap();
    let failed = || gateway.server().gateway().metrics.reloads_failed.value() > 0;
    eventually("the report", || failed().then_some(()));
    assert_eq!(status("two"), 200);
}

#[test]
fn a_file_that_was_missing_is_noticed_when_it_appears() {
    let backend = Backend::start();
    let yaml = limited(&backend, "[]");
    let gateway = Gateway::start(&yaml);
    let keys = gateway.folder.path().join("keys.yaml");
    let with_keys = format!("identity: {{ api_key: {{ keys_file: keys.yaml }} }}\n{yaml}");
    assert!(gateway.reload(&with_keys).unwrap_err().to_string().contains("cannot read"));
    let guess = [("x-api-key", "guess")];
    assert_eq!(gateway.get_with("/", &guess).status, 200);
    std::fs::write(keys, "[]\n").unwrap();
    eventually("the reload", || (gateway.get_with("/", &guess).status == 401).then_some(()));
}

#[test]
fn a_folder_that_is_replaced_is_watched_again() {
    let backend = Backend::start();
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("conf");
    let put = |folder: &std::path::Path, rate: &str| {
        std::fs::create_dir_all(folder).unwrap();
        let yaml = limited(&backend, &format!("[{{ by: ip, rate: {rate} }}]"));
        std::fs::write(folder.join("gateway.yaml"), format!("listen: 127.0.0.1:0\n{yaml}"))
            .unwrap();
    };
    put(&folder, "100/hour");
    let options = sluice::server::Options {
        access_log: Box::new(std::io::sink()),
        ..sluice::server::Options::new(folder.join("gateway.yaml"))
    };
    let server = sluice::server::Server::start(options).unwrap();
    let limit = || Connection::open(server.addresses()[0]).get("/").number("x-ratelimit-limit");
    std::fs::rename(&folder, root.path().join("old")).unwrap();
    let failed = || (server.gateway().metrics.reloads_failed.value() > 0).then_some(());
    eventually("the report of the missing file", failed);
    put(&folder, "200/hour");
    eventually("the new folder", || (limit() == 200).then_some(()));
    put(&folder, "300/hour");
    eventually("an edit in it", || (limit() == 300).then_some(()));
}

#[test]
fn listen_addresses_come_and_go_while_connections_stay() {
    let backend = Backend::start();
    let rest = limited(&backend, "[]");
    let gateway = Gateway::start(&format!("listen: [127.0.0.1:0]\n{rest}"));
    let first = gateway.address();
    let mut old = Connection::open(first);
    assert_eq!(old.get("/").status, 200);

    gateway.reload(&format!("listen: [127.0.0.1:0, '127.0.0.2:0']\n{rest}")).unwrap();
    let both = gateway.server().addresses();
    assert_eq!((both.len(), both[0]), (2, first));
    assert_eq!(Connection::open(both[1]).get("/").status, 200);

    gateway.reload(&format!("listen: ['127.0.0.2:0']\n{rest}")).unwrap();
    assert_eq!(gateway.server().addresses(), [both[1]]);
    assert_eq!(old.get("/").status, 200, "a connection outlives its listener");
    assert_eq!(Connection::open(both[1]).get("/").status, 200);
    let refused = || std::net::TcpStream::connect(first).is_err().then_some(());
    eventually("the end of the listener", refused);

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = taken.local_addr().unwrap();
    let error = gateway.reload(&format!("listen: ['127.0.0.2:0', '{busy}']\n{rest}")).unwrap_err();
    assert!(error.to_string().contains(&format!("cannot listen on {busy}")), "{error}");
    assert_eq!(gateway.server().addresses(), [both[1]], "as it was");
}

/// 30 reloads, a third of them bad, while clients send requests: none fails, and a caller who was
/// at its limit stays at it.
#[test]
fn thirty_reloads_under_load_lose_no_request_and_forgive_nobody() {
    let backend = Backend::start();
    let yaml = |n: usize| {
        format!(
            "identity: {{ trusted_proxies: [127.0.0.1] }}\n{}",
            limited(
                &backend,
                &format!(
                    "[{{ name: ip, by: ip, rate: 5/hour }}, {{ name: other, by: 'header:x-n', rate: {n}/second }}]"
                )
            )
        )
    };
    let gateway = Gateway::start(&yaml(1000));
    let limited_caller = [("x-forwarded-for", "192.0.2.1")];
    assert_eq!(gateway.statuses("/", &limited_caller, 6), [200, 200, 200, 200, 200, 429]);
    let (ended, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (gateway, ended, sent) = (&gateway, &ended, &sent);
            scope.spawn(move || {
                let mut connection = gateway.connect();
                let mut n = 0_u32;
                while !ended.load(Ordering::Relaxed) {
                    // Every request from an address of its own, so that none is rejected.
                    let from = format!("10.{client}.{}.{}", n / 250 % 250, n % 250);
                    n += 1;
                    let reply = connection.send("GET", "/", &[("x-forwarded-for", &from)], b"");
                    assert_eq!(reply.status, 200);
                    if n.is_multiple_of(100) {
                        connection = gateway.connect();
                    }
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let began = Instant::now();
        for round in 0..30 {
            let yaml = yaml(2000 + round);
            let good = round % 3 != 0;
            let text = if good { yaml } else { yaml.replace("upstream: app", "upstream: gone") };
            assert_eq!(gateway.reload(&text).is_ok(), good, "round {round}");
            assert_eq!(gateway.get_with("/", &limited_caller).status, 429, "round {round}");
            let due = Duration::from_millis(100) * (round as u32 + 1);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        ended.store(true, Ordering::Relaxed);
    });
    // The watcher may have reloaded some of them a second time.
    assert!(gateway.generation() >= 21, "{}", gateway.generation());
    assert!(sent.into_inner() > 100);
}

#[test]
fn requests_in_flight_survive_a_reload() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = parking_lot::Mutex::new(held);
    let backend = Backend::with(move |_, stream| {
        let _ = held.lock().recv();
        stream.write_all(&crate::common::backend::ok("held")).is_ok()
    });
    let gateway = Gateway::start(&limited(&backend, "[]"));
    std::thread::scope(|scope| {
        let request = scope.spawn(|| gateway.get("/"));
        eventually("the request", || (backend.seen().len() == 1).then_some(()));
        // Even its upstream and its route are gone.
        gateway.reload("upstreams: { other: 'http://127.0.0.1:1' }\nroutes: [{ path: /x, upstream: other }]\n").unwrap();
        assert_eq!(gateway.get("/").status, 404);
        release.send(()).unwrap();
        assert_eq!(request.join().unwrap().text(), "held");
    });
}
