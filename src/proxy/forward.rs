//! The request as the backend sees it: what HTTP forbids to forward is taken off, what a gateway
//! must say is put on. The head is written once, as it is sent.

use super::address::X_FORWARDED_FOR;
use super::destination::Destination;
use super::exchange::Exchange;
use super::present::Present;
use super::refusal::Refusal;
use crate::config::model::KeyPlace;
use crate::hop;
use crate::snapshot::{Route, Snapshot};
use crate::upstream::connection::Outgoing;
use crate::upstream::upload::Upload;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, HOST, TE, TRAILER, TRANSFER_ENCODING, VIA,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use smallvec::SmallVec;
use std::rc::Rc;

static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Turns the caller's request into the backend's.
pub(super) fn prepare(
    exchange: &Exchange,
    index: usize,
    destination: &Destination,
    request: &mut Option<Request<Incoming>>,
) -> Result<Outgoing, Refusal> {
    let route = &exchange.snapshot().routes[index];
    let Some(request) = request.take_if(|request| fits(request.body(), route.max_body_bytes))
    else {
        return Err(Refusal::TooLarge);
    };
    let (head, incoming) = request.into_parts();
    let identity = exchange.settlement.as_ref().is_some_and(|s| s.reads_the_body());
    let mut writer = Writer::new(&head.method, destination, route, identity);
    writer.field(&HOST, destination.authority.as_bytes());
    pass_on(&mut writer, exchange, &head.headers);
    say_where_it_came_from(&mut writer, exchange, destination, &head);
    say_what_follows(&mut writer, exchange.present, &head.headers);
    let body = (!incoming.is_end_stream()).then(|| {
        let generation = Rc::clone(&exchange.generation);
        let announced = lines(&head.headers, &TRAILER).flat_map(|line| line.split(|b| *b == b','));
        let announced: Vec<HeaderName> =
            announced.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect();
        let may_trail = move |name: &HeaderName| {
            let (snapshot, text) = (&generation.snapshot, name.as_str());
            let is_ours = |name: &HeaderName| is_ours(name, snapshot, &snapshot.routes[index]);
            let hidden = is_ours(name) || text.contains('_') && is_alias(text, is_ours);
            announced.contains(name) && !hidden
        };
        let chunked = exchange.present.has(Present::TRANSFER_ENCODING);
        Box::new(Upload::new(incoming, chunked, route.max_body_bytes, may_trail))
    });
    Ok(Outgoing {
        head: writer.finish(),
        body,
        is_head: head.method == Method::HEAD,
        idempotent: head.method.is_idempotent(),
    })
}

/// What announces to be too large is refused at once; what does not is watched while it passes.
fn fits(body: &Incoming, limit: Option<u64>) -> bool {
    body.size_hint().exact().zip(limit).is_none_or(|(length, limit)| length <= limit)
}

/// Writes a head. What the route sets or removes is left to it.
struct Writer<'a> {
    head: Vec<u8>,
    route: &'a Route,
    /// The answer's body will be read here, so it must come as it is.
    identity: bool,
}

impl<'a> Writer<'a> {
    fn new(method: &Method, destination: &Destination, route: &'a Route, identity: bool) -> Self {
        let mut head = Vec::with_capacity(512);
        head.extend_from_slice(method.as_str().as_bytes());
        head.push(b' ');
        let path = destination.path();
        let strip = route.strip_prefix.as_deref();
        let path = strip.and_then(|prefix| path.strip_prefix(prefix)).unwrap_or(path);
        if !path.starts_with('/') {
            head.push(b'/');
        }
        head.extend_from_slice(path.as_bytes());
        if let Some(query) = destination.query() {
            head.push(b'?');
            head.extend_from_slice(query.as_bytes());
        }
        head.extend_from_slice(b" HTTP/1.1\r\n");
        Self { head, route, identity }
    }

    fn field(&mut self, name: &HeaderName, value: &[u8]) {
        self.list(name, std::iter::once(value));
    }

    /// A field whose value is a list.
    fn list<'v>(&mut self, name: &HeaderName, mut values: impl Iterator<Item = &'v [u8]>) {
        if self.route.edits(name) {
            return;
        }
        self.begin(name);
        self.head.extend_from_slice(values.next().unwrap_or_default());
        for value in values {
            self.head.extend_from_slice(b", ");
            self.head.extend_from_slice(value);
        }
        self.head.extend_from_slice(b"\r\n");
    }

    fn begin(&mut self, name: &HeaderName) {
        self.head.extend_from_slice(name.as_str().as_bytes());
        self.head.extend_from_slice(b": ");
    }

    /// Puts on what the route sets, and the empty line.
    fn finish(mut self) -> Vec<u8> {
        for (name, value) in &self.route.set_headers {
            if !(self.identity && *name == ACCEPT_ENCODING) {
                self.begin(name);
                self.head.extend_from_slice(value.as_bytes());
                self.head.extend_from_slice(b"\r\n");
            }
        }
        if self.identity {
            self.head.extend_from_slice(b"accept-encoding: identity\r\n");
        }
        self.head.extend_from_slice(b"\r\n");
        self.head
    }
}

