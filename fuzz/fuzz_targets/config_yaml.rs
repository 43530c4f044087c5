//! `gateway.yaml`: any text gives a configuration or says what is wrong, and soon.
//!
//! Input: a file. One that begins with `=` is a scalar in one of the small languages (`=d250ms`,
//! `=s64KiB`, `=%20%`, `=r100/minute`); in one that begins with `*N` and a line end, the lines
//! between two lines of `***` are repeated N times ten.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::clock::{Micros, SECOND};
use sluice::config::diagnostics::Severity;
use sluice::config::model::{Config, Quotas};
use sluice::config::{LoadError, Loaded, parse};
use sluice::metrics::Metrics;
use sluice::overrides::Bans;
use sluice::snapshot::{Lasting, Snapshot};
use sluice::store::{Memory, Store};
use sluice::upstream::names::Names;
use sluice_fuzz::worked;
use std::path::Path;
use std::time::Duration;

/// Files that a configuration may name.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");

/// Text that is longer is not tried.
const LONGEST: usize = 256 << 10;

fuzz_target!(|text: &str| {
    // Devices never end.
    if ["/dev", "/proc", "/sys"].iter().any(|folder| text.contains(folder)) {
        return;
    }
    match text.strip_prefix('=') {
        Some(scalar) => small(scalar),
        None => load(repeated(text)),
    }
});

fn load(text: String) {
    if text.len() > LONGEST {
        return;
    }
    // YAML has more line ends than others.
    let lines = 1 + text.matches(['\r', '\n', '\u{85}', '\u{2028}', '\u{2029}']).count();
    let length = text.len();
    let begun = worked();
    let result = read(text);
    let (said, config) = match result {
        Ok(Loaded { config, warnings }) => (warnings, Some(config)),
        Err(LoadError::Invalid { diagnostics, .. }) => (diagnostics, None),
        Err(LoadError::Unreadable { .. }) => panic!("nothing was to be read"),
    };
    soon(begun, length, "read");
    assert_eq!(said.errors() == 0, config.is_some(), "{said}");
    for one in said.iter() {
        assert!(!one.message.is_empty());
        assert!(one.severity == Severity::Error || config.is_some() || said.errors() > 0);
        let own = one.source.name == "gateway.yaml";
        assert!(!own || one.span.line <= lines + 1, "line {} of {lines}", one.span.line);
    }
    let begun = worked();
    let shown = said.to_string();
    assert_eq!(shown.is_empty(), said.iter().count() == 0);
    soon(begun, length, "say what is wrong");
    if let Some(config) = config {
        run(config, length);
    }
}

/// What can be read can be run on.
fn run(config: Config, length: usize) {
    let (store, metrics) = (Store::Memory(Memory::new(1000)), Metrics::new(1));
    let begun = worked();
    let names = Names::default();
    let bans = Bans::default();
    let lasting =
        Lasting { store: &store, bans: &bans, metrics: &metrics, names: &names, previous: None };
    let snapshot = Snapshot::build(config, 1_700_000_000 * SECOND, lasting);
    store.adopt(snapshot.registry(&[]));
    bans.adopt(snapshot.penalties());
    assert!(snapshot.begun_anew(&snapshot).is_empty());
    soon(begun, length, "build");
}

/// A second, as it is built for this, is a small part of one otherwise.
fn soon(begun: Duration, length: usize, what: &str) {
    let took = worked().saturating_sub(begun);
    assert!(took < Duration::from_secs(2), "{took:?} to {what} {length} bytes");
}

fn read(text: String) -> Result<Loaded, LoadError> {
    let env = |name: &str| (name == "PORT").then(|| "8080".to_owned());
    parse("gateway.yaml", text, Path::new(FOLDER), &env)
}

fn repeated(text: &str) -> String {
    let whole = || {
        let (head, rest) = text.strip_prefix('*')?.split_once('\n')?;
        let count = 10 * head.parse::<u8>().ok().map(usize::from)?;
        let (before, rest) = rest.split_once("***\n")?;
        let (part, after) = rest.split_once("***\n")?;
        (count * part.len() <= LONGEST).then(|| format!("{before}{}{after}", part.repeat(count)))
    };
    whole().map(|text| numbered(&text)).unwrap_or_else(|| text.to_owned())
}

