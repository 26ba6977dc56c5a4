//! The lockless look-up: reading a folio without a lock, a reference or a store.
//!
//! # Model
//!
//! ```text
//!   reader                                remover, with the folio locked
//!   1 look the folio up                   A clear the index slot
//!   2 read its state (uptodate?)          B grow the version, clear uptodate
//!   3 look at the slot again              C give descriptor and frames to somebody else
//!   4 read its index and frame, read the version again, and copy
//!   5 fence, read the version again
//! ```
//!
//! - The version of step 2 is from before B: if C's new owner stores anything that step 4 copies,
//!   step 5 sees B, and the copy does not count.
//! - The version of step 2 is from after B: then step 3 sees A, or something newer, and gives
//!   up. Without step 3 the copy would be of the frame's next owner, under that owner's stable
//!   version: another file's bytes.
//! - The order comes with the version, in one word. The index and the frame may be those of a later
//!   identity, whose order is smaller: with the old order the copy would run past the frames of that
//!   folio, into memory that may not be active. So step 4 looks at the version before it copies: as
//!   long as that is the same, order, index and frame are of one folio, and it covers the byte.
//! - The copy of step 4 touches frames of a folio that was in the index during this read section, and
//!   no others.
//! - A split shortens the folio in step B. A reader that began before it may copy beyond the new end:
//!   the frames there belong to the upper half, whose lock is held until B is over. A reader that
//!   begins later finds the upper half in step 3.
//!
//! # Invariants
//!
//! 1. A copy counts only if the folio was in the slot at step 3 and kept its version to step 5.
//!
//! # Memory ordering
//!
//! Step 2 is Acquire; its partner is the Release of B. Step 3 is Acquire; its partner is the
//! Release with which the index clears and fills slots. The loads of step 4 are Acquire; their partners
//! are the Release stores of C. Steps 4 and 5 pair with the fence after B.

use foliocache_sync::rcu::{self, RcuReadGuard};
use foliocache_xarray::{Entry, SlotRef, XArray};
use std::ops::Range;

use crate::folio::state::Snapshot;
use crate::folio::{Folio, Identity, flag};
use crate::types::PageIndex;

/// A folio that was found without a lock: steps 1 to 3.
pub(crate) struct Lookup<'a> {
    pub(crate) folio: &'a Folio,
    pub(crate) seen: Snapshot,
    pub(crate) identity: Identity,
}

/// A copy from a folio that was found, as step 5 needs it.
#[derive(Clone, Copy)]
pub(crate) struct Copying<'a> {
    folio: &'a Folio,
    seen: Snapshot,
}

impl<'a> Lookup<'a> {
    /// Looks for the uptodate folio that holds byte `pos`. `None`: there is none, or it changed
    /// meanwhile. A caller that needs to know locks it.
    ///
    /// Context: what it finds is of use in the same RCU read section only.
    #[inline(always)]
    pub(crate) fn begin(
        index: &XArray,
        pos: u64,
        rcu: &RcuReadGuard,
        of_entry: impl FnOnce(Entry) -> &'a Folio,
    ) -> Option<Self> {
        let (entry, slot) = index.load_slot(PageIndex::of(pos).0, rcu)?;
        Self::of_slot(pos, slot, of_entry(entry))
    }

    /// Goes on with the `folio` that the slot for byte `pos` had in this read section: after step 1.
    #[inline(always)]
    pub(crate) fn of_slot(pos: u64, slot: SlotRef<'_>, folio: &'a Folio) -> Option<Self> {
        let seen = folio.state.load();
        if !slot.holds() || !seen.has(flag::UPTODATE) {
            return None;
        }
        let identity = folio.locate(seen, pos)?;
        Some(Self {
            folio,
            seen,
            identity,
        })
    }

    /// The part that a caller of several look-ups keeps over their copies.
    #[inline(always)]
    pub(crate) fn copying(&self) -> Copying<'a> {
        let Self { folio, seen, .. } = *self;
        Copying { folio, seen }
    }

    /// Whether a copy since then counts: step 5.
    #[inline(always)]
    pub(crate) fn validate(&self) -> bool {
        self.copying().validate()
    }
}

impl Copying<'_> {
    /// As [`Lookup::validate`].
    #[inline(always)]
    pub(crate) fn validate(self) -> bool {
        self.folio.state.validate(self.seen) || foliocache_sync::planted!(copy_not_validated)
    }
}

/// The first page of the first folio that overlaps `pages`. Finding none orders nothing.
pub(crate) fn find_page(index: &XArray, pages: &Range<u64>) -> Option<PageIndex> {
    if pages.is_empty() {
        return None;
    }
    let rcu = rcu::read_lock();
    let found = index.find(pages.start, pages.end - 1, None, &rcu)?;
    Some(PageIndex(found.index))
}
