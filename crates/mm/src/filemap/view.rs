//! Taking views ([`View`]) of cached bytes.
//!
//! # Locking
//!
//! The folio lock to take one, tried first.

use foliocache_sync::Arc;
use foliocache_sync::atomic::Ordering;
use foliocache_sys::Errno;
use std::ptr::NonNull;

use crate::counters::bump;
use crate::fill::{FolioUse, Reader};
use crate::folio::{Hold, LockedFolio, flag};
use crate::frames::BLOCK_SIZE;
use crate::iocb::Iocb;
use crate::iov::IovIter;
use crate::readahead::ReadaheadState;
use crate::records::{AddressSpace, Mm};
use crate::types::{PAGE_SIZE, PageIndex, offset_in_page, pages_for};
use crate::uncached::UncachedRead;
use crate::views::{Bytes, HeapCopy, View};

impl AddressSpace {
    /// Bytes from `iocb.pos` on, `len` of them or as many as lie in one folio and in the file, without copying them if
    /// that is possible; none at the end of the file. `iocb.pos` moves past them.
    ///
    /// Where they are in the cache it neither blocks nor allocates. Else as [`AddressSpace::read`], and so with
    /// `iocb.nowait`. Counts as a read by `handle`.
    ///
    /// # Errors
    /// As [`AddressSpace::read`].
    #[doc(alias = "zero-copy")]
    #[inline]
    pub fn view(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        len: usize,
    ) -> Result<View, Errno> {
        // No folio is larger.
        let len = len.min(BLOCK_SIZE);
        if !iocb.uncached
            && let Some(view) = self.view_hit(handle, iocb, len, 1)
        {
            iocb.pos += view.len() as u64;
            return Ok(view);
        }
        match self.view_in_place(handle, iocb, len)? {
            Ok(view) => Ok(view),
            Err(len) => self.view_copy(handle, iocb, len),
        }
    }

    /// A view of bytes that are in the cache, at least `least` of them. Does not block.
    pub(super) fn view_hit(
        &self,
        handle: &ReadaheadState,
        iocb: &Iocb,
        len: usize,
        least: usize,
    ) -> Option<View> {
        let pos = iocb.pos;
        self.mm().check_fork().ok()?;
        let (locked, seen, identity) = self.try_lock_seen(PageIndex::of(pos))?;
        if seen.has(flag::DROPBEHIND) || identity.bytes() - identity.offset(pos) < least {
            return None;
        }
        let view = self.view_locked(&locked, pos, len).ok()?;
        if seen.is_in_use() {
            drop(locked);
            self.count_use(FolioUse::Again, pos, view.len());
        } else {
            self.note_view(handle, iocb, locked, view.len(), false);
        }
        Some(view)
    }

    /// A view of bytes of a locked folio that holds byte `pos`, `len` of them or as many as it has. Else, of how many
    /// there should be a copy.
    #[inline]
    fn view_locked(&self, locked: &LockedFolio<'_>, pos: u64, len: usize) -> Result<View, usize> {
        let mm: &Mm = self.mm();
        let (start, readable) = self.readable(locked, pos);
        // Under the lock, so that it is no later than that of a truncate which has yet to come here.
        let len = self.left(pos, len.min(readable));
        // Relaxed: a thread that relies on it sets it before it takes the folio's lock.
        let refused = self.refuses_views.load(Ordering::Relaxed)
            || mm.frames.is_linear(locked.frame())
            || locked.hold_counts().is_pinned();
        if refused || len == 0 {
            return Err(len);
        }
        let before = locked.add_hold(Hold::VIEW).ok_or(len)?;
        if !before.is_viewed() && !mm.count_viewed(locked) {
            locked.drop_hold(Hold::VIEW);
            return Err(len);
        }
        let start = NonNull::new(start.cast_mut()).expect("frames are somewhere");
        // As the count in it may be given back by.
        let home = NonNull::new(Arc::as_ptr(&mm.views).cast_mut()).expect("it is somewhere");
        Ok(View(Bytes::Viewed {
            start,
            len,
            folio: NonNull::from(locked.folio()),
            home,
        }))
    }

