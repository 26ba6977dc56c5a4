//! Counters, per file, per file system and per cache.

use foliocache_sync::atomic::{AtomicU64, Ordering};
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
    pub(crate) failed_locked: AtomicU64,
    pub(crate) failed_held: AtomicU64,
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

/// Figures of one file, or of all files of a cache together, in pages of 4 KiB.
///
/// A folio of several pages counts whole as dirty, under writeback, unstable or failed as soon as part
/// of it is: all of it has to stay in memory. What is written is the part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStats {
    /// Pages in the cache.
    pub resident: u64,
    /// Folios that hold them: of one page each, or of many.
    pub folios: u64,
    /// Pages newer than what was handed to the backing store.
    pub dirty: u64,
    /// Pages being written.
    pub writeback: u64,
    /// Pages written but not yet flushed to the medium.
    pub unstable: u64,
    /// Dirty pages whose last write failed.
    pub failed: u64,
    /// Pages of folios with DMA pins.
    pub pinned: u64,
    /// Reads of a page or part of one that found it in the cache.
    pub hits: u64,
    /// Reads and writes that had to bring a page in.
    pub misses: u64,
    /// Pages that reclaim took.
    pub evictions: u64,
    /// Misses on pages that reclaim had taken shortly before.
    pub refaults: u64,
    /// Pages read ahead of their use.
    pub readahead: u64,
    /// Pages read ahead and then used.
    pub readahead_used: u64,
    /// Pages read ahead that left unused.
    pub readahead_wasted: u64,
    /// Nanoseconds that writers waited because too much was dirty.
    pub throttled_ns: u64,
    /// Bytes written to the backing store.
    pub written: u64,
    /// Bytes read from the backing store.
    pub read_in: u64,
    /// Page faults of mappings.
    pub faults: u64,
    /// Pages that faults put into the page tables.
    pub mapped: u64,
    /// What became of the pages of uncached operations.
    pub uncached: UncachedStats,
}

/// What became of the pages of uncached operations, in pages of 4 KiB. Each page that such an operation brought in,
/// read ahead or found counts once as `asked` and once among the others, those of [`UncachedStats::pending`] excepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UncachedStats {
    /// Pages that operations were to leave no trace of.
    pub asked: u64,
    /// Left the cache: the hint was honoured.
    pub dropped: u64,
    /// Stayed: they were in the cache before.
    pub kept_present: u64,
    /// Stayed: somebody else read, wrote or mapped them meanwhile.
    pub kept_used: u64,
    /// Stayed for reclaim, which takes them early: somebody had them locked when they were to be dropped.
    pub failed_locked: u64,
    /// Stayed likewise: they were held in memory by then, or their folio was cut in two.
    pub failed_held: u64,
}

impl UncachedStats {
    /// Pages that an operation has yet to be done with: under way, read ahead, or not durable.
    pub fn pending(&self) -> u64 {
        let kept = self.kept_present + self.kept_used;
        let done = self.dropped + kept + self.failed_locked + self.failed_held;
        self.asked.saturating_sub(done)
    }
}

impl FileStats {
    /// Hits as a share of hits and misses, from 0 to 1; 0 before the first access.
    pub fn hit_ratio(&self) -> f64 {
        match self.hits + self.misses {
            0 => 0.0,
            all => self.hits as f64 / all as f64,
        }
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
        stats.resident += self.nr_pages();
        stats.folios += self.index.nr_entries();
        stats.dirty += self.counts.get(Count::Dirty);
        stats.writeback += self.counts.get(Count::Writeback);
        stats.unstable += self.counts.get(Count::Unstable);
        stats.failed += self.counts.get(Count::Failed);
        stats.pinned += read(&self.nr_pinned);
        self.add_activity(stats);
    }

    /// Adds what was done with the file to what was done with others.
    pub(crate) fn add_activity(&self, stats: &mut FileStats) {
        let counters = &self.counters;
        stats.hits += self.hits.0.sum().unsigned_abs();
        stats.misses += read(&counters.misses);
        stats.evictions += read(&counters.evictions);
        stats.refaults += read(&counters.refaults);
        stats.readahead += read(&counters.readahead);
        stats.readahead_used += read(&counters.readahead_used);
        stats.readahead_wasted += read(&counters.readahead_wasted);
        stats.throttled_ns += read(&counters.throttled_ns);
        stats.written += read(&counters.written);
        stats.read_in += read(&counters.read_in);
        stats.faults += read(&counters.faults);
        stats.mapped += read(&counters.mapped);
        let (uncached, sum) = (&counters.uncached, &mut stats.uncached);
        // `asked` last: what else is counted has been counted there before.
        sum.dropped += read(&uncached.dropped);
        sum.kept_present += read(&uncached.kept_present);
        sum.kept_used += read(&uncached.kept_used);
        sum.failed_locked += read(&uncached.failed_locked);
        sum.failed_held += read(&uncached.failed_held);
        sum.asked += read(&uncached.asked);
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

    /// Counts pages that were found in the cache, or takes back what was counted.
    #[inline]
    pub(crate) fn count_hits(&self, pages: i64) {
        if self.hits.0.add(pages) {
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
    /// All files together, those dropped since included in the activity.
    pub files: FileStats,
    /// Files that have an address space now.
    pub nr_files: u64,
    /// Pages that readers have read ahead and not reached, or that are on their way to them; what
    /// handles left behind long ago is not counted.
    pub readahead_leased: u64,
    /// Times a caller had to reclaim memory itself.
    pub direct_reclaims: u64,
    /// Copies that memory of the cache itself stopped, as bad RAM does. Data that the store has is read
    /// again; for other data the access fails with `EIO`.
    pub memory_faults: u64,
    /// Blocks that were made whole again because larger chunks were missing, ever.
    pub blocks_compacted: u64,
    /// Times that a block was passed over when memory was given back because a folio in it was busy, under
    /// an I/O that hangs, say; another block was given back in its place if there was one. Ever.
    pub blocks_skipped: u64,
    /// Views that are copies because nothing else was possible, ever.
    pub views_copied: u64,
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
