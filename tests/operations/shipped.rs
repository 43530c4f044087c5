//! Alerts, dashboard and reference name what there is, and nothing else.

use super::promql::{self, Named};
use crate::common::examples::root;
use serde_json::Value;
use sluice::metrics::families::{ALL, Kind};
use std::collections::{BTreeMap, BTreeSet};

/// Labels that Prometheus gives every series of a target.
const TARGET: [&str; 2] = ["job", "instance"];

fn read(path: &str) -> String {
    std::fs::read_to_string(root(path)).unwrap()
}

/// A rule of alerts.yaml.
pub struct Rule {
    pub name: String,
    pub expr: String,
    alert: bool,
    whole: serde_yaml::Value,
}

fn rules() -> Vec<Rule> {
    let file: serde_yaml::Value =
        serde_yaml::from_str(&read("deploy/prometheus/alerts.yaml")).unwrap();
    let groups = file["groups"].as_sequence().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_sequence().unwrap().clone());
    rules
        .map(|rule| {
            let alert = rule["alert"].as_str();
            let name = alert.or(rule["record"].as_str()).unwrap().to_owned();
            let (expr, alert) = (rule["expr"].as_str().unwrap().to_owned(), alert.is_some());
            Rule { name, expr, alert, whole: rule }
        })
        .collect()
}

/// Every expression of the dashboard with the legend beside it, variables replaced as Grafana would.
pub fn dashboard() -> Vec<(String, String)> {
    let file: Value = serde_json::from_str(&read("deploy/grafana/sluice.json")).unwrap();
    let mut all = Vec::new();
    collect(&file, &mut all);
    assert!(all.len() > 50, "{}", all.len());
    let replace = |expr: &String| {
        let expr = expr.replace("$__rate_interval", "5m");
        let names = ["job", "instance", "route", "limit"];
        names.iter().fold(expr, |expr, name| expr.replace(&format!("${name}"), ".*"))
    };
    all.iter().map(|(expr, legend)| (replace(expr), legend.clone())).collect()
}

fn collect(value: &Value, into: &mut Vec<(String, String)>) {
    match value {
        Value::Array(all) => all.iter().for_each(|value| collect(value, into)),
        Value::Object(fields) => {
            if let Some(expr) = fields.get("expr").and_then(Value::as_str) {
                let legend = ["legendFormat", "textFormat"].map(|name| fields.get(name));
                let legend = legend.into_iter().flatten().filter_map(Value::as_str);
                into.push((expr.to_owned(), legend.collect()));
            }
            // `label_values(metric{…}, label)` of a variable.
            if let Some(query) = fields.get("definition").and_then(Value::as_str) {
                let inner = query.strip_prefix("label_values(").and_then(|q| q.strip_suffix(')'));
                let (expr, label) = inner.unwrap().rsplit_once(", ").unwrap();
                into.push((expr.to_owned(), format!("{{{{{label}}}}}")));
            }
            fields.values().for_each(|value| collect(value, into));
        }
        _ => {}
    }
}

/// Every sample there is, with its labels; what alerts.yaml records is known as well.
fn known() -> BTreeMap<String, BTreeSet<String>> {
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let labels = |labels: &[&str]| labels.iter().chain(&TARGET).map(|l| (*l).to_owned()).collect();
    for family in ALL {
        for sample in family.samples() {
            let bucket = sample.ends_with("_bucket").then_some("le");
            let own: Vec<&str> = family.labels.iter().copied().chain(bucket).collect();
            known.insert(sample, labels(&own));
        }
    }
    known.insert("up".to_owned(), labels(&[]));
    for rule in rules().into_iter().filter(|rule| !rule.alert) {
        let kept = promql::names(&rule.expr).kept.into_iter().map(|(label, _)| label);
        known.insert(rule.name, kept.filter(|label| label != "le").collect());
    }
    known
}

/// What is wrong with an expression, given what there is.
fn faults(expr: &str, templates: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let Named { metrics, kept, matched } = promql::names(expr);
    let mut faults = Vec::new();
    let has =
        |metric: &str, label: &str| known.get(metric).is_some_and(|labels| labels.contains(label));
    if metrics.is_empty() {
        faults.push("it names no metric".to_owned());
    }
    for (metric, labels) in &metrics {
        if !known.contains_key(metric) {
            faults.push(format!("there is no {metric}"));
        }
        let wrong = labels.iter().filter(|label| !has(metric, label));
        faults.extend(wrong.map(|label| format!("{metric} has no label {label}")));
    }
    for (label, of) in &kept {
        let wrong = of.iter().filter(|metric| !has(metric, label));
        faults.extend(wrong.map(|metric| format!("{metric} has no label {label}")));
    }
    let any = |label: &str| metrics.iter().any(|(metric, _)| has(metric, label));
    let mut said: BTreeSet<String> = matched;
    said.extend(templated(templates));
    faults.extend(said.iter().filter(|label| !any(label)).map(|l| format!("nothing has {l}")));
    faults
}

