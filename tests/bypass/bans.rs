//! Having others banned, and getting around a ban.

use crate::common::{Backend, Gateway, limited};
use sluice::clock::Micros;
use sluice::overrides::{Ban, Bans, Why};
use sluice::store::Part;
use std::net::Ipv4Addr;

const PENALTY: &str = "penalty: { after: 2 rejects in 1h, for: 1h }";

fn trusting(backend: &Backend, rest: &str, limits: &str) -> String {
    format!("identity: {{ trusted_proxies: [127.0.0.1] }}\n{rest}\n{}", limited(backend, limits))
}

fn from(gateway: &Gateway, ip: u32) -> u16 {
    let ip = Ipv4Addr::from(0x0a00_0000 + ip).to_string();
    gateway.get_with("/", &[("x-forwarded-for", &ip)]).status
}

#[test]
fn filling_the_store_bans_no_newcomer() {
    let backend = Backend::start();
    let limit = format!("[{{ name: x, by: ip, rate: 3/hour, {PENALTY} }}]");
    let gateway = Gateway::start(&trusting(&backend, "", &limit));
    gateway.server().gateway().store.set_max_keys(4);
    // Four callers fill the store, and others use up the counter that all newcomers share.
    assert!((0..4).all(|ip| from(&gateway, ip) == 200));
    assert_eq!((4..12).map(|ip| from(&gateway, ip)).filter(|status| *status == 200).count(), 3);
    for ip in 100..110 {
        assert_eq!([from(&gateway, ip), from(&gateway, ip), from(&gateway, ip)], [429; 3]);
    }
    assert!(gateway.server().gateway().overrides.bans.is_empty(), "none of them did anything");
    // A caller with a counter of its own is still banned for what it does itself.
    assert_eq!([from(&gateway, 0), from(&gateway, 0)], [200; 2]);
    assert_eq!([from(&gateway, 0), from(&gateway, 0), from(&gateway, 0)], [429; 3]);
    assert_eq!(gateway.server().gateway().overrides.bans.len(), 1);
}

#[test]
fn a_newcomer_that_begins_where_the_overflow_stood_is_not_banned_for_it() {
    let backend = Backend::start();
    let limit = format!("[{{ name: x, by: ip, rate: 3/hour, {PENALTY} }}]");
    let gateway = Gateway::start(&trusting(&backend, "", &limit));
    let store = &gateway.server().gateway().store;
    store.set_max_keys(1);
    assert!((0..3).all(|ip| from(&gateway, ip) == 200), "one entry, and two in the overflow");
    store.set_max_keys(100);
    // There is room again. Two of three are used by others; the rest is the newcomer's.
    assert_eq!(from(&gateway, 9), 200);
    assert_eq!([from(&gateway, 9), from(&gateway, 9), from(&gateway, 9)], [429; 3]);
    assert!(gateway.server().gateway().overrides.bans.is_empty());
}

#[test]
fn a_flood_of_rejected_callers_bans_no_one_else() {
    // The table of counted rejects is bounded, too. In a full one, strangers share a counter.
    let bans = Bans::default();
    let rate = sluice::limit::Rate { count: 1, window: 3_600_000_000 };
    let tolerated = sluice::limit::Quota::fixed_window(rate).unwrap();
    let limit = bans.limit_id("x");
    bans.adopt([(limit, [tolerated.clone()].into())].into());
    let now = 1_700_000_000_000_000;
    let reject = |ip: u32| {
        let part = [Part::Ip(Ipv4Addr::from(ip).into())];
        bans.count_reject(limit, &tolerated, sluice::store::Subject(&part), now)
    };
    assert!((0..150_000).all(|ip| !reject(ip)), "each of them once");
    assert!(
        (200_000..200_010).all(|ip| !reject(ip) && !reject(ip)),
        "too late to be counted alone"
    );
    assert!(reject(7), "who is counted is counted");
}

