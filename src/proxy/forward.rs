//! The request as the backend sees it: what HTTP forbids to forward is taken off, what a gateway
//! must say is put on.

use super::address::X_FORWARDED_FOR;
use super::destination::Destination;
use super::exchange::Exchange;
use super::refusal::Refusal;
use crate::config::model::{KeyPlace, UserSource};
use crate::snapshot::{Route, Snapshot};
use crate::upstream::upload::{RequestBody, Upload};
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, EXPECT, FORWARDED, HOST, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use smallvec::SmallVec;
use std::rc::Rc;

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// What HTTP forbids to forward, beside `Connection` and what it names.
const PER_CONNECTION: [HeaderName; 7] = [
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Turns the caller's request into the backend's.
pub(super) fn prepare(
    exchange: &Exchange,
    index: usize,
    destination: &Destination,
    request: &mut Option<Request<Incoming>>,
) -> Result<Request<RequestBody>, Refusal> {
    let snapshot = exchange.snapshot();
    let route = &snapshot.routes[index];
    let Some(request) = request.take_if(|request| fits(request.body(), route.max_body_bytes))
    else {
        return Err(Refusal::TooLarge);
    };
    let (mut head, incoming) = request.into_parts();
    let generation = Rc::clone(&exchange.generation);
    let is_ours_here = move |name: &HeaderName| {
        is_ours(name, &generation.snapshot, &generation.snapshot.routes[index])
    };
    let body = if incoming.is_end_stream() {
        RequestBody::empty()
    } else {
        RequestBody::new(incoming, Upload::new(route.max_body_bytes, is_ours_here))
    };
    let chunked = head.headers.contains_key(TRANSFER_ENCODING);

    let trailers = wants_trailers(&head.headers);
    remove_hop_by_hop(&mut head.headers);
    head.headers.remove(EXPECT); // answered here: the body is asked for when the backend takes it
    if chunked {
        head.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if trailers {
        head.headers.insert(TE, HeaderValue::from_static("trailers"));
        head.headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }

    remove_aliases(&mut head.headers, |name| is_ours(name, snapshot, route));
    let trusted = exchange.peer.is_trusted(snapshot);
    if !trusted && let Some(UserSource::Header(name)) = &snapshot.identity.user {
        head.headers.remove(name);
    }
    say_where_it_came_from(&mut head.headers, exchange, trusted, head.version);
    let forwarded_host = head.headers.entry(X_FORWARDED_HOST);
    if let http::header::Entry::Vacant(entry) = forwarded_host {
        entry.insert(destination.authority.clone());
    }
    head.headers.insert(HOST, destination.authority.clone());

    for name in &route.remove_headers {
        head.headers.remove(name);
    }
    for (name, value) in &route.set_headers {
        head.headers.insert(name, value.clone());
    }
    if exchange.settlement.as_ref().is_some_and(|settlement| settlement.reads_the_body()) {
        head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    head.uri = target(destination, route.strip_prefix.as_deref())?;
    head.version = Version::HTTP_11;
    head.extensions.clear();
    Ok(Request::from_parts(head, body))
}

/// What announces to be too large is refused at once; what does not is watched while it passes.
fn fits(body: &Incoming, limit: Option<u64>) -> bool {
    body.size_hint().exact().zip(limit).is_none_or(|(length, limit)| length <= limit)
}

fn target(destination: &Destination, strip: Option<&str>) -> Result<Uri, Refusal> {
    if strip.is_none()
        && let Some(same) = destination.as_it_came()
    {
        return Ok(Uri::from(same.clone()));
    }
    let path = destination.path();
    let path = strip.and_then(|prefix| path.strip_prefix(prefix)).unwrap_or(path);
    let slash = if path.starts_with('/') { "" } else { "/" };
    let text = match destination.query() {
        Some(query) => format!("{slash}{path}?{query}"),
        None => format!("{slash}{path}"),
    };
    let target = PathAndQuery::try_from(text).map_err(|_| Refusal::Malformed("no valid target"))?;
    Ok(Uri::from(target))
}

/// `X-Forwarded-*` and `Via`. What an untrusted peer says of itself is dropped.
fn say_where_it_came_from(
    headers: &mut HeaderMap,
    exchange: &Exchange,
    trusted: bool,
    version: Version,
) {
    let peer = &exchange.peer;
    if trusted {
        let before = joined(headers, &X_FORWARDED_FOR);
        let value = match before {
            Some(before) => [before.as_slice(), b", ", peer.name.as_bytes()].concat(),
            None => peer.name.as_bytes().to_vec(),
        };
        let value = HeaderValue::from_bytes(&value);
        headers.insert(X_FORWARDED_FOR, value.unwrap_or_else(|_| peer.name.clone()));
        let proto = headers.entry(X_FORWARDED_PROTO);
        proto.or_insert(HeaderValue::from_static("http"));
    } else {
        headers.remove(FORWARDED);
        headers.remove(X_FORWARDED_HOST);
        headers.insert(X_FORWARDED_FOR, peer.name.clone());
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
    let mine = if version == Version::HTTP_10 { "1.0 sluice" } else { "1.1 sluice" };
    let via = joined(headers, &VIA).and_then(|before| {
        HeaderValue::from_bytes(&[before.as_slice(), b", ", mine.as_bytes()].concat()).ok()
    });
    headers.insert(VIA, via.unwrap_or(HeaderValue::from_static(mine)));
}

/// All lines of a header as one list.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let lines: SmallVec<[&[u8]; 4]> =
        headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    (!lines.is_empty()).then(|| lines.join(b", ".as_slice()))
}

/// Whether the caller takes trailers; the rest of TE is between it and us.
fn wants_trailers(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TE).iter().filter_map(|value| value.to_str().ok());
    codings.any(|list| list.split(',').any(|item| item.trim().eq_ignore_ascii_case("trailers")))
}

/// Removes what belongs to one connection: the fixed set, and what `Connection` names. A peer
/// cannot use `Connection` to take off what others rely on.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: SmallVec<[HeaderName; 4]> = headers
            .get_all(CONNECTION)
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
            .filter(may_be_named)
            .collect();
        for name in named {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in &PER_CONNECTION {
        headers.remove(name);
    }
}

/// Headers that the gateway itself reads, sets or removes. A caller cannot bring them in by the
/// back door: as a trailer, or in a spelling that backends after CGI's fashion take for the same.
fn is_ours(name: &HeaderName, snapshot: &Snapshot, route: &Route) -> bool {
    let user = match &snapshot.identity.user {
        Some(UserSource::Header(user)) => Some(user),
        _ => None,
    };
    let key = match snapshot.identity.api_key.as_ref().map(|keys| &keys.place) {
        Some(KeyPlace::Header(key)) => Some(key),
        _ => None,
    };
    !may_be_named(name)
        || PER_CONNECTION.contains(name)
        || [user, key].contains(&Some(name))
        || route.remove_headers.contains(name)
        || route.set_headers.iter().any(|(set, _)| set == name)
}

/// `X_User_Id` is `X-User-Id` to a backend that makes variables of headers.
fn remove_aliases(headers: &mut HeaderMap, is_ours: impl Fn(&HeaderName) -> bool) {
    let is_alias = |name: &&HeaderName| {
        name.as_str().contains('_')
            && HeaderName::from_bytes(name.as_str().replace('_', "-").as_bytes())
                .is_ok_and(|dashed| is_ours(&dashed))
    };
    let aliases: SmallVec<[HeaderName; 2]> = headers.keys().filter(is_alias).cloned().collect();
    for name in aliases {
        headers.remove(name);
    }
}

fn may_be_named(name: &HeaderName) -> bool {
    let kept = [
        &HOST,
        &CONTENT_LENGTH,
        &http::header::AUTHORIZATION,
        &http::header::COOKIE,
        &http::header::SET_COOKIE,
        &http::header::CONTENT_TYPE,
        &http::header::CACHE_CONTROL,
        &X_FORWARDED_FOR,
        &X_FORWARDED_PROTO,
        &X_FORWARDED_HOST,
        &FORWARDED,
        &VIA,
    ];
    !kept.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connection_names_goes_but_not_what_others_rely_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Hop , host,Authorization"),
            ("connection", "x-other"),
            ("x-hop", "1"),
            ("x-other", "1"),
            ("x-stays", "1"),
            ("host", "a"),
            ("authorization", "b"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "c"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        remove_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "host", "x-stays"]);
    }
}
