//! [`Slab`]: memory for many objects of one kind, side by side.
//!
//! # Model
//!
//! A walk over names that are not in the processor's caches waits for memory at each step. What it reads of
//! one file after the other should be close together, and nothing else in between: one page then serves
//! some twenty dentries, the processor's table of pages has them all, and it sees what comes next. A general
//! allocator lays out side by side what was allocated one after the other, whatever it is.
//!
//! ```text
//!  page    header │ slot │ slot │ slot │ …        4 KiB
//!  shard   the pages that have a free slot, in a ring; a thread allocates from its own
//!  supply  pages that are free: a few warm ones, and ones without memory
//! ```
//!
//! An object goes back to the page that it came from, whichever thread frees it. A page whose last object
//! went goes back to the supply, unless it is the only one in its ring. Before a shard takes a new page it
//! looks for free slots in the rings of others.
//!
//! Who allocates charges each object to the bound. What is free in pages is not charged: hardly anything
//! while objects come as fast as they go, and after many of them went as much as 20 times what is left. Nor
//! are sixteen free pages that keep their memory.
//!
//! # Invariants
//!
//! 1. A page that is not free belongs to one shard for good; its header changes under that shard's lock.
//! 2. A page is in its shard's ring exactly if it has a free slot.
//! 3. Each page that is not free holds a reference of the pool, so that the pool outlives the objects.
//!
//! # Locking
//!
//! *Protects*: a shard's lock its ring and the headers of its pages; the supply's lock the lists of free
//! pages. *Order*: rank `Leaf`, one at a time. *May block*: no; pages are had from the system, and given
//! back, without a lock.
//!
//! # Differences from Linux
//!
//! `kmem_cache` has a list for each node and a page for each processor. A page here is one page, whatever
//! the size of an object: pages must come free again, and names are evicted in no order that pages know.
//!
//! # Safety
//!
//! A slot is free or an object's. Free slots and headers are touched under their shard's lock alone
//! (invariants 1 and 2), objects by their owners. Whoever unlocks a shard touches nothing of the pool
//! afterwards: another may have freed the last object meanwhile, and with it the pool. (That the mutex does
//! not touch itself after its release either is what `std` does on Linux; each `Arc<Mutex>` relies on as
//! much.) A forked child that drops an object may wait for ever for a thread of its parent, as for any
//! other lock.
#![allow(unsafe_code)]

#[cfg(loom)]
pub mod model;
#[cfg(not(shuttle))]
mod page;
mod shared;

pub use shared::{SharedSlab, SlabArc};

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

#[cfg(not(any(loom, shuttle)))]
use page::Pool;

/// Memory for objects of type `T`, of at most 64 bytes of alignment and much less than a page each.
#[doc(alias = "kmem_cache")]
pub(crate) struct Slab<T> {
    #[cfg(not(any(loom, shuttle)))]
    pool: foliocache_sync::Arc<Pool>,
    _objects: PhantomData<fn(T) -> T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slab<T> {
    /// A slab without memory.
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(not(any(loom, shuttle)))]
            pool: Pool::new::<T>(),
            _objects: PhantomData,
        }
    }

    /// Allocates an object. Takes a lock of the thread's shard, and once in a page a second one and maybe a
    /// page from the system; as any allocator it ends the process when there is no memory.
    pub(crate) fn alloc(&self, value: T) -> SlabBox<T> {
        #[cfg(not(any(loom, shuttle)))]
        let object = {
            let object: NonNull<T> = self.pool.take().cast();
            // SAFETY: a free slot, of the size and alignment of a `T`, and nobody else's.
            unsafe { object.write(value) };
            object
        };
        // A model looks at each allocation.
        #[cfg(any(loom, shuttle))]
        let object = NonNull::from(Box::leak(Box::new(value)));
        SlabBox(object)
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        self.pool.close();
    }
}

impl<T> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").finish_non_exhaustive()
    }
}

/// An object of a [`Slab`], owned; outlives the slab, if need be.
pub(crate) struct SlabBox<T>(NonNull<T>);

// SAFETY: it owns a `T`.
unsafe impl<T: Send> Send for SlabBox<T> {}
// SAFETY: through a shared one only a `&T` is had.
unsafe impl<T: Sync> Sync for SlabBox<T> {}

impl<T> SlabBox<T> {
    /// Gives up the ownership.
    pub(crate) fn into_raw(self) -> NonNull<T> {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Takes an object over.
    ///
    /// # Safety
    ///
    /// It comes from [`SlabBox::into_raw`], and nobody else frees it.
    pub(crate) unsafe fn from_raw(object: NonNull<T>) -> Self {
        Self(object)
    }
}

impl<T> Deref for SlabBox<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: it is owned.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for SlabBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: it is owned, and borrowed alone.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for SlabBox<T> {
    fn drop(&mut self) {
        #[cfg(not(any(loom, shuttle)))]
        {
            // SAFETY: it is owned, and not touched again.
            unsafe { self.0.drop_in_place() };
            // SAFETY: it is in a slot, which is free now.
            unsafe { Pool::put(self.0.cast()) };
        }
        #[cfg(any(loom, shuttle))]
        // SAFETY: it is owned, and was made so.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T: fmt::Debug> fmt::Debug for SlabBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
