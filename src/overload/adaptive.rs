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
//! an eye: requests wait here instead of there, and none is refused for it; critical ones do not even
//! wait. Whatever makes the limit
//! shrink is such a dip as well, so a backend that has become slower for good is not starved for it.
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

use crate::clock::Micros;
use std::collections::HashMap;

/// Answers that take up to this much longer than they should are not slow; up to that much, there is
/// room for many more.
const TOLERANCE: f64 = 1.2;
const AT_EASE: f64 = 1.05;

/// The most by which one window shrinks the limit, and what it does to a backend that says by itself
/// that it is overloaded.
const STEEPEST: f64 = 0.5;
const TOLD: f64 = 0.9;

/// The share of what was under way lately that a backend has no queue for. Times the balance (about
/// 1.3 times what can be worked on) it must be less than one.
const CALM: f64 = 0.5;

/// How many calm answers make a lesson, and how many are remembered.
const LESSON: u32 = 24;
const MEMORY: f64 = 400.0;

/// By how many standard errors, and by which power of two, a lesson differs that brings something new;
/// and how much of the difference is believed if it says that answers take longer.
const SURE: f64 = 2.5;
const SLIGHT: f64 = 0.05;
const BELIEVED: f64 = 0.5;

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

/// How long it is remembered how many were under way, at least.
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
    /// So few that its answer tells how long answers should take.
    pub calm: bool,
    /// When that was.
    pub at: Micros,
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
    /// When there was a lesson last, and whether it brought nothing new.
    learnt: Micros,
    settled: bool,
    /// When the dip that is under way began, and when it must end.
    dip: Option<(Micros, Micros)>,
    /// How long the last one took.
    dipped: Micros,
}

/// How long answers of one route should take.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    known: Average,
    lesson: Average,
    /// Requests that began before this are none of the lesson: nobody knew then what is calm.
    since: Micros,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since: Micros,
    answers: u32,
    /// How long answers should have taken, and by how much longer they took.
    pace: Average,
    slowness: Average,
    /// How many began when nearly everything was in use, and the most that were under way.
    full: u32,
    peak: u32,
    /// The backend said by itself that it is overloaded.
    told: bool,
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

    /// How many of them may be used now, by those who can wait for a moment.
    pub fn used(&self) -> u32 {
        let share = if self.dip.is_some() { CALM } else { 1.0 };
        ((self.limit * share) as u32).max(1)
    }

    /// A request that begins while at most so many are under way, itself included, is a calm one.
    pub fn calm_below(&self) -> u32 {
        if self.paces.iter().all(|pace| pace.known.is_empty()) {
            return u32::MAX; // anything is better than to know nothing
        }
        let peak = self.peaks[0].max(self.peaks[1]);
        ((f64::from(peak) * CALM) as u32).max(1)
    }

    /// An answer came after so long.
    pub fn answered(&mut self, pace: usize, start: Start, took: Micros, now: Micros) {
        let took = (took.max(QUICK) as f64).log2();
        let learnt = start.calm && self.learn(pace, start, took, now);
        self.window.add(start, took, &self.paces[pace].known, self.limit);
        self.remember(start.in_flight, now);
        match self.dip {
            None => self.close(now),
            Some((began, until)) if learnt || now >= until => {
                (self.dip, self.learnt, self.dipped) = (None, now, now.saturating_sub(began));
                self.window = Window { since: now, ..Window::default() };
            }
            Some(_) => {}
        }
    }

    /// Nobody waits for an answer any longer that did not come for so long: that much it would have
    /// taken at least, which is news if it is more than it should have.
    pub fn gave_up(&mut self, pace: usize, start: Start, waited: Micros, now: Micros) {
        let should = &self.paces[pace].known;
        if !should.is_empty() && (waited as f64).log2() > should.mean() {
            self.answered(pace, Start { calm: false, ..start }, waited, now);
        }
    }

    /// The backend says by itself that it is overloaded.
    pub fn told(&mut self) {
        self.window.told = true;
    }

    fn remember(&mut self, in_flight: u32, now: Micros) {
        if now.saturating_sub(self.peaks_since) > LATELY {
            self.peaks = [0, self.peaks[0]];
            self.peaks_since = now;
        }
        self.peaks[0] = self.peaks[0].max(in_flight);
    }

    /// Takes note of a calm answer. Says whether that was the last one of a lesson.
    fn learn(&mut self, pace: usize, start: Start, took: f64, now: Micros) -> bool {
        let pace = &mut self.paces[pace];
        if start.at < pace.since {
            return false;
        }
        pace.lesson.add(took);
        // Quick answers come first: a lesson is over when everybody has had a turn.
        if pace.lesson.count < f64::from(LESSON.max(start.in_flight.saturating_mul(2))) {
            return false;
        }
        let lesson = std::mem::take(&mut pace.lesson);
        if pace.known.is_empty() {
            pace.since = now;
        }
        (self.settled, self.learnt) = (pace.known.agrees_with(&lesson), now);
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
        let window = self.window;
        let pace = window.pace.mean().exp2();
        let length = ((pace * PACES) as Micros).clamp(SHORTEST, LONGEST);
        if f64::from(window.answers) < ENOUGH || now.saturating_sub(window.since) < length {
            return;
        }
        self.window = Window { since: now, ..Window::default() };
        if window.slowness.is_empty() {
            return;
        }
        let slowness = window.slowness.at_least().exp2();
        let steady = if window.told { TOLD } else { 1.0 };
        let gradient = (TOLERANCE / slowness).clamp(STEEPEST, steady);
        self.doubling &= gradient >= 1.0;
        // A limit that is not used tells nothing.
        if f64::from(window.peak) * 2.0 >= self.limit {
            let little = self.limit.sqrt() / 3.0;
            let headroom = match slowness {
                _ if self.doubling => self.limit,
                ..=AT_EASE if !window.told => little.max(self.limit / 4.0),
                _ => little,
            };
            self.limit = (self.limit * gradient + headroom).clamp(self.min, self.max);
        }
        let pause = DIP_EVERY.max(self.dipped * DIP_SHARE);
        let pause = if self.settled { pause } else { pause / DIP_SOONER };
        if window.full * 2 > window.answers && now.saturating_sub(self.learnt) > pause {
            self.dip = Some((now, now + LONGEST_DIP.max(length * 4)));
        }
    }
}

