//! What the windows of a file show of its pages.

use std::ops::Range;

use crate::folio::{LockedFolio, flag};
use crate::mapped::Held;
use crate::records::{AddressSpace, LinearFile};

impl AddressSpace {
    /// Empties what the windows have of pages; a touch is a fault again.
    ///
    /// Context: takes `windows` shared.
    pub(crate) fn unmap_pages(&self, pages: Range<u64>) {
        if let Some(linear) = self.linear.get() {
            for window in linear.windows.read().iter() {
                window.zap(self.mm().windows(), &pages);
            }
        }
    }

    /// Takes pages that the file no longer has out of the windows that have them without faults: those addresses
    /// cannot be accessed any more.
    pub(crate) fn cut_held(&self, pages: Range<u64>) {
        if let Some(linear) = self.linear.get() {
            for window in linear.windows.read().iter() {
                window.cut(self.mm().windows(), &pages);
            }
        }
    }

    /// Lets windows try pages again that they refused, because the file did not have them.
    ///
    /// Context: it has them now; takes `windows` shared. Whoever refuses a page looks at the size under it.
    pub(crate) fn end_poison(&self, pages: &Range<u64>) {
        if let Some(linear) = self.linear.get() {
            for window in linear.windows.read().iter() {
                window.end_poison(self.mm().windows(), pages);
            }
        }
    }

    /// As [`AddressSpace::unmap_pages`], of a locked folio that windows may have.
    pub(crate) fn unmap_folio(&self, locked: &LockedFolio<'_>) {
        if locked.state.load().has(flag::HELD) {
            self.cut_held(locked.index().0..locked.end().0);
        }
        if locked.state.load().has(flag::MAPPED) {
            self.unmap_pages(locked.index().0..locked.end().0);
            locked.state.clear(flag::MAPPED);
        }
    }

    /// Makes stores to pages through windows faults again.
    ///
    /// Context: the folios are locked; takes `windows` shared.
    pub(crate) fn write_protect(&self, pages: Range<u64>) {
        if let Some(linear) = self.linear.get() {
            for window in linear.windows.read().iter() {
                window.write_protect(self.mm().windows(), &pages);
            }
        }
    }

    /// Whether programs store to some of the file without that being noticed.
    pub(crate) fn has_unnoticed_stores(&self) -> bool {
        let unnoticed = |held: &Held| held.kind.unnoticed();
        let any = |linear: &LinearFile| linear.held.read().iter().any(unnoticed);
        self.linear.get().is_some_and(any)
    }
}
