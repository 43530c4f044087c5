//! Status and headers: the one place where answers are made.

use super::body::{Body, Source};
use super::exchange::Exchange;
use super::judge::{Said, retry_after_seconds};
use super::refusal::{Credential, Refusal};
use super::relay::Answer;
use super::settle::End;
use super::tunnel::Tunnel;
use crate::clock::Micros;
use crate::config::model::{Headers, KeyPlace, UserSource};
use crate::overload;
use crate::snapshot::Snapshot;
use crate::told::{self, Told};
use crate::upgrade::Upgrade;
use crate::upstream::InFlight;
use crate::upstream::answer::Head;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use std::rc::Rc;
use std::time::Duration;

/// A refusal is for one caller at one moment: no cache may keep it.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The backend's answer, with the limits' headers.
pub(super) fn relayed(mut exchange: Box<Exchange>, answer: Answer) -> Response<Body> {
    let Answer { head: Head { status, headers, private, .. }, source, switched } = answer;
    exchange.hand_on(status);
    let mut response = Response::new(Body::EMPTY);
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    exchange.settle_by_head(status, response.headers());
    for name in private {
        response.headers_mut().remove(name);
    }
    if switched && let Some(upgrade) = exchange.upgrade.take() {
        return self::switched(exchange, response, &upgrade, source);
    }
    exchange.note_answer(status, None);
    tell(response.headers_mut(), &exchange, None);
    if exchange.peer.is_last() || exchange.is_last_of_its_connection() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    exchange.peer.activity.answer_without_length(exchange.version == Version::HTTP_10);
    *response.body_mut() = Body::relayed(source, exchange);
    response
}

/// A backend's answer that no client waits for: its body is still to be read.
pub(super) fn unheard(mut exchange: Box<Exchange>, answer: Answer) -> Body {
    let Answer { head: Head { status, headers, .. }, source, switched } = answer;
    exchange.hand_on(status);
    exchange.settle_by_head(status, &headers);
    exchange.note_answer(status, None);
    if switched { Body::EMPTY } else { Body::relayed(source, exchange) }
}

/// The deadline of a client that speaks gRPC is over, while its request goes on at the backend.
pub(super) fn too_late() -> Response<Body> {
    let mut response = Response::new(Body::EMPTY);
    response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    in_grpc(&mut response, &Refusal::GatewayTimeout);
    response.extensions_mut().insert(GoesOn);
    response
}

/// The answer to a client whose request goes on without it: what it still sends belongs to the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoesOn;

/// The backend has switched to what was asked for. The tunnel waits where the connection, or the
/// stream, is served: it begins when this answer is out.
fn switched(
    mut exchange: Box<Exchange>,
    mut response: Response<Body>,
    upgrade: &Upgrade,
    source: Source,
) -> Response<Body> {
    let headers = response.headers_mut();
    let status = if exchange.version == Version::HTTP_2 {
        Upgrade::grant_over_http2(headers);
        StatusCode::OK
    } else {
        upgrade.grant(headers);
        StatusCode::SWITCHING_PROTOCOLS
    };
    headers.remove(CONTENT_LENGTH);
    tell(headers, &exchange, None);
    *response.status_mut() = status;
    exchange.settle_numbers(End::Whole);
    exchange.note_answer(status, None);
    exchange.note_switch();
    exchange.endpoint.iter().for_each(InFlight::went_well);
    // A tunnel may be silent for hours: it takes nobody's place.
    exchange.leave_upstream();
    let idle = exchange.route().map(|route| &exchange.snapshot().upstreams[route.upstream]);
    let idle = idle.map_or(Duration::ZERO, |upstream| upstream.config.timeouts.tunnel);
    let (peer, is_websocket) = (Rc::clone(&exchange.peer), upgrade.is_websocket());
    *peer.tunnel.borrow_mut() =
        source.into_tunnel().map(|backend| Tunnel { backend, exchange, idle, is_websocket });
    response
}

