//! Every algorithm against its definition, computed the slow way from every admission ever made.

use super::*;
use proptest::prelude::*;

const START: Micros = 1_700_000_000 * SECOND;

/// One algorithm's definition: whether `cost` is admitted at `now` after these admissions.
type Admits = Box<dyn Fn(&[(Micros, u32)], Micros, u32) -> bool>;

struct Case {
    quota: Quota,
    admits: Admits,
    /// Whether the whole allowance is there exactly from `reset` on; a queue with a `max_wait`
    /// may have it earlier.
    exact_reset: bool,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.quota.fmt(f)
    }
}

fn sum(admitted: &[(Micros, u32)], counts: impl Fn(Micros) -> bool) -> u128 {
    admitted.iter().filter(|(at, _)| counts(*at)).map(|(_, cost)| u128::from(*cost)).sum()
}

fn bucket(rate: Rate, size: u32) -> Case {
    let (n, w) = (u128::from(rate.count), u128::from(rate.window));
    let admits = move |admitted: &[(Micros, u32)], now: Micros, cost: u32| {
        let (mut used, mut at) = (0_u128, 0);
        for &(then, cost) in admitted {
            used = used.saturating_sub(u128::from(then - at) * n) + u128::from(cost) * w;
            at = then;
        }
        used.saturating_sub(u128::from(now - at) * n) + u128::from(cost) * w <= u128::from(size) * w
    };
    let quota = Quota::token_bucket(rate, Some(size)).unwrap();
    Case { quota, admits: Box::new(admits), exact_reset: true }
}

fn fixed(rate: Rate) -> Case {
    let admits = move |admitted: &[(Micros, u32)], now: Micros, cost: u32| {
        let used = sum(admitted, |at| at / rate.window == now / rate.window);
        used + u128::from(cost) <= u128::from(rate.count)
    };
    let quota = Quota::fixed_window(rate).unwrap();
    Case { quota, admits: Box::new(admits), exact_reset: true }
}

fn sliding(rate: Rate) -> Case {
    let admits = move |admitted: &[(Micros, u32)], now: Micros, cost: u32| {
        let (w, this) = (u128::from(rate.window), now / rate.window);
        let current = sum(admitted, |at| at / rate.window == this);
        let previous = sum(admitted, |at| at / rate.window + 1 == this);
        let left = w - u128::from(now % rate.window);
        previous * left + (current + u128::from(cost)) * w <= u128::from(rate.count) * w
    };
    let quota = Quota::sliding_window(rate).unwrap();
    Case { quota, admits: Box::new(admits), exact_reset: true }
}

fn log(rate: Rate) -> Case {
    let admits = move |admitted: &[(Micros, u32)], now: Micros, cost: u32| {
        let used = sum(admitted, |at| now - at < rate.window);
        used + u128::from(cost) <= u128::from(rate.count)
    };
    let quota = Quota::sliding_log(rate).unwrap();
    Case { quota, admits: Box::new(admits), exact_reset: true }
}

/// When the queue is empty again, in N-ths of a microsecond.
fn queue_end(admitted: &[(Micros, u32)], rate: Rate) -> u128 {
    let (n, w) = (u128::from(rate.count), u128::from(rate.window));
    admitted.iter().fold(0, |end, &(at, cost)| end.max(u128::from(at) * n) + u128::from(cost) * w)
}

fn leaky(rate: Rate, queue: u32, max_wait: Micros) -> Case {
    let (n, w) = (u128::from(rate.count), u128::from(rate.window));
    let admits = move |admitted: &[(Micros, u32)], now: Micros, cost: u32| {
        let ahead = queue_end(admitted, rate).saturating_sub(u128::from(now) * n);
        let places = ahead.div_ceil(w) + u128::from(cost);
        let wait = ahead + (u128::from(cost) - 1) * w;
        places <= u128::from(queue) + 1 && wait <= u128::from(max_wait) * n
    };
    let quota = Quota::leaky_bucket(rate, queue, max_wait).unwrap();
    Case { quota, admits: Box::new(admits), exact_reset: false }
}

