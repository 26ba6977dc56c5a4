//! The lockless look-up: reading a folio without a lock, a reference or a store.
//!
//! # Model
//!
//! ```text
//!   reader                                remover, with the folio locked
//!   1 look the folio up                   A clear the index slot
//!   2 read its version (uptodate?)        B grow the version, clear uptodate
//!   3 read its place; look at the slot    C give descriptor and frames to somebody else
//!     and the version again
//!   4 copy
//!   5 fence, read the version again
//! ```
//!
//! - The version of step 2 is from before B: if C's new owner stores anything that step 4 copies,
//!   step 5 sees B, and the copy does not count.
//! - The version of step 2 is from after B: then step 3 sees A, or something newer, and starts
//!   again. Without step 3 the copy would be of the frame's next owner, under that owner's stable
//!   version: another file's bytes.
//! - The place (first page, order, first frame) is several words. The look at the version in step 3
//!   says that they belong together, before an address is made of them. A split stores the smaller
//!   order before B, so that a version from after it never comes with the order from before.
//!
//! # Invariants
//!
//! 1. A copy counts only if the folio was in the slot at step 3 and kept its version to step 5.
//!
//! # Memory ordering
//!
//! Step 2 is Acquire; its partner is the Release of B. Step 3 is Acquire; its partner is the
//! Release with which the index clears and fills slots. Steps 4 and 5 pair with the fence after B.

use foliocache_sync::rcu::RcuReadGuard;
use foliocache_xarray::{Entry, XArray};

use crate::folio::state::Snapshot;
use crate::folio::{Folio, Place, flag};
use crate::types::PageIndex;

/// Copies thrown away before the reader takes the folio lock instead. In a model each costs a
/// multiple of executions and shows what the one before it did.
const ATTEMPTS: usize = if cfg!(loom) { 2 } else { 3 };

/// What a lockless look-up came to.
pub(crate) enum Lookup<'a, T> {
    /// The copy counts.
    Found(&'a Folio, Snapshot, T),
    /// There is no folio, or none that is uptodate.
    Miss,
    /// Too many changes meanwhile: lock the folio.
    Contended,
}

/// Runs `copy` on the place of the folio that holds byte `pos`, and the byte's offset in the folio,
/// so that its result is of the file's bytes or not used.
///
/// Context: `copy` runs inside the RCU read section and may run several times; it must not sleep.
#[inline(always)]
pub(crate) fn read_validated<'a, T>(
    index: &XArray,
    pos: u64,
    rcu: &RcuReadGuard,
    of_entry: impl Fn(Entry) -> &'a Folio,
    mut copy: impl FnMut(Place, usize) -> T,
) -> Lookup<'a, T> {
    for _ in 0..ATTEMPTS {
        let Some((entry, slot)) = index.load_slot(PageIndex::of(pos).0, rcu) else {
            return Lookup::Miss;
        };
        let folio = of_entry(entry);
        let seen = folio.state.read_begin();
        let place = folio.place();
        if !slot.holds(entry) || !folio.state.validate(seen) {
            continue;
        }
        if !seen.has(flag::UPTODATE) {
            return Lookup::Miss;
        }
        // None: a split seen halfway.
        let Some(offset) = place.offset_of(pos) else {
            continue;
        };
        let result = copy(place, offset);
        if folio.state.validate(seen) {
            return Lookup::Found(folio, seen, result);
        }
    }
    Lookup::Contended
}
