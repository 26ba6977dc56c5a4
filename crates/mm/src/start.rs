//! Where the first page of a file lies, for the thread that opens the file.
//!
//! # Model
//!
//! A read that finds nothing in the processor's caches waits for one line after another: the slot in the index, the
//! descriptor, the frame. Most files are read from their beginning on. So an address space remembers which descriptor and
//! which frame its first page has, and opening the file asks for all three lines at once.
//!
//! The two numbers are a hint: they are never dereferenced, and the page may have been evicted.
//!
//! # Memory ordering
//!
//! Relaxed: one word that is never followed.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::{prefetch, rcu};
use std::ptr;

use crate::folio::Folio;
use crate::frames::FrameNumber;
use crate::records::AddressSpace;
use crate::types::PageIndex;

impl AddressSpace {
    /// Asks the processor for the two lines that opening the file looks at, and a `stat` but for a word.
    #[inline(always)]
    pub fn prefetch(&self) {
        let first = ptr::from_ref(self);
        prefetch(first);
        prefetch(first.wrapping_byte_add(64));
    }

    /// Asks the processor for the first page, and for what leads to it.
    #[inline]
    pub fn prefetch_start(&self) {
        self.index.prefetch_first(&rcu::read_lock());
        let start = self.start.load(Ordering::Relaxed);
        if start != 0 {
            let mm = self.mm();
            prefetch(mm.folios.slot((start >> 32) as u32));
            prefetch(mm.frames.addr(FrameNumber(start as u32)));
        }
    }

    /// Remembers where `folio` is, if it begins the file.
    ///
    /// Context: its lock held.
    pub(crate) fn note_start(&self, folio: &Folio) {
        if folio.index() == PageIndex(0) {
            let folio_id = u64::from(self.mm().folios.id(folio));
            let start = folio_id << 32 | u64::from(folio.frame().0);
            self.start.store(start, Ordering::Relaxed);
        }
    }
}
