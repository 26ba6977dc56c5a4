//! Figures of files and of a whole cache.

mod display;

use foliocache_sync::ShardedCounter;
use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::Duration;

use crate::counters::{Count, FileStats, bump, read, read_short};
use crate::dirty::ThrottleStats;
use crate::frames::FrameUsage;
use crate::pressure::PressureStats;
use crate::records::{AddressSpace, Mm};
use crate::unreclaimable::Unreclaimable;

impl AddressSpace {
    /// Figures of this file. Costs a few loads a counter.
    pub fn stats(&self) -> FileStats {
        let mut stats = FileStats::default();
        self.add_stats(&mut stats);
        stats
    }

    pub(crate) fn add_stats(&self, stats: &mut FileStats) {
        stats.resident_pages += self.nr_pages();
        stats.folios += self.index.nr_entries();
        stats.dirty_pages += self.counts.get(Count::Dirty);
        stats.writeback_pages += self.counts.get(Count::Writeback);
        stats.unstable_pages += self.counts.get(Count::Unstable);
        stats.failed_pages += self.counts.get(Count::Failed);
        stats.pinned_pages += read(&self.nr_pinned);
        self.add_activity(stats);
    }

    /// Adds what was done with the file to what was done with others.
    pub(crate) fn add_activity(&self, stats: &mut FileStats) {
        let counters = &self.counters;
        stats.hit_pages += self.hits.0.sum().unsigned_abs();
        stats.missed_pages += read(&counters.misses);
        stats.readahead_first_used_pages += read(&counters.readahead_first_uses);
        stats.evicted_pages += read(&counters.evictions);
        stats.refaults += read(&counters.refaults);
        stats.readahead_pages += read(&counters.readahead);
        stats.readahead_used_pages += read(&counters.readahead_used);
        stats.readahead_wasted_pages += read(&counters.readahead_wasted);
        stats.throttled += Duration::from_nanos(read(&counters.throttled_ns));
        stats.written_bytes += read(&counters.written);
        stats.read_bytes += read(&counters.read_in);
        stats.faults += read(&counters.faults);
        stats.mapped_pages += read(&counters.mapped);
        let (uncached, sum) = (&counters.uncached, &mut stats.uncached);
        // `asked_pages` last: what else is counted has been counted there before.
        sum.dropped_pages += read(&uncached.dropped);
        sum.kept_present_pages += read(&uncached.kept_present);
        sum.kept_used_pages += read(&uncached.kept_used);
        sum.failed_locked_pages += read_short(&uncached.failed_locked);
        sum.failed_held_pages += read_short(&uncached.failed_held);
        sum.asked_pages += read(&uncached.asked);
    }

    /// Counts pages for the file, its file system and the cache.
    pub(crate) fn count(&self, count: Count, n: u64) {
        self.counts.add(count, n);
        self.bdi().counts.add(count, n);
        self.mm().counts.add(count, n);
    }

    pub(crate) fn uncount(&self, count: Count, n: u64) {
        self.counts.sub(count, n);
        self.bdi().counts.sub(count, n);
        self.mm().counts.sub(count, n);
    }

    /// Counts pages that were found in the cache and had been used before.
    #[inline]
    pub(crate) fn count_hits(&self, pages: u64) {
        if self.hits.0.add(pages as i64) {
            self.spread_hits();
        }
    }

    /// Gives each processor a cell to count in, where the bound has room for them.
    #[cold]
    fn spread_hits(&self) {
        let bytes = ShardedCounter::heap_bytes() as u64;
        if !self.mm().frames.try_charge_metadata(bytes) {
            return;
        }
        if self.hits.0.spread() {
            bump(&self.bdi().hit_bytes, bytes);
        } else {
            // Another thread did.
            self.mm().uncharge_metadata(bytes);
        }
    }

    /// Gives back what counting hits is charged to the bound, at the end.
    pub(crate) fn uncharge_hits(&self) {
        if self.hits.0.is_spread() {
            let bytes = ShardedCounter::heap_bytes() as u64;
            // Relaxed: a figure.
            self.bdi().hit_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.mm().uncharge_metadata(bytes);
        }
    }
}

/// Figures of a whole cache.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MmStats {
    /// Memory against the bound.
    pub memory: FrameUsage,
    /// What of it cannot be reclaimed.
    pub unreclaimable: Unreclaimable,
    /// All files together; what was done counts those dropped since, too.
    pub files: FileStats,
    /// Files that the cache knows now: those that are open, and those of which it has something.
    pub known_files: u64,
    /// Pages that readers have read ahead and not reached, or that are on their way to them; what
    /// handles left behind long ago is not counted.
    pub readahead_leased_pages: u64,
    /// Times a caller had to reclaim memory itself.
    pub direct_reclaims: u64,
    /// Copies that memory of the cache itself stopped, as bad RAM does. Data that the store has is read
    /// again; for other data the access fails with `EIO`.
    pub memory_faults: u64,
    /// Blocks of 2 MiB that were made whole again because larger chunks were missing, ever.
    pub blocks_compacted: u64,
    /// Times that a block was passed over when memory was given back because a folio in it was busy, under
    /// an I/O that hangs, say; another block was given back in its place if there was one. Ever.
    pub blocks_skipped: u64,
    /// Views that are copies because nothing else was possible, ever.
    pub views_copied: u64,
    /// Bytes of exact views that are copies, with 64 bytes more for each: they are metadata, at most a quarter of the bound.
    pub copied_view_bytes: u64,
    /// Folios that got new frames because they were viewed and were to be changed, ever.
    pub folios_replaced: u64,
    /// Times that the kernel did not take memory back, which stays in use then. Ever.
    pub give_back_failures: u64,
    /// Panics of background threads (reclaim, pressure, writeback, freeing of inodes, workers of async
    /// callers), ever. Each is logged, and the thread goes on.
    pub background_panics: u64,
    /// How the bound follows the pressure from outside.
    pub pressure: PressureStats,
    /// Waits of writers because too much was dirty.
    pub throttle: ThrottleStats,
}

impl Mm {
    /// All figures of the cache. Takes every file's counters together: not for a hot path.
    pub fn stats(&self) -> MmStats {
        let (mut files, known_files) = {
            let mappings = self.mappings.lock();
            (mappings.retired, mappings.live.len() as u64)
        };
        for mapping in self.mappings() {
            mapping.add_stats(&mut files);
        }
        MmStats {
            memory: self.usage(),
            unreclaimable: self.unreclaimable(),
            files,
            known_files,
            readahead_leased_pages: self.readahead.leased(),
            direct_reclaims: read(&self.direct_reclaims),
            memory_faults: read(&self.memory_faults),
            blocks_compacted: read(&self.compacted),
            blocks_skipped: read(&self.skipped),
            views_copied: read(&self.copied_views),
            copied_view_bytes: self.views.copied_bytes(),
            folios_replaced: read(&self.replaced),
            give_back_failures: self.frames.give_back_failures(),
            background_panics: self.panics.count(),
            pressure: self.pressure.stats(),
            throttle: self.stalls.stats(),
        }
    }
}
