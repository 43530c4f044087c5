//! Finds out how many requests a backend can take at once, from how long its answers take.
//!
//! ```text
//! answers ──► Pace of their route: how long they take when nobody waits for anybody
//!    │             │
//!    └──► Window: by how much longer they take now ──► limit × gradient + headroom
//! ```
//!
//! A backend that is given more than it can work on lets requests wait, and every answer takes
//! longer by that wait. So the limit shrinks by as much as answers take longer than they should, and
//! grows by a little otherwise, as long as it is used: in balance a few requests wait in the backend,
//! and it never runs dry.
//!
//! How long answers should take is known by route, because reports are not slow for searches being
//! quick. It is learnt from calm requests: those that began while at most `CALM` of what was under
//! way lately was under way. If that does not come about by itself, the limit dips for the blink of
//! an eye: requests wait here instead of there, and critical ones do not even wait. Whatever makes the
//! limit shrink is such a dip as well, so a backend that has become slower for good is not starved.
//! A wrong idea of a pace grows no worse that way: what the limit settles at, times `CALM`, is less
//! than what the idea was made of.
//!
//! Averages are geometric: one answer in a hundred that takes a minute is no congestion, and a wait
//! that all have in common shows best on those who would be quick. Only what is certain counts: one
//! standard error less. A window looks at requests that began in it, because those that are left
//! over when the limit shrinks are the slow ones, whatever made it shrink.
//!
//! No clock, no lock and no socket in here; times are microseconds of anybody's clock.

#![expect(clippy::cast_sign_loss, reason = "neither counts nor times are less than nothing")]

mod average;

use crate::clock::Micros;
use average::Average;
use std::collections::HashMap;

/// Answers that take up to this much longer than they should are not slow; up to that much, there is
/// room for many more.
const TOLERANCE: f64 = 1.2;
const AT_EASE: f64 = 1.05;

/// The most by which one window shrinks the limit.
const STEEPEST: f64 = 0.5;

/// A backend that says by itself that it is overloaded, for more than this share of requests, is:
/// the limit shrinks by what is beyond it. Some routes always say so.
const BY_CHANCE: f64 = 0.1;

/// The share of the most that was under way lately that a backend has no queue for. Times the balance
/// (about 1.3 times what can be worked on, and half as much again in the worst moment) it must be less
/// than one.
const CALM: f64 = 0.42;

/// How many calm answers make a lesson.
const LESSON: u32 = 24;

/// By how many standard errors a lesson differs that brings something new, and how much of the
/// difference is believed if it says that answers take longer.
const SURE: f64 = 2.5;
const VERY_SURE: f64 = 4.0;
const BELIEVED: f64 = 0.8;

/// How long a window lasts, in terms of a pace and at all, and how many answers it needs.
const PACES: f64 = 3.0;
const SHORTEST: Micros = 50_000;
const LONGEST: Micros = 1_000_000;
const ENOUGH: f64 = 12.0;

/// How often a limit that is fully used dips: in terms of how long the last dip took, because there
/// is less to do meanwhile, and at all. More often while lessons bring something new.
const DIP_SHARE: u64 = 30;
const DIP_EVERY: Micros = 3_000_000;
const DIP_SOONER: u64 = 6;
const LONGEST_DIP: Micros = 1_000_000;
const SLOW: Micros = 500_000;

/// How long it is remembered how many were under way: in terms of how long answers take, because what
/// is learnt from them takes longer, and at least.
const LATELY_TAKEN: Micros = 4;
const LATELY: Micros = 1_000_000;

/// Below this nobody is slow.
const QUICK: Micros = 1_000;

/// Where the search begins, unless that is out of bounds.
const FIRST: f64 = 10.0;

/// What a request knows from when it began.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// How many were under way with it.
    pub in_flight: u32,
    /// Which share that is of what was there for requests of its kind.
    pub share: f32,
    /// So few that its answer tells how long answers should take.
    pub calm: bool,
    /// When that was.
    pub at: Micros,
}

impl Start {
    /// How many answers make a lesson. Quick ones come first: it is over when everybody has had a turn.
    fn lesson(&self) -> f64 {
        f64::from(LESSON.max(self.in_flight.saturating_mul(2)))
    }
}

/// The search for one backend's number.
#[derive(Debug)]
pub struct Adaptive {
    min: f64,
    max: f64,
    limit: f64,
    /// No congestion has been seen yet: it may double.
    doubling: bool,
    paces: Vec<Pace>,
    names: HashMap<String, usize>,
    window: Window,
    /// The most that were under way: in this span of time, and in the one before.
    peaks: [u32; 2],
    peaks_since: Micros,
    /// How long answers took in the last window.
    took: Micros,
    /// There was a lesson. When the last one was, and whether it brought nothing new.
    knows: bool,
    learnt: Micros,
    settled: bool,
    /// The dip that is under way.
    dip: Option<Dip>,
    /// How long the last one took.
    dipped: Micros,
}

