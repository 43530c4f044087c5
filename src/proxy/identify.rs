//! Who the caller is, beyond an address: a user, an API key.
//!
//! A credential that is configured and presented is verified, whether the route asks for one or
//! not; a wrong one is refused. A credential that is not configured is not looked at.

use super::address::Origin;
use super::exchange::Exchange;
use super::refusal::{Credential, Refusal};
use crate::clock::Micros;
use crate::config::model::{ApiKey, ApiKeys, Attribute, KeyPlace, Require, UserSource};
use crate::digest::sha256;
use crate::snapshot::Snapshot;
use crate::token::{TokenError, Verifier};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use std::sync::Arc;

/// A caller whose credentials, if there were any, are good.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The user's name.
    pub user: Option<String>,
    /// The API key's id.
    pub api_key: Option<Arc<str>>,
    /// Index of the user's plan.
    pub user_plan: usize,
    /// Index of the key's plan.
    pub key_plan: usize,
    /// No limit applies to them.
    pub exempt: bool,
    /// Their token names a plan that nobody defined.
    pub unknown_plan: bool,
}

/// What it takes to tell who somebody is, beside what they say.
#[derive(Clone, Copy, Debug)]
pub struct Beholder<'a> {
    /// What is configured.
    pub snapshot: &'a Snapshot,
    /// Where the request comes from.
    pub origin: Origin,
    /// Whether the peer is a trusted proxy.
    pub trusted: bool,
    /// The wall clock's time, by which tokens are valid.
    pub wall: Micros,
}

/// Identifies the caller; refuses wrong credentials, and those that lack what the route requires.
pub(super) fn caller<B>(exchange: &Exchange, request: &Request<B>) -> Result<Caller, Refusal> {
    let snapshot = exchange.snapshot();
    let trusted = || exchange.peer.is_trusted(snapshot);
    let beholder = Beholder {
        snapshot,
        origin: exchange.origin,
        // It matters to a header alone.
        trusted: matches!(snapshot.identity.user, Some(UserSource::Header(_))) && trusted(),
        wall: exchange.worker.gateway.clock.wall(exchange.started),
    };
    let caller = beholder.identify(request)?;
    if caller.unknown_plan {
        exchange.worker.gateway.metrics.unknown_plans.increment();
    }
    let require = exchange.route().map(|route| route.require).unwrap_or_default();
    satisfy(require, &caller).map(|()| caller)
}

impl Beholder<'_> {
    /// Who it is; wrong credentials are refused.
    pub fn identify<B>(&self, request: &Request<B>) -> Result<Caller, Refusal> {
        let Self { snapshot, origin, .. } = *self;
        let mut caller = Caller::anonymous(snapshot, origin);
        if let Some(source) = &snapshot.identity.user {
            self.user(&mut caller, source, request.headers())?;
        }
        if let Some(keys) = &snapshot.identity.api_key
            && let Some(key) = api_key(keys, request)?
        {
            caller.exempt |= snapshot.exempt.has_key(&key.id);
            caller.key_plan = key.plan.unwrap_or(snapshot.default_plan);
            caller.api_key = Some(Arc::clone(&key.id));
        }
        Ok(caller)
    }

    fn user(
        &self,
        caller: &mut Caller,
        source: &UserSource,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        match source {
            UserSource::Header(_) if !self.trusted => Ok(()),
            UserSource::Header(name) => {
                let value = only(headers, name, "more than one user")?;
                let name = value.map(|value| str::from_utf8(value.as_bytes())).transpose();
                let name = name.map_err(|_| Refusal::Malformed("the user's name is no text"))?;
                caller.user = name.filter(|name| !name.is_empty()).map(str::to_owned);
                Ok(())
            }
            UserSource::Jwt(verifier) => self.bearer(caller, verifier, headers),
        }
    }

    fn bearer(
        &self,
        caller: &mut Caller,
        verifier: &Verifier,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let value = only(headers, &AUTHORIZATION, "more than one Authorization")?;
        // Another scheme is between the caller and the backend.
        let Some(token) = value.and_then(|value| bearer_token(value.as_bytes())) else {
            return Ok(());
        };
        let token = str::from_utf8(token).map_err(|_| TokenError::Invalid)?;
        let user = verifier.verify(token, self.wall)?;
        if let Some(name) = &user.plan {
            let plan = self.snapshot.plan(name);
            caller.unknown_plan = plan.is_none();
            caller.user_plan = plan.unwrap_or(caller.user_plan);
        }
        caller.user = Some(user.name);
        Ok(())
    }
}

