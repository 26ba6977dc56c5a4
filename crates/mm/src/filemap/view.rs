//! Views: bytes of a file where they lie in the cache, owned by the reader and frozen.
//!
//! # Model
//!
//! ```text
//!   view ─▶ a folio in general frames, locked for a moment ─▶ its count of views, one more
//!             │ linear frames, a hole of a memory file, a pinned folio, which can be neither frozen nor
//!             │ replaced, the budget or the count used up, bytes that are about to be zeroed
//!             ▼
//!           a copy in the heap ([`copies`](super::copies)), of an exact view charged to the bound
//! ```
//!
//! Whoever would change the bytes of a viewed folio replaces it first ([`super::replace`]). One that leaves the index
//! while it is viewed is an orphan ([`holds`](crate::folio)): the last view's drop frees it.
//!
//! # Invariants
//!
//! 1. The frames of a folio with views are stored to only where no view has bytes: in grains that were not uptodate,
//!    and beyond the size of the file.
//! 2. [`ViewHome`] counts each viewed folio's pages once, and lives until it counts none and its [`Mm`] is gone.
//! 3. The bytes of a view have one address from when it is taken until it is dropped.
//!
//! # Locking
//!
//! The folio lock to take one, tried first. None to drop one, but those of the frames and of the pool for an orphan.
//!
//! # Memory ordering
//!
//! [`ViewHome::pages`] goes down with `AcqRel`, so that whoever frees the home comes after everybody who used it. It
//! goes up Relaxed, under the lock of a folio whose cache is there.
//!
//! # Safety
//!
//! Bytes of a view are those of frames that its folio keeps: invariant 1, and 1 to 3 of `folio/holds.rs`. What it points
//! to is there as long as its home, which its count keeps.
#![allow(unsafe_code)]

use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::rcu;
use foliocache_sys::Errno;
use foliocache_sys::fork::ForkGuard;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use super::copies::{Copies, HeapCopy};
use super::reader::Reader;
use super::uncached::UncachedRead;
use super::uses::FolioUse;
use crate::address_space::AddressSpace;
use crate::folio::{Folio, FolioPool, Hold, LockedFolio, flag};
use crate::frames::{BLOCK_SIZE, Frames};
use crate::iocb::Iocb;
use crate::iov::IovIter;
use crate::mm::Mm;
use crate::readahead::ReadaheadState;
use crate::stats::bump;
use crate::types::{PAGE_SIZE, PageIndex, offset_in_page};

/// Bytes of a file, frozen when the view was taken: nothing that happens to the file changes them.
///
/// It dereferences to a slice, and may be sent and kept anywhere, even after the file and the cache are gone. Until it is dropped
/// it keeps the memory of its whole folio, up to 2 MiB, within the cache's bound, unless it is a copy ([`View::is_copy`]). In a
/// forked child its bytes are not there, and dropping it does nothing.
///
/// # The address
///
/// The bytes keep their address until the view is dropped, also when the `View` moves: it points to them. So a structure may
/// own a view and pointers into it. With the feature `stable_deref` it is a `StableDeref`, for crates like `yoke`.
pub struct View(Bytes);

enum Bytes {
    Viewed {
        start: NonNull<u8>,
        len: usize,
        folio: NonNull<Folio>,
        home: NonNull<ViewHome>,
    },
    Copied(HeapCopy),
}

// SAFETY: what it points to is shared by atomics, and its bytes are only read.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    pub(super) fn copied(copy: HeapCopy) -> Self {
        Self(Bytes::Copied(copy))
    }

    /// A view of nothing.
    pub(super) fn empty() -> Self {
        Self::copied(HeapCopy::uncharged(Box::default()))
    }

    /// Whether the bytes are a copy in the heap. A view is a copy if the file was mapped, the folio is pinned, the share of the
    /// bound for views is used up ([`Unreclaimable`](crate::Unreclaimable)), or too few blocks could still be emptied. An exact view
    /// is one also if its range does not lie in one folio, and its bytes count in the bound. Those of other copies do not. An
    /// empty view is a copy.
    #[doc(alias = "is_copied")]
    pub fn is_copy(&self) -> bool {
        matches!(self.0, Bytes::Copied(_))
    }
}

// SAFETY: the bytes are those of frames, or of a box, to which the view points; neither moves with it (invariant 3).
#[cfg(feature = "stable_deref")]
unsafe impl stable_deref_trait::StableDeref for View {}

impl Deref for View {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: the module's premise; `len` bytes from `start` on are the folio's.
            Bytes::Viewed { start, len, .. } => unsafe {
                std::slice::from_raw_parts(start.as_ptr(), *len)
            },
            Bytes::Copied(copy) => copy.bytes(),
        }
    }
}

impl AsRef<[u8]> for View {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("len", &self.len())
            .field("is_copy", &self.is_copy())
            .finish()
    }
}

impl Drop for View {
    #[inline]
    fn drop(&mut self) {
        if let Bytes::Viewed { folio, home, .. } = self.0 {
            // SAFETY: the view counts in its home, which is there until `leave` at the earliest.
            let in_child = unsafe { home.as_ref() }.fork.is_child();
            if !in_child {
                ViewHome::leave(home, folio);
            }
        }
    }
}

/// What views need of their cache, also when that is gone.
#[derive(Debug)]
pub(crate) struct ViewHome {
    /// Pages of viewed folios, and [`LIVE`] as long as the [`Mm`] is.
    pages: AtomicU64,
    fork: ForkGuard,
    frames: Arc<Frames>,
    folios: Arc<FolioPool>,
    /// Of the views that are charged copies.
    pub(super) copies: Arc<Copies>,
}

