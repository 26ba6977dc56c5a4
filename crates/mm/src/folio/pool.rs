//! Type-stable memory for folio descriptors.
//!
//! # Model
//!
//! Descriptors live in one reserved range, 64 bytes each, and are named by their position in it
//! (a [`FolioId`]). The range comes into use chunk by chunk, each charged to the memory bound, and
//! no chunk goes back while the pool lives: that is what makes a stale pointer harmless. From 2 MiB on
//! the pool grows by huge pages, where the bound has room for one (decision 44).
//!
//! # Invariants
//!
//! 1. Every descriptor below `nr_ready` is initialised and stays so until the pool is dropped. The first
//!    `active` bytes of the range are charged, readable and writable.
//! 2. A free descriptor is on the free list, is unlocked or about to be, and belongs to no mapping.
//!
//! # Locking
//!
//! *Protects*: the free list, `active` and the links of free descriptors, which so are Relaxed. *Order*: after the
//! LRU lock, before the frame allocator. *May block*: only for the system call that brings a chunk into use.
//!
//! # Memory ordering
//!
//! The number or address of a descriptor comes from the free list under its lock, from the index, or from the frame
//! space's numbers of owners. Each of them orders the initialisation before the use.
//!
//! # Safety
//!
//! The only unsafe here turns positions into references; invariant 1 is its premise.
#![allow(unsafe_code)]

use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sys::Errno;
use foliocache_sys::memory::ReservedRange;

use super::Folio;
use crate::frames::Frames;

/// Bytes brought into use at a time.
const CHUNK: usize = 64 << 10;

/// The same once there are as many.
const HUGE_CHUNK: usize = 2 << 20;

const PER_CHUNK: u32 = (CHUNK / size_of::<Folio>()) as u32;

/// The position of a descriptor in the pool; 0 is no descriptor.
pub(crate) type FolioId = u32;

#[derive(Debug)]
pub(crate) struct FolioPool {
    range: ReservedRange,
    /// Bytes brought into use so far (invariant 1).
    active: AtomicUsize,
    max: u32,
    list: RankedMutex<{ Rank::FolioPool as u8 }, FreeList>,
}

#[derive(Debug, Default)]
struct FreeList {
    first: FolioId,
    /// Descriptors initialised so far, number 0 included though it is never handed out.
    nr_ready: u32,
}

impl FolioPool {
    /// Reserves address space for `max` descriptors; uses no memory yet.
    pub(crate) fn new(max: u64) -> Result<Self, Errno> {
        let max = u32::try_from(max + 1).map_err(|_| Errno::ENOMEM)?;
        let chunks = (max as usize).div_ceil(PER_CHUNK as usize);
        Ok(Self {
            range: ReservedRange::reserve(chunks * CHUNK)?,
            active: AtomicUsize::new(0),
            max: chunks as u32 * PER_CHUNK,
            list: RankedMutex::new(FreeList::default()),
        })
    }

    /// A descriptor that belongs to nobody, or `None` when the bound leaves no room for more.
    ///
    /// May make a system call; charges the bound for a chunk now and then.
    pub(crate) fn alloc(&self, frames: &Frames) -> Option<&Folio> {
        let mut list = self.list.lock();
        if list.first == 0 && !self.grow(&mut list, frames) {
            return None;
        }
        let folio = self.get(list.first);
        list.first = folio.lru_next.load(Ordering::Relaxed);
        Some(folio)
    }

