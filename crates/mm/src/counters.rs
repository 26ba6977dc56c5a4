//! The counters of a file, a file system and a cache, and the figures of a file.

use foliocache_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use foliocache_sync::time::Duration;

use crate::readahead::ReadaheadFeedback;

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

/// Events of a cache since it was made; [`MmStats`](crate::MmStats) has the meaning of each.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) direct_reclaims: AtomicU64,
    pub(crate) memory_faults: AtomicU64,
    pub(crate) compacted: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) copied_views: AtomicU64,
    pub(crate) replaced: AtomicU64,
}

/// Activity of one file, besides hits, since it was first opened.
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
    /// How much of the recent readahead of the file was used.
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

/// Adds to a counter that nothing else depends on.
pub(crate) fn bump(counter: &AtomicU64, n: u64) {
    // Relaxed: a statistic.
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn read(counter: &AtomicU64) -> u64 {
    // Relaxed: a statistic.
    counter.load(Ordering::Relaxed)
}

/// As [`bump`], of a counter of rare events.
pub(crate) fn bump_short(counter: &AtomicU32, n: u32) {
    // Relaxed: a statistic.
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn read_short(counter: &AtomicU32) -> u64 {
    // Relaxed: a statistic.
    counter.load(Ordering::Relaxed).into()
}

/// Figures of one file, or of all files of a cache together. A page has 4 KiB. Counts run since the file came into
/// memory, or since the cache was made.
///
/// A folio of several pages counts whole as dirty, under writeback, unstable or failed as soon as part
/// of it is: all of it has to stay in memory. Only the part is written.
///
/// Each page that a read touches counts once: as a hit, as a first use of readahead, or as a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStats {
    /// Pages in the cache.
    pub resident_pages: u64,
    /// Folios that hold them: of one page each, or of many.
    pub folios: u64,
    /// Pages newer than the backing store's.
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
    /// The fate of the pages of uncached operations.
    pub uncached: UncachedStats,
}

/// The fate of the pages of uncached operations. Each page that such an operation brought in,
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
    /// Stayed: others read, wrote or mapped them meanwhile.
    pub kept_used_pages: u64,
    /// Stayed for reclaim, which takes them early: they were locked when they were to be dropped.
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
