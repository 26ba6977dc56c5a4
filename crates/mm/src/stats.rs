//! Figures of a whole cache.

mod display;

use crate::counters::{FileStats, read};
use crate::dirty::ThrottleStats;
use crate::frames::FrameUsage;
use crate::pressure::PressureStats;
use crate::records::Mm;
use crate::unreclaimable::Unreclaimable;

/// Figures of a whole cache.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MmStats {
    /// Memory against the bound.
    pub memory: FrameUsage,
    /// The part of it that cannot be reclaimed.
    pub unreclaimable: Unreclaimable,
    /// All files together. Their activity includes that of files dropped since.
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
            direct_reclaims: read(&self.events.direct_reclaims),
            memory_faults: read(&self.events.memory_faults),
            blocks_compacted: read(&self.events.compacted),
            blocks_skipped: read(&self.events.skipped),
            views_copied: read(&self.events.copied_views),
            copied_view_bytes: self.views.copies.bytes(),
            folios_replaced: read(&self.events.replaced),
            give_back_failures: self.frames.give_back_failures(),
            background_panics: self.panics.count(),
            pressure: self.pressure.stats(),
            throttle: self.stalls.stats(),
        }
    }
}
