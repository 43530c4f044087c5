//! What is known of one request while it is under way.

use super::accept::Peer;
use super::address::Origin;
use super::byte_meter::ByteMeter;
use super::chunks::Framed;
use super::destination::Destination;
use super::identify::Caller;
use super::in_flight::Room;
use super::judge::{self, Admission, Judgement};
use super::leaving::{Custody, Obligation};
use super::present::Present;
use super::record::Record;
use super::refusal::Refusal;
use super::settle::{End, Settlement, Telling};
use crate::clock::Micros;
use crate::config::model::{Layer, OnLeave};
use crate::incoming::Receiving;
use crate::limit::Verdict;
use crate::snapshot::{Found, Limits, Route, Snapshot};
use crate::trace::{Said, Trace};
use crate::upgrade::Upgrade;
use crate::upstream::answer::Head;
use crate::upstream::{Fault, InFlight};
use crate::worker::{Generation, Worker};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Version};
use http_body::Body;
use smallvec::SmallVec;
use std::cell::Cell;
use std::rc::Rc;

pub(super) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(super) static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// One request under way. The response body owns it until its end.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) worker: Rc<Worker>,
    pub(super) peer: Rc<Peer>,
    pub(super) generation: Rc<Generation>,
    /// When the head was read.
    pub(super) started: Micros,
    /// Every limit decides by this moment: when the head was read, or when there was room for it.
    pub(super) decides: Micros,
    /// Where there is room for it.
    pub(super) room: Room,
    pub(super) origin: Origin,
    /// `None` until identified, and for callers whose request or credentials are bad.
    pub(super) caller: Option<Caller>,
    pub(super) judgement: Judgement,
    pub(super) admission: Option<Admission>,
    /// What is to be settled before the last byte of the answer.
    pub(super) settlement: Option<Box<Settlement>>,
    /// Where it is under way, once somewhere was picked and until its answer has ended.
    pub(super) endpoint: Option<InFlight>,
    /// What is known of it outside of its future, where it outlives its client.
    pub(super) custody: Option<Rc<Custody>>,
    /// Something of it was given to a backend.
    sent: Cell<bool>,
    /// Its headers once it was given to a backend, where limits look at headers: a charge that is given
    /// back is found by them.
    pub(super) headers: Option<HeaderMap>,
    /// How often it was sent.
    pub(super) attempts: u32,
    /// Which headers there are.
    pub(super) present: Present,
    /// Speaks gRPC, and is to be refused in its terms.
    pub(super) grpc: bool,
    /// How long the request's body says it is; nothing if there is none.
    pub(super) announced: Option<u64>,
    /// No body is in the way of the connection's next request. Over HTTP/2 none ever is.
    pub(super) no_body: bool,
    /// What the caller wants to switch to.
    pub(super) upgrade: Option<Box<Upgrade>>,
    /// What the caller sends through a tunnel over HTTP/2.
    pub(super) tunnelled: Option<Receiving>,
    /// How the caller speaks.
    pub(super) version: Version,
    /// Interim answers so far.
    interims: Cell<u8>,
    pub(super) method: Method,
    /// What it is called.
    pub(super) trace: Trace,
    /// What is noted of it.
    pub(super) record: Record,
    destination: Option<Destination>,
    found: Found,
}

impl Exchange {
    /// On the heap from the start: it is handed on from step to step, and ends up in the answer's
    /// body.
    pub(super) fn begin<B: Body>(
        worker: Rc<Worker>,
        peer: Rc<Peer>,
        request: &Request<B>,
        upgrade: Option<Box<Upgrade>>,
    ) -> Box<Self> {
        worker.metrics().add_in_flight(1);
        peer.activity.request_began();
        let generation = worker.generation();
        let started = worker.gateway.clock.now();
        let present = Present::of(request.headers());
        if request.version() != Version::HTTP_2 {
            peer.account_for(&worker.last_read.borrow(), framed(present, request.body()));
        }
        let said = said(present, request.headers(), &peer, &generation.snapshot);
        let asked = || present.has(Present::UPGRADE).then(|| Upgrade::asked(request)).flatten();
        Box::new(Self {
            origin: Origin { ip: peer.ip, counted: peer.ip },
            worker,
            peer,
            generation,
            started,
            decides: started,
            room: Room::default(),
            caller: None,
            judgement: Judgement::default(),
            admission: None,
            settlement: None,
            endpoint: None,
            custody: None,
            sent: Cell::new(false),
            headers: None,
            attempts: 0,
            grpc: present.has(Present::CONTENT_TYPE) && is_grpc(request),
            present,
            announced: request.body().size_hint().exact(),
            no_body: request.body().is_end_stream() || request.version() == Version::HTTP_2,
            upgrade: upgrade.or_else(asked),
            tunnelled: None,
            version: request.version(),
            interims: Cell::new(0),
            method: request.method().clone(),
            trace: Trace::new(said),
            record: Record::default(),
            destination: None,
            found: Found::Nothing,
        })
    }

