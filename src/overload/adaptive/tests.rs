//! The search by itself; `simulated` has it in front of backends.

use super::*;

const TOOK: Micros = 20_000;

/// So many answers, 2 ms apart, with as much under way as there may be. Some say by themselves that
/// it is too much.
fn answers(search: &mut Adaptive, now: &mut Micros, count: u32, told: impl Fn(u32) -> bool) {
    for number in 0..count {
        *now += 2000;
        let in_flight = search.used();
        let (calm, at) = (in_flight <= search.calm_below(), now.saturating_sub(TOOK));
        let start = Start { in_flight, share: 1.0, calm, at };
        if told(number) {
            search.told(start, *now);
        } else {
            search.answered(0, start, TOOK, *now);
        }
    }
}

fn search() -> Adaptive {
    let mut search = Adaptive::new(1, 1000);
    search.pace("a");
    search
}

#[test]
fn it_grows_as_long_as_answers_take_no_longer() {
    let (mut search, mut now) = (search(), 0);
    answers(&mut search, &mut now, 2000, |_| false);
    assert_eq!(search.limit(), 1000);
}

#[test]
fn a_few_who_say_that_it_is_too_much_do_not_speak_for_all() {
    let (mut search, mut now) = (search(), 0);
    answers(&mut search, &mut now, 2000, |number| number % 12 == 0);
    assert_eq!(search.limit(), 1000);
    answers(&mut search, &mut now, 2000, |number| number % 3 == 0);
    assert!(search.limit() < 50, "{}", search.limit());
}

#[test]
fn who_says_nothing_but_that_it_is_too_much_is_heard() {
    let (mut search, mut now) = (search(), 0);
    answers(&mut search, &mut now, 2000, |_| false);
    answers(&mut search, &mut now, 2000, |_| true);
    assert!(search.limit() <= 2, "{}", search.limit());
}

#[test]
fn a_dip_ends_though_nobody_answers() {
    let (mut search, mut now) = (search(), 0);
    while search.used() == search.limit() {
        answers(&mut search, &mut now, 1, |_| false);
    }
    search.pass(now + LONGEST_DIP);
    assert_eq!(search.used(), search.limit());
}

#[test]
fn whoever_gave_up_says_how_long_it_would_have_taken_at_least() {
    let (mut search, mut now) = (search(), 0);
    answers(&mut search, &mut now, 2000, |_| false);
    for _ in 0..2000 {
        now += 2000;
        let start = Start { in_flight: 1000, share: 1.0, calm: false, at: now - 1000 };
        search.gave_up(0, start, 1000, now);
    }
    assert_eq!(search.limit(), 1000, "who leaves at once says nothing");
    for _ in 0..3000 {
        now += 2000;
        let start = Start { in_flight: 1000, share: 1.0, calm: false, at: now };
        search.gave_up(0, start, 50 * TOOK, now);
    }
    assert!(search.limit() < 100, "{}", search.limit());
}

#[test]
fn a_route_of_another_search_is_nobodys() {
    let mut search = search();
    let start = Start { in_flight: 1, share: 1.0, calm: true, at: 0 };
    search.answered(7, start, TOOK, 0);
    search.gave_up(7, start, TOOK, 0);
}
