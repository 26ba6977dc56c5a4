//! Keeping pins away from pages that are about to leave or to move.
//!
//! # Model
//!
//! ```text
//!   truncate, punch, first mapping            pin, with the folio locked
//!   1 list the pages                          1 count the pin
//!   2 look for pins of theirs                 2 look for the folio's pages in the list
//!     none: go on, the pages stay listed        listed: take the pin back, EAGAIN
//!     short, or revocable: wait, look again
//!     other long ones, or waited for too long: EBUSY
//! ```
//!
//! Holders of revocable pins are asked before the first wait, and learn at the bar's drop that they may pin again. The
//! waiting thread holds no lock: the owner of the pins may need it to end them.
//!
//! # Invariants
//!
//! 1. While a [`PinBar`] lives that found its pages without pins, they get none that stays.
//!
//! # Locking
//!
//! The list is a leaf.
//!
//! # Memory ordering
//!
//! A pin against a bar is a Dekker pair. A pin is counted in the folio, and for the folio's first pin in the file's
//! `nr_pinned`; then `nr_bars` is loaded, all SeqCst. A bar is listed, and after a SeqCst fence the thread looks for pins.
//! If the load was too early for the bar it precedes the fence, and so do the additions: one of the two sees what the
//! other did. The file's count falls after its folio's last pin: while it is zero no folio need be looked at.

use foliocache_sync::atomic::{Ordering, fence};
use foliocache_sync::time::Duration;
use std::ops::Range;

use crate::file_locks::wait_for;
use crate::holder::Holder;
use crate::pins::RevokeReason;
use crate::records::{AddressSpace, Mm};
use crate::revoke::Revoking;

/// Keeps new pins away from pages of a file until it is dropped.
pub(crate) struct PinBar<'a> {
    mapping: &'a AddressSpace,
    pages: Range<u64>,
    /// Holders that were asked. It ends after the pages are listed no more.
    revoking: Option<Revoking<'a>>,
}

impl<'a> PinBar<'a> {
    fn new(mapping: &'a AddressSpace, pages: Range<u64>) -> Self {
        let pins = &mapping.mm().pins;
        pins.bars.lock().push((mapping.id(), pages.clone()));
        // Relaxed: the fence orders it.
        pins.nr_bars.fetch_add(1, Ordering::Relaxed);
        // Partners: the load in `is_barred`, and before it the additions to the folio's holds and to `nr_pinned`.
        fence(Ordering::SeqCst);
        Self {
            mapping,
            pages,
            revoking: None,
        }
    }
}

impl Drop for PinBar<'_> {
    fn drop(&mut self) {
        let pins = &self.mapping.mm().pins;
        let mut bars = pins.bars.lock();
        let mine = (self.mapping.id(), self.pages.clone());
        let at = bars.iter().position(|bar| *bar == mine);
        bars.swap_remove(at.expect("it is listed"));
        // Relaxed: a thread that still sees it looks into the list.
        pins.nr_bars.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AddressSpace {
    /// Keeps new pins away from pages, and waits for those that they have. Holders of revocable pins are asked to give them
    /// up, for `reason`.
    ///
    /// Context: blocks for at most `pin_wait`; nothing held that an owner of pins may wait for.
    ///
    /// # Errors
    /// A range that is pinned for long by a holder that cannot be asked, or still pinned after the wait.
    pub(crate) fn hold_off_pins(
        &self,
        pages: Range<u64>,
        reason: RevokeReason,
    ) -> Result<PinBar<'_>, Holder> {
        let mm: &Mm = self.mm();
        let mut bar = PinBar::new(self, pages.clone());
        let pinned = || {
            let pinned = self.pinned_in(pages.clone(), 1).pop();
            pinned.filter(|_| !foliocache_sync::planted!(pin_ignored_by_a_punch))
        };
        let attempt = || {
            if pinned().is_none() {
                return Some(None);
            }
            if let Some(kept) = self.kept_pinned(pages.clone()) {
                return Some(Some(kept));
            }
            let since = || Revoking::in_range(mm, reason);
            let revoking = bar.revoking.get_or_insert_with(since);
            revoking.ask_among(self.id(), &pages);
            None
        };
        let patience = Duration::from_nanos(mm.pins.wait.load(Ordering::Relaxed));
        match wait_for(patience, attempt).unwrap_or_else(pinned) {
            None => Ok(bar),
            Some(pinned) => Err(pinned),
        }
    }
}

impl Mm {
    /// How long a truncate, hole punch or first mapping waits for short pins that are in its way, and any operation for revocable
    /// ones: a second unless said.
    pub fn set_pin_wait(&self, wait: Duration) {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.pins.wait.store(nanos, Ordering::Relaxed);
    }
}