    pub(super) fn destination(&self) -> Option<&Destination> {
        self.destination.as_ref()
    }

    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.generation.snapshot
    }

    pub(super) fn route(&self) -> Option<&Route> {
        match self.found {
            Found::Route(index) => Some(&self.snapshot().routes[index]),
            _ => None,
        }
    }

    /// The limits that guard this request.
    pub(super) fn limits(&self) -> &Limits {
        self.limits_in(&self.generation)
    }

    /// The same, borrowed from the generation alone.
    pub(super) fn limits_in<'g>(&self, generation: &'g Generation) -> &'g Limits {
        match self.found {
            Found::Route(index) => &generation.snapshot.routes[index].limits,
            _ => &generation.snapshot.guards,
        }
    }

    /// Finds the route; whether there is one is asked after the limits.
    pub(super) fn find_route(&mut self, destination: Destination, method: &Method) {
        self.found = self.snapshot().router.find(&destination.host, destination.path(), method);
        self.destination = Some(destination);
    }

    /// Tells the caller what the backend says before its answer. Nobody asked it to say 100, since
    /// `Expect` is not passed on.
    pub(super) fn interim(&self, head: Head) {
        /// More of them is a backend that has gone wild.
        const MOST: u8 = 32;
        if self.client_has_left() {
            return;
        }
        let mut waiting = self.peer.interim.borrow_mut();
        let understood = self.version > Version::HTTP_10 && head.status != StatusCode::CONTINUE;
        if understood && self.interims.get() < MOST {
            self.interims.set(self.interims.get() + 1);
            let Head { mut headers, private, .. } = head;
            for name in private.into_iter().chain([CONTENT_LENGTH]) {
                headers.remove(name);
            }
            waiting.push(Head { headers, private: SmallVec::new(), ..head });
        }
    }

    /// Whether its connection ends with the answer, because the gateway does.
    pub(super) fn is_last_of_its_connection(&self) -> bool {
        self.worker.is_leaving() && self.version != Version::HTTP_2
    }

    /// Whether the caller may have heard something of the backend already.
    pub(super) fn has_told(&self) -> bool {
        self.interims.get() > 0
    }

    /// The answer has ended as it should.
    pub(super) fn leave_endpoint(&mut self) {
        self.leave_upstream();
        self.endpoint.take().iter().for_each(InFlight::went_well);
    }

    /// The answer broke off, and it was not the caller who did it.
    #[cold]
    pub(super) fn backend_broke(&mut self) {
        self.leave_upstream();
        if let (Some(endpoint), Some(route)) = (self.endpoint.take(), self.route()) {
            let now = self.worker.gateway.clock.now();
            let caller = judge::witness(self);
            self.snapshot().upstreams[route.upstream].failed(&endpoint, Fault::Broke, caller, now);
        }
    }

    /// The answer is there: what could not be told before it is not told after it.
    pub(super) fn forget_interim(&self) {
        if !self.peer.activity.is_multiplexed() && !self.peer.activity.is_clean() {
            self.peer.interim.borrow_mut().clear();
        }
    }

    /// The route's index and what led there, or why there is none.
    pub(super) fn found(&self) -> Result<(usize, &Destination), Refusal> {
        match (&self.found, &self.destination) {
            (Found::Route(index), Some(destination)) => Ok((*index, destination)),
            (Found::MethodNotAllowed(allow), _) => Err(Refusal::MethodNotAllowed(allow.clone())),
            _ => Err(Refusal::NoRoute),
        }
    }

    /// What becomes of the request if its client leaves.
    pub(super) fn on_leave(&self) -> OnLeave {
        let upstream = self.route().map(|route| &self.snapshot().upstreams[route.upstream]);
        upstream.map_or(OnLeave::default(), |upstream| upstream.config.on_leave)
    }

    /// From now on the request outlives its client.
    pub(super) fn give_into(&mut self, custody: &Rc<Custody>) {
        if let Some(admission) = &mut self.admission {
            admission.give_into(custody);
        }
        self.custody = Some(Rc::clone(custody));
    }

    /// Whether a cost or a permit depends on what becomes of the request at its backend.
    pub(super) fn owes_its_answer(&self) -> bool {
        let number = self.settlement.as_ref().is_some_and(|s| s.awaits_a_number());
        number || self.admission.is_some() || self.room.has_place()
    }

    /// Whether its client has left.
    pub(super) fn client_has_left(&self) -> bool {
        self.custody.as_ref().is_some_and(|custody| custody.has_left())
    }

    /// A backend is being given the request. Says whether one had been given it before.
    pub(super) fn reach(&self) -> bool {
        if let Some(custody) = &self.custody {
            custody.owes(Obligation::Answer);
        }
        self.sent.replace(true)
    }

    /// The backend took nothing: it is as it was before.
    pub(super) fn unreach(&self, before: bool) {
        self.sent.set(before);
        if let Some(custody) = self.custody.as_ref().filter(|_| !before) {
            custody.owes(Obligation::Nothing);
        }
    }

    /// The gateway gives the request up while its backend may be working on it: its permits stay taken for
    /// a moment.
    #[cold]
    pub(super) fn break_off(&self) {
        self.custody.iter().for_each(|custody| custody.break_off());
    }

    /// Whether something of the request was given to a backend.
    pub(super) fn was_sent(&self) -> bool {
        self.sent.get()
    }

    /// What charges the bytes that the client sends, and those that it gets.
    pub(super) fn byte_meters(&self) -> (Option<Rc<ByteMeter>>, Option<Rc<ByteMeter>>) {
        let settlement = self.settlement.as_ref();
        (settlement.and_then(|s| s.uploaded()), settlement.and_then(|s| s.downloaded()))
    }

    /// A limit that counts bytes is used up in the middle of them: which limit, and what it said. It is the
    /// one that rejects the request, although it was admitted.
    #[cold]
    pub(super) fn note_used_up(&mut self) -> Option<(usize, Verdict)> {
        let (uploaded, downloaded) = self.byte_meters();
        let refused = [uploaded, downloaded].into_iter().flatten().find_map(|m| m.refused());
        let (index, verdict) = refused?;
        let verdict = verdict?;
        self.judgement.rejected_by = Some(index);
        self.judgement.said[index].verdict = verdict;
        let said = &self.judgement.said[index];
        let limit = &self.limits()[said.limit];
        limit.metrics(said.plan).of(self.worker.index).rejected.bump();
        Some((said.limit, verdict))
    }

    /// The same for the body of a request.
    #[cold]
    pub(super) fn over_limit(&mut self) -> Refusal {
        let Some((limit, verdict)) = self.note_used_up() else { return Refusal::StoreAway };
        let retry_after = verdict.retry_after();
        match self.limits()[limit].layer {
            Layer::Global => Refusal::SystemLimited { retry_after },
            _ => Refusal::Limited { retry_after },
        }
    }

    /// Settles what the head of the answer says.
    pub(super) fn settle_by_head(&mut self, status: StatusCode, headers: &HeaderMap) {
        if let Some(settlement) = &mut self.settlement {
            settlement.head(&self.method, status, headers, &mut self.judgement.said);
        }
    }

    /// Settles costs that the answer tells, where bytes are still to come.
    pub(super) fn settle_numbers(&mut self, end: End) {
        if let Some(settlement) = &mut self.settlement {
            settlement.end_numbers(end, &mut self.judgement.said);
        }
    }

    /// Settles what is still owed. What a shared store has not heard yet is returned.
    pub(super) fn settle(&mut self, end: End) -> Option<Telling> {
        let mut settlement = self.settlement.take()?;
        settlement.end(end, self.sent.get(), &mut self.judgement.said);
        self.record.costs = std::mem::take(&mut settlement.settled);
        settlement.telling()
    }
}

