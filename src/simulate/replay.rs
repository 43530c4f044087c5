//! Replays logs: every line of every source, in the order of time, through every configuration that
//! is on trial.

use super::figures::exactly;
use super::trial::{Arrival, Outcome, Trial};
use crate::clock::{Micros, micros};
use crate::traffic::{Chunk, Entry, How, Input, Order, Sources, Trouble, Unreadable};
use std::time::Duration;

/// What is replayed, and how.
#[derive(Clone, Debug)]
pub struct Logs {
    /// Where lines come from.
    pub inputs: Vec<Input>,
    /// How they are read.
    pub how: How,
    /// Lines may be late by so much.
    pub wait: Duration,
    /// The share of lines that may be unreadable.
    pub tolerate: f64,
    /// How many threads read.
    pub threads: usize,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Intake {
    /// What the logs are called.
    pub names: Vec<String>,
    /// Lines that are not empty.
    pub lines: u64,
    /// Those that cannot be read, and the first of them: of which log, which line, why, and how it
    /// begins.
    pub unreadable: u64,
    /// See `unreadable`.
    pub examples: Vec<(String, u64, Unreadable, String)>,
    /// Lines that came too late to be put in order.
    pub late: u64,
    /// The first moment and the last.
    pub from: Option<Micros>,
    /// See `from`.
    pub to: Option<Micros>,
    /// Lines of requests that are logged only in part, and how many they stand for.
    pub sampled: u64,
    /// See `sampled`.
    pub stand_for: f64,
    /// Lines that tell how long it took, how large the answer was, for which host it was, the status.
    pub durations: u64,
    /// See `durations`.
    pub sizes: u64,
    /// See `durations`.
    pub hosts: u64,
    /// See `durations`.
    pub statuses: u64,
    /// Lines of our own log.
    pub own: u64,
    /// Those of banned addresses among them: what they asked for was not looked at.
    pub pathless: u64,
}

/// Why logs could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A log is in trouble.
    #[error(transparent)]
    Trouble(#[from] Trouble),
    /// Too many lines cannot be read.
    #[error("{}", .0.complaint(*.1))]
    Unreadable(Box<Intake>, f64),
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Lines that were read.
    pub lines: u64,
    /// Bytes that were read, and how many there are.
    pub bytes: u64,
    /// See `bytes`.
    pub of: Option<u64>,
}

/// A request as it was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// When.
    pub time: Micros,
    /// In which of the logs.
    pub log: usize,
    /// On which line, from one.
    pub line: u64,
    /// With which status; 0 if that is not told.
    pub status: u16,
}

/// Before so many lines were read it is too early to say that too many are unreadable.
const EARLY: u64 = 1000;

/// Replays logs. `each` is told of every request, in the order of time, with what came of it in each
/// trial.
pub fn replay<const N: usize>(
    logs: &Logs,
    trials: &mut [Trial; N],
    watch: &mut dyn FnMut(Progress),
    mut each: impl FnMut(Logged, &[Trial; N], &[Arrival; N], [Outcome; N]),
) -> Result<Intake, Failure> {
    let sources = Sources::open(&logs.inputs, &logs.how, logs.threads)?;
    let names = (0..sources.count()).map(|source| sources.name(source).to_owned()).collect();
    let mut intake = Intake { names, ..Intake::default() };
    let mut order: Order<Waiting<N>> = Order::default();
    let mut judge = |trials: &mut [Trial; N], time, waited: &Waiting<N>| {
        let Waiting { arrivals, log, line, status } = waited;
        let outcomes = std::array::from_fn(|n| trials[n].judge(time, &arrivals[n]));
        let logged = Logged { time, log: *log as usize, line: *line, status: *status };
        each(logged, trials, arrivals, outcomes);
    };
    let wait = micros(logs.wait);
    // The latest moment of each source that has not ended.
    let mut latest: Vec<Option<Micros>> = vec![Some(0); sources.count()];
    let mut before = None;
    // The source that is furthest behind tells what comes next.
    while let Some(source) =
        (0..latest.len()).filter(|s| latest[*s].is_some()).min_by_key(|s| latest[*s])
    {
        match sources.next(source, before.take())? {
            None => latest[source] = None,
            Some(chunk) => {
                let own = sources.is_own(source);
                for entry in chunk.entries() {
                    intake.note(entry, own);
                    let arrivals = std::array::from_fn(|n| trials[n].arrive(&chunk, entry, own));
                    let (line, status) = (entry.line, entry.status);
                    order.add(entry.time, Waiting { arrivals, log: source as u32, line, status });
                }
                latest[source] = latest[source].max(Some(chunk.latest()));
                intake.add(&chunk, sources.name(source));
                before = Some(chunk);
                if intake.lines >= EARLY && intake.too_many(logs.tolerate) {
                    return Err(Failure::Unreadable(Box::new(intake), logs.tolerate));
                }
            }
        }
        let until = latest.iter().flatten().min().map_or(Micros::MAX, |at| at.saturating_sub(wait));
        order.release(until, |time, line| judge(trials, time, line));
        let (bytes, of) = sources.progress();
        watch(Progress { lines: intake.lines, bytes, of });
    }
    order.finish(|time, line| judge(trials, time, line));
    intake.late = order.late();
    if intake.too_many(logs.tolerate) {
        return Err(Failure::Unreadable(Box::new(intake), logs.tolerate));
    }
    Ok(intake)
}

/// A line that waits for those before it.
struct Waiting<const N: usize> {
    arrivals: [Arrival; N],
    log: u32,
    line: u64,
    status: u16,
}

impl Intake {
    #[inline]
    fn note(&mut self, entry: &Entry, own: bool) {
        self.from = Some(self.from.map_or(entry.time, |from| from.min(entry.time)));
        self.to = Some(self.to.map_or(entry.time, |to| to.max(entry.time)));
        self.durations += u64::from(entry.duration.is_some());
        self.sizes += u64::from(entry.bytes.is_some());
        self.hosts += u64::from(!entry.host.is_none());
        self.statuses += u64::from(entry.status != 0);
        self.own += u64::from(own);
        self.pathless += u64::from(own && entry.target.is_none() && entry.status == 429);
        if entry.sample < 1.0 {
            self.sampled += 1;
            self.stand_for += 1.0 / f64::from(entry.sample.max(f32::MIN_POSITIVE));
        }
    }

    fn add(&mut self, chunk: &Chunk, name: &str) {
        let (lines, unreadable, shown) = chunk.unreadable();
        self.lines += lines;
        self.unreadable += unreadable;
        for (line, why, text) in shown {
            if self.examples.len() < 5 {
                self.examples.push((name.to_owned(), *line, *why, text.clone()));
            }
        }
    }

    fn too_many(&self, tolerate: f64) -> bool {
        self.unreadable as f64 > self.lines as f64 * tolerate
    }

    /// Requests that were read.
    pub fn requests(&self) -> u64 {
        self.lines - self.unreadable
    }

    /// How long it was from the first to the last.
    pub fn span(&self) -> Micros {
        self.from.zip(self.to).map_or(0, |(from, to)| to - from)
    }

    fn complaint(&self, tolerate: f64) -> String {
        let mut text = format!(
            "{} of {} lines cannot be read; at most {}% may be (--tolerate)",
            self.unreadable,
            self.lines,
            exactly(tolerate)
        );
        for example in self.examples() {
            text.push_str("\n  ");
            text.push_str(&example);
        }
        text
    }

    /// The first lines that cannot be read.
    pub fn examples(&self) -> impl Iterator<Item = String> {
        self.examples.iter().map(|(name, line, why, text)| format!("{name}:{line}: {why}: {text}"))
    }
}
