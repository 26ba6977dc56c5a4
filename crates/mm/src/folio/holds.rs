//! The views and pins of a folio, counted in one word.
//!
//! # Model
//!
//! ```text
//!    63      62         48 47       33 32        18   17      16     0
//!  ┌────────┬─────────────┬───────────┬────────────┬─────────┬────────┐
//!  │ ORPHAN │device writes│ long pins │ short pins │ AS_HELD │ views  │
//!  └────────┴─────────────┴───────────┴────────────┴─────────┴────────┘
//! ```
//!
//! | hold | promises its owner | counted in |
//! |---|---|---|
//! | view | the bytes do not change, and stay where they are | views |
//! | pin | the folio keeps its place in the file, and its frames | short or long pins |
//! | pin through which a device may write | the same | short or long pins, and device writes |
//!
//! A folio that left the index with views is an *orphan*: a descriptor and frames that belong to its views
//! alone. The drop of the last view frees both.
//!
//! `AS_HELD` says that the pages of a pinned folio count as held by mappings in the budget, and not as pinned.
//!
//! # Invariants
//!
//! 1. Counts grow only under the folio lock. They shrink without it. So a count that is found zero under the
//!    lock stays zero as long as the lock is held.
//! 2. A folio is pinned only in its mapping's index: an orphan has views and nothing else.
//! 3. An orphan's frames and order do not change. It is freed once: by the step that leaves [`HoldCounts`] at
//!    nothing but `ORPHAN`.
//! 4. A folio with `AS_HELD` is pinned: it goes in the step that ends the last pin.
//!
//! # Memory ordering
//!
//! A hold is dropped with Release, and looked for with Acquire: a thread that finds no view, or frees an orphan, comes
//! after all reads through the earlier views. The folio lock orders additions before every store by others, and an
//! addition is a read-modify-write, which keeps the chain of releases whole. It is SeqCst, for the order of pins and of
//! what waits for them (`pin/bar.rs`).

use foliocache_sync::atomic::{AtomicU64, Ordering};

use super::{Folio, LockedFolio};

const ORPHAN: u64 = 1 << 63;
const AS_HELD: u64 = 1 << 17;

/// One count in the word.
#[derive(Clone, Copy)]
struct Field {
    shift: u32,
    bits: u32,
}

impl Field {
    const fn one(self) -> u64 {
        1 << self.shift
    }

    const fn mask(self) -> u64 {
        ((1 << self.bits) - 1) << self.shift
    }

    const fn of(self, word: u64) -> u32 {
        ((word & self.mask()) >> self.shift) as u32
    }
}

const VIEWS: Field = Field { shift: 0, bits: 17 };
const SHORT_PINS: Field = Field {
    shift: 18,
    bits: 15,
};
const LONG_PINS: Field = Field {
    shift: 33,
    bits: 15,
};
const DEVICE_WRITES: Field = Field {
    shift: 48,
    bits: 15,
};
const FIELDS: [Field; 4] = [VIEWS, SHORT_PINS, LONG_PINS, DEVICE_WRITES];

/// Pins of one term that a folio can have.
pub(crate) const MOST_PINS: u32 = (1 << SHORT_PINS.bits) - 1;

const PINS: u64 = SHORT_PINS.mask() | LONG_PINS.mask();

/// One view or pin: what it adds to the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold(u64);

impl Hold {
    pub(crate) const VIEW: Self = Self(VIEWS.one());

    pub(crate) const fn pin(long: bool, device_writes: bool) -> Self {
        let term = if long { LONG_PINS } else { SHORT_PINS };
        let writes = if device_writes {
            DEVICE_WRITES.one()
        } else {
            0
        };
        Self(term.one() | writes)
    }
}

/// The word of a folio.
#[derive(Debug, Default)]
pub(super) struct Holds(AtomicU64);

/// The counts at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldCounts(u64);

impl HoldCounts {
    pub(crate) const fn views(self) -> u32 {
        VIEWS.of(self.0)
    }

    pub(crate) const fn short_pins(self) -> u32 {
        SHORT_PINS.of(self.0)
    }

    pub(crate) const fn long_pins(self) -> u32 {
        LONG_PINS.of(self.0)
    }

    /// Pins through which a device may write.
    pub(crate) const fn device_writes(self) -> u32 {
        DEVICE_WRITES.of(self.0)
    }

    #[inline]
    pub(crate) const fn is_viewed(self) -> bool {
        self.0 & VIEWS.mask() != 0
    }

    #[inline]
    pub(crate) const fn is_pinned(self) -> bool {
        self.0 & PINS != 0
    }

