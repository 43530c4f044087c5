//! The request as the backend sees it: what HTTP forbids to forward is taken off, what a gateway
//! must say is put on. For HTTP/1.1 the head is written once, as it is sent.

mod head;

use super::address::X_FORWARDED_FOR;
use super::destination::Destination;
use super::exchange::{Exchange, TRACEPARENT, X_REQUEST_ID};
use super::present::Present;
use super::refusal::Refusal;
use crate::config::model::{AddressSource, Attribute};
use crate::hop;
use crate::incoming::{Incoming, Receiving};
use crate::path::strip_prefix;
use crate::patience::Times;
use crate::snapshot::{Route, Snapshot};
use crate::upgrade::Upgrade;
use crate::upstream::answer::{Framing, Head};
use crate::upstream::connection::Outgoing;
use crate::upstream::upload::Upload;
use h2::ext::Protocol;
use head::{Fields, Sink, Wire, Writer};
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, SEC_WEBSOCKET_KEY, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version};
use http_body::Body as _;
use smallvec::SmallVec;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What a caller must send of a body within its time-out.
const WORTH: u64 = 1024;

/// A request as its backend takes it.
pub(super) enum Prepared {
    Http1(Outgoing),
    Http2(Box<Outgoing<Request<()>>>),
}

impl Prepared {
    /// What has not been sent of its body.
    pub(super) fn body(&self) -> Option<&Upload> {
        match self {
            Self::Http1(request) => request.body.as_deref(),
            Self::Http2(request) => request.body.as_deref(),
        }
    }

    /// The caller has less time than the backend would.
    pub(super) fn is_hurried(&self) -> bool {
        match self {
            Self::Http1(request) => request.times.hurried,
            Self::Http2(request) => request.times.hurried,
        }
    }

    /// Doing it twice is the same as doing it once.
    pub(super) fn is_idempotent(&self) -> bool {
        match self {
            Self::Http1(request) => request.idempotent,
            Self::Http2(request) => request.idempotent,
        }
    }
}