fn cases() -> impl Strategy<Value = Case> {
    let window = prop_oneof![Just(SECOND), Just(60 * SECOND), 1..7_777_777_u64];
    let count = prop_oneof![1..40_u32, Just(7), Just(997)];
    (0..5_u8, count, window, 1..40_u32, 0..3_000_000_u64).prop_map(
        |(which, count, window, size, wait)| {
            let rate = Rate { count, window };
            match which {
                0 => bucket(rate, size),
                1 => fixed(rate),
                2 => sliding(rate),
                3 => log(rate),
                _ => leaky(rate, size, wait),
            }
        },
    )
}

/// Streams that are held for long and cost nothing must not become a burst.
#[test]
fn reservations_cannot_be_saved_up() {
    let quota = Quota::token_bucket(Rate { count: 100, window: 60 * SECOND }, None).unwrap();
    let (mut held, mut streams, mut now) = (Held::default(), Vec::new(), START);
    for _ in 0..600 {
        let verdict = quota.ask(&mut held, now, 10);
        assert!(verdict.allowed);
        streams.push(verdict);
        now += 6 * SECOND;
    }
    let mut admitted = 0;
    for stream in streams {
        admitted += if quota.ask(&mut held, now, 10).allowed { 10 } else { 0 };
        let state = Seen::from(&held).as_state(Kind::Bucket);
        held = Held::State(quota.settle(Some(state), &stream, now, 0).unwrap());
    }
    assert_eq!(admitted, 100);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_algorithm_agrees_with_its_definition(
        case in cases(),
        steps in prop::collection::vec((0..5_u64, 0..3_000_000_u64, 1..5_u32), 1..50),
    ) {
        let Case { quota, admits, exact_reset } = &case;
        let mut admitted: Vec<(Micros, u32)> = Vec::new();
        let mut held = Held::default();
        let mut now = START;
        let Rate { count, window } = quota.rate();
        for (pace, jitter, cost) in steps {
            let interval = (window / u64::from(count)).max(1);
            now += match pace { 0 => 0, 1 => jitter % interval, 2 => interval, 3 => window, _ => jitter };
            let verdict = quota.check(&held, now, cost);
            prop_assert_eq!(verdict.allowed, admits(&admitted, now, cost), "{:?}", quota);
            if verdict.allowed {
                quota.take(&mut held, &verdict);
                if quota.is_queue() {
                    let ahead = queue_end(&admitted, quota.rate());
                    let n = u128::from(count);
                    let delay = ahead.saturating_sub(u128::from(now) * n).div_ceil(n);
                    prop_assert_eq!(u128::from(verdict.delay()), delay);
                }
                admitted.push((now, cost));
            } else if cost <= quota.capacity() {
                let at = now + verdict.retry_after();
                prop_assert!(admits(&admitted, at, cost), "admitted after the wait: {quota:?}");
                prop_assert!(!admits(&admitted, at - 1, cost), "not a moment before: {quota:?}");
            }
            let remaining = (1..=quota.capacity()).take_while(|n| admits(&admitted, now, n * cost));
            prop_assert_eq!(verdict.remaining() as usize, remaining.count(), "{:?}", quota);
            prop_assert_eq!(quota.peek(&held, now, cost).remaining(), verdict.remaining());
            let (next, reset) = (quota.next(&verdict), quota.reset(&verdict));
            let whole = now + reset;
            prop_assert!(admits(&admitted, whole, quota.capacity()), "whole: {quota:?}");
            prop_assert!(quota.is_whole(&held, whole));
            prop_assert_eq!(quota.is_whole(&held, now), reset == 0);
            if *exact_reset && reset > 0 {
                prop_assert!(!admits(&admitted, whole - 1, quota.capacity()), "{quota:?}");
            }
            if next > 0 && next < reset {
                let more = (verdict.remaining() + 1) * cost;
                prop_assert!(admits(&admitted, now + next, more), "more: {quota:?}");
                prop_assert!(!admits(&admitted, now + next - 1, more), "{quota:?}");
            }
        }
    }

    #[test]
    fn settled_costs_never_count_less_than_if_they_had_been_known(
        (which, count, window) in (0..3_u8, 1..40_u32, prop_oneof![Just(SECOND), 1..7_777_777_u64]),
        steps in prop::collection::vec((0..4_u64, 0..3_000_000_u64, 0..9_u32, 0..60_u32), 1..60),
    ) {
        let rate = Rate { count, window };
        let (n, w) = (u128::from(count), u128::from(window));
        let quota = match which {
            0 => Quota::token_bucket(rate, None),
            1 => Quota::fixed_window(rate),
            _ => Quota::sliding_window(rate),
        }.unwrap();
        let mut held = Held::default();
        let (mut admitted, mut open) = (Vec::<(Micros, u32)>::new(), Vec::new());
        // Every cost so far was settled at the moment of its admission.
        let mut known = true;
        let mut now = START;
        for (pace, jitter, reserve, actual) in steps {
            now += match pace { 0 => 0, 1 => window / u64::from(count), 2 => window, _ => jitter };
            if reserve == 0 && !open.is_empty() {
                let (index, stream): (usize, Verdict) =
                    open.swap_remove(jitter as usize % open.len());
                let (then, reserved) = admitted[index];
                if which > 0 && then / window != now / window && actual > reserved {
                    // Its window is over: what exceeds the reserve counts in the current one.
                    admitted.push((now, actual - reserved));
                } else {
                    admitted[index].1 = actual;
                }
                known &= stream.at == now || actual == stream.cost;
                let state = Seen::from(&held).as_state(quota.kind());
                if let Some(next) = quota.settle(Some(state), &stream, now, actual) {
                    held = Held::State(next);
                }
            } else {
                let reserve = reserve.max(1);
                let before = quota.peek(&held, now, 1).unused;
                let expected = match which {
                    // As if every cost had been known from the beginning.
                    0 => {
                        let (mut used, mut at) = (0_u128, START);
                        for &(then, cost) in admitted.iter().chain([&(now, 0)]) {
                            used = used.saturating_sub(u128::from(then - at) * n);
                            used += u128::from(cost) * w;
                            at = then;
                        }
                        (n * w).saturating_sub(used) / w
                    }
                    1 => n.saturating_sub(sum(&admitted, |at| at / window == now / window)),
                    _ => {
                        let current = sum(&admitted, |at| at / window == now / window);
                        let previous = sum(&admitted, |at| at / window + 1 == now / window);
                        let left = w - u128::from(now % window);
                        n.saturating_sub(current).saturating_sub((previous * left).div_ceil(w))
                    }
                };
                // A bucket may be stricter: what it costs more is used only now, and what time has
                // given back is not given back again.
                prop_assert!(u128::from(before) <= expected, "{quota:?}");
                if which > 0 || known {
                    prop_assert_eq!(u128::from(before), expected, "{:?}", quota);
                }
                let verdict = quota.ask(&mut held, now, reserve);
                prop_assert_eq!(verdict.allowed, reserve <= before);
                if verdict.allowed {
                    open.push((admitted.len(), verdict));
                    admitted.push((now, reserve));
                } else {
                    let later = now + verdict.retry_after();
                    if reserve <= quota.capacity() {
                        prop_assert!(quota.check(&held, later, reserve).allowed);
                        prop_assert!(!quota.check(&held, later - 1, reserve).allowed);
                    }
                }
            }
        }
    }

    #[test]
    fn time_that_goes_backwards_forgives_nothing(case in cases(), back in 0..100 * SECOND) {
        let Case { quota, .. } = &case;
        let mut held = Held::default();
        let verdict = quota.check(&held, START, quota.capacity());
        prop_assert!(verdict.allowed);
        quota.take(&mut held, &verdict);
        let verdict = quota.check(&held, START - back, quota.capacity());
        prop_assert!(!verdict.allowed, "{quota:?}");
        let later = quota.check(&held, START - back + verdict.retry_after(), quota.capacity());
        prop_assert!(later.allowed, "{quota:?}");
    }

    #[test]
    fn an_edited_algorithm_keeps_what_was_used(from in cases(), to in cases(), cost in 1..5_u32) {
        let mut held = Held::default();
        let mut used = 0;
        while used < 20 {
            let verdict = from.quota.check(&held, START, cost);
            if !verdict.allowed { break }
            from.quota.take(&mut held, &verdict);
            used += cost;
        }
        let left = to.quota.capacity().saturating_sub(used);
        let unused = to.quota.peek(&held, START, 1).unused;
        prop_assert_eq!(unused, left, "{:?} to {:?}", from.quota, to.quota);
    }
}

