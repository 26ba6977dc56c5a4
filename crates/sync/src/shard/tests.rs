//! Tests of [`super`].

use super::*;
use std::sync::Barrier;

#[test]
fn threads_alive_at_once_have_numbers_of_their_own() {
    let mine = thread_shard();
    assert_eq!(mine, thread_shard());
    let barrier = Barrier::new(8);
    let mut numbers: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let number = thread_shard();
                    barrier.wait();
                    number
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect()
    });
    numbers.push(mine);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 9);
}

#[test]
fn the_lowest_free_number_is_taken() {
    let numbers = Numbers([const { AtomicU64::new(0) }; WORDS]);
    for expected in 0..MOST {
        assert_eq!(numbers.take(), Some(expected));
    }
    assert_eq!(numbers.take(), None);
    numbers.put(700);
    numbers.put(65);
    numbers.put(64);
    assert!(!numbers.take_one(63) && numbers.take_one(64));
    assert_eq!(numbers.take(), Some(65));
    assert_eq!(numbers.take(), Some(700));
    assert_eq!(numbers.take(), None);
}

#[test]
fn a_number_is_looked_after_only_while_it_is_free() {
    let mine = thread_shard();
    assert_eq!(with_free(mine, || ()), None);
    assert_eq!(with_free(MOST, || ()), None);
    assert_eq!(with_free(UNNUMBERED, || ()), None);
    // No test has this many threads at once.
    let (free, taken) = (MOST - 1, MOST - 2);
    assert_eq!(
        with_free(free, || with_free(free, || ())),
        Some(None),
        "it is held meanwhile"
    );
    assert_eq!(with_free(free, || with_free(taken, || 7)), Some(Some(7)));
    assert_eq!(with_free(free, || 8), Some(8));
}

#[test]
fn shards_are_a_power_of_two_and_enough_for_the_processors() {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(shard_count().is_power_of_two());
    assert!(shard_count() >= usable.min(MAX_SHARDS));
    assert_eq!(shard_count(), shard_count());
}
