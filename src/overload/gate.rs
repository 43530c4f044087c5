//! Places in flight, and a short queue in front of them.
//!
//! ```text
//! enter ──► a place is free: one atomic, no lock
//!   └─────► wait ──► Queue: critical first, then normal, then sheddable;
//!                      │    among equals callers take turns, whoever asks most waits longest
//!                      │    full: the least of those who wait goes, or whoever came last
//! leave ──► next ──────┘
//! ```
//!
//! A share of the places can be kept for critical requests: the others never have more than the
//! rest. How many places there are is fixed, or [found out](super::adaptive) from the answers of
//! those who had one. The queue is for moments: it holds half of what may be under way (for critical
//! requests twice as much as may be), unless the file says otherwise, so that whoever waits in it
//! waits about half as long as an answer takes. First come, first served: the other way round, which
//! is what long queues want, was tried and gave the same goodput and longer tails with one as short
//! as this.

mod queue;

use super::adaptive::{Adaptive, Start};
use crate::clock::Micros;
use crate::config::model::{Concurrency, Places, Priority};
use crate::sync::{AtomicU64, Mutex, Ordering};
use queue::{Entry, LONGEST, Queue, bit, usual_length};
use std::cell::Cell;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Fewer places than this are few.
const FEW: u32 = 8;

pub use queue::Full;

/// Places in flight.
#[derive(Debug)]
pub struct Gate {
    /// How many are taken: all of them, and those of other than critical requests.
    taken: AtomicU64,
    /// How many there are, in the same way.
    places: AtomicU64,
    /// Whoever begins with at most so many under way is calm, as [`Adaptive`] has it.
    calm_below: AtomicU64,
    /// Which priorities wait, one bit each; written by whoever has the queue's lock.
    waiting: AtomicU64,
    queue: Mutex<Queue>,
    /// Found out, rather than fixed.
    search: Mutex<Option<Adaptive>>,
}

/// Two numbers in one: of all requests, and of those that are not critical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    all: u32,
    ordinary: u32,
}

impl Pair {
    fn of(packed: u64) -> Self {
        Self { all: (packed >> 32) as u32, ordinary: packed as u32 }
    }

    fn packed(self) -> u64 {
        u64::from(self.all) << 32 | u64::from(self.ordinary)
    }

    fn one(priority: Priority) -> Self {
        Self { all: 1, ordinary: u32::from(priority != Priority::Critical) }
    }
}

/// A place in flight; given back when dropped.
#[derive(Debug)]
#[must_use]
pub struct Place {
    gate: Arc<Gate>,
    priority: Priority,
    start: Start,
    /// It is somebody else's for now.
    aside: Cell<bool>,
}

/// Somebody who waits for a place; gives up when dropped.
#[derive(Debug)]
#[must_use]
pub struct Waiting {
    gate: Arc<Gate>,
    priority: Priority,
    ticket: u64,
    granted: oneshot::Receiver<Start>,
}

/// How a gate is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// How many places there are.
    pub places: u32,
    /// How many are taken.
    pub taken: u32,
    /// How many wait.
    pub waiting: usize,
}

impl Gate {
    /// A gate as the file has it; `reserve` is the share of it that is kept for critical requests.
    pub fn new(config: &Concurrency, reserve: f64) -> Arc<Self> {
        let gate = Arc::new(Self {
            taken: AtomicU64::new(0),
            places: AtomicU64::new(0),
            calm_below: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            queue: Mutex::default(),
            search: Mutex::default(),
        });
        gate.configure(config, reserve);
        gate
    }

    /// Goes by another configuration from now on. Whoever is in stays in, whoever waits goes on
    /// waiting, and what was found out is not forgotten.
    pub fn configure(&self, config: &Concurrency, reserve: f64) {
        {
            let mut queue = self.queue.lock();
            (queue.length, queue.reserve) = (config.queue, reserve);
        }
        let mut search = self.search.lock();
        match config.places {
            Places::Fixed(places) => {
                *search = None;
                drop(search);
                self.set_places(places, places, 0);
            }
            Places::Adaptive { min, max } => {
                let search = search.get_or_insert_with(|| Adaptive::new(min, max));
                search.bound(min, max);
                self.follow(search);
            }
        }
    }

