//! [`Slab`]: memory for many objects of one kind, side by side.
//!
//! # Model
//!
//! A walk over names that are not in the processor's caches waits for memory at each step. The data that it reads
//! for consecutive files should be adjacent: one page then serves some twenty dentries, needs one TLB entry, and
//! suits the hardware prefetcher. A general allocator puts objects side by side in the order of allocation, of
//! whatever kind.
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
//! The bound is charged for pages, from when a page gets memory until it is returned to the system: free slots in
//! pages that other objects keep are charged too. Objects that are evicted together should be adjacent: pages are
//! taken in the order of their addresses, and eviction goes round them in that order ([`Slab::shrink`]). A caller
//! that cannot do without gets an object that the bound refused, without a charge.
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
//! *Protects*: a shard's lock its ring and the headers of its pages; the supply's lock the lists of free pages.
//! *Order*: rank `Leaf`, one at a time. *May block*: while the bound makes room for a page; this happens without a
//! lock, as does taking pages from the system and returning them.
//!
//! # Differences from Linux
//!
//! `kmem_cache` has a list for each node and a page for each processor. A page here is one page, whatever
//! the size of an object: pages must come free again, and the fewer objects share one the sooner it does.
//!
//! # Safety
//!
//! A slot is free or an object's. Free slots and headers are accessed under their shard's lock alone (invariants 1
//! and 2), objects by their owners. After unlocking a shard, a thread accesses no part of the pool: another may
//! have freed the last object meanwhile, and with it the pool. (That the mutex does not access itself after its
//! release either is what `std` does on Linux; each `Arc<Mutex>` relies on as much.) A forked child that drops an
//! object may wait for ever for a thread of its parent, as for any other lock.
#![allow(unsafe_code)]

#[cfg(any(loom, shuttle))]
pub(crate) mod model;
#[cfg(not(shuttle))]
#[cfg_attr(loom, expect(dead_code, reason = "the model has no scans"))]
mod page;
mod shared;
#[cfg(not(shuttle))]
#[cfg_attr(loom, expect(dead_code, reason = "as above"))]
mod supply;

pub(crate) use shared::SlabRetired;
pub use shared::{SharedSlab, SlabArc, SlabWeak};

use crate::bound::MetadataBound;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::rcu;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

// A model looks at each allocation: its objects lie in no pages.
#[cfg(any(loom, shuttle))]
use model::Pool;
#[cfg(not(any(loom, shuttle)))]
use page::Pool;

/// The key that orders and hashes objects of a slab: the address. In a shuttle model a number, since addresses
/// differ from process to process.
#[inline(always)]
pub(crate) fn place<T>(object: *const T) -> usize {
    #[cfg(shuttle)]
    return model::number_of(object.addr());
    #[cfg(not(shuttle))]
    object.addr()
}

/// Few means fewer than one in this many of a page's objects.
const FEW: usize = 4;
/// Pages to pass for each that is to be emptied: marks are cleared first.
const EACH: usize = 8;
/// The part of these that is passed while there is nothing to evict.
const LESS: usize = 64;

/// Memory for objects of type `T`, of at most 64 bytes of alignment and a third of a page.
#[doc(alias = "kmem_cache")]
pub(crate) struct Slab<T> {
    pub(crate) pool: Arc<Pool>,
    /// Pages that the hand has passed, and those since something was evicted.
    pub(crate) passed: AtomicUsize,
    in_vain: AtomicUsize,
    _objects: PhantomData<fn(T) -> T>,
}

/// Memory for an object that is not made yet.
pub(crate) struct Slot<T>(NonNull<T>);

impl<T> Slab<T> {
    /// A slab without memory, whose pages are charged to `bound`.
    pub(crate) fn new(bound: Arc<dyn MetadataBound>) -> Self {
        Self::with_space(bound, 0)
    }

    fn with_space(bound: Arc<dyn MetadataBound>, before: usize) -> Self {
        Self {
            pool: Pool::new::<T>(bound, before),
            passed: AtomicUsize::new(0),
            in_vain: AtomicUsize::new(0),
            _objects: PhantomData,
        }
    }

    /// Memory for an object; `None` if the bound refuses it. Takes a lock of the thread's shard, and once in a page
    /// a second one and maybe a page from the system; as any allocator it ends the process when there is none.
    ///
    /// Context: that of [`MetadataBound::charge`].
    pub(crate) fn reserve(&self) -> Option<Slot<T>> {
        self.pool.take().map(|memory| Slot(memory.cast()))
    }

    /// As [`Slab::reserve`], whatever the bound says. Does not sleep.
    pub(crate) fn reserve_uncharged(&self) -> Slot<T> {
        Slot(self.pool.take_uncharged().cast())
    }

