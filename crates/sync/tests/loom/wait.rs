//! Wait tables and bit locks over all interleavings: no wake-up is lost (a lost one deadlocks the model), and a
//! lock bit excludes. Each side of a race is a separate thread.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::model::explore;
use foliocache_sync::wait::{LockBits, WaitTable};
use foliocache_sync::{Arc, thread};

const BITS: LockBits = LockBits {
    locked: 1,
    waiters: 2,
};
const BUSY: u64 = 4;

struct Shared {
    table: WaitTable,
    word: AtomicU64,
    content: UnsafeCell<u64>,
}

// SAFETY: the content is accessed under the lock bit only, which the model checks.
unsafe impl Sync for Shared {}
// SAFETY: the content is accessed under the lock bit only, which the model checks.
unsafe impl Send for Shared {}

impl Shared {
    fn new(word: u64) -> Arc<Self> {
        Arc::new(Self {
            table: WaitTable::with_buckets(1),
            word: AtomicU64::new(word),
            content: UnsafeCell::new(0),
        })
    }

    fn add_locked(&self) {
        BITS.lock(&self.word, &self.table);
        // SAFETY: under the lock.
        self.content.with_mut(|pointer| unsafe { *pointer += 1 });
        BITS.unlock(&self.word, &self.table);
    }
}

fn spawn<R: 'static>(
    shared: &Arc<Shared>,
    run: impl FnOnce(&Shared) -> R + 'static,
) -> thread::JoinHandle<R> {
    let shared = Arc::clone(shared);
    thread::spawn(move || run(&shared))
}

fn join<R>(threads: impl IntoIterator<Item = thread::JoinHandle<R>>) -> Vec<R> {
    let join = |thread: thread::JoinHandle<R>| thread.join().expect("it does not panic");
    threads.into_iter().map(join).collect()
}

#[test]
fn a_condition_made_true_wakes_its_waiter() {
    explore(3, 10, || {
        let shared = Shared::new(0);
        let waker = spawn(&shared, |shared| {
            // Relaxed: the bucket's lock orders it.
            shared.word.store(1, Ordering::Relaxed);
            shared.table.wake_all(7);
        });
        let waiter = spawn(&shared, |shared| {
            let is_set = || shared.word.load(Ordering::Relaxed) == 1;
            shared.table.wait(7, is_set);
        });
        join([waker, waiter]);
    });
}

fn lock_the_bit(threads: u64) {
    let shared = Shared::new(0);
    let all: Vec<_> = (0..threads)
        .map(|_| spawn(&shared, Shared::add_locked))
        .collect();
    join(all);
    // SAFETY: all other threads have ended.
    let content = shared.content.with(|pointer| unsafe { *pointer });
    assert_eq!(content, threads);
    assert_eq!(shared.word.load(Ordering::Relaxed), 0);
}

#[test]
fn two_lock_the_bit() {
    explore(3, 10, || lock_the_bit(2));
}

#[test]
fn three_lock_the_bit() {
    explore(2, 100, || lock_the_bit(3));
}

/// One waits for the lock bit and one for another bit of the word; they share the waiters bit.
#[test]
fn two_conditions_share_the_waiters_bit() {
    explore(2, 3000, || {
        let shared = Shared::new(BITS.locked | BUSY);
        let locker = spawn(&shared, Shared::add_locked);
        let waiter = spawn(&shared, |shared| {
            BITS.wait_clear(&shared.word, &shared.table, BUSY);
        });
        let releaser = spawn(&shared, |shared| {
            BITS.unlock(&shared.word, &shared.table);
            BITS.clear(&shared.word, &shared.table, BUSY);
        });
        join([locker, waiter, releaser]);
        assert_eq!(shared.word.load(Ordering::Relaxed), 0);
    });
}

/// Sets a flag, which the model sees.
struct Flag(AtomicU64);

impl std::task::Wake for Flag {
    fn wake(self: Arc<Self>) {
        // Release pairs with the Acquire of the test.
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Leaves a waker until `bits` are clear; whether they were, and how often it is called.
fn wait_async(shared: &Arc<Shared>, bits: u64) -> (Arc<Flag>, thread::JoinHandle<bool>) {
    let flag = Arc::new(Flag(AtomicU64::new(0)));
    let waker = std::task::Waker::from(Arc::clone(&flag));
    let waiter = spawn(shared, move |shared| {
        BITS.wait_clear_async(&shared.word, &shared.table, bits, &waker)
    });
    (flag, waiter)
}

#[test]
fn a_waker_left_beside_an_unlock_is_called() {
    explore(3, 7, || {
        let shared = Shared::new(BITS.locked);
        let unlocker = spawn(&shared, |shared| {
            // SAFETY: this thread holds the lock from the start.
            shared.content.with_mut(|pointer| unsafe { *pointer = 7 });
            BITS.unlock(&shared.word, &shared.table);
        });
        let (flag, waiter) = wait_async(&shared, BITS.locked);
        join([unlocker]);
        let free = waiter.join().expect("it does not panic");
        // Acquire pairs with the Release in `wake`.
        let called = flag.0.load(Ordering::Acquire);
        assert_eq!(called, u64::from(!free), "lost, or called for nothing");
        BITS.lock(&shared.word, &shared.table);
        // SAFETY: under the lock.
        shared
            .content
            .with_mut(|pointer| assert_eq!(unsafe { *pointer }, 7));
    });
}

#[test]
fn a_waker_and_a_sleeper_are_both_woken() {
    explore(2, 100, || {
        let shared = Shared::new(BUSY);
        let sleeper = spawn(&shared, |shared| {
            BITS.wait_clear(&shared.word, &shared.table, BUSY);
        });
        let (flag, waiter) = wait_async(&shared, BUSY);
        let clearer = spawn(&shared, |shared| {
            BITS.clear(&shared.word, &shared.table, BUSY);
        });
        join([sleeper, clearer]);
        let free = waiter.join().expect("it does not panic");
        // Acquire pairs with the Release in `wake`.
        assert_eq!(flag.0.load(Ordering::Acquire), u64::from(!free));
    });
}