    #[inline]
    pub(crate) const fn is_held(self) -> bool {
        self.0 & !ORPHAN != 0
    }

    /// Whether it is an orphan without a hold, to be freed by the caller that dropped the last view.
    pub(crate) const fn is_left_orphan(self) -> bool {
        self.0 == ORPHAN
    }

    fn without(self, hold: Hold) -> Self {
        let has = |field: &Field| field.of(self.0) >= field.of(hold.0);
        debug_assert!(FIELDS.iter().all(has), "nobody's hold");
        Self(self.0 - hold.0)
    }

    pub(crate) const fn counts_as_held(self) -> bool {
        self.0 & AS_HELD != 0
    }

    pub(crate) const fn is_orphan(self) -> bool {
        self.0 & ORPHAN != 0
    }
}

impl Folio {
    /// Its views and pins. Under the folio lock a zero stays zero (invariant 1).
    #[inline]
    pub(crate) fn hold_counts(&self) -> HoldCounts {
        // Acquire: partner is the Release in `drop_hold`.
        HoldCounts(self.holds.0.load(Ordering::Acquire))
    }

    /// Ends a hold; returns what is left.
    ///
    /// Takes no lock. The folio may be another's as soon as nothing is left, so its order and frames are read
    /// before.
    #[inline]
    pub(crate) fn drop_hold(&self, hold: Hold) -> HoldCounts {
        // Release: partner is the Acquire in `hold_counts`. Acquire: partners are the Releases here, for the drop
        // that frees an orphan.
        let before = self.holds.0.fetch_sub(hold.0, Ordering::AcqRel);
        HoldCounts(before).without(hold)
    }

    /// Ends a pin, as [`Folio::drop_hold`]; returns what is left, and whether the folio counted as held.
    pub(crate) fn drop_pin(&self, hold: Hold) -> (HoldCounts, bool) {
        // Relaxed: the exchange confirms it.
        let mut seen = self.holds.0.load(Ordering::Relaxed);
        loop {
            let mut left = HoldCounts(seen).without(hold);
            if !left.is_pinned() {
                left.0 &= !AS_HELD;
            }
            // Release: as in `drop_hold`. Relaxed: nothing was done.
            let exchanged = self.holds.0.compare_exchange_weak(
                seen,
                left.0,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match exchanged {
                Ok(_) => return (left, HoldCounts(seen).counts_as_held()),
                Err(now) => seen = now,
            }
        }
    }

    /// Makes an orphan without a hold an ordinary descriptor again, before it goes back to the pool.
    pub(crate) fn end_orphan(&self) {
        debug_assert!(self.hold_counts().is_left_orphan());
        // Relaxed: the pool's lock publishes it.
        self.uptodate.store(0, Ordering::Relaxed);
        self.holds.0.store(0, Ordering::Relaxed);
    }
}

impl LockedFolio<'_> {
    /// Adds a hold; returns the counts before it, or `None`, with nothing changed, where one of them is full.
    #[inline]
    pub(crate) fn add_hold(&self, hold: Hold) -> Option<HoldCounts> {
        // Relaxed: others only make it less meanwhile.
        let seen = self.holds.0.load(Ordering::Relaxed);
        debug_assert_eq!(seen & ORPHAN, 0, "an orphan is in no index");
        let full = |field: &Field| hold.0 & field.mask() != 0 && !seen & field.mask() == 0;
        if FIELDS.iter().any(full) {
            return None;
        }
        // SeqCst: partner is the fence in `PinBar::new`.
        Some(HoldCounts(self.holds.0.fetch_add(hold.0, Ordering::SeqCst)))
    }

    /// Says whether the folio, if it is pinned, counts as held; whether that is new.
    pub(crate) fn set_as_held(&self, as_held: bool) -> bool {
        let change = |word: u64| {
            let wanted = match as_held && HoldCounts(word).is_pinned() {
                true => word | AS_HELD,
                false => word & !AS_HELD,
            };
            (wanted != word).then_some(wanted)
        };
        let relaxed = Ordering::Relaxed;
        // Relaxed, both: it steers what is counted.
        self.holds.0.fetch_update(relaxed, relaxed, change).is_ok()
    }

