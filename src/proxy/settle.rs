//! Costs that are known only after the admission: reserved when the request is admitted, settled before
//! the last byte of the answer is passed on.
//!
//! ```text
//! judge ── reserve ──► Settlement ── head ──► a header has the number: settled at once
//!                          │
//!                          ├─ data ──► counted, or searched for a number, as it passes
//!                          └─ end ───► settled, by how the request ended (`End`)
//! ```
//!
//! A client cannot choose a cheaper end: a number that never came because the client left costs what the
//! limit's `max` says. Only requests that reached no backend are free.

use super::byte_meter::{ByteMeter, Metered, Passed};
use super::judge::Said;
use crate::clock::Micros;
use crate::config::model::{Cost, Measure, SettledCost, Unreported};
use crate::gateway::Gateway;
use crate::json_path::{Finder, JsonPath, rounded_up};
use crate::limit::Quota;
use crate::snapshot::Limit;
use crate::store::{Charge, Hold, Settled, Store};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::oneshot;
use tokio::time::Sleep;

/// Bytes of a body that are charged at once, before they are forwarded: what a client can owe at most.
pub(crate) const PIECE: u64 = 64 << 10;

/// What an admitted request has reserved. However the exchange ends, it is settled once.
#[derive(Debug)]
pub(super) struct Settlement {
    gateway: Arc<Gateway>,
    numbers: Vec<Number>,
    /// The request's body, where a limit counts its bytes.
    uploaded: Option<Rc<ByteMeter>>,
    /// The same of the answer's.
    downloaded: Option<Rc<ByteMeter>>,
    /// The answer may lack its number for a reason that the client chose.
    chosen: bool,
    /// What a shared store has not confirmed yet.
    untold: Vec<oneshot::Receiver<()>>,
    /// What limits have counted the request as.
    pub(super) settled: Vec<(Arc<Limit>, u32)>,
}

/// A cost that the answer says.
#[derive(Debug)]
struct Number {
    hold: Hold,
    limit: Arc<Limit>,
    /// Which of the limits that spoke.
    said: usize,
    meter: Meter,
}

/// Where the number stands.
#[derive(Debug)]
enum Meter {
    Header(HeaderName),
    /// In the body; it is not searched if it cannot be read.
    Json(JsonPath, Option<Box<Finder>>),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The gateway refused it before it was sent: the request was at fault.
    Refused,
    /// No backend was reached.
    Unreached,
    /// It was sent, and the backend failed before it answered.
    NoAnswer,
    /// The backend broke its answer off.
    Failed,
    /// The answer came whole.
    Whole,
    /// The client left, did not finish its request, held its answer up until the backend gave up, or set
    /// a time that was over: by its choice there is no number. The same goes for a backend that took too
    /// long.
    Left,
}

/// What is asked of a limit at admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserve {
    /// Tokens that must be there.
    pub(crate) cost: u32,
    /// Of these, what is taken at once, if not all.
    pub(crate) up_front: Option<u32>,
    /// The cost is settled later.
    pub(crate) settles: bool,
}

impl Reserve {
    /// Puts it into a charge.
    pub(crate) fn apply(self, charge: &mut Charge<'_>) {
        (charge.cost, charge.up_front, charge.settles) = (self.cost, self.up_front, self.settles);
    }
}

/// What is reserved for a request: its cost, unless that is known only later. Of a body whose length is
/// announced all must fit now, and the first piece is charged.
#[inline(always)]
pub(crate) fn reserve(cost: &Cost, quota: &Quota, announced: Option<u64>) -> Reserve {
    match cost {
        Cost::Fixed(cost) => Reserve { cost: *cost, up_front: None, settles: false },
        Cost::Settled(SettledCost { reserve, by: Measure::RequestBytes(unit), .. }) => {
            let Some(length) = announced else {
                return Reserve { cost: *reserve, up_front: None, settles: true };
            };
            let (all, first) = (units(length, *unit), units(length.min(PIECE), *unit));
            // More than the limit ever holds is too large: there is nothing to wait for.
            let cost = if all > quota.capacity() { first.min(quota.capacity()) } else { all };
            Reserve { cost, up_front: Some(first.min(cost)), settles: true }
        }
        Cost::Settled(settled) => Reserve { cost: settled.reserve, up_front: None, settles: true },
    }
}