const LIVE: u64 = 1 << 63;

impl ViewHome {
    pub(crate) fn new(frames: &Arc<Frames>, folios: &Arc<FolioPool>) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self {
            pages: AtomicU64::new(LIVE),
            fork: ForkGuard::new()?,
            frames: Arc::clone(frames),
            folios: Arc::clone(folios),
            copies: Copies::new(frames)?,
        }))
    }

    /// Pages of folios that have views, orphans included.
    pub(crate) fn pages(&self) -> u64 {
        // Relaxed: it steers.
        self.pages.load(Ordering::Relaxed) & !LIVE
    }

    /// Bytes of views that are charged copies, with what they are charged besides.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copies.bytes()
    }

    /// Drops a view of `folio`.
    #[inline]
    fn leave(home: NonNull<Self>, folio: NonNull<Folio>) {
        // SAFETY: the view that is dropped counts until the steps below.
        let this = unsafe { home.as_ref() };
        // SAFETY: as above.
        let folio = unsafe { folio.as_ref() };
        // Before the drop, after which the folio may be split or be another.
        let (frame, order) = (folio.frame(), folio.order());
        let left = folio.drop_hold(Hold::VIEW);
        if left.is_viewed() {
            return;
        }
        this.frames.unfix(frame);
        if left.is_left_orphan() {
            folio.end_orphan();
            this.frames.free(frame, order);
            this.folios.free(folio);
        }
        // AcqRel: partners are the other views' drops and `end`.
        if this.pages.fetch_sub(1 << order, Ordering::AcqRel) == 1 << order {
            // SAFETY: the cache is gone and left this count; nobody is left who uses the home.
            drop(unsafe { Arc::from_raw(home.as_ptr()) });
        }
    }

    /// The end of the cache. Its memory stays as long as there are views; returns their pages.
    pub(crate) fn end(self: &Arc<Self>) -> u64 {
        let count = Arc::into_raw(Arc::clone(self));
        // AcqRel: partner is the subtraction in `leave`.
        let left = self.pages.fetch_and(!LIVE, Ordering::AcqRel) & !LIVE;
        if left == 0 {
            // SAFETY: there is no view, so nobody else gives the count back that was taken above.
            drop(unsafe { Arc::from_raw(count) });
        }
        left
    }
}

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
        self: &Arc<Self>,
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
        self.view_on(handle, iocb, len)
    }

    /// A view of bytes that are in the cache, at least `least` of them. Does not block.
    pub(super) fn view_hit(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        iocb: &Iocb,
        len: usize,
        least: usize,
    ) -> Option<View> {
        let (mm, pos): (&Mm, _) = (self.mm(), iocb.pos);
        mm.check_fork().ok()?;
        let folio = {
            let rcu = rcu::read_lock();
            mm.folios
                .of_entry(self.index.load(PageIndex::of(pos).0, &rcu)?)
        };
        let (locked, seen) = folio.try_lock_seen(&mm.waits)?;
        let identity = locked.identity_at(seen);
        let here = locked.mapping() == self.key() && identity.covers(PageIndex::of(pos));
        if !here || seen.has(flag::DROPBEHIND) || identity.bytes() - identity.offset(pos) < least {
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
        // Relaxed: it is set before the folio's lock is taken by whoever relies on it.
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

    /// Notes and counts what a read of the same bytes would, where the folio is not known to be in use.
    #[cold]
    fn note_view(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        iocb: &Iocb,
        locked: LockedFolio<'_>,
        len: usize,
        missed: bool,
    ) {
        let (pos, seen) = (iocb.pos, locked.state.load());
        let bytes = pos..pos + len as u64;
        let mut kind = match missed {
            true => FolioUse::Fetched,
            false => FolioUse::of(handle, seen, &locked.range(), &bytes, iocb.fetched),
        };
        let first_use = kind.mark(&locked, seen);
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

    #[cold]
    fn view_on(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        len: usize,
    ) -> Result<View, Errno> {
        match self.view_in_place(handle, iocb, len)? {
            Ok(view) => Ok(view),
            Err(len) => self.view_copy(handle, iocb, len),
        }
    }

    /// As [`AddressSpace::view`], but for copies: of how many bytes there should be one.
    #[cold]
    pub(super) fn view_in_place(
        self: &Arc<Self>,
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
        let (page, last) = (PageIndex::of(pos), PageIndex::of(pos + left as u64 - 1));
        let (locked, behind) = match (self.bdi().is_memory(), iocb.nowait) {
            (true, _) => (self.lock_folio(page), None),
            (_, true) => (Some(self.try_lock_folio(page).ok_or(Errno::EAGAIN)?), None),
            _ => {
                let (locked, behind) = self.read_folio(handle, page, last, Reader::of(iocb))?;
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
        if let Some(behind) = behind {
            self.follow_miss(iocb, behind);
        }
        if let Ok(view) = &taken {
            iocb.pos += view.len() as u64;
            if let Some(uncached) = uncached {
                // What it brought in is the view's alone from now on.
                self.note_uncached_copy(&uncached, pos..iocb.pos, view.len() == left);
            }
        }
        Ok(taken)
    }

    fn view_copy(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        len: usize,
    ) -> Result<View, Errno> {
        bump(&self.mm().copied_views, 1);
        let (pos, mut bytes) = (iocb.pos, vec![0; len]);
        let read = self.read(handle, iocb, &mut IovIter::destination(&mut bytes));
        bytes.truncate(read.inspect_err(|_| iocb.pos = pos)?);
        Ok(View::copied(HeapCopy::uncharged(bytes.into())))
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
