//! What two processes say to each other during a handover, over a pair of sockets.
//!
//! ```text
//! old ── one byte, with the open lock files ──────────► new     before it starts
//! old ◄──────────────────────────────────── "ready" ── new
//! old ── {"acts": …, "penalties": …}\n ───────────────► new     at once, and as more comes about
//! old ── end ─────────────────────────────────────────► new     the old process has ended
//! ```

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

/// How many lock files are passed on at most: of the snapshot and of operators' acts.
const LOCKS: usize = 2;

/// What a successor says when it is ready.
pub(super) const READY: &[u8; 5] = b"ready";

/// The longest message: a hundred thousand bans are a tenth of it.
const LONGEST: u64 = 64 << 20;

/// How long the other process may take to read a message.
const PATIENCE: Duration = Duration::from_secs(5);

/// Gives the other process open files.
pub(super) fn send_locks(stream: &UnixStream, locks: &[OwnedFd]) -> io::Result<()> {
    let descriptors: Vec<_> = locks.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LOCKS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("too many lock files"));
    }
    sendmsg(stream, &[IoSlice::new(b"L")], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Open files of the other process, which have been sent before this one began.
pub(super) fn receive_locks(stream: &UnixStream) -> io::Result<Vec<File>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LOCKS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(stream, &mut [IoSliceMut::new(&mut [0])], &mut control, flags)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.extend(descriptors.map(File::from));
        }
    }
    Ok(files)
}

/// The process that takes over.
#[derive(Debug)]
pub struct Successor {
    /// Its id.
    pub process: u32,
    stream: tokio::net::UnixStream,
}

impl Successor {
    /// The stream does not block.
    pub(super) fn new(process: u32, stream: UnixStream) -> io::Result<Self> {
        Ok(Self { process, stream: tokio::net::UnixStream::from_std(stream)? })
    }

    /// Passes something on. It takes a few seconds at most.
    pub async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let sent = tokio::time::timeout(PATIENCE, self.stream.write_all(&line)).await;
        sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// The process to take over from, as long as it says something.
#[derive(Debug)]
pub struct Predecessor(UnixStream);

impl Predecessor {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Says that callers can connect here.
    pub(super) fn say_ready(mut self) -> io::Result<()> {
        self.0.write_all(READY)
    }

    /// What it passes on.
    pub fn messages(self) -> io::Result<Messages> {
        self.0.set_nonblocking(true)?;
        Ok(Messages(BufReader::new(tokio::net::UnixStream::from_std(self.0)?)))
    }
}

/// What a predecessor passes on, one after the other.
#[derive(Debug)]
pub struct Messages(BufReader<tokio::net::UnixStream>);

impl Messages {
    /// The next; `None` when it has ended.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        let mut line = Vec::new();
        let read = (&mut self.0).take(LONGEST).read_until(b'\n', &mut line).await;
        if line.is_empty() && read.is_ok() {
            return None;
        }
        let message = read.and_then(|_| Ok(serde_json::from_slice(&line)?));
        message
            .inspect_err(|error| tracing::error!("what was passed on cannot be read: {error}"))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_arrive() {
        let folder = tempfile::tempdir().unwrap();
        for names in [&[][..], &["a"], &["a", "b"]] {
            let (here, there) = UnixStream::pair().unwrap();
            let open = |name: &&str| File::create(folder.path().join(name)).unwrap();
            let files: Vec<OwnedFd> = names.iter().map(|name| open(name).into()).collect();
            send_locks(&here, &files).unwrap();
            assert_eq!(receive_locks(&there).unwrap().len(), names.len());
        }
    }

    #[tokio::test]
    async fn messages_arrive_one_by_one_until_the_process_ends() {
        let (here, there) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        let mut successor = Successor::new(1, here).unwrap();
        let mut messages = Predecessor::new(there).messages().unwrap();
        let long = vec![7_u32; 1_000_000];
        let (sent, received) = tokio::join!(successor.send(&long), messages.next::<Vec<u32>>());
        sent.unwrap();
        assert_eq!(received.unwrap(), long);
        successor.send(&"more").await.unwrap();
        drop(successor);
        assert_eq!(messages.next::<String>().await.unwrap(), "more");
        assert!(messages.next::<String>().await.is_none());
    }
}
