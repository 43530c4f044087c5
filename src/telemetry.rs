//! Spans on their way to a collector: OTLP over HTTP, in JSON.
//!
//! ```text
//! worker ── Span ──► queue (bounded: beyond it spans are dropped and counted)
//!                      │ once a second, or when there are many
//! control thread ──► POST /v1/traces ──► collector
//! ```
//!
//! Requests never wait for it. A collector that is away loses what does not fit into the queue.

use crate::clock::Micros;
use crate::config::model::{Collector, Telemetry};
use crate::gateway::Gateway;
use crate::socket::Socket;
use crate::upstream::answer::{self, AnswerError};
use bytes::BytesMut;
use http::StatusCode;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

/// Spans that may wait, and how many are sent together.
const MOST: usize = 8192;
const BATCH: usize = 512;

/// How long spans are collected, and how long the collector has.
const COLLECT: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest pause after a failure.
const PAUSE: Duration = Duration::from_secs(30);

/// Something that took time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The trace it belongs to.
    pub trace: u128,
    /// Its own number.
    pub id: u64,
    /// Within which span.
    pub parent: Option<u64>,
    /// What it is called.
    pub name: String,
    /// Whether a backend was asked, rather than a caller answered.
    pub client: bool,
    /// When it began and ended, by the wall clock.
    pub began: Micros,
    /// See `began`.
    pub ended: Micros,
    /// It went wrong, and it was not the caller's fault.
    pub failed: bool,
    /// What is known of it.
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// What an attribute of a span says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Text.
    Text(String),
    /// A number.
    Number(u64),
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Spans that wait to be sent.
#[derive(Debug, Default)]
pub struct Spans(Mutex<VecDeque<Span>>);

impl Spans {
    /// Takes spans, as far as there is room. Says how many there was none for.
    pub fn put(&self, spans: impl IntoIterator<Item = Span>) -> u64 {
        let (mut waiting, mut dropped) = (self.0.lock(), 0);
        for span in spans {
            if waiting.len() < MOST {
                waiting.push_back(span);
            } else {
                dropped += 1;
            }
        }
        dropped
    }

    fn take(&self) -> Vec<Span> {
        let mut waiting = self.0.lock();
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }

    fn is_full(&self) -> bool {
        self.0.lock().len() >= BATCH
    }
}

/// Why a collector did not take spans.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Garbled(#[from] AnswerError),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("no answer in time")]
    TimedOut,
}

/// Sends spans for as long as it is polled.
pub async fn follow(gateway: Arc<Gateway>) {
    let mut pause = COLLECT;
    let mut complained = false;
    loop {
        if !gateway.spans.is_full() || pause > COLLECT {
            sleep(pause).await;
        }
        let snapshot = gateway.snapshot.load_full();
        let batch = gateway.spans.take();
        if batch.is_empty() {
            continue;
        }
        let Some(collector) = &snapshot.telemetry.otlp else {
            gateway.metrics.spans_dropped.add(batch.len() as u64);
            continue;
        };
        let sent = timeout(PATIENCE, send(collector, &snapshot.telemetry, &batch)).await;
        match sent.unwrap_or(Err(ExportError::TimedOut)) {
            Ok(()) => {
                gateway.metrics.spans_exported.add(batch.len() as u64);
                (pause, complained) = (COLLECT, false);
            }
            Err(error) => {
                gateway.metrics.spans_dropped.add(batch.len() as u64);
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!("the collector takes no spans: {error}");
                }
                pause = (pause * 2).min(PAUSE);
            }
        }
    }
}

/// One batch over a connection of its own.
async fn send(
    collector: &Collector,
    telemetry: &Telemetry,
    batch: &[Span],
) -> Result<(), ExportError> {
    let mut socket = dial(collector).await?;
    let body = encode(&telemetry.service_name, batch).to_string();
    let Collector { host, port, path, .. } = collector;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\nuser-agent: sluice\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n",
        body.len()
    )
    .into_bytes();
    for (name, value) in &telemetry.headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    socket.write_all(&head).await?;
    socket.write_all(body.as_bytes()).await?;
    socket.flush().await?;
    let mut buffer = BytesMut::with_capacity(4096);
    loop {
        if socket.read_buf(&mut buffer).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        while let Some(head) = answer::parse(&mut buffer, false)? {
            match head.status {
                status if status.is_success() => return Ok(()),
                status if status.is_informational() => {}
                status => return Err(ExportError::Status(status)),
            }
        }
    }
}

async fn dial(collector: &Collector) -> io::Result<Socket> {
    let stream = TcpStream::connect((collector.host.as_str(), collector.port)).await?;
    let Some(tls) = &collector.tls else { return Ok(Socket::Plain(stream)) };
    let name = ServerName::try_from(collector.host.clone()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::clone(&tls.config));
    Ok(Socket::Tls(Box::new(connector.connect(name, stream).await?.into())))
}

/// `ExportTraceServiceRequest`, as OTLP writes it in JSON: ids in hexadecimal, times as text.
fn encode(service: &str, batch: &[Span]) -> Value {
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let spans: Vec<Value> = batch.iter().map(span).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            text("service.name", service),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ] },
        "scopeSpans": [{ "scope": { "name": "sluice" }, "spans": spans }],
    }] })
}

fn span(span: &Span) -> Value {
    const SERVER: u8 = 2;
    const CLIENT: u8 = 3;
    const ERROR: u8 = 2;
    let attribute = |(key, value): &(&str, Attribute)| match value {
        Attribute::Text(text) => json!({ "key": key, "value": { "stringValue": text } }),
        Attribute::Number(number) => {
            json!({ "key": key, "value": { "intValue": number.to_string() } })
        }
    };
    let nanos = |micros: Micros| (u128::from(micros) * 1000).to_string();
    let mut value = json!({
        "traceId": format!("{:032x}", span.trace),
        "spanId": format!("{:016x}", span.id),
        "name": span.name,
        "kind": if span.client { CLIENT } else { SERVER },
        "startTimeUnixNano": nanos(span.began),
        "endTimeUnixNano": nanos(span.ended),
        "attributes": span.attributes.iter().map(attribute).collect::<Vec<_>>(),
    });
    if let Some(parent) = span.parent {
        value["parentSpanId"] = format!("{parent:016x}").into();
    }
    if span.failed {
        value["status"] = json!({ "code": ERROR });
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_span() -> Span {
        Span {
            trace: 0xabc,
            id: 1,
            parent: Some(2),
            name: "GET login".into(),
            client: false,
            began: 1_000_000,
            ended: 1_000_005,
            failed: true,
            attributes: vec![("http.response.status_code", Attribute::Number(502))],
        }
    }

    #[test]
    fn a_span_is_written_as_otlp_has_it() {
        let value = encode("edge", &[some_span()]);
        let span = &value["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "00000000000000000000000000000abc");
        assert_eq!(span["parentSpanId"], "0000000000000002");
        assert_eq!(span["endTimeUnixNano"], "1000005000");
        assert_eq!(span["status"]["code"], 2);
        assert_eq!(span["attributes"][0]["value"]["intValue"], "502");
        let service = &value["resourceSpans"][0]["resource"]["attributes"][0];
        assert_eq!(service["value"]["stringValue"], "edge");
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let spans = Spans::default();
        assert_eq!(spans.put(std::iter::repeat_n(some_span(), MOST)), 0);
        assert_eq!(spans.put([some_span(), some_span()]), 2);
        assert_eq!(spans.take().len(), BATCH);
        assert_eq!(spans.put([some_span()]), 0);
    }
}
