//! Type-stable memory for folio descriptors.
//!
//! # Model
//!
//! Descriptors live in one reserved range, 64 bytes each, and are named by their position in it
//! (a [`FolioId`]). The range comes into use chunk by chunk, each charged to the memory bound, and
//! no chunk goes back while the pool lives: that is what makes a stale pointer harmless.
//!
//! # Invariants
//!
//! 1. Every descriptor below `nr_ready` is initialised and stays so until the pool is dropped.
//! 2. A free descriptor is on the free list, is unlocked or about to be, and belongs to no mapping.
//!
//! # Locking
//!
//! *Protects*: the free list. *Order*: after the LRU lock, before the frame allocator. *May block*: only for the
//! system call that brings a chunk into use.
//!
//! # Memory ordering
//!
//! `nr_ready` and the links of free descriptors change under the list's lock: Relaxed. Whoever gets a
//! descriptor's number or address sees it initialised by how it got it: the list's lock, the index, or
//! the frame space's numbers of owners.
//!
//! # Safety
//!
//! The only unsafe here turns positions into references; invariant 1 is its premise.
#![allow(unsafe_code)]

use foliocache_sync::atomic::{AtomicU32, Ordering};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sys::Errno;
use foliocache_sys::memory::ReservedRange;

use super::Folio;
use crate::frames::Frames;

/// Bytes brought into use at a time.
const CHUNK: usize = 64 << 10;

const PER_CHUNK: u32 = (CHUNK / size_of::<Folio>()) as u32;

/// The position of a descriptor in the pool; 0 is no descriptor.
pub(crate) type FolioId = u32;

#[derive(Debug)]
pub(crate) struct FolioPool {
    range: ReservedRange,
    /// Descriptors brought into use so far, number 0 included though it is never handed out.
    nr_ready: AtomicU32,
    max: u32,
    free: RankedMutex<FolioId>,
}

impl FolioPool {
    /// Reserves address space for `max` descriptors; uses no memory yet.
    pub(crate) fn new(max: u64) -> Result<Self, Errno> {
        let max = u32::try_from(max + 1).map_err(|_| Errno::ENOMEM)?;
        let chunks = (max as usize).div_ceil(PER_CHUNK as usize);
        Ok(Self {
            range: ReservedRange::reserve(chunks * CHUNK)?,
            nr_ready: AtomicU32::new(0),
            max: chunks as u32 * PER_CHUNK,
            free: RankedMutex::new(Rank::FolioPool, 0),
        })
    }

    /// A descriptor that belongs to nobody, or `None` when the bound leaves no room for more.
    ///
    /// May make a system call; charges the bound for a chunk now and then.
    pub(crate) fn alloc(&self, frames: &Frames) -> Option<&Folio> {
        let mut free = self.free.lock();
        if *free == 0 && !self.grow(&mut free, frames) {
            return None;
        }
        let folio = self.get(*free);
        // Relaxed: `lru_next` of a free descriptor is protected by the list's lock.
        *free = folio.lru_next.load(Ordering::Relaxed);
        Some(folio)
    }

    /// Bytes brought into use so far, which stay in use.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: a figure.
        u64::from(self.nr_ready.load(Ordering::Relaxed)) * size_of::<Folio>() as u64
    }

    /// Takes back a descriptor that left the index and whose lock was released.
    pub(crate) fn free(&self, folio: &Folio) {
        let mut free = self.free.lock();
        // Relaxed: as in `alloc`.
        folio.lru_next.store(*free, Ordering::Relaxed);
        *free = self.id(folio);
    }

    fn grow(&self, free: &mut FolioId, frames: &Frames) -> bool {
        // Relaxed: changed only under the free list's lock, which is held.
        let first = self.nr_ready.load(Ordering::Relaxed);
        if first >= self.max || !frames.charge_metadata(CHUNK as u64) {
            return false;
        }
        let start = first as usize * size_of::<Folio>();
        let start = start.next_multiple_of(CHUNK);
        if let Err(error) = self.range.activate(start..start + CHUNK, false) {
            tracing::warn!(%error, "no memory for folio descriptors");
            frames.uncharge_metadata(CHUNK as u64);
            return false;
        }
        for id in first..first + PER_CHUNK {
            // SAFETY: the slot lies in the part of the range that was just activated, is aligned
            // (the range is, and chunks are multiples of the size), and nobody else has it yet.
            unsafe { self.slot(id).write(Folio::new()) };
        }
        // Relaxed: as above.
        self.nr_ready.store(first + PER_CHUNK, Ordering::Relaxed);
        for id in (first.max(1)..first + PER_CHUNK).rev() {
            // Relaxed: protected by the list's lock.
            self.get(id).lru_next.store(*free, Ordering::Relaxed);
            *free = id;
        }
        true
    }

    fn slot(&self, id: FolioId) -> *mut Folio {
        let chunk = (id / PER_CHUNK) as usize;
        let within = (id % PER_CHUNK) as usize;
        self.range
            .as_ptr()
            .wrapping_add(chunk * CHUNK + within * size_of::<Folio>())
            .cast()
    }

    /// The descriptor with this number, which was handed out before.
    pub(crate) fn get(&self, id: FolioId) -> &Folio {
        // SAFETY: invariant 1: numbers come from `id` or `grow`, so the descriptor is
        // initialised and lives as long as the pool.
        unsafe { &*self.slot(id) }
    }

    pub(crate) fn id(&self, folio: &Folio) -> FolioId {
        let offset = std::ptr::from_ref(folio).addr() - self.range.as_ptr().addr();
        (offset / CHUNK) as u32 * PER_CHUNK + (offset % CHUNK / size_of::<Folio>()) as u32
    }

    /// The descriptor an index entry points to.
    ///
    /// # Panics
    /// If the entry is a value.
    #[inline]
    pub(crate) fn of_entry(&self, entry: foliocache_xarray::Entry) -> &Folio {
        let pointer = entry
            .as_ptr::<Folio>()
            .expect("the index holds folios only");
        // SAFETY: entries are made by `entry` alone, from a descriptor of this pool, and
        // invariant 1 keeps it alive and initialised.
        unsafe { pointer.as_ref() }
    }

    pub(crate) fn entry(&self, folio: &Folio) -> foliocache_xarray::Entry {
        foliocache_xarray::Entry::from_ptr(std::ptr::NonNull::from(folio))
    }
}