/// The limit is lower for a moment.
#[derive(Clone, Copy, Debug)]
struct Dip {
    began: Micros,
    /// When it must end, whatever was learnt.
    until: Micros,
    limit: u32,
}

/// How long answers of one route should take.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    known: Average,
    /// What is being learnt: from calm answers, and from all of them.
    lesson: Average,
    lately: Average,
    /// Requests that began before this are none of the lesson: nobody knew then what is calm.
    since: Micros,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since: Micros,
    answers: u32,
    /// How long answers took; how long they should have, and by how much longer it was.
    took: Average,
    pace: Average,
    slowness: Average,
    /// How many began when nearly everything was in use, and the largest share that was.
    full: u32,
    peak: f32,
    /// Answers by which the backend said that it is overloaded.
    told: u32,
}

impl Adaptive {
    /// Between `min` and `max`.
    pub fn new(min: u32, max: u32) -> Self {
        let (min, max) = (f64::from(min), f64::from(max));
        Self {
            min,
            max,
            limit: FIRST.clamp(min, max),
            doubling: true,
            paces: Vec::new(),
            names: HashMap::new(),
            window: Window::default(),
            peaks: [0; 2],
            peaks_since: 0,
            took: 0,
            knows: false,
            learnt: 0,
            settled: false,
            dip: None,
            dipped: 0,
        }
    }

    /// Other bounds; what was found goes on.
    pub fn bound(&mut self, min: u32, max: u32) {
        (self.min, self.max) = (f64::from(min), f64::from(max));
        self.limit = self.limit.clamp(self.min, self.max);
    }

    /// The number of a route, by its name, for as long as this lives.
    pub fn pace(&mut self, route: &str) -> usize {
        let next = self.paces.len();
        let index = *self.names.entry(route.to_owned()).or_insert(next);
        if index == next {
            self.paces.push(Pace::default());
        }
        index
    }

    /// How many may be under way.
    pub fn limit(&self) -> u32 {
        (self.limit as u32).max(1)
    }

    /// Whether it has only begun: it may turn out that there is room for many more.
    pub fn is_new(&self) -> bool {
        self.doubling
    }

    /// How many of them may be used now, by those who can wait for a moment.
    pub fn used(&self) -> u32 {
        self.dip.map_or(self.limit(), |dip| dip.limit)
    }

    /// A request that begins while at most so many are under way, itself included, is a calm one.
    pub fn calm_below(&self) -> u32 {
        if !self.knows {
            return u32::MAX; // anything is better than to know nothing
        }
        self.dip.map_or_else(|| self.calm(), |dip| dip.limit)
    }

    /// So few that none of them waits, by how many were under way lately.
    fn calm(&self) -> u32 {
        let peak = self.peaks[0].max(self.peaks[1]);
        ((f64::from(peak) * CALM) as u32).max(1)
    }

    /// An answer came after so long.
    pub fn answered(&mut self, pace: usize, start: Start, took: Micros, now: Micros) {
        if pace >= self.paces.len() {
            return; // of a route that was there before the search
        }
        let took = (took.max(QUICK) as f64).log2();
        self.hasten(pace, start, took);
        let learnt = start.calm && self.learn(pace, start, took, now);
        self.window.add(start, took, &self.paces[pace].known);
        self.remember(start.in_flight, now);
        if learnt {
            self.end_dip(now);
        }
        self.pass(now);
    }

    /// Time passes: a dip may have taken long enough, and a window, too.
    pub fn pass(&mut self, now: Micros) {
        match self.dip {
            None => self.close(now),
            Some(dip) if now >= dip.until => {
                self.settled = true; // it was no use: the next one can wait
                self.end_dip(now);
            }
            Some(_) => {}
        }
    }

    fn end_dip(&mut self, now: Micros) {
        if let Some(dip) = self.dip.take() {
            (self.learnt, self.dipped) = (now, now.saturating_sub(dip.began));
            self.window = Window { since: now, ..Window::default() };
        }
    }

    /// Nobody waits for an answer any longer that did not come for so long: that much it would have
    /// taken at least, which is news if it is more than it should have.
    pub fn gave_up(&mut self, pace: usize, start: Start, waited: Micros, now: Micros) {
        let should = self.paces.get(pace).map(|pace| &pace.known);
        if should.is_some_and(|should| !should.is_empty() && (waited as f64).log2() > should.mean())
        {
            self.answered(pace, Start { calm: false, ..start }, waited, now);
        }
    }

