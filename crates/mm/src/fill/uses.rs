//! How reading from a folio that is in the cache counts: as a hit, as a first use, or not at all.
//!
//! # Model
//!
//! ```text
//!   brought in for this very read      Fetched   a miss, which is counted where it is found to be missing
//!   read ahead, and not used before    First     each page is a first use
//!   the same use of the folio goes on  GoesOn    pages that begin here are first uses; one that is entered behind its
//!                                                first byte is a hit
//!   used before                        Again     each page is a hit
//! ```
//!
//! The path of most hits knows that the folio was used before ([`Snapshot::is_in_use`](crate::folio::state::Snapshot::is_in_use))
//! and counts by itself. The others cost a look at state that is loaded anyway.

use crate::counters::bump;
use crate::folio::state::Snapshot;
use crate::folio::{LockedFolio, flag};
use crate::readahead::ReadaheadState;
use crate::records::AddressSpace;
use crate::types::{PAGE_SIZE, PageIndex, offset_in_page};
use std::ops::Range;

/// See the module's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolioUse {
    Fetched,
    First,
    GoesOn,
    Again,
}

impl FolioUse {
    /// The use that a read of `bytes` makes of a folio. `folio` is the folio's range in the file, `seen` its state
    /// before it is marked accessed. The bytes before `fetched` were brought in for this very read.
    #[inline]
    pub(crate) fn of(
        handle: &ReadaheadState,
        seen: Snapshot,
        folio: &Range<u64>,
        bytes: &Range<u64>,
        fetched: u64,
    ) -> Self {
        if bytes.start < fetched {
            Self::Fetched
        } else if !seen.is_in_use() && !seen.has(flag::READAHEAD) && handle.goes_on(folio, bytes) {
            Self::GoesOn
        } else {
            Self::Again
        }
    }

    /// As [`FolioUse::of`], of a locked folio, which it marks accessed; and whether this is the first use of a folio that
    /// readahead brought in. A folio that was `missed` was brought in for this very read.
    pub(crate) fn mark(
        handle: &ReadaheadState,
        locked: &LockedFolio<'_>,
        bytes: &Range<u64>,
        (missed, fetched): (bool, u64),
    ) -> (Self, bool) {
        let seen = locked.state.load();
        let kind = match missed {
            true => Self::Fetched,
            false => Self::of(handle, seen, &locked.range(), bytes, fetched),
        };
        let used = kind == Self::Again || seen.has(flag::READAHEAD);
        let first = used && locked.mark_accessed(seen);
        (if first { Self::First } else { kind }, first)
    }
}

impl AddressSpace {
    /// Counts a read of `len` bytes at `pos` that are in the cache.
    #[inline]
    pub(crate) fn count_use(&self, kind: FolioUse, pos: u64, len: usize) {
        let pages = (offset_in_page(pos) + len.saturating_sub(1)) / PAGE_SIZE + 1;
        let again = match kind {
            FolioUse::Again => pages,
            FolioUse::GoesOn => usize::from(offset_in_page(pos) != 0),
            FolioUse::First => 0,
            FolioUse::Fetched => return,
        };
        if again > 0 {
            self.count_hits(again as u64);
        }
        if again < pages {
            bump(&self.counters.readahead_first_uses, (pages - again) as u64);
        }
    }

    /// The page after those that a read of `asked`, whose first page is missing, has to bring in, of the pages before `end`:
    /// the next one that is there.
    pub(crate) fn missing_from(&self, asked: &Range<PageIndex>, end: PageIndex) -> PageIndex {
        let (page, end) = (asked.start, end.min(asked.end));
        let next = page.add(1);
        match end > next {
            true => self
                .free_around(page, page..end)
                .map_or(next, |free| free.end),
            false => next,
        }
    }
}
