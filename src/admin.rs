//! The operator's own listener: health, metrics and bans. Callers never reach it.

use crate::bans::Ban;
use crate::clock::SECOND;
use crate::gateway::Gateway;
use crate::metrics::Format;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

type Page = Response<Full<Bytes>>;

/// What the operator must present; a reload may change it.
pub type Token = Arc<Mutex<Option<String>>>;

/// Answers the operator until the task is aborted; its connections end with it.
pub async fn serve(listener: TcpListener, gateway: Arc<Gateway>, token: Token) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let (gateway, token) = (Arc::clone(&gateway), Arc::clone(&token));
        connections.spawn_local(async move {
            let service = service_fn(|request| {
                let page = answer(&request, &gateway, token.lock().as_deref());
                async { Ok::<_, Infallible>(page) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(30));
            // Whoever breaks off a connection knows that they did.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn answer<B>(request: &Request<B>, gateway: &Gateway, token: Option<&str>) -> Page {
    let path = request.uri().path();
    let open = matches!(path, "/livez" | "/readyz");
    if !open && !may(request, token) {
        let mut page = text(StatusCode::UNAUTHORIZED, "a token is needed\n".into());
        let challenge = HeaderValue::from_static("Bearer realm=\"sluice-admin\"");
        page.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        return page;
    }
    if path == "/api/v1/bans" && *request.method() == Method::DELETE {
        return lift(request, gateway);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut page = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".into());
        page.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return page;
    }
    match path {
        "/readyz" if gateway.is_draining() => {
            text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n".into())
        }
        "/livez" | "/readyz" => text(StatusCode::OK, "ok\n".into()),
        "/metrics" => metrics(request, gateway),
        "/api/v1/bans" => bans(gateway),
        _ => {
            let known = "there is /livez, /readyz, /metrics and /api/v1/bans\n";
            text(StatusCode::NOT_FOUND, known.into())
        }
    }
}

/// Whether the request presents the token, if one is set.
fn may<B>(request: &Request<B>, token: Option<&str>) -> bool {
    let Some(token) = token else { return true };
    let presented = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let presented = presented.and_then(|value| value.split_at_checked(b"Bearer ".len()));
    presented.is_some_and(|(scheme, given)| {
        scheme.eq_ignore_ascii_case(b"Bearer ")
            && verify_slices_are_equal(given, token.as_bytes()).is_ok()
    })
}

fn metrics<B>(request: &Request<B>, gateway: &Gateway) -> Page {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let mut page = text(StatusCode::OK, gateway.metrics.render(format, &gateway.readings()));
    page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    page
}

/// Who is banned, and for how many seconds more.
fn bans(gateway: &Gateway) -> Page {
    let now = gateway.clock.now();
    let ban = |ban: Ban| {
        let seconds = (ban.until - now).div_ceil(SECOND);
        serde_json::json!({ "caller": ban.caller, "limit": ban.limit, "seconds": seconds })
    };
    let list: Vec<_> = gateway.bans.list(now).into_iter().map(ban).collect();
    json(StatusCode::OK, &serde_json::json!({ "bans": list }))
}

/// `DELETE /api/v1/bans?caller=ip:203.0.113.7`.
fn lift<B>(request: &Request<B>, gateway: &Gateway) -> Page {
    let query = request.uri().query().unwrap_or_default();
    let Some(caller) = query.split('&').find_map(|pair| pair.strip_prefix("caller=")) else {
        let help = serde_json::json!({ "error": "name the caller: ?caller=ip:203.0.113.7" });
        return json(StatusCode::BAD_REQUEST, &help);
    };
    let caller = percent_decode(caller);
    let lifted = gateway.bans.lift(&caller);
    if lifted {
        tracing::info!("the ban of {caller:?} was lifted by the operator");
    }
    let status = if lifted { StatusCode::OK } else { StatusCode::NOT_FOUND };
    json(status, &serde_json::json!({ "caller": caller, "lifted": lifted }))
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = tail.get(..2).and_then(|digits| str::from_utf8(digits).ok());
        let value = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match value.filter(|_| byte == b'%') {
            Some(value) => {
                bytes.push(value);
                rest = &tail[2..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn json(status: StatusCode, value: &serde_json::Value) -> Page {
    let mut page = text(status, format!("{value}\n"));
    page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    page
}

fn text(status: StatusCode, text: String) -> Page {
    let mut page = Response::new(Full::new(Bytes::from(text)));
    *page.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    page.headers_mut().insert(CONTENT_TYPE, plain);
    page.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    page
}
