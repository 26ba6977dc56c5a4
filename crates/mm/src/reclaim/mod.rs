//! Reclaim: finding memory when the bound is reached.
//!
//! # Model
//!
//! ```text
//!   free frames   above high: nobody works
//!                 below low : the background reclaimer evicts until above high
//!                 none      : callers queue, first in first out; the first reclaims for itself
//! ```
//!
//! Eviction takes clean folios only. When it finds none, the flushers are told to write and to
//! flush early, and the caller waits for them. When no page can ever be evicted it waits for the background reclaimer, which
//! gives up names ([`waiting`]); nobody gets ENOMEM while anything can be reclaimed.
//!
//! # Invariants
//!
//! 1. Only a folio that [`may`](LockedFolio::may) be evicted is.
//! 2. Nothing here waits for a folio lock or for I/O while holding another lock.
//!
//! # Locking
//!
//! *Order*: folio locks are tried, not waited for. *May block*: [`Mm::reserve_frames`] does, for
//! writeback; it must be called with nothing held that writeback needs.

mod background;
mod evacuate;
mod shrinker;
mod tables;
mod waiting;

pub(crate) use waiting::{Need, Waiter};

use foliocache_sync::atomic::Ordering;
use foliocache_sync::rank;
use foliocache_sync::time::coarse_monotonic_ms;
use foliocache_sys::Errno;
use std::time::Duration;

use crate::counters::bump;
use crate::dirty::shown;
use crate::folio::{LockedFolio, Operation, flag};
use crate::frames::{FrameKind, Reservation, Ticket};
use crate::owner;
use crate::queues::Evicted;
use crate::records::{AddressSpace, Mm};
use crate::relied::Passed;
use crate::rounds::{self, RECLAIM_WAIT};
use crate::show::Bytes;
use crate::types::{PAGE_SHIFT, PageIndex};
use std::ops::Range;

/// Pages evicted in one go.
const BATCH: usize = 32;

/// Page tables given back in one go.
const TABLES: u64 = 256;

/// Of so many ranges that a stream leaves behind one is not dropped.
const KEPT_RANGES: u8 = 16;

/// Times the queue is gone through before a scan gives up.
const MAX_TURNS: usize = 3;

/// Room for metadata below which a block is given up for more.
pub(crate) const METADATA_SLACK: u64 = 2 * foliocache_xarray::CHUNK_SIZE as u64;

/// Rounds of eviction without enough frames of the kind that is wanted before the other kind gives some up.
const PATIENCE: u32 = 4;

/// Waits for the frames of `ticket`, not for long; whether they are there.
///
/// A folio that was merely locked when it was looked at becomes evictable without a word, so the
/// wait has to end by itself; in a model in which no time passes it ends at once.
fn wait_for_frames(ticket: &Ticket<'_>) -> bool {
    if !foliocache_sync::time::passes() {
        foliocache_sync::thread::yield_now();
        return ticket.wait(Duration::ZERO);
    }
    ticket.wait(RECLAIM_WAIT)
}

