//! Copies of bytes of a file that views own: where they lie, and their charge to the bound.
//!
//! # Model
//!
//! ```text
//!   exact view ─▶ the share of copies, a quarter of the bound ─▶ metadata, piece by piece ─▶ memory of the heap
//!                   │ used up: ENOBUFS                             │ nothing can be reclaimed: ENOMEM
//! ```
//!
//! # Invariants
//!
//! 1. A charged copy of n bytes counts in [`Copies::bytes`] and as metadata with n + [`OVERHEAD`] bytes, from before its memory is
//!    allocated until after it is freed, or until its cache is gone.
//! 2. The bytes of a [`HeapCopy`] do not move, and nobody writes to them.
//!
//! # Locking
//!
//! None is held. *May block*: a charge, as a handle that is opened.
//!
//! # Memory ordering
//!
//! [`Copies::bytes`] is Relaxed: its sum counts, and no memory is published by it.
//!
//! # Safety
//!
//! The memory of a [`HeapCopy`] is that of a boxed slice, which the copy alone owns: invariant 2.
#![allow(unsafe_code)]

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::{Arc, Weak};
use foliocache_sys::Errno;
use foliocache_sys::fork::ForkGuard;
use std::ptr::NonNull;

use crate::frames::Frames;

/// Bytes that a copy is charged besides its own: the allocator's, about.
pub(crate) const OVERHEAD: u64 = 64;

/// The charge of all copies of a cache. It outlives the cache.
#[derive(Debug)]
pub(crate) struct Copies {
    /// Invariant 1.
    bytes: AtomicU64,
    fork: ForkGuard,
    /// The copies do not keep the memory of their cache.
    frames: Weak<Frames>,
}

impl Copies {
    pub(crate) fn new(frames: &Arc<Frames>) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self {
            bytes: AtomicU64::new(0),
            fork: ForkGuard::new()?,
            frames: Arc::downgrade(frames),
        }))
    }

    /// Bytes of the copies, with what they are charged besides.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: a figure.
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes `bytes` of a share of `most`.
    pub(crate) fn enter(&self, bytes: u64, most: u64) -> bool {
        // Relaxed: see the module's header.
        self.bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                now.checked_add(bytes).filter(|&sum| sum <= most)
            })
            .is_ok()
    }

    /// Gives the share back, and the part of it that was charged.
    fn leave(&self, bytes: u64, charged: u64) {
        if self.fork.is_child() {
            // Locks of the frames may be held for ever.
            return;
        }
        // Relaxed: see the module's header.
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(frames) = self.frames.upgrade() {
            frames.uncharge_metadata(charged);
        }
    }
}

/// Bytes in the heap that are not written to any more.
pub(crate) struct HeapCopy {
    bytes: NonNull<[u8]>,
    /// Where they are charged, if they are.
    charged: Option<Arc<Copies>>,
}

// SAFETY: invariant 2: they are only read.
unsafe impl Send for HeapCopy {}
// SAFETY: as above.
unsafe impl Sync for HeapCopy {}

impl HeapCopy {
    /// A copy that counts in the bound of `charged`, or in none.
    pub(crate) fn new(bytes: Box<[u8]>, charged: Option<Arc<Copies>>) -> Self {
        let bytes = NonNull::from(Box::leak(bytes));
        Self { bytes, charged }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: invariant 2.
        unsafe { self.bytes.as_ref() }
    }
}

impl Drop for HeapCopy {
    fn drop(&mut self) {
        // SAFETY: they came of a box, in `new`, and nobody else frees them.
        drop(unsafe { Box::from_raw(self.bytes.as_ptr()) });
        if let Some(copies) = &self.charged {
            let charged = self.bytes.len() as u64 + OVERHEAD;
            copies.leave(charged, charged);
        }
    }
}

/// A copy that is being made.
pub(crate) struct CopyInMaking<'a> {
    pub(crate) copies: &'a Arc<Copies>,
    pub(crate) wanted: u64,
    pub(crate) charged: u64,
}

impl CopyInMaking<'_> {
    /// The copy is whole: `bytes`, as many as were charged for.
    pub(crate) fn end(self, bytes: Box<[u8]>) -> HeapCopy {
        debug_assert!(self.charged == self.wanted && self.wanted == bytes.len() as u64 + OVERHEAD);
        let copy = HeapCopy::new(bytes, Some(Arc::clone(self.copies)));
        // The copy gives the charge back.
        std::mem::forget(self);
        copy
    }
}

impl Drop for CopyInMaking<'_> {
    fn drop(&mut self) {
        self.copies.leave(self.wanted, self.charged);
    }
}
