//! Listening sockets that outlive a process, so that a new one takes over without a caller noticing.
//!
//! Sockets come in as systemd passes them (`LISTEN_FDS`), from systemd or from the gateway before
//! this one; those whose address is configured are used instead of binding it anew. On SIGUSR2 a
//! gateway starts its own command line again, which is a new binary if the file was replaced, gives
//! it its sockets and its locks on files, and waits for its word. Then it passes on what the operator
//! has said and whom penalties ban. Both accept for a moment; then the old one finishes what it has
//! and ends. A successor that does not start changes nothing.

mod channel;
mod systemd;

pub use channel::{Messages, Predecessor, Successor};

use channel::READY;
use command_fds::{CommandFdExt, FdMapping};
use listenfd::ListenFd;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::Duration;

/// The first file descriptor that systemd passes.
const FIRST: i32 = 3;

/// Which of the sockets that were passed on leads to the predecessor.
const PREDECESSOR: &str = "SLUICE_PREDECESSOR";

/// How long a successor may take, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// What other processes have opened for this one.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<TcpListener>,
    /// Lock files that the predecessor has locked.
    pub locks: Vec<File>,
    /// The process to take over from.
    pub predecessor: Option<Predecessor>,
}

/// Tells the predecessor that this process is ready.
#[derive(Debug)]
pub struct Ready(Predecessor);

impl Inherited {
    /// What was passed to this process. Asked once, before anything else is opened.
    pub fn from_environment() -> (Self, Option<Ready>) {
        let mut passed = ListenFd::from_env();
        let index = std::env::var(PREDECESSOR).ok().and_then(|index| index.parse().ok());
        // Whether a stream socket listens or is connected makes no difference to what takes it.
        let stream = index.and_then(|index| passed.take_unix_listener(index).ok().flatten());
        let stream = stream.map(|socket| UnixStream::from(OwnedFd::from(socket)));
        let sockets = (0..passed.len()).filter_map(|index| match passed.take_tcp_listener(index) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!("a socket that was passed on cannot be used: {error}");
                None
            }
        });
        let mut inherited = Self { sockets: sockets.collect(), ..Self::default() };
        let ready = stream.and_then(|stream| {
            let joined = inherited.join(stream);
            joined
                .inspect_err(|error| tracing::error!("the predecessor is not heard: {error}"))
                .ok()
        });
        (inherited, ready)
    }

    fn join(&mut self, stream: UnixStream) -> io::Result<Ready> {
        self.locks = channel::receive_locks(&stream)?;
        let ready = Ready(Predecessor::new(stream.try_clone()?));
        self.predecessor = Some(Predecessor::new(stream));
        Ok(ready)
    }

    /// The socket that listens on this address, if one was passed on.
    pub fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        // Port 0 is any port, and `[::]` takes IPv4 along: systemd makes it of a bare port.
        let fits = |local: SocketAddr| {
            let all = address.ip().is_unspecified() && local.ip() == Ipv6Addr::UNSPECIFIED;
            let port = address.port() == 0 || local.port() == address.port();
            port && (all || local.ip() == address.ip())
        };
        let index = self.sockets.iter().position(|s| s.local_addr().is_ok_and(fits))?;
        let socket = self.sockets.remove(index);
        socket.set_nonblocking(true).is_ok().then_some(socket)
    }

    /// Closes the sockets that no listener is configured for, and says so.
    pub fn close_unused_sockets(&mut self) {
        for socket in self.sockets.drain(..) {
            if let Ok(address) = socket.local_addr() {
                tracing::warn!("nothing is configured to listen on {address}, which was passed on");
            }
        }
    }
}

/// Tells systemd, and the process to take over from, that callers can connect.
pub fn say_ready(predecessor: Option<Ready>) {
    systemd::ready();
    if let Some(Ready(predecessor)) = predecessor
        && let Err(error) = predecessor.say_ready()
    {
        tracing::warn!("cannot tell the process before this one: {error}");
    }
}

/// Tells systemd that this process is about to end.
pub fn say_stopping() {
    systemd::stopping();
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
    /// Acts of the operator that were under way did not finish.
    #[error("acts of the operator are still under way")]
    Acts,
    /// It was never ready.
    #[error("it was not ready within {PATIENCE:?}")]
    Late,
}

/// A process that starts; it ends with this, unless it is [let go](Self::let_go).
struct Starting(Option<Child>);

impl Starting {
    fn let_go(mut self) {
        self.0 = None;
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

/// Starts a successor with these sockets and locks, and passes on what `state` says when it is ready.
/// Dropping the future ends the successor.
pub async fn hand_over<T: Serialize>(
    sockets: Vec<TcpListener>,
    locks: Vec<OwnedFd>,
    state: impl FnOnce() -> T,
) -> Result<Successor, HandoverError> {
    let (mut stream, theirs) = UnixStream::pair()?;
    channel::send_locks(&stream, &locks)?;
    stream.set_nonblocking(true)?;
    let mut starting = start(sockets, theirs)?;
    let waiting = tokio::time::timeout(PATIENCE, ready(&mut starting, &mut stream));
    waiting.await.unwrap_or(Err(HandoverError::Late))?;
    let process = starting.0.as_ref().map_or(0, Child::id);
    let mut successor = Successor::new(process, stream)?;
    successor.send(&state()).await?;
    starting.let_go();
    Ok(successor)
}

fn start(sockets: Vec<TcpListener>, stream: UnixStream) -> io::Result<Starting> {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let count = sockets.len();
    let passed = sockets.into_iter().map(OwnedFd::from).chain([stream.into()]);
    let mappings =
        (FIRST..).zip(passed).map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd });
    let mut command = Command::new(program);
    command.args(arguments).env("LISTEN_FDS", (count + 1).to_string()).env_remove("LISTEN_PID");
    command.env(PREDECESSOR, count.to_string());
    command.fd_mappings(mappings.collect()).map_err(io::Error::other)?;
    Ok(Starting(Some(command.spawn()?)))
}

/// Until it says that it is ready, or has ended.
async fn ready(starting: &mut Starting, stream: &mut UnixStream) -> Result<(), HandoverError> {
    let mut word = [0; READY.len()];
    loop {
        if stream.read(&mut word).is_ok() && word == *READY {
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
        let mut inherited = Inherited { sockets: vec![one, two], ..Inherited::default() };
        assert!(inherited.take("127.0.0.1:1".parse().unwrap()).is_none());
        assert_eq!(inherited.take(second).unwrap().local_addr().unwrap(), second);
        assert!(inherited.take(second).is_none());
        let any = inherited.take("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_eq!(any.local_addr().unwrap(), first, "port 0 is any port");
    }
}
