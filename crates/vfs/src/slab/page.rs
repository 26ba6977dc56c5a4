//! The pages of a [`Slab`](super::Slab), and where they are when they are free. See [`super`].
//!
//! # Safety
//!
//! As stated in [`super`].
#![allow(unsafe_code)]

use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::{Arc, CachePadded, shard_count, thread_shard};
use foliocache_sys::memory::{AnonymousRange, PAGE_SIZE};
use std::alloc::Layout;
use std::ptr::{self, NonNull};

/// Pages that are mapped at a time: 1 MiB of address space.
const REGION_PAGES: usize = if cfg!(loom) { 2 } else { 256 };
/// Free pages that keep their memory, for who needs one next.
const MOST_WARM: usize = if cfg!(loom) { 0 } else { 16 };
/// Slots of a page at most.
const MOST_SLOTS: usize = if cfg!(loom) { 2 } else { PAGE_SIZE };
/// Bytes of the header of a page, and the alignment of what follows.
const HEADER: usize = 64;

/// What is at the beginning of a page that is not free.
struct Header {
    home: Home,
    state: State,
}

/// What stays the same until the page is free.
struct Home {
    /// A reference of an `Arc` (invariant 3).
    pool: NonNull<Pool>,
    shard: usize,
    page: Page,
}

/// What changes under the lock of the shard.
struct State {
    /// Slots that were freed, linked through their first word.
    free: *mut Slot,
    /// Slots that were never used begin with this one.
    fresh: u32,
    /// Objects.
    live: u32,
    /// The ring of the shard; the page itself, if it is not in it.
    next: NonNull<Header>,
    previous: NonNull<Header>,
}

const _: () = assert!(size_of::<Header>() <= HEADER);

/// A free slot.
struct Slot {
    next: *mut Slot,
}

/// A ring of pages that have free slots; the first is allocated from.
struct Shard {
    first: Option<NonNull<Header>>,
    /// The slab is gone: no page is kept for the next object.
    closed: bool,
}

// SAFETY: it owns what it links, with its lock.
unsafe impl Send for Shard {}

#[derive(Default)]
struct Supply {
    regions: Vec<Arc<AnonymousRange>>,
    warm: Vec<Page>,
    /// They have no memory, or none any more.
    cold: Vec<Page>,
}

/// Which page: the number of its region, and its own there.
#[derive(Clone, Copy)]
struct Page {
    region: u32,
    number: u32,
}

/// What a slab and its pages share.
pub(super) struct Pool {
    slot_bytes: usize,
    slots: u32,
    shards: Box<[CachePadded<RankedMutex<Shard>>]>,
    roomy: AtomicUsize,
    supply: RankedMutex<Supply>,
}

impl Pool {
    pub(super) fn new<T>() -> Arc<Pool> {
        const {
            assert!(align_of::<T>() <= HEADER && size_of::<T>() <= (PAGE_SIZE - HEADER) / 4);
        }
        let slot = Layout::new::<T>().pad_to_align();
        let align = slot.align().max(align_of::<Slot>());
        let slot_bytes = slot.size().max(size_of::<Slot>()).next_multiple_of(align);
        let shard = || {
            let shard = Shard {
                first: None,
                closed: false,
            };
            CachePadded::new(RankedMutex::new(Rank::Leaf, shard))
        };
        Arc::new(Pool {
            slot_bytes,
            slots: ((PAGE_SIZE - HEADER) / slot_bytes).min(MOST_SLOTS) as u32,
            shards: std::iter::repeat_with(shard).take(shard_count()).collect(),
            roomy: AtomicUsize::new(0),
            supply: RankedMutex::new(Rank::Leaf, Supply::default()),
        })
    }

    /// A free slot, which is the caller's now.
    pub(super) fn take(self: &Arc<Self>) -> NonNull<u8> {
        let number = thread_shard() & (self.shards.len() - 1);
        let shard = &self.shards[number];
        {
            let mut shard = shard.lock();
            if let Some(page) = shard.first {
                return self.take_from(&mut shard, page);
            }
        }
        if let Some(slot) = self.take_elsewhere() {
            return slot;
        }
        let page = self.new_page(number);
        let mut shard = shard.lock();
        // SAFETY: it was made for this shard.
        unsafe { shard.link(page) };
        self.take_from(&mut shard, page)
    }

