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

use super::adaptive::{Adaptive, Start};
use crate::clock::Micros;
use crate::config::model::{Concurrency, Places, Priority};
use crate::sync::{AtomicU64, Mutex, Ordering};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Fewer places than this are few.
const FEW: u32 = 8;

/// The longest queue: it is looked through by whoever leaves.
const LONGEST: u32 = 1000;

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

#[derive(Debug, Default)]
struct Queue {
    /// How many may wait, if that is fixed.
    length: Option<u32>,
    /// The share that is kept for critical requests.
    reserve: f64,
    /// How many more may wait: while some places are not used for a moment, and as long as nobody knows
    /// how many there should be.
    more: u32,
    entries: Vec<Entry>,
    next_ticket: u64,
    served: Served,
}

/// Who was served lately, and when: turns are counted, not time.
#[derive(Debug, Default)]
struct Served {
    turns: u64,
    last: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
}

#[derive(Debug)]
struct Entry {
    ticket: u64,
    priority: Priority,
    caller: u64,
    /// How many of the same caller wait before it.
    behind: u32,
    /// The turn in which its caller was served last; none for those who were not served lately.
    last: u64,
    /// Makes room for nobody.
    insists: bool,
    granted: oneshot::Sender<Start>,
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

/// There is no place, and nobody less important waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

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

/// How many may wait, where the file does not say. Whoever is critical finds all places taken by
/// others, and takes over one after the other: that takes longer, and is worth waiting for.
fn usual_length(places: u32, priority: Priority) -> u32 {
    let length = match priority {
        Priority::Critical => places.max(16) * 2,
        Priority::Normal | Priority::Sheddable => (places / 2).max(3),
    };
    length.min(LONGEST)
}

fn bit(priority: Priority) -> u64 {
    1 << priority as u64
}

impl Queue {
    /// Which priorities wait.
    fn waiting(&self) -> u64 {
        self.entries.iter().fold(0, |all, entry| all | bit(entry.priority))
    }

    /// Whose turn it is: of the callers who wait, it is the one who was served longest ago.
    fn next(&self, priority: Priority) -> Option<usize> {
        let entries = self.entries.iter().enumerate();
        let first = entries.filter(|(_, entry)| (entry.priority, entry.behind) == (priority, 0));
        first.min_by_key(|(_, entry)| (entry.last, entry.ticket)).map(|(index, _)| index)
    }

    /// Takes somebody out; those who wait behind them move up.
    fn remove(&mut self, index: usize) -> Entry {
        let gone = self.entries.swap_remove(index);
        for entry in &mut self.entries {
            let same = (entry.priority, entry.caller) == (gone.priority, gone.caller);
            if same && entry.behind > gone.behind {
                entry.behind -= 1;
            }
        }
        gone
    }

    /// A caller was served.
    fn had_turn(&mut self, caller: u64) {
        let last = self.served.note(caller);
        for entry in self.entries.iter_mut().filter(|entry| entry.caller == caller) {
            entry.last = last;
        }
    }

    /// The least of those who wait goes, if it is less than this one: the least important, of those
    /// one of the caller who has most waiting, of those one who was served last.
    fn make_room(&mut self, rank: (Priority, u32, u64)) -> Result<(), Full> {
        let of = |entry: &Entry| (entry.priority, entry.behind, entry.last);
        let entries = self.entries.iter().enumerate().filter(|(_, entry)| !entry.insists);
        let least = entries.max_by_key(|(_, entry)| (of(entry), entry.ticket));
        let (index, least) = least.ok_or(Full)?;
        if of(least) <= rank {
            return Err(Full);
        }
        drop(self.remove(index)); // they hear of it
        Ok(())
    }
}

impl Served {
    /// More than this many turns ago is never.
    const LATELY: usize = 1000;

    fn last(&self, caller: u64) -> u64 {
        self.last.get(&caller).copied().unwrap_or(0)
    }

    /// This caller is served now: by the number of the turn.
    fn note(&mut self, caller: u64) -> u64 {
        self.turns += 1;
        self.last.insert(caller, self.turns);
        self.order.push_back((self.turns, caller));
        if self.order.len() > Self::LATELY
            && let Some((turn, caller)) = self.order.pop_front()
            && self.last(caller) == turn
        {
            self.last.remove(&caller);
        }
        self.turns
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
}

impl Place {
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
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use Priority::{Critical, Normal, Sheddable};
    use std::pin::pin;
    use std::sync::atomic::AtomicU32;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    fn gate(places: u32, queue: Option<u32>, reserve: f64) -> Arc<Gate> {
        let places = Places::Fixed(places);
        Gate::new(&Concurrency { places, queue, max_wait: Duration::from_secs(1) }, reserve)
    }

