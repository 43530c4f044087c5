//! Signals: SIGTERM and SIGINT stop, SIGHUP reloads, SIGUSR2 hands over.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that are obeyed; without them, a future that never comes.
pub(super) struct Signals(Option<[Signal; 4]>);

/// What a signal says.
pub(super) enum Heard {
    Hangup,
    HandOver,
    Stop,
}

impl Signals {
    pub(super) fn new(obey: bool) -> std::io::Result<Self> {
        if !obey {
            return Ok(Self(None));
        }
        Ok(Self(Some([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::user_defined2())?,
        ])))
    }

    pub(super) async fn next(&mut self) -> Heard {
        match &mut self.0 {
            None => std::future::pending().await,
            Some([term, int, hup, usr2]) => tokio::select! {
                _ = term.recv() => Heard::Stop,
                _ = int.recv() => Heard::Stop,
                _ = hup.recv() => Heard::Hangup,
                _ = usr2.recv() => Heard::HandOver,
            },
        }
    }
}
