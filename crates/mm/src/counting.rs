//! Counting for a file, its file system and the cache, and the figures of a file.

use foliocache_sync::ShardedCounter;
use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::Duration;

use crate::counters::{Count, FileStats, bump, read, read_short};
use crate::records::AddressSpace;

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

    /// Adds the activity of the file.
    pub(crate) fn add_activity(&self, stats: &mut FileStats) {
        let counters = &self.counters;
        stats.hit_pages += self.hits.sum().unsigned_abs();
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
        if self.hits.add(pages as i64) {
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
        if self.hits.spread() {
            bump(&self.bdi().hit_bytes, bytes);
        } else {
            // Another thread did.
            self.mm().uncharge_metadata(bytes);
        }
    }

    /// Gives back what counting hits is charged to the bound, at the end.
    pub(crate) fn uncharge_hits(&self) {
        if self.hits.is_spread() {
            let bytes = ShardedCounter::heap_bytes() as u64;
            // Relaxed: a figure.
            self.bdi().hit_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.mm().uncharge_metadata(bytes);
        }
    }
}
