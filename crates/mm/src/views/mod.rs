//! Views: bytes of a file where they lie in the cache, owned by the reader and frozen.
//!
//! # Model
//!
//! ```text
//!   view ─▶ a folio in general frames, locked for a moment ─▶ its count of views, one more
//!             │ linear frames, a hole of a memory file, a pinned folio, which can be neither frozen nor
//!             │ replaced, the budget or the count used up, bytes that are about to be zeroed
//!             ▼
//!           a copy in the heap ([`copies`]), of an exact view charged to the bound
//! ```
//!
//! Before the bytes of a viewed folio change, the folio is replaced (`replace.rs`). One that leaves the index
//! while it is viewed is an orphan ([`holds`](crate::folio)): the last view's drop frees it.
//!
//! # Invariants
//!
//! 1. The frames of a folio with views are stored to only where no view has bytes: in grains that were not uptodate,
//!    and beyond the size of the file.
//! 2. [`ViewHome`] counts each viewed folio's pages once, and lives until it counts none and its cache is gone.
//! 3. The bytes of a view have one address from when it is taken until it is dropped.
//!
//! # Locking
//!
//! The folio lock to take one, tried first. None to drop one, but those of the frames and of the pool for an orphan.
//!
//! # Memory ordering
//!
//! [`ViewHome::pages`] goes down with `AcqRel`, so that the thread that frees the home comes after all its users. It
//! goes up Relaxed, under the lock of a folio whose cache is there.
//!
//! # Safety
//!
//! Bytes of a view are those of frames that its folio keeps: invariant 1, and 1 to 3 of `folio/holds.rs`. The folio and
//! the home exist as long as the view counts in its home.
#![allow(unsafe_code)]

use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sys::Errno;
use foliocache_sys::fork::ForkGuard;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

mod copies;
mod raw_view;

pub(crate) use copies::{Copies, CopyInMaking, HeapCopy, OVERHEAD};
pub use raw_view::RawView;

use crate::folio::{Folio, FolioPool, Hold};
use crate::frames::Frames;

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
pub struct View(pub(crate) Bytes);

pub(crate) enum Bytes {
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
    pub(crate) fn copied(copy: HeapCopy) -> Self {
        Self(Bytes::Copied(copy))
    }

    /// A view of nothing.
    pub(crate) fn empty() -> Self {
        Self::copied(HeapCopy::new(Box::default(), None))
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

/// The parts of a cache that its views need, also after the cache is dropped.
#[derive(Debug)]
pub(crate) struct ViewHome {
    /// Pages of viewed folios, and [`LIVE`] as long as the cache is.
    pub(crate) pages: AtomicU64,
    fork: ForkGuard,
    frames: Arc<Frames>,
    folios: Arc<FolioPool>,
    /// Of the views that are charged copies.
    pub(crate) copies: Arc<Copies>,
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
            // SAFETY: the cache is gone and left this count; the home has no user left.
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
