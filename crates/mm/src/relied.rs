//! Files whose cached pages are all that open handles can be read from.
//!
//! # Model
//!
//! ```text
//!  opened from the cache, without a descriptor ──▶ relied on
//!     reclaim comes to a page of it ──▶ asked: the flusher has the file system get a descriptor
//!                                         got one ──▶ its pages are like all others
//!                                         none to be had ──▶ lost: its pages are the last to go
//! ```
//!
//! A file that is opened from the cache may be replaced in the store, and then its name no longer leads to it. So a page of it is not
//! given up before the file can be read from the store. Reclaim must not wait for the store, so it passes these pages over, lists the
//! file, and wakes the flusher, which asks. If nothing else can be evicted, pages of lost files are, and those of files that were
//! asked for longer than a second ago: memory is found however the store behaves. A read of such a page then fails.
//!
//! # Invariants
//!
//! 1. While a file is relied on, and not lost, all its pages are there.
//! 2. A file that is asked for is listed with its file system until it has answered.
//!
//! # Locking
//!
//! The lock of the list is a leaf. The file system begins and ends reliance under a lock of its own, which
//! [`AddressSpaceOperations::keep_readable`](crate::AddressSpaceOperations::keep_readable) tries.
//!
//! # Memory ordering
//!
//! `state` against `holders` is a Dekker pair, by two SeqCst fences, each the other's partner: a thread that takes a page out
//! counts as a holder and then looks at the state; a thread that begins to rely sets the state and then looks for holders and at
//! the number of pages. Either the first sees the state, or the second the holder, or, by the Release of the count that goes
//! down, that the page is gone.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::Duration;
use std::cell::Cell;

use crate::folio::LockedFolio;
use crate::owner;
use crate::records::{AddressSpace, BackingDevInfo};
use crate::reliance::state;
use crate::types::pages_for;

/// When the flusher asks again for files that were in use.
const AGAIN: Duration = Duration::from_millis(5);

/// Whether a search for memory passed over pages that are relied on.
#[derive(Default)]
pub(crate) struct Passed {
    /// Some may be evicted in a moment, once the flusher has answered.
    pending: Cell<bool>,
    /// Some are lost, or overdue.
    lost: Cell<bool>,
}

impl AddressSpace {
    /// Whether all pages are cached, so that a handle needs nothing else. From then on they stay until
    /// [`AddressSpace::end_reliance`], or [`AddressSpace::lose_reliance`].
    ///
    /// Context: one at a time, as the other two. Does not block.
    pub fn rely_on_pages(&self) -> bool {
        self.relied.begin(&self.holders, || self.has_all_pages())
    }

    /// Whether [`AddressSpace::rely_on_pages`] was called last. Does not block.
    pub fn is_relied_on(&self) -> bool {
        // Relaxed: the caller's lock orders it.
        self.relied.0.load(Ordering::Relaxed) != state::FREE
    }

    /// Ends the reliance on the pages: there is a descriptor, or no handle.
    pub fn end_reliance(&self) {
        if self.is_relied_on() {
            // Relaxed: a thread that does not see it yet passes the page over, which does no harm.
            self.relied.0.store(state::FREE, Ordering::Relaxed);
        }
    }

    /// Notes that pages can no longer be read from the store. They are kept as long as anything else
    /// can be evicted.
    pub fn lose_reliance(&self) {
        if self.is_relied_on() {
            // Relaxed: as above.
            self.relied.0.store(state::LOST, Ordering::Relaxed);
        }
    }

    /// Whether a file that is relied on can be mapped: all pages are there, and can stay where they are.
    pub fn can_map_what_is_cached(&self) -> bool {
        self.is_relied_on() && self.has_all_pages() && !self.mm().frames.is_huge()
    }

    fn has_all_pages(&self) -> bool {
        self.nr_pages() >= pages_for(self.size())
    }

    /// Whether a page that is about to be taken out has to stay. Asks for the file, if so.
    ///
    /// Context: counted as a holder.
    pub(crate) fn keeps_page(&self, last: bool) -> bool {
        self.relied.is_begun_for_holder() && self.is_kept(last, &Passed::default())
    }

    /// Whether reclaim has to pass the file's pages over, all but at `last`.
    fn is_kept(&self, last: bool, passed: &Passed) -> bool {
        let relied = &self.relied.0;
        // Relaxed: ordered by the fence, or a hint.
        let mut seen = relied.load(Ordering::Relaxed);
        if seen == state::FREE || foliocache_sync::planted!(relied_page_evicted) {
            return false;
        }
        if seen == state::RELIED {
            // Relaxed: the list is what hands the file over.
            let asked =
                relied.compare_exchange(seen, state::ASKED, Ordering::Relaxed, Ordering::Relaxed);
            match asked {
                Ok(_) => {
                    self.bdi().asked.push(self.id());
                    self.bdi().flusher.wake();
                }
                Err(state::FREE) => return false,
                Err(_) => {}
            }
            seen = state::ASKED;
        }
        let lost = seen == state::LOST || self.bdi().asked.is_overdue();
        match lost {
            true => passed.lost.set(true),
            false => passed.pending.set(true),
        }
        !(lost && last)
    }
}

impl Passed {
    /// Whether a folio that could be evicted has to stay.
    ///
    /// Context: may be under the LRU lock.
    pub(crate) fn keeps(&self, locked: &LockedFolio<'_>, last: bool) -> bool {
        owner::with(locked, |mapping| mapping.is_kept(last, self))
    }

    /// Whether pages of lost files are all that is left.
    pub(crate) fn is_last_resort(&self) -> bool {
        self.lost.get() && !self.pending.get()
    }
}

impl BackingDevInfo {
    /// Asks for the files whose pages are wanted. Returns when to come again, if some were in use.
    ///
    /// Context: the flusher, without a lock; blocks for the store.
    pub(crate) fn answer_asked(&self) -> Option<Duration> {
        // Relaxed: see the field.
        if self.asked.since.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let files = std::mem::take(&mut *self.asked.files.lock());
        let is_busy = |file: &u64| {
            // Relaxed: the list handed the file over.
            let is_asked =
                |file: &AddressSpace| file.relied.0.load(Ordering::Relaxed) == state::ASKED;
            let file = self.mm().mapping(*file).filter(|file| is_asked(file));
            file.is_some_and(|file| !file.ask_store(|ops| ops.keep_readable()))
        };
        let busy: Vec<u64> = files.into_iter().filter(is_busy).collect();
        let mut files = self.asked.files.lock();
        files.extend(busy);
        if files.is_empty() {
            // Relaxed: see the field.
            self.asked.since.store(0, Ordering::Relaxed);
        }
        (!files.is_empty()).then_some(AGAIN)
    }
}
