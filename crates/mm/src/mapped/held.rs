//! The state of ranges of files that are held in memory. The procedures are in `held.rs`.

use foliocache_sync::Mutex;
use foliocache_sync::atomic::AtomicU64;
use foliocache_sys::memory::PageVec;
use std::ops::Range;

/// Bytes that are copied at a time where programs or devices may store to the pages that are written.
pub(crate) const STABLE_BYTES: usize = 256 << 10;

/// Pages that the mappings of a cache hold.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    /// Pages that they hold.
    pub(crate) pages: AtomicU64,
    /// Those of them that are held for I/O, not of memory file systems. Relaxed: they steer.
    pub(crate) for_io: AtomicU64,
    /// The buffer that held pages are written from, since they change meanwhile. The first hold makes it.
    pub(crate) stable: Mutex<PageVec<u8>>,
}

/// Why pages are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HoldKind {
    Read,
    /// Stores to its pages make nothing dirty by themselves.
    Untracked,
    Io,
}

/// A range that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) pages: Range<u64>,
    pub(crate) kind: HoldKind,
    /// All of it is in memory.
    pub(crate) ready: bool,
}

impl Held {
    pub(crate) fn new(pages: Range<u64>, kind: HoldKind) -> Self {
        Self {
            pages,
            kind,
            ready: false,
        }
    }
}

/// Pages of `pages` that no range of `held` has that is one of `those`.
pub(crate) fn not_held(held: &[Held], pages: &Range<u64>, those: impl Fn(&Held) -> bool) -> u64 {
    let mut covered: Vec<Range<u64>> = (held.iter())
        .filter(|held| those(held))
        .map(|held| held.pages.start.max(pages.start)..held.pages.end.min(pages.end))
        .filter(|part| part.start < part.end)
        .collect();
    covered.sort_by_key(|part| part.start);
    let (mut left, mut at) = (pages.end - pages.start, pages.start);
    for part in covered {
        left -= part.end.saturating_sub(part.start.max(at));
        at = at.max(part.end);
    }
    left
}

pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_held_twice_counts_once() {
        let held = |pages| Held::new(pages, HoldKind::Read);
        let all = [held(10..20), held(15..25), held(40..50)];
        let left = |pages| not_held(&all, &pages, |_| true);
        assert_eq!(left(0..10), 10);
        assert_eq!(left(0..30), 15);
        assert_eq!(left(12..24), 0);
        assert_eq!(left(0..100), 75);
        assert_eq!(not_held(&all, &(10..12), |held| held.ready), 2);
    }
}