    /// Leaves the folio, which left the index, to its views; returns what there is then. If they are gone
    /// already it is the caller's to free.
    pub(super) fn make_orphan(&self) -> HoldCounts {
        debug_assert!(!self.hold_counts().is_pinned(), "invariant 2");
        // Release: the last view's drop, which acquires, sees the descriptor as it was left. Acquire: partner is the
        // Release in `drop_hold`, if there is none left.
        let before = self.holds.0.fetch_or(ORPHAN, Ordering::AcqRel);
        HoldCounts(before | ORPHAN)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use foliocache_sync::wait::WaitTable;

    #[test]
    fn the_fields_fill_the_word_and_do_not_overlap() {
        let all = FIELDS.iter().fold(ORPHAN | AS_HELD, |all, field| {
            assert_eq!(all & field.mask(), 0);
            all | field.mask()
        });
        assert_eq!(all, u64::MAX);
    }

    #[test]
    fn every_hold_is_counted_by_itself() {
        let (folio, waits) = (Folio::default(), WaitTable::new());
        let locked = folio.lock(&waits);
        let pins = [(false, false), (false, true), (true, false), (true, true)];
        let holds = pins.map(|(long, writes)| Hold::pin(long, writes));
        for hold in holds.into_iter().chain([Hold::VIEW, Hold::VIEW]) {
            locked.add_hold(hold).unwrap();
        }
        let counts = |folio: &Folio| {
            let now = folio.hold_counts();
            let pins = [now.short_pins(), now.long_pins(), now.device_writes()];
            (now.views(), pins)
        };
        assert_eq!(counts(&folio), (2, [2, 2, 2]));
        folio.drop_hold(Hold::pin(true, true));
        assert_eq!(counts(&folio), (2, [2, 1, 1]));
        folio.drop_hold(Hold::pin(false, false));
        folio.drop_hold(Hold::VIEW);
        assert_eq!(counts(&folio), (1, [1, 1, 1]));
        assert!(folio.hold_counts().is_viewed() && folio.hold_counts().is_pinned());
        folio.drop_hold(Hold::VIEW);
        folio.drop_hold(Hold::pin(false, true));
        assert!(folio.drop_hold(Hold::pin(true, false)) == HoldCounts(0));
    }

    #[test]
    fn a_folio_counts_as_held_until_its_last_pin_ends() {
        let (folio, waits) = (Folio::default(), WaitTable::new());
        let locked = folio.lock(&waits);
        assert!(!locked.set_as_held(true), "it is not pinned");
        let (short, long) = (Hold::pin(false, false), Hold::pin(true, true));
        locked.add_hold(short).unwrap();
        assert!(locked.set_as_held(true) && !locked.set_as_held(true));
        locked.add_hold(long).unwrap();
        assert!(matches!(folio.drop_pin(short), (left, true) if left.counts_as_held()));
        assert_eq!(folio.drop_pin(long), (HoldCounts(0), true));
        locked.add_hold(long).unwrap();
        assert!(locked.set_as_held(true) && locked.set_as_held(false));
        assert_eq!(folio.drop_pin(long), (HoldCounts(0), false));
    }

    #[test]
    fn a_full_count_refuses_and_leaves_the_others_alone() {
        for hold in [
            Hold::VIEW,
            Hold::pin(false, true),
            Hold::pin(true, false),
            Hold::pin(true, true),
        ] {
            let (folio, waits) = (Folio::default(), WaitTable::new());
            let locked = folio.lock(&waits);
            let most = std::iter::from_fn(|| locked.add_hold(hold)).count() as u32;
            let full = locked.hold_counts();
            assert!(most == VIEWS.of(u64::MAX) || most == LONG_PINS.of(u64::MAX));
            assert!(locked.add_hold(hold).is_none());
            assert_eq!(locked.hold_counts(), full);
            let other = match hold == Hold::VIEW {
                true => Hold::pin(false, false),
                false => Hold::VIEW,
            };
            assert_eq!(locked.add_hold(other), Some(full));
            folio.drop_hold(hold);
            assert!(locked.add_hold(hold).is_some());
        }
    }

    #[test]
    fn an_orphan_is_left_to_whoever_ends_its_last_view() {
        let (folio, waits) = (Folio::default(), WaitTable::new());
        let locked = folio.lock(&waits);
        locked.add_hold(Hold::VIEW).unwrap();
        locked.add_hold(Hold::VIEW).unwrap();
        let left = locked.make_orphan();
        assert!(left.is_orphan() && left.is_held() && left.views() == 2);
        drop(locked);
        assert!(!folio.drop_hold(Hold::VIEW).is_left_orphan());
        assert!(folio.drop_hold(Hold::VIEW).is_left_orphan());
        folio.end_orphan();
        assert!(!folio.hold_counts().is_orphan());
        // Its views may go just before it becomes one.
        assert!(folio.lock(&waits).make_orphan().is_left_orphan());
    }
}
