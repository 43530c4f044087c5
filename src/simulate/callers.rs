//! Who asks, as a configuration sees it: everybody once, and known by a number from then on.

use crate::config::model::{Attribute, KeyPlace, UserSource};
use crate::digest::sha256;
use crate::proxy::address::{self, Origin, X_FORWARDED_FOR, cut, is_in};
use crate::proxy::identify::{Caller, query_parameter};
use crate::snapshot::Snapshot;
use crate::traffic::{Chunk, Entry, Extra, Span};
use foldhash::fast::RandomState;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Names by their numbers.
#[derive(Debug, Default)]
pub(super) struct Names {
    numbers: HashMap<Arc<str>, u32, RandomState>,
    all: Vec<Arc<str>>,
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let (name, number): (Arc<str>, _) = (name.into(), self.all.len() as u32);
        self.all.push(Arc::clone(&name));
        self.numbers.insert(name, number);
        number
    }

    /// The name of this number.
    fn name(&self, number: u32) -> &str {
        &self.all[number as usize]
    }
}

/// An address that requests came from.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// What limits count by.
    pub counted: IpAddr,
    /// No limit applies to it.
    pub exempt: bool,
    /// It is a trusted proxy's own.
    pub proxy: bool,
}

/// A caller beyond an address, with everything that limits count by.
#[derive(Debug)]
pub struct Person {
    /// As the gateway knows them.
    pub caller: Caller,
    /// Headers that limits count by.
    pub headers: HeaderMap,
    /// Their credentials are wrong.
    pub refused: bool,
    user: u32,
    api_key: u32,
    values: SmallVec<[u32; 1]>,
}

/// Somebody of whom only the address is known, and somebody whose credentials are wrong.
const ANONYMOUS: u32 = 0;
const REFUSED: u32 = 1;

/// Whom a request is put down to: the key if there is one, else the user, else the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// An address.
    Ip(u32),
    /// A user.
    User(u32),
    /// An API key.
    ApiKey(u32),
}

/// Everybody who asks.
#[derive(Debug)]
pub struct Callers {
    /// By what limits count by: of IPv6, nobody remembers each address.
    numbers: HashMap<IpAddr, u32, RandomState>,
    /// The same of those in IPv6 that no limit applies to: their neighbours may be limited.
    exempt: HashMap<IpAddr, u32, RandomState>,
    proxies: HashMap<IpAddr, u32, RandomState>,
    addresses: Vec<Address>,
    known: HashMap<Box<[u8]>, u32, RandomState>,
    people: Vec<Person>,
    users: Names,
    api_keys: Names,
    values: Names,
    /// Headers that limits count by, in the order of the log's extras.
    headers: Vec<HeaderName>,
    /// Keys by their ids, and their plans.
    ids: HashMap<Arc<str>, Option<usize>>,
    /// Keys that nobody knows are taken for good.
    accepts_any_key: bool,
    /// What is known of a person, written out.
    scratch: Vec<u8>,
    /// Requests of a trusted proxy of which nobody knows for whom.
    pub proxied: u64,
    /// Requests with a key that nobody knows.
    pub unknown_keys: u64,
}

impl Callers {
    pub(super) fn new(
        snapshot: &Snapshot,
        headers: Vec<HeaderName>,
        accepts_any_key: bool,
    ) -> Self {
        let anonymous = |refused| Person {
            caller: nobody(snapshot),
            headers: HeaderMap::new(),
            refused,
            user: u32::MAX,
            api_key: u32::MAX,
            values: SmallVec::from_elem(u32::MAX, headers.len()),
        };
        let keys = snapshot.identity.api_key.iter().flat_map(|keys| keys.keys.values());
        Self {
            numbers: HashMap::default(),
            exempt: HashMap::default(),
            proxies: HashMap::default(),
            addresses: Vec::new(),
            known: HashMap::default(),
            people: vec![anonymous(false), anonymous(true)],
            users: Names::default(),
            api_keys: Names::default(),
            values: Names::default(),
            ids: keys.map(|key| (Arc::clone(&key.id), key.plan)).collect(),
            headers,
            accepts_any_key,
            scratch: Vec::new(),
            proxied: 0,
            unknown_keys: 0,
        }
    }

    /// Where a line's request came from, and who it was: their numbers.
    pub(super) fn find(
        &mut self,
        snapshot: &Snapshot,
        chunk: &Chunk,
        entry: &Entry,
        own: bool,
    ) -> (u32, u32) {
        let ip = if own { entry.ip } else { self.caller_ip(snapshot, chunk, entry) };
        let address = self.address_of(snapshot, ip);
        (address, self.person(snapshot, chunk, entry, own))
    }