/// What the caller says to the backend.
fn pass_on(writer: &mut Writer<'_>, exchange: &Exchange, headers: &HeaderMap) {
    let (snapshot, route) = (exchange.snapshot(), writer.route);
    let trusted = exchange.peer.is_trusted(snapshot);
    let mut named: SmallVec<[HeaderName; 2]> = SmallVec::new();
    if exchange.present.has(Present::CONNECTION) {
        let elements =
            lines(headers, &CONNECTION).flat_map(|line| line.split(|byte| *byte == b','));
        named.extend(elements.filter_map(hop::named));
    }
    for (name, value) in headers {
        let passes = match name.as_str() {
            // Said anew below, or answered here: `Expect` is, when the backend takes the body.
            "host" | "content-length" | "x-forwarded-for" | "via" | "expect" => false,
            "x-forwarded-proto" | "x-forwarded-host" | "forwarded" => trusted,
            "accept-encoding" => !writer.identity,
            _ if hop::is_per_connection(name) || named.contains(name) => false,
            _ if !trusted && snapshot.identity.is_user_header(name) => false,
            text => !text.contains('_') || !is_alias(text, |name| is_ours(name, snapshot, route)),
        };
        if passes {
            writer.field(name, value.as_bytes());
        }
    }
}

/// `X-Forwarded-*` and `Via`. What an untrusted peer says of itself was not passed on.
fn say_where_it_came_from(
    writer: &mut Writer<'_>,
    exchange: &Exchange,
    destination: &Destination,
    head: &Parts,
) {
    let (peer, present) = (&exchange.peer, exchange.present);
    let trusted = peer.is_trusted(exchange.snapshot());
    let said = |header| trusted && present.has(header);
    let mut continued = |name, before: bool, mine| {
        let before = before.then(|| lines(&head.headers, name)).into_iter().flatten();
        writer.list(name, before.chain([mine]));
    };
    continued(&X_FORWARDED_FOR, said(Present::X_FORWARDED_FOR), peer.name.as_bytes());
    let old = head.version == Version::HTTP_10;
    let mine: &[u8] = if old { b"1.0 sluice" } else { b"1.1 sluice" };
    continued(&VIA, present.has(Present::VIA), mine);
    if !said(Present::X_FORWARDED_PROTO) {
        writer.field(&X_FORWARDED_PROTO, b"http");
    }
    if !said(Present::X_FORWARDED_HOST) {
        writer.field(&X_FORWARDED_HOST, destination.authority.as_bytes());
    }
}

fn lines<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h [u8]> + use<'h> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes)
}

/// How the body ends, and whether the caller takes trailers; the rest of TE is between it and us.
fn say_what_follows(writer: &mut Writer<'_>, present: Present, headers: &HeaderMap) {
    if present.has(Present::TRANSFER_ENCODING) {
        writer.field(&TRANSFER_ENCODING, b"chunked");
    } else if let Some(length) = headers.get(CONTENT_LENGTH) {
        writer.field(&CONTENT_LENGTH, length.as_bytes());
    }
    let is_trailers = |item: &[u8]| item.trim_ascii().eq_ignore_ascii_case(b"trailers");
    if present.has(Present::TE)
        && lines(headers, &TE).any(|list| list.split(|byte| *byte == b',').any(is_trailers))
    {
        writer.field(&TE, b"trailers");
        writer.field(&CONNECTION, b"te");
    }
}

/// Headers that the gateway itself reads, sets or removes. A caller cannot bring them in by the
/// back door: as a trailer, or in a spelling that backends after CGI's fashion take for the same.
fn is_ours(name: &HeaderName, snapshot: &Snapshot, route: &Route) -> bool {
    let key = match snapshot.identity.api_key.as_ref().map(|keys| &keys.place) {
        Some(KeyPlace::Header(key)) => Some(key),
        _ => None,
    };
    !hop::may_be_named(name)
        || hop::is_per_connection(name)
        || key == Some(name)
        || snapshot.identity.is_user_header(name)
        || route.edits(name)
}

/// `X_User_Id` is `X-User-Id` to a backend that makes variables of headers.
#[cold]
fn is_alias(text: &str, is_ours: impl Fn(&HeaderName) -> bool) -> bool {
    HeaderName::from_bytes(text.replace('_', "-").as_bytes()).is_ok_and(|dashed| is_ours(&dashed))
}
