//! What the page must say after the traffic of [`World`], sample by sample. What is not here is zero, or
//! moves by itself.

use super::world::World;
use crate::common::START;
use std::collections::BTreeMap;

/// Samples and their values.
#[derive(Default)]
pub struct Expected(BTreeMap<String, f64>);

impl Expected {
    fn put(&mut self, sample: &str, value: f64) {
        assert_eq!(self.0.insert(sample.to_owned(), value), None, "{sample}");
    }
}

/// Everything; how many second tries there were is up to the balancing.
pub fn expected(world: &World, second_tries: f64) -> BTreeMap<String, f64> {
    let mut all = Expected::default();
    requests(&mut all, second_tries);
    decisions(&mut all);
    endpoints(&mut all, world);
    the_rest(&mut all, second_tries);
    all.0
}

fn requests(all: &mut Expected, second_tries: f64) {
    for (route, counts) in [
        ("app", &[(200, 10.0), (401, 1.0), (413, 1.0), (429, 3.0)][..]),
        ("login", &[(200, 2.0), (429, 2.0)]),
        ("", &[(400, 1.0), (404, 1.0), (414, 1.0), (429, 2.0)]),
        ("broken", &[(502, 1.0)]),
        ("failing", &[(500, 2.0)]),
        ("held", &[(200, 1.0), (503, 1.0)]),
        ("priced", &[(200, 1.0)]),
        ("sick", &[(503, 1.0)]),
        ("two", &[(200, 4.0)]),
    ] {
        for (status, count) in counts {
            let labels = format!("{{route=\"{route}\",status=\"{status}\"}}");
            all.put(&format!("sluice_requests_total{labels}"), *count);
        }
        let sum = counts.iter().map(|(_, count)| count).sum();
        all.put(&format!("sluice_request_duration_seconds_count{{route=\"{route}\"}}"), sum);
    }
    all.put("sluice_overhead_duration_seconds_count", 35.0);
    // /login and /priced are app's as well; a second try is asking twice.
    for (upstream, asked) in [
        ("app", 13.0),
        ("broken", 1.0),
        ("failing", 2.0),
        ("held", 1.0),
        ("two", 4.0 + second_tries),
    ] {
        all.put(
            &format!("sluice_upstream_duration_seconds_count{{upstream=\"{upstream}\"}}"),
            asked,
        );
    }
}

fn decisions(all: &mut Expected) {
    for (limit, verdicts) in [
        // Everybody who was admitted but the exempt.
        ("limit=\"per-ip\"", &[("allowed", 25.0), ("exempt", 2.0)][..]),
        // 192.0.2.1 twice and 192.0.2.11 once were beyond three.
        ("limit=\"tighter\"", &[("allowed", 22.0), ("shadow_rejected", 3.0), ("exempt", 2.0)]),
        ("limit=\"quota\",plan=\"pro\"", &[("allowed", 5.0), ("rejected", 2.0)]),
        ("limit=\"quota\",plan=\"free\"", &[("allowed", 2.0), ("rejected", 1.0), ("exempt", 2.0)]),
        ("limit=\"login\"", &[("allowed", 2.0), ("rejected", 2.0), ("banned", 1.0)]),
        ("limit=\"cost\"", &[("allowed", 1.0)]),
        ("limit=\"operator\"", &[("banned", 1.0)]),
    ] {
        for (verdict, count) in verdicts {
            let labels = format!("{{{limit},verdict=\"{verdict}\"}}");
            all.put(&format!("sluice_limit_decisions_total{labels}"), *count);
        }
    }
}

fn endpoints(all: &mut Expected, world: &World) {
    let (app, held, sick) = (world.backend.address(), world.held.address(), world.sick.address());
    let (dead, failing) = (world.dead.address(), world.failing.address());
    for (upstream, endpoint, in_service) in [
        ("app", app, 1.0),
        ("broken", dead, 1.0),
        ("failing", failing, 1.0),
        ("held", held, 1.0),
        ("sick", sick, 0.0),
        ("two", dead, 1.0),
        ("two", app, 1.0),
    ] {
        let labels = format!("{{upstream=\"{upstream}\",endpoint=\"{endpoint}\"}}");
        all.put(&format!("sluice_endpoint_in_service{labels}"), in_service);
    }
}

fn the_rest(all: &mut Expected, second_tries: f64) {
    let now = START as f64 / 1e6;
    for (sample, value) in [
        ("sluice_limit_unsettled_total{limit=\"cost\"}", 1.0),
        ("sluice_refused_total{reason=\"bad_request\"}", 1.0),
        ("sluice_refused_total{reason=\"body_too_large\"}", 1.0),
        ("sluice_refused_total{reason=\"uri_too_long\"}", 1.0),
        ("sluice_upstream_failures_total{upstream=\"broken\",reason=\"unreachable\"}", 1.0),
        ("sluice_upstream_failures_total{upstream=\"failing\",reason=\"status\"}", 2.0),
        ("sluice_upstream_failures_total{upstream=\"two\",reason=\"unreachable\"}", second_tries),
        ("sluice_upstream_retries_total{upstream=\"two\"}", second_tries),
        ("sluice_upstream_unavailable_total{upstream=\"sick\"}", 1.0),
        ("sluice_upstream_places{upstream=\"held\"}", 1.0),
        ("sluice_shed_total{reason=\"upstream\",priority=\"normal\"}", 1.0),
        ("sluice_max_in_flight", 100.0),
        ("sluice_memory_used_ratio", 0.25),
        ("sluice_config_reloads_total{result=\"ok\"}", 1.0),
        ("sluice_config_reloads_total{result=\"error\"}", 1.0),
        ("sluice_config_last_reload_success", 0.0),
        ("sluice_config_last_reload_timestamp_seconds", now + 2.0),
        ("sluice_config_generation", 2.0),
        ("sluice_config_loaded_timestamp_seconds", now + 1.0),
        // 2090-04-05; the other certificate of that name lasts ten years longer.
        (
            "sluice_certificate_expiry_timestamp_seconds{listener=\"127.0.0.2:0\",name=\"a.test\"}",
            3_795_033_600.0,
        ),
        ("sluice_unknown_plans_total", 1.0),
        // One for each request, and one for each that an endpoint was asked for.
        ("sluice_spans_exported_total", 35.0 + 21.0),
        ("sluice_memory_keys_max", 5000.0),
        ("sluice_bans", 2.0),
        ("sluice_grants", 1.0),
        ("sluice_admin_refused_total", 1.0),
        ("process_start_time_seconds", now),
    ] {
        all.put(sample, value);
    }
    let version = env!("CARGO_PKG_VERSION");
    all.put(&format!("sluice_build_info{{version=\"{version}\"}}"), 1.0);
}
