//! Keeping apart what different threads write: cache lines of one's own and counters in shards.
//!
//! # Model
//!
//! Each thread has a small number, [`thread_shard`]. A [`ShardedCounter`] has one cell a shard, on a
//! cache line of its own: adding touches the thread's own, reading adds up all of them.
//!
//! A cell belongs to the first thread that adds to it, which does so with a load and a store; others
//! whose numbers lead there share a second word of it, with atomic additions, which cost some 20
//! cycles each. A cell is not given back when its thread ends.
//!
//! Where there are many counters and few are busy, a [`LazyCounter`] is one word until it is much added to.
//!
//! # Memory ordering
//!
//! `Relaxed`: a counter publishes nothing but its number. An increment is never lost (it is one atomic
//! addition, or the only thread's that stores to the word); a sum taken while others add may hold one of
//! two additions and not the other, whichever came first. The cells of a [`LazyCounter`] are published by a
//! `Release` store and read through an `Acquire` load.
//!
//! # Safety
//!
//! The cells of a [`LazyCounter`] are a box of its own, taken once and freed with it.
#![allow(unsafe_code)]

use crate::atomic::{AtomicI64, AtomicPtr, AtomicUsize, Ordering};
use crate::cell::Cell;
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

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.0
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

impl<T> From<T> for CachePadded<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

const UNNUMBERED: usize = usize::MAX;

crate::global! {
    /// The number that the next thread gets.
    static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);
}

crate::thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(UNNUMBERED) };
}

/// A small number of this thread, given out in order of first use from 0 on. Take it modulo the number of
/// one's shards. Numbers are not used again when threads end. Costs a thread-local load.
#[inline]
pub fn thread_shard() -> usize {
    THREAD
        .try_with(|number| match number.get() {
            UNNUMBERED => number_thread(number),
            shard => shard,
        })
        // Only a model destroys it, at the end of a thread; any shard will do.
        .unwrap_or(0)
}

#[cold]
fn number_thread(number: &Cell<usize>) -> usize {
    // Relaxed: the numbers only have to differ.
    let next = NEXT_THREAD.fetch_add(1, Ordering::Relaxed) % UNNUMBERED;
    number.set(next);
    next
}

/// Most shards of anything.
const MAX_SHARDS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 16 };

crate::global! {
    /// What [`shard_count`] says, 0 until it is known.
    static SHARDS: AtomicUsize = AtomicUsize::new(0);
}

