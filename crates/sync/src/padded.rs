//! Keeps the data of different threads apart: on separate cache lines, and in counters with shards.
//!
//! # Model
//!
//! A [`ShardedCounter`] has one cell for each shard ([`shard_count`]), on separate cache lines. A thread adds to
//! the cell of its number ([`thread_shard`]); the sum reads all cells.
//!
//! A cell belongs to a thread number, whose thread adds to the cell's *owned* word with a load and a store.
//! A thread whose number leads to the cell of another adds atomically to a *shared* word: that of the cell which
//! the number of its processor leads to ([`foliocache_sys::cpu::current`]), so that threads of different
//! processors seldom add to the same word. A cell's owner is the first number that adds to it. The number's next
//! thread inherits the cell. When the number is free, another thread whose number leads to the cell takes it
//! over.
//!
//! Where there are many counters and few are busy, a [`LazyCounter`] is one word until it has been added to
//! about once for each byte that its cells would take.
//!
//! # Invariants
//!
//! 1. Only a thread whose unique number is in `owner` stores to `owned`.
//! 2. `owner` changes from `UNNUMBERED` to the number of the thread that changes it, and from a number that
//!    no thread has. The thread that changes it keeps the old number from being taken meanwhile.
//!
//! # Memory ordering
//!
//! `Relaxed`: a counter publishes nothing but its number. An increment is never lost: it is one atomic addition, or
//! a store of the only thread that may store. When the owning number passes to another thread, or the cell to
//! another number, the last owner's actions happen before the next one's (invariant 2 of `crate::shard`), so the
//! next owner reads the last sum, and a thread that takes a number up again reads that it lost the cell. A sum
//! taken during additions may contain one of two and not the other, whichever came first. The cells of a
//! [`LazyCounter`] are published by a `Release` store and read through an `Acquire` load.
//!
//! # Safety
//!
//! The cells of a [`LazyCounter`] are one box, allocated once and freed with it.
#![allow(unsafe_code)]

use crate::atomic::{AtomicI64, AtomicPtr, AtomicUsize, Ordering};
use crate::shard::{self, UNNUMBERED, shard_count, thread_shard};
use std::ops::{Deref, DerefMut};
use std::{ptr, slice};

/// A value alone on its cache lines: 128 bytes, since processors fetch lines in pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(128))]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// Pads `value`.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CachePadded<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A counter that many threads add to and few read. Takes [`ShardedCounter::heap_bytes`].
///
/// It wraps at the limits of `i64`. For a bound that must hold exactly use one atomic instead.
#[derive(Debug)]
#[doc(alias = "percpu_counter")]
pub struct ShardedCounter {
    cells: Box<[CachePadded<CounterCell>]>,
}

/// Threads that share a cell read its owner with each addition, so the owner is on a different line from both sums,
/// which their writers on other processors change all the time.
#[derive(Debug)]
#[repr(C)]
struct CounterCell {
    /// The sum of the owners' additions. Invariant 1.
    owned: OwnLine<AtomicI64>,
    /// The sum of the other threads' additions: those on the processors of this cell whose own cell belongs to
    /// another thread.
    shared: OwnLine<AtomicI64>,
    /// The number that the cell belongs to, or [`UNNUMBERED`] before the first addition. Invariant 2.
    owner: CachePadded<AtomicUsize>,
}

#[derive(Debug)]
#[repr(align(64))]
struct OwnLine<T>(T);

/// A thread that adds to a shared word looks for a free owner of its number's cell each time the word passes a
/// multiple of this.
const TAKE_OVER: i64 = if cfg!(any(loom, shuttle)) { 1 } else { 256 };

impl CounterCell {
    fn new() -> Self {
        Self {
            owner: CachePadded::new(AtomicUsize::new(UNNUMBERED)),
            owned: OwnLine(AtomicI64::new(0)),
            shared: OwnLine(AtomicI64::new(0)),
        }
    }

    fn boxed(cells: usize) -> Box<[CachePadded<Self>]> {
        let cell = || CachePadded::new(Self::new());
        std::iter::repeat_with(cell).take(cells).collect()
    }