    /// Notes and counts the view as a read of the same bytes, where the folio is not known to be in use.
    #[cold]
    fn note_view(
        &self,
        handle: &ReadaheadState,
        iocb: &Iocb,
        locked: LockedFolio<'_>,
        len: usize,
        missed: bool,
    ) {
        let (pos, seen) = (iocb.pos, locked.state.load());
        let bytes = pos..pos + len as u64;
        let fetched = (missed, iocb.fetched);
        let (kind, first_use) = FolioUse::mark(handle, &locked, &bytes, fetched);
        let order = locked.order();
        if !iocb.uncached {
            self.keep_used(&locked, seen);
        }
        drop(locked);
        self.count_use(kind, pos, len);
        handle.note_read(bytes);
        if first_use {
            self.used_readahead(handle, PageIndex::of(pos), order, iocb.uncached);
        }
    }

    /// As [`AddressSpace::view`], but for copies: of how many bytes there should be one.
    #[cold]
    pub(super) fn view_in_place(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        len: usize,
    ) -> Result<Result<View, usize>, Errno> {
        self.mm().check_fork()?;
        let pos = iocb.pos;
        let left = self.left(pos, len);
        if left == 0 {
            return Ok(Ok(View::empty()));
        }
        let uncached = iocb
            .uncached
            .then(|| UncachedRead::begin(handle, pos, left));
        let page = PageIndex::of(pos);
        let (locked, behind) = match (self.bdi().is_memory(), iocb.nowait) {
            (true, _) => (self.lock_folio(page), None),
            (_, true) => (Some(self.try_lock_folio(page).ok_or(Errno::EAGAIN)?), None),
            _ => {
                let asked = page..PageIndex(pages_for(pos + left as u64));
                let (locked, behind) = self.read_folio(handle, asked, Reader::of(iocb))?;
                (Some(locked), behind)
            }
        };
        let missed = behind.is_some();
        let taken = match locked {
            Some(locked) if self.has_grain_at(&locked, pos) => {
                let taken = self.view_locked(&locked, pos, left);
                if let Ok(view) = &taken {
                    self.note_view(handle, iocb, locked, view.len(), missed);
                }
                taken
            }
            locked => {
                // The copy takes the lock again: in memory, of a folio that has a hole there.
                drop(locked);
                if iocb.nowait && !self.bdi().is_memory() {
                    return Err(Errno::EAGAIN);
                }
                Err(left.min(PAGE_SIZE - offset_in_page(pos)))
            }
        };
        self.follow_miss(iocb, behind);
        if let Ok(view) = &taken {
            iocb.pos += view.len() as u64;
            if let Some(uncached) = uncached {
                // The folio that it brought in is the view's alone from now on.
                self.note_uncached_copy(&uncached, pos..iocb.pos, view.len() == left);
            }
        }
        Ok(taken)
    }

    #[cold]
    fn view_copy(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        len: usize,
    ) -> Result<View, Errno> {
        bump(&self.mm().events.copied_views, 1);
        let (pos, mut bytes) = (iocb.pos, vec![0; len]);
        let read = self.read(handle, iocb, &mut IovIter::destination(&mut bytes));
        bytes.truncate(read.inspect_err(|_| iocb.pos = pos)?);
        Ok(View::copied(HeapCopy::new(bytes.into(), None)))
    }
}

impl Mm {
    /// Counts the pages of a folio that is viewed from now on, within the share and the budget.
    fn count_viewed(&self, locked: &LockedFolio<'_>) -> bool {
        let (frame, pages) = (locked.frame(), locked.nr_pages());
        // Relaxed: the sum of the changes counts.
        self.views.pages.fetch_add(pages, Ordering::Relaxed);
        let fits = !self.frames.fix(frame) || self.spares_units(0);
        let now = self.unreclaimable();
        let within = fits
            && now.viewed_pages <= now.most_viewed_pages
            && now.total_pages() <= now.most_pages;
        if !within {
            self.frames.unfix(frame);
            self.views.pages.fetch_sub(pages, Ordering::Relaxed);
        }
        within
    }
}
