//! Counters, per file, per file system and per cache.

mod display;

use foliocache_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use foliocache_sync::time::Duration;
use foliocache_sync::{LazyCounter, ShardedCounter};

use crate::address_space::AddressSpace;
use crate::bdi::{BackingDevInfo, ThrottleStats};
use crate::frames::FrameUsage;
use crate::pressure::PressureStats;
use crate::readahead::ReadaheadFeedback;
use crate::unreclaimable::Unreclaimable;

/// Folios by what stands between them and the medium, in pages. One folio may count in two: it is written to again while
/// it is under writeback, say.
#[derive(Debug, Default)]
pub(crate) struct PageCounts([AtomicU64; 4]);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    /// First: every write looks at it, and it seldom changes.
    Failed,
    Dirty,
    Writeback,
    Unstable,
}

impl PageCounts {
    /// Bytes at its beginning that seldom change.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) const READ_BYTES: usize = size_of::<AtomicU64>();

    // Relaxed throughout: the counts steer throttling and are shown; what they count is ordered
    // by the folio lock and `wb_lock`.
    pub(crate) fn add(&self, count: Count, n: u64) {
        self.0[count as usize].fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, count: Count, n: u64) {
        let before = self.0[count as usize].fetch_sub(n, Ordering::Relaxed);
        debug_assert!(before >= n, "{count:?} fell below zero: {before} - {n}");
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.0[count as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn not_durable(&self) -> u64 {
        self.get(Count::Dirty) + self.get(Count::Writeback) + self.get(Count::Unstable)
    }
}

/// What one file's users did, since it was first opened, besides hits.
#[derive(Debug, Default)]
pub(crate) struct FileCounters {
    pub(crate) misses: AtomicU64,
    pub(crate) readahead_first_uses: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) refaults: AtomicU64,
    pub(crate) readahead: AtomicU64,
    pub(crate) readahead_used: AtomicU64,
    pub(crate) readahead_wasted: AtomicU64,
    pub(crate) throttled_ns: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) read_in: AtomicU64,
    pub(crate) faults: AtomicU64,
    pub(crate) mapped: AtomicU64,
    pub(crate) uncached: UncachedCounters,
    /// What readahead of the file was worth lately.
    pub(crate) feedback: ReadaheadFeedback,
}

/// As [`UncachedStats`].
#[derive(Debug, Default)]
pub(crate) struct UncachedCounters {
    pub(crate) asked: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) kept_present: AtomicU64,
    pub(crate) kept_used: AtomicU64,
    /// Short, as the next: each is a page that stayed by accident.
    pub(crate) failed_locked: AtomicU32,
    pub(crate) failed_held: AtomicU32,
}

/// What was found in the cache of one file.
#[derive(Debug, Default)]
pub(crate) struct Hits(LazyCounter);

impl Hits {
    /// Gives each processor a cell to count in, where the bound has room for them.
    #[cold]
    fn spread(&self, bdi: &BackingDevInfo) {
        let bytes = ShardedCounter::heap_bytes() as u64;
        if !bdi.mm().frames.try_charge_metadata(bytes) {
            return;
        }
        if self.0.spread() {
            bump(&bdi.hit_bytes, bytes);
        } else {
            // Another thread did.
            bdi.mm().uncharge_metadata(bytes);
        }
    }

    /// Gives back what is charged to the bound, at the end.
    pub(crate) fn uncharge(&self, bdi: &BackingDevInfo) {
        if self.0.is_spread() {
            let bytes = ShardedCounter::heap_bytes() as u64;
            // Relaxed: a figure.
            bdi.hit_bytes.fetch_sub(bytes, Ordering::Relaxed);
            bdi.mm().uncharge_metadata(bytes);
        }
    }
}

