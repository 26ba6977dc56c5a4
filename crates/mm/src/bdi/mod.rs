//! One file system's share of the cache: dirty accounting, limits and throttling.
//!
//! # Model
//!
//! ```text
//!   pages not durable (dirty + writeback + unstable)
//!   0 ─────────── background ──────── freerun ────────────────── full ─── limit
//!      nobody waits   │ flusher works    │ writers pause, as the  │ writers sleep
//!                     │                  │ law says               │ until there is room
//! ```
//!
//! # Invariants
//!
//! 1. A file with dirty or unstable pages is on its file system's list, which keeps it alive.
//! 2. Failed pages of all file systems together pass their share ([`crate::unreclaimable`]) only by
//!    what was under way: beyond it, or once its own share of the dirty limit is used up, writes to a
//!    file system that has failed pages return its error.
//! 3. Dirty pages of all file systems stay within the budget of what cannot be reclaimed, together
//!    with its classes, but for 16 pages a file system: readers can go on however many stores hang.
//!
//! # Locking
//!
//! *Protects*: the list of dirty files. *Order*: after `xa_lock`; the others are leaves. *May block*:
//! no lock here is held over I/O or sleep.
//!
//! # Memory ordering
//!
//! Counts, limits and estimates are Relaxed: they steer. `dirty_turn`: see `dirty_files.rs`.

mod limits;
mod space;
mod throttle;

use foliocache_sync::Arc;
use foliocache_sync::atomic::Ordering;
use foliocache_sync::rank::LeafMutex;
use foliocache_sys::Errno;
use std::fmt;

use crate::charge::MetadataCharge;
use crate::counters::{Count, bump, read};
use crate::dirty::Groups;
use crate::ops::AddressSpaceOperations;
use crate::records::{AddressSpace, BackingDevInfo};
use crate::slab::{SharedSlab, SlabArc, SlabWeak, Slot};
use crate::types::PAGE_SIZE;

/// Bytes of what a file system makes for the operations of a file, about.
const OPERATIONS: usize = 32;

/// Bytes that the heap takes for an allocation beside its own.
const ALLOCATION: usize = 16;

impl BackingDevInfo {
    /// Bytes that its address spaces are charged: [`MappingCharge::memory_bytes`]
    /// for each [charge](Self::charge_mapping), and what they take to count hits.
    pub fn mapping_bytes(&self) -> u64 {
        read(&self.hit_bytes)
    }

    /// Charges an address space to the bound, and reserves its memory: names that nobody needs give way to it, and it waits for
    /// those that others were asked to give up.
    ///
    /// Context: as [`Mm::charge_used_metadata`](crate::Mm::charge_used_metadata); blocks for [`MetadataCharge::PATIENCE`] at most, and
    /// longer only while others take the room that is made.
    ///
    /// # Errors
    /// `ENOMEM` if the bound has no room even then.
    pub fn charge_mapping(self: &Arc<Self>) -> Result<MappingCharge, Errno> {
        let heap = MappingCharge::heap_bytes() as u64;
        let charge = MetadataCharge::before_names(&self.mm, heap, MetadataCharge::PATIENCE)?;
        let slot = loop {
            if let Some(slot) = self.mm.mapping_slab.0.reserve() {
                break slot;
            }
            // Makes room for a page of the slab, and gives it back for the slab to take. Others may take it first.
            MetadataCharge::before_names(&self.mm, PAGE_SIZE as u64, MetadataCharge::PATIENCE)?;
        };
        bump(&self.hit_bytes, MappingCharge::memory_bytes() as u64);
        Ok(MappingCharge(Box::new(Charged {
            bdi: Arc::clone(self),
            slot: LeafMutex::new(Some(slot)),
            _heap: charge,
        })))
    }

    /// Pages not safely on the medium: dirty, under writeback and unstable together.
    pub fn nr_not_durable(&self) -> u64 {
        self.counts.not_durable()
    }

    /// Steps that are left until all is durable: a write and a flush for each page.
    pub fn steps_left(&self) -> u64 {
        self.counts.not_durable()
            + self.counts.get(Count::Dirty)
            + self.counts.get(Count::Writeback)
    }

    /// Those of them that count in the dirty limits: no writeback makes those fewer that a device may write, or that
    /// are held for I/O.
    pub(crate) fn nr_to_write(&self) -> u64 {
        (self.counts.not_durable()).saturating_sub(read(&self.stay_dirty))
    }

    /// The error that writing to this file system ended with lately; `None` when it works.
    pub fn error(&self) -> Option<Errno> {
        // Relaxed: a report; the pages' own state is ordered by their locks.
        match self.error.load(Ordering::Relaxed) {
            0 => None,
            raw => Some(Errno::from_raw(raw)),
        }
    }

    /// Notes how a write or flush ended. An error stays until no page is failed any more: that
    /// another file can be written takes nothing back.
    pub(crate) fn set_error(&self, error: Option<Errno>) {
        if error.is_none() && self.counts.get(Count::Failed) > 0 {
            return;
        }
        self.note_full(error);
        let raw = error.map_or(0, Errno::raw);
        if self.error.load(Ordering::Relaxed) != raw {
            self.error.store(raw, Ordering::Relaxed);
            self.tell_change(error);
        }
    }

    /// Ends the flusher. What is still dirty stays in the cache and is not written any more, and a
    /// writer that reaches the limit gets an error. Does nothing in a forked child.
    ///
    /// Context: waits for the flusher's I/O.
    pub fn stop(&self) {
        if self.mm.check_fork().is_err() {
            return;
        }
        // Relaxed: only one caller may do it; the thread is told through its lock.
        if !self.stopped.swap(true, Ordering::Relaxed) {
            self.flusher.stop();
        }
    }
}

/// The charge of an address space, until it is dropped, and its memory, until it is made.
///
/// A word, since nodes of files have one each.
pub struct MappingCharge(Box<Charged>);

struct Charged {
    bdi: Arc<BackingDevInfo>,
    slot: LeafMutex<Option<Slot<AddressSpace>>>,
    _heap: MetadataCharge,
}

impl MappingCharge {
    /// Bytes that an address space takes by itself, without its pages: its part of a page of the slab, and what is charged for it
    /// beside that. Memory that it takes later for counting hits it charges itself.
    pub const fn memory_bytes() -> usize {
        PAGE_SIZE / SharedSlab::<AddressSpace>::PER_PAGE + Self::heap_bytes()
    }

    /// Bytes of an address space in the heap: this charge, a place in the table of address spaces, which is half empty at worst,
    /// the groups of its fsyncs, and its operations, some words.
    const fn heap_bytes() -> usize {
        size_of::<Charged>()
            + 2 * size_of::<(u64, SlabWeak<AddressSpace>, u64)>()
            + size_of::<Groups>()
            + OPERATIONS
            + 3 * ALLOCATION
    }

    /// The address space that was charged; as [`AddressSpace::new`].
    pub fn make(&self, ops: Arc<dyn AddressSpaceOperations>, size: u64) -> SlabArc<AddressSpace> {
        let slot = self.0.slot.lock().take();
        AddressSpace::in_slot(slot, &self.0.bdi, ops, size)
    }
}

impl fmt::Debug for MappingCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappingCharge").finish_non_exhaustive()
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        let bytes = MappingCharge::memory_bytes() as u64;
        // Relaxed: a figure.
        self.bdi.hit_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for BackingDevInfo {
    fn drop(&mut self) {
        self.stop();
        if !self.is_memory() {
            // Relaxed: it steers.
            (self.mm.shares.nr_stores).fetch_sub(1, Ordering::Relaxed);
        }
    }
}
