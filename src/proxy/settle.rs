//! Costs that are known only when the answer is there: reserved when the request is admitted,
//! settled before the last byte of the answer is passed on.
//!
//! ```text
//! judge ── reserve ──► Settlement ── head ──► a header says it: settled at once
//!                          │
//!                          ├─ data ──► counted, or searched for a number, as it passes
//!                          └─ end ───► settled; a backend that gave no answer cost nothing
//! ```

use super::judge::Said;
use crate::clock::Micros;
use crate::config::model::{Cost, Measure};
use crate::gateway::Gateway;
use crate::json_path::{Finder, JsonPath, rounded_up};
use crate::limit::Quota;
use crate::snapshot::Limit;
use crate::store::{Hold, Store};
use crate::upstream::upload::Progress;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::oneshot;
use tokio::time::Sleep;

/// What an admitted request has reserved. However the exchange ends, it is settled once.
#[derive(Debug)]
pub(super) struct Settlement {
    gateway: Arc<Gateway>,
    owed: Vec<Owed>,
    /// Bytes of the request's body that have passed.
    uploaded: Option<Rc<Progress>>,
    /// It was given to a backend.
    sent: bool,
    /// The backend says that it failed.
    failed: bool,
    /// What a shared store has not heard yet.
    untold: Vec<oneshot::Receiver<()>>,
    /// What limits have counted the request as.
    pub(super) settled: Vec<(Arc<Limit>, u32)>,
}

/// One limit's part.
#[derive(Debug)]
struct Owed {
    hold: Hold,
    limit: Arc<Limit>,
    /// Which of the limits that spoke.
    said: usize,
    meter: Meter,
}

/// How it is found out what a request costs.
#[derive(Debug)]
enum Meter {
    Header(HeaderName),
    /// A number in the body; nobody looks for it if the body cannot be read.
    Json(JsonPath, Option<Box<Finder>>),
    RequestBytes(u64),
    ResponseBytes(Bytes),
}

/// Bytes that have passed, and how many of them cost a token.
#[derive(Debug)]
struct Bytes {
    unit: u64,
    passed: u64,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The gateway itself gave it: the request was at fault.
    Refused,
    /// There was none: the backend failed.
    NoAnswer,
    /// The backend broke off.
    Failed,
    /// In good order.
    Whole,
    /// The caller left.
    Left,
}

/// What is reserved for a request: its cost, unless that is known only later.
pub(crate) fn reserve(cost: &Cost, quota: &Quota, announced: Option<u64>) -> (u32, bool) {
    match cost {
        Cost::Fixed(cost) => (*cost, false),
        Cost::Settled { reserve, by: Measure::RequestBytes(unit) } => {
            let cost = announced.map_or(*reserve, |length| units(length, *unit));
            // What can never be there is waited for until the limit is whole, and then owed.
            (cost.min(quota.capacity()), true)
        }
        Cost::Settled { reserve, .. } => (*reserve, true),
    }
}

impl Settlement {
    /// Takes those holds that reserve a cost; the others stay.
    pub(super) fn take(
        gateway: &Arc<Gateway>,
        holds: &mut Vec<Hold>,
        said: &[Said],
        limits: &[Arc<Limit>],
    ) -> Option<Box<Self>> {
        if holds.is_empty() {
            return None;
        }
        let limit = |hold: &Hold| &limits[said[hold.charge].limit];
        let reserved = holds.extract_if(.., |hold| limit(hold).cost.is_settled());
        let owed: Vec<Owed> = reserved
            .filter_map(|hold| {
                let (limit, said) = (Arc::clone(limit(&hold)), hold.charge);
                let Cost::Settled { by, .. } = &limit.cost else { return None };
                let meter = Meter::new(by);
                Some(Owed { hold, limit, said, meter })
            })
            .collect();
        let (gateway, uploaded) = (Arc::clone(gateway), None);
        let (untold, settled) = (Vec::new(), Vec::new());
        let new = Self { gateway, owed, uploaded, sent: false, failed: false, untold, settled };
        Some(Box::new(new)).filter(|settlement| !settlement.owed.is_empty())
    }

    /// Whether the body has to come as it is, so that it can be read.
    pub(super) fn reads_the_body(&self) -> bool {
        self.owed.iter().any(|owed| matches!(owed.meter, Meter::Json(..)))
    }

    /// The request is given to a backend; its body counts as it passes.
    pub(super) fn send(&mut self, uploaded: Option<Rc<Progress>>) {
        (self.sent, self.uploaded) = (true, uploaded);
    }

    /// The head of the answer: what it tells is settled, and callers are told what is left then.
    pub(super) fn head(&mut self, status: StatusCode, headers: &HeaderMap, said: &mut [Said]) {
        let now = self.gateway.clock.now();
        let store = &self.gateway.store;
        self.owed.retain_mut(|owed| match &mut owed.meter {
            Meter::Header(name) => {
                let cost = headers.get(&*name).and_then(number);
                if let Some(cost) = owed.untold(cost, status.is_server_error()) {
                    self.settled.push((Arc::clone(&owed.limit), cost));
                    self.untold.extend(owed.settle(store, cost, now, said));
                }
                false
            }
            Meter::Json(path, finder) => {
                let new = || Box::new(Finder::new(path.clone(), is_events(headers)));
                *finder = readable(headers).then(new);
                true
            }
            Meter::RequestBytes(_) | Meter::ResponseBytes(_) => true,
        });
        self.failed = status.is_server_error();
    }