/// A refusal: a head and nothing else. Unless the request's body was read to its end, the
/// connection ends with it.
pub(super) fn refused(
    mut exchange: Box<Exchange>,
    refusal: &Refusal,
    body_read: bool,
) -> Response<Body> {
    drop(exchange.settle(refusal.end(exchange.was_sent())));
    let mut response = Response::new(Body::EMPTY);
    *response.status_mut() = refusal.status();
    let headers = response.headers_mut();
    // Enough for what a limit says, and for a wish to close: it does not grow on the way.
    *headers = HeaderMap::with_capacity(8);
    match refusal {
        Refusal::Limited { retry_after } => tell(headers, &exchange, Some(*retry_after)),
        Refusal::SystemLimited { retry_after } | Refusal::Banned { retry_after, .. } => {
            headers.insert(RETRY_AFTER, retry(*retry_after, &exchange));
        }
        Refusal::Overloaded { priority, .. } => {
            let least = overload::come_back(*priority);
            headers.insert(RETRY_AFTER, fastrand::u64(least..=2 * least).into());
        }
        Refusal::StoreAway | Refusal::NoEndpoint => {
            headers.insert(RETRY_AFTER, retry(0, &exchange));
        }
        Refusal::MethodNotAllowed(allow) => {
            headers.insert(ALLOW, allow.clone());
            tell(headers, &exchange, None);
        }
        Refusal::MethodRefused => {
            let allow = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
            headers.insert(ALLOW, allow);
        }
        Refusal::Missing(_) | Refusal::UnknownKey | Refusal::BadToken(_) => {
            challenge(headers, refusal, exchange.snapshot());
            tell(headers, &exchange, None);
        }
        _ => tell(headers, &exchange, None),
    }
    headers.insert(CACHE_CONTROL, NO_STORE);
    // A body that nobody reads has to be got rid of before the caller sees the answer.
    exchange.peer.activity.linger(!body_read);
    if (refusal.closes() || !body_read || exchange.peer.is_last() || exchange.worker.is_leaving())
        && exchange.version != Version::HTTP_2
    {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    exchange.note_answer(response.status(), Some(refusal));
    if let Refusal::Overloaded { why, priority } = refusal {
        exchange.worker.gateway.metrics.shed(*why, *priority);
    }
    if let Some(guard) = refusal.guard() {
        exchange.worker.gateway.metrics.refuse(guard);
    }
    if exchange.grpc {
        in_grpc(&mut response, refusal);
    }
    exchange.finish(0, true);
    response
}

/// The same in gRPC's terms: a head that is trailers as well, with the status in them.
fn in_grpc(response: &mut Response<Body>, refusal: &Refusal) {
    let status = match refusal {
        Refusal::Limited { .. } | Refusal::Banned { .. } => "8", // RESOURCE_EXHAUSTED
        Refusal::SystemLimited { .. }
        | Refusal::StoreAway
        | Refusal::Overloaded { .. }
        | Refusal::NoEndpoint
        | Refusal::BadGateway(_) => "14", // UNAVAILABLE
        Refusal::GatewayTimeout | Refusal::Stalled => "4",       // DEADLINE_EXCEEDED
        Refusal::Missing(_) | Refusal::UnknownKey | Refusal::BadToken(_) => "16", // UNAUTHENTICATED
        Refusal::NoRoute | Refusal::MethodNotAllowed(_) | Refusal::MethodRefused => "12", // UNIMPLEMENTED
        Refusal::Malformed(_)
        | Refusal::TooManyHeaders
        | Refusal::UriTooLong
        | Refusal::Loop
        | Refusal::TooLarge => "13", // INTERNAL, as its HTTP mapping has it
    };
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static(status));
    if let Ok(message) = HeaderValue::from_str(&refusal.to_string().replace('%', "%25")) {
        headers.insert("grpc-message", message);
    }
}

fn retry(after: Micros, exchange: &Exchange) -> HeaderValue {
    retry_after_seconds(after, exchange.snapshot().headers.retry_jitter).into()
}

