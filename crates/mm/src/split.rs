//! Splitting large folios, in halves, with their frames where they are (decision 8).
//!
//! # Model
//!
//! ```text
//!   lower: [ 0 1 2 3 | 4 5 6 7 ]  order 3, locked           upper: a new descriptor, locked
//!   1  upper gets its place (pages 4..8, the same frames) and its share of the grains
//!   2  the index: slots 4..8 go from lower to upper, with lower's flags and marks
//!   3  lower: the smaller order, then a new version
//! ```
//!
//! A lockless reader that began with the old version of the lower half may copy beyond its new end:
//! from frames that are the upper half's, whose lock is held until the version has grown. Whatever
//! becomes of them later, the copy does not count any more.
//!
//! Counts are of pages, so a split changes none, except for a half that turns out clean.
//!
//! # Locking
//!
//! The folio lock of the lower half, then of the upper; `xa_lock`, the LRU lock and the pools' are
//! taken one after another. Nothing waits for memory.

use foliocache_xarray::{Entry, Preload, XArray};

use crate::folio::{Identity, LockedFolio, Operation, flag, grains};
use crate::records::{AddressSpace, Mm};
use crate::types::{PAGE_SIZE, PageIndex};

impl AddressSpace {
    /// Sees to it that no folio goes across the beginning of `page`, if there is memory to split it.
    ///
    /// Context: `wb_lock` held, so the folio is not under writeback.
    pub(crate) fn split_at(&self, page: PageIndex) {
        if let Some(locked) = self.lock_folio(page)
            && locked.index() < page
        {
            drop(self.split_folio(locked, page));
        }
    }

    /// Splits a locked folio that begins before `page` and goes on beyond it, so that one begins
    /// there; returns the part that ends before `page`, and unlocks the others. Parts without content
    /// leave the index, the returned one too. Without memory to split it, or with views or pins, the folio stays as
    /// it is and is returned whole.
    ///
    /// Context: the folio is not under writeback. Takes `xa_lock`, the LRU lock and the pools'.
    pub(crate) fn split_folio<'a>(
        &'a self,
        locked: LockedFolio<'a>,
        page: PageIndex,
    ) -> Option<LockedFolio<'a>> {
        let goes_beyond = |part: &LockedFolio<'_>| part.index() < page && page < part.end();
        let part = self.halve_while(locked, goes_beyond, |upper| page > upper);
        self.keep_content(part)
    }

    /// Halves a locked folio while `goes_on`, and if the upper half `is_wanted`, as its first page tells, goes on with that;
    /// returns the last part, and unlocks the others.
    fn halve_while<'a>(
        &'a self,
        mut part: LockedFolio<'a>,
        goes_on: impl Fn(&LockedFolio<'_>) -> bool,
        is_wanted: impl Fn(PageIndex) -> bool,
    ) -> LockedFolio<'a> {
        while goes_on(&part)
            && let Some(upper) = self.halve_folio(&part)
        {
            let other = match is_wanted(upper.index()) {
                true => std::mem::replace(&mut part, upper),
                false => upper,
            };
            self.keep_content(other);
        }
        part
    }

    /// Splits a locked folio, where that can be, until its grains are pages; returns the part that has byte `pos` of the
    /// file, which is uptodate, and unlocks the others. Later stores there are written back page by page.
    ///
    /// Context: as [`AddressSpace::split_folio`].
    #[cold]
    pub(crate) fn split_to_pages<'a>(
        &'a self,
        locked: LockedFolio<'a>,
        pos: u64,
    ) -> LockedFolio<'a> {
        let coarse = |part: &LockedFolio<'_>| {
            part.order() > grains::FINE_ORDER && part.may(Operation::Split)
        };
        match self.bdi().is_memory() {
            true => locked,
            false => self.halve_while(locked, coarse, |upper| pos >= upper.pos()),
        }
    }

    /// Takes a locked folio out of the index if nothing in it is the file's.
    pub(crate) fn keep_content<'a>(&'a self, locked: LockedFolio<'a>) -> Option<LockedFolio<'a>> {
        if locked.uptodate_grains() != 0 {
            return Some(locked);
        }
        self.remove_folio(locked);
        None
    }

    /// Makes a locked folio its lower half, and returns a new one that is the upper half, locked. Not one of huge
    /// frames, nor one that is viewed or pinned.
    fn halve_folio<'a>(&'a self, lower: &LockedFolio<'a>) -> Option<LockedFolio<'a>> {
        let mm: &Mm = self.mm();
        let (order, frame) = (lower.order(), lower.frame());
        let huge = mm.frames.is_huge() && mm.frames.is_linear(frame);
        if huge || lower.hold_counts().is_held() {
            return None;
        }
        debug_assert!(lower.may(Operation::Split), "the device reads it");
        let folio = mm.folios.alloc(&mm.frames)?;
        let half = 1_u32 << (order - 1);
        let needed = foliocache_xarray::nodes_to_halve(order);
        let Ok(mut nodes) = mm.nodes.preload(needed) else {
            mm.folios.free(folio);
            return None;
        };
        // No use without the lock takes the mark from one half and not from the other.
        let marked = Self::take_mark(lower);
        // Ascending index: the lower half is locked already.
        let upper = folio.lock(&mm.waits);
        let index = lower.index().add(half.into());
        let identity = Identity::new(index, order - 1, frame.add(half));
        upper.attach(self.key(), identity);
        mm.frames.set_owner(identity.frame, mm.folios.id(folio));
        let uptodate = grains::halves(lower.uptodate_grains(), order);
        let dirty = grains::halves(lower.dirty_grains(), order);
        let written = lower.written();
        let in_upper = |byte: usize| byte.saturating_sub(half as usize * PAGE_SIZE);
        upper.set_uptodate_grains(uptodate[1]);
        if !foliocache_sync::planted!(half_not_dirty) {
            upper.set_dirty(dirty[1], &(in_upper(written.start)..in_upper(written.end)));
        }
        let entry = mm.folios.entry(folio);
        split_in_index(&self.index, lower, &upper, entry, &mut nodes);
        if self.bdi().is_memory() {
            lower.state.halve();
        } else {
            let shrink = || lower.state.halve();
            mm.lru
                .lock()
                .split(&mm.folios, lower, folio, marked, shrink);
        }
        lower.set_uptodate_grains(uptodate[0]);
        lower.set_dirty(dirty[0], &written);
        for (part, uptodate, dirty) in [
            (lower, uptodate[0], dirty[0]),
            (&upper, uptodate[1], dirty[1]),
        ] {
            if uptodate == grains::all(order - 1) {
                part.state.set(flag::UPTODATE);
            }
            if dirty == 0 && part.state.load().has(flag::DIRTY) {
                self.clear_dirty(part);
            }
            if marked {
                part.state.set(flag::DROPBEHIND);
            }
        }
        Some(upper)
    }
}

/// Gives the upper half of a locked folio's place in the index to `upper`, which is locked and has
/// its place already, with the flags of `lower`. `entry` is that of `upper`.
pub(crate) fn split_in_index(
    index: &XArray,
    lower: &LockedFolio<'_>,
    upper: &LockedFolio<'_>,
    entry: Entry,
    nodes: &mut Preload<'_>,
) {
    let mut xa = index.lock();
    // Under `xa_lock`, where a flush clears UNSTABLE: flag and mark must not differ.
    upper.state.set(lower.state.load().content());
    xa.halve(lower.index().0, entry, nodes);
}