    /// The next piece of the answer's body.
    pub(super) fn data(&mut self, piece: &[u8]) {
        for owed in &mut self.owed {
            match &mut owed.meter {
                Meter::Json(_, Some(finder)) => finder.feed(piece),
                Meter::ResponseBytes(bytes) => bytes.passed += piece.len() as u64,
                Meter::Json(_, None) | Meter::Header(_) | Meter::RequestBytes(_) => {}
            }
        }
    }

    /// The answer is over, or there will be none. Callers are told what is left then, if they still
    /// can be.
    pub(super) fn end(&mut self, end: End, said: &mut [Said]) {
        let now = self.gateway.clock.now();
        let uploaded = self.uploaded.as_ref().map_or(0, |uploaded| uploaded.passed());
        for owed in std::mem::take(&mut self.owed) {
            let cost = match &owed.meter {
                _ if end == End::NoAnswer || end == End::Left && !self.sent => Some(0),
                Meter::RequestBytes(unit) => Some(units(uploaded, *unit)),
                Meter::ResponseBytes(Bytes { unit, passed }) => Some(units(*passed, *unit)),
                Meter::Header(_) => None,
                Meter::Json(..) if end == End::Refused => None, // nobody was asked
                Meter::Json(_, finder) => {
                    let found = finder.as_ref().and_then(|finder| finder.found());
                    owed.untold(found, self.failed || end == End::Failed)
                }
            };
            if let Some(cost) = cost {
                self.settled.push((Arc::clone(&owed.limit), cost));
                self.untold.extend(owed.settle(&self.gateway.store, cost, now, said));
            }
        }
    }
}

/// What a shared store is being told; the last byte waits for it, but not for long.
pub(super) struct Telling {
    untold: Vec<oneshot::Receiver<()>>,
    deadline: Pin<Box<Sleep>>,
}

impl Telling {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.untold.retain_mut(|told| Pin::new(told).poll(cx).is_pending());
        if self.untold.is_empty() { Poll::Ready(()) } else { self.deadline.as_mut().poll(cx) }
    }
}

impl std::fmt::Debug for Telling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} untold", self.untold.len())
    }
}

impl Settlement {
    /// What has to be waited for, if anything.
    pub(super) fn telling(&mut self) -> Option<Telling> {
        if self.untold.is_empty() {
            return None;
        }
        let deadline = Box::pin(tokio::time::sleep(self.gateway.store.deadline()));
        Some(Telling { untold: std::mem::take(&mut self.untold), deadline })
    }
}

/// Whoever leaves while they wait for their turn has cost nothing; later, what is known by then.
impl Drop for Settlement {
    fn drop(&mut self) {
        self.end(End::Left, &mut []);
    }
}

impl Owed {
    fn settle(
        &self,
        store: &Store,
        cost: u32,
        now: Micros,
        said: &mut [Said],
    ) -> Option<oneshot::Receiver<()>> {
        let settled = store.settle(&self.hold, cost, now);
        if let Some(verdict) = settled.verdict
            && let Some(said) = said.get_mut(self.said)
        {
            said.verdict = verdict;
        }
        settled.told
    }

    /// A cost that nobody told: nothing if the backend failed, otherwise what was reserved.
    fn untold(&self, told: Option<u32>, failed: bool) -> Option<u32> {
        if told.is_none() && !failed {
            self.limit.metrics(0).unsettled.increment();
        }
        told.or(failed.then_some(0))
    }
}

impl Meter {
    fn new(by: &Measure) -> Self {
        match by {
            Measure::ResponseHeader(name) => Self::Header(name.clone()),
            Measure::ResponseJson(path) => Self::Json(path.clone(), None),
            Measure::RequestBytes(unit) => Self::RequestBytes(*unit),
            Measure::ResponseBytes(unit) => Self::ResponseBytes(Bytes { unit: *unit, passed: 0 }),
        }
    }
}

/// One token for every unit that is begun.
pub(crate) fn units(bytes: u64, unit: u64) -> u32 {
    u32::try_from(bytes.div_ceil(unit.max(1))).unwrap_or(u32::MAX)
}

/// A number in a header, rounded up.
fn number(value: &HeaderValue) -> Option<u32> {
    value.to_str().ok()?.trim().parse().ok().and_then(rounded_up)
}

fn readable(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

fn is_events(headers: &HeaderMap) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.get(..EVENTS.len()).is_some_and(|start| start.eq_ignore_ascii_case(EVENTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_that_is_begun_costs_a_token() {
        let cases = [(0, 0), (1, 1), (1024, 1), (1025, 2), (u64::MAX, u32::MAX)];
        for (bytes, expected) in cases {
            assert_eq!(units(bytes, 1024), expected);
        }
    }

    #[test]
    fn a_header_tells_a_number() {
        let of = |text: &str| number(&HeaderValue::from_str(text).unwrap());
        assert_eq!(of("12"), Some(12));
        assert_eq!(of(" 0.2 "), Some(1));
        assert_eq!(of("1e12"), Some(u32::MAX));
        assert_eq!([of("-1"), of(""), of("many"), of("NaN")], [None; 4]);
    }
}
