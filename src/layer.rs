//! The same limits in a tower stack of your own: [`LimitLayer`].
//!
//! ```
//! use sluice::layer::LimitLayer;
//! use sluice::limit::{Quota, Rate};
//!
//! let per_minute = Quota::token_bucket(Rate { count: 100, window: 60_000_000 }, None).unwrap();
//! let in_flight = Quota::concurrency(10).unwrap();
//! let layer = LimitLayer::<()>::new()
//!     .limit("per-tenant", per_minute, |request| {
//!         Some(request.headers().get("x-tenant")?.to_str().ok()?.to_owned())
//!     })
//!     .limit("everybody", in_flight, |_| Some(String::new()));
//! # let _ = layer;
//! ```
//!
//! All limits of a request are decided together, and all are charged or none is. A rejected request
//! gets a header-only 429, a queued one waits for its turn, and what is in flight is given back
//! when the response's body has ended.

use crate::clock::Clock;
use crate::config::limits::valid_name;
use crate::limit::Quota;
use crate::proxy::judge::retry_after_seconds;
use crate::store::{self, Charge, Decision, Hold, LimitId, Memory, Part, Registry, Subject};
use crate::told::{self, Told};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use smallvec::SmallVec;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Layer, Service};

/// Puts limits in front of a service.
pub struct LimitLayer<B>(Arc<Limits<B>>);

struct Limits<B> {
    store: Memory,
    clock: Clock,
    all: Vec<Limit<B>>,
    /// Requests so far: idle callers are let go of every so often.
    requests: AtomicUsize,
}

/// Tells callers apart.
type Key<B> = Box<dyn Fn(&Request<B>) -> Option<String> + Send + Sync>;

struct Limit<B> {
    id: LimitId,
    name: String,
    policy: String,
    quota: Quota,
    key: Key<B>,
}

impl<B> Default for LimitLayer<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> LimitLayer<B> {
    /// No limits yet; at most a million callers are remembered.
    pub fn new() -> Self {
        Self::with(Clock::system(), 1_000_000)
    }

    /// No limits yet, with a clock and a cap of your own.
    pub fn with(clock: Clock, max_keys: usize) -> Self {
        let store = Memory::new(max_keys);
        Self(Arc::new(Limits { store, clock, all: Vec::new(), requests: AtomicUsize::new(0) }))
    }

    /// Adds a limit. `key` tells callers apart; a request without one is not this limit's.
    ///
    /// # Panics
    ///
    /// When the layer is in use already, and when the name is none that headers can say: up to 128
    /// visible ASCII characters, without `"` and `\`.
    #[must_use]
    pub fn limit(
        mut self,
        name: &str,
        quota: Quota,
        key: impl Fn(&Request<B>) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        assert!(valid_name(name).is_ok(), "{name:?} is no name for a limit");
        let limits = Arc::get_mut(&mut self.0).expect("limits are added before the layer is used");
        let (id, policy) = (limits.store.limit_id(name), told::policy(name, &quota));
        limits.all.push(Limit { id, name: name.to_owned(), policy, quota, key: Box::new(key) });
        let registry = limits.all.iter().map(|limit| (limit.id, [limit.quota.clone()].into()));
        limits.store.adopt(registry.collect::<Registry>());
        self
    }
}

impl<B> Clone for LimitLayer<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S, B> Layer<S> for LimitLayer<B> {
    type Service = LimitService<S, B>;

    fn layer(&self, inner: S) -> Self::Service {
        LimitService { inner, limits: Arc::clone(&self.0) }
    }
}

/// A service behind limits.
pub struct LimitService<S, B> {
    inner: S,
    limits: Arc<Limits<B>>,
}

impl<S: Clone, B> Clone for LimitService<S, B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), limits: Arc::clone(&self.limits) }
    }
}

impl<S, B, R> Service<Request<B>> for LimitService<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
    R: Body + Default + Send + 'static,
{
    type Response = Response<Limited<R, B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready is used; its copy gets ready for the next request.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let limits = Arc::clone(&self.limits);
        let keys = limits.keys(&request);
        Box::pin(async move {
            let decided = limits.decide(&keys);
            if decided.retry_after.is_some() {
                let mut response = Response::new(Limited::empty());
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                *response.headers_mut() = decided.headers;
                return Ok(response);
            }
            let mut release = Release { limits, holds: decided.holds };
            if !decided.delay.is_zero() {
                tokio::time::sleep(decided.delay).await;
            }
            release.holds.retain(|hold| !hold.is_queue());
            let mut response = inner.call(request).await?;
            response.headers_mut().extend(decided.headers);
            Ok(response.map(|body| Limited { body, release: Some(release) }))
        })
    }
}

/// A limit's place in the list, and the caller's key.
type Keys = SmallVec<[(usize, String); 4]>;

/// What the limits say to one request.
struct Decided {
    headers: HeaderMap,
    retry_after: Option<u64>,
    delay: Duration,
    holds: Vec<Hold>,
}

impl<B> Limits<B> {
    /// The limits that apply, and which of their counters.
    fn keys(&self, request: &Request<B>) -> Keys {
        let keys = self.all.iter().enumerate();
        keys.filter_map(|(index, limit)| Some((index, (limit.key)(request)?))).collect()
    }

