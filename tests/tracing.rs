//! What a request is called on its way: `traceparent`, `X-Request-Id`, and spans for a collector.

use crate::common::{Backend, Gateway, HeldPort, eventually, open};
use serde_json::Value;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn what_is_well_formed_is_passed_on_and_the_rest_begins_here() {
    let backend = Backend::start();
    let gateway = Gateway::start(&open(&backend));
    let seen = |headers: &[(&str, &str)]| {
        assert_eq!(gateway.get_with("/", headers).status, 200);
        let seen = backend.last();
        let header = |name| seen.header(name).map(str::to_owned);
        (header("traceparent").unwrap(), header("x-request-id").unwrap(), header("tracestate"))
    };
    let said = [("traceparent", PARENT), ("x-request-id", "req-1"), ("tracestate", "a=b")];
    let expected = (PARENT.to_owned(), "req-1".to_owned(), Some("a=b".to_owned()));
    assert_eq!(seen(&said), expected);
    let (parent, id, _) = seen(&[]);
    assert!(parent.starts_with(&format!("00-{id}-")) && parent.ends_with("-01"), "{parent} {id}");
    let (next, other, _) = seen(&[]);
    assert!(next != parent && other != id, "each has its own");
    let bad = [("traceparent", "00-zz"), ("x-request-id", "a b\t"), ("tracestate", "a=b")];
    let (parent, id, state) = seen(&bad);
    assert_eq!(state, None, "it belongs to a parent that is none");
    assert!(parent.starts_with(&format!("00-{id}-")) && id.len() == 32);
    let (parent, id, _) = seen(&[("x-request-id", "a"), ("x-request-id", "b")]);
    assert!(id.len() == 32 && parent.contains(&id), "which of the two nobody knows");
    let lines = gateway.log.wait_for(5);
    assert!(lines.iter().any(|line| line["request_id"] == "req-1"), "{lines:?}");
}

#[test]
fn a_trace_need_not_begin_here() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!("telemetry: {{ begin: false }}\n{}", open(&backend)));
    gateway.get("/");
    assert_eq!(backend.last().header("traceparent"), None);
    assert_eq!(backend.last().header("x-request-id").unwrap().len(), 32);
    gateway.reload(&format!("telemetry: {{ sample: 0% }}\n{}", open(&backend))).unwrap();
    gateway.get("/");
    assert!(backend.last().header("traceparent").unwrap().ends_with("-00"));
}

/// A collector that takes everything, and the spans it has got.
struct Collector(Backend);

impl Collector {
    fn start() -> Self {
        Self(Backend::start())
    }

    fn yaml(&self, more: &str, backend: &Backend) -> String {
        let address = self.0.address();
        format!("telemetry: {{ otlp: 'http://{address}'{more} }}\n{}", open(backend))
    }

    fn spans(&self) -> Vec<Value> {
        let spans = |seen: &crate::common::backend::Seen| -> Vec<Value> {
            assert_eq!(seen.header("content-type"), Some("application/json"));
            let body: Value = serde_json::from_slice(&seen.body).unwrap();
            body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
        };
        self.0.seen().iter().flat_map(spans).collect()
    }

    fn wait_for(&self, count: usize) -> Vec<Value> {
        eventually("spans", || Some(self.spans()).filter(|spans| spans.len() >= count))
    }
}

fn attribute<'v>(span: &'v Value, key: &str) -> Option<&'v str> {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|attribute| attribute["key"] == key)?;
    found["value"]["stringValue"].as_str().or(found["value"]["intValue"].as_str())
}

#[test]
fn spans_tell_of_a_request_and_of_asking_its_backend() {
    let (backend, collector) = (Backend::start(), Collector::start());
    let gateway =
        Gateway::start(&collector.yaml(", service_name: edge, headers: { X-Team: a }", &backend));
    gateway.get_with("/a?secret=1", &[("traceparent", PARENT), ("x-request-id", "r1")]);
    let told = backend.last().header("traceparent").unwrap().to_owned();
    let spans = collector.wait_for(2);
    let (server, client) = (&spans[0], &spans[1]);
    assert_eq!(server["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!((&server["parentSpanId"], &server["kind"]), (&"b7ad6b7169203331".into(), &2.into()));
    assert_eq!(client["parentSpanId"], server["spanId"]);
    assert_eq!(
        told,
        format!(
            "00-{}-{}-01",
            "0af7651916cd43dd8448eb211c80319c",
            client["spanId"].as_str().unwrap()
        )
    );
    assert_eq!(server["name"], "GET all-paths");
    assert_eq!(attribute(server, "http.response.status_code"), Some("200"));
    assert_eq!(attribute(server, "url.path"), Some("/a"), "no query: secrets hide there");
    assert_eq!(attribute(server, "sluice.request_id"), Some("r1"));
    assert_eq!(attribute(client, "server.address"), Some(backend.address().to_string().as_str()));
    let seen = collector.0.last();
    assert_eq!(seen.header("x-team"), Some("a"));
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/v1/traces"));
    assert!(String::from_utf8_lossy(&seen.body).contains("\"edge\""));
}

#[test]
fn only_a_trusted_proxy_decides_what_is_recorded() {
    let (backend, collector) = (Backend::start(), Collector::start());
    let gateway = Gateway::start(&collector.yaml(", sample: 0%", &backend));
    gateway.get_with("/stranger", &[("traceparent", PARENT)]);
    assert!(backend.last().header("traceparent").unwrap().ends_with("-00"), "it is ours to say");
    // Nor by what it calls the trace.
    let smallest = "00-0af7651916cd43dd0000000000000001-b7ad6b7169203331-01";
    gateway.reload(&collector.yaml(", sample: 0.0001%", &backend)).unwrap();
    for _ in 0..20 {
        gateway.get_with("/stranger", &[("traceparent", smallest)]);
        assert!(backend.last().header("traceparent").unwrap().ends_with("-00"));
    }
    let trusting = "identity: { trusted_proxies: [127.0.0.1] }\n";
    gateway.reload(&format!("{trusting}{}", collector.yaml(", sample: 0%", &backend))).unwrap();
    gateway.get_with("/proxy", &[("traceparent", PARENT)]);
    let spans = collector.wait_for(2);
    assert!(spans.iter().all(|span| attribute(span, "url.path") != Some("/stranger")), "{spans:?}");
    let not = PARENT.replace("-01", "-00");
    gateway.get_with("/quiet", &[("traceparent", &not)]);
    assert!(backend.last().header("traceparent").unwrap().ends_with("-00"));
}

#[test]
fn a_collector_that_is_away_costs_spans_and_nothing_else() {
    let backend = Backend::start();
    let nowhere = HeldPort::new();
    let collector = nowhere.address();
    let yaml = format!("telemetry: {{ otlp: 'http://{collector}' }}\n{}", open(&backend));
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{yaml}"));
    assert_eq!(gateway.statuses("/", &[], 3), [200, 200, 200]);
    eventually("they are counted", || {
        (crate::fleet::metric(&gateway, "sluice_spans_dropped_total") == 6).then_some(())
    });
    assert_eq!(crate::fleet::metric(&gateway, "sluice_spans_exported_total"), 0);
}
