//! Who gets a place, and when.

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
    let mut flood: Vec<Waiting> = (0..3).map(|_| gate.wait(Normal, 1, false, 0).unwrap()).collect();
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
