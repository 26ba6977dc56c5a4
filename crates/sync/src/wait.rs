//! Hashed wait queues, and bit locks that sleep on them.
//!
//! # Model
//!
//! Millions of state words cannot each have a queue. A [`WaitTable`] has a few hundred buckets; a waiter
//! sleeps in the bucket of its *key* (the address of the word), and a wake-up wakes all sleepers of the
//! bucket, each of which looks at its own condition again.
//!
//! A word that threads wait for has a *waiters* bit besides its lock bit:
//!
//! ```text
//! waiter (holds the bucket's lock)          unlocker
//!   lock bit clear? set it, done              clear lock bit; was the waiters bit set?
//!   set waiters bit, in the same step           clear it, in the same step or after
//!   sleep (releases the bucket's lock)          take and drop the bucket's lock, wake all
//! ```
//!
//! A future waits by leaving its waker in the bucket, under the same lock and with the same look at the
//! condition; the wake-up takes the wakers of its key out and calls them after the bucket is unlocked.
//!
//! # Invariants
//!
//! 1. The waiters bit is set whenever a thread sleeps for the word or is about to, unless a wake-up that will reach
//!    it is on its way: it is set under the bucket's lock, which the waker takes after clearing it.
//! 2. Every woken waiter that still has to wait sets the bit again before it sleeps. One bit therefore
//!    serves all conditions on a word.
//! 3. Once a waker has cleared the bits it uses the key alone, never the word: the word may be reused by then.
//!
//! # Locking
//!
//! A bucket's lock has rank [`Rank::WaitTable`] and is inner to all that a waiter may hold. Conditions run
//! under it: they may take nothing but leaf locks, and must not wait or wake. Wakers run without it, but
//! with whatever the waking thread holds: they must not call back. Waiting sleeps, so never in
//! an RCU read section; waking does not. A bit lock's own rank is the caller's business: see
//! [`rank::acquire`].
//!
//! # Memory ordering
//!
//! Taking a bit is `Acquire`, releasing it is `Release`; they pair with each other. No wake-up is lost since
//! the bits are one word: if the unlocker's step did not see the waiters bit, it came first, and then the
//! waiter's step sees the lock bit clear.

use crate::atomic::{AtomicU64, Ordering};
use crate::padded::CachePadded;
use crate::rank::{self, Rank, RankedMutex};
use crate::{Condvar, hint};
use std::task::Waker;

/// Buckets of a table: enough that waiters of different words seldom meet. A wake-up that is lost is found where others of the
/// bucket do not make good for it.
const BUCKETS: usize = if cfg!(loom) {
    2
} else if cfg!(shuttle) {
    8
} else {
    256
};

/// How often a bit lock is tried before its waiter sleeps, which costs far more than a short section.
const SPINS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 100 };

#[derive(Debug, Default)]
struct Bucket {
    waiting: RankedMutex<{ Rank::WaitTable as u8 }, Waiting>,
    wakeup: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The number of sleepers, so that a wake-up without any is cheap.
    sleepers: u32,
    /// Futures that wait here, each with its key. One that was dropped stays until its key is woken.
    wakers: Vec<(usize, Waker)>,
}

/// Wait queues, shared by everything that may be waited for. Takes 32 KiB.
#[derive(Debug)]
pub struct WaitTable {
    /// A power of two of them.
    buckets: Box<[CachePadded<Bucket>]>,
    #[cfg(shuttle)]
    numbers: model::Numbers,
}

impl Default for WaitTable {
    fn default() -> Self {
        Self::new()
    }
}

impl WaitTable {
    /// A table with 256 buckets (two in a model).
    pub fn new() -> Self {
        Self::with_buckets(BUCKETS)
    }

    /// A table with at least this many buckets, 128 bytes each.
    pub fn with_buckets(buckets: usize) -> Self {
        let buckets = buckets.next_power_of_two();
        Self {
            buckets: (0..buckets).map(|_| CachePadded::default()).collect(),
            #[cfg(shuttle)]
            numbers: model::Numbers::default(),
        }
    }

    #[cfg(shuttle)]
    fn bucket(&self, key: usize) -> &Bucket {
        &self.buckets[self.numbers.of(key) & (self.buckets.len() - 1)]
    }

