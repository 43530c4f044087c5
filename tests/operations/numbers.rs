//! Known traffic, and then every number of the page.

#![allow(clippy::float_cmp, reason = "what is counted is whole, and the rest is told as it is")]

use super::expected::expected;
use super::page::{Page, ask, family};
use super::promtool::check_page;
use super::world::World;
use crate::common::redis::Redis;
use crate::common::{Backend, Gateway, eventually};
use crate::fleet::{on, sharing};
use sluice::metrics::families::{ALL, Kind};
use std::collections::BTreeSet;
use std::time::Duration;

/// What nobody can know beforehand, and what can be said of it all the same.
fn is_plausible(sample: &str, value: f64) -> Option<bool> {
    Some(match family(sample).name {
        "sluice_limit_pressure_ratio" => (0.0..=1.0).contains(&value),
        // 11 addresses for per-ip and tighter, two keys, a login and its rejects, a cost. One address was
        // given everything back, since its backend refused the connection: it may be forgotten.
        "sluice_memory_keys" => (24.0..=26.0).contains(&value),
        "sluice_worker_lag_seconds" | "process_cpu_seconds" => value >= 0.0,
        "sluice_health_checks_failed" => (value > 0.0) == sample.contains("\"sick\""),
        "process_resident_memory_bytes" => value > 1e6,
        "process_open_fds" | "process_max_fds" => value > 10.0,
        _ => return None,
    })
}

#[test]
fn every_number_of_the_page_is_right_after_known_traffic() {
    let world = World::start();
    let sick = format!(
        "sluice_endpoint_in_service{{upstream=\"sick\",endpoint=\"{}\"}}",
        world.sick.address()
    );
    eventually("a failed check", || (world.page().get(&sick) == Some(0.0)).then_some(()));
    world.traffic();
    world.one_is_held();

    // A good reload, then a file with a mistake; a second each.
    world.gateway.advance(Duration::from_secs(1));
    assert_eq!(ask(&world.gateway, "POST", "/api/v1/reload", "").text(), "{\"generation\":2}\n");
    world.gateway.advance(Duration::from_secs(1));
    world.gateway.write(&world.yaml.replace("mode: shadow", "mode: shadwo"));

    let page = eventually("calm", || {
        let page = world.page();
        let exported = page.get("sluice_spans_exported_total") == Some(56.0);
        let refused = page.get("sluice_config_last_reload_success") == Some(0.0);
        let closed = page.get("sluice_connections") == Some(0.0);
        (exported && refused && closed).then_some(page)
    });
    page.check_histograms();
    let second_tries = page.get("sluice_upstream_retries_total{upstream=\"two\"}").unwrap();
    assert!((1.0..=4.0).contains(&second_tries), "{second_tries}");
    let expected = expected(&world, second_tries);
    let mut wrong = Vec::new();
    for (sample, value) in &page.samples {
        let known = expected.get(sample).map(|expected| expected == value);
        // Buckets were looked at; nothing took any time, by a clock that stands still.
        let is_bucket = sample.contains("_bucket{");
        let fits = known.or_else(|| is_plausible(sample, *value)).unwrap_or(*value == 0.0);
        if !fits && !is_bucket {
            wrong.push(format!("{sample} is {value}, not {:?}", expected.get(sample)));
        }
    }
    let missing = expected.keys().filter(|sample| page.get(sample).is_none());
    wrong.extend(missing.map(|sample| format!("{sample} is missing")));
    assert!(wrong.is_empty(), "{wrong:#?}");
    check_page(&world.gateway);
    check_every_family(&page);
}

/// Every family has samples here, unless it is of a store that others share.
fn check_every_family(page: &Page) {
    let told: BTreeSet<&str> = page.samples.keys().map(|sample| family(sample).name).collect();
    for family in ALL.iter().filter(|family| !told.contains(family.name)) {
        assert!(family.name.starts_with("sluice_store_"), "{} has no sample", family.name);
    }
}

