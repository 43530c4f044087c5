//! Listening sockets that outlive a process, so that a new one takes over without a caller noticing.
//!
//! Sockets come in as systemd passes them (`LISTEN_FDS`), from systemd or from the gateway before
//! this one; those whose address is configured are used instead of binding it anew. On SIGUSR2 a
//! gateway starts its own command line again, which is a new binary if the file was replaced, gives
//! it its sockets, and waits for its word. Both accept for a moment; then the old one finishes what
//! it has and ends. A successor that does not start changes nothing.

use command_fds::{CommandFdExt, FdMapping};
use listenfd::ListenFd;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::process::{Child, Command};
use std::time::Duration;

/// The first file descriptor that systemd passes.
const FIRST: i32 = 3;

/// Where a successor says that it is ready.
const PREDECESSOR: &str = "SLUICE_PREDECESSOR";

/// How long a successor may take, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// Sockets that somebody else has bound.
#[derive(Debug, Default)]
pub struct Inherited(Vec<TcpListener>);

impl Inherited {
    /// What was passed to this process. Asked once, before anything else is opened.
    pub fn from_environment() -> Self {
        let mut passed = ListenFd::from_env();
        let sockets = (0..passed.len()).filter_map(|index| match passed.take_tcp_listener(index) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!("a socket that was passed on cannot be used: {error}");
                None
            }
        });
        Self(sockets.collect())
    }

    /// The socket that listens on this address, if one was passed on.
    pub fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        // Port 0 is any port.
        let fits = |local: SocketAddr| {
            local.ip() == address.ip() && (address.port() == 0 || local.port() == address.port())
        };
        let index = self.0.iter().position(|socket| socket.local_addr().is_ok_and(fits))?;
        let socket = self.0.remove(index);
        socket.set_nonblocking(true).is_ok().then_some(socket)
    }

    /// Says which sockets nobody is configured to listen on. They are closed.
    pub fn finish(self) {
        for address in self.0.iter().filter_map(|socket| socket.local_addr().ok()) {
            tracing::warn!("nothing is configured to listen on {address}, which was passed on");
        }
    }
}

/// Tells whoever started this process, systemd or a predecessor, that callers can connect.
pub fn say_ready() {
    say("NOTIFY_SOCKET", &format!("READY=1\nMAINPID={}\n", std::process::id()));
    say(PREDECESSOR, "READY=1\n");
}

/// Tells systemd that this process is about to end.
pub fn say_stopping() {
    say("NOTIFY_SOCKET", "STOPPING=1\n");
}

/// Says something to the socket that a variable names, if there is one. Nobody depends on it.
fn say(variable: &str, what: &str) {
    let Ok(name) = std::env::var(variable) else { return };
    let address = match name.strip_prefix('@') {
        Some(name) => UnixAddress::from_abstract_name(name),
        None => UnixAddress::from_pathname(&name),
    };
    let said = address.and_then(|address| {
        UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address).map(drop)
    });
    if let Err(error) = said {
        tracing::warn!("cannot tell {variable}: {error}");
    }
}

/// Why nobody took over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// It could not be started.
    #[error("it cannot be started: {0}")]
    Start(#[from] io::Error),
    /// It ended before it was ready.
    #[error("it ended before it was ready: {0}")]
    Ended(std::process::ExitStatus),
    /// It was never ready.
    #[error("it was not ready within {PATIENCE:?}")]
    Late,
}

/// Starts a successor with these sockets, and returns when it is ready. Says which process it is.
pub async fn hand_over(sockets: Vec<TcpListener>) -> Result<u32, HandoverError> {
    let name = format!("sluice-{}-{:016x}", std::process::id(), fastrand::u64(..));
    let hears = UnixDatagram::bind_addr(&UnixAddress::from_abstract_name(&name)?)?;
    hears.set_nonblocking(true)?;
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let count = sockets.len();
    let mappings = (FIRST..)
        .zip(sockets)
        .map(|(child_fd, socket)| FdMapping { parent_fd: socket.into(), child_fd });
    let mut command = Command::new(program);
    command.args(arguments).env("LISTEN_FDS", count.to_string()).env_remove("LISTEN_PID");
    command.env(PREDECESSOR, format!("@{name}"));
    command.fd_mappings(mappings.collect()).map_err(io::Error::other)?;
    let mut child = command.spawn()?;
    let waiting = tokio::time::timeout(PATIENCE, ready(&mut child, &hears));
    let outcome = waiting.await.unwrap_or(Err(HandoverError::Late));
    if outcome.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    outcome.map(|()| child.id())
}

/// Until it says that it is ready, or has ended.
async fn ready(child: &mut Child, hears: &UnixDatagram) -> Result<(), HandoverError> {
    let mut word = [0; 64];
    loop {
        if let Ok(count) = hears.recv(&mut word)
            && word[..count].starts_with(b"READY=1")
        {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            return Err(HandoverError::Ended(status));
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_used_for_its_own_address_and_once() {
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (one, two) = (bind(), bind());
        let (first, second) = (one.local_addr().unwrap(), two.local_addr().unwrap());
        let mut inherited = Inherited(vec![one, two]);
        assert!(inherited.take("127.0.0.1:1".parse().unwrap()).is_none());
        assert_eq!(inherited.take(second).unwrap().local_addr().unwrap(), second);
        assert!(inherited.take(second).is_none());
        let any = inherited.take("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_eq!(any.local_addr().unwrap(), first, "port 0 is any port");
    }
}
