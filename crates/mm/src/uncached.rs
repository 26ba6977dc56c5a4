//! Uncached operations: pages that they bring in leave the cache when they are done with them.
//!
//! # Model
//!
//! ```text
//!   brought in by an uncached operation, or read ahead of one ─▶ marked DROPBEHIND
//!     copied to its end by uncached reads ─▶ dropped, its frames free at once
//!     made or written to by an uncached write ─▶ dropped by the flush that makes it durable
//!     read, written or mapped by anybody else ─▶ the mark goes, the folio stays like any other
//!     never reached: its stream ended, its handle was closed ─▶ dropped then, or by reclaim, before all else
//! ```
//!
//! A folio that was there before is not marked and stays. An operation is done with a folio of its own pages when it ends,
//! and with one that goes on beyond them, as those of a stream do, when a read comes to the folio's end, or to its
//! beginning from behind.
//!
//! Marked folios are on none of the queues that reclaim ages. They have a list of their own, which is bounded.
//! Reclaim takes from it the folios that no stream has ahead of it any more. A dropped folio leaves no shadow entry.
//!
//! # Invariants
//!
//! 1. The thread that clears the mark counts what becomes of the folio, once: [`UncachedStats`](crate::UncachedStats)
//!    add up.
//! 2. A folio without the mark is on the list only until the thread that cleared the mark has moved it, under the LRU
//!    lock.
//!
//! # Memory ordering
//!
//! The mark is cleared by one RMW of the state word, which says who cleared it; that orders nothing else. A use without the
//! folio lock clears it only of the version that it read.

use std::ops::Range;

use crate::counters::{bump, bump_short};
use crate::folio::state::Snapshot;
use crate::folio::{Folio, LockedFolio, Operation, flag};
use crate::iocb::Iocb;
use crate::owner;
use crate::readahead::{READAHEAD_PART, ReadaheadState};
use crate::records::{AddressSpace, Mm};
use crate::types::{PageIndex, pages_for};

/// The flags of a folio that is not clean; see [`Operation::Forget`].
const NOT_DURABLE: u64 = flag::DIRTY | flag::WRITEBACK | flag::UNSTABLE;

/// One uncached read.
pub(crate) struct UncachedRead {
    start: u64,
    /// The read before it through the handle was the one behind it.
    backward: bool,
}

impl UncachedRead {
    pub(crate) fn begin(handle: &ReadaheadState, start: u64, len: usize) -> Self {
        handle.note_uncached();
        Self {
            start,
            backward: handle.continues(start.saturating_add(2 * len as u64)),
        }
    }
}

impl AddressSpace {
    /// An ordinary use of a folio that was found in state `seen`: it stays in the cache.
    #[inline]
    pub(crate) fn keep_used(&self, folio: &Folio, seen: Snapshot) {
        if seen.has(flag::DROPBEHIND) {
            self.keep_uncached(folio, seen);
        }
    }

    #[cold]
    fn keep_uncached(&self, folio: &Folio, seen: Snapshot) {
        if folio.state.clear_of(seen, flag::DROPBEHIND) {
            bump(&self.counters.uncached.kept_used, 1 << seen.order());
            self.mm().lru.lock().keep(&self.mm().folios, folio);
        }
    }

    /// Marks a new folio, locked, as brought in by an uncached operation.
    pub(crate) fn mark_uncached(&self, locked: &LockedFolio<'_>) {
        locked.state.set(flag::DROPBEHIND);
        bump(&self.counters.uncached.asked, locked.nr_pages());
    }

    /// A locked folio stays although it is marked; reclaim takes it early.
    pub(crate) fn keep_failed(&self, locked: &LockedFolio<'_>) {
        if Self::take_mark(locked) {
            bump_short(&self.counters.uncached.failed_held, 1 << locked.order());
            self.mm().lru.lock().keep_cold(&self.mm().folios, locked);
        }
    }

    /// Drops a marked folio if it may be; returns its pages.
    fn drop_uncached(&self, locked: LockedFolio<'_>) -> u64 {
        let pages = locked.nr_pages();
        let held = owner::hold(&locked);
        if held.keeps_page(true) {
            self.keep_failed(&locked);
            return 0;
        }
        // An uncached view of it keeps its frames.
        if !locked.may(Operation::Forget) {
            // A folio that waits to be written is dropped once it is durable.
            if !locked.state.load().has_any(NOT_DURABLE) {
                self.keep_failed(&locked);
            }
            return 0;
        }
        if !Self::take_mark(&locked) {
            return 0;
        }
        bump(&self.counters.uncached.dropped, pages);
        self.remove_folio(locked);
        pages
    }

    /// An uncached read copied bytes of one folio; `last`: that was all of it.
    pub(crate) fn note_uncached_copy(&self, read: &UncachedRead, bytes: Range<u64>, last: bool) {
        let page = PageIndex::of(bytes.start);
        let Some(folio) = self.folio_at(page) else {
            return;
        };
        let seen = folio.state.load();
        let (index, end) = (folio.index(), folio.end());
        if !seen.has(flag::DROPBEHIND) {
            return self.note_present(pages_for(bytes.end) - page.0);
        }
        let to_the_end = bytes.end >= end.pos().min(self.size());
        let done = match read.backward {
            true => read.start <= index.pos(),
            false => pages_for(bytes.end) >= end.0.min(pages_for(self.size())),
        };
        if !(done && (last || to_the_end)) || seen.has_any(NOT_DURABLE) {
            return;
        }
        match self.try_lock_folio(page) {
            Some(locked) => _ = self.drop_uncached(locked),
            None if folio.state.clear_of(seen, flag::DROPBEHIND) => {
                bump_short(&self.counters.uncached.failed_locked, 1 << seen.order());
                self.mm().lru.lock().keep_cold(&self.mm().folios, folio);
            }
            None => {}
        }
    }

