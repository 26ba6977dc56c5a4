//! Huge pages for linear frames: whether they are used, and how many the kernel's pool has left.

use super::{BLOCK_FRAMES, Frames};
use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::coarse_monotonic_ms;
use foliocache_sys::Errno;
use foliocache_sys::memory::free_huge_pages;
use std::fmt;

/// How long nothing more is asked of the pool of huge pages once it refused one, in milliseconds.
const POOL_PAUSE_MS: u64 = 1000;

/// Whether mapped files use huge pages, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HugeFrames {
    /// Huge pages were not requested.
    #[default]
    Off,
    /// They will be used if the kernel has some when the first file is mapped.
    Wanted,
    /// Mapped files use huge pages of the kernel's pool.
    On,
    /// Mapped files use pages of 4 KiB, because the pool was empty when the first file was mapped.
    PoolEmpty,
    /// Mapped files use pages of 4 KiB, because the kernel refused huge pages.
    Refused(Errno),
}

impl fmt::Display for HugeFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => write!(f, "4 KiB pages: huge pages were not asked for"),
            Self::Wanted => write!(f, "no file was mapped yet"),
            Self::On => write!(f, "huge pages of 2 MiB"),
            Self::PoolEmpty => write!(f, "4 KiB pages: no huge page was free (vm.nr_hugepages)"),
            Self::Refused(errno) => {
                write!(f, "4 KiB pages: no huge pages from the kernel: {errno}")
            }
        }
    }
}

impl Frames {
    /// Has linear frames be huge pages of 2 MiB, if the kernel has any free when there is the first range.
    #[must_use]
    pub fn with_huge_frames(self, wanted: bool) -> Self {
        if wanted {
            self.linear.state.lock().huge = HugeFrames::Wanted;
        }
        self
    }

    /// Whether linear frames are huge: each unit is one folio's. One load.
    #[inline]
    pub(crate) fn is_huge(&self) -> bool {
        self.linear.huge.load(Ordering::Relaxed)
    }

    /// Whether frames are huge and the pool has no page for a unit more.
    pub(crate) fn is_pool_short(&self) -> bool {
        if !self.is_huge() {
            return false;
        }
        let counts = self.linear.budget.counts();
        // Units that have no page of the pool yet.
        let open = (counts.available.max(0) as u64 + counts.reserved) / u64::from(BLOCK_FRAMES);
        let empty_until = self.linear.pool_empty_until.load(Ordering::Relaxed);
        coarse_monotonic_ms() < empty_until || free_huge_pages() <= open
    }

    /// Notes that the pool had no page for a unit: one less is there for linear frames.
    ///
    /// Context: no frames are reserved for it any more.
    pub(crate) fn note_pool_empty(&self) {
        let until = coarse_monotonic_ms() + POOL_PAUSE_MS;
        self.linear.pool_empty_until.store(until, Ordering::Relaxed);
        self.owe_unit();
    }
}
