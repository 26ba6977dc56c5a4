//! Keeping pins away from pages that are about to leave or to move.
//!
//! # Model
//!
//! ```text
//!   truncate, punch, first mapping            pin, with the folio locked
//!   1 list the pages                          1 count the pin
//!   2 look for pins of theirs                 2 look for the folio's pages in the list
//!     none: go on, the pages stay listed        listed: take the pin back, EAGAIN
//!     short: wait, look again
//!     long, or waited for too long: EBUSY
//! ```
//!
//! Whoever waits holds no lock: who has the pins may need it to end them.
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
//! A pin against a bar is a Dekker pair. Who pins counts the pin, in the folio and for its first pin in the file's
//! `nr_pinned`, and then loads `nr_bars`, all SeqCst. Who bars lists the bar, has a SeqCst fence, and then looks for pins.
//! If the load was too early for the bar it precedes the fence, and so do the additions: one of the two sees what the
//! other did. The file's count falls after its folio's last pin: while it is zero no folio need be looked at.

use foliocache_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::time::Duration;
use std::ops::Range;

use crate::address_space::AddressSpace;
use crate::holder::Holder;
use crate::linear::wait_for;
use crate::mm::Mm;
use crate::stats::read;

/// How long short pins are waited for unless said, in nanoseconds.
const PIN_WAIT: u64 = 1_000_000_000;

/// Where in [`Pins::pages`] the count of pages begins that devices may write: there are fewer frames than that.
pub(super) const DEVICE_WRITES: u32 = 32;

/// What pins of all files have in common.
#[derive(Debug)]
pub(crate) struct Pins {
    /// Pages that are to get no pin, by the file's number. Only ever a few.
    bars: RankedMutex<Vec<(u64, Range<u64>)>>,
    nr_bars: AtomicUsize,
    /// Nanoseconds that are waited for short pins. Relaxed: a setting.
    wait: AtomicU64,
    /// Pages of folios with pins that do not count as held, and shifted by [`DEVICE_WRITES`] of all that devices may write;
    /// not those of memory file systems. Relaxed: they steer.
    pub(super) pages: AtomicU64,
    /// Those that count as pinned in linear frames, which so cannot be reclaimed. Relaxed: a hint.
    pub(crate) linear: AtomicU64,
    /// Whether the buffer is there that folios are written from which a device may be writing.
    pub(in crate::filemap) has_stable: AtomicBool,
}

impl Default for Pins {
    fn default() -> Self {
        Self {
            bars: RankedMutex::new(Rank::Leaf, Vec::new()),
            nr_bars: AtomicUsize::new(0),
            wait: AtomicU64::new(PIN_WAIT),
            pages: AtomicU64::new(0),
            linear: AtomicU64::new(0),
            has_stable: AtomicBool::new(false),
        }
    }
}

impl Pins {
    /// Pages of folios with pins, apart from those of memory file systems and those that count as held.
    pub(crate) fn pages(&self) -> u64 {
        read(&self.pages) & ((1 << DEVICE_WRITES) - 1)
    }

    /// Pages of all folios that devices may write, those of memory file systems apart.
    pub(crate) fn device_writes(&self) -> u64 {
        read(&self.pages) >> DEVICE_WRITES
    }

    pub(super) fn is_barred(&self, file: u64, pages: &Range<u64>) -> bool {
        // SeqCst: partner is the fence in `PinBar::new`.
        self.nr_bars.load(Ordering::SeqCst) > 0 && self.is_listed(file, pages)
    }

    #[cold]
    fn is_listed(&self, file: u64, pages: &Range<u64>) -> bool {
        let overlaps = |barred: &Range<u64>| barred.start < pages.end && pages.start < barred.end;
        let bars = self.bars.lock();
        bars.iter()
            .any(|(of, barred)| *of == file && overlaps(barred))
    }
}

/// Keeps new pins away from pages of a file until it is dropped.
pub(crate) struct PinBar<'a> {
    mapping: &'a AddressSpace,
    pages: Range<u64>,
}

impl<'a> PinBar<'a> {
    fn new(mapping: &'a AddressSpace, pages: Range<u64>) -> Self {
        let pins = &mapping.mm().pins;
        pins.bars.lock().push((mapping.id(), pages.clone()));
        // Relaxed: the fence orders it.
        pins.nr_bars.fetch_add(1, Ordering::Relaxed);
        // Partners: the load in `is_barred`, and before it the additions to the folio's holds and to `nr_pinned`.
        fence(Ordering::SeqCst);
        Self { mapping, pages }
    }
}

impl Drop for PinBar<'_> {
    fn drop(&mut self) {
        let pins = &self.mapping.mm().pins;
        let mut bars = pins.bars.lock();
        let mine = (self.mapping.id(), self.pages.clone());
        let at = bars.iter().position(|bar| *bar == mine);
        bars.swap_remove(at.expect("it is listed"));
        // Relaxed: who still sees it looks into the list.
        pins.nr_bars.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AddressSpace {
    /// Keeps new pins away from pages, and waits for those that they have.
    ///
    /// Context: blocks for at most `pin_wait`; nothing held that who has pins may wait for.
    ///
    /// # Errors
    /// What is pinned: for long, or still.
    pub(crate) fn hold_off_pins(&self, pages: Range<u64>) -> Result<PinBar<'_>, Holder> {
        let bar = PinBar::new(self, pages);
        let pinned = || {
            let pinned = self.pinned_in(bar.pages.clone(), 1).pop();
            pinned.filter(|_| !foliocache_sync::planted!(pin_ignored_by_a_punch))
        };
        let attempt = || match pinned() {
            Some(pinned) if pinned.long_pins == 0 => None,
            done => Some(done),
        };
        let patience = Duration::from_nanos(self.mm().pins.wait.load(Ordering::Relaxed));
        match wait_for(patience, attempt).unwrap_or_else(pinned) {
            None => Ok(bar),
            Some(pinned) => Err(pinned),
        }
    }
}

impl Mm {
    /// How long a truncate, hole punch or first mapping waits for short pins that are in its way: a second unless said.
    pub fn set_pin_wait(&self, wait: Duration) {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.pins.wait.store(nanos, Ordering::Relaxed);
    }
}