    #[cfg(not(shuttle))]
    fn bucket(&self, key: usize) -> &Bucket {
        // Addresses differ in their middle bits; a multiplication brings them to the top.
        let hash = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    /// Sleeps until `condition` is true. It is called at once, and again after every wake-up of the key, each time
    /// under the bucket's lock. After making it true, call [`wake_all`](Self::wake_all).
    ///
    /// Context: may hold locks outer to [`Rank::WaitTable`]; sleeps. In a read section only if the condition takes
    /// a bounded number of instructions: the caller checks ([`rank::might_sleep`]).
    #[track_caller]
    pub fn wait(&self, key: usize, mut condition: impl FnMut() -> bool) {
        #[cfg(shuttle)]
        let _numbered = self.numbers.keep(key);
        let bucket = self.bucket(key);
        let mut waiting = bucket.waiting.lock();
        while !condition() {
            waiting.sleepers += 1;
            waiting = bucket.wakeup.wait_ranked_short(waiting);
            waiting.sleepers -= 1;
        }
    }

    /// Wakes all waiters of this key (and threads that share its bucket). Without waiters it costs an uncontended
    /// lock; does not sleep.
    #[track_caller]
    pub fn wake_all(&self, key: usize) {
        let bucket = self.bucket(key);
        // A waiter that found its condition false holds the lock until it sleeps: with the lock in
        // hand, no waiter is in between.
        let mut waiting = bucket.waiting.lock();
        let sleepers = waiting.sleepers;
        let mine = |entry: &mut (usize, Waker)| entry.0 == key;
        let woken: Vec<_> = waiting.wakers.extract_if(.., mine).collect();
        drop(waiting);
        #[cfg(shuttle)]
        woken.iter().for_each(|_| self.numbers.release(key));
        if sleepers > u32::from(crate::planted!(wake_up_lost)) {
            // They take the lock as soon as they run, perhaps in this thread's place.
            bucket.wakeup.notify_all();
        }
        for (_, waker) in woken {
            waker.wake();
        }
    }

    /// Has `waker` called at the next wake-up of the key, unless `condition` is true, which is returned. The
    /// condition is called once, under the bucket's lock. After making it true, call [`wake_all`](Self::wake_all).
    /// Registering a waiting waker again adds nothing.
    ///
    /// Context: may hold locks outer to [`Rank::WaitTable`]; does not sleep.
    #[track_caller]
    pub fn wait_async(&self, key: usize, waker: &Waker, condition: impl FnOnce() -> bool) -> bool {
        #[cfg(shuttle)]
        let numbered = self.numbers.keep(key);
        let bucket = self.bucket(key);
        let mut waiting = bucket.waiting.lock();
        if condition() {
            return true;
        }
        let waits = |entry: &(usize, Waker)| entry.0 == key && entry.1.will_wake(waker);
        if !waiting.wakers.iter().any(waits) {
            waiting.wakers.push((key, waker.clone()));
            // Until it is woken.
            #[cfg(shuttle)]
            std::mem::forget(numbered);
        }
        false
    }
}

/// The numbers of keys in a model: addresses differ from process to process.
#[cfg(shuttle)]
mod model;

/// Which bits of a state word make a bit lock. Several may share a word and its waiters bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockBits {
    /// The bit that is set while the lock is held.
    pub locked: u64,
    /// The bit that says that threads may be sleeping for the word.
    pub waiters: u64,
}

fn key_of(word: &AtomicU64) -> usize {
    std::ptr::from_ref(word).addr()
}

impl LockBits {
    /// Takes the lock if it is free; returns whether it did. Writes nothing otherwise, so that spinning threads
    /// share the line with the holder.
    #[inline]
    pub fn try_lock(self, word: &AtomicU64) -> bool {
        // Relaxed: setting the bit decides. Acquire pairs with the Release in `unlock` and `clear`.
        word.load(Ordering::Relaxed) & self.locked == 0
            && word.fetch_or(self.locked, Ordering::Acquire) & self.locked == 0
    }

    /// Waits for the lock and takes it. The caller has said so to [`rank::acquire`] before.
    ///
    /// Context: may hold locks outer to its rank; sleeps.
    #[track_caller]
    #[inline]
    pub fn lock(self, word: &AtomicU64, table: &WaitTable) {
        rank::might_sleep();
        if !self.try_lock(word) {
            self.lock_short(word, table);
        }
    }

    /// [`lock`](Self::lock) for a lock that is held for a bounded number of instructions, and may thus be taken
    /// in an RCU read section.
    #[cold]
    #[track_caller]
    pub fn lock_short(self, word: &AtomicU64, table: &WaitTable) {
        for _ in 0..SPINS {
            hint::spin_loop();
            if self.try_lock(word) {
                return;
            }
        }
        table.wait(key_of(word), || {
            // Relaxed: the exchanges below decide.
            let mut state = word.load(Ordering::Relaxed);
            loop {
                let free = state & self.locked == 0;
                let next = state | if free { self.locked } else { self.waiters };
                if next == state {
                    return false;
                }
                // Acquire pairs with the Release in `unlock` and `clear`. A failure only brings a newer value.
                match word.compare_exchange(state, next, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return free,
                    Err(newer) => state = newer,
                }
            }
        });
    }

    /// Releases the lock, and wakes the waiters of the word, which must outlive the call: for a word that may be
    /// freed once it is unlocked use [`clear`](Self::clear).
    #[inline]
    pub fn unlock(self, word: &AtomicU64, table: &WaitTable) {
        // The bit is set, so the subtraction clears it and touches nothing else; unlike clearing with a mask it
        // also returns the old value in one instruction. Release pairs with the Acquire in `try_lock` and
        // `lock_short`.
        let before = word.fetch_sub(self.locked, Ordering::Release);
        debug_assert!(before & self.locked != 0, "unlock of what is not locked");
        if before & self.waiters != 0 {
            self.clear(word, table, 0);
        }
    }

