//! `RateLimit` and `RateLimit-Policy` as a reader of structured fields reads them (RFC 9651).
//!
//! Input: a line of numbers, then lines with the names of limits, or behind a `/` with paths of
//! routes, which limits are called by that have no name.

#![no_main]

use http::HeaderMap;
use libfuzzer_sys::fuzz_target;
use sfv::{BareItem, Item, List, ListEntry, Parser};
use sluice::clock::{Clock, SECOND};
use sluice::config::model::{Config, Limit, Quotas};
use sluice::config::parse;
use sluice::limit::{Held, Quota, Verdict};
use sluice::told::{Told, policies, policy};
use sluice_fuzz::{Numbers, line};
use std::path::Path;

const NOW: u64 = 1_700_000_000 * SECOND;

fuzz_target!(|data: &[u8]| {
    let (numbers, names) = line(data);
    let mut numbers = Numbers(numbers);
    let Some(config) = config(names, &mut numbers) else { return };
    let of_routes = config.routes.iter().flat_map(|route| &route.limits);
    let limits: Vec<&Limit> = config.limits.iter().chain(of_routes).collect();
    let said: Vec<(&str, &Quota, Verdict)> = limits
        .iter()
        .filter_map(|limit| {
            let Quotas::Fixed(quota) = &limit.quotas else { return None };
            Some((limit.name.as_str(), quota, asked(quota, &mut numbers)))
        })
        .collect();

    let items: Vec<String> = said.iter().map(|(name, quota, _)| policy(name, quota)).collect();
    let mut headers = HeaderMap::new();
    let mut told = Told::new(&mut headers);
    let all = policies(items.iter().map(String::as_str));
    assert_eq!(all.is_some(), !said.is_empty(), "names that no header can hold");
    told.ietf(all, said.iter().map(|(name, quota, verdict)| (*name, *quota, verdict)));
    if let Some((_, quota, verdict)) = said.first() {
        let clock = Clock::manual(NOW);
        told.x_ratelimit(quota.rate().count.into(), quota, verdict, &clock);
        told.retry_after(verdict.retry_after().div_ceil(SECOND));
    }

    let (policies, states) = (list(&headers, "ratelimit-policy"), list(&headers, "ratelimit"));
    assert_eq!((policies.len(), states.len()), (said.len(), said.len()));
    for ((name, quota, verdict), (policy, state)) in said.iter().zip(policies.iter().zip(&states)) {
        assert_eq!((text(policy), text(state)), (*name, *name));
        assert_eq!(number(policy, "q"), Some(quota.rate().count.into()));
        if quota.is_concurrency() {
            let unit = policy.params.get("qu");
            assert!(
                matches!(unit, Some(BareItem::String(unit)) if unit.as_str() == "concurrent-requests")
            );
            assert_eq!(number(policy, "w"), None);
        } else {
            assert_eq!(number(policy, "w"), Some(quota.rate().window.div_ceil(SECOND)));
        }
        assert_eq!(number(state, "r"), Some(verdict.remaining().into()));
        let next = quota.next(verdict).div_ceil(SECOND);
        assert_eq!(number(state, "t"), Some(next).filter(|next| *next > 0));
    }
    for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"] {
        let value = headers.get(name).map(|value| value.to_str().expect("text"));
        assert!(value.is_none_or(|value| value.parse::<u64>().is_ok()), "{name}: {value:?}");
    }
});

/// A file with these limits; names that it refuses are left out.
fn config(names: &[u8], numbers: &mut Numbers<'_>) -> Option<Config> {
    let names = names.split(|byte| *byte == b'\n').take(6);
    let names: Vec<&str> = names.filter_map(|name| str::from_utf8(name).ok()).collect();
    let entry = |(index, name): (usize, &&str)| {
        let (quoted, allows) = (serde_json::to_string(name).expect("text"), allowance(numbers));
        if !name.starts_with('/') {
            return (format!(" - {{name: {quoted}, by: ip, {allows}}}\n"), String::new());
        }
        let limit = format!("{{by: [ip, 'header:x-{index}'], {allows}}}");
        let fields = format!("path: {quoted}, hosts: h{index}, upstream: a, limits: [{limit}]");
        (String::new(), format!(" - {{{fields}}}\n"))
    };
    let mut entries: Vec<(String, String)> = names.iter().enumerate().map(entry).collect();
    load(&entries).or_else(|| {
        entries.retain(|one| load(std::slice::from_ref(one)).is_some());
        load(&entries)
    })
}

/// Limits and routes as a file.
fn load(entries: &[(String, String)]) -> Option<Config> {
    let list = |text: String| if text.is_empty() { " []".to_owned() } else { format!("\n{text}") };
    let (limits, routes): (Vec<_>, Vec<_>) = entries.iter().cloned().unzip();
    let text = format!(
        "listen: 127.0.0.1:0\nupstreams: {{a: 'http://127.0.0.1:1'}}\nlimits:{}\nroutes:{}\n",
        list(limits.concat()),
        list(routes.concat())
    );
    parse("gateway.yaml", text, Path::new("."), &|_| None).ok().map(|loaded| loaded.config)
}

fn allowance(numbers: &mut Numbers<'_>) -> String {
    const ALGORITHMS: [&str; 6] =
        ["token_bucket", "gcra", "fixed_window", "sliding_window", "sliding_log", "leaky_bucket"];
    let kind = usize::from(numbers.u8());
    let (count, window) = (numbers.u32() >> (kind % 31), 1 + u32::from(numbers.u8()));
    let unit = ["ms", "s", "m", "h", "d"][kind / 8 % 5];
    match ALGORITHMS.get(kind % 8) {
        Some(algorithm) => format!("algorithm: {algorithm}, rate: {count}/{window}{unit}"),
        None => format!("concurrency: {count}"),
    }
}

/// What a limit says after a few requests.
fn asked(quota: &Quota, numbers: &mut Numbers<'_>) -> Verdict {
    let (mut held, mut now) = (Held::default(), NOW);
    let mut verdict = quota.ask(&mut held, now, 1);
    for _ in 0..numbers.u8() % 8 {
        now += u64::from(numbers.u32());
        verdict = quota.ask(&mut held, now, numbers.u32() >> (numbers.u8() % 32));
    }
    verdict
}

fn list(headers: &HeaderMap, name: &str) -> Vec<Item> {
    let Some(value) = headers.get(name) else { return Vec::new() };
    let list: List = Parser::new(value.as_bytes()).parse().unwrap_or_else(|error| {
        panic!("{name}: {value:?} is no structured field: {error}");
    });
    let items = list.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("{name}: a list in {value:?}"),
    });
    items.collect()
}

fn text(item: &Item) -> &str {
    match &item.bare_item {
        BareItem::String(text) => text.as_str(),
        other => panic!("{other:?} is no string"),
    }
}

fn number(item: &Item, name: &str) -> Option<u64> {
    match item.params.get(name)? {
        BareItem::Integer(number) => u64::try_from(i64::from(*number)).ok(),
        other => panic!("{other:?} is no number"),
    }
}
