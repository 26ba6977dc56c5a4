//! A reference count and a lock in one word, so that taking a reference needs no lock and losing the last
//! one cannot race with finding it.
//!
//! # Model
//!
//! ```text
//! bits 0 to 31   count, a signed number; negative when dead
//! bit 32         locked
//! bit 33         waiters: threads may sleep for the lock
//! ```
//!
//! While the lock is free, references come and go by compare-and-exchange on the whole word. While it is held the
//! count belongs to the holder and stands still: every other thread that wants to change it waits for the lock. So
//! the holder can read the count and act on it (free the object, mark it dead).
//!
//! # Invariants
//!
//! 1. The count changes either in one step that saw the lock clear, or by the holder of the lock.
//! 2. A count is negative exactly after [`LockRefGuard::mark_dead`], and stays so: no reference is taken
//!    from then on.
//! 3. The last reference is dropped under the lock ([`LockRef::put_or_lock`]): the count reaches zero only there.
//!
//! # Locking
//!
//! The lock is held for a few instructions, and its rank is the owner's business ([`crate::rank::acquire`]).
//! Waiting for it spins a little, then sleeps in a table that all lockrefs share; it may be taken in an RCU
//! read section.
//!
//! # Memory ordering
//!
//! Taking the lock, and a reference, is `Acquire`; releasing the lock, and dropping a reference, is `Release`. A
//! thread that takes the lock and finds the count at one therefore sees all that was done through the references
//! dropped before.
//!
//! # Differences from Linux
//!
//! The lock sleeps instead of only spinning, since its holder may be preempted.

use crate::atomic::{AtomicU64, Ordering};
use crate::cell::OnceLock;
use crate::seqcount::Exclusive;
use crate::wait::{LockBits, WaitTable};

const COUNT_MASK: u64 = 0xffff_ffff;
const BITS: LockBits = LockBits {
    locked: 1 << 32,
    waiters: 1 << 33,
};
/// The count of a dead object: so far below zero that no change brings it back.
const DEAD: i32 = i32::MIN / 2;
const SHARED_BUCKETS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 64 };

crate::global! {
    /// Where the waiters of all lockrefs sleep.
    static TABLE: OnceLock<WaitTable> = OnceLock::new();
}

fn table() -> &'static WaitTable {
    TABLE.get_or_init(|| WaitTable::with_buckets(SHARED_BUCKETS))
}

fn count_of(word: u64) -> i32 {
    (word & COUNT_MASK) as u32 as i32
}

fn with_count(word: u64, count: i32) -> u64 {
    word & !COUNT_MASK | u64::from(count as u32)
}

/// The word, of eight bytes. The data that it protects lies beside it.
#[doc(alias = "lockref")]
#[derive(Debug)]
pub struct LockRef {
    word: AtomicU64,
}

/// The lock of a [`LockRef`]; released when dropped.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockRefGuard<'a> {
    lockref: &'a LockRef,
}

impl LockRef {
    const_unless_loom! {
        /// An unlocked word with this many references. `const` except under loom.
        pub fn new(count: u32) -> Self {
            assert!(count <= i32::MAX as u32, "a count beyond 2^31 - 1");
            Self { word: AtomicU64::new(count as u64) }
        }
    }