    /// What has come of waiting.
    fn look(waiting: &mut Waiting) -> Poll<Result<Place, Full>> {
        pin!(waiting.turn()).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn got(waiting: &mut Waiting) -> Option<Place> {
        match look(waiting) {
            Poll::Ready(place) => place.ok(),
            Poll::Pending => None,
        }
    }

    /// Who gets the place one after the other, when it is left.
    fn served<T>(mut waiting: Vec<(T, Waiting)>, place: Option<Place>) -> Vec<T> {
        drop(place);
        let mut order = Vec::new();
        let next = |(index, (_, waiting)): (usize, &mut (T, Waiting))| Some((index, got(waiting)?));
        while let Some((index, place)) = waiting.iter_mut().enumerate().find_map(next) {
            order.push(waiting.remove(index).0);
            drop(place);
        }
        order
    }

    #[test]
    fn there_are_as_many_places_as_there_are() {
        let gate = gate(2, Some(0), 0.0);
        let (one, two) = (gate.enter(Normal, 0), gate.enter(Critical, 0));
        assert!(one.is_some() && two.is_some());
        assert!(gate.enter(Critical, 0).is_none());
        assert_eq!(gate.wait(Critical, 1, false, 0).unwrap_err(), Full);
        drop(one);
        assert!(gate.enter(Sheddable, 0).is_some());
    }

    #[test]
    fn a_share_is_kept_for_critical_requests() {
        let gate = gate(10, Some(0), 0.2);
        let ordinary: Vec<Place> = (0..20).filter_map(|_| gate.enter(Normal, 0)).collect();
        assert_eq!(ordinary.len(), 8);
        let critical: Vec<Place> = (0..20).filter_map(|_| gate.enter(Critical, 0)).collect();
        assert_eq!(critical.len(), 2);
        drop(ordinary);
        let critical: Vec<Place> = (0..20).filter_map(|_| gate.enter(Critical, 0)).collect();
        assert_eq!(critical.len(), 8, "they may have the others as well");
        drop((critical, gate));
        // Whatever is kept, somebody else gets a place.
        assert!(self::gate(1, Some(0), 0.9).enter(Normal, 0).is_some());
    }

    #[test]
    fn the_most_important_goes_first() {
        let gate = gate(1, None, 0.0);
        let place = gate.enter(Normal, 0);
        let all = [Sheddable, Normal, Critical];
        let waiting = all.map(|priority| (priority, gate.wait(priority, 1, false, 0).unwrap()));
        assert_eq!(served(waiting.into(), place), [Critical, Normal, Sheddable]);
    }

    #[test]
    fn callers_take_turns_however_many_each_has_waiting() {
        let gate = gate(1, Some(100), 0.0);
        let place = gate.enter(Normal, 0);
        let callers = [1, 1, 1, 1, 2, 3, 2];
        let waiting = callers.map(|caller| (caller, gate.wait(Normal, caller, false, 0).unwrap()));
        assert_eq!(served(waiting.into(), place), [1, 2, 3, 1, 2, 1, 1]);
    }

    #[test]
    fn a_full_queue_makes_room_for_whoever_is_more_important_or_asks_less() {
        let gate = gate(1, Some(3), 0.0);
        let _place = gate.enter(Normal, 0);
        let mut flood: Vec<Waiting> =
            (0..3).map(|_| gate.wait(Normal, 1, false, 0).unwrap()).collect();
        assert_eq!(gate.wait(Normal, 1, false, 0).unwrap_err(), Full);
        assert_eq!(gate.wait(Sheddable, 2, false, 0).unwrap_err(), Full);
        let _other = gate.wait(Normal, 2, false, 0).unwrap();
        assert!(matches!(look(&mut flood[2]), Poll::Ready(Err(Full))), "the last one goes");
        let _critical = gate.wait(Critical, 3, false, 0).unwrap();
        assert!(matches!(look(&mut flood[1]), Poll::Ready(Err(Full))));
        assert!(look(&mut flood[0]).is_pending());
        assert_eq!(gate.reading().waiting, 3);
    }

    #[test]
    fn a_place_that_is_left_belongs_to_who_waits() {
        let gate = gate(1, None, 0.0);
        let place = gate.enter(Normal, 0);
        let mut waiting = gate.wait(Normal, 1, false, 0).unwrap();
        drop(place);
        assert!(gate.enter(Normal, 0).is_none(), "the place is somebody's");
        let place = got(&mut waiting);
        assert!(place.is_some());
        drop((place, waiting));
        assert!(gate.enter(Normal, 0).is_some());
    }

    #[test]
    fn whoever_gives_up_leaves_nothing_behind() {
        let gate = gate(1, None, 0.0);
        let place = gate.enter(Normal, 0);
        let (gone, late) =
            (gate.wait(Normal, 1, false, 0).unwrap(), gate.wait(Normal, 2, false, 0).unwrap());
        drop(gone);
        drop(place); // goes to the second
        assert_eq!(gate.reading(), Reading { places: 1, taken: 1, waiting: 0 });
        drop(late); // which has not noticed
        assert_eq!(gate.reading(), Reading { places: 1, taken: 0, waiting: 0 });
    }

    #[test]
    fn another_configuration_counts_at_once_and_throws_nobody_out() {
        let gate = gate(1, None, 0.0);
        let mut places = vec![gate.enter(Normal, 0)];
        let mut waiting = gate.wait(Normal, 1, false, 0).unwrap();
        let more =
            Concurrency { places: Places::Fixed(2), queue: None, max_wait: Duration::from_secs(1) };
        gate.configure(&more, 0.0);
        places.push(got(&mut waiting));
        assert!(places[1].is_some());
        gate.configure(&Concurrency { places: Places::Fixed(1), ..more }, 0.0);
        assert_eq!(gate.reading().taken, 2);
        places.pop();
        assert!(gate.enter(Normal, 0).is_none());
        places.pop();
        assert!(gate.enter(Normal, 0).is_some());
    }

    /// Serves callers who ask again as soon as they are served, and try again when they are refused.
    /// Each keeps so many requests waiting. Says how often each was served.
    fn serve_in_turns(queue: u32, callers: &[usize], turns: usize) -> Vec<usize> {
        let gate = gate(1, Some(queue), 0.0);
        let mut place = gate.enter(Normal, 0);
        let mut waiting: Vec<Vec<Waiting>> = callers.iter().map(|_| Vec::new()).collect();
        let mut served = vec![0; callers.len()];
        for _ in 0..turns {
            for (caller, waiting) in waiting.iter_mut().enumerate() {
                waiting.retain_mut(|waiting| look(waiting).is_pending());
                while waiting.len() < callers[caller] {
                    let Ok(next) = gate.wait(Normal, caller as u64, false, 0) else { break };
                    waiting.push(next);
                }
            }
            drop(place.take());
            for (caller, waiting) in waiting.iter_mut().enumerate() {
                waiting.retain_mut(|waiting| match look(waiting) {
                    Poll::Pending => true,
                    Poll::Ready(Err(Full)) => false,
                    Poll::Ready(Ok(next)) => {
                        place = Some(next);
                        served[caller] += 1;
                        false
                    }
                });
            }
        }
        served
    }

    #[test]
    fn whoever_asks_more_is_served_as_often_as_the_others() {
        let mut callers = vec![1; 20];
        (callers[0], callers[7]) = (2, 30);
        let served = serve_in_turns(100, &callers, 2000);
        assert!(served.iter().all(|count| (90..=110).contains(count)), "{served:?}");
    }

    #[test]
    fn a_short_queue_is_nobodys_own() {
        let served = serve_in_turns(5, &[1; 20], 2000);
        assert!(served.iter().all(|count| (60..=140).contains(count)), "{served:?}");
    }

    #[test]
    fn threads_never_have_more_places_than_there_are() {
        let gate = gate(3, Some(100), 0.34);
        let (inside, ordinary) = (AtomicU32::new(0), AtomicU32::new(0));
        let rounds = 5000;
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (gate, inside, ordinary) = (&gate, &inside, &ordinary);
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    let priority = Priority::ALL[thread as usize % 3];
                    for _ in 0..rounds {
                        let place = gate.enter(priority, 0).unwrap_or_else(|| {
                            let mut waiting = gate.wait(priority, thread, false, 0).unwrap();
                            runtime.block_on(waiting.turn()).unwrap()
                        });
                        let mine = u32::from(priority != Critical);
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < 3);
                        assert!(ordinary.fetch_add(mine, Ordering::SeqCst) < 2 + (1 - mine));
                        ordinary.fetch_sub(mine, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(place);
                    }
                });
            }
        });
        assert_eq!(gate.reading(), Reading { places: 3, taken: 0, waiting: 0 });
    }
}