impl Window {
    /// Takes note of an answer to a request that began in this window.
    fn add(&mut self, start: Start, took: f64, pace: &Average, limit: f64) {
        if start.at < self.since {
            return;
        }
        if !pace.is_empty() {
            self.pace.add(pace.mean());
            self.slowness.add(took - pace.mean());
        }
        self.answers += 1;
        self.peak = self.peak.max(start.in_flight);
        self.full += u32::from(f64::from(start.in_flight) >= limit * 0.9);
    }
}

/// The average of some numbers, and how sure it is.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    sum: f64,
    squares: f64,
    count: f64,
}

impl Average {
    fn is_empty(&self) -> bool {
        self.count == 0.0
    }

    fn add(&mut self, value: f64) {
        self.sum += value;
        self.squares += value * value;
        self.count += 1.0;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1.0)
    }

    fn variance(&self) -> f64 {
        (self.squares / self.count.max(1.0) - self.mean().powi(2)).max(0.0)
    }

    /// The square of the standard error.
    fn doubt(&self) -> f64 {
        self.variance() / self.count.max(1.0)
    }

    /// What it is without the standard error.
    fn at_least(&self) -> f64 {
        self.mean() - self.doubt().sqrt()
    }

    fn agrees_with(&self, other: &Self) -> bool {
        let doubt = SLIGHT + SURE * (self.doubt() + other.doubt()).sqrt();
        !self.is_empty() && (self.mean() - other.mean()).abs() <= doubt
    }

    /// The same numbers, all of them by so much more.
    fn moved(&self, by: f64) -> Self {
        let mean = self.mean() + by;
        let squares = (self.variance() + mean * mean) * self.count;
        Self { sum: mean * self.count, squares, count: self.count }
    }

    /// Both together; what is long ago fades.
    fn and(&self, other: &Self) -> Self {
        let kept = (MEMORY / (self.count + other.count)).min(1.0);
        Self {
            sum: (self.sum + other.sum) * kept,
            squares: (self.squares + other.squares) * kept,
            count: (self.count + other.count) * kept,
        }
    }
}