    /// Trusted proxies tell for whom they ask.
    fn caller_ip(&mut self, snapshot: &Snapshot, chunk: &Chunk, entry: &Entry) -> IpAddr {
        let trusted = &snapshot.identity.trusted_proxies;
        if trusted.is_empty() || !is_in(trusted, entry.ip) {
            return entry.ip;
        }
        let mut headers = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_bytes(chunk.bytes(entry.forwarded_for))
            && !value.is_empty()
        {
            headers.insert(X_FORWARDED_FOR.clone(), value);
        } else {
            self.proxied += 1;
        }
        address::x_forwarded_for(entry.ip, &headers, trusted)
    }

    fn address_of(&mut self, snapshot: &Snapshot, ip: IpAddr) -> u32 {
        let counted = cut(ip, snapshot.identity.ipv6_prefix);
        let is_exempt = || is_in(&snapshot.exempt.ips, ip);
        let is_proxy = || is_in(&snapshot.identity.trusted_proxies, ip);
        // Others of the same network may be neither.
        let known = match ip {
            IpAddr::V6(_) if is_exempt() => &mut self.exempt,
            IpAddr::V6(_) if is_proxy() => &mut self.proxies,
            _ => &mut self.numbers,
        };
        *known.entry(counted).or_insert_with(|| {
            let (exempt, proxy) = (is_exempt(), is_proxy());
            self.addresses.push(Address { counted, exempt, proxy });
            self.addresses.len() as u32 - 1
        })
    }

    fn person(&mut self, snapshot: &Snapshot, chunk: &Chunk, entry: &Entry, own: bool) -> u32 {
        let identity = &snapshot.identity;
        // Our own log says 400 or 401 of credentials that nobody was asked about.
        if own && matches!(entry.status, 400 | 401) && !entry.upstream {
            return REFUSED;
        }
        let user = if identity.user.is_some() { entry.user } else { Span::NONE };
        let (mut key, mut asked) = (Span::NONE, None);
        if let Some(keys) = &identity.api_key {
            key = entry.api_key;
            if let (true, KeyPlace::Query(name)) = (key.is_none(), &keys.place) {
                let target = str::from_utf8(chunk.bytes(entry.target)).unwrap_or_default();
                let query = target.split_once('?').map_or("", |(_, query)| query);
                match query_parameter(query, name) {
                    Ok(found) => asked = found,
                    Err(_) => return REFUSED,
                }
            }
        }
        let extras = chunk.extras(entry);
        if user.is_none() && key.is_none() && asked.is_none() && extras.is_empty() {
            return ANONYMOUS;
        }
        let plan = if user.is_none() { Span::NONE } else { entry.plan };
        self.scratch.clear();
        for text in [chunk.bytes(user), chunk.bytes(plan), chunk.bytes(key), asked.unwrap_or(b"")] {
            write_out(&mut self.scratch, text);
        }
        for extra in extras {
            if let Extra::Header(which, value) = extra {
                self.scratch.extend_from_slice(&which.to_le_bytes());
                write_out(&mut self.scratch, chunk.bytes(*value));
            }
        }
        if let Some(number) = self.known.get(&*self.scratch) {
            return *number;
        }
        let key = chunk.text(key).map_or(Presented::Nothing, |key| Presented::Told(key.into()));
        let key = asked.map_or(key, |raw| Presented::Itself(raw.to_vec()));
        self.introduce(snapshot, chunk, extras, chunk.text(user), chunk.text(plan), &key)
    }

    /// Somebody who was not there before.
    #[cold]
    fn introduce(
        &mut self,
        snapshot: &Snapshot,
        chunk: &Chunk,
        extras: &[Extra],
        user: Option<std::borrow::Cow<'_, str>>,
        plan: Option<std::borrow::Cow<'_, str>>,
        key: &Presented,
    ) -> u32 {
        let mut person = Person {
            caller: nobody(snapshot),
            headers: HeaderMap::new(),
            refused: false,
            user: u32::MAX,
            api_key: u32::MAX,
            values: SmallVec::from_elem(u32::MAX, self.headers.len()),
        };
        let caller = &mut person.caller;
        if let Some(name) = user {
            person.user = self.users.number(&name);
            caller.user = Some(name.into_owned());
            // Only a token tells a plan.
            if matches!(snapshot.identity.user, Some(UserSource::Jwt(_))) {
                let plan = plan.and_then(|plan| snapshot.plan(&plan));
                caller.user_plan = plan.unwrap_or(caller.user_plan);
            }
        }
        if let Some((id, plan)) = self.identify(snapshot, key) {
            caller.exempt |= snapshot.exempt.has_key(&id);
            caller.key_plan = plan.unwrap_or(caller.key_plan);
            person.api_key = self.api_keys.number(&id);
            caller.api_key = Some(id);
        } else if !matches!(key, Presented::Nothing) {
            // Whoever guesses keys is not remembered by each of them.
            self.unknown_keys += 1;
            return REFUSED;
        }
        for extra in extras {
            let Extra::Header(which, value) = extra else { continue };
            let (name, bytes) = (&self.headers[usize::from(*which)], chunk.bytes(*value));
            if let Ok(header) = HeaderValue::from_bytes(bytes) {
                let value = String::from_utf8_lossy(bytes);
                person.values[usize::from(*which)] = self.values.number(&value);
                person.headers.insert(name.clone(), header);
            }
        }
        let number = self.people.len() as u32;
        self.people.push(person);
        self.known.insert(self.scratch.as_slice().into(), number);
        number
    }