impl Settlement {
    /// Takes those holds that reserve a cost; the others stay.
    pub(super) fn take(
        gateway: &Arc<Gateway>,
        holds: &mut Vec<Hold>,
        said: &[Said],
        limits: &[Arc<Limit>],
        announced: Option<u64>,
    ) -> Option<Box<Self>> {
        if holds.is_empty() {
            return None;
        }
        let limit = |hold: &Hold| &limits[said[hold.charge].limit];
        let reserved = holds.extract_if(.., |hold| limit(hold).cost.is_settled());
        let (mut numbers, mut uploads, mut downloads) = (Vec::new(), Vec::new(), Vec::new());
        for hold in reserved {
            let (limit, said) = (Arc::clone(limit(&hold)), hold.charge);
            let Cost::Settled(cost) = &limit.cost else { continue };
            let number = |meter, hold, limit| Number { hold, limit, said, meter };
            match cost.by.clone() {
                Measure::ResponseHeader(name) => {
                    numbers.push(number(Meter::Header(name), hold, limit));
                }
                Measure::ResponseJson(path) => {
                    numbers.push(number(Meter::Json(path, None), hold, limit));
                }
                Measure::RequestBytes(unit) => uploads.push(Metered::new(hold, limit, said, unit)),
                Measure::ResponseBytes(unit) => {
                    downloads.push(Metered::new(hold, limit, said, unit));
                }
            }
        }
        let meter = |metered: Vec<Metered>, length| {
            (!metered.is_empty()).then(|| Rc::new(ByteMeter::new(gateway, metered, length)))
        };
        let (uploaded, downloaded) = (meter(uploads, announced), meter(downloads, None));
        if numbers.is_empty() && uploaded.is_none() && downloaded.is_none() {
            return None;
        }
        Some(Box::new(Self {
            gateway: Arc::clone(gateway),
            numbers,
            uploaded,
            downloaded,
            chosen: false,
            untold: Vec::new(),
            settled: Vec::new(),
        }))
    }

    /// Whether the body has to come as it is, so that it can be read.
    pub(super) fn reads_the_body(&self) -> bool {
        self.numbers.iter().any(|number| matches!(number.meter, Meter::Json(..)))
    }

    /// Whether a cost depends on what of the answer is still to come.
    pub(super) fn awaits_a_number(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// What charges the request's body before it is forwarded.
    pub(super) fn uploaded(&self) -> Option<Rc<ByteMeter>> {
        self.uploaded.clone()
    }

    /// Whether every limit can hold the body that was announced.
    pub(super) fn can_hold_the_body(&self) -> bool {
        self.uploaded.as_ref().is_none_or(|meter| meter.can_hold_what_was_announced())
    }

    /// The same for what a tunnel carries to the client.
    pub(super) fn downloaded(&self) -> Option<Rc<ByteMeter>> {
        self.downloaded.clone()
    }

    /// The head of the answer: what it tells is settled, so that clients are told what is left then.
    pub(super) fn head(
        &mut self,
        method: &Method,
        status: StatusCode,
        headers: &HeaderMap,
        said: &mut [Said],
    ) {
        let partial = matches!(status, StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED);
        self.chosen = partial || method == Method::HEAD || is_events(headers);
        let (mut known, now) = (Vec::new(), self.gateway.clock.now());
        self.numbers.retain_mut(|number| match &mut number.meter {
            Meter::Header(name) => {
                let cost = headers.get(&*name).and_then(self::number);
                let cost = cost.or_else(|| number.unreported(self.chosen));
                known.push((number.hold.clone(), Arc::clone(&number.limit), number.said, cost));
                false
            }
            Meter::Json(path, finder) => {
                let new = || Box::new(Finder::new(path.clone(), is_events(headers)));
                *finder = readable(headers).then(new);
                true
            }
        });
        for (hold, limit, place, cost) in known {
            if let Some(cost) = cost {
                self.settle(&hold, limit, place, cost, now, said);
            }
        }
    }

    /// The next piece of the answer's body.
    pub(super) fn data(&mut self, piece: &[u8]) {
        for number in &mut self.numbers {
            if let Meter::Json(_, Some(finder)) = &mut number.meter {
                finder.feed(piece);
            }
        }
        if let Some(downloaded) = &self.downloaded {
            downloaded.note(piece.len() as u64);
        }
    }

    /// The answer is over, or there will be none. Clients are told what is left then, if they still
    /// can be. `sent`: something of the request was given to a backend.
    pub(super) fn end(&mut self, end: End, sent: bool, said: &mut [Said]) {
        let now = self.gateway.clock.now();
        let end = if end == End::Left && !sent { End::Unreached } else { end };
        self.end_numbers(end, said);
        let bytes = [self.uploaded.take(), self.downloaded.take()];
        for passed in bytes.into_iter().flatten().flat_map(|meter| meter.end(end)) {
            let Passed { hold, limit, said: place, last, all } = passed;
            self.settle(&hold, limit, place, last, now, said);
            if let Some((_, cost)) = self.settled.last_mut() {
                *cost = all;
            }
        }
    }
}

impl Settlement {
    /// The answer, or the head of one that is followed by a tunnel, tells no more numbers.
    pub(super) fn end_numbers(&mut self, end: End, said: &mut [Said]) {
        let now = self.gateway.clock.now();
        for number in std::mem::take(&mut self.numbers) {
            if let Some(cost) = number.cost(end, self.chosen) {
                self.settle(&number.hold, number.limit, number.said, cost, now, said);
            }
        }
    }