    /// The backend says by itself that it is overloaded.
    pub fn told(&mut self, start: Start, now: Micros) {
        if start.at >= self.window.since {
            self.window.began(start);
            self.window.told += 1;
        }
        self.pass(now);
    }

    fn remember(&mut self, in_flight: u32, now: Micros) {
        if now.saturating_sub(self.peaks_since) > LATELY.max(self.took * LATELY_TAKEN) {
            self.peaks = [0, self.peaks[0]];
            self.peaks_since = now;
        }
        self.peaks[0] = self.peaks[0].max(in_flight);
    }

    /// Takes note of any answer. Nothing is quicker than it can be: if all of them are quicker than they
    /// should be, they should be quicker.
    fn hasten(&mut self, pace: usize, start: Start, took: f64) {
        let pace = &mut self.paces[pace];
        pace.lately.add(took);
        if pace.lately.count < start.lesson() {
            return;
        }
        let lately = std::mem::take(&mut pace.lately);
        if lately.mean() < pace.known.mean() && !pace.known.agrees_with(&lately, VERY_SURE) {
            (pace.known, self.settled) = (lately, false);
        }
    }

    /// Takes note of a calm answer. Says whether that was the last one of a lesson.
    fn learn(&mut self, pace: usize, start: Start, took: f64, now: Micros) -> bool {
        let pace = &mut self.paces[pace];
        if start.at < pace.since {
            return false;
        }
        pace.lesson.add(took);
        if pace.lesson.count < start.lesson() {
            return false;
        }
        let lesson = std::mem::take(&mut pace.lesson);
        if pace.known.is_empty() {
            pace.since = now;
        }
        (self.settled, self.learnt) = (pace.known.agrees_with(&lesson, SURE), now);
        self.knows = true;
        let longer = lesson.mean() - pace.known.mean();
        pace.known = match self.settled {
            true => pace.known.and(&lesson),
            // It may be congestion after all, and is asked about again soon.
            false if longer > 0.0 && !pace.known.is_empty() => {
                lesson.moved(-longer * (1.0 - BELIEVED))
            }
            // Nothing is quicker than it can be.
            false => lesson,
        };
        true
    }

    /// Moves the limit, if there has been enough to move it by.
    fn close(&mut self, now: Micros) {
        let window = &self.window;
        let lasted = now.saturating_sub(window.since);
        if f64::from(window.answers) < ENOUGH || lasted < SHORTEST {
            return;
        }
        let pace = window.pace.mean().exp2();
        let length = ((pace * PACES) as Micros).clamp(SHORTEST, LONGEST);
        if lasted < length {
            return;
        }
        let window =
            std::mem::replace(&mut self.window, Window { since: now, ..Window::default() });
        self.took = window.took.mean().exp2() as Micros;
        let told = f64::from(window.told) / f64::from(window.answers);
        let known = window.slowness.count >= ENOUGH / 2.0;
        let slowness = if known { window.slowness.at_least().exp2() } else { TOLERANCE };
        let steady = (1.0 + BY_CHANCE - told).clamp(STEEPEST, 1.0);
        let gradient = (TOLERANCE / slowness).clamp(STEEPEST, steady);
        self.doubling &= gradient >= 1.0;
        // A limit that is not used tells nothing, and neither do answers that nobody can judge.
        if window.peak >= 0.5 && (known || gradient < 1.0) {
            let little = self.limit.sqrt() / 3.0;
            let headroom = match slowness {
                _ if self.doubling => self.limit,
                ..=AT_EASE if steady >= 1.0 => little.max(self.limit / 4.0),
                _ => little,
            };
            self.limit = (self.limit * gradient + headroom).clamp(self.min, self.max);
        }
        let pause = DIP_EVERY.max(self.dipped * DIP_SHARE);
        let pause = if self.settled && known { pause } else { pause / DIP_SOONER };
        // Where answers take long, so would a dip, and where nothing can change nothing is asked.
        let worth_it = self.took < SLOW && self.min < self.max;
        if worth_it && window.full * 2 > window.answers && now.saturating_sub(self.learnt) > pause {
            let until = now + LONGEST_DIP.max(length * 4);
            self.dip = Some(Dip { began: now, until, limit: self.calm() });
        }
    }
}

impl Window {
    /// Takes note of an answer to a request that began in this window.
    fn add(&mut self, start: Start, took: f64, pace: &Average) {
        if start.at < self.since {
            return;
        }
        if !pace.is_empty() {
            self.pace.add(pace.mean());
            self.slowness.add(took - pace.mean());
        }
        self.took.add(took);
        self.began(start);
    }

    /// Takes note of how much was under way.
    fn began(&mut self, start: Start) {
        self.answers += 1;
        self.peak = self.peak.max(start.share);
        self.full += u32::from(start.share >= 0.9);
    }
}

#[cfg(test)]
mod tests;