/// Turns the caller's request into the backend's.
pub(super) fn prepare(
    exchange: &mut Exchange,
    index: usize,
    request: &mut Option<Request<Incoming>>,
) -> Result<Prepared, Refusal> {
    let generation = Rc::clone(&exchange.generation);
    let route = &generation.snapshot.routes[index];
    let upstream = &generation.snapshot.upstreams[route.upstream];
    let held = exchange.settlement.as_ref().is_none_or(|s| s.can_hold_the_body());
    let Some(request) =
        request.take_if(|request| held && fits(request.body(), route.max_body_bytes))
    else {
        return Err(Refusal::TooLarge);
    };
    let (parts, incoming) = request.into_parts();
    // Only WebSocket is known to both versions of HTTP. Another wish is none in the other version:
    // an HTTP/1.1 request can do without, a CONNECT cannot.
    let from_http2 = parts.version == Version::HTTP_2;
    let passes = |upgrade: &Upgrade| upgrade.is_websocket() || from_http2 == upstream.config.http2;
    if exchange.upgrade.take_if(|upgrade| !passes(upgrade)).is_some() && from_http2 {
        return Err(Refusal::MethodRefused);
    }
    let (body, tunnelled) = match &exchange.upgrade {
        Some(_) => (None, tunnelled(&incoming)),
        None => (upload(exchange, index, &parts.headers, incoming), None),
    };
    exchange.tunnelled = tunnelled;
    if body.is_some() && from_http2 && exchange.present.has(Present::EXPECT) {
        go_on(exchange);
    }
    let identity = exchange.settlement.as_ref().is_some_and(|s| s.reads_the_body());
    let (_, destination) = exchange.found()?;
    let timeouts = &upstream.config.timeouts;
    let limit = limit(exchange, &parts.headers, timeouts.response);
    let times = Times {
        limit,
        hurried: limit < timeouts.response,
        body: generation.snapshot.server.body_timeout,
        // A stream of messages may be slow, where the backend takes one.
        worth: if exchange.grpc && upstream.config.http2 { 1 } else { WORTH },
        silence: timeouts.body,
    };
    let (is_head, idempotent) = (parts.method == Method::HEAD, parts.method.is_idempotent());
    let upgrade = exchange.upgrade.clone();
    let prepared = if upstream.config.http2 {
        let mut writer = Writer { sink: Fields(HeaderMap::with_capacity(16)), route, identity };
        fill(&mut writer, exchange, destination, &parts, body.as_deref());
        let mut head = Request::new(());
        *head.headers_mut() = writer.finish().0;
        *head.method_mut() = parts.method.clone();
        let scheme = if upstream.config.tls.is_some() { "https" } else { "http" };
        let target = target(route, destination);
        let set = route.set_headers.iter().find(|(name, _)| *name == HOST);
        let authority = set.map_or(&destination.authority, |(_, value)| value);
        *head.uri_mut() = Uri::builder()
            .scheme(scheme)
            .authority(authority.as_bytes())
            .path_and_query(target)
            .build()
            .map_err(|_| Refusal::Malformed("the target is not valid"))?;
        if let Some(upgrade) = &upgrade {
            *head.method_mut() = Method::CONNECT;
            let protocol = upgrade.protocol.to_str().unwrap_or_default().to_ascii_lowercase();
            head.extensions_mut().insert(Protocol::from(protocol.as_str()));
        }
        Prepared::Http2(Box::new(Outgoing { head, body, is_head, idempotent, upgrade, times }))
    } else {
        let mut head = Vec::with_capacity(768);
        head.extend_from_slice(parts.method.as_str().as_bytes());
        head.push(b' ');
        write_target(&mut head, route, destination);
        head.extend_from_slice(b" HTTP/1.1\r\n");
        let mut writer = Writer { sink: Wire(head), route, identity };
        writer.field(&HOST, destination.authority.as_bytes());
        fill(&mut writer, exchange, destination, &parts, body.as_deref());
        let Wire(mut head) = writer.finish();
        head.extend_from_slice(b"\r\n");
        Prepared::Http1(Outgoing { head, body, is_head, idempotent, upgrade, times })
    };
    if exchange.limits().by_headers {
        exchange.headers = Some(parts.headers);
    }
    Ok(prepared)
}

/// Everything the head says but its first line and Host.
fn fill<S: Sink>(
    writer: &mut Writer<'_, S>,
    exchange: &Exchange,
    destination: &Destination,
    parts: &Parts,
    body: Option<&Upload>,
) {
    pass_on(writer, exchange, &parts.headers);
    say_where_it_came_from(writer, exchange, destination, parts);
    say_what_it_is_called(writer, exchange);
    say_what_follows(writer, exchange, &parts.headers, body);
}

/// The body, if there is one.
fn upload(
    exchange: &Exchange,
    index: usize,
    headers: &HeaderMap,
    incoming: Incoming,
) -> Option<Box<Upload>> {
    if incoming.is_end_stream() {
        return None;
    }
    let generation = Rc::clone(&exchange.generation);
    // HTTP/1.1 has trailers announced; HTTP/2 has no need to.
    let announced = (exchange.version != Version::HTTP_2).then(|| {
        let names = lines(headers, &TRAILER).flat_map(|line| line.split(|b| *b == b','));
        let names = names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
        names.collect::<Vec<_>>()
    });
    let may_trail = move |name: &HeaderName| {
        let (snapshot, text) = (&generation.snapshot, name.as_str());
        let is_ours = |name: &HeaderName| is_ours(name, snapshot, &snapshot.routes[index]);
        let hidden = is_ours(name) || text.contains('_') && is_alias(text, is_ours);
        announced.as_ref().is_none_or(|announced| announced.contains(name)) && !hidden
    };
    let chunked = incoming.size_hint().exact().is_none();
    let limit = exchange.route().and_then(|route| route.max_body_bytes);
    let gate =
        exchange.route().and_then(|r| exchange.snapshot().upstreams[r.upstream].gate.as_ref());
    let clock = gate.map(|_| exchange.worker.gateway.clock.clone());
    let mut upload = Upload::new(incoming, chunked, limit, clock, may_trail);
    if let Some(meter) = exchange.settlement.as_ref().and_then(|s| s.uploaded()) {
        upload.charge(meter);
    }
    Some(Box::new(upload))
}

