//! How the table grows: asking for an array, moving a few buckets at a time, freeing the old array.
//!
//! # Invariants
//!
//! 1. Invariant 5 of [`super`]: `attention` keeps [`MOVING`] until [`RETIRED`] and the new table are in sight.
//! 2. The thread that moved the last bucket makes the switch, alone.
//!
//! # Locking
//!
//! `growing` is held while the bound is asked, so at most one thread waits for that; the others go on. A bucket is
//! moved under its stripe's lock.
//!
//! # Memory ordering
//!
//! Stated at each place; `growing` is a lock (`Acquire` swap, `Release` store), `table` and `next` publish
//! arrays.
//!
//! # Safety
//!
//! The old array is made a `Box` again by invariant 2.
#![allow(unsafe_code)]

use std::ptr;

use foliocache_sync::atomic::Ordering;
use foliocache_sync::rcu::{self, GpCookie};

use super::table::Table;
use super::{HashNode, RcuHash};

/// Buckets that one [`RcuHash::tend`] moves.
const PIECE: usize = if cfg!(any(loom, shuttle)) { 1 } else { 8 };
/// Nodes that a stripe may have beyond its share before the table wants to grow: with few buckets a
/// stripe, shares vary.
const SLACK: usize = if cfg!(any(loom, shuttle)) { 0 } else { 8 };

/// Bits of [`RcuHash::attention`].
pub(super) const WANTS_TO_GROW: u32 = 1;
const MOVING: u32 = 2;
const RETIRED: u32 = 4;

/// An array that waits for its readers.
pub(super) struct Retired<T: HashNode> {
    pub(super) table: Box<Table<T>>,
    pub(super) cookie: GpCookie,
}

/// Nodes in a stripe above which a table of `buckets` wants to grow: one in two buckets. Each node that a look-up
/// passes costs it a line of memory; a bucket costs eight bytes and those of its hint (decision 74).
pub(super) fn crowded(buckets: usize, stripes: usize) -> u32 {
    u32::try_from(buckets / stripes / 2 + SLACK).unwrap_or(u32::MAX)
}

impl<T: HashNode> RcuHash<T> {
    /// Does a bounded piece of the growth, if there is any; one load otherwise. The owner calls it after each
    /// insertion.
    ///
    /// Context: no lock and no read section; may reclaim memory, to make room for a larger array.
    #[inline]
    pub fn tend(&self) {
        // Relaxed: only a hint. The next call sees a missed one.
        let attention = self.attention.load(Ordering::Relaxed);
        if attention != 0 {
            self.tend_slow(attention);
        }
    }

    #[cold]
    fn tend_slow(&self, attention: u32) {
        if attention & MOVING != 0 {
            self.move_piece();
        } else if attention & RETIRED != 0 {
            self.free_retired();
        } else if !self.growing.swap(true, Ordering::Acquire) {
            // The swap's Acquire pairs with the Release store below: each growing thread sees the actions of the
            // previous one.
            self.start_growing();
            self.growing.store(false, Ordering::Release);
        }
    }

    /// Context: `growing` is ours.
    fn start_growing(&self) {
        let (buckets, generation) = {
            let rcu = rcu::read_lock();
            let table = self.table(&rcu);
            if self.next(table, &rcu).is_some() {
                return;
            }
            (table.heads.len() * 2, table.generation + 1)
        };
        // Relaxed: a caller with further work comes here again. Another thread may have grown the table since this
        // one was told to; then that growth is over, array and all, or `attention` says so (invariant 5).
        let attention = self.attention.fetch_and(!WANTS_TO_GROW, Ordering::Relaxed);
        if attention & (MOVING | RETIRED) != 0 || attention & WANTS_TO_GROW == 0 {
            return;
        }
        let bytes = Table::<T>::bytes(buckets);
        if !self.bound.charge(bytes) {
            let crowded = self.crowded.load(Ordering::Relaxed);
            let longer = crowded.saturating_add(crowded / 2 + 1);
            self.crowded.store(longer, Ordering::Relaxed);
            return;
        }
        self.charged.fetch_add(bytes, Ordering::Relaxed);
        let next = Box::into_raw(Table::new(buckets, generation));
        let crowded = crowded(buckets, self.stripes.len());
        self.crowded.store(crowded, Ordering::Relaxed);
        let rcu = rcu::read_lock();
        // Release pairs with the Acquire load in `next`: the array.
        self.table(&rcu).next.store(next, Ordering::Release);
        // Relaxed: a hint, as in `tend`.
        self.attention.fetch_or(MOVING, Ordering::Relaxed);
    }

    fn move_piece(&self) {
        let rcu = rcu::read_lock();
        let table = self.table(&rcu);
        let Some(next) = self.next(table, &rcu) else {
            return;
        };
        let buckets = table.heads.len();
        // Relaxed: it only assigns the bucket; its contents are read under its lock.
        let from = table.claimed.fetch_add(PIECE, Ordering::Relaxed);
        let piece = from..buckets.min(from + PIECE);
        if piece.is_empty() {
            return;
        }
        let len = piece.len();
        for bucket in piece {
            let stripe = &self.stripes[bucket & (self.stripes.len() - 1)];
            let _guard = stripe.lock.lock();
            while table.move_tail(bucket, next) {}
        }
        // Release: the moves are before the switch, and so is `Acquire` for the last of us.
        if table.moved.fetch_add(len, Ordering::AcqRel) + len == buckets {
            self.finish(table, next);
        }
    }

    /// Context: a read section; all buckets are moved, and this thread alone moved the last one.
    fn finish(&self, table: &Table<T>, next: &Table<T>) {
        let next = ptr::from_ref(next).cast_mut();
        // Before the switch, whose Release carries it: a thread that sees the new table sees that the old one is
        // still to be freed, and does not start to grow. Relaxed otherwise.
        self.attention.fetch_or(RETIRED, Ordering::Relaxed);
        // Release pairs with the Acquire load in `table`.
        let old = self.table.swap(next, Ordering::AcqRel);
        debug_assert!(ptr::eq(old, table), "two tables were moving");
        // SAFETY: it was made by `Box::into_raw`, and no other thread takes it: see the context.
        let table = unsafe { Box::from_raw(old) };
        let cookie = rcu::start_poll();
        *self.retired.lock() = Some(Retired { table, cookie });
        // Relaxed: until a thread sees this, it does not start to grow.
        self.attention.fetch_and(!MOVING, Ordering::Relaxed);
    }

    fn free_retired(&self) {
        let Some(mut retired) = self.retired.try_lock() else {
            return;
        };
        if !retired.as_ref().is_some_and(|old| rcu::poll(old.cookie)) {
            return;
        }
        let old = retired.take();
        // Relaxed: a hint, as in `tend`.
        self.attention.fetch_and(!RETIRED, Ordering::Relaxed);
        drop(retired);
        if let Some(Retired { table, .. }) = old {
            self.uncharge(Table::<T>::bytes(table.heads.len()));
        }
    }

    fn uncharge(&self, bytes: u64) {
        // The first array may not have been charged. Relaxed: a sum.
        let update = |charged: u64| Some(charged - bytes.min(charged));
        let before = self
            .charged
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, update)
            .unwrap_or_default();
        self.bound.uncharge(bytes.min(before));
    }
}