    fn decide(&self, keys: &Keys) -> Decided {
        let now = self.clock.now();
        if self.requests.fetch_add(1, Ordering::Relaxed) % 4096 == 4095 {
            self.store.sweep(16, now);
        }
        let parts: SmallVec<[[Part<'_>; 1]; 4]> =
            keys.iter().map(|(_, key)| [Part::Header(key.as_bytes())]).collect();
        let mut charges: SmallVec<[Charge<'_>; 4]> = keys
            .iter()
            .zip(&parts)
            .map(|((index, _), part)| {
                let Limit { id, quota, .. } = &self.all[*index];
                Charge::new(*id, quota, Subject(part))
            })
            .collect();
        let Decision { rejected_by, holds } = self.store.charge_all(&mut charges, now);
        let retry_after =
            rejected_by.map(|_| retry_after_seconds(store::retry_after(&charges), 0.0));
        let delay = Duration::from_micros(store::delay(&charges));
        let headers = self.tell(keys, &charges, rejected_by, retry_after);
        Decided { headers, retry_after, delay, holds }
    }

    fn tell(
        &self,
        keys: &[(usize, String)],
        charges: &[Charge<'_>],
        rejected_by: Option<usize>,
        retry_after: Option<u64>,
    ) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut told = Told::new(&mut headers);
        if let Some(seconds) = retry_after {
            told.retry_after(seconds);
        }
        let tightest = || charges.iter().min_by(|a, b| a.verdict.compare_share(&b.verdict));
        let speaker = rejected_by.map_or_else(tightest, |index| charges.get(index));
        if let Some(Charge { quota, verdict, .. }) = speaker {
            told.x_ratelimit(quota.rate().count.into(), quota, verdict, &self.clock);
        }
        let limits = keys.iter().map(|(index, _)| &self.all[*index]);
        let policy = told::policies(limits.clone().map(|limit| limit.policy.as_str()));
        let said = limits.zip(charges);
        told.ietf(policy, said.map(|(l, charge)| (l.name.as_str(), &l.quota, &charge.verdict)));
        headers
    }
}

/// Gives back what a request held, however it ends.
struct Release<B> {
    limits: Arc<Limits<B>>,
    holds: Vec<Hold>,
}

impl<B> Drop for Release<B> {
    fn drop(&mut self) {
        for hold in &self.holds {
            self.limits.store.release(hold, self.limits.clock.now());
        }
    }
}

/// A response's body that holds on to its limits until it ends.
pub struct Limited<R, B> {
    body: R,
    release: Option<Release<B>>,
}

impl<R: Default, B> Limited<R, B> {
    fn empty() -> Self {
        Self { body: R::default(), release: None }
    }
}

impl<R: Body + Unpin, B> Body for Limited<R, B> {
    type Data = R::Data;
    type Error = R::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<R::Data>, R::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) {
            self.release = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Rate;
    use bytes::Bytes;
    use http_body_util::Full;
    use std::convert::Infallible;
    use tower::{ServiceExt, service_fn};

    const START: u64 = 1_700_000_000_000_000;

    fn request(tenant: &str) -> Request<()> {
        Request::builder().header("x-tenant", tenant).body(()).unwrap()
    }

    fn tenant(request: &Request<()>) -> Option<String> {
        Some(request.headers().get("x-tenant")?.to_str().ok()?.to_owned())
    }

    async fn hello(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
        Ok(Response::new(Full::new(Bytes::from_static(b"hello"))))
    }

    #[tokio::test]
    async fn a_service_is_limited_and_its_callers_are_told() {
        let quota = Quota::token_bucket(Rate { count: 2, window: 60_000_000 }, None).unwrap();
        let clock = Clock::manual(START);
        let layer = LimitLayer::with(clock.clone(), 1000).limit("tenants", quota, tenant);
        let service = layer.layer(service_fn(hello));
        let ask = |name: &'static str| service.clone().oneshot(request(name));
        let response = ask("a").await.unwrap();
        assert_eq!(response.headers()["x-ratelimit-remaining"], "1");
        assert_eq!(response.headers()["ratelimit-policy"], "\"tenants\";q=2;w=60");
        ask("a").await.unwrap();
        let response = ask("a").await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["retry-after"], "30");
        assert_eq!(ask("b").await.unwrap().status(), StatusCode::OK);
        clock.advance(Duration::from_secs(30));
        assert_eq!(ask("a").await.unwrap().status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn what_is_in_flight_is_held_until_the_body_ends() {
        let quota = Quota::concurrency(1).unwrap();
        let layer = LimitLayer::with(Clock::manual(START), 1000).limit("all", quota, tenant);
        let service = layer.layer(service_fn(hello));
        let first = service.clone().oneshot(request("a")).await.unwrap();
        let second = service.clone().oneshot(request("a")).await.unwrap();
        assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
        drop(first);
        let third = service.clone().oneshot(request("a")).await.unwrap();
        assert_eq!(third.status(), StatusCode::OK);
    }
}
