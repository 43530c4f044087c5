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
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::process::{Child, Command};
use std::time::Duration;

/// The first file descriptor that systemd passes.
const FIRST: i32 = 3;

/// Which of the sockets that were passed on is the one to tell a predecessor by.
const PREDECESSOR: &str = "SLUICE_PREDECESSOR";

/// What a successor says when it is ready.
const READY: &[u8; 5] = b"ready";

/// How long a successor may take, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// Sockets that somebody else has bound.
#[derive(Debug, Default)]
pub struct Inherited(Vec<TcpListener>);

/// The process that this one is to take over from.
#[derive(Debug)]
pub struct Predecessor(UnixDatagram);

impl Inherited {
    /// What was passed to this process, and by whom. Asked once, before anything else is opened.
    pub fn from_environment() -> (Self, Option<Predecessor>) {
        let mut passed = ListenFd::from_env();
        let index = std::env::var(PREDECESSOR).ok().and_then(|index| index.parse().ok());
        let predecessor = index.and_then(|index| passed.take_unix_datagram(index).ok().flatten());
        let sockets = (0..passed.len()).filter_map(|index| match passed.take_tcp_listener(index) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!("a socket that was passed on cannot be used: {error}");
                None
            }
        });
        (Self(sockets.collect()), predecessor.map(Predecessor))
    }

    /// The socket that listens on this address, if one was passed on.
    pub fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        // Port 0 is any port, and `[::]` takes IPv4 along: systemd makes it of a bare port.
        let fits = |local: SocketAddr| {
            let all = address.ip().is_unspecified() && local.ip() == Ipv6Addr::UNSPECIFIED;
            let port = address.port() == 0 || local.port() == address.port();
            port && (all || local.ip() == address.ip())
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

/// Tells systemd, and whoever is to be taken over from, that callers can connect.
pub fn say_ready(predecessor: Option<Predecessor>) {
    say("NOTIFY_SOCKET", &format!("READY=1\nMAINPID={}\n", std::process::id()));
    if let Some(Predecessor(socket)) = predecessor
        && let Err(error) = socket.send(READY)
    {
        tracing::warn!("cannot tell the process before this one: {error}");
    }
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

/// A process that starts; it ends with this, unless it is [let go](Self::let_go).
struct Starting(Option<Child>);

impl Starting {
    fn let_go(mut self) -> Option<u32> {
        self.0.take().map(|child| child.id())
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a successor with these sockets, and returns when it is ready. Says which process it is.
/// Whoever does not wait for it ends it.
pub async fn hand_over(sockets: Vec<TcpListener>) -> Result<u32, HandoverError> {
    let (hears, tells) = UnixDatagram::pair()?;
    hears.set_nonblocking(true)?;
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let count = sockets.len();
    let passed = sockets.into_iter().map(OwnedFd::from).chain([tells.into()]);
    let mappings =
        (FIRST..).zip(passed).map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd });
    let mut command = Command::new(program);
    command.args(arguments).env("LISTEN_FDS", (count + 1).to_string()).env_remove("LISTEN_PID");
    command.env(PREDECESSOR, count.to_string());
    command.fd_mappings(mappings.collect()).map_err(io::Error::other)?;
    let mut starting = Starting(Some(command.spawn()?));
    let waiting = tokio::time::timeout(PATIENCE, ready(&mut starting, &hears));
    waiting.await.unwrap_or(Err(HandoverError::Late))?;
    Ok(starting.let_go().unwrap_or_default())
}

/// Until it says that it is ready, or has ended.
async fn ready(starting: &mut Starting, hears: &UnixDatagram) -> Result<(), HandoverError> {
    let mut word = [0; READY.len()];
    loop {
        if hears.recv(&mut word).is_ok() && word == *READY {
            return Ok(());
        }
        if let Some(child) = &mut starting.0
            && let Some(status) = child.try_wait()?
        {
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
