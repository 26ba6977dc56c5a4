//! From a locked folio to the address space that holds it, and from a borrow to a reference.
//!
//! # Model
//!
//! Reclaim meets folios, not files. Once it takes a folio out of the index nothing else would keep the address
//! space, whose last owner may be dropping it, so a count in it does.
//!
//! # Safety
//!
//! Invariant 1 of `AddressSpace`: a folio whose `mapping` is set is in that address space's index,
//! and the address space is not freed before the folio is removed, which takes the folio's lock,
//! nor before its count of holders is zero. `AddressSpace::in_slot` alone makes address spaces, in the slab of their cache, and
//! hands out none but shared references, so a borrow is one of an object with counts.
//!
//! # Memory ordering
//!
//! The count goes down with Release as the last access; the partner is the Acquire in
//! [`wait_for_holders`], after which the memory may be freed, and that in `rely_on_pages`. It goes up Relaxed, before the removal of
//! the folio under `xa_lock`. A search without the lock may find the index empty and yet see the count
//! of before, so [`wait_for_holders`] takes `xa_lock` once: it comes after every removal, and sees
//! every count.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::NonNull;

use foliocache_sync::atomic::{AtomicU32, Ordering};
use foliocache_sync::thread;
use foliocache_xarray::XArray;

use crate::folio::LockedFolio;
use crate::records::AddressSpace;
use crate::slab::SlabArc;

/// Keeps the address space of a folio while the folio is taken out of it.
pub(crate) struct MappingHold(NonNull<AddressSpace>);

/// Takes hold of the address space of a folio that is in its index. Panics if the folio belongs to none.
pub(crate) fn hold(locked: &LockedFolio<'_>) -> MappingHold {
    let address = std::ptr::with_exposed_provenance_mut(locked.mapping());
    let mapping: NonNull<AddressSpace> =
        NonNull::new(address).expect("a free folio has no address space");
    // SAFETY: the module's premise; the folio lock is held.
    count_up(unsafe { &mapping.as_ref().holders });
    MappingHold(mapping)
}

/// Looks at the address space of a folio that is in its index, as long as its lock is held. Panics if the folio belongs to none.
pub(crate) fn with<R>(locked: &LockedFolio<'_>, look: impl FnOnce(&AddressSpace) -> R) -> R {
    let address = std::ptr::with_exposed_provenance::<AddressSpace>(locked.mapping());
    // SAFETY: the module's premise; the folio lock is held until this returns.
    let mapping = unsafe { address.as_ref() };
    look(mapping.expect("a free folio has no address space"))
}

/// One holder more. Context: lock held of a folio that is in the index.
pub(crate) fn count_up(holders: &AtomicU32) {
    // Relaxed: see the module.
    holders.fetch_add(1, Ordering::Relaxed);
}

/// One holder less, as the last access to the address space.
pub(crate) fn count_down(holders: &AtomicU32) {
    // Release: see the module.
    holders.fetch_sub(1, Ordering::Release);
}

/// Waits until nobody holds the address space whose index and count these are. No folio is in the
/// index, and none is put there.
pub(crate) fn wait_for_holders(index: &XArray, holders: &AtomicU32) {
    drop(index.lock());
    while holders.load(Ordering::Acquire) != 0 {
        thread::yield_now();
    }
}

impl AddressSpace {
    /// One more reference of the address space.
    ///
    /// # Panics
    /// If it has none any more: it is being dropped.
    pub fn share(&self) -> SlabArc<Self> {
        // SAFETY: the module's premise; what was borrowed from keeps the memory.
        let shared = unsafe { SlabArc::try_from_borrow(self) };
        shared.expect("an address space in use has a reference")
    }
}

impl Deref for MappingHold {
    type Target = AddressSpace;

    fn deref(&self) -> &AddressSpace {
        // SAFETY: the count keeps it (the module's premise).
        unsafe { self.0.as_ref() }
    }
}

impl Drop for MappingHold {
    fn drop(&mut self) {
        let holders: *const AtomicU32 = &raw const self.holders;
        // SAFETY: the count itself is still held. It is the last access, through a pointer so
        // that no reference outlives the memory.
        count_down(unsafe { &*holders });
    }
}