/// What the limits say, if any said something.
fn tell(headers: &mut HeaderMap, exchange: &Exchange, retry_after: Option<Micros>) {
    let Headers { x_ratelimit, ietf, retry_jitter } = exchange.snapshot().headers;
    let (judgement, limits) = (&exchange.judgement, exchange.limits());
    let mut lines = Told::new(headers);
    if let Some(retry_after) = retry_after {
        lines.retry_after(retry_after_seconds(retry_after, retry_jitter));
    }
    // What was granted to the caller counts in the place of what the limit says.
    let quota = |index: usize, said: &Said| match judgement.granted(index) {
        Some(granted) => granted,
        None => limits[said.limit].quota(said.quota),
    };
    if x_ratelimit && let Some((index, said)) = judgement.speaks(limits) {
        let count = match judgement.granted(index) {
            Some(granted) => granted.rate().count.into(),
            None => limits[said.limit].count(said.quota).clone(),
        };
        let clock = &exchange.worker.gateway.clock;
        lines.x_ratelimit(count, quota(index, said), &said.verdict, clock);
    }
    if ietf {
        let told = judgement.said.iter().enumerate();
        let told = told.filter(|(_, said)| !said.verdict.is_silent());
        let policy = if judgement.has_grants() {
            granted_policy(exchange)
        } else {
            limits.policy(told.clone().map(|(_, said)| (said.limit, said.quota)))
        };
        let speaking = told.filter(|(_, said)| limits[said.limit].speaks());
        lines.ietf(
            policy,
            speaking.map(|(index, said)| {
                (limits[said.limit].name.as_str(), quota(index, said), &said.verdict)
            }),
        );
    }
}

/// `RateLimit-Policy` of a caller to whom other rates apply: nothing of it is known beforehand.
#[cold]
fn granted_policy(exchange: &Exchange) -> Option<HeaderValue> {
    let (judgement, limits) = (&exchange.judgement, exchange.limits());
    let speaking = judgement
        .said
        .iter()
        .enumerate()
        .filter(|(_, said)| !said.verdict.is_silent() && limits[said.limit].speaks());
    let item = |(index, said): (usize, &Said)| {
        let limit = &limits[said.limit];
        let quota = judgement.granted(index).unwrap_or_else(|| limit.quota(said.quota));
        told::policy(&limit.name, quota)
    };
    let items: Vec<String> = speaking.map(item).collect();
    told::policies(items.iter().map(String::as_str))
}

/// How the caller could identify themselves.
fn challenge(headers: &mut HeaderMap, refusal: &Refusal, snapshot: &Snapshot) {
    const REALM: &str = "realm=\"sluice\"";
    let (user, key) = match refusal {
        Refusal::BadToken(_) | Refusal::Missing(Credential::User) => (true, false),
        Refusal::UnknownKey | Refusal::Missing(Credential::ApiKey) => (false, true),
        _ => (true, true),
    };
    if user && matches!(snapshot.identity.user, Some(UserSource::Jwt(_))) {
        let text = match refusal {
            Refusal::BadToken(why) => {
                format!("Bearer {REALM}, error=\"invalid_token\", error_description=\"{why}\"")
            }
            _ => format!("Bearer {REALM}"),
        };
        append(headers, &text);
    } else if user && !key {
        append(headers, &format!("User {REALM}"));
    }
    if key && let Some(keys) = &snapshot.identity.api_key {
        match &keys.place {
            KeyPlace::Header(name) => {
                append(headers, &format!("ApiKey {REALM}, header=\"{name}\""));
            }
            KeyPlace::Query(name) => append(headers, &format!("ApiKey {REALM}, query=\"{name}\"")),
        }
    }
}

fn append(headers: &mut HeaderMap, challenge: &str) {
    if let Ok(value) = HeaderValue::from_str(challenge) {
        headers.append(WWW_AUTHENTICATE, value);
    }
}