    /// Drops a folio that an uncached write made or wrote to, now that it is durable. Does not block.
    pub(crate) fn drop_durable(&self, page: PageIndex) {
        if let Some(locked) = self.try_lock_folio(page)
            && locked.state.load().has(flag::DROPBEHIND)
            && !foliocache_sync::planted!(uncached_folio_kept)
        {
            self.drop_uncached(locked);
        }
    }

    /// An uncached operation came to pages that were there before.
    pub(crate) fn note_present(&self, pages: u64) {
        bump(&self.counters.uncached.asked, pages);
        bump(&self.counters.uncached.kept_present, pages);
    }

    /// Has the flusher write the pages that an uncached write has dirtied from byte `handed` on.
    pub(crate) fn hand_over(&self, iocb: &Iocb, handed: &mut u64) {
        if iocb.uncached && iocb.pos > *handed && !self.bdi().is_memory() {
            let pages = PageIndex::of(*handed).0..pages_for(iocb.pos);
            *handed = iocb.pos;
            self.bdi().hand_over(self, pages);
        }
    }

    /// At the end of a handle: drops pages that its uncached reads had read ahead and did not reach. Reads under way
    /// are left to reclaim. Does not block.
    pub fn end_uncached(&self, handle: &ReadaheadState) {
        if !handle.has_read_uncached() || self.mm().check_fork().is_err() {
            return;
        }
        for pages in handle.end() {
            let marked = |page| {
                let folio = self.folio_at(page)?;
                folio.state.load().has(flag::DROPBEHIND).then_some(())?;
                self.try_lock_folio(page)
            };
            self.for_each_folio(pages.start.0..pages.end.0, marked, |locked| {
                self.drop_uncached(locked);
            });
        }
        // Folios of streams that ended before.
        let mm: &Mm = self.mm();
        mm.drop_leftovers(mm.uncached_to_come(), usize::MAX);
    }
}

impl Mm {
    /// Bounds the pages that uncached operations brought in and did not use.
    ///
    /// Context: as [`Mm::drop_leftovers`].
    pub(crate) fn bound_uncached(&self, nr_uncached: usize) {
        let most = self.frames.capacity() / READAHEAD_PART + self.nr_to_write();
        if nr_uncached as u64 > most {
            self.drop_leftovers(most, nr_uncached - most as usize);
        }
    }

    /// Most pages of uncached operations that are no leftovers: a stream has them ahead of it, or they wait to be written. Pages
    /// that stay dirty because a device may write to them do not count: they are not in the list.
    pub(crate) fn uncached_to_come(&self) -> u64 {
        self.readahead.leased() + self.nr_to_write()
    }

    /// Drops what uncached operations left, the oldest first, down to `most` pages, or until it has dropped `want`;
    /// returns the pages. Busy folios stay, and those that wait to be written.
    ///
    /// Context: takes the LRU lock and `xa_lock`s; tries folio locks; does not sleep.
    pub(crate) fn drop_leftovers(&self, most: u64, want: usize) -> usize {
        let mut dropped = 0;
        while dropped < want {
            let left = (self.lru.lock()).leftovers(&self.folios, &self.waits, most as usize);
            let now: u64 = left
                .into_iter()
                .map(|locked| owner::hold(&locked).drop_uncached(locked))
                .sum();
            if now == 0 {
                break;
            }
            dropped += now as usize;
        }
        dropped
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::iov::IovIter;
    use crate::records::{BackingDevInfo, BdiKind, MmConfig};
    use crate::test_store::Sink;
    use crate::types::PAGE_SIZE;
    use foliocache_sync::Arc;
    use foliocache_sync::thread;

    #[test]
    fn a_folio_that_is_locked_when_it_would_be_dropped_stays_and_is_counted() {
        let mm = Mm::new(MmConfig::new(64 << 20)).unwrap();
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).unwrap();
        let file = AddressSpace::new(&bdi, Arc::new(Sink::default()), 4 << 20);
        let handle = ReadaheadState::new();
        let read = |page: u64| {
            let mut bytes = vec![0; 8 * PAGE_SIZE];
            let mut iocb = Iocb::at(page << 12);
            iocb.uncached = true;
            let mut iter = IovIter::destination(&mut bytes);
            assert_eq!(file.read(&handle, &mut iocb, &mut iter), Ok(bytes.len()));
        };
        read(0);
        // Page 8 was read ahead.
        let locked = file.lock_folio(PageIndex(8)).expect("it is there");
        let pages = locked.nr_pages();
        thread::scope(|scope| {
            let reads = scope.spawn(|| (8..8 + pages).step_by(8).for_each(read));
            reads.join().unwrap();
        });
        drop(locked);
        let stats = file.stats();
        assert_eq!(stats.uncached.failed_locked_pages, pages, "{stats:?}");
        assert!(stats.resident_pages >= pages);
        assert!(file.lock_folio(PageIndex(8)).is_some());
    }
}