    fn settle(
        &mut self,
        hold: &Hold,
        limit: Arc<Limit>,
        place: usize,
        cost: u32,
        now: Micros,
        said: &mut [Said],
    ) {
        let Settled { verdict, told } = self.gateway.store.settle(hold, cost, now);
        if let (Some(verdict), Some(said)) = (verdict, said.get_mut(place)) {
            said.verdict = verdict;
        }
        self.untold.extend(told);
        self.settled.push((limit, cost));
    }

    /// What has to be waited for, if anything.
    pub(super) fn telling(&mut self) -> Option<Telling> {
        if self.untold.is_empty() {
            return None;
        }
        let untold = std::mem::take(&mut self.untold);
        Some(Telling { untold, ..Telling::new(&self.gateway.store) })
    }
}

/// A shared store is being told; the last byte waits for it, but not for long.
pub(super) struct Telling {
    untold: Vec<oneshot::Receiver<()>>,
    deadline: Pin<Box<Sleep>>,
}

impl Telling {
    pub(super) fn new(store: &Store) -> Self {
        let deadline = Box::pin(tokio::time::sleep(store.deadline()));
        Self { untold: Vec::new(), deadline }
    }

    pub(super) fn add(&mut self, told: oneshot::Receiver<()>) {
        self.untold.push(told);
    }

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

impl Number {
    fn configured(&self) -> Option<&SettledCost> {
        match &self.limit.cost {
            Cost::Settled(cost) => Some(cost),
            Cost::Fixed(_) => None,
        }
    }

    /// What a request costs that ended like this; `None` leaves what was reserved.
    fn cost(&self, end: End, chosen: bool) -> Option<u32> {
        let found = match &self.meter {
            Meter::Json(_, Some(finder)) => finder.found(),
            Meter::Json(_, None) | Meter::Header(_) => None,
        };
        let cost = match end {
            End::Refused => return None,
            End::Unreached => return Some(0),
            End::Whole => return found.or_else(|| self.unreported(chosen)),
            End::NoAnswer => None,
            // It may have been on its way to more.
            End::Failed => found.map(|found| found.max(self.hold.charged())),
            End::Left => {
                let missing = self.configured().map(|cost| cost.missing(self.hold.capacity()));
                missing.map(|missing| missing.max(found.unwrap_or(0)))
            }
        };
        self.limit.metrics(0).unsettled.increment();
        cost
    }

    /// What a complete answer without a number costs; `None` leaves what was reserved. It is never free
    /// where the client chose that there is none.
    fn unreported(&self, chosen: bool) -> Option<u32> {
        let free = self.configured().is_some_and(|cost| cost.unreported == Unreported::Free);
        if free && !chosen {
            return Some(0);
        }
        self.limit.metrics(0).unsettled.increment();
        None
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