/// Adds to a counter that nothing else depends on.
pub(crate) fn bump(counter: &AtomicU64, n: u64) {
    // Relaxed: a statistic.
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn read(counter: &AtomicU64) -> u64 {
    // Relaxed: a statistic.
    counter.load(Ordering::Relaxed)
}

/// As [`bump`], of a counter of what is rare.
pub(crate) fn bump_short(counter: &AtomicU32, n: u32) {
    // Relaxed: a statistic.
    counter.fetch_add(n, Ordering::Relaxed);
}

fn read_short(counter: &AtomicU32) -> u64 {
    // Relaxed: a statistic.
    counter.load(Ordering::Relaxed).into()
}

/// Figures of one file, or of all files of a cache together. A page has 4 KiB. Counts run since the file came into
/// memory, or since the cache was made.
///
/// A folio of several pages counts whole as dirty, under writeback, unstable or failed as soon as part
/// of it is: all of it has to stay in memory. What is written is the part.
///
/// Each page that a read touches counts once: as a hit, as a first use of readahead, or as a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStats {
    /// Pages in the cache.
    pub resident_pages: u64,
    /// Folios that hold them: of one page each, or of many.
    pub folios: u64,
    /// Pages newer than what was handed to the backing store.
    pub dirty_pages: u64,
    /// Pages being written.
    pub writeback_pages: u64,
    /// Pages written but not yet flushed to the medium.
    pub unstable_pages: u64,
    /// Dirty pages whose last write failed.
    pub failed_pages: u64,
    /// Pages of folios with DMA pins.
    pub pinned_pages: u64,
    /// Pages that reads found in the cache and that had been used before.
    pub hit_pages: u64,
    /// Pages that reads found in the cache and that had been brought in ahead of them: neither hits nor misses.
    pub readahead_first_used_pages: u64,
    /// Pages that reads, views, pins and page faults of mappings had to bring in.
    pub missed_pages: u64,
    /// Pages that reclaim took.
    pub evicted_pages: u64,
    /// Misses on folios that reclaim had taken shortly before.
    pub refaults: u64,
    /// Pages read ahead of their use.
    pub readahead_pages: u64,
    /// Pages of folios that were read ahead and then used, in part at least.
    pub readahead_used_pages: u64,
    /// Pages read ahead that left unused.
    pub readahead_wasted_pages: u64,
    /// Time that writers waited because too much was dirty.
    pub throttled: Duration,
    /// Bytes written to the backing store.
    pub written_bytes: u64,
    /// Bytes read from the backing store.
    pub read_bytes: u64,
    /// Page faults of mappings.
    pub faults: u64,
    /// Pages that faults put into the page tables.
    pub mapped_pages: u64,
    /// What became of the pages of uncached operations.
    pub uncached: UncachedStats,
}

/// What became of the pages of uncached operations. Each page that such an operation brought in,
/// read ahead or found counts once as asked and once among the others, those of [`UncachedStats::pending_pages`] excepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UncachedStats {
    /// Pages that operations were to leave no trace of.
    pub asked_pages: u64,
    /// Left the cache: the hint was honoured.
    pub dropped_pages: u64,
    /// Stayed: they were in the cache before.
    pub kept_present_pages: u64,
    /// Stayed: somebody else read, wrote or mapped them meanwhile.
    pub kept_used_pages: u64,
    /// Stayed for reclaim, which takes them early: somebody had them locked when they were to be dropped.
    pub failed_locked_pages: u64,
    /// Stayed likewise: they were held in memory by then, or their folio was cut in two.
    pub failed_held_pages: u64,
}

impl UncachedStats {
    /// Pages that an operation has yet to be done with: under way, read ahead, or not durable.
    pub fn pending_pages(&self) -> u64 {
        let kept = self.kept_present_pages + self.kept_used_pages;
        let done = self.dropped_pages + kept + self.failed_locked_pages + self.failed_held_pages;
        self.asked_pages.saturating_sub(done)
    }
}

impl FileStats {
    /// Hits as a share of all pages that reads touched, from 0 to 1; 0 before the first read. A file that is read once from
    /// its beginning to its end in whole pages has none, however well it was read ahead.
    pub fn hit_ratio(&self) -> f64 {
        match self.hit_pages + self.readahead_first_used_pages + self.missed_pages {
            0 => 0.0,
            all => self.hit_pages as f64 / all as f64,
        }
    }

    /// Pages that are not safely in the backing store: dirty, under writeback or not flushed yet. A page may count in two.
    pub fn unsynced_pages(&self) -> u64 {
        self.dirty_pages + self.writeback_pages + self.unstable_pages
    }
}

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
            self.hits.spread(self.bdi());
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