/// What comes through a tunnel over HTTP/2. Over HTTP/1.1 it is the whole connection.
fn tunnelled(incoming: &Incoming) -> Option<Receiving> {
    match incoming {
        Incoming::Empty | Incoming::Http1(_) => None,
        Incoming::Http2(received) => Some(received.stream()),
    }
}

/// Whoever waits to be asked for the body is asked. (Over HTTP/1.1 hyper does it.)
fn go_on(exchange: &Exchange) {
    exchange.peer.interim.borrow_mut().push(Head {
        status: StatusCode::CONTINUE,
        headers: HeaderMap::new(),
        private: SmallVec::new(),
        framing: Framing::Length(0),
        reusable: true,
        upgrade: None,
    });
}

/// How long the backend has: what is configured, or less if a client in gRPC has less time. A request that
/// outlives its client does not go by the client's time.
fn limit(exchange: &Exchange, headers: &HeaderMap, configured: Duration) -> Duration {
    match hurry(exchange, headers).filter(|_| exchange.custody.is_none()) {
        Some(said) => said.min(configured),
        None => configured,
    }
}

/// How long a client in gRPC waits.
#[inline]
pub(super) fn hurry(exchange: &Exchange, headers: &HeaderMap) -> Option<Duration> {
    if !exchange.grpc {
        return None;
    }
    grpc_timeout(headers.get("grpc-timeout")?.as_bytes())
}

