//! Readahead: how much to read beyond what was asked for.
//!
//! # Model
//!
//! A window per handle. A miss that continues where the handle's last read or window ended is
//! sequential and doubles the window; any other miss reads what was asked for and no more.
//!
//! ```text
//!   page 0 or next to the last read ─▶ 16 pages ─▶ 32 ─▶ … ─▶ 256 pages (1 MiB)
//!   elsewhere                       ─▶ the request alone
//! ```
//!
//! # Memory ordering
//!
//! All Relaxed: the state is a guess. Threads that share a handle may confuse it, not break it.
//! It is stored to only when it changes, so that re-reading one page through a shared handle
//! writes nothing.

use foliocache_sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::types::PageIndex;

/// Pages of the first sequential window: 64 KiB.
const FIRST_WINDOW: u64 = 16;

/// Pages of the largest window: 1 MiB.
pub(crate) const MAX_WINDOW: u64 = 256;

/// What a caller says about its accesses through one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Access {
    /// Nothing: the cache finds out.
    Normal,
    /// From front to back: windows start large.
    Sequential,
    /// Anywhere: no readahead.
    Random,
}

/// The readahead state of one handle.
#[doc(alias = "file_ra_state")]
#[derive(Debug)]
pub struct ReadaheadState {
    /// First page of the newest window.
    start: AtomicU64,
    /// Its pages; 0 if the last miss was not sequential.
    size: AtomicU64,
    /// Byte after the last read.
    prev_pos: AtomicU64,
    access: AtomicU8,
}

impl Default for ReadaheadState {
    fn default() -> Self {
        Self::new()
    }
}

impl ReadaheadState {
    /// The state of a handle that has read nothing.
    pub fn new() -> Self {
        Self {
            start: AtomicU64::new(0),
            size: AtomicU64::new(0),
            prev_pos: AtomicU64::new(0),
            access: AtomicU8::new(Access::Normal as u8),
        }
    }

    /// Takes the caller's word for how it will read. No system call, no memory.
    #[doc(alias = "fadvise")]
    pub fn advise(&self, access: Access) {
        self.access.store(access as u8, Ordering::Relaxed);
    }

    /// Whether a read at `pos` goes on within the page where the last one ended: then it is the
    /// same use of that page and says nothing about its worth.
    #[inline]
    pub(crate) fn continues(&self, pos: u64) -> bool {
        pos & (crate::types::PAGE_SIZE as u64 - 1) != 0
            && self.prev_pos.load(Ordering::Relaxed) == pos
    }

    /// Notes that a read ended before byte `pos`.
    #[inline]
    pub(crate) fn note_read(&self, pos: u64) {
        if self.prev_pos.load(Ordering::Relaxed) != pos {
            self.prev_pos.store(pos, Ordering::Relaxed);
        }
    }

    /// Pages to bring in for a miss at `page` of a request that ends with page `last`.
    pub(crate) fn window(&self, page: PageIndex, last: PageIndex, max: u64) -> u64 {
        let asked = (last.0 - page.0 + 1).min(max);
        let access = self.access.load(Ordering::Relaxed);
        if access == Access::Random as u8 {
            return asked;
        }
        let prev_end = self.prev_pos.load(Ordering::Relaxed);
        let prev = PageIndex::of(prev_end.saturating_sub(1));
        let (start, size) = (
            self.start.load(Ordering::Relaxed),
            self.size.load(Ordering::Relaxed),
        );
        let sequential = page.0 == 0
            || (prev_end > 0 && (page == prev || page.0 == prev.0 + 1))
            || (size > 0 && page.0 == start + size)
            || access == Access::Sequential as u8;
        let window = match (sequential, size) {
            (false, _) => 0,
            (true, _) if access == Access::Sequential as u8 => max,
            (true, 0) => FIRST_WINDOW,
            (true, size) => size * 2,
        };
        let window = window.min(max);
        self.start.store(page.0, Ordering::Relaxed);
        self.size.store(window, Ordering::Relaxed);
        window.max(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::PAGE_SIZE;

    fn read(ra: &ReadaheadState, page: u64) -> u64 {
        let window = ra.window(PageIndex(page), PageIndex(page), MAX_WINDOW);
        ra.note_read((page + window) * PAGE_SIZE as u64);
        window
    }

    #[test]
    fn sequential_misses_double_the_window() {
        let ra = ReadaheadState::new();
        let mut page = 0;
        let mut windows = Vec::new();
        for _ in 0..7 {
            windows.push(read(&ra, page));
            page += windows[windows.len() - 1];
        }
        assert_eq!(windows, [16, 32, 64, 128, 256, 256, 256]);
    }

    #[test]
    fn random_misses_read_what_was_asked() {
        let ra = ReadaheadState::new();
        assert_eq!([read(&ra, 900), read(&ra, 17), read(&ra, 5000)], [1, 1, 1]);
        ra.advise(Access::Random);
        assert_eq!([read(&ra, 0), read(&ra, 1)], [1, 1]);
    }

    #[test]
    fn a_large_request_is_one_window() {
        let ra = ReadaheadState::new();
        assert_eq!(ra.window(PageIndex(700), PageIndex(799), MAX_WINDOW), 100);
    }
}
