//! Wait tables and bit locks over all interleavings: no wake-up is lost (a lost one deadlocks the model), and
//! a lock bit excludes.
#![cfg(loom)]

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::cell::UnsafeCell;
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

// SAFETY: the content is touched under the lock bit only; that it excludes is what the model checks.
unsafe impl Sync for Shared {}
// SAFETY: as above.
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
        BITS.unlock(&self.word, &self.table, 0);
    }
}

fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

#[test]
fn a_condition_made_true_wakes_its_waiter() {
    model(3, || {
        let shared = Shared::new(0);
        let other = Arc::clone(&shared);
        let waker = thread::spawn(move || {
            // Relaxed: the bucket's lock orders it.
            other.word.store(1, Ordering::Relaxed);
            other.table.wake_all(7);
        });
        shared
            .table
            .wait(7, || shared.word.load(Ordering::Relaxed) == 1);
        waker.join().unwrap();
    });
}

#[test]
fn two_lock_the_bit() {
    model(3, || {
        let shared = Shared::new(0);
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.add_locked());
        shared.add_locked();
        thread.join().unwrap();
        // SAFETY: nobody else is left.
        assert_eq!(shared.content.with(|pointer| unsafe { *pointer }), 2);
        assert_eq!(shared.word.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn three_lock_the_bit() {
    model(2, || {
        let shared = Shared::new(0);
        let threads = [0, 1].map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.add_locked())
        });
        shared.add_locked();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(shared.word.load(Ordering::Relaxed), 0);
    });
}

/// One waits for the lock bit and one for another bit of the word; they share the waiters bit.
#[test]
fn two_conditions_share_the_waiters_bit() {
    model(2, || {
        let shared = Shared::new(BITS.locked | BUSY);
        let locker = Arc::clone(&shared);
        let locker = thread::spawn(move || locker.add_locked());
        let waiter = Arc::clone(&shared);
        let waiter = thread::spawn(move || {
            BITS.wait_clear(&waiter.word, &waiter.table, BUSY);
        });
        BITS.unlock(&shared.word, &shared.table, 0);
        BITS.clear(&shared.word, &shared.table, BUSY);
        locker.join().unwrap();
        waiter.join().unwrap();
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

#[test]
fn a_waker_left_beside_an_unlock_is_called() {
    model(3, || {
        let shared = Shared::new(BITS.locked);
        let other = Arc::clone(&shared);
        let unlocker = thread::spawn(move || {
            // SAFETY: this thread holds the lock from the start.
            other.content.with_mut(|pointer| unsafe { *pointer = 7 });
            BITS.unlock(&other.word, &other.table, 0);
        });
        let flag = Arc::new(Flag(AtomicU64::new(0)));
        let waker = std::task::Waker::from(Arc::clone(&flag));
        let key = std::ptr::from_ref(&shared.word).addr();
        let free = shared.table.wait_async(key, &waker, || {
            // Acquire pairs with the Release of the unlock.
            shared.word.fetch_or(BITS.waiters, Ordering::Acquire) & BITS.locked == 0
        });
        unlocker.join().expect("it does not panic");
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
    model(2, || {
        let shared = Shared::new(BUSY);
        let other = Arc::clone(&shared);
        let sleeper = thread::spawn(move || {
            BITS.wait_clear(&other.word, &other.table, BUSY);
        });
        let flag = Arc::new(Flag(AtomicU64::new(0)));
        let waker = std::task::Waker::from(Arc::clone(&flag));
        let key = std::ptr::from_ref(&shared.word).addr();
        let free = shared.table.wait_async(key, &waker, || {
            // Acquire pairs with the Release in `clear`.
            shared.word.fetch_or(BITS.waiters, Ordering::Acquire) & BUSY == 0
        });
        assert!(!free);
        BITS.clear(&shared.word, &shared.table, BUSY);
        sleeper.join().expect("it does not panic");
        // Acquire pairs with the Release in `wake`.
        assert_eq!(flag.0.load(Ordering::Acquire), 1);
    });
}