/// What the caller says that the request is called; nothing that is said twice.
fn said(present: Present, headers: &HeaderMap, peer: &Peer, snapshot: &Snapshot) -> Option<Said> {
    if !present.has(Present::TRACEPARENT) && !present.has(Present::X_REQUEST_ID) {
        return None;
    }
    let only = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    Some(Said {
        request_id: only(&X_REQUEST_ID).and_then(Said::request_id),
        parent: only(&TRACEPARENT).and_then(Said::parent),
        trusted: peer.is_trusted(snapshot),
    })
}

fn framed(present: Present, body: &impl Body) -> Framed {
    match body.size_hint().exact() {
        _ if present.has(Present::TRANSFER_ENCODING) => Framed::Chunks,
        Some(length @ 1..) => Framed::Length(length),
        _ => Framed::Not,
    }
}

/// A POST over HTTP/2 whose content type is `application/grpc`, with or without `+proto` and parameters.
fn is_grpc<B>(request: &Request<B>) -> bool {
    let mut kinds = request.headers().get_all(CONTENT_TYPE).iter().map(HeaderValue::as_bytes);
    let kind = kinds.next().filter(|_| kinds.next().is_none());
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    let is_kind = rest.is_some_and(|rest| rest.first().is_none_or(|byte| b"+;".contains(byte)));
    is_kind && request.version() == Version::HTTP_2 && request.method() == Method::POST
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.finish(0, false);
    }
}