#[test]
fn the_fixed_window_shows_twice_its_rate_at_the_boundary_and_the_log_does_not() {
    let rate = Rate { count: 100, window: 60 * SECOND };
    let boundary = START / (60 * SECOND) * 60 * SECOND + 60 * SECOND;
    let around = |quota: Quota| {
        let mut held = Held::default();
        let moments = [boundary - SECOND, boundary];
        let asked = moments.iter().flat_map(|at| std::iter::repeat_n(*at, 100));
        asked
            .filter(|at| {
                let verdict = quota.ask(&mut held, *at, 1);
                verdict.allowed
            })
            .count()
    };
    assert_eq!(around(Quota::fixed_window(rate).unwrap()), 200);
    assert_eq!(around(Quota::sliding_log(rate).unwrap()), 100);
    assert_eq!(around(Quota::sliding_window(rate).unwrap()), 100);
}

#[test]
fn a_queue_of_forty_serves_forty_one_of_a_burst_each_in_turn() {
    let quota = Quota::leaky_bucket(Rate { count: 50, window: SECOND }, 40, 10 * SECOND).unwrap();
    let mut held = Held::default();
    let mut delays = Vec::new();
    for _ in 0..100 {
        let verdict = quota.ask(&mut held, START, 1);
        if verdict.allowed {
            delays.push(verdict.delay());
        } else {
            assert_eq!(verdict.retry_after(), 20_000);
        }
    }
    assert_eq!(delays, (0..41).map(|n| n * 20_000).collect::<Vec<_>>());
}

