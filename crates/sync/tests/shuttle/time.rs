//! Virtual time in executions that follow from a seed.

use foliocache_sync::model::{run_seeds, with_virtual_time};
use foliocache_sync::thread;
use foliocache_sync::time::{Duration, Instant, sleep};

#[test]
fn a_sleep_takes_its_time_and_no_longer() {
    let run = run_seeds(
        0..50,
        |_| {},
        |_| {
            with_virtual_time(|| {
                let begun = Instant::now();
                let other = thread::spawn(move || {
                    sleep(Duration::from_secs(2));
                    assert_eq!(begun.elapsed(), Duration::from_secs(2));
                });
                sleep(Duration::from_secs(1));
                assert_eq!(begun.elapsed(), Duration::from_secs(1));
                other.join().expect("it does not panic");
                assert_eq!(begun.elapsed(), Duration::from_secs(2));
            });
        },
    );
    assert_eq!(run, Ok(()));
}

/// Shuttle alone sees no deadlock, since one thread can always go on.
#[test]
fn a_wait_without_end_is_found_beside_a_thread_that_works_now_and_then() {
    let run = run_seeds(
        7..8,
        |_| {},
        |_| {
            with_virtual_time(|| {
                thread::spawn(|| {
                    loop {
                        sleep(Duration::from_secs(1));
                    }
                });
                thread::park();
            });
        },
    );
    assert_eq!(run, Err(7));
}