impl Mm {
    /// Reserves `n` frames of a kind, reclaiming and waiting as long as it takes.
    ///
    /// Context: may block for writeback; holds nothing that writeback or reclaim need.
    ///
    /// # Errors
    /// `ENOMEM` only when neither a page nor a name of the cache could ever be reclaimed.
    pub(crate) fn reserve_frames(&self, kind: FrameKind, n: u32) -> Result<Reservation<'_>, Errno> {
        if let Some(reservation) = self.frames.try_reserve(kind, n) {
            self.look_ahead();
            return Ok(reservation);
        }
        self.reserve_slow_path(kind, n)
    }

    /// Reserves `n` frames of a kind if they are free, or are once some clean folios are evicted.
    ///
    /// Context: as [`Mm::shrink_lru`]; looks at a few times as many pages at most.
    pub(crate) fn try_reserve_frames(&self, kind: FrameKind, n: u32) -> Option<Reservation<'_>> {
        let reservation = self.frames.try_reserve(kind, n);
        self.look_ahead();
        if reservation.is_some() {
            return reservation;
        }
        // Linear frames that are evicted leave only after a grace period, and callers that wait get every evicted
        // frame: there is none to take ahead of them.
        let want = (n as usize).max(BATCH);
        if kind == FrameKind::Linear
            || self.frames.has_waiters()
            || self.shrink_lru_ahead(want, 2 * want) == 0
        {
            return None;
        }
        self.frames.try_reserve(kind, n)
    }

    /// Has the background reclaimer work before memory is needed.
    #[inline]
    fn look_ahead(&self) {
        if self.frames.below_low() || self.frames.block_wanted() {
            self.reclaimer.worker.wake();
        }
    }

    fn tell_direct_reclaim(&self) {
        if let Some(left_out) = self.reclaimer.told.admit((0, 0), coarse_monotonic_ms()) {
            let (in_use, left_out) = (Bytes(self.usage().total_bytes()), shown(left_out));
            tracing::info!(%in_use, left_out, "memory is used up: callers evict pages themselves");
        }
    }

    #[cold]
    fn reserve_slow_path(&self, kind: FrameKind, n: u32) -> Result<Reservation<'_>, Errno> {
        rank::might_sleep();
        self.reclaimer.worker.wake();
        let mut ticket = self.frames.enqueue(kind, n);
        let (mut rounds, mut waiter) = (0, Waiter::new(self, Need::Frames, rounds::PATIENCE));
        loop {
            if let Some(reservation) = ticket.try_take() {
                return Ok(reservation);
            }
            // Enough for this one is on its way to those before it in the queue: were all to evict
            // until their turn comes, the cache would be empty by then.
            if self.frames.available(kind) < u64::from(n) {
                bump(&self.events.direct_reclaims, 1);
                self.tell_direct_reclaim();
                rounds += 1;
                if self.make_frames(kind, n, rounds) {
                    waiter.go_on();
                    continue;
                }
                self.request_writeback();
            }
            match () {
                () if wait_for_frames(&ticket) => waiter.go_on(),
                () if self.anything_reclaimable_for(kind) => waiter.held_up(),
                () => waiter.refused()?,
            }
        }
    }

    /// Evicts for a caller that waits for `n` frames of a kind; whether there is more to come. The coldest folios go,
    /// whatever their kind. So after some rounds the other kind has to give a unit up.
    fn make_frames(&self, kind: FrameKind, n: u32, rounds: u32) -> bool {
        if self.frames.shift_unit(kind) {
            return true;
        }
        let want = (n as usize).max(BATCH);
        let alone = kind == FrameKind::Linear && self.frames.is_pool_short();
        // Frames of the other kind would be of no use.
        let wanted = |locked: &LockedFolio<'_>| !alone || self.frames.is_linear(locked.frame());
        let mut progress = self.shrink_lru_wanted(want, wanted) > 0;
        if self.frames.leaving() > 0 {
            progress |= self.frames.punch_leaving() > 0;
        }
        if alone || !rounds.is_multiple_of(PATIENCE) || self.frames.available(kind) >= u64::from(n)
        {
            return progress;
        }
        match kind {
            FrameKind::General => self.frames.owe_unit(),
            FrameKind::Linear => {
                progress |= self.evacuate_blocks(1) > 0 && self.frames.force_linear_unit();
            }
        }
        progress
    }

    /// Whether waiting can help: some frame holds, or is promised for, what may still be evicted.
    pub(crate) fn anything_reclaimable(&self) -> bool {
        let usage = self.usage();
        (usage.in_use_pages + usage.reserved_pages) << PAGE_SHIFT > self.unreclaimable().bytes()
    }

    /// As [`Mm::anything_reclaimable`], for frames of a kind.
    fn anything_reclaimable_for(&self, kind: FrameKind) -> bool {
        if kind == FrameKind::General || !self.frames.is_pool_short() {
            return self.anything_reclaimable();
        }
        (self.usage().linear_bytes >> PAGE_SHIFT) > self.kept_linear()
    }

    /// Evicts clean folios of `want` pages or a little more; returns how many pages it evicted.
    ///
    /// Context: takes the LRU lock and `xa_lock`s; tries folio locks; does not sleep.
    pub(crate) fn shrink_lru(&self, want: usize) -> usize {
        self.shrink_lru_wanted(want, |_| true)
    }

    /// As [`Mm::shrink_lru`], looking at `budget` pages or a little more, ahead of need: pages that handles rely on stay
    /// (`relied.rs`).
    pub(super) fn shrink_lru_ahead(&self, want: usize, budget: usize) -> usize {
        let passed = Passed::default();
        self.shrink_lru_but(want, budget, |locked| !passed.keeps(locked, false))
    }

    /// As [`Mm::shrink_lru`], of folios that are `wanted`.
    fn shrink_lru_wanted(&self, want: usize, wanted: impl Fn(&LockedFolio<'_>) -> bool) -> usize {
        let budget = MAX_TURNS * self.lru.lock().len().max(BATCH);
        for last in [false, true] {
            let passed = Passed::default();
            let free = |locked: &LockedFolio<'_>| wanted(locked) && !passed.keeps(locked, last);
            let evicted = self.shrink_lru_but(want, budget, free);
            if evicted > 0 || !passed.is_last_resort() {
                return evicted;
            }
        }
        0
    }

    /// As [`Mm::shrink_lru_wanted`], looking at `budget` pages or a little more, also at pages that handles rely on.
    fn shrink_lru_but(
        &self,
        want: usize,
        mut budget: usize,
        wanted: impl Fn(&LockedFolio<'_>) -> bool,
    ) -> usize {
        // Folios that no stream has ahead of it will not be used.
        let mut evicted = self.drop_leftovers(self.uncached_to_come(), want);
        while evicted < want && budget > 0 {
            let batch = BATCH.min(want - evicted);
            // Bounded so that the LRU lock is never held for long.
            let limit = budget.min(8 * BATCH);
            let scan = (self.lru.lock()).scan(&self.folios, &self.waits, batch, limit, &wanted);
            budget = budget.saturating_sub(scan.scanned);
            if scan.scanned == 0 {
                break;
            }
            if scan.busy > scan.scanned / 2 {
                self.request_writeback();
            }
            // All threads share the LRU lock: it is taken twice a batch, not for each folio.
            let gone: Vec<Evicted> = scan
                .victims
                .into_iter()
                .filter_map(|locked| self.evict(locked))
                .collect();
            evicted += gone.iter().map(|gone| gone.pages as usize).sum::<usize>();
            let mut lru = self.lru.lock();
            gone.iter().for_each(|evicted| lru.record_eviction(evicted));
        }
        match evicted < want {
            // Now any clean folio: the pages that wait to be written may be on other queues, where none can be
            // evicted.
            true => evicted + self.drop_leftovers(0, want - evicted),
            false => evicted,
        }
    }

    /// Evicts the folios that a stream has left behind in `range` of a file and that were used once, if fewer than
    /// `spare` frames on top of the high mark are available (decision 14). One range in [`KEPT_RANGES`]
    /// passes through the queues like everything else. Dropped folios leave no shadow entry.
    ///
    /// Another reader may follow close behind. Its first misses tell, and nothing is dropped until the cache
    /// has turned over some times.
    ///
    /// Context: as [`Mm::shrink_lru`].
    pub(crate) fn drop_behind(&self, mapping: &AddressSpace, range: Range<PageIndex>, spare: u64) {
        if range.is_empty() || !self.frames.below_high(spare) || mapping.is_relied_on() {
            return;
        }
        // Relaxed, all of them: hints.
        let turn = mapping.drops_behind.fetch_add(1, Ordering::Relaxed);
        let followed_until = mapping.followed_until.load(Ordering::Relaxed);
        if turn % KEPT_RANGES == KEPT_RANGES - 1 || self.lru.lock().evictions() < followed_until {
            return;
        }
        mapping.dropped_to.store(range.end.0, Ordering::Relaxed);
        let unused = |locked: &LockedFolio<'_>| {
            let used = flag::REFERENCED | flag::READAHEAD;
            locked.may(Operation::Evict) && !locked.state.load().has_any(used)
        };
        let mut victims = Vec::new();
        let pages = range.start.0..range.end.0;
        let lock = |page| mapping.try_lock_folio(page);
        mapping.for_each_folio(pages.clone(), lock, |locked| {
            if locked.lies_in(&pages) && unused(&locked) {
                victims.push(locked);
            }
        });
        {
            let mut lru = self.lru.lock();
            victims.retain(|locked| lru.remove_small(&self.folios, locked));
        }
        for locked in victims {
            let _not_remembered = self.evict(locked);
        }
    }

    /// Evicts a folio that may be evicted, wherever it is in the queues.
    fn evict_queued(&self, locked: LockedFolio<'_>) {
        self.lru.lock().remove(&self.folios, &locked);
        if let Some(evicted) = self.evict(locked) {
            self.lru.lock().record_eviction(&evicted);
        }
    }

    /// Takes a clean folio, already off its queue, out of the cache. The caller records it, or knows why
    /// not. If handles rely on it by now, it gets in line again.
    #[must_use = "an eviction is recorded, so that a refault is known"]
    fn evict(&self, locked: LockedFolio<'_>) -> Option<Evicted> {
        let mapping = owner::hold(&locked);
        if mapping.keeps_page(true) {
            self.lru.lock().put_back(&self.folios, &locked);
            return None;
        }
        let (page, pages) = (locked.index(), locked.nr_pages());
        bump(&mapping.counters.evictions, pages);
        let frames = mapping.detach_unqueued_folio(locked);
        mapping.free_frames(frames);
        Some(Evicted {
            owner: mapping.id(),
            page,
            pages,
        })
    }

    /// Frees descriptors and index nodes, and a whole block for more of them if need be; whether something went.
    pub(crate) fn make_room_for_metadata(&self) -> bool {
        self.nodes.advance();
        if self.shrink_tables(TABLES) > 0 {
            return true;
        }
        let evicted = self.shrink_lru(BATCH);
        if self.frames.leaving() > 0 {
            self.frames.punch_leaving();
        }
        if evicted == 0 {
            self.request_writeback();
            foliocache_sync::time::sleep(Duration::from_millis(1));
        }
        if self.nodes.stats().limbo > 0 {
            self.nodes.wait_for_limbo();
        }
        let usage = self.usage();
        let mut given = 0;
        if usage.limit_bytes.saturating_sub(usage.total_bytes()) < METADATA_SLACK {
            given = self.evacuate_blocks(1);
        }
        evicted + given > 0
    }
}