#[test]
fn every_number_of_a_shared_store_is_there_and_right() {
    let mut redis = Redis::start();
    let backend = Backend::start();
    let limits = "[{ name: exact, by: user, rate: 3/hour }, \
                   { name: leased, by: ip, unless: user, rate: 100000/hour, consistency: leased }]";
    let yaml = sharing(&backend, &on(&redis), limits)
        .replace("admin: 127.0.0.1:0", "admin: { address: '127.0.0.1:0', token: s3cret }");
    let gateway = Gateway::start_in_real_time(&yaml);
    let up = || Page::scrape(&gateway).get("sluice_store_up");
    eventually("the store", || (up() == Some(1.0)).then_some(()));
    let ada = [("x-user-id", "ada")];
    assert_eq!(gateway.statuses("/", &ada, 5), [200, 200, 200, 429, 429]);
    let page = Page::scrape(&gateway);
    page.check_histograms();
    let value =
        |sample: &str| page.get(sample).unwrap_or_else(|| panic!("{sample}\n{}", page.text));
    let verdict = |limit: &str, verdict: &str| {
        value(&format!("sluice_limit_decisions_total{{limit=\"{limit}\",verdict=\"{verdict}\"}}"))
    };
    assert_eq!((verdict("exact", "allowed"), verdict("exact", "rejected")), (3.0, 2.0));
    assert_eq!(value("sluice_store_recalled_total"), 1.0, "the second reject was known");
    // What is held is counted once a second.
    eventually("what is remembered", || {
        (Page::scrape(&gateway).get("sluice_store_denials") == Some(1.0)).then_some(())
    });
    assert_eq!(value("sluice_store_fallbacks_total"), 0.0);
    assert_eq!(value("sluice_store_breaker_opened_total"), 0.0);
    assert_eq!(value("sluice_store_owed"), 0.0);
    assert!(value("sluice_store_calls_total") >= 4.0, "each decision but the known one");
    assert!(value("sluice_store_duration_seconds_count") >= 4.0);
    eventually("allowance that is here", || {
        gateway.statuses("/", &[], 3);
        let page = Page::scrape(&gateway);
        let here =
            page.get("sluice_store_leased_total")? > 0.0 && page.get("sluice_store_leases")? > 0.0;
        here.then_some(())
    });
    redis.kill();
    let away = eventually("the store given up", || {
        // Each asks for another user: nothing of them is known.
        let user = format!("user-{}", fastrand::u64(..));
        gateway.get_with("/", &[("x-user-id", &user)]);
        Some(Page::scrape(&gateway)).filter(|page| page.get("sluice_store_up") == Some(0.0))
    });
    assert_eq!(away.get("sluice_store_breaker_opened_total"), Some(1.0));
    assert!(away.get("sluice_store_fallbacks_total").unwrap() >= 5.0);
    assert!(away.sum("sluice_store_failures_total") >= 5.0);
    let degraded = "sluice_limit_decisions_total{limit=\"exact\",verdict=\"degraded\"}";
    assert!(away.get(degraded).unwrap() >= 5.0);
    eventually("what is owed", || {
        (Page::scrape(&gateway).get("sluice_store_owed")? >= 1.0).then_some(())
    });
    away.check_histograms();
    check_page(&gateway);
    let told: BTreeSet<&str> = away.samples.keys().map(|sample| family(sample).name).collect();
    let store = ALL.iter().filter(|family| family.name.starts_with("sluice_store_"));
    for family in store {
        assert!(told.contains(family.name), "{} has no sample", family.name);
    }
}

#[test]
fn the_pressure_on_a_limit_rises_and_falls() {
    let backend = Backend::start();
    let yaml = crate::common::limited(&backend, "[{ name: a, by: ip, rate: 4/hour }]");
    let gateway =
        Gateway::start(&format!("admin: {{ address: '127.0.0.1:0', token: s3cret }}\n{yaml}"));
    let pressure =
        || Page::scrape(&gateway).get("sluice_limit_pressure_ratio{limit=\"a\"}").unwrap();
    assert_eq!(pressure(), 0.0);
    gateway.get("/");
    gateway.get("/");
    // Two seconds are remembered, so nothing of this is forgotten on the way.
    assert!([0.25, 0.5].contains(&pressure()), "{}", pressure());
    gateway.statuses("/", &[], 3);
    eventually("a limit that is used up", || {
        gateway.get("/");
        (pressure() == 1.0).then_some(())
    });
    eventually("nobody asks", || (pressure() == 0.0).then_some(()));
}

#[test]
fn every_kind_of_metric_is_told_as_its_family_says() {
    let kinds: BTreeSet<&str> = ALL.iter().map(|family| family.kind.name()).collect();
    assert_eq!(kinds, ["counter", "gauge", "histogram"].into());
    for family in ALL {
        let plain = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(family.name.chars().all(plain) && !family.name.ends_with("_total"), "{family:?}");
        assert!(family.kind != Kind::Histogram || family.name.ends_with("_seconds"), "{family:?}");
        assert!(family.help.ends_with('.') || family.help.contains(';'), "{family:?}");
    }
}
