//! Callers who are known to be turned away: nothing else is done for them.

use super::exchange::Exchange;
use super::refusal::Refusal;
use crate::store::Part;

/// By their address, before anything is read.
pub(super) fn address(exchange: &Exchange) -> Result<(), Refusal> {
    deny(exchange, Part::Ip(exchange.origin.counted))
}

/// By who they are.
pub(super) fn identity(exchange: &Exchange) -> Result<(), Refusal> {
    let Some(caller) = &exchange.caller else { return Ok(()) };
    if let Some(user) = &caller.user {
        deny(exchange, Part::User(user))?;
    }
    if let Some(id) = &caller.api_key {
        deny(exchange, Part::ApiKey(id))?;
    }
    Ok(())
}

fn deny(exchange: &Exchange, part: Part<'_>) -> Result<(), Refusal> {
    let gateway = &exchange.worker.gateway;
    match gateway.bans.find(part, exchange.started) {
        None => Ok(()),
        Some((limit, retry_after)) => {
            gateway.metrics.limit(&limit).banned.increment();
            Err(Refusal::Banned { limit, retry_after })
        }
    }
}