    /// Adds if the cell belongs to this thread. Whether it does.
    // Relaxed: see the module's header.
    #[inline]
    fn add_owned(&self, thread: usize, value: i64) -> bool {
        let owned = self.owner.0.load(Ordering::Relaxed) == thread;
        if owned {
            let sum = self.owned.0.load(Ordering::Relaxed).wrapping_add(value);
            self.owned.0.store(sum, Ordering::Relaxed);
        }
        owned
    }

    /// Makes this thread the owner of a cell that never had one, and adds to it. Returns whether it
    /// did.
    fn claim(&self, thread: usize, value: i64) -> bool {
        // Relaxed: no thread stored to `owned` before the claim, and only this one does after it. The load spares
        // most calls the exchange, which takes the line away from the cell's owner.
        let claimed = shard::is_unique(thread)
            && self.owner.0.load(Ordering::Relaxed) == UNNUMBERED
            && self
                .owner
                .0
                .compare_exchange(UNNUMBERED, thread, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if claimed {
            self.owned.0.store(value, Ordering::Relaxed);
        }
        claimed
    }

    /// Adds with an atomic operation. Whether to look for a free owner.
    fn add_shared(&self, value: i64) -> bool {
        let before = self.shared.0.fetch_add(value, Ordering::Relaxed);
        before.div_euclid(TAKE_OVER) != before.wrapping_add(value).div_euclid(TAKE_OVER)
    }

    /// Makes the cell this thread's if the thread that owned it has ended.
    #[cold]
    fn take_over(&self, thread: usize) {
        if !shard::is_unique(thread) {
            return;
        }
        // Relaxed: the exchange decides whether it is still the owner.
        let owner = self.owner.0.load(Ordering::Relaxed);
        shard::with_free(owner, || {
            // Relaxed: `with_free` orders it with the owners before and after (invariant 2).
            let _ =
                self.owner
                    .0
                    .compare_exchange(owner, thread, Ordering::Relaxed, Ordering::Relaxed);
        });
    }

    fn sum(&self) -> i64 {
        let owned = self.owned.0.load(Ordering::Relaxed);
        owned.wrapping_add(self.shared.0.load(Ordering::Relaxed))
    }
}

/// Adds to this thread's cell of a power of two, or to this processor's if that is another thread's.
#[inline]
fn add_to(cells: &[CachePadded<CounterCell>], value: i64) {
    let thread = thread_shard();
    if !cells[thread & (cells.len() - 1)].add_owned(thread, value) {
        add_to_shared(cells, thread, value);
    }
}

#[inline(never)]
fn add_to_shared(cells: &[CachePadded<CounterCell>], thread: usize, value: i64) {
    let mask = cells.len() - 1;
    let cell = &cells[thread & mask];
    if !cell.claim(thread, value)
        && cells[this_processor().unwrap_or(thread) & mask].add_shared(value)
    {
        cell.take_over(thread);
    }
}

fn this_processor() -> Option<usize> {
    // Threads of a model have no processor.
    let is_real = !cfg!(any(loom, shuttle));
    is_real.then(foliocache_sys::cpu::current).flatten()
}

fn sum_of(cells: &[CachePadded<CounterCell>]) -> i64 {
    cells
        .iter()
        .map(|cell| cell.sum())
        .fold(0, i64::wrapping_add)
}

impl Default for ShardedCounter {
    fn default() -> Self {
        Self::new()
    }
}

impl ShardedCounter {
    /// A counter at zero, with a cell for each shard.
    pub fn new() -> Self {
        Self {
            cells: CounterCell::boxed(shard_count()),
        }
    }

    /// The sum that was added with atomic operations, because the cell belonged to another thread.
    #[doc(hidden)]
    pub fn sum_shared(&self) -> i64 {
        // Relaxed: see the module's header.
        let shared = |cell: &CachePadded<CounterCell>| cell.shared.0.load(Ordering::Relaxed);
        self.cells.iter().map(shared).fold(0, i64::wrapping_add)
    }