/// At most eight digits and a unit.
fn grpc_timeout(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

fn target(route: &Route, destination: &Destination) -> Vec<u8> {
    let mut target = Vec::with_capacity(128);
    write_target(&mut target, route, destination);
    target
}

/// The path as the backend knows it, and the query.
fn write_target(out: &mut Vec<u8>, route: &Route, destination: &Destination) {
    let path = destination.path();
    let strip = route.strip_prefix.as_deref();
    let path = strip.and_then(|prefix| strip_prefix(path, prefix)).unwrap_or(path);
    if !path.starts_with('/') {
        out.push(b'/');
    }
    out.extend_from_slice(path.as_bytes());
    if let Some(query) = destination.query() {
        out.push(b'?');
        out.extend_from_slice(query.as_bytes());
    }
}

/// What announces to be too large is refused at once; what does not is watched while it passes.
fn fits(body: &Incoming, limit: Option<u64>) -> bool {
    body.size_hint().exact().zip(limit).is_none_or(|(length, limit)| length <= limit)
}

/// What the caller says to the backend.
fn pass_on<S: Sink>(writer: &mut Writer<'_, S>, exchange: &Exchange, headers: &HeaderMap) {
    let (snapshot, route) = (exchange.snapshot(), writer.route);
    let trusted = exchange.peer.is_trusted(snapshot);
    let mut named: SmallVec<[HeaderName; 2]> = SmallVec::new();
    if exchange.present.has(Present::CONNECTION) {
        let elements =
            lines(headers, &CONNECTION).flat_map(|line| line.split(|byte| *byte == b','));
        let named_here = elements.filter_map(hop::named);
        named.extend(named_here.filter(|name| !identifies(name, exchange)));
    }
    for (name, value) in headers {
        let passes = match name.as_str() {
            // Said anew below, or answered here: `Expect` is, when the backend takes the body.
            // Cookies may be split in HTTP/2, and may not in HTTP/1.1.
            "host" | "content-length" | "x-forwarded-for" | "forwarded" | "via" | "expect"
            | "cookie" | "x-request-id" | "traceparent" => false,
            "x-forwarded-proto" | "x-forwarded-host" => trusted,
            // It belongs to a parent, and there is none but the one that was passed on.
            "tracestate" => exchange.trace.has_parent(),
            // A compressed answer, a part of one, or none does not tell what it costs.
            "accept-encoding"
            | "range"
            | "if-range"
            | "if-match"
            | "if-none-match"
            | "if-modified-since"
            | "if-unmodified-since" => !writer.identity,
            // Said below, where it is needed.
            "sec-websocket-key" => exchange.upgrade.is_none(),
            _ if hop::is_per_connection(name) || named.contains(name) => false,
            _ if !trusted && snapshot.identity.is_proxy_header(name) => false,
            text => !text.contains('_') || !is_alias(text, |name| is_ours(name, snapshot, route)),
        };
        if passes {
            writer.field(name, value.as_bytes());
        }
    }
    if exchange.present.has(Present::COOKIE) && !named.contains(&COOKIE) && !route.edits(&COOKIE) {
        writer.sink.put(&COOKIE, lines(headers, &COOKIE), b"; ");
    }
}

/// `X-Forwarded-*` and `Via`. What an untrusted peer says of itself was not passed on.
fn say_where_it_came_from<S: Sink>(
    writer: &mut Writer<'_, S>,
    exchange: &Exchange,
    destination: &Destination,
    head: &Parts,
) {
    let (peer, present) = (&exchange.peer, exchange.present);
    let trusted = peer.is_trusted(exchange.snapshot());
    let said = |header| trusted && present.has(header);
    say_which_address(writer, exchange, &head.headers);
    let hop = exchange.worker.gateway.via.hop(head.version);
    go_on_with(writer, &VIA, &head.headers, present.has(Present::VIA), hop);
    if !said(Present::X_FORWARDED_PROTO) {
        writer.field(&X_FORWARDED_PROTO, if peer.secure { b"https" } else { b"http" });
    }
    if !said(Present::X_FORWARDED_HOST) {
        writer.field(&X_FORWARDED_HOST, destination.authority.as_bytes());
    }
}

/// `X-Forwarded-For`, and `Forwarded` where that is what trusted proxies send.
fn say_which_address<S: Sink>(
    writer: &mut Writer<'_, S>,
    exchange: &Exchange,
    headers: &HeaderMap,
) {
    let (peer, present) = (&exchange.peer, exchange.present);
    let trusted = peer.is_trusted(exchange.snapshot());
    let source = &exchange.snapshot().identity.client_ip;
    if *source == AddressSource::XForwardedFor {
        let before = trusted && present.has(Present::X_FORWARDED_FOR);
        return go_on_with(writer, &X_FORWARDED_FOR, headers, before, peer.name.as_bytes());
    }
    // The list begins anew: what the proxy passed on of it may be its client's invention.
    let named = (exchange.origin.ip != peer.ip).then(|| exchange.origin.ip.to_string());
    let named = named.iter().map(String::as_bytes);
    writer.list(&X_FORWARDED_FOR, named.chain([peer.name.as_bytes()]));
    if *source == AddressSource::Forwarded {
        let before = trusted && present.has(Present::FORWARDED);
        go_on_with(writer, &FORWARDED, headers, before, forwarded_for(peer.ip).as_bytes());
    }
}

/// A list to which every hop adds its own; what came `before` stays.
fn go_on_with<S: Sink>(
    writer: &mut Writer<'_, S>,
    name: &HeaderName,
    headers: &HeaderMap,
    before: bool,
    mine: &[u8],
) {
    if before {
        writer.list(name, lines(headers, name).chain([mine]));
    } else {
        writer.field(name, mine);
    }
}

/// This hop in `Forwarded`.
fn forwarded_for(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => format!("for={ip}"),
        IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
    }
}

/// `X-Request-Id` and `traceparent`: the caller's, if they can be believed, or our own.
fn say_what_it_is_called<S: Sink>(writer: &mut Writer<'_, S>, exchange: &Exchange) {
    let telemetry = &exchange.snapshot().telemetry;
    let mut value = exchange.worker.scratch.borrow_mut();
    value.clear();
    exchange.trace.write_request_id(&mut value);
    writer.field(&X_REQUEST_ID, &value);
    value.clear();
    exchange.trace.write_parent(telemetry, &mut value);
    if !value.is_empty() {
        writer.field(&TRACEPARENT, &value);
    }
}