    /// The key's id and plan; nothing if nobody knows it.
    fn identify(&self, snapshot: &Snapshot, key: &Presented) -> Option<(Arc<str>, Option<usize>)> {
        let (told, raw) = match key {
            Presented::Nothing => return None,
            Presented::Told(told) => (Some(told), told.as_bytes()),
            Presented::Itself(raw) => (None, raw.as_slice()),
        };
        if let Some((id, plan)) = told.and_then(|id| self.ids.get_key_value(id.as_str())) {
            return Some((Arc::clone(id), *plan));
        }
        let digest = sha256(raw);
        let keys = snapshot.identity.api_key.as_ref()?;
        if let Some(key) = keys.keys.get(&digest) {
            return Some((Arc::clone(&key.id), key.plan));
        }
        // A key itself is nobody's business.
        let name = told.cloned().unwrap_or_else(|| {
            format!("sha256:{:02x}{:02x}{:02x}{:02x}…", digest[0], digest[1], digest[2], digest[3])
        });
        self.accepts_any_key.then(|| (name.into(), None))
    }

    /// The address of this number.
    pub fn address(&self, number: u32) -> &Address {
        &self.addresses[number as usize]
    }

    /// The person of this number.
    pub fn of(&self, number: u32) -> &Person {
        &self.people[number as usize]
    }

    /// Whom a request is put down to.
    pub fn principal(&self, address: u32, person: u32) -> Principal {
        let Person { api_key, user, .. } = self.of(person);
        match (*api_key, *user) {
            (u32::MAX, u32::MAX) => Principal::Ip(address),
            (u32::MAX, user) => Principal::User(user),
            (api_key, _) => Principal::ApiKey(api_key),
        }
    }

    /// What a caller is to an attribute: a number.
    #[inline]
    pub fn attribute(&self, attribute: &Attribute, address: u32, person: u32) -> u32 {
        match attribute {
            Attribute::Ip => address,
            Attribute::User => self.of(person).user,
            Attribute::ApiKey => self.of(person).api_key,
            Attribute::Header(name) => {
                let which = self.headers.iter().position(|header| header == name);
                which.map_or(u32::MAX, |which| self.of(person).values[which])
            }
        }
    }

    /// Whether any line has told this of its caller.
    pub fn knows(&self, attribute: &Attribute) -> bool {
        match attribute {
            Attribute::Ip => true,
            Attribute::User => !self.users.all.is_empty(),
            Attribute::ApiKey => !self.api_keys.all.is_empty(),
            Attribute::Header(name) => {
                let which = self.headers.iter().position(|header| header == name);
                which.is_some_and(|which| self.people.iter().any(|p| p.values[which] != u32::MAX))
            }
        }
    }

    /// What such a number stands for, as it is written in logs and in the admin API.
    pub fn written(&self, attribute: &Attribute, number: u32) -> String {
        match attribute {
            Attribute::Ip => format!("ip:{}", self.address(number).counted),
            Attribute::User => format!("user:{}", self.users.name(number)),
            Attribute::ApiKey => format!("api_key:{}", self.api_keys.name(number)),
            Attribute::Header(_) => format!("header:{}", self.values.name(number)),
        }
    }

    /// The same of whom requests are put down to.
    pub fn name(&self, principal: Principal) -> String {
        match principal {
            Principal::Ip(number) => self.written(&Attribute::Ip, number),
            Principal::User(number) => self.written(&Attribute::User, number),
            Principal::ApiKey(number) => self.written(&Attribute::ApiKey, number),
        }
    }
}

/// A key as it was presented.
enum Presented {
    Nothing,
    /// The log tells its id, or the key itself.
    Told(String),
    /// The key itself.
    Itself(Vec<u8>),
}

/// Somebody without an address: whether that is exempt is known of addresses.
fn nobody(snapshot: &Snapshot) -> Caller {
    let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let caller = Caller::anonymous(snapshot, Origin { ip: nowhere, counted: nowhere });
    Caller { exempt: false, ..caller }
}

fn write_out(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text);
}
