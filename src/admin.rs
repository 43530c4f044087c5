//! The operator's own listener: health, metrics, the API and the dashboard. Callers never reach it.
//!
//! ```text
//! connection ──► access: who may (token, guesses are limited, no foreign pages)
//!                  │
//!            pages::find: method and path ──► Page ──► its answer
//! ```

mod access;
mod acts;
mod callers;
mod connections;
mod json;
mod live;
mod pages;
mod state;

pub use access::Token;
pub use connections::serve;
pub use pages::ALL as PAGES;

use crate::gateway::Gateway;
use access::Access;
use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use pages::Page;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

type Answer = Response<Full<Bytes>>;

/// What an operator sends is a few lines.
const LONGEST: usize = 64 << 10;

/// How long the body of a request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the configuration is read again: the new generation, or what is wrong with the file.
pub type Reload = Box<dyn Fn() -> oneshot::Receiver<Result<u64, String>>>;

/// What the admin listener knows.
pub struct Operator {
    /// What it is about.
    pub gateway: Arc<Gateway>,
    /// Who may.
    pub token: Token,
    /// Reads the configuration again.
    pub reload: Reload,
    /// The configuration's file.
    pub file: PathBuf,
}

async fn answer(
    access: &Access,
    operator: &Operator,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Answer {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let found = pages::find(&method, &path);
    let open = matches!(found, Ok(Page::Livez | Page::Readyz));
    if !open && let Err(refusal) = access.admit(&request, peer) {
        return refusal.answer();
    }
    let page = match found {
        Ok(page) => page,
        Err(allowed) => return nothing_there(&allowed),
    };
    let mut answer = match page {
        Page::Dashboard => pages::dashboard(),
        Page::Livez => health(operator.gateway.is_alive()),
        Page::Readyz => health(match operator.gateway.state() {
            state if state.is_ready() => Ok(()),
            state => Err(state.name().to_owned()),
        }),
        Page::Metrics => metrics(&request, &operator.gateway),
        page => match call(operator, page, request).await {
            Ok(value) => json_answer(StatusCode::OK, &value),
            Err(error) => error.answer(),
        },
    };
    if method == Method::HEAD {
        *answer.body_mut() = Full::default();
    }
    answer
}

/// The pages that speak JSON.
async fn call(
    operator: &Operator,
    page: Page,
    request: Request<Incoming>,
) -> Result<Value, ApiError> {
    let gateway = &*operator.gateway;
    let query = Query::of(&request);
    match page {
        Page::Status => Ok(state::status(operator)),
        Page::Config => Ok(state::config(operator)),
        Page::Limits => Ok(state::limits(gateway)),
        Page::Live => Ok(live::live(operator)),
        Page::Top => Ok(live::top(gateway)),
        Page::OpenApi => Ok(pages::openapi()),
        Page::Caller => callers::look_up(gateway, &query).await,
        Page::Bans => Ok(acts::bans(gateway)),
        Page::Grants => Ok(acts::grants(gateway)),
        Page::Ban | Page::Grant | Page::ResetCaller => {
            let body = body(request).await?;
            let _permit = gateway.overrides.gate.admit().ok_or_else(ApiError::handing_over)?;
            match page {
                Page::Ban => acts::ban(gateway, &body).await,
                Page::Grant => acts::grant(gateway, &body).await,
                _ => callers::reset(gateway, &body).await,
            }
        }
        Page::LiftBan | Page::WithdrawGrant => {
            let _permit = gateway.overrides.gate.admit().ok_or_else(ApiError::handing_over)?;
            match page {
                Page::LiftBan => acts::lift(gateway, &query).await,
                _ => acts::withdraw(gateway, &query).await,
            }
        }
        Page::Reload => acts::reload(operator).await,
        Page::Drain => Ok(acts::drain(gateway, true)),
        Page::Undrain => Ok(acts::drain(gateway, false)),
        Page::Dashboard | Page::Livez | Page::Readyz | Page::Metrics => {
            Err(ApiError::not_found("this page is no JSON"))
        }
    }
}

/// Why the API does not do what was asked.
#[derive(Debug)]
struct ApiError {
    status: StatusCode,
    message: String,
    /// In how many seconds the same may succeed.
    retry_after: Option<u16>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after: None }
    }

    fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    fn store_away() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the shared store is away")
    }

    /// What this process would say now, the next one might not know.
    fn handing_over() -> Self {
        let message = "a new process is taking over: try again";
        Self { retry_after: Some(1), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    fn answer(&self) -> Answer {
        let mut answer = json_answer(self.status, &json!({ "error": self.message }));
        if let Some(seconds) = self.retry_after {
            answer.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        answer
    }
}

/// What stands behind the question mark, decoded.
struct Query(Vec<(String, String)>);

impl Query {
    fn of<B>(request: &Request<B>) -> Self {
        let pairs = request.uri().query().unwrap_or_default().split('&');
        let pairs = pairs.filter(|pair| !pair.is_empty());
        let decoded = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decode(name), percent_decode(value))
        });
        Self(decoded.collect())
    }

    /// Nothing but these, and each once: what is misspelt is said, not ignored.
    fn only(&self, known: &[&str]) -> Result<(), ApiError> {
        for (index, (name, _)) in self.0.iter().enumerate() {
            let twice = self.0[..index].iter().any(|(other, _)| other == name);
            if twice || !known.contains(&name.as_str()) {
                let message = format!("'{name}' is not known here, or is there twice");
                return Err(ApiError::bad(message));
            }
        }
        Ok(())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = tail.get(..2).and_then(|digits| str::from_utf8(digits).ok());
        let value = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (byte, value) {
            (b'%', Some(value)) => {
                bytes.push(value);
                rest = &tail[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = tail;
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The JSON object that was sent.
async fn body(request: Request<Incoming>) -> Result<Value, ApiError> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let message = "send JSON, with Content-Type: application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let reading = Limited::new(request.into_body(), LONGEST).collect();
    let read = tokio::time::timeout(PATIENCE, reading).await;
    let read = read.map_err(|_| ApiError::bad("the body did not come"))?;
    let bytes = read.map_err(|_| ApiError::bad("the body is too long, or broke off"))?.to_bytes();
    let value = json::parse(&bytes)
        .map_err(|error| ApiError::bad(format!("this JSON cannot be used: {error}")))?;
    value.is_object().then_some(value).ok_or_else(|| ApiError::bad("send a JSON object"))
}

fn nothing_there(allowed: &[Method]) -> Answer {
    if allowed.is_empty() {
        let message = "there is nothing here; GET /api/v1/openapi.json lists what there is";
        return ApiError::not_found(message).answer();
    }
    let mut answer = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "not by this method").answer();
    let names: Vec<&str> = allowed.iter().map(Method::as_str).collect();
    if let Ok(allow) = HeaderValue::from_str(&names.join(", ")) {
        answer.headers_mut().insert(ALLOW, allow);
    }
    answer
}

fn health(state: Result<(), String>) -> Answer {
    match state {
        Ok(()) => text(StatusCode::OK, "ok\n".into()),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

fn metrics<B>(request: &Request<B>, gateway: &Gateway) -> Answer {
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = crate::metrics::Format::accepted(accept.unwrap_or_default());
    let mut page = text(StatusCode::OK, gateway.metrics.render(format, &gateway.readings()));
    page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    page
}

fn json_answer(status: StatusCode, value: &Value) -> Answer {
    let mut answer = text(status, format!("{value}\n"));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn text(status: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, plain);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