    /// Takes a reference if `may` allows it for the count, in one step; waits for the lock if it is held. Returns
    /// whether it did.
    #[inline]
    fn get_if(&self, may: impl Fn(i32) -> bool) -> bool {
        // Relaxed: the exchange decides, or nothing is done.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & BITS.locked != 0 {
                // Not an unlocked moment's value but the holder's: take the lock and look.
                let guard = self.lock();
                let may = may(guard.count());
                if may && !crate::planted!(reference_not_counted) {
                    guard.get();
                }
                return may;
            }
            if !may(count_of(word)) {
                return false;
            }
            let next = with_count(word, count_of(word) + 1);
            // Acquire pairs with the Release of a thread that drops a reference or the lock. Relaxed on failure:
            // the newer value is only tried.
            match self
                .word
                .compare_exchange_weak(word, next, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(newer) => word = newer,
            }
        }
    }

    /// Takes a reference. The caller has one already, or something else keeps the object alive.
    #[doc(alias = "lockref_get")]
    #[inline]
    pub fn get(&self) {
        self.get_if(|_| true);
    }

    /// Takes a reference unless the object is dead; a count of zero is good enough. Returns whether it did.
    #[doc(alias = "lockref_get_not_dead")]
    #[inline]
    #[must_use = "no reference is taken when it says no"]
    pub fn get_not_dead(&self) -> bool {
        self.get_if(|count| count >= 0)
    }

    /// Drops a reference unless it is the last one. If it is, takes the lock and leaves the count unchanged: the
    /// caller, alone with the object, decides its fate and drops the reference under the lock.
    #[doc(alias = "lockref_put_or_lock")]
    #[inline]
    pub fn put_or_lock(&self) -> Option<LockRefGuard<'_>> {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & BITS.locked == 0 && count_of(word) > 1 {
            let next = with_count(word, count_of(word) - 1);
            // Release pairs with the Acquire of whoever takes the lock; Relaxed on failure: only tried.
            match self
                .word
                .compare_exchange_weak(word, next, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return None,
                Err(newer) => word = newer,
            }
        }
        let guard = self.lock();
        if guard.count() <= 1 {
            return Some(guard);
        }
        guard.set_count(guard.count() - 1);
        None
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) -> LockRefGuard<'_> {
        if !BITS.try_lock(&self.word) {
            BITS.lock_short(&self.word, table());
        }
        LockRefGuard { lockref: self }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<LockRefGuard<'_>> {
        BITS.try_lock(&self.word)
            .then(|| LockRefGuard { lockref: self })
    }

    /// The count at some moment: negative when dead. For lists and statistics.
    #[doc(alias = "lockref_count")]
    pub fn count(&self) -> i32 {
        // Relaxed: nothing is concluded from it.
        count_of(self.word.load(Ordering::Relaxed))
    }
}

impl LockRefGuard<'_> {
    /// The count, which only the holder of the lock changes now.
    pub fn count(&self) -> i32 {
        self.lockref.count()
    }

    /// Takes a reference.
    pub fn get(&self) {
        self.set_count(self.count() + 1);
    }

    /// Drops a reference and returns the new count.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn put(&self) -> u32 {
        let count = self.count();
        assert!(count > 0, "dropping a reference that does not exist");
        self.set_count(count - 1);
        (count - 1) as u32
    }

    /// Marks the object dead: no reference can be taken from now on. Called to tear it down.
    #[doc(alias = "lockref_mark_dead")]
    pub fn mark_dead(&self) {
        self.set_count(DEAD);
    }

    fn set_count(&self, count: i32) {
        // The holder alone changes the count (invariant 1), but a waiter may set its bit meanwhile: flip
        // exactly the bits of the count that differ. Relaxed: releasing the lock publishes it.
        let old = self.lockref.word.load(Ordering::Relaxed);
        let flip = (old ^ u64::from(count as u32)) & COUNT_MASK;
        self.lockref.word.fetch_xor(flip, Ordering::Relaxed);
    }
}

impl Exclusive for LockRefGuard<'_> {}

impl Drop for LockRefGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        BITS.clear_with(&self.lockref.word, BITS.locked, table);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn references_are_counted() {
        let lockref = LockRef::new(1);
        assert_eq!(size_of::<LockRef>(), 8);
        lockref.get();
        assert_eq!(lockref.count(), 2);
        assert!(lockref.put_or_lock().is_none());
        let last = lockref.put_or_lock().expect("it is the last");
        assert_eq!(last.count(), 1);
        for _ in 0..2 {
            assert!(lockref.try_lock().is_none(), "an attempt unlocks nothing");
        }
        assert_eq!(last.put(), 0);
        drop(last);
        assert!(lockref.get_not_dead());
    }

    #[test]
    fn the_dead_stay_dead() {
        let lockref = LockRef::new(0);
        lockref.lock().mark_dead();
        assert!(lockref.count() < 0);
        assert!(!lockref.get_not_dead());
        assert!(lockref.try_lock().is_some(), "unlocked");
    }

    #[test]
    fn exactly_one_drops_the_last_reference() {
        let rounds = if cfg!(miri) { 5 } else { 200 };
        for _ in 0..rounds {
            let lockref = LockRef::new(4);
            let last = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        lockref.get();
                        assert!(lockref.put_or_lock().is_none());
                        if let Some(guard) = lockref.put_or_lock() {
                            guard.mark_dead();
                            last.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(last.load(Ordering::Relaxed), 1);
            assert!(lockref.count() < 0);
        }
    }

    #[test]
    fn counts_survive_a_contended_lock() {
        let rounds = if cfg!(miri) { 20 } else { 5000 };
        let lockref = LockRef::new(1);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        lockref.get();
                        let guard = lockref.lock();
                        guard.get();
                        guard.put();
                        drop(guard);
                        assert!(lockref.put_or_lock().is_none());
                    }
                });
            }
        });
        assert_eq!(lockref.count(), 1);
    }
}
