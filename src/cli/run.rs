//! `sluice run`: the gateway itself.

use super::Outcome;
use crate::handover::{self, Inherited};
use crate::server::{Options, Server};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::path::Path;

pub(super) fn run(config: &Path, workers: Option<usize>) -> Outcome {
    raise_file_limit();
    let (inherited, predecessor) = Inherited::from_environment();
    let options = Options { workers, signals: true, inherited, ..Options::new(config) };
    let server = Server::start(options)?;
    // Scripts that let the kernel choose ports read these lines: listeners in the order of the file,
    // the admin listener, and `ready` when there is nothing more to come.
    for address in server.addresses() {
        tracing::info!("listening on {address}");
    }
    if let Some(address) = server.admin_address() {
        tracing::info!("admin on {address}");
    }
    tracing::info!("ready");
    handover::say_ready(predecessor);
    Ok(server.wait()?)
}

/// Every connection is a file descriptor, and shells allow 1024 of them; the system allows more.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