    /// The number of a route among those whose answers are watched.
    pub fn pace(&self, route: &str) -> usize {
        self.search.lock().as_mut().map_or(0, |search| search.pace(route))
    }

    /// How it is doing.
    pub fn reading(&self) -> Reading {
        Reading {
            places: self.places().all,
            taken: self.taken().all,
            waiting: self.queue.lock().entries.len(),
        }
    }

    /// The chance by which a sheddable request is refused before all places are taken: none below four
    /// fifths of those that it may have, all when there are none.
    pub fn crowd(&self) -> f64 {
        const BEGINS: f64 = 0.8;
        let (taken, places) = (self.taken(), self.places());
        let share = |taken: u32, places: u32| f64::from(taken) / f64::from(places);
        let fullest = share(taken.ordinary, places.ordinary).max(share(taken.all, places.all));
        ((fullest - BEGINS) / (1.0 - BEGINS)).clamp(0.0, 1.0)
    }

    fn places(&self) -> Pair {
        Pair::of(self.places.load(Ordering::SeqCst))
    }

    fn taken(&self) -> Pair {
        Pair::of(self.taken.load(Ordering::SeqCst))
    }

    /// Another number of places; those who wait may have one of them. All but critical requests use
    /// only some of them now.
    #[expect(clippy::cast_sign_loss, reason = "a share of a count is no less than nothing")]
    fn set_places(&self, all: u32, used: u32, calm_below: u32) {
        let mut queue = self.queue.lock();
        // With a few places only, a dip takes long, and whoever waits it out waits for too long.
        queue.more = if all < FEW { 0 } else { all.saturating_sub(used) / 2 };
        let kept = (f64::from(all) * queue.reserve) as u32;
        // Whatever is kept, one is left for the others.
        let places = Pair { all, ordinary: (all - kept).min(used).max(1) };
        self.calm_below.store(calm_below.into(), Ordering::Relaxed);
        self.places.store(places.packed(), Ordering::SeqCst);
        self.serve(&mut queue);
    }

    /// Takes a place, if there is one and nobody waits for it who is as important.
    #[inline]
    pub fn enter(self: &Arc<Self>, priority: Priority, now: Micros) -> Option<Place> {
        let before = self.waiting.load(Ordering::SeqCst) & (bit(priority) * 2 - 1);
        if before != 0 {
            return None;
        }
        let start = self.take(priority, now)?;
        Some(Place { gate: Arc::clone(self), priority, start, aside: Cell::new(false) })
    }

    fn take(&self, priority: Priority, now: Micros) -> Option<Start> {
        let (places, one) = (self.places(), Pair::one(priority));
        let mut taken = self.taken.load(Ordering::SeqCst);
        loop {
            let Pair { all, ordinary } = Pair::of(taken);
            if all >= places.all || one.ordinary > 0 && ordinary >= places.ordinary {
                return None;
            }
            let next = Pair { all: all + 1, ordinary: ordinary + one.ordinary };
            match self.taken.compare_exchange_weak(
                taken,
                next.packed(),
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => {
                    let calm = u64::from(next.all) <= self.calm_below.load(Ordering::Relaxed);
                    let share = |taken: u32, places: u32| taken as f32 / places as f32;
                    let of_all = share(next.all, places.all);
                    let of_kind = share(next.ordinary * one.ordinary, places.ordinary);
                    let share = of_all.max(of_kind);
                    return Some(Start { in_flight: next.all, share, calm, at: now });
                }
                Err(current) => taken = current,
            }
        }
    }

    /// Waits for a place, behind whoever is more important and in turns with other callers. Whoever
    /// `insists` waits however many do.
    pub fn wait(
        self: &Arc<Self>,
        priority: Priority,
        caller: u64,
        insists: bool,
        now: Micros,
    ) -> Result<Waiting, Full> {
        // If nobody has been answered for long, nobody else has looked.
        self.search(|search| search.pass(now));
        let mut queue = self.queue.lock();
        let usual = || usual_length(self.places().all, priority) + queue.more;
        let length = queue.length.unwrap_or_else(usual);
        let length = if insists { LONGEST } else { length.min(LONGEST) };
        let own = |entry: &&Entry| (entry.priority, entry.caller) == (priority, caller);
        let behind = queue.entries.iter().filter(own).count() as u32;
        let last = queue.served.last(caller);
        if length == 0 {
            return Err(Full);
        }
        if queue.entries.len() >= length as usize {
            queue.make_room((priority, behind, last))?;
        }
        let (granted, on_granted) = oneshot::channel();
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.entries.push(Entry { ticket, priority, caller, behind, last, insists, granted });
        // Whoever leaves from now on looks into the queue; who has left before has made room.
        self.waiting.store(queue.waiting(), Ordering::SeqCst);
        self.serve(&mut queue);
        Ok(Waiting { gate: Arc::clone(self), priority, ticket, granted: on_granted })
    }