/// Every `@` as another number: names that are not the same.
fn numbered(text: &str) -> String {
    let mut parts = text.split('@');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for (number, part) in parts.enumerate() {
        out += &number.to_string();
        out += part;
    }
    out
}

/// A file around one scalar, and the same scalar read by its definition.
fn small(scalar: &str) {
    let Some((kind, text)) = scalar.char_indices().nth(1).map(|(at, _)| scalar.split_at(at)) else {
        return;
    };
    if text.contains("${") {
        return;
    }
    let quoted = serde_json::to_string(text).expect("text");
    let with = |field: String| {
        let rest = "listen: 127.0.0.1:0\nupstreams: {a: 'http://127.0.0.1:1'}\nroutes: []";
        read(format!("{rest}\n{field}\n")).ok().map(|loaded| loaded.config)
    };
    let plain = text.chars().all(|c| (' '..='~').contains(&c));
    match kind {
        "d" => {
            let config = with(format!("server: {{ shutdown_grace: {quoted} }}"));
            let read = config.map(|config| config.server.shutdown_grace.as_millis());
            let expected = duration(text);
            assert!(read == expected || !plain && read.is_none(), "{text:?}: {read:?}");
        }
        "s" => {
            let config = with(format!("server: {{ max_body_bytes: {quoted} }}"));
            let read = config.map(|config| config.server.max_body_bytes);
            let expected = if text == "none" { Some(None) } else { size(text).map(Some) };
            assert!(read == expected || !plain && read.is_none(), "{text:?}: {read:?}");
        }
        "%" => {
            let config = with(format!("headers: {{ retry_jitter: {quoted} }}"));
            let share = config.map(|config| config.headers.retry_jitter);
            assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{text:?}: {share:?}");
            assert!(share.is_none() || text.ends_with('%'));
        }
        "r" => {
            let field =
                format!("limits: [{{ by: global, algorithm: sliding_window, rate: {quoted} }}]");
            let read = with(field).map(|config| match &config.limits[0].quotas {
                Quotas::Fixed(quota) => (u64::from(quota.rate().count), quota.rate().window),
                Quotas::ByPlan(_) => panic!("there are no plans"),
            });
            let expected = rate(text).filter(|(count, window)| {
                (1..=u64::from(u32::MAX / 2)).contains(count)
                    && (1..=366 * 86_400 * SECOND).contains(window)
            });
            assert!(read == expected || !plain && read.is_none(), "{text:?}: {read:?}");
        }
        _ => {}
    }
}

/// Digits, perhaps with underscores, and a unit.
fn measured(text: &str) -> Option<(u128, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let digits = text[..end].replace('_', "");
    let number = digits.parse().ok().filter(|number| *number <= u128::from(u64::MAX))?;
    Some((number, text[end..].trim_start()))
}

fn duration(text: &str) -> Option<u128> {
    let (number, unit) = measured(text)?;
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("min", 60_000), ("h", 3_600_000)];
    let all = units.into_iter().chain([("d", 86_400_000)]);
    let millis = all.into_iter().find(|(name, _)| *name == unit)?.1 * number;
    (millis <= 3660 * 86_400_000).then_some(millis)
}

fn size(text: &str) -> Option<u64> {
    let (number, unit) = measured(text)?;
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = if unit.is_empty() { 0 } else { units.iter().position(|name| *name == unit)? };
    u64::try_from(number << (10 * power)).ok()
}

fn rate(text: &str) -> Option<(u64, Micros)> {
    let (count, window) = text.split_once('/')?;
    let (count, "") = measured(count.trim())? else { return None };
    let count = u64::try_from(count).ok()?;
    let seconds = match window.trim() {
        "s" | "sec" | "second" => 1,
        "m" | "min" | "minute" => 60,
        "h" | "hour" => 3600,
        "d" | "day" => 86_400,
        "w" | "week" => 7 * 86_400,
        "month" => 30 * 86_400,
        other => return Some((count, Micros::try_from(duration(other)? * 1000).ok()?)),
    };
    Some((count, seconds * SECOND))
}