/// As many shards as are worth having: one for each processor, up to 16 and to a power of two.
pub fn shard_count() -> usize {
    // Relaxed: a number that is set once. Threads may not find the same: they are pinned to processors.
    match SHARDS.load(Ordering::Relaxed) {
        0 => {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            let shards = processors.next_power_of_two().min(MAX_SHARDS);
            match SHARDS.compare_exchange(0, shards, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => shards,
                Err(shards) => shards,
            }
        }
        shards => shards,
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

#[derive(Debug)]
struct CounterCell {
    /// The number of the thread that it belongs to, once it has been added to.
    owner: AtomicUsize,
    /// What its owner added, and nobody else.
    owned: AtomicI64,
    /// What others added.
    shared: AtomicI64,
}

impl CounterCell {
    fn new() -> Self {
        Self {
            owner: AtomicUsize::new(UNNUMBERED),
            owned: AtomicI64::new(0),
            shared: AtomicI64::new(0),
        }
    }

    fn boxed(cells: usize) -> Box<[CachePadded<Self>]> {
        let cell = || CachePadded::new(Self::new());
        std::iter::repeat_with(cell).take(cells).collect()
    }

    // Relaxed: see the module's header.
    #[inline]
    fn add(&self, thread: usize, value: i64) {
        if self.owner.load(Ordering::Relaxed) == thread {
            let sum = self.owned.load(Ordering::Relaxed).wrapping_add(value);
            self.owned.store(sum, Ordering::Relaxed);
        } else {
            self.add_shared(thread, value);
        }
    }

    /// Adds to a cell that is not this thread's, or not yet.
    #[inline(never)]
    fn add_shared(&self, thread: usize, value: i64) {
        // Relaxed: only the number counts; the new owner's word is zero since the cell was made.
        let claim =
            self.owner
                .compare_exchange(UNNUMBERED, thread, Ordering::Relaxed, Ordering::Relaxed);
        match claim {
            Ok(_) => self.owned.store(value, Ordering::Relaxed),
            Err(_) => {
                self.shared.fetch_add(value, Ordering::Relaxed);
            }
        }
    }

    fn sum(&self) -> i64 {
        let owned = self.owned.load(Ordering::Relaxed);
        owned.wrapping_add(self.shared.load(Ordering::Relaxed))
    }
}

/// Adds to this thread's cell of a power of two.
#[inline]
fn add_to(cells: &[CachePadded<CounterCell>], value: i64) {
    let thread = thread_shard();
    cells[thread & (cells.len() - 1)].add(thread, value);
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
    /// A counter at zero, with a cell for each processor, up to 16.
    pub fn new() -> Self {
        Self {
            cells: CounterCell::boxed(shard_count()),
        }
    }

    /// Bytes that the cells of one counter take: 128 each.
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

    /// The sum. Exact once nobody adds any more; else every addition that happened before this call is in
    /// it, and of the concurrent ones some.
    pub fn sum(&self) -> i64 {
        sum_of(&self.cells)
    }

    /// The sum as a size: zero where concurrent additions make it negative for a moment.
    pub fn sum_positive(&self) -> u64 {
        u64::try_from(self.sum()).unwrap_or(0)
    }
}

/// A counter that takes no memory besides its own until it was much added to, and is as a
/// [`ShardedCounter`] from then on. For what there are many of, files say.
#[derive(Debug)]
pub struct LazyCounter {
    /// What was added before there were cells.
    first: AtomicI64,
    /// Null, or `nr_cells` cells of a `Box`, which stay until the drop.
    cells: AtomicPtr<CachePadded<CounterCell>>,
    nr_cells: usize,
}

impl LazyCounter {
    /// Sum from which on cells are worth their memory: each of the additions up to there cost 20 cycles
    /// more.
    const BUSY: i64 = 256;

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
        // SAFETY: so many, of a `Box` that is freed when `self` is dropped.
        (!cells.is_null()).then(|| unsafe { slice::from_raw_parts(cells, self.nr_cells) })
    }

    /// Adds to this thread's cell, or to the one word. Says whether the counter would do well with cells
    /// that it does not have: [`LazyCounter::spread`]. It says so again and again, but seldom.
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
        before / Self::BUSY < before.wrapping_add(value) / Self::BUSY
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
            // SAFETY: made above, and nobody else's.
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
        // Relaxed: nobody else has the counter.
        let cells = self.cells.load(Ordering::Relaxed);
        if !cells.is_null() {
            let cells = ptr::slice_from_raw_parts_mut(cells, self.nr_cells);
            // SAFETY: made by `spread` from a `Box` of so many, and never freed but here.
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
        assert_eq!(ShardedCounter::heap_bytes() % 128, 0);
    }

    #[test]
    fn threads_have_numbers_of_their_own() {
        let mine = thread_shard();
        assert_eq!(mine, thread_shard());
        let other = std::thread::spawn(thread_shard)
            .join()
            .expect("it does not panic");
        assert_ne!(mine, other);
    }

    #[test]
    fn nothing_is_lost() {
        let counter = ShardedCounter::new();
        std::thread::scope(|scope| {
            for _ in 0..MAX_SHARDS + 3 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counter.add(3);
                        counter.dec();
                    }
                });
            }
        });
        assert_eq!(counter.sum(), 2000 * (MAX_SHARDS as i64 + 3));
        counter.add(-1_000_000);
        assert_eq!(counter.sum_positive(), 0);
    }

    #[test]
    fn a_lazy_counter_asks_for_cells_once_it_is_busy() {
        let counter = LazyCounter::new();
        let asked = |n: i64| (0..n).filter(|_| counter.add(1)).count();
        assert_eq!(asked(LazyCounter::BUSY - 1), 0);
        assert_eq!(asked(LazyCounter::BUSY), 1);
        // Refused the first time: it goes on as it is, and asks again.
        assert!(!counter.is_spread());
        assert_eq!(asked(1), 1);
        assert!(counter.spread() && counter.is_spread());
        assert!(!counter.spread(), "it has them");
        assert_eq!(asked(10 * LazyCounter::BUSY), 0);
        counter.add(-1);
        assert_eq!(counter.sum(), 12 * LazyCounter::BUSY - 1);
    }

    #[test]
    fn a_lazy_counter_loses_nothing_while_it_gets_its_cells() {
        let counter = LazyCounter::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        if counter.add(1) {
                            counter.spread();
                        }
                    }
                });
            }
        });
        assert!(counter.is_spread());
        assert_eq!(counter.sum(), 4000);
    }
}
