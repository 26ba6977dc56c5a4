//! [`SlabArc`]: an object of a slab that is shared.
//!
//! # Memory ordering
//!
//! As of any count of references: to take one more needs no order (`Relaxed`). Each decrement is a
//! `Release`, and whoever makes the last one puts an `Acquire` fence behind it: what others did to the
//! object comes before its end.
//!
//! # Safety
//!
//! Each `SlabArc` stands for one of the count; who takes it to zero owns the object.
#![allow(unsafe_code)]

use super::{Slab, SlabBox};
use foliocache_sync::atomic::{AtomicUsize, Ordering, fence};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

/// Nobody has so many references, unless they are lost in a loop.
const MAX_REFERENCES: usize = isize::MAX as usize;

/// Before the object, on a line of its own if the object begins on one.
#[repr(C)]
struct Counted<T> {
    references: AtomicUsize,
    value: T,
}

/// Memory for shared objects of at most 64 bytes of alignment and 900 bytes, side by side in pages of their
/// own. A larger `T` does not compile.
#[derive(Debug, Default)]
pub struct SharedSlab<T>(Slab<Counted<T>>);

impl<T> SharedSlab<T> {
    /// A slab without memory.
    pub fn new() -> Self {
        Self(Slab::new())
    }

    /// Allocates an object. Takes a lock of the thread's shard, and now and then a page from the system; as
    /// any allocator it ends the process when there is no memory. The object may outlive the slab.
    pub fn alloc(&self, value: T) -> SlabArc<T> {
        let object = self.0.alloc(Counted {
            references: AtomicUsize::new(1),
            value,
        });
        SlabArc(object.into_raw())
    }
}

/// A shared object of a [`SharedSlab`]: an [`Arc`](foliocache_sync::Arc) without weak references.
pub struct SlabArc<T>(NonNull<Counted<T>>);

// SAFETY: as of an `Arc`: it shares a `T`, and whoever is last drops it.
unsafe impl<T: Send + Sync> Send for SlabArc<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for SlabArc<T> {}

impl<T> SlabArc<T> {
    #[inline(always)]
    fn counted(&self) -> &Counted<T> {
        // SAFETY: it is there as long as this reference is.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Clone for SlabArc<T> {
    fn clone(&self) -> Self {
        // Relaxed: see the module's header.
        let before = self.counted().references.fetch_add(1, Ordering::Relaxed);
        if before > MAX_REFERENCES {
            std::process::abort();
        }
        Self(self.0)
    }
}

impl<T> Deref for SlabArc<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.counted().value
    }
}

impl<T> Drop for SlabArc<T> {
    fn drop(&mut self) {
        if self.counted().references.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: it was the last one, and the object came out of `into_raw`.
            drop(unsafe { SlabBox::from_raw(self.0) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for SlabArc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