/// Whether the caller has what a route requires.
pub fn satisfy(require: Require, caller: &Caller) -> Result<(), Refusal> {
    let (user, key) = (caller.user.is_some(), caller.api_key.is_some());
    match require {
        Require { either: true, .. } if user || key => Ok(()),
        Require { either: true, .. } => Err(Refusal::Missing(Credential::Either)),
        Require { user: true, .. } if !user => Err(Refusal::Missing(Credential::User)),
        Require { api_key: true, .. } if !key => Err(Refusal::Missing(Credential::ApiKey)),
        _ => Ok(()),
    }
}

/// A credential given twice could mean either: it is refused.
fn only<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    refusal: &'static str,
) -> Result<Option<&'h HeaderValue>, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(_), Some(_)) => Err(Refusal::Malformed(refusal)),
        (value, _) => Ok(value),
    }
}

/// What follows the scheme, be it nothing; `None` for another scheme.
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(b"bearer".len())?;
    let ends = rest.first().is_none_or(u8::is_ascii_whitespace);
    (ends && scheme.eq_ignore_ascii_case(b"bearer")).then(|| rest.trim_ascii())
}

/// The key that was presented. Keys are known by their SHA-256 alone, so a look-up tells nobody
/// how much of a guess was right.
#[inline(always)]
fn api_key<'k, B>(keys: &'k ApiKeys, request: &Request<B>) -> Result<Option<&'k ApiKey>, Refusal> {
    let presented = match &keys.place {
        KeyPlace::Header(name) => {
            only(request.headers(), name, "more than one API key")?.map(HeaderValue::as_bytes)
        }
        KeyPlace::Query(name) => query_parameter(request.uri().query().unwrap_or(""), name)?,
    };
    let Some(presented) = presented else {
        return Ok(None);
    };
    keys.keys.get(&sha256(presented)).map(Some).ok_or(Refusal::UnknownKey)
}

/// Whether the request presents the API key of an exempt caller.
pub(super) fn exempt_key<B>(snapshot: &Snapshot, request: &Request<B>) -> bool {
    let keys = snapshot.identity.api_key.as_ref().filter(|_| !snapshot.exempt.api_keys.is_empty());
    let key = keys.and_then(|keys| api_key(keys, request).ok().flatten());
    key.is_some_and(|key| snapshot.exempt.has_key(&key.id))
}

/// A parameter's value as it stands in the query; keys need no escapes.
pub(crate) fn query_parameter<'q>(query: &'q str, name: &str) -> Result<Option<&'q [u8]>, Refusal> {
    let mut values =
        query.split('&').filter_map(|pair| pair.split_once('=')).filter(|(n, _)| *n == name);
    match (values.next(), values.next()) {
        (Some(_), Some(_)) => Err(Refusal::Malformed("more than one API key")),
        (value, _) => Ok(value.map(|(_, value)| value.as_bytes())),
    }
}

impl Caller {
    /// Index of the plan that decides a limit by `by`: the key's where keys count, else the
    /// user's.
    pub fn plan(&self, by: &[Attribute]) -> usize {
        let by_key = by.contains(&Attribute::ApiKey);
        if by_key { self.key_plan } else { self.user_plan }
    }

    /// Somebody of whom only the address is known.
    pub fn anonymous(snapshot: &Snapshot, origin: Origin) -> Self {
        Self {
            user: None,
            api_key: None,
            user_plan: snapshot.default_plan,
            key_plan: snapshot.default_plan,
            exempt: super::address::is_in(&snapshot.exempt.ips, origin.ip),
            unknown_plan: false,
        }
    }
}
