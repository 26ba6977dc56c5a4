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
//! The bound is charged for pages, from when a page gets memory until the system has that back: so what objects
//! leave free in pages that others keep is charged, too. Objects that are evicted together should lie together:
//! pages are taken in the order of their addresses, and eviction goes round them in that order
//! ([`Slab::next_page`]). What the bound refuses may be had without a charge, where the caller cannot do without.
//!
//! # Invariants
//!
//! 1. A page that is not free belongs to one shard for good; its header changes under that shard's lock.
//! 2. A page is in one of its shard's rings exactly if it has a free slot: in that of pages that are charged, or in the
//!    other.
//! 3. Each page that is not free holds a reference of the pool, so that the pool outlives the objects.
//!
//! # Locking
//!
//! *Protects*: a shard's lock its ring and the headers of its pages; the supply's lock the lists of free
//! pages. *Order*: rank `Leaf`, one at a time. *May block*: while the bound makes room for a page, without a lock;
//! pages are had from the system, and given back, without one, too.
//!
//! # Differences from Linux
//!
//! `kmem_cache` has a list for each node and a page for each processor. A page here is one page, whatever
//! the size of an object: pages must come free again, and the fewer objects share one the sooner it does.
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
#[cfg(not(shuttle))]
mod supply;

pub(crate) use shared::SlabRetired;
pub use shared::{SharedSlab, SlabArc, SlabWeak};

use crate::bound::MetadataBound;
use foliocache_sync::Arc;
#[cfg(not(any(loom, shuttle)))]
use foliocache_sync::rcu::RcuReadGuard;
use std::alloc::Layout;
use std::marker::PhantomData;
#[cfg(not(any(loom, shuttle)))]
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ops::DerefMut;
use std::ptr::NonNull;

#[cfg(not(any(loom, shuttle)))]
use page::Pool;

/// One object in so many of a page is few.
#[cfg(not(any(loom, shuttle)))]
const FEW: usize = 4;

/// Memory for objects of type `T`, of at most 64 bytes of alignment and a third of a page.
#[doc(alias = "kmem_cache")]
pub(crate) struct Slab<T> {
    #[cfg(not(any(loom, shuttle)))]
    pool: Arc<Pool>,
    #[cfg(any(loom, shuttle))]
    bound: Arc<dyn MetadataBound>,
    _objects: PhantomData<fn(T) -> T>,
}

/// Memory for an object that is not made yet.
pub(crate) struct Slot<T> {
    #[cfg(not(any(loom, shuttle)))]
    memory: NonNull<T>,
    _object: PhantomData<T>,
}

impl<T> Slab<T> {
    /// A slab without memory, whose pages are charged to `bound`.
    pub(crate) fn new(bound: Arc<dyn MetadataBound>) -> Self {
        Self::with_space(bound, 0)
    }

    fn with_space(bound: Arc<dyn MetadataBound>, _before: usize) -> Self {
        Self {
            #[cfg(not(any(loom, shuttle)))]
            pool: Pool::new::<T>(bound, _before),
            #[cfg(any(loom, shuttle))]
            bound,
            _objects: PhantomData,
        }
    }

    /// Memory for an object; `None` if the bound refuses it. Takes a lock of the thread's shard, and once in a page
    /// a second one and maybe a page from the system; as any allocator it ends the process when there is none.
    ///
    /// Context: that of [`MetadataBound::charge`].
    pub(crate) fn reserve(&self) -> Option<Slot<T>> {
        #[cfg(not(any(loom, shuttle)))]
        return self.pool.take().map(Slot::new);
        // A model looks at each allocation. A bound may refuse them all.
        #[cfg(any(loom, shuttle))]
        self.bound.charge(0).then_some(Slot {
            _object: PhantomData,
        })
    }

    /// As [`Slab::reserve`], whatever the bound says. Does not sleep.
    pub(crate) fn reserve_uncharged(&self) -> Slot<T> {
        Slot {
            #[cfg(not(any(loom, shuttle)))]
            memory: self.pool.take_uncharged().cast(),
            _object: PhantomData,
        }
    }

    /// Whether the bound has hardly any room.
    fn is_short(&self) -> bool {
        #[cfg(not(any(loom, shuttle)))]
        return self.pool.is_short();
        #[cfg(any(loom, shuttle))]
        self.bound.is_short()
    }

    /// Bytes that are charged. One load.
    pub(crate) fn bytes(&self) -> u64 {
        #[cfg(not(any(loom, shuttle)))]
        return self.pool.bytes();
        #[cfg(any(loom, shuttle))]
        0
    }

    /// Objects whose memory is not charged. Some locks.
    pub(crate) fn uncharged(&self) -> u64 {
        #[cfg(not(any(loom, shuttle)))]
        return self.pool.uncharged();
        #[cfg(any(loom, shuttle))]
        0
    }