#[test]
fn a_shadow_limit_reports_a_ban_and_never_bans() {
    let backend = Backend::start();
    let limits = format!(
        "[{{ name: trial, by: ip, rate: 2/hour, mode: shadow, {PENALTY} }},
          {{ name: real, by: 'header:x-other', rate: 2/hour }}]"
    );
    let gateway = Gateway::start(&trusting(&backend, "", &limits));
    assert!((0..8).all(|_| from(&gateway, 1) == 200));
    let metrics = gateway.server().gateway().metrics.limit("trial", "");
    assert_eq!(metrics.total("shadow_rejected"), 6);
    assert_eq!(metrics.total("shadow_banned"), 5, "all but those that are tolerated");
    assert_eq!(metrics.total("banned"), 0);
    assert!(gateway.server().gateway().overrides.bans.is_empty());
}

#[test]
fn a_banned_address_does_not_hold_up_an_exempt_key_behind_it() {
    let backend = Backend::start();
    let (nightly, other) = ("nightly-key", "other-key");
    let key = |id: &str, secret: &str| {
        let hex = sluice::digest::sha256_hex(secret.as_bytes());
        format!("{{ id: {id}, sha256: '{hex}' }}")
    };
    let yaml = format!(
        "admin: 127.0.0.1:0
identity:
  api_key: {{ keys: [{}, {}] }}
exempt: {{ api_keys: [nightly] }}
{}",
        key("nightly", nightly),
        key("other", other),
        limited(&backend, &format!("[{{ name: x, by: ip, rate: 1/hour, {PENALTY} }}]"))
    );
    let gateway = Gateway::start(&yaml);
    assert_eq!(gateway.statuses("/", &[], 4), [200, 429, 429, 429]);
    assert_eq!(gateway.server().gateway().overrides.bans.len(), 1);
    let with = |key: &str| gateway.get_with("/", &[("x-api-key", key)]).status;
    assert_eq!(with(nightly), 200, "exempt means exempt");
    assert_eq!(with(other), 429, "no other key is");
    assert_eq!(with("wrong"), 429, "and a wrong one says nothing");
    let both = [("x-api-key", nightly), ("x-api-key", nightly)];
    assert_eq!(gateway.get_with("/", &both).status, 429, "nor does one that is there twice");
}

#[test]
fn an_operators_ban_holds_for_an_exempt_address_and_a_penalty_does_not() {
    let backend = Backend::start();
    let yaml = format!(
        "admin: 127.0.0.1:0\nexempt: {{ ips: [10.0.0.1] }}\n{}",
        trusting(&backend, "", "[{ name: x, by: ip, rate: 9/hour }]")
    );
    let gateway = Gateway::start(&yaml);
    let bans = &gateway.server().gateway().overrides.bans;
    let ban = |why| {
        let (who, until) = ("ip:10.0.0.1".parse().unwrap(), u64::MAX);
        bans.add(Ban { who, why, until, metrics: None }, 0);
    };
    ban(Why::Penalty("x".into()));
    assert_eq!(from(&gateway, 1), 200);
    ban(Why::Operator(None));
    assert_eq!(from(&gateway, 1), 429);
}

#[test]
fn beyond_the_most_bans_the_one_that_ends_first_makes_room() {
    let bans = Bans::default();
    let add = |ip: u32, until: Micros| {
        let who = format!("ip:{}", Ipv4Addr::from(ip)).parse().unwrap();
        bans.add(Ban { who, why: Why::Penalty("x".into()), until, metrics: None }, 0)
    };
    for ip in 0..100_000 {
        add(ip, 1_000_000 + Micros::from(ip));
    }
    let find = |ip: u32| bans.find(Part::Ip(Ipv4Addr::from(ip).into()), 1).is_some();
    assert!(add(500_000, 5_000_000) && find(500_000), "a new offender is banned");
    assert!(!find(0), "in the place of the one that would have been free first");
    assert!(find(1) && find(99_999));
    assert_eq!(bans.len(), 100_000);
}