    /// Bytes brought into use so far, which stay in use.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: a figure.
        self.active.load(Ordering::Relaxed) as u64
    }

    /// Takes back a descriptor that left the index and whose lock was released.
    pub(crate) fn free(&self, folio: &Folio) {
        let mut list = self.list.lock();
        folio.lru_next.store(list.first, Ordering::Relaxed);
        list.first = self.id(folio);
    }

    fn grow(&self, list: &mut FreeList, frames: &Frames) -> bool {
        let first = list.nr_ready;
        let start = first as usize * size_of::<Folio>();
        let active = self.active.load(Ordering::Relaxed);
        if first >= self.max || (start == active && !self.activate(start, frames)) {
            return false;
        }
        list.nr_ready = first + PER_CHUNK;
        for id in (first..list.nr_ready).rev() {
            let folio = Folio::default();
            folio.lru_next.store(list.first, Ordering::Relaxed);
            // SAFETY: the slot lies in the active part of the range, is aligned as the range is, and
            // nobody else has it yet.
            unsafe { self.slot(id).write(folio) };
            if id > 0 {
                list.first = id;
            }
        }
        true
    }

    /// Brings the range from `start` on into use: a huge page of it, if there is room for one, or a chunk.
    ///
    /// Context: the free list's lock.
    fn activate(&self, start: usize, frames: &Frames) -> bool {
        let huge = start > 0
            && start.is_multiple_of(HUGE_CHUNK)
            && start + HUGE_CHUNK <= self.max as usize * size_of::<Folio>();
        let sizes = [(HUGE_CHUNK, true), (CHUNK, false)];
        for (bytes, huge) in sizes.into_iter().skip(usize::from(!huge)) {
            if !frames.charge_metadata(bytes as u64) {
                continue;
            }
            match self.range.activate(start..start + bytes, huge) {
                Ok(()) => {
                    self.active.store(start + bytes, Ordering::Relaxed);
                    return true;
                }
                Err(error) => {
                    tracing::warn!(%error, "no memory for folio descriptors");
                    frames.uncharge_metadata(bytes as u64);
                }
            }
        }
        false
    }

    /// All descriptors, whoever has them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Folio> {
        let nr_ready = self.list.lock().nr_ready;
        (1..nr_ready).map(|id| self.get(id))
    }

    pub(crate) fn slot(&self, id: FolioId) -> *mut Folio {
        let first: *mut Folio = self.range.as_ptr().cast();
        first.wrapping_add(id as usize)
    }

    /// The descriptor with this number, which was handed out before.
    pub(crate) fn get(&self, id: FolioId) -> &Folio {
        // SAFETY: invariant 1: numbers come from `id` or `grow`, so the descriptor is
        // initialised and lives as long as the pool.
        unsafe { &*self.slot(id) }
    }

    pub(crate) fn id(&self, folio: &Folio) -> FolioId {
        let offset = std::ptr::from_ref(folio).addr() - self.range.as_ptr().addr();
        (offset / size_of::<Folio>()) as u32
    }

    /// The descriptor an index entry points to.
    #[inline]
    pub(crate) fn of_entry(&self, entry: foliocache_xarray::Entry) -> &Folio {
        // SAFETY: entries are made by `entry` alone, from a descriptor of this pool, and
        // invariant 1 keeps it alive and initialised.
        unsafe { entry.as_ptr::<Folio>().as_ref() }
    }

    pub(crate) fn entry(&self, folio: &Folio) -> foliocache_xarray::Entry {
        foliocache_xarray::Entry::from_ptr(std::ptr::NonNull::from(folio))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const PER_HUGE_CHUNK: u32 = (HUGE_CHUNK / size_of::<Folio>()) as u32;

    #[test]
    fn a_large_pool_grows_by_huge_pages_where_there_is_room() {
        let frames = Frames::new(64 << 20).unwrap();
        let pool = FolioPool::new(u64::from(4 * PER_HUGE_CHUNK)).unwrap();
        let mut last = 0;
        let mut take = |n: u32| {
            for _ in 0..n {
                let id = pool.id(pool.alloc(&frames).unwrap());
                assert_eq!(id, last + 1, "each is handed out once");
                last = id;
            }
            pool.bytes() as usize
        };
        assert_eq!(take(1), CHUNK);
        assert_eq!(take(PER_HUGE_CHUNK - 2), HUGE_CHUNK);
        let charged = frames.usage().metadata_bytes;
        assert_eq!(take(1), 2 * HUGE_CHUNK);
        assert_eq!(frames.usage().metadata_bytes, charged + HUGE_CHUNK as u64);
        assert_eq!(take(PER_HUGE_CHUNK - 1), 2 * HUGE_CHUNK);

        let mut charged = 0;
        while frames.charge_metadata(CHUNK as u64) {
            charged += CHUNK as u64;
        }
        assert!(pool.alloc(&frames).is_none());
        frames.uncharge_metadata(CHUNK as u64);
        assert_eq!(take(1), 2 * HUGE_CHUNK + CHUNK, "room for no more");
        frames.uncharge_metadata(charged - CHUNK as u64);
        assert_eq!(take(PER_HUGE_CHUNK - 1), 3 * HUGE_CHUNK);
        assert_eq!(take(1), 4 * HUGE_CHUNK);
    }
}