fn lines<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h [u8]> + use<'h> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes)
}

/// How the body ends, whether the caller takes trailers (the rest of TE is between it and us), and
/// what it wants to switch to.
fn say_what_follows<S: Sink>(
    writer: &mut Writer<'_, S>,
    exchange: &Exchange,
    headers: &HeaderMap,
    body: Option<&Upload>,
) {
    if body.is_some_and(Upload::is_chunked) {
        if S::HTTP1 {
            writer.field(&TRANSFER_ENCODING, b"chunked");
        }
    } else if exchange.present.has(Present::CONTENT_LENGTH)
        && exchange.upgrade.is_none()
        && let Some(length) = exchange.announced
    {
        // In its one spelling.
        writer.field(&CONTENT_LENGTH, itoa::Buffer::new().format(length).as_bytes());
    }
    if let Some(upgrade) = &exchange.upgrade {
        return say_what_to_switch_to(writer, upgrade);
    }
    let is_trailers = |item: &[u8]| item.trim_ascii().eq_ignore_ascii_case(b"trailers");
    if exchange.present.has(Present::TE)
        && lines(headers, &TE).any(|list| list.split(|byte| *byte == b',').any(is_trailers))
    {
        writer.field(&TE, b"trailers");
        if S::HTTP1 {
            writer.field(&CONNECTION, b"te");
        }
    }
}

/// HTTP/2 says it in its first line.
fn say_what_to_switch_to<S: Sink>(writer: &mut Writer<'_, S>, upgrade: &Upgrade) {
    if S::HTTP1 {
        writer.field(&CONNECTION, b"upgrade");
        writer.field(&UPGRADE, upgrade.protocol.as_bytes());
        if let Some(key) = &upgrade.key {
            writer.field(&SEC_WEBSOCKET_KEY, key.as_bytes());
        }
    }
}

/// Whether the gateway tells callers apart by a header: `Connection` cannot keep it from the backend.
#[cold]
fn identifies(name: &HeaderName, exchange: &Exchange) -> bool {
    let identity = &exchange.snapshot().identity;
    let counts = |attribute: &Attribute| matches!(attribute, Attribute::Header(by) if by == name);
    let limits = exchange.limits().iter();
    identity.is_proxy_header(name)
        || identity.is_key_header(name)
        || limits.flat_map(|limit| limit.by.iter().chain(&limit.unless)).any(counts)
}

/// Headers that the gateway itself reads, sets or removes. A caller cannot bring them in by the
/// back door: as a trailer, or in a spelling that backends after CGI's fashion take for the same.
fn is_ours(name: &HeaderName, snapshot: &Snapshot, route: &Route) -> bool {
    !hop::may_be_named(name)
        || hop::is_per_connection(name)
        || snapshot.identity.is_key_header(name)
        || snapshot.identity.is_proxy_header(name)
        || route.edits(name)
}

/// `X_User_Id` is `X-User-Id` to a backend that makes variables of headers.
#[cold]
fn is_alias(text: &str, is_ours: impl Fn(&HeaderName) -> bool) -> bool {
    HeaderName::from_bytes(text.replace('_', "-").as_bytes()).is_ok_and(|dashed| is_ours(&dashed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_grpc_have_a_unit() {
        let cases: [(&str, Option<Duration>); 9] = [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("99999999m", Some(Duration::from_millis(99_999_999))),
            ("5u", Some(Duration::from_micros(5))),
            ("6n", Some(Duration::from_nanos(6))),
            ("100000000m", None),
            ("m", None),
            ("+1S", None),
        ];
        for (text, expected) in cases {
            assert_eq!(grpc_timeout(text.as_bytes()), expected, "{text}");
        }
    }
}
