//! The pages that the windows of a file show, and those that are held.

use std::ops::Range;

use crate::folio::{LockedFolio, flag};
use crate::mapped::{Held, HoldKind, not_held, overlap};
use crate::records::{AddressSpace, LinearFile, Window, Windows};

impl AddressSpace {
    /// Empties the page tables of windows for pages; a touch is a fault again.
    ///
    /// Context: takes `windows` shared.
    pub(crate) fn unmap_pages(&self, pages: Range<u64>) {
        self.for_each_window(|window, windows| window.zap(windows, &pages));
    }

    fn for_each_window(&self, change: impl Fn(&Window, &Windows)) {
        if let Some(linear) = self.linear.get() {
            let list = linear.windows.read();
            list.iter()
                .for_each(|window| change(window, self.mm().windows()));
        }
    }

    /// Takes pages that the file no longer has out of the windows that have them without faults: those addresses
    /// cannot be accessed any more.
    pub(crate) fn cut_held(&self, pages: Range<u64>) {
        self.for_each_window(|window, windows| window.cut(windows, &pages));
    }

    /// Lets windows try pages again that they refused, because the file did not have them.
    ///
    /// Context: it has them now; takes `windows` shared. A refusal of a page looks at the size under it.
    pub(crate) fn end_poison(&self, pages: &Range<u64>) {
        self.for_each_window(|window, windows| window.end_poison(windows, pages));
    }

    /// As [`AddressSpace::unmap_pages`], of a locked folio that windows may have.
    pub(crate) fn unmap_folio(&self, locked: &LockedFolio<'_>) {
        if locked.state.load().has(flag::HELD) {
            self.cut_held(locked.pages());
        }
        if locked.state.load().has(flag::MAPPED) {
            self.unmap_pages(locked.pages());
            locked.state.clear(flag::MAPPED);
        }
    }

    /// Makes stores to pages through windows faults again.
    ///
    /// Context: the folios are locked; takes `windows` shared.
    pub(crate) fn write_protect(&self, pages: Range<u64>) {
        self.for_each_window(|window, windows| window.write_protect(windows, &pages));
    }

    /// Whether programs store to some of the file without that being noticed.
    pub(crate) fn has_unnoticed_stores(&self) -> bool {
        self.has_hold(|held| held.kind == HoldKind::Untracked)
    }

    fn has_hold(&self, those: impl Fn(&Held) -> bool) -> bool {
        let any = |linear: &LinearFile| linear.held.read().iter().any(those);
        self.linear.get().is_some_and(any)
    }

    /// Whether some of pages are held.
    pub(crate) fn is_held(&self, pages: Range<u64>) -> bool {
        self.has_hold(|held| overlap(&held.pages, &pages))
    }

    /// Whether all pages of a folio are held.
    pub(crate) fn holds_all_of(&self, locked: &LockedFolio<'_>) -> bool {
        let pages = locked.pages();
        let all = |linear: &LinearFile| not_held(&linear.held.read(), &pages, |_| true) == 0;
        self.linear.get().is_some_and(all)
    }

    /// How pages are held for stores, if they are.
    pub(crate) fn held_for_stores(&self, pages: Range<u64>) -> Option<HoldKind> {
        let held = self.linear.get()?.held.read();
        let here = |held: &&Held| held.kind != HoldKind::Read && overlap(&held.pages, &pages);
        // One for I/O leaves its pages dirty.
        let kinds = held.iter().filter(here).map(|held| held.kind);
        kinds.max_by_key(|kind| *kind == HoldKind::Io)
    }
}
