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
//! # Memory ordering
//!
//! All `Relaxed`: a counter publishes nothing but its number. An increment is never lost (it is one atomic
//! addition, or the only thread's that stores to the word); a sum taken while others add may hold one of
//! two additions and not the other, whichever came first.

use crate::atomic::{AtomicI64, AtomicUsize, Ordering};
use crate::cell::Cell;
use std::ops::{Deref, DerefMut};

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

/// Most cells of a [`ShardedCounter`].
const MAX_COUNTER_SHARDS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 16 };

crate::global! {
    /// How many cells a counter has: a power of two, 0 until it is known.
    static COUNTER_SHARDS: AtomicUsize = AtomicUsize::new(0);
}

/// As many cells as processors, up to a bound and to a power of two.
fn counter_shards() -> usize {
    // Relaxed: whoever finds it out finds the same.
    match COUNTER_SHARDS.load(Ordering::Relaxed) {
        0 => {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            let shards = processors.next_power_of_two().min(MAX_COUNTER_SHARDS);
            COUNTER_SHARDS.store(shards, Ordering::Relaxed);
            shards
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

impl Default for ShardedCounter {
    fn default() -> Self {
        Self::new()
    }
}

impl ShardedCounter {
    /// A counter at zero, with a cell for each processor, up to 16.
    pub fn new() -> Self {
        let cell = || CachePadded::new(CounterCell::new());
        Self {
            cells: std::iter::repeat_with(cell)
                .take(counter_shards())
                .collect(),
        }
    }

    /// Bytes that the cells of one counter take: 128 each.
    pub fn heap_bytes() -> usize {
        counter_shards() * size_of::<CachePadded<CounterCell>>()
    }

    /// Adds to this thread's cell.
    #[inline]
    pub fn add(&self, value: i64) {
        let thread = thread_shard();
        self.cells[thread & (self.cells.len() - 1)].add(thread, value);
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
        self.cells
            .iter()
            .map(|cell| cell.sum())
            .fold(0, i64::wrapping_add)
    }

    /// The sum as a size: zero where concurrent additions make it negative for a moment.
    pub fn sum_positive(&self) -> u64 {
        u64::try_from(self.sum()).unwrap_or(0)
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
            for _ in 0..MAX_COUNTER_SHARDS + 3 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counter.add(3);
                        counter.dec();
                    }
                });
            }
        });
        assert_eq!(counter.sum(), 2000 * (MAX_COUNTER_SHARDS as i64 + 3));
        counter.add(-1_000_000);
        assert_eq!(counter.sum_positive(), 0);
    }
}
