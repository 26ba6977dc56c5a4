//! Thread numbers, which spread threads over shards.
//!
//! # Model
//!
//! A thread takes the lowest free number when it first asks for one, and returns it when it ends. So the
//! numbers in use stay below the largest number of threads that were alive at once, however many threads
//! have come and gone.
//!
//! ```text
//! TAKEN   bit n: some thread has number n, or is looking after what the last one left
//!
//! UNNUMBERED ── first use: set the lowest clear bit ──► n ── the thread ends: clear bit n ──► no number
//! ```
//!
//! Destructors of other thread locals may run after the number was returned. They see a number from
//! [`MOST`] on, as does a thread that finds all [`MOST`] numbers taken. Such numbers choose a shard like any
//! other, but are not unique and own nothing ([`is_unique`]).
//!
//! # Invariants
//!
//! 1. At most one thread at a time has a number below `MOST`, or holds it through [`with_free`].
//! 2. Everything that a thread did while it had the number happens before any action of the number's next thread.
//!    So the owner of a number may change the number's data with plain loads and stores.
//!
//! # Locking
//!
//! None. A thread's first call registers a destructor of a thread local, which may allocate; so a signal
//! handler may ask only on a thread that has a number.
//!
//! # Memory ordering
//!
//! The Release in [`Numbers::put`] pairs with the Acquire in [`Numbers::take_below`] and
//! [`Numbers::take_one`] (invariant 2). Changes of other bits of the word in between are
//! read-modify-writes and continue the release sequence.

use crate::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::cell::Cell;

/// Words of the set of numbers.
const WORDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 64 };
/// Numbers that are unique are below this.
const MOST: usize = WORDS * 64;
/// The number of a thread before it needs one.
pub(crate) const UNNUMBERED: usize = usize::MAX;
/// Most shards of anything.
const MAX_SHARDS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 1024 };

/// The set of numbers that are taken.
struct Numbers([AtomicU64; WORDS]);

/// A reference to the set. In a model it keeps the set alive for the locals of the first thread, which are
/// destroyed after the globals.
#[cfg(not(any(loom, shuttle)))]
type NumbersRef = &'static Numbers;
#[cfg(any(loom, shuttle))]
type NumbersRef = crate::Arc<Numbers>;

#[cfg(not(any(loom, shuttle)))]
fn numbers() -> NumbersRef {
    static TAKEN: Numbers = Numbers([const { AtomicU64::new(0) }; WORDS]);
    &TAKEN
}

#[cfg(any(loom, shuttle))]
fn numbers() -> NumbersRef {
    crate::global! {
        static TAKEN: crate::Arc<Numbers> =
            crate::Arc::new(Numbers(std::array::from_fn(|_| AtomicU64::new(0))));
    }
    crate::Arc::clone(&TAKEN)
}

impl Numbers {
    /// Takes the lowest free number.
    fn take(&self) -> Option<usize> {
        (0..WORDS).find_map(|word| self.take_below(word))
    }

    /// Takes the lowest free number of one word.
    fn take_below(&self, word: usize) -> Option<usize> {
        // Relaxed: the exchange decides.
        let mut taken = self.0[word].load(Ordering::Relaxed);
        loop {
            let bit = taken.trailing_ones();
            if bit == u64::BITS {
                return None;
            }
            // Acquire pairs with the Release in `put`. Relaxed: nothing was taken.
            let exchanged = self.0[word].compare_exchange_weak(
                taken,
                taken | 1 << bit,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match exchanged {
                Ok(_) => return Some(word * 64 + bit as usize),
                Err(now) => taken = now,
            }
        }
    }

    /// Takes this very number, if it is free.
    fn take_one(&self, number: usize) -> bool {
        let bit = 1 << (number % 64);
        // Acquire pairs with the Release in `put`.
        self.0[number / 64].fetch_or(bit, Ordering::Acquire) & bit == 0
    }

    fn put(&self, number: usize) {
        // Release pairs with the Acquire in `take_below` and `take_one`.
        let before = self.0[number / 64].fetch_and(!(1 << (number % 64)), Ordering::Release);
        debug_assert!(
            before >> (number % 64) & 1 == 1,
            "number {number} was not taken"
        );
    }
}

/// Returns the thread's number when the thread ends.
struct Return(Cell<Option<(NumbersRef, usize)>>);

impl Drop for Return {
    fn drop(&mut self) {
        if let Some((numbers, number)) = self.0.take() {
            // First this, so that nothing in this thread uses the number once it is free. In a model the
            // local may be gone already.
            let _ = THREAD.try_with(|thread| thread.set(MOST + number));
            numbers.put(number);
        }
    }
}

crate::thread_local! {
    /// Without a destructor, so that reading it is one load.
    static THREAD: Cell<usize> = const { Cell::new(UNNUMBERED) };
    static RETURN: Return = const { Return(Cell::new(None)) };
}

/// A small number of this thread: the lowest that was free when the thread first asked. It is returned when
/// the thread ends. Take it modulo the number of shards. Costs a thread-local load.
#[inline]
pub fn thread_shard() -> usize {
    THREAD
        .try_with(|thread| match thread.get() {
            UNNUMBERED => number_thread(thread),
            number => number,
        })
        // Only a model destroys it, at the end of a thread.
        .unwrap_or(MOST)
}

#[cold]
fn number_thread(thread: &Cell<usize>) -> usize {
    let taken = RETURN.try_with(|home| {
        let numbers = numbers();
        let number = numbers.take()?;
        home.0.set(Some((numbers, number)));
        Some(number)
    });
    let number = taken.ok().flatten().unwrap_or_else(|| {
        crate::global! {
            static SURPLUS: AtomicUsize = AtomicUsize::new(0);
        }
        // Relaxed: it only spreads threads over shards.
        MOST + SURPLUS.fetch_add(1, Ordering::Relaxed) % MOST
    });
    thread.set(number);
    number
}

/// Whether no other thread has this number (invariant 1).
#[inline]
pub(crate) fn is_unique(number: usize) -> bool {
    number < MOST
}

/// Runs `f` if no thread has `number`, and keeps it from being taken meanwhile. All actions of its last thread
/// happen before `f`, and `f` before those of its next one.
pub(crate) fn with_free<R>(number: usize, f: impl FnOnce() -> R) -> Option<R> {
    let numbers = numbers();
    if !is_unique(number) || !numbers.take_one(number) {
        return None;
    }
    let result = f();
    numbers.put(number);
    Some(result)
}

crate::global! {
    /// The result of [`shard_count`], 0 until it is known.
    static SHARDS: AtomicUsize = AtomicUsize::new(0);
}

/// As many shards as are worth having: one for each processor that the machine may have, rounded up to a
/// power of two. The same for as long as the process lives.
pub fn shard_count() -> usize {
    // Relaxed: a number that publishes nothing. Two threads that compute it at once find the same.
    match SHARDS.load(Ordering::Relaxed) {
        0 => {
            let shards = possible_processors().next_power_of_two().min(MAX_SHARDS);
            SHARDS.store(shards, Ordering::Relaxed);
            shards
        }
        shards => shards,
    }
}

fn possible_processors() -> usize {
    if cfg!(any(loom, shuttle)) {
        return MAX_SHARDS;
    }
    foliocache_sys::cpu::find_areas();
    foliocache_sys::cpu::possible()
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "shard/tests.rs"]
mod tests;
