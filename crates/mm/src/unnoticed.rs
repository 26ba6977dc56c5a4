//! Marking dirty what programs store to held pages without that being noticed.

use std::ops::Range;

use crate::folio::{LockedFolio, flag};
use crate::mapped::{Held, HoldKind, LockedAccess, overlap};
use crate::records::AddressSpace;
use crate::types::{PAGE_SIZE, pages_for};

impl AddressSpace {
    pub(crate) fn for_each_held(&self, pages: &Range<u64>, visit: impl Fn(&LockedFolio<'_>)) {
        let lock = |page| self.lock_folio(page);
        self.for_each_folio(pages.clone(), lock, |locked| visit(&locked));
    }

    /// Marks all held pages of a range dirty: it is not known what was stored to them.
    pub(crate) fn dirty_all(&self, pages: &Range<u64>) {
        let size = self.size();
        self.for_each_held(pages, |locked| {
            if !locked.state.load().has(flag::HELD) {
                // The hold has ended meanwhile, and there may be anything.
                return;
            }
            let start = locked.index();
            let from = pages.start.max(start.0) - start.0;
            let to = pages.end.min(locked.end().0).min(pages_for(size));
            if to > start.0 + from {
                let bytes = from as usize * PAGE_SIZE..(to - start.0) as usize * PAGE_SIZE;
                self.mark_dirty(locked, bytes);
            }
        });
    }

    /// Marks dirty what programs store to pages without that being noticed.
    ///
    /// Context: begins a sync of these pages; takes folio locks.
    pub(crate) fn dirty_unnoticed(&self, pages: &Range<u64>) {
        let Some(linear) = self.linear.get() else {
            return;
        };
        let untracked = |held: &&Held| held.kind == HoldKind::Untracked;
        let held = linear.held.read();
        let ranges: Vec<_> = held.iter().filter(untracked).cloned().collect();
        drop(held);
        for held in ranges {
            let part = held.pages.start.max(pages.start)..held.pages.end.min(pages.end);
            if !part.is_empty() {
                self.dirty_all(&part);
            }
        }
        for window in linear.windows.read().iter() {
            if window.locked == Some(LockedAccess::Untracked) && overlap(&window.pages, pages) {
                window.note_stores();
            }
        }
    }
}