    /// Bytes that the cells of one counter take: 256 for each of [`shard_count`].
    pub fn heap_bytes() -> usize {
        shard_count() * size_of::<CachePadded<CounterCell>>()
    }

    /// Adds to this thread's cell.
    #[inline]
    pub fn add(&self, value: i64) {
        add_to(&self.cells, value);
    }

    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Takes one off.
    #[inline]
    pub fn dec(&self) {
        self.add(-1);
    }

    /// The sum. Exact once additions have stopped; otherwise it has every addition that happened before this call,
    /// and some of the concurrent ones.
    pub fn sum(&self) -> i64 {
        sum_of(&self.cells)
    }

    /// The sum as a size: zero where concurrent additions make it negative for a moment.
    pub fn sum_positive(&self) -> u64 {
        u64::try_from(self.sum()).unwrap_or(0)
    }
}

/// A counter that allocates nothing until many additions were made, and then counts as a [`ShardedCounter`] does.
/// For numerous counters, such as those of files.
#[derive(Debug)]
pub struct LazyCounter {
    /// The sum of the additions before there were cells.
    first: AtomicI64,
    /// Null, or `nr_cells` cells of a `Box`, which stay until the drop.
    cells: AtomicPtr<CachePadded<CounterCell>>,
    nr_cells: usize,
}

impl LazyCounter {
    /// A counter at zero.
    pub fn new() -> Self {
        Self {
            first: AtomicI64::new(0),
            cells: AtomicPtr::new(ptr::null_mut()),
            nr_cells: shard_count(),
        }
    }

    #[inline]
    fn cells(&self) -> Option<&[CachePadded<CounterCell>]> {
        // Acquire pairs with the Release in `spread`: the cells as they were made.
        let cells = self.cells.load(Ordering::Acquire);
        // SAFETY: `nr_cells` of them, in a `Box` that is freed when `self` is dropped.
        (!cells.is_null()).then(|| unsafe { slice::from_raw_parts(cells, self.nr_cells) })
    }

    /// Adds to this thread's cell, or to the one word. Returns whether the caller should give the counter
    /// cells with [`LazyCounter::spread`]: each time the sum passes a multiple of
    /// [`ShardedCounter::heap_bytes`], so that all cells together take at most one byte for each addition.
    #[inline]
    pub fn add(&self, value: i64) -> bool {
        match self.cells() {
            Some(cells) => {
                add_to(cells, value);
                false
            }
            None => self.add_first(value),
        }
    }

    #[cold]
    fn add_first(&self, value: i64) -> bool {
        // Relaxed: see the module's header.
        let before = self.first.fetch_add(value, Ordering::Relaxed);
        let busy = (self.nr_cells * size_of::<CachePadded<CounterCell>>()) as i64;
        before / busy < before.wrapping_add(value) / busy
    }

    /// Takes cells, which take [`ShardedCounter::heap_bytes`]. Whether it was this call that did.
    pub fn spread(&self) -> bool {
        let cells = Box::into_raw(CounterCell::boxed(self.nr_cells));
        let null = ptr::null_mut();
        // Release pairs with the Acquire in `cells`. Relaxed: nothing is done with those of another.
        let set =
            self.cells
                .compare_exchange(null, cells.cast(), Ordering::Release, Ordering::Relaxed);
        if set.is_err() {
            // SAFETY: made above, and never published.
            drop(unsafe { Box::from_raw(cells) });
        }
        set.is_ok()
    }

    /// Whether the counter has cells.
    pub fn is_spread(&self) -> bool {
        self.cells().is_some()
    }

