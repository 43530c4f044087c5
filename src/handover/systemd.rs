//! What systemd is told (`Type=notify`). Nothing depends on it.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};

/// The process is ready.
pub(super) fn ready() {
    notify(&format!("READY=1\nMAINPID={}\n", std::process::id()));
}

/// The process is about to end.
pub(super) fn stopping() {
    notify("STOPPING=1\n");
}

fn notify(text: &str) {
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match name.strip_prefix('@') {
        Some(name) => UnixAddress::from_abstract_name(name),
        None => UnixAddress::from_pathname(&name),
    };
    let sent = address.and_then(|address| {
        UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(drop)
    });
    if let Err(error) = sent {
        tracing::warn!("cannot tell NOTIFY_SOCKET: {error}");
    }
}
