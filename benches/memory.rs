//! What a caller costs in memory, beside `governor`; and what a flood of strangers does to a full
//! store. `cargo bench --bench memory`
//!
//! Resident memory, each measured in a process of its own.

use governor::{DefaultKeyedRateLimiter, RateLimiter};
use sluice::clock::{Clock, SECOND};
use sluice::limit::{Quota, Rate};
use sluice::store::{Charge, Memory, Part, Registry, Subject};
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::process::Command;

const MILLION: u32 = 1_000_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("ours") => ours(arguments[2].parse().expect("a number")),
        Some("governor") => theirs(arguments[2].parse().expect("a number")),
        Some("flood") => flood(10 * MILLION),
        _ => {
            for (who, callers) in [("ours", 1), ("governor", 1), ("ours", 10), ("governor", 10)] {
                again(&[who, &(callers * MILLION).to_string()]);
            }
            again(&["flood"]);
        }
    }
}

/// Runs this program again: memory that was used once does not come back.
fn again(arguments: &[&str]) {
    let program = std::env::current_exe().expect("this program");
    let status = Command::new(program).args(arguments).status().expect("it runs");
    assert!(status.success());
}

fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    pages.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number") * 4096
}

/// Different ones for different numbers, without a pattern.
fn address(n: u32) -> IpAddr {
    Ipv4Addr::from(n.wrapping_mul(2_654_435_761)).into()
}

fn report(who: &str, callers: u32, before: u64) {
    let bytes = resident() - before;
    println!("{who:9} {callers:8} callers: {:5.1} bytes each", bytes as f64 / f64::from(callers));
}

fn store(max_keys: usize, quota: &Quota) -> Memory {
    let store = Memory::new(max_keys);
    let id = store.limit_id("ip");
    store.adopt(Registry::from([(id, [quota.clone()].into())]));
    store
}

fn ask(store: &Memory, quota: &Quota, caller: IpAddr, now: u64) -> bool {
    let parts = [Part::Ip(caller)];
    let mut charges = [Charge::new(store.limit_id("ip"), quota, Subject(&parts))];
    store.charge_all(&mut charges, now).rejected_by.is_none()
}

fn ours(callers: u32) {
    let quota = Quota::token_bucket(Rate { count: 100, window: 60 * SECOND }, None).expect("valid");
    let before = resident();
    let store = store(callers as usize, &quota);
    let now = Clock::system().now();
    for n in 0..callers {
        assert!(ask(&store, &quota, address(n), now));
    }
    assert_eq!(store.keys(), callers as usize);
    report("sluice", callers, before);
}

fn theirs(callers: u32) {
    let before = resident();
    let quota = governor::Quota::per_minute(NonZeroU32::new(100).expect("not zero"));
    let limiter: DefaultKeyedRateLimiter<IpAddr> = RateLimiter::keyed(quota);
    for n in 0..callers {
        assert!(limiter.check_key(&address(n)).is_ok());
    }
    report("governor", callers, before);
}

/// So many strangers, each once, against a store of 100,000; a caller who was limited before
/// them asks all the while.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn flood(strangers: u32) {
    let quota = Quota::token_bucket(Rate { count: 3, window: 3600 * SECOND }, None).expect("valid");
    let store = store(100_000, &quota);
    let (clock, limited) = (Clock::system(), IpAddr::from(Ipv4Addr::LOCALHOST));
    while ask(&store, &quota, limited, clock.now()) {}
    let mut random = fastrand::Rng::with_seed(7);
    let (mut admitted, mut full) = (0_u32, 0);
    for part in 0..10 {
        let began = std::time::Instant::now();
        for n in 0..strangers / 10 {
            let stranger = Ipv4Addr::from(random.u32(..) | 1 << 31).into();
            admitted += u32::from(ask(&store, &quota, stranger, clock.now()));
            if n % 1000 == 0 {
                assert!(!ask(&store, &quota, limited, clock.now()), "still limited");
                store.sweep(1, clock.now());
            }
        }
        let nanos = began.elapsed().as_nanos() / u128::from(strangers / 10);
        if part == 0 {
            full = resident();
        }
        println!(
            "flood: {:2} million strangers: {} keys, {admitted} admitted, {nanos} ns each, {:.1} MiB",
            (part + 1) * strangers / 10 / MILLION,
            store.keys(),
            resident() as f64 / 1024.0 / 1024.0,
        );
    }
    assert!(resident() <= full + full / 10, "memory is flat");
}