    /// A free slot of a shard that has several pages with some: its threads may be gone, or done.
    ///
    /// The only one that a shard has is left to its threads.
    #[cold]
    fn take_elsewhere(&self) -> Option<NonNull<u8>> {
        // Relaxed: a hint, the shard in which there was one the last time.
        let hint = self.roomy.load(Ordering::Relaxed);
        for at in 0..self.shards.len() {
            let number = (hint + at) & (self.shards.len() - 1);
            let Some(mut shard) = self.shards[number].try_lock() else {
                continue;
            };
            let Some(first) = shard.first else { continue };
            // SAFETY: in the ring.
            let last = unsafe { shard.state(first) }.previous;
            if last != first {
                // Relaxed: as above.
                self.roomy.store(number, Ordering::Relaxed);
                return Some(self.take_from(&mut shard, last));
            }
        }
        None
    }

    /// Context: the page is in the ring of `shard`.
    fn take_from(&self, shard: &mut Shard, page: NonNull<Header>) -> NonNull<u8> {
        // SAFETY: in the ring.
        let state = unsafe { shard.state(page) };
        state.live += 1;
        let slot = match NonNull::new(state.free) {
            Some(slot) => {
                // SAFETY: a free slot holds the next one, see `put`.
                state.free = unsafe { slot.as_ref() }.next;
                slot.cast()
            }
            None => {
                let offset = HEADER + state.fresh as usize * self.slot_bytes;
                state.fresh += 1;
                // SAFETY: within the page: a page in the ring has a free slot (invariant 2).
                unsafe { page.cast::<u8>().add(offset) }
            }
        };
        if state.live == self.slots {
            // SAFETY: it is in the ring.
            unsafe { shard.unlink(page) };
        }
        slot
    }

    /// Takes back a slot that [`Pool::take`] gave out.
    ///
    /// # Safety
    ///
    /// Nobody uses the slot any more.
    pub(super) unsafe fn put(slot: NonNull<u8>) {
        // An object may have come by a reference, which is not one to the page: see `new_page`.
        let address = slot.addr().get() & !(PAGE_SIZE - 1);
        let page = NonNull::new(ptr::with_exposed_provenance_mut(address));
        let page: NonNull<Header> = page.expect("no slot lies in the first page");
        let slot: NonNull<u8> = page.cast().with_addr(slot.addr());
        // SAFETY: it stays as it is while there is an object, and there is one.
        let home = unsafe { Home::of(page) };
        // SAFETY: the page holds a reference of the pool (invariant 3), until `retire` takes it.
        let pool = unsafe { home.pool.as_ref() };
        {
            let mut shard = pool.shards[home.shard].lock();
            // SAFETY: not free, since it has an object.
            let state = unsafe { shard.state(page) };
            let free: NonNull<Slot> = slot.cast();
            // SAFETY: the slot is free from now on, and large enough.
            unsafe { free.write(Slot { next: state.free }) };
            state.free = free.as_ptr();
            let was_full = state.live == pool.slots;
            state.live -= 1;
            let is_empty = state.live == 0;
            let is_only = state.next == page;
            if was_full {
                // SAFETY: it was not in the ring (invariant 2).
                unsafe { shard.link(page) };
            }
            if !is_empty || (is_only && !shard.closed) {
                return;
            }
            // SAFETY: it is in the ring.
            unsafe { shard.unlink(page) };
        }
        // SAFETY: it has no object and is in no ring.
        unsafe { Pool::retire(page) };
    }

    /// A page without objects, of which nobody knows.
    fn new_page(self: &Arc<Self>, shard: usize) -> NonNull<Header> {
        let (page, address) = self.free_page();
        let address: NonNull<Header> = address.cast();
        // The page's reference.
        let pool = Arc::into_raw(Arc::clone(self)).cast_mut();
        let header = Header {
            home: Home {
                pool: NonNull::new(pool).expect("an Arc is not null"),
                shard,
                page,
            },
            state: State {
                free: ptr::null_mut(),
                fresh: 0,
                live: 0,
                next: address,
                previous: address,
            },
        };
        // SAFETY: a free page, and nobody else's.
        unsafe { address.write(header) };
        // For `put`, which is given an object.
        let _ = address.as_ptr().expose_provenance();
        address
    }

    fn free_page(&self) -> (Page, NonNull<u8>) {
        loop {
            if let Some(page) = self.supply.lock().take() {
                return page;
            }
            let Ok(region) = AnonymousRange::map(REGION_PAGES) else {
                let page = Layout::from_size_align(PAGE_SIZE, PAGE_SIZE);
                std::alloc::handle_alloc_error(page.expect("a page has a layout"));
            };
            self.supply.lock().add(region);
        }
    }

