//! Stores that are no faults of ours: which pages of tracked windows they changed.
//!
//! # Model
//!
//! The kernel notes which pages of a tracked window are stored to (asynchronous write protection). They become dirty
//! when they are looked for: at each sync, by the flusher, and before the window goes. The look protects them again
//! first, so a store after it is found by the next one, and one that writeback copies in the middle is written twice.
//!
//! # Locking
//!
//! `LinearFile::tracking` is held from the look until all that it found is dirty: another sync finds nothing meanwhile,
//! and would not write it. *Order*: before folio locks and `windows`; not within `wb_lock`, which is held over I/O.

use foliocache_sync::Arc;
use foliocache_sync::time::{Duration, monotonic_ns};
use std::ops::Range;

use crate::address_space::AddressSpace;
use crate::folio::grains;
use crate::linear::LinearFile;
use crate::mm::Mm;
use crate::types::PageIndex;
use crate::vma::LockedAccess;
use crate::window::Window;

/// Pages of the largest folio whose grains are pages.
const GRAINED: u64 = 1 << grains::FINE_ORDER;

impl AddressSpace {
    /// Marks dirty what was stored to pages through tracked windows.
    ///
    /// Context: takes folio locks; `wb_lock` is not held.
    pub(crate) fn dirty_tracked(self: &Arc<Self>, pages: &Range<u64>) {
        self.dirty_tracked_if(pages, |_| true);
    }

    /// As [`AddressSpace::dirty_tracked`], if that was not done for `age`.
    pub(crate) fn dirty_tracked_since(self: &Arc<Self>, age: Duration) {
        self.dirty_tracked_if(&(0..u64::MAX), |since| since >= age);
    }

    fn dirty_tracked_if(self: &Arc<Self>, pages: &Range<u64>, due: impl FnOnce(Duration) -> bool) {
        let Some(linear) = self.linear.get() else {
            return;
        };
        let tracked = linear.tracked_windows();
        if tracked.is_empty() {
            return;
        }
        let mut looked = linear.tracking.lock();
        let now = monotonic_ns();
        if !due(Duration::from_nanos(now.saturating_sub(*looked))) {
            return;
        }
        if *pages == (0..u64::MAX) {
            *looked = now;
        }
        for window in tracked {
            self.dirty_stored(linear, &window, pages);
        }
    }

    fn dirty_stored(
        self: &Arc<Self>,
        linear: &LinearFile,
        window: &Arc<Window>,
        pages: &Range<u64>,
    ) {
        let mm: &Mm = self.mm();
        let mut left = window.part(pages);
        let mut any = false;
        while left.start < left.end {
            let mut found = Vec::new();
            {
                // It is mapped as long as it is listed.
                let listed = linear.windows.read();
                if !listed.iter().any(|other| Arc::ptr_eq(other, window)) {
                    break;
                }
                left.start = window.take_stored(mm, &left, &mut found);
                if !found.is_empty() && !any {
                    window.note_stores();
                    any = true;
                }
            }
            for pages in found {
                self.dirty_all(&pages);
            }
        }
    }

    /// Splits the folios of pages so that each page can be dirty by itself, where there is memory for that.
    pub(crate) fn split_for_tracking(&self, pages: &Range<u64>) {
        let _wb = self.wb_lock.lock();
        let first = (pages.start + 1).next_multiple_of(GRAINED);
        for page in (first..pages.end).step_by(GRAINED as usize) {
            self.split_at(PageIndex(page));
        }
    }
}

impl LinearFile {
    fn tracked_windows(&self) -> Vec<Arc<Window>> {
        let windows = self.windows.read();
        let tracked = |window: &&Arc<Window>| window.locked == Some(LockedAccess::Tracked);
        windows.iter().filter(tracked).cloned().collect()
    }
}