    /// Moves the hand over the pages and has `evict` evict [cold](cold) objects, until about `nr` are evicted;
    /// returns how many were. Several threads may move it.
    ///
    /// It passes at most [`EACH`] times the pages that so many objects take, and two rounds: an object gets a
    /// second chance in the first one only. With `tires`, once two rounds found nothing, a call that would pass
    /// less than two rounds passes a [`LESS`]th of that until something is found again: everything is in use. So an
    /// allocation that the bound refuses costs a bounded number of steps.
    ///
    /// Context: no read section; the functions are called in one.
    pub(crate) fn shrink(
        &self,
        nr: usize,
        tires: bool,
        is_held: impl Fn(&T) -> bool,
        take_referenced: impl Fn(&T) -> bool,
        mut evict: impl FnMut(&T) -> bool,
    ) -> usize {
        let (slots, most) = (self.pool.slots(), self.pool.round() * 2);
        let pages = nr.div_ceil(slots).saturating_mul(EACH).min(most);
        // Relaxed, here and below: a hint.
        let pages = match tires && pages < most && self.in_vain.load(Ordering::Relaxed) >= most {
            true => pages / LESS,
            false => pages,
        };
        let (mut passed, mut evicted) = (0, 0);
        while passed < pages.max(1) && evicted < nr {
            let _rcu = rcu::read_lock();
            let Some(page) = self.pool.next_page() else {
                break;
            };
            // SAFETY: a published object lives until a grace period after it was hidden: the contract of `publish`.
            let page = page.map(|object| unsafe { object.cast::<T>().as_ref() });
            let cold = cold(page, &is_held, &take_referenced, slots);
            evicted += cold.into_iter().filter(|object| evict(object)).count();
            passed += 1;
        }
        self.passed.fetch_add(passed, Ordering::Relaxed);
        match evicted {
            0 => _ = self.in_vain.fetch_add(passed, Ordering::Relaxed),
            _ => self.in_vain.store(0, Ordering::Relaxed),
        }
        evicted
    }
}

/// The objects of a page to be evicted: those without holders that were not used since the last pass. If few others
/// would keep a full page, these are evicted too: they return to a page of objects in use.
fn cold<'g, T>(
    page: impl Iterator<Item = &'g T>,
    is_held: impl Fn(&T) -> bool,
    take_referenced: impl Fn(&T) -> bool,
    slots: usize,
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
    let is_full = (cold.len() + used.len()) * 2 > slots;
    if held == 0 && is_full && used.len() * FEW <= slots {
        cold.append(&mut used);
    }
    cold
}

/// Has scans of its slab visit an object.
///
/// # Safety
///
/// It is in a slab. It is [hidden](hide) before it is freed, and freed a grace period later.
pub(crate) unsafe fn publish<T>(object: &T) {
    // SAFETY: the caller's contract.
    unsafe { Pool::publish(NonNull::from(object).cast()) };
}

/// Has scans of its slab pass over an object.
///
/// # Safety
///
/// It is in a slab.
pub(crate) unsafe fn hide<T>(object: &T) {
    // SAFETY: the caller's contract.
    unsafe { Pool::hide(NonNull::from(object).cast()) };
}

impl<T> Slot<T> {
    fn into_memory(self) -> NonNull<T> {
        ManuallyDrop::new(self).0
    }

    /// Makes the object.
    pub(crate) fn fill(self, value: T) -> SlabBox<T> {
        let object = self.into_memory();
        // SAFETY: a free slot, of the size and alignment of a `T`, and private to this function.
        unsafe { object.write(value) };
        SlabBox(object)
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        // SAFETY: the slot has no object.
        unsafe { Pool::put(self.0.cast()) };
    }
}

// SAFETY: it owns memory, and no object.
unsafe impl<T> Send for Slot<T> {}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        self.pool.close();
    }
}

/// An object of a [`Slab`], owned. It may outlive the slab.
pub(crate) struct SlabBox<T>(NonNull<T>);

// SAFETY: it owns a `T`.
unsafe impl<T: Send> Send for SlabBox<T> {}
// SAFETY: a shared one only gives out `&T`.
unsafe impl<T: Sync> Sync for SlabBox<T> {}

impl<T> SlabBox<T> {
    /// Gives up the ownership.
    pub(crate) fn into_raw(self) -> NonNull<T> {
        ManuallyDrop::new(self).0
    }

    /// Takes an object over.
    ///
    /// # Safety
    ///
    /// It comes from [`SlabBox::into_raw`], and is freed nowhere else.
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

impl<T> Drop for SlabBox<T> {
    fn drop(&mut self) {
        // SAFETY: it is owned, and not touched again.
        unsafe { self.0.drop_in_place() };
        // SAFETY: its slot is free now.
        unsafe { Pool::put(self.0.cast()) };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
