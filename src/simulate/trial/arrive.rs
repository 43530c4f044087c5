//! What a line's request is to a configuration: who asks, and for which route.

use super::Trial;
use crate::clock::Micros;
use crate::path::normalise;
use crate::proxy::destination::host_name;
use crate::proxy::identify::satisfy;
use crate::simulate::callers::{Callers, Principal};
use crate::snapshot::Found;
use crate::traffic::{Chunk, Entry, Extra};
use http::Method;
use smallvec::SmallVec;

/// A request as a configuration sees it.
#[derive(Debug, Default)]
pub struct Arrival {
    pub(super) address: u32,
    pub(super) person: u32,
    /// The route's index; one beyond for what has none.
    pub way: u32,
    /// What the gateway itself would answer once no limit rejects it; 0: nothing.
    pub refused: u16,
    /// Nothing but the address is believed.
    pub(super) ip_only: bool,
    /// No limit was asked when it was there, and none is now.
    pub(super) shed: bool,
    /// What matters once it is over; nothing if nothing does.
    pub(super) end: Option<Box<Ending>>,
}

/// How a request ended.
#[derive(Debug, Default)]
pub(super) struct Ending {
    pub(super) duration: Micros,
    pub(super) bytes: Option<u64>,
    pub(super) request_bytes: Option<u64>,
    /// What limits counted it as, by their place among those whose cost is known only later.
    pub(super) costs: SmallVec<[(u16, u32); 2]>,
}

impl Ending {
    #[cold]
    fn of(chunk: &Chunk, entry: &Entry) -> Self {
        let costs = chunk.extras(entry).iter().filter_map(|extra| match extra {
            Extra::Cost(which, cost) => Some((*which, *cost)),
            Extra::Header(..) => None,
        });
        Self {
            duration: entry.duration.unwrap_or(0),
            bytes: entry.bytes,
            request_bytes: entry.request_bytes,
            costs: costs.collect(),
        }
    }
}

impl Arrival {
    /// Whom it is put down to.
    pub fn principal(&self, callers: &Callers) -> Principal {
        callers.principal(self.address, self.person)
    }
}

impl Trial {
    /// What a line's request is to this configuration. `own`: the log is the gateway's own.
    pub fn arrive(&mut self, chunk: &Chunk, entry: &Entry, own: bool) -> Arrival {
        let (address, person) = self.callers.find(&self.snapshot, chunk, entry, own);
        let (way, refused) = self.way(chunk, entry);
        let malformed = way as usize == self.snapshot.routes.len() && refused == 400;
        let who = self.callers.of(person);
        let require = self.snapshot.routes.get(way as usize).map(|route| route.require);
        let lacks = satisfy(require.unwrap_or_default(), &who.caller).is_err();
        Arrival {
            address,
            person,
            way,
            refused: if !malformed && (who.refused || lacks) { 401 } else { refused },
            ip_only: malformed || who.refused || lacks,
            shed: entry.shed,
            end: self.outlives[way as usize].then(|| Box::new(Ending::of(chunk, entry))),
        }
    }

    /// The route, and what the gateway answers where there is none.
    fn way(&mut self, chunk: &Chunk, entry: &Entry) -> (u32, u16) {
        let (method, target) = (chunk.bytes(entry.method), chunk.bytes(entry.target));
        let host = chunk.bytes(entry.host);
        if let Some(known) = self.ways.known(method, host, target) {
            return known;
        }
        let way = self.look_up(method, host, target).unwrap_or((self.nowhere(), 400));
        self.ways.learn(method, host, target, way);
        way
    }

    fn nowhere(&self) -> u32 {
        self.snapshot.routes.len() as u32
    }

    /// The same without a memory. Nothing: the request is malformed.
    fn look_up(&mut self, method: &[u8], host: &[u8], target: &[u8]) -> Option<(u32, u16)> {
        let target = str::from_utf8(target).ok().filter(|target| !target.is_empty())?;
        let method =
            if method.is_empty() { Method::GET } else { Method::from_bytes(method).ok()? };
        if matches!(method, Method::CONNECT | Method::TRACE) {
            return None;
        }
        // A URL has its own host.
        let scheme = |scheme: &str| {
            let begins = target.get(..scheme.len())?.eq_ignore_ascii_case(scheme);
            begins.then(|| &target[scheme.len()..])
        };
        let absolute = scheme("http://").or_else(|| scheme("https://"));
        let (host, target) = match absolute {
            Some(rest) => {
                let (host, _) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
                (host.as_bytes(), &rest[host.len()..])
            }
            None => (host, target),
        };
        if target.len() > self.snapshot.server.max_uri_bytes {
            return None;
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if !query.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let path = normalise(if path.is_empty() { "/" } else { path }).ok()?;
        let nowhere = self.nowhere();
        self.read_host(host);
        // A line that does not tell it has the one that the user names.
        let host = match host {
            [] => self.terms.host.as_deref().unwrap_or_default(),
            _ => self.last_host.1.as_deref()?,
        };
        Some(match self.snapshot.router.find(host, &path, &method) {
            Found::Route(index) => (index as u32, 0),
            Found::MethodNotAllowed(_) => (nowhere, 405),
            Found::Nothing => (nowhere, 404),
        })
    }

    /// Reads a host as routes match it.
    fn read_host(&mut self, written: &[u8]) {
        if self.last_host.0 != written {
            let host = str::from_utf8(written).ok().and_then(|host| host_name(host).ok());
            self.last_host = (written.to_vec(), host);
        }
    }
}