    /// Clears `bits` (that others wait for with [`wait_clear`](Self::wait_clear), or the lock) and wakes the
    /// waiters of the word. Does not sleep.
    #[inline]
    pub fn clear(self, word: &AtomicU64, table: &WaitTable, bits: u64) {
        self.clear_with(word, bits, || table);
    }

    /// [`clear`](Self::clear), looking for the table only if there are waiters.
    #[inline]
    pub(crate) fn clear_with<'a>(
        self,
        word: &AtomicU64,
        bits: u64,
        table: impl FnOnce() -> &'a WaitTable,
    ) {
        let key = key_of(word);
        // Release pairs with the Acquire of whoever sees the bits clear.
        let before = word.fetch_and(!(bits | self.waiters), Ordering::Release);
        if before & self.waiters != 0 {
            // Invariant 3: not by the word.
            table().wake_all(key);
        }
    }

    /// Sleeps until all of `bits` are clear. Returns the word at that moment; unless something else keeps
    /// them, they may be set again by then.
    ///
    /// Context: sleeps.
    #[track_caller]
    pub fn wait_clear(self, word: &AtomicU64, table: &WaitTable, bits: u64) -> u64 {
        rank::might_sleep();
        // Acquire pairs with the Release in `clear`.
        let mut state = word.load(Ordering::Acquire);
        if state & bits != 0 {
            table.wait(key_of(word), || {
                state = self.announce(word, bits);
                state & bits == 0
            });
        }
        state
    }

    /// Has `waker` called once all of `bits` are clear; whether they are already. As
    /// [`WaitTable::wait_async`].
    #[track_caller]
    pub fn wait_clear_async(
        self,
        word: &AtomicU64,
        table: &WaitTable,
        bits: u64,
        waker: &Waker,
    ) -> bool {
        table.wait_async(key_of(word), waker, || {
            self.announce(word, bits) & bits == 0
        })
    }

    /// Sets the waiters bit unless all of `bits` are clear; returns the word as it was. Under the
    /// bucket's lock.
    fn announce(self, word: &AtomicU64, bits: u64) -> u64 {
        // Acquire, as in `wait_clear`. Relaxed: setting the bit publishes nothing.
        word.fetch_update(Ordering::Relaxed, Ordering::Acquire, |state| {
            (state & bits != 0 && state & self.waiters == 0).then_some(state | self.waiters)
        })
        .unwrap_or_else(|state| state)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::cell::UnsafeCell;
    use crate::rcu;

    const BITS: LockBits = LockBits {
        locked: 1,
        waiters: 2,
    };
    const BUSY: u64 = 4;

    #[test]
    fn a_lock_bit_excludes() {
        let table = WaitTable::new();
        let word = AtomicU64::new(0x100);
        let counter = AtomicU64::new(0);
        let rounds = if cfg!(miri) { 10 } else { 2000 };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        BITS.lock(&word, &table);
                        let seen = counter.load(Ordering::Relaxed);
                        if seen.is_multiple_of(64) {
                            std::thread::yield_now();
                        }
                        counter.store(seen + 1, Ordering::Relaxed);
                        BITS.unlock(&word, &table);
                    }
                });
            }
        });
        assert_eq!(counter.load(Ordering::Relaxed), 4 * rounds);
        assert_eq!(word.load(Ordering::Relaxed), 0x100);
    }

    #[test]
    fn waiting_for_another_bit_of_the_word() {
        let table = WaitTable::with_buckets(1);
        let word = AtomicU64::new(BUSY);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| BITS.wait_clear(&word, &table, BUSY));
            // Wakes the waiter for nothing.
            for _ in 0..100 {
                BITS.lock(&word, &table);
                BITS.unlock(&word, &table);
            }
            assert!(!waiter.is_finished());
            BITS.clear(&word, &table, BUSY);
            assert_eq!(waiter.join().expect("it does not panic") & BUSY, 0);
        });
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn wakers_are_called_once_and_by_their_own_key() {
        struct Count(AtomicU64);
        impl std::task::Wake for Count {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = std::sync::Arc::new(Count(AtomicU64::new(0)));
        let waker = Waker::from(std::sync::Arc::clone(&count));
        let table = WaitTable::with_buckets(1);
        assert!(table.wait_async(1, &waker, || true));
        table.wake_all(1);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        assert!(!table.wait_async(1, &waker, || false));
        assert!(!table.wait_async(1, &waker, || false));
        table.wake_all(2);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        table.wake_all(1);
        table.wake_all(1);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        drop(waker);
        assert_eq!(std::sync::Arc::strong_count(&count), 1);
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "inside an RCU read section")]
    fn waiting_in_a_read_section_panics() {
        let table = WaitTable::new();
        let _guard = rcu::read_lock();
        BITS.wait_clear(&AtomicU64::new(0), &table, BUSY);
    }

    #[test]
    fn cells_hand_out_their_content() {
        let cell = UnsafeCell::new(5);
        let pointer = cell.with(|pointer| pointer);
        assert!(!pointer.is_null() && cell.with_mut(|same| pointer == same));
    }
}
