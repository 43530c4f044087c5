//! A page of metrics, read strictly: what a scraper would stumble over fails the test.

use crate::common::{Connection, Gateway, Reply};
use sluice::metrics::families::{ALL, Family, Kind};
use std::collections::BTreeMap;

pub const TOKEN: &str = "Bearer s3cret";

/// Everything a page says.
#[derive(Debug, Default)]
pub struct Page {
    pub text: String,
    /// By name and labels, as they are written.
    pub samples: BTreeMap<String, f64>,
}

/// Asks the admin listener something.
pub fn ask(gateway: &Gateway, method: &str, path: &str, body: &str) -> Reply {
    let headers = [("authorization", TOKEN), ("content-type", "application/json")];
    Connection::to_operator(gateway.admin()).send(method, path, &headers, body.as_bytes())
}

/// The page as a scraper sees it that accepts this.
pub fn text(gateway: &Gateway, accept: &str) -> String {
    let headers = [("authorization", TOKEN), ("accept", accept)];
    let reply = Connection::to_operator(gateway.admin()).send("GET", "/metrics", &headers, b"");
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.text().to_owned()
}

/// The family that a sample belongs to.
pub fn family(sample: &str) -> &'static Family {
    let name = sample.split('{').next().unwrap();
    let found = ALL.iter().find(|family| family.samples().iter().any(|known| known == name));
    found.unwrap_or_else(|| panic!("{name} is no sample of any family"))
}

impl Page {
    pub fn scrape(gateway: &Gateway) -> Self {
        Self::read(text(gateway, "text/plain"))
    }

    pub fn read(text: String) -> Self {
        let mut samples = BTreeMap::new();
        let mut open: Option<&Family> = None;
        for line in text.lines() {
            if let Some(described) = line.strip_prefix("# TYPE ") {
                let (name, kind) = described.split_once(' ').unwrap();
                let ended = |family: &Family| match family.kind {
                    Kind::Counter => format!("{}_total", family.name),
                    Kind::Gauge | Kind::Histogram => family.name.to_owned(),
                };
                let family = ALL.iter().find(|family| ended(family) == name);
                let family = family.unwrap_or_else(|| panic!("{name} is in no table"));
                assert_eq!(family.kind.name(), kind, "{name}");
                open = Some(family);
            }
            if line.starts_with('#') {
                continue;
            }
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert_eq!(Some(family(sample)), open, "{line} stands where it does not belong");
            check_labels(sample, family(sample));
            let before = samples.insert(sample.to_owned(), value.parse().unwrap());
            assert_eq!(before, None, "{sample} is told twice");
        }
        Self { text, samples }
    }

    pub fn get(&self, sample: &str) -> Option<f64> {
        self.samples.get(sample).copied()
    }

    /// Added up over all labels.
    pub fn sum(&self, name: &str) -> f64 {
        let own = |sample: &str| sample.split('{').next() == Some(name);
        self.samples.iter().filter(|(sample, _)| own(sample)).map(|(_, value)| value).sum()
    }

    /// Buckets are cumulative, and the last one holds everything.
    pub fn check_histograms(&self) {
        let counts = self.samples.iter().filter(|(sample, _)| {
            family(sample).kind == Kind::Histogram && sample.contains("_count")
        });
        for (sample, count) in counts {
            let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            let bucket = name.replace("_count", "_bucket");
            let labels = labels.strip_suffix('}').unwrap();
            let labels = if labels.is_empty() { String::new() } else { format!("{labels},") };
            let prefix = format!("{bucket}{{{labels}le=\"");
            // As they stand on the page: by their bounds.
            let lines = self.text.lines().filter_map(|line| line.strip_prefix(&prefix));
            let buckets: Vec<(f64, f64)> = lines
                .map(|line| {
                    let (bound, value) = line.split_once("\"} ").unwrap();
                    (bound.parse().unwrap_or(f64::INFINITY), value.parse().unwrap())
                })
                .collect();
            assert_eq!(buckets.len(), 23, "{sample}");
            assert!(buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1));
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{sample}");
        }
    }
}

/// A sample has the labels of its family, in their order; a plan may be missing.
fn check_labels(sample: &str, family: &Family) {
    let inside = sample.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
    let found: Vec<&str> =
        inside.split("\",").filter_map(|label| Some(label.split_once('=')?.0)).collect();
    let known: Vec<&str> = family.labels.iter().copied().chain(["le"]).collect();
    let expected: Vec<&str> = known.iter().copied().filter(|label| found.contains(label)).collect();
    assert_eq!(found, expected, "{sample}");
    let missing = family.labels.iter().filter(|label| !found.contains(label));
    assert!(missing.into_iter().all(|label| *label == "plan"), "{sample}");
}
