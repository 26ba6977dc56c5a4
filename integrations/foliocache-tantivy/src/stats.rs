//! What became of reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// How reads of index files were served; from [`FoliocacheDirectory::read_stats`](crate::FoliocacheDirectory::read_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadStats {
    /// Bytes in one folio of the cache, without a copy.
    pub views: u64,
    /// Copies that count in the bound.
    pub copies: u64,
    /// Slices of mapped files, without a copy.
    pub mapped: u64,
    /// Copies on the heap, outside the bound.
    pub heap_copies: u64,
    /// Bytes that copies on the heap take now.
    pub heap_bytes: u64,
}

// Relaxed throughout this module: the counters are read for their values alone, and order nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    views: AtomicU64,
    copies: AtomicU64,
    mapped: AtomicU64,
    heap_copies: AtomicU64,
    heap_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn viewed(&self, is_copy: bool) {
        let counter = if is_copy { &self.copies } else { &self.views };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn mapped(&self) {
        self.mapped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn copied_to_heap(&self, bytes: usize) {
        self.heap_copies.fetch_add(1, Ordering::Relaxed);
        self.heap_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn freed_from_heap(&self, bytes: usize) {
        self.heap_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> ReadStats {
        ReadStats {
            views: self.views.load(Ordering::Relaxed),
            copies: self.copies.load(Ordering::Relaxed),
            mapped: self.mapped.load(Ordering::Relaxed),
            heap_copies: self.heap_copies.load(Ordering::Relaxed),
            heap_bytes: self.heap_bytes.load(Ordering::Relaxed),
        }
    }
}
