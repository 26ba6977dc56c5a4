//! Replacing a viewed folio, so that its bytes can be changed: the views keep the old frames.
//!
//! # Model
//!
//! ```text
//!   old: locked, viewed              new: frames of its own, reserved before the lock was taken
//!   1  new is locked and gets the place, the bytes and the grains
//!   2  the index: its slots go from old to new, with their marks; new has the flags
//!   3  the queue: new stands where old did
//!   4  old: its version grows, and it is an orphan: the views' alone
//! ```
//!
//! Where no frames in a row are free there are several new folios in its place, smaller ones.
//!
//! # Invariants
//!
//! 1. A page that is in the cache before and after is found in the index at every moment, dirty if it is dirty: a
//!    sync that runs meanwhile looks for its folio without a lock.
//! 2. Old bytes do not change: a lockless reader gets the bytes from before step 4, or reads again.
//!
//! # Locking
//!
//! The folio lock of the old folio, then those of the new; `xa_lock`, the LRU lock and the pools' one after another. A
//! folio under writeback is not replaced: the device reads its frames, which its views may give back meanwhile. A
//! caller that has to replace one waits for `wb_lock`.

use foliocache_sync::atomic::Ordering;
use foliocache_sys::Errno;
use foliocache_xarray::Preload;
use std::ops::Range;

use crate::counters::bump;
use crate::direct_map;
use crate::folio::{Folio, Identity, LockedFolio, Operation, flag, grains};
use crate::frames::FrameNumber;
use crate::prepared::Prepared;
use crate::records::{AddressSpace, Mm};
use crate::types::{PAGE_SIZE, PageIndex};

/// As long as it is there views of the file are copies.
pub(crate) struct RefusedViews<'a>(&'a AddressSpace);

impl Drop for RefusedViews<'_> {
    fn drop(&mut self) {
        // Relaxed: a copy more does no harm.
        self.0.refuses_views.store(false, Ordering::Relaxed);
    }
}

