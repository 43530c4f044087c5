//! How far it is, on a terminal: a bar, how quick it is, and how much time is left.

use crate::clock::{Clock, Micros, SECOND};
use crate::simulate::Progress;
use crate::simulate::figures::length;
use std::io::{IsTerminal, Write};

/// A line of stderr that is written over and over. Nothing if nobody looks.
#[derive(Debug)]
pub(super) struct Bar {
    clock: Clock,
    what: String,
    began: Micros,
    drawn: Option<Micros>,
    looked_at: bool,
}

/// It is drawn so often.
const EVERY: Micros = SECOND / 5;

/// Who is done sooner sees none.
const PATIENCE: Micros = SECOND / 2;

impl Bar {
    pub(super) fn new(what: &str) -> Self {
        let clock = Clock::system();
        let looked_at = std::io::stderr().is_terminal();
        Self { began: clock.now(), clock, what: what.to_owned(), drawn: None, looked_at }
    }

    /// Draws how far it is, if it is time to.
    pub(super) fn show(&mut self, progress: Progress) {
        if !self.looked_at {
            return;
        }
        let now = self.clock.now();
        if now < self.drawn.map_or(self.began + PATIENCE, |drawn| drawn + EVERY) {
            return;
        }
        self.drawn = Some(now);
        let line = line(&self.what, progress, now - self.began);
        // The rest of the line that was there is erased.
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
    }

    /// Wipes it away.
    pub(super) fn end(self) {
        if self.drawn.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[expect(clippy::cast_sign_loss, reason = "neither time nor progress is negative")]
fn line(what: &str, progress: Progress, took: Micros) -> String {
    const WIDTH: usize = 24;
    let seconds = took as f64 / SECOND as f64;
    let rate = progress.lines as f64 / seconds.max(0.001);
    let rate =
        if rate < 1e6 { format!("{:.0}k", rate / 1e3) } else { format!("{:.2}M", rate / 1e6) };
    let Some(of) = progress.of.filter(|of| *of > 0) else {
        return format!("{what}  {:.1}M lines, {rate} a second", progress.lines as f64 / 1e6);
    };
    let done = (progress.bytes as f64 / of as f64).clamp(0.0, 1.0);
    let full = (done * WIDTH as f64) as usize;
    let left = (seconds / done.max(1e-6) * (1.0 - done)).ceil() as u64;
    format!(
        "{what}  {}{}  {:3.0}%  {rate} lines a second, {} left",
        "█".repeat(full),
        "░".repeat(WIDTH - full),
        done * 100.0,
        length(left)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_the_rate_and_the_time_left() {
        let quarter = Progress { lines: 2_500_000, bytes: 250, of: Some(1000) };
        assert_eq!(
            line("replaying", quarter, 2 * SECOND),
            "replaying  ██████░░░░░░░░░░░░░░░░░░   25%  1.25M lines a second, 6 s left"
        );
        let endless = Progress { lines: 500_000, bytes: 250, of: None };
        assert_eq!(line("replaying", endless, SECOND), "replaying  0.5M lines, 500k a second");
    }
}