    /// Objects that there is charged room for. Some locks.
    pub(crate) fn spare(&self) -> u64 {
        #[cfg(not(any(loom, shuttle)))]
        return self.pool.spare();
        #[cfg(any(loom, shuttle))]
        0
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<T> Slab<T> {
    /// Objects that a page has room for.
    pub(crate) fn per_page(&self) -> usize {
        self.pool.slots()
    }

    /// Pages that [`Slab::next_page`] visits before it comes to the first again.
    pub(crate) fn round(&self) -> usize {
        self.pool.round()
    }

    /// The published objects of the page that the slab's hand comes to, which moves on. Several threads may move it.
    pub(crate) fn next_page<'g>(
        &'g self,
        _rcu: &'g RcuReadGuard,
    ) -> Option<impl Iterator<Item = &'g T>> {
        let objects = self.pool.next_page()?;
        // SAFETY: a published object lives until a grace period after it was hidden: the contract of `publish`.
        Some(objects.map(|object| unsafe { object.cast().as_ref() }))
    }
}

/// The objects of a page that are to be evicted: those that nobody holds and that were not used since they were passed
/// the last time. Where few others would keep a page that is full they are evicted, too: they come back to a page of
/// what is used.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn cold<'g, T>(
    page: impl Iterator<Item = &'g T>,
    is_held: impl Fn(&T) -> bool,
    take_referenced: impl Fn(&T) -> bool,
    per_page: usize,
) -> Vec<&'g T> {
    let (mut cold, mut used, mut held) = (Vec::new(), Vec::new(), 0);
    for object in page {
        let referenced = take_referenced(object);
        match is_held(object) {
            true => held += 1,
            false if referenced => used.push(object),
            false => cold.push(object),
        }
    }
    let is_full = (cold.len() + used.len()) * 2 > per_page;
    if held == 0 && is_full && used.len() * FEW <= per_page {
        cold.append(&mut used);
    }
    cold
}

/// Has scans of its slab visit an object.
///
/// # Safety
///
/// It is in a slab. It is [hidden](hide) before it is freed, and freed a grace period later.
pub(crate) unsafe fn publish<T>(_object: &T) {
    #[cfg(not(any(loom, shuttle)))]
    // SAFETY: the caller's contract.
    unsafe {
        Pool::publish(NonNull::from(_object).cast());
    }
}

/// Has scans of its slab pass over an object.
///
/// # Safety
///
/// It is in a slab.
pub(crate) unsafe fn hide<T>(_object: &T) {
    #[cfg(not(any(loom, shuttle)))]
    // SAFETY: the caller's contract.
    unsafe {
        Pool::hide(NonNull::from(_object).cast());
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<T> Slot<T> {
    fn new(memory: NonNull<u8>) -> Self {
        Self {
            memory: memory.cast(),
            _object: PhantomData,
        }
    }
}

impl<T> Slot<T> {
    /// The memory, with `before` bytes before it.
    fn into_memory(self, _before: usize) -> NonNull<T> {
        #[cfg(not(any(loom, shuttle)))]
        return ManuallyDrop::new(self).memory;
        #[cfg(any(loom, shuttle))]
        {
            let layout = allocation(Layout::new::<T>(), _before);
            // SAFETY: nothing in it has no size.
            let memory = NonNull::new(unsafe { std::alloc::alloc(layout) }).expect("memory");
            let _ = memory.as_ptr().expose_provenance();
            // SAFETY: within the allocation.
            unsafe { memory.byte_add(_before) }.cast()
        }
    }

    /// Makes the object.
    pub(crate) fn fill(self, value: T) -> SlabBox<T> {
        let object = self.into_memory(0);
        // SAFETY: a free slot, of the size and alignment of a `T`, and nobody else's.
        unsafe { object.write(value) };
        SlabBox(object)
    }
}

/// Frees the memory of an object of this layout.
///
/// # Safety
///
/// It comes from [`Slot::into_memory`] with the same space before it, and nobody uses it any more.
unsafe fn free(object: NonNull<u8>, _layout: Layout, _before: usize) {
    #[cfg(not(any(loom, shuttle)))]
    // SAFETY: it is in a slot, which is free now.
    unsafe {
        Pool::put(object);
    }
    #[cfg(any(loom, shuttle))]
    {
        let memory = std::ptr::with_exposed_provenance_mut(object.addr().get() - _before);
        // SAFETY: allocated so.
        unsafe { std::alloc::dealloc(memory, allocation(_layout, _before)) };
    }
}

/// What a model allocates for an object.
#[cfg(any(loom, shuttle))]
fn allocation(object: Layout, before: usize) -> Layout {
    let layout = Layout::from_size_align(object.size() + before, 128);
    layout.expect("an object has a layout")
}

#[cfg(not(any(loom, shuttle)))]
impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        // SAFETY: the slot has no object.
        unsafe { Pool::put(self.memory.cast()) };
    }
}

// SAFETY: it owns memory, and no object.
unsafe impl<T> Send for Slot<T> {}

#[cfg(not(any(loom, shuttle)))]
impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        self.pool.close();
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
        // SAFETY: it is owned, and not touched again.
        unsafe { self.0.drop_in_place() };
        // SAFETY: from `Slot::fill`.
        unsafe { free(self.0.cast(), Layout::new::<T>(), 0) };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
