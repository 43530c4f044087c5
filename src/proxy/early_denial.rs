//! Bans: a banned caller is turned away before anything else is done for it.

use super::address::is_in;
use super::exchange::Exchange;
use super::identify::exempt_key;
use super::refusal::Refusal;
use crate::overrides::{Ban, Why};
use crate::store::Part;
use http::Request;
use std::sync::Arc;

/// Bans of the address, before credentials are verified.
pub(super) fn address<B>(exchange: &Exchange, request: &Request<B>) -> Result<(), Refusal> {
    match find(exchange, Part::Ip(exchange.origin.counted)) {
        Some(ban) if !passes(exchange, request, &ban) => Err(refuse(exchange, &ban)),
        _ => Ok(()),
    }
}

/// Whether a ban of the address does not hold for this request. An exempt API key passes every one: it is
/// known by more than its address. A penalty bans neither an exempt address nor a trusted proxy's own;
/// an operator's ban of that very address holds.
#[cold]
fn passes<B>(exchange: &Exchange, request: &Request<B>, ban: &Ban) -> bool {
    let (snapshot, ip) = (exchange.snapshot(), exchange.origin.ip);
    let is_penalty = matches!(ban.why, Why::Penalty(_));
    let spared = [&snapshot.identity.trusted_proxies, &snapshot.exempt.ips];
    is_penalty && spared.iter().any(|networks| is_in(networks, ip)) || exempt_key(snapshot, request)
}

/// Bans of who the caller is. A penalty does not hold for an exempt caller.
pub(super) fn identity(exchange: &Exchange) -> Result<(), Refusal> {
    let Some(caller) = &exchange.caller else { return Ok(()) };
    let user = caller.user.as_deref().map(Part::User);
    let key = caller.api_key.as_deref().map(Part::ApiKey);
    for part in user.into_iter().chain(key) {
        if let Some(ban) = find(exchange, part)
            && !(caller.exempt && matches!(ban.why, Why::Penalty(_)))
        {
            return Err(refuse(exchange, &ban));
        }
    }
    Ok(())
}

#[inline]
fn find(exchange: &Exchange, part: Part<'_>) -> Option<Arc<Ban>> {
    exchange.worker.gateway.overrides.bans.find(part, exchange.started)
}

#[cold]
fn refuse(exchange: &Exchange, ban: &Ban) -> Refusal {
    let gateway = &exchange.worker.gateway;
    let metrics = ban.metrics.as_ref().unwrap_or(&gateway.metrics.operator);
    metrics.of(exchange.worker.index).banned.bump();
    let retry_after = ban.until - exchange.started;
    Refusal::Banned { limit: ban.why.limit().to_owned(), retry_after }
}