/// Labels in templates: `{{ $labels.route }}` of Prometheus, `{{route}}` of Grafana.
fn templated(text: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let prometheus = text.split("$labels.").skip(1).map(word);
    let grafana = text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
    let plain = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let skipped = ["else", "end"];
    let grafana = grafana.map(str::trim).filter(plain).filter(|name| !skipped.contains(name));
    prometheus.chain(grafana.map(str::to_owned)).filter(|name| !name.is_empty()).collect()
}

#[test]
fn alerts_and_dashboard_name_only_what_there_is() {
    let known = known();
    let mut wrong = Vec::new();
    for rule in rules() {
        let templates: String = ["summary", "description"]
            .iter()
            .filter_map(|name| rule.whole["annotations"][*name].as_str())
            .collect();
        let faults = faults(&rule.expr, &templates, &known);
        wrong.extend(faults.into_iter().map(|fault| format!("{}: {fault}", rule.name)));
    }
    for (expr, legend) in dashboard() {
        let faults = faults(&expr, &legend, &known);
        wrong.extend(faults.into_iter().map(|fault| format!("{expr}: {fault}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The test itself sees mistakes.
    for bad in [
        "sluice_request_total",
        "sluice_requests_total{rout=\"x\"}",
        "sum by (plan) (sluice_requests_total)",
        "sluice_bans and on (worker) sluice_grants",
        "sluice_requests_total_bucket",
    ] {
        assert_eq!(faults(bad, "", &known).len(), 1, "{bad}");
    }
    assert_eq!(faults("sluice_bans", "{{ $labels.route }} {{plan}}", &known).len(), 2);
}

#[test]
fn every_metric_is_on_the_dashboard() {
    let shown: BTreeSet<String> = dashboard()
        .iter()
        .flat_map(|(expr, _)| promql::names(expr).metrics)
        .map(|(metric, _)| metric)
        .collect();
    // When the file was read last is in force or an error, which is shown.
    let left_out = ["sluice_config_last_reload_timestamp_seconds"];
    for family in ALL.iter().filter(|family| !left_out.contains(&family.name)) {
        assert!(family.samples().iter().any(|sample| shown.contains(sample)), "{}", family.name);
    }
}

/// GitHub's anchors of a page's headings, and those that are set by hand.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| {
        let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
        let kept = title.to_lowercase().replace(' ', "-");
        Some(kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect())
    });
    let set = page.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    headings.chain(set.map(str::to_owned)).collect()
}

#[test]
fn every_alert_says_how_bad_it_is_and_where_to_read_what_to_do() {
    let anchors = anchors(&read("docs/operations.md"));
    let alerts: Vec<Rule> = rules().into_iter().filter(|rule| rule.alert).collect();
    assert!(alerts.len() > 20);
    for Rule { name, whole, .. } in alerts {
        let severity = whole["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        assert!(whole["for"].as_str().is_some(), "{name} has no 'for'");
        for annotation in ["summary", "description"] {
            let text = whole["annotations"][annotation].as_str().unwrap_or_default();
            assert!(text.len() > 10, "{name} has no {annotation}");
        }
        let runbook = whole["annotations"]["runbook"].as_str().unwrap_or_default();
        let anchor = runbook.strip_prefix("docs/operations.md#").unwrap_or_default();
        assert!(anchors.contains(anchor), "{name}: {runbook}");
    }
}

#[test]
fn links_within_the_docs_lead_somewhere() {
    let (operations, configuration) = (read("docs/operations.md"), read("docs/configuration.md"));
    let pages = [("operations.md", &operations), ("configuration.md", &configuration)];
    for (page, text) in pages {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page } else { file };
            if file.contains("://") {
                continue;
            }
            if anchor.is_empty() {
                // The picture is drawn by whoever has a browser.
                let there = root("docs").join(target).exists();
                assert!(there, "{page}: {link}");
                continue;
            }
            let found = anchors(&read(&format!("docs/{target}"))).contains(anchor);
            assert!(found, "{page}: {link}");
        }
    }
}

#[test]
fn the_reference_lists_every_metric_with_its_type_and_labels() {
    let text = read("docs/operations.md");
    let table = text.split("| metric | type | labels | meaning |\n").nth(1).expect("the table");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let documented: Vec<(String, String, Vec<String>)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').splitn(4, '|').map(str::trim).collect();
            let [name, kind, labels, meaning] = cells[..] else { panic!("{row}") };
            assert!(meaning.len() > 3, "{row}");
            let labels = labels.split(", ").filter(|label| !label.is_empty());
            let labels = labels.map(|label| label.trim_matches('`').to_owned()).collect();
            (name.trim_matches('`').to_owned(), kind.to_owned(), labels)
        })
        .collect();
    let there: Vec<(String, String, Vec<String>)> = ALL
        .iter()
        .map(|family| {
            let end = if family.kind == Kind::Counter { "_total" } else { "" };
            let labels = family.labels.iter().map(|label| (*label).to_owned()).collect();
            (format!("{}{end}", family.name), family.kind.name().to_owned(), labels)
        })
        .collect();
    assert_eq!(documented, there);
}