/// The gate under every order of events that shuttle can think of: `make shuttle`.
#[cfg(test)]
#[cfg(shuttle)]
mod shuttled {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    /// Nobody waits for ever while a place is free, and nobody has one too many.
    #[test]
    fn a_place_that_is_left_is_taken() {
        let test = || {
            let places = Places::Fixed(1);
            let max_wait = Duration::from_secs(1);
            let gate = Gate::new(&Concurrency { places, queue: Some(5), max_wait }, 0.0);
            let inside = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..3)
                .map(|caller| {
                    let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
                    shuttle::thread::spawn(move || {
                        let place = gate.enter(Priority::Normal, 0).unwrap_or_else(|| {
                            let mut waiting =
                                gate.wait(Priority::Normal, caller, false, 0).unwrap();
                            loop {
                                let mut cx = Context::from_waker(Waker::noop());
                                match pin!(waiting.turn()).poll(&mut cx) {
                                    Poll::Ready(place) => break place.unwrap(),
                                    Poll::Pending => shuttle::thread::yield_now(),
                                }
                            }
                        });
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(place);
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(gate.reading(), Reading { places: 1, taken: 0, waiting: 0 });
        };
        shuttle::check_random(test, 1000);
        shuttle::check_pct(test, 1000, 3);
    }
}