    /// Gives places to those who wait, as long as there are any.
    fn serve(&self, queue: &mut Queue) {
        for priority in Priority::ALL {
            while let Some(index) = queue.next(priority) {
                // When it begins is known when it has noticed.
                let Some(start) = self.take(priority, 0) else { break };
                let entry = queue.remove(index);
                queue.had_turn(entry.caller);
                // Whoever is in the queue is there to hear it: see `Waiting::drop`.
                let _ = entry.granted.send(start);
            }
        }
        self.waiting.store(queue.waiting(), Ordering::SeqCst);
    }

    fn leave(&self, priority: Priority) {
        self.taken.fetch_sub(Pair::one(priority).packed(), Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.serve(&mut self.queue.lock());
        }
    }

    /// Goes by what the search says.
    fn follow(&self, search: &Adaptive) {
        self.set_places(search.limit(), search.used(), search.calm_below());
        if search.is_new() {
            self.queue.lock().more = LONGEST;
        }
    }

    /// Has the search look at something; goes by what it says then.
    fn search(&self, look: impl FnOnce(&mut Adaptive)) {
        let mut search = self.search.lock();
        let Some(search) = search.as_mut() else { return };
        let said = |search: &Adaptive| (search.limit(), search.used(), search.calm_below());
        let (before, was_new) = (said(search), search.is_new());
        look(search);
        let (limit, used, calm_below) = said(search);
        if (limit, used, search.is_new()) != (before.0, before.1, was_new) {
            self.follow(search);
        } else if calm_below != before.2 {
            self.calm_below.store(calm_below.into(), Ordering::Relaxed);
        }
    }
}

impl Place {
    /// An answer came after so long, on the route of this number.
    pub fn answered(&self, pace: usize, took: Micros, now: Micros) {
        self.gate.search(|search| search.answered(pace, self.start, took, now));
    }

    /// It begins only now.
    pub fn begins(&mut self, now: Micros) {
        self.start.at = now;
    }

    /// Whether anybody wants to know how long its answer takes.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.gate.calm_below.load(Ordering::Relaxed) > 0
    }

    /// No answer came for so long, and nobody waits for one any more.
    pub fn gave_up(&self, pace: usize, waited: Micros, now: Micros) {
        self.gate.search(|search| search.gave_up(pace, self.start, waited, now));
    }

    /// The backend says by itself that it is overloaded.
    pub fn told(&self, now: Micros) {
        self.gate.search(|search| search.told(self.start, now));
    }

    /// Gives it back for as long as nothing can be done with it.
    pub fn step_aside(&self) {
        if !self.aside.replace(true) {
            self.gate.leave(self.priority);
        }
    }

    /// Takes it again, or one more if there is none: who was let in is not thrown out.
    pub fn come_back(&self) {
        if self.aside.replace(false) {
            self.gate.taken.fetch_add(Pair::one(self.priority).packed(), Ordering::SeqCst);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.step_aside();
    }
}

impl Waiting {
    /// Until there is a place, or somebody more important needs the room.
    pub async fn turn(&mut self) -> Result<Place, Full> {
        let start = (&mut self.granted).await.map_err(|_| Full)?;
        let (gate, priority) = (Arc::clone(&self.gate), self.priority);
        Ok(Place { gate, priority, start, aside: Cell::new(false) })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut queue = self.gate.queue.lock();
        let index = queue.entries.iter().position(|entry| entry.ticket == self.ticket);
        if let Some(index) = index {
            queue.remove(index);
            return self.gate.waiting.store(queue.waiting(), Ordering::SeqCst);
        }
        drop(queue);
        // A place that came too late.
        if self.granted.try_recv().is_ok() {
            self.gate.leave(self.priority);
        }
    }
}

#[cfg(test)]
#[cfg(shuttle)]
mod shuttled;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
