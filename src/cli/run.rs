//! `sluice run`: the gateway itself.

use super::Outcome;
use crate::server::{Options, Server};
use std::path::Path;

pub(super) fn run(config: &Path, workers: Option<usize>) -> Outcome {
    let options = Options { workers, signals: true, ..Options::new(config) };
    let server = Server::start(options)?;
    for address in server.addresses() {
        tracing::info!("listening on {address}");
    }
    if let Some(address) = server.admin_address() {
        tracing::info!("admin on {address}");
    }
    server.wait();
    Ok(())
}
