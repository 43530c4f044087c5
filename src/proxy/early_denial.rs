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
    match gateway.overrides.bans.find(part, exchange.started) {
        None => Ok(()),
        Some(ban) => {
            let metrics = ban.metrics.as_ref().unwrap_or(&gateway.metrics.operator);
            metrics.of(exchange.worker.index).banned.bump();
            let retry_after = ban.until - exchange.started;
            Err(Refusal::Banned { limit: ban.why.limit().to_owned(), retry_after })
        }
    }
}