#[test]
fn whoever_leaves_from_the_last_place_gives_it_back() {
    let quota = Quota::leaky_bucket(Rate { count: 10, window: SECOND }, 2, 10 * SECOND).unwrap();
    let mut held = Held::default();
    let mut afters = Vec::new();
    for _ in 0..3 {
        let verdict = quota.check(&held, START, 1);
        assert!(verdict.allowed);
        quota.take(&mut held, &verdict);
        afters.push(verdict);
    }
    let later = START + 30_000;
    assert!(!quota.check(&held, later, 1).allowed);
    let leave = |held: &Held, place: &Verdict| {
        let Held::State(state) = *held else { panic!() };
        quota.give_back(state, place, later)
    };
    assert_eq!(leave(&held, &afters[1]), None, "somebody is behind");
    held = Held::State(leave(&held, &afters[2]).expect("the last place"));
    assert!(quota.check(&held, later, 1).allowed);
    // Now the one before is the last.
    assert!(leave(&held, &afters[1]).is_some());
}

#[test]
fn what_is_in_flight_is_given_back_once() {
    let quota = Quota::concurrency(2).unwrap();
    let mut held = Held::default();
    let first = quota.check(&held, START, 1);
    for allowed in [true, true, false] {
        assert_eq!(quota.ask(&mut held, START, 1).allowed, allowed);
    }
    let mut state = Seen::from(&held).as_state(Kind::Concurrency);
    for used in [1, 0, 0] {
        state = quota.give_back(state, &first, START).expect("a place");
        assert_eq!(state.used, used);
    }
    let bucket = Quota::token_bucket(Rate { count: 5, window: SECOND }, None).unwrap();
    let verdict = bucket.check(&held, START, 3);
    bucket.take(&mut held, &verdict);
    let state = Seen::from(&held).as_state(Kind::Bucket);
    assert_eq!(quota.give_back(state, &first, START), None, "not in flight any more");
}

#[test]
fn what_cannot_be_represented_is_refused() {
    let rate = |count, window| Rate { count, window };
    assert_eq!(Quota::fixed_window(rate(0, SECOND)), Err(QuotaError::ZeroRate));
    assert_eq!(Quota::sliding_window(rate(1, 0)), Err(QuotaError::ZeroWindow));
    assert_eq!(Quota::sliding_log(rate(10_001, SECOND)), Err(QuotaError::LogTooLong));
    assert_eq!(Quota::fixed_window(rate(u32::MAX, SECOND)), Err(QuotaError::RateTooLarge));
    assert_eq!(Quota::gcra(rate(1, MAX_WINDOW + 1), None), Err(QuotaError::WindowTooLong));
    let slow = Quota::token_bucket(rate(1, MAX_WINDOW), Some(1000));
    assert_eq!(slow, Err(QuotaError::TooSlow));
}