    /// Gives a page back to the supply.
    ///
    /// # Safety
    ///
    /// It has no object and is in no ring, and nobody else does this.
    unsafe fn retire(page: NonNull<Header>) {
        // SAFETY: nobody else has the page.
        let Home { pool, page, .. } = *unsafe { Home::of(page) };
        // SAFETY: the page's reference (invariant 3), which is not used again.
        let pool = unsafe { Arc::from_raw(pool.as_ptr()) };
        let region = {
            let mut supply = pool.supply.lock();
            if supply.warm.len() < MOST_WARM {
                supply.warm.push(page);
                return;
            }
            Arc::clone(&supply.regions[page.region as usize])
        };
        let number = page.number as usize;
        // SAFETY: the page is free. If the system does not take it back, it keeps its memory.
        let _ = unsafe { region.discard(number..number + 1) };
        pool.supply.lock().cold.push(page);
    }

    /// Nothing is allocated any more: pages without objects go back.
    pub(super) fn close(&self) {
        for shard in &self.shards {
            let empty = {
                let mut shard = shard.lock();
                shard.closed = true;
                // A page without an object was the only one of its ring, and is the first if others came.
                shard
                    .first
                    // SAFETY: in the ring.
                    .filter(|&page| unsafe { shard.state(page) }.live == 0)
                    // SAFETY: as above.
                    .inspect(|&page| unsafe { shard.unlink(page) })
            };
            if let Some(page) = empty {
                // SAFETY: it has no object, and is in the ring no more.
                unsafe { Pool::retire(page) };
            }
        }
    }

    /// Pages that are not free, and free ones that keep their memory.
    #[cfg(all(test, not(loom)))]
    pub(super) fn resident_pages(self: &Arc<Self>) -> (usize, usize) {
        // One reference is the caller's.
        (Arc::strong_count(self) - 1, self.supply.lock().warm.len())
    }
}

impl Home {
    /// # Safety
    ///
    /// The page is not free as long as the reference lives.
    unsafe fn of<'a>(page: NonNull<Header>) -> &'a Home {
        // SAFETY: there, and never written, by the caller's contract.
        unsafe { &(*page.as_ptr()).home }
    }
}

impl Shard {
    /// What changes of a page of this shard.
    ///
    /// # Safety
    ///
    /// The page is of this shard, and not free.
    unsafe fn state(&mut self, page: NonNull<Header>) -> &mut State {
        // SAFETY: it is there, and the lock that `self` was had by keeps all others away.
        unsafe { &mut (*page.as_ptr()).state }
    }

    /// Puts a page into the ring, behind all others.
    ///
    /// # Safety
    ///
    /// It is of this shard, not free, and not in the ring.
    unsafe fn link(&mut self, page: NonNull<Header>) {
        let first = *self.first.get_or_insert(page);
        // SAFETY: in the ring, or `page`.
        let last = std::mem::replace(&mut unsafe { self.state(first) }.previous, page);
        // SAFETY: as above: a page that is in no ring comes before itself.
        unsafe { self.state(last) }.next = page;
        // SAFETY: the caller's contract.
        let state = unsafe { self.state(page) };
        (state.next, state.previous) = (first, last);
    }

    /// Takes a page out of the ring.
    ///
    /// # Safety
    ///
    /// It is in the ring.
    unsafe fn unlink(&mut self, page: NonNull<Header>) {
        // SAFETY: the caller's contract.
        let state = unsafe { self.state(page) };
        let State { next, previous, .. } = *state;
        (state.next, state.previous) = (page, page);
        // SAFETY: pages of the ring.
        unsafe { self.state(next) }.previous = previous;
        // SAFETY: as above.
        unsafe { self.state(previous) }.next = next;
        if self.first == Some(page) {
            self.first = (next != page).then_some(next);
        }
    }
}

impl Supply {
    fn take(&mut self) -> Option<(Page, NonNull<u8>)> {
        let page = self.warm.pop().or_else(|| self.cold.pop())?;
        let base = self.regions[page.region as usize].as_ptr();
        // SAFETY: within the region.
        Some((page, unsafe { base.add(page.number as usize * PAGE_SIZE) }))
    }

    /// Has the pages of a new region, the first one to be taken first.
    fn add(&mut self, region: AnonymousRange) {
        let number = self.regions.len() as u32;
        let pages = (0..region.pages() as u32).rev().map(|page| Page {
            region: number,
            number: page,
        });
        self.cold.extend(pages);
        self.regions.push(Arc::new(region));
    }
}