impl AddressSpace {
    /// Replaces a locked folio with what was prepared for its pages; returns the new one that holds `page`, locked.
    ///
    /// Context: the folio is neither under writeback nor pinned.
    ///
    /// # Errors
    /// `ENOMEM` where the prepared memory does not suffice, `EIO` for bad memory. The folio is as it was, and
    /// unlocked.
    pub(crate) fn replace_folio<'a>(
        &'a self,
        old: LockedFolio<'a>,
        page: PageIndex,
        prepared: &mut Prepared<'a>,
    ) -> Result<LockedFolio<'a>, Errno> {
        self.keep_used(&old, old.state.load());
        let Identity { index, order, .. } = old.identity();
        let mut parts = Vec::with_capacity(1);
        let (mut at, end) = (index, old.end());
        while at < end {
            let most = at.0.trailing_zeros().min((end.0 - at.0).ilog2());
            let part = match prepared.take(self, at, most.min(order)) {
                Some((folio, frame, order)) => {
                    let identity = Identity::new(at, order, frame);
                    let taken = self.take_linear(identity, &mut prepared.frames);
                    taken
                        .inspect_err(|_| self.mm().folios.free(folio))
                        .and_then(|()| self.copy_part(&old, folio, identity))
                }
                None => Err(Errno::ENOMEM),
            };
            match part {
                Ok(part) => {
                    at = part.end();
                    parts.push(part);
                }
                Err(error) => {
                    parts.into_iter().for_each(|part| self.drop_part(part));
                    return Err(error);
                }
            }
        }
        bump(&self.mm().events.replaced, 1);
        let frames = self.put_in_place(old, &parts, &mut prepared.nodes);
        self.free_frames(frames);
        let mut found = None;
        for part in parts {
            match part.holds(page) {
                true => found = Some(part),
                // Of a folio that was there in part.
                false => drop(self.keep_content(part)),
            }
        }
        Ok(found.expect("the folio has the page"))
    }

    /// A locked folio that holds `page`, or if it is viewed the one in its place that does. `None`: it was unlocked,
    /// since there was no memory in hand, or it is under writeback; look again.
    ///
    /// Context: blocks for memory and for writeback of the file unless `nowait`, holding nothing but `i_rwsem`.
    ///
    /// # Errors
    /// `ENOMEM` when nothing at all can be reclaimed; `EIO` for bad memory; `EAGAIN` for `nowait`.
    pub(crate) fn without_views<'a>(
        &'a self,
        locked: LockedFolio<'a>,
        page: PageIndex,
        nowait: bool,
        prepared: &mut Option<Prepared<'a>>,
    ) -> Result<Option<LockedFolio<'a>>, Errno> {
        if !locked.hold_counts().is_viewed() || foliocache_sync::planted!(viewed_frame_written) {
            return Ok(Some(locked));
        }
        let pages = locked.index()..locked.end();
        if locked.state.load().has(flag::WRITEBACK) {
            drop(locked);
            if nowait {
                return Err(Errno::EAGAIN);
            }
            *prepared = None;
            drop(self.lock_awaited());
            return Ok(None);
        }
        if let Some(ready) = prepared
            .as_mut()
            .filter(|ready| u64::from(ready.frames.left()) >= locked.nr_pages())
        {
            match self.replace_folio(locked, page, ready) {
                Err(Errno::ENOMEM) => {}
                result => return result.map(Some),
            }
        } else {
            drop(locked);
        }
        // No memory is held over a wait for memory, and none is taken under a folio's lock.
        *prepared = None;
        *prepared = match self.try_prepare_to_replace(&pages) {
            None if nowait => return Err(Errno::EAGAIN),
            None => Some(self.prepare_to_replace(&pages)?),
            ready => ready,
        };
        Ok(None)
    }

    /// Ends views of bytes between `pos` and `end` in a folio that is to be zeroed in part, and refuses new ones
    /// until the guard is dropped.
    ///
    /// Context: `i_rwsem` held exclusive, `wb_lock` and `invalidate_lock` held. Takes folio locks; does not wait for
    /// memory.
    ///
    /// # Errors
    /// The pages that there is no memory for: to be waited for without the locks.
    pub(crate) fn refuse_views(
        &self,
        pos: u64,
        end: u64,
    ) -> Result<RefusedViews<'_>, Range<PageIndex>> {
        // Relaxed: whoever takes a view after us locks the folio after us.
        self.refuses_views.store(true, Ordering::Relaxed);
        let refused = RefusedViews(self);
        for edge in [pos, end - 1] {
            let page = PageIndex::of(edge);
            let mut prepared: Option<Prepared<'_>> = None;
            while let Some(locked) = self.lock_folio(page) {
                let within = locked.index().pos() >= pos && locked.end().pos() <= end;
                if within || !locked.hold_counts().is_viewed() {
                    break;
                }
                let pages = locked.index()..locked.end();
                if let Some(ready) = &mut prepared {
                    if self.replace_folio(locked, page, ready).is_err() {
                        return Err(pages);
                    }
                    break;
                }
                drop(locked);
                prepared = self.try_prepare_to_replace(&pages);
                if prepared.is_none() {
                    return Err(pages);
                }
            }
        }
        Ok(refused)
    }

    /// Makes `folio`, which is free, one with the bytes that a locked one has at the same place; returns it locked.
    fn copy_part<'a>(
        &'a self,
        old: &LockedFolio<'a>,
        folio: &'a Folio,
        identity: Identity,
    ) -> Result<LockedFolio<'a>, Errno> {
        let mm: &Mm = self.mm();
        let part = folio.lock(&mm.waits);
        part.attach(self.key(), identity);
        mm.frames.set_owner(identity.frame, mm.folios.id(folio));
        let start = old.index();
        let skip = (identity.index.0 - start.0) as usize * PAGE_SIZE;
        // The same bytes, in grains of either size.
        let grains_of = |all: u64| {
            grains::ranges(all, old.order()).fold(0, |part, bytes| {
                let within = |byte: usize| byte.saturating_sub(skip).min(identity.bytes());
                part | grains::touched(identity.order, within(bytes.start)..within(bytes.end))
            })
        };
        let uptodate = grains_of(old.uptodate_grains());
        let (written, within) = (old.written(), |byte: usize| byte.saturating_sub(skip));
        let written = within(written.start)..within(written.end);
        part.set_dirty(grains_of(old.dirty_grains()), &written);
        for bytes in grains::ranges(uptodate, identity.order) {
            let (from, to) = (
                self.addr(old, skip + bytes.start),
                self.addr(&part, bytes.start),
            );
            if !direct_map::copy(to, from, bytes.len()) {
                self.drop_part(part);
                return Err(Errno::EIO);
            }
        }
        part.set_uptodate_grains(uptodate);
        Ok(part)
    }

    /// Gives a folio up that never was in the index.
    fn drop_part(&self, part: LockedFolio<'_>) {
        let (mm, (frame, order)) = (self.mm(), part.detach());
        if mm.frames.is_linear(frame) {
            mm.frames.free_linear(frame, order, false);
        }
        let frames = self.retire(part, frame, order);
        self.free_frames(frames);
    }

    /// Steps 2 to 4: puts copies of a locked folio, which together cover it, in its place. Returns its frames where they
    /// are nobody's now.
    fn put_in_place<'a>(
        &'a self,
        old: LockedFolio<'a>,
        parts: &[LockedFolio<'a>],
        nodes: &mut Preload<'_>,
    ) -> Option<(FrameNumber, u32)> {
        debug_assert!(old.may(Operation::Remove), "the device uses it");
        let mm: &Mm = self.mm();
        let old_entry = mm.folios.entry(old.folio());
        let is_dirty = |part: &LockedFolio<'_>| match (part.order(), old.order()) {
            (0, 0) => old.state.load().has(flag::DIRTY),
            (0, order) => {
                let offset = (part.index().0 - old.index().0) as usize * PAGE_SIZE;
                old.dirty_grains() & grains::of(order, offset) != 0
            }
            _ => part.dirty_grains() != 0,
        };
        {
            let mut index = self.index.lock();
            // Under `xa_lock`, where a flush clears UNSTABLE: flag and mark must not differ.
            let content = old.state.load().content() & !flag::UPTODATE;
            for part in parts {
                part.state.set(content);
                let grains = part.uptodate_grains();
                if grains == grains::all(part.order()) {
                    part.state.set(flag::UPTODATE);
                }
                let at = part.index().0;
                while let Some(there) = index.find(at, at, None)
                    && there.order > part.order()
                {
                    index.halve(at, old_entry, nodes);
                }
                index.replace(at, mm.folios.entry(part.folio()));
            }
        }
        if !self.bdi().is_memory() {
            let mut lru = mm.lru.lock();
            lru.replace(&mm.folios, &old, parts.iter().map(|part| part.folio()));
        }
        for part in parts {
            self.note_start(part);
            if part.state.load().has(flag::DIRTY) && !is_dirty(part) {
                self.clear_dirty(part);
            }
        }
        let (frame, order) = old.detach();
        self.retire(old, frame, order)
    }
}
