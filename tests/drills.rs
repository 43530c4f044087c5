//! What happens to callers while endpoints die, hang and come back, under load. The figures that the
//! tests print are those of docs/upstreams.md.

use crate::common::backend::ok;
use crate::common::load::{Asked, Load, Outcome};
use crate::common::{Backend, Connection, Gateway, HeldPort, eventually};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CALLERS: usize = 12;
const EVERY: Duration = Duration::from_millis(500);

fn gateway(endpoints: &[SocketAddr], settings: &str) -> Gateway {
    let urls: Vec<String> = endpoints.iter().map(|address| format!("'http://{address}'")).collect();
    let urls = urls.join(", ");
    Gateway::start_in_real_time(&format!(
        "admin: 127.0.0.1:0\nidentity: {{ trusted_proxies: [127.0.0.1] }}\nupstreams: {{ app: {{ endpoints: [{urls}], {settings} }} }}\nroutes: [{{ path: /, upstream: app }}]\nlogging: {{ access: off }}\n"
    ))
}

fn in_service(gateway: &Gateway) -> usize {
    let page = Connection::to_operator(gateway.admin()).get("/metrics").text().to_owned();
    let endpoints = page.lines().filter(|line| line.starts_with("sluice_endpoint_in_service{"));
    endpoints.filter(|line| line.ends_with(" 1")).count()
}

fn load(gateway: &Gateway) -> Load {
    Load::start_as_callers(&[gateway], CALLERS, Duration::from_millis(3))
}

fn failed(outcome: &Outcome) -> Vec<Asked> {
    outcome.0.iter().filter(|asked| asked.status != 200).copied().collect()
}

fn pause() {
    std::thread::sleep(Duration::from_millis(700));
}

/// By requests alone, without a check: connection after connection breaks, and then none comes about.
#[test]
fn one_of_three_endpoints_is_killed() {
    for (name, health) in [("without checks", ""), ("with checks", ", health: { every: 500ms }")] {
        let ports = [(); 3].map(|()| HeldPort::new());
        let mut backends: Vec<Backend> = ports.iter().map(Backend::at).collect();
        let addresses = ports.each_ref().map(HeldPort::address);
        let gateway = gateway(&addresses, &format!("eject: {{ for: 2s }}{health}"));
        let load = load(&gateway);
        pause();
        drop(backends.pop());
        let killed = Instant::now();
        eventually("its ejection", || (in_service(&gateway) == 2).then_some(()));
        let ejected = Instant::now();
        pause();
        let back = Backend::at(&ports[2]);
        eventually("its return", || (back.count() > 0).then_some(()));
        pause();
        let outcome = load.stop();
        let failed = failed(&outcome);
        let share = failed.len() as f64 / outcome.0.len() as f64;
        println!(
            "killed, {name}: out after {:?}, {} of {} failed ({:.3}%)",
            ejected - killed,
            failed.len(),
            outcome.0.len(),
            share * 100.0
        );
        assert!(share < 0.001, "{failed:?}");
        assert!(failed.iter().all(|asked| asked.at < ejected), "none after its ejection");
    }
}

#[test]
fn all_endpoints_die_and_return() {
    let ports = [(); 3].map(|()| HeldPort::new());
    let backends = ports.each_ref().map(Backend::at);
    let addresses = ports.each_ref().map(HeldPort::address);
    let gateway = gateway(&addresses, "health: { every: 500ms, unhealthy_after: 2 }, eject: off");
    let load = load(&gateway);
    pause();
    drop(backends);
    eventually("all of them to be out", || (in_service(&gateway) == 0).then_some(()));
    let out = Instant::now();
    pause();
    let returned = Instant::now();
    let backends = ports.each_ref().map(Backend::at);
    eventually("the first of them", || (in_service(&gateway) > 0).then_some(()));
    let first = returned.elapsed();
    eventually("all of them", || (in_service(&gateway) == 3).then_some(()));
    let all = Instant::now();
    pause();
    let outcome = load.stop();
    let between = |from: Instant, to: Instant| {
        outcome.0.iter().filter(move |asked| asked.at > from && asked.at + asked.took < to)
    };
    let dead: Vec<_> = between(out, returned).collect();
    let longest = dead.iter().map(|asked| asked.took).max().unwrap_or_default();
    println!(
        "all died: {} answers of 503, the longest in {longest:?}; the first is back after {first:?}, all after {:?}",
        dead.len(),
        all - returned
    );
    assert!(!dead.is_empty() && dead.iter().all(|asked| asked.status == 503));
    assert!(between(all, Instant::now()).all(|asked| asked.status == 200));
    // Within an interval, unless the machine has other things to do.
    assert!(all - returned < EVERY * 10, "{:?}", all - returned);
    assert!(backends.iter().all(|backend| backend.count() > 0));
}

#[test]
fn an_endpoint_hangs() {
    let hangs = Arc::new(AtomicBool::new(false));
    let hanging = Arc::clone(&hangs);
    let bad = Backend::with(move |_, stream| {
        while hanging.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        stream.write_all(&ok("late")).is_ok()
    });
    let good: Vec<Backend> = (0..2).map(|_| Backend::start()).collect();
    let addresses = [bad.address(), good[0].address(), good[1].address()];
    let limit = Duration::from_millis(500);
    let settings = "timeouts: { response: 500ms }, eject: { after: 3, for: 30s }";
    let gateway = gateway(&addresses, settings);
    let load = load(&gateway);
    pause();
    hangs.store(true, Ordering::SeqCst);
    eventually("its ejection", || (in_service(&gateway) == 2).then_some(()));
    let ejected = Instant::now();
    pause();
    hangs.store(false, Ordering::SeqCst);
    let outcome = load.stop();
    let failed = failed(&outcome);
    let served = outcome.0.iter().filter(|asked| asked.status == 200);
    let slow = served.filter(|asked| asked.took >= limit / 2).count();
    println!("hung: {} of {} got 504, {slow} others waited", failed.len(), outcome.0.len());
    assert!(failed.iter().all(|asked| asked.status == 504 && asked.at < ejected), "{failed:?}");
    // Those who were there when it began to hang, and nobody else: callers come one at a time.
    assert!((3..=CALLERS).contains(&failed.len()), "{}", failed.len());
    // A machine that is busy with other tests may hold up a few.
    assert!(slow * 100 <= outcome.0.len(), "others are unharmed: {slow} of {}", outcome.0.len());
}