    /// The sum, as [`ShardedCounter::sum`].
    pub fn sum(&self) -> i64 {
        // Relaxed: see the module's header.
        let first = self.first.load(Ordering::Relaxed);
        first.wrapping_add(sum_of(self.cells().unwrap_or_default()))
    }
}

impl Default for LazyCounter {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for LazyCounter {
    fn drop(&mut self) {
        // Relaxed: the drop has exclusive access.
        let cells = self.cells.load(Ordering::Relaxed);
        if !cells.is_null() {
            let cells = ptr::slice_from_raw_parts_mut(cells, self.nr_cells);
            // SAFETY: made by `spread` from a `Box` of `nr_cells`, and freed only here.
            drop(unsafe { Box::from_raw(cells) });
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn padded_values_share_no_line() {
        assert_eq!(align_of::<CachePadded<u8>>(), 128);
        assert_eq!(size_of::<CachePadded<u8>>(), 128);
        assert_eq!(size_of::<CachePadded<CounterCell>>(), 256);
    }

    #[test]
    fn nothing_is_lost() {
        const THREADS: i64 = 19;
        let rounds = if cfg!(miri) { 10 } else { 1000 };
        let counter = ShardedCounter::new();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        counter.add(3);
                        counter.dec();
                    }
                });
            }
        });
        assert_eq!(counter.sum(), 2 * rounds * THREADS);
        counter.add(-1_000_000);
        assert_eq!(counter.sum_positive(), 0);
    }

    #[test]
    fn a_lazy_counter_asks_for_cells_once_it_is_busy() {
        let counter = LazyCounter::new();
        let busy = ShardedCounter::heap_bytes() as i64;
        let asked = |n: i64| (0..n).filter(|_| counter.add(1)).count();
        assert_eq!(asked(busy - 1), 0);
        assert_eq!(asked(busy), 1);
        // Refused the first time: it stays a single cell, and tries again later.
        assert!(!counter.is_spread());
        assert_eq!(asked(1), 1);
        assert!(counter.spread() && counter.is_spread());
        assert!(!counter.spread(), "it has them");
        assert_eq!(asked(10 * busy), 0);
        counter.add(-1);
        assert_eq!(counter.sum(), 12 * busy - 1);
    }

    #[test]
    fn a_lazy_counter_loses_nothing_while_it_gets_its_cells() {
        let counter = LazyCounter::new();
        let each = 4 * ShardedCounter::heap_bytes() as i64;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..each {
                        if counter.add(1) {
                            counter.spread();
                        }
                    }
                });
            }
        });
        assert!(counter.is_spread());
        assert_eq!(counter.sum(), 4 * each);
    }

    #[test]
    fn a_cell_whose_owner_has_ended_is_taken_over() {
        let cells = std::sync::Arc::new(CounterCell::boxed(1));
        let cell = &cells[0];
        let its = std::sync::Arc::clone(&cells);
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let owner = std::thread::spawn(move || {
            add_to(&its, 5);
            tell.send(thread_shard()).expect("the test waits");
            stopped.recv().expect_err("nothing is sent");
        });
        let number = told.recv().expect("it was sent");
        let mine = thread_shard();
        for _ in 0..2 * TAKE_OVER {
            add_to(&cells, 1);
        }
        assert_eq!(
            cell.owner.0.load(Ordering::Relaxed),
            number,
            "its owner is alive"
        );
        drop(stop);
        owner.join().expect("it does not panic");
        // Another test's thread may have the number for a while.
        while cell.owner.0.load(Ordering::Relaxed) != mine {
            add_to(&cells, 1);
        }
        let shared = cell.shared.0.load(Ordering::Relaxed);
        add_to(&cells, 7);
        assert_eq!(
            cell.shared.0.load(Ordering::Relaxed),
            shared,
            "the cell is its own"
        );
        assert_eq!(cell.owned.0.load(Ordering::Relaxed), 12);
        assert_eq!(cell.sum(), 12 + shared);
    }

    #[test]
    fn a_number_that_is_not_unique_owns_no_cell() {
        let cells = CounterCell::boxed(1);
        let cell = &cells[0];
        let late = UNNUMBERED - 1;
        add_to_shared(&cells, late, 2);
        add_to_shared(&cells, late, 3 * TAKE_OVER);
        assert_eq!(cell.owner.0.load(Ordering::Relaxed), UNNUMBERED);
        assert_eq!(cell.sum(), 2 + 3 * TAKE_OVER);
    }
}
