//! The gate under every order of events that shuttle can think of: `make shuttle`.

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
                        let mut waiting = gate.wait(Priority::Normal, caller, false, 0).unwrap();
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
