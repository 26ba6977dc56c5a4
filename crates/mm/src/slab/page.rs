//! The pages of a [`Slab`](super::Slab), and where they are when they are free. See [`super`].
//!
//! # Memory ordering
//!
//! A scan reads `visible` (`Acquire`) without a lock. The object was published with `Release`, after it was made; and one
//! that is hidden is freed a grace period later, so not while a scan that saw its bit may look at it.
//!
//! # Safety
//!
//! As stated in [`super`].
#![allow(unsafe_code)]

use super::supply::{REGION_PAGES, Supply};
use crate::bound::MetadataBound;
use foliocache_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::{Arc, CachePadded, shard_count, thread_shard};
use foliocache_sys::memory::{AnonymousRange, PAGE_SIZE};
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::{self, NonNull};

/// Free pages that keep their memory and their charge.
const MOST_WARM: usize = if cfg!(loom) { 0 } else { 16 };
/// Slots of a page at most: each has a bit.
const MOST_SLOTS: usize = if cfg!(loom) { 2 } else { 64 };
/// Bytes before the first object of a page. Its counts are among them.
const HEADER: usize = 64;

/// At the beginning of a page that is not free.
#[repr(C)]
struct Header {
    /// A bit for each slot whose object a scan may visit. Zero in a free page too.
    #[cfg(not(loom))]
    visible: AtomicU64,
    home: Home,
    state: State,
}

/// Stays the same until the page is free.
struct Home {
    /// A reference of an `Arc` (invariant 3).
    pool: NonNull<Pool>,
    page: u32,
    shard: u16,
    charged: bool,
}

/// Changes under the lock of the shard.
struct State {
    /// Where in the page the slot is that was freed last; each holds that of the one before. Zero ends the list.
    free: u16,
    /// The ring of the shard; the page itself, if it is not in it.
    next: NonNull<Header>,
    previous: NonNull<Header>,
    /// Slots that were never used begin with this one.
    fresh: u16,
    /// Objects.
    live: u16,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Header>() <= HEADER - super::shared::COUNT_BYTES);

/// Two rings of pages that have free slots, those without a charge and the others; the first of a ring is allocated
/// from.
#[derive(Default)]
struct Shard {
    first: [Option<NonNull<Header>>; 2],
    /// Free slots in all pages with a charge.
    free: usize,
    /// Objects in pages without one.
    uncharged: u64,
    /// The slab is gone: no page is kept for the next object.
    closed: bool,
}

// SAFETY: it owns its linked pages, under its lock.
unsafe impl Send for Shard {}

/// Shared by a slab and its pages.
pub(crate) struct Pool {
    slot_bytes: usize,
    slots: u16,
    bound: Arc<dyn MetadataBound>,
    shards: Box<[CachePadded<LeafMutex<Shard>>]>,
    roomy: AtomicUsize,
    pub(super) supply: LeafMutex<Supply>,
    /// Pages that are charged, and that are not.
    charged: AtomicU64,
    uncharged: AtomicU64,
}

/// Bytes of a slot for a `T` with `before` bytes before it.
const fn slot_bytes<T>(before: usize) -> usize {
    let align = match align_of::<T>() {
        0..2 => align_of::<u16>(),
        align => align,
    };
    let bytes = match size_of::<T>() {
        0..2 => size_of::<u16>(),
        bytes => bytes,
    };
    (bytes + before).next_multiple_of(align)
}

/// Slots of a page for objects of type `T`, each with `before` bytes before it.
pub(crate) const fn per_page<T>(before: usize) -> usize {
    match (PAGE_SIZE - HEADER + before) / slot_bytes::<T>(before) {
        few @ ..MOST_SLOTS => few,
        _ => MOST_SLOTS,
    }
}

impl Pool {
    /// Pages for objects of type `T`, each with `before` bytes before it.
    pub(crate) fn new<T>(bound: Arc<dyn MetadataBound>, before: usize) -> Arc<Pool> {
        const {
            assert!(align_of::<T>() <= HEADER && size_of::<T>() <= (PAGE_SIZE - HEADER) / 3 - 64);
        }
        Arc::new(Pool {
            slot_bytes: slot_bytes::<T>(before),
            slots: per_page::<T>(before) as u16,
            bound,
            shards: (0..shard_count()).map(|_| CachePadded::default()).collect(),
            roomy: AtomicUsize::new(0),
            supply: LeafMutex::new(Supply::default()),
            charged: AtomicU64::new(0),
            uncharged: AtomicU64::new(0),
        })
    }

    /// A free slot, which is the caller's now. `None` if a page would have to be charged, and the bound refuses
    /// it.
    ///
    /// Context: that of [`MetadataBound::charge`].
    pub(crate) fn take(self: &Arc<Self>) -> Option<NonNull<u8>> {
        if let Some(slot) = self.take_free() {
            return Some(slot);
        }
        let warm = self.supply.lock().warm.pop();
        if let Some(page) = warm {
            return Some(self.take_new(page, true));
        }
        // Others may free slots while the bound makes room.
        let found = Cell::new(None);
        let find = || {
            found.set(self.take_free());
            found.get().is_some()
        };
        if !self.bound.charge_or(PAGE_SIZE as u64, &find) {
            return None;
        }
        if found.get().is_some() {
            return found.get();
        }
        // Relaxed, here and below: figures.
        self.charged.fetch_add(1, Ordering::Relaxed);
        Some(self.take_new(self.cold_page(), true))
    }

    /// As [`Pool::take`], whatever the bound says. Does not sleep.
    pub(crate) fn take_uncharged(self: &Arc<Self>) -> NonNull<u8> {
        let own = || self.take_own(false);
        if let Some(slot) = self.take_free().or_else(own) {
            return slot;
        }
        let charged = self.bound.try_charge(PAGE_SIZE as u64);
        let count = if charged {
            &self.charged
        } else {
            &self.uncharged
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.take_new(self.cold_page(), charged)
    }

    fn shard(&self) -> usize {
        thread_shard() & (self.shards.len() - 1)
    }

    /// A slot of a page that is charged and has objects already.
    fn take_free(&self) -> Option<NonNull<u8>> {
        self.take_own(true).or_else(|| self.take_elsewhere())
    }

    /// A slot of a page of the thread's shard.
    fn take_own(&self, charged: bool) -> Option<NonNull<u8>> {
        let mut shard = self.shards[self.shard()].lock();
        let page = shard.first[usize::from(charged)]?;
        Some(self.take_from(&mut shard, page))
    }

    /// A slot of a page that has none.
    fn take_new(self: &Arc<Self>, page: u32, charged: bool) -> NonNull<u8> {
        let number = self.shard();
        let page = self.new_page(page, number, charged);
        let mut shard = self.shards[number].lock();
        if charged {
            shard.free += usize::from(self.slots);
        }
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
            let Some(first) = shard.first[1] else {
                continue;
            };
            // SAFETY: in the ring.
            let last = unsafe { shard.state(first) }.previous;
            if last != first {
                // Relaxed: a hint for the next call.
                self.roomy.store(number, Ordering::Relaxed);
                return Some(self.take_from(&mut shard, last));
            }
        }
        None
    }

    /// Context: the page is in the ring of `shard`.
    fn take_from(&self, shard: &mut Shard, page: NonNull<Header>) -> NonNull<u8> {
        // SAFETY: in the ring.
        match unsafe { Home::of(page) }.charged {
            true => shard.free -= 1,
            false => shard.uncharged += 1,
        }
        // SAFETY: in the ring.
        let state = unsafe { shard.state(page) };
        state.live += 1;
        let offset = match state.free {
            0 => {
                state.fresh += 1;
                HEADER + usize::from(state.fresh - 1) * self.slot_bytes
            }
            free => usize::from(free),
        };
        // SAFETY: within the page: a page in the ring has a free slot (invariant 2).
        let slot = unsafe { page.cast::<u8>().add(offset) };
        if state.free != 0 {
            // SAFETY: a free slot holds the next one, see `put`.
            state.free = unsafe { slot.cast().read() };
        }
        if state.live == self.slots {
            // SAFETY: it is in the ring.
            unsafe { shard.unlink(page) };
        }
        slot
    }

    /// The page of a slot.
    fn page_of(slot: NonNull<u8>) -> NonNull<Header> {
        // An object may have come by a reference, which is not one to the page: see `new_page`.
        let address = slot.addr().get() & !(PAGE_SIZE - 1);
        let page = NonNull::new(ptr::with_exposed_provenance_mut(address));
        page.expect("no slot lies in the first page")
    }

    /// Takes back a slot that [`Pool::take`] gave out.
    ///
    /// # Safety
    ///
    /// The slot is no longer in use.
    pub(crate) unsafe fn put(slot: NonNull<u8>) {
        let page = Self::page_of(slot);
        let slot: NonNull<u8> = page.cast().with_addr(slot.addr());
        // SAFETY: it does not change while there is an object, and there is one.
        let home = unsafe { Home::of(page) };
        // SAFETY: the page holds a reference of the pool (invariant 3), until `retire` takes it.
        let pool = unsafe { home.pool.as_ref() };
        {
            let mut shard = pool.shards[usize::from(home.shard)].lock();
            match home.charged {
                true => shard.free += 1,
                false => shard.uncharged -= 1,
            }
            // SAFETY: not free, since it has an object.
            let state = unsafe { shard.state(page) };
            // SAFETY: the slot is free from now on, and large enough.
            unsafe { slot.cast().write(state.free) };
            state.free = (slot.addr().get() % PAGE_SIZE) as u16;
            let was_full = state.live == pool.slots;
            state.live -= 1;
            let is_empty = state.live == 0;
            let is_only = state.next == page;
            if was_full {
                // SAFETY: it was not in the ring (invariant 2).
                unsafe { shard.link(page) };
            }
            // The next object will want a page; none without a charge is kept for it.
            if !is_empty || (is_only && home.charged && !shard.closed) {
                return;
            }
            if home.charged {
                shard.free -= usize::from(pool.slots);
            }
            // SAFETY: it is in the ring.
            unsafe { shard.unlink(page) };
        }
        // SAFETY: it has no object and is in no ring.
        unsafe { Pool::retire(page) };
    }

    /// Turns a free page into one without objects, which is not published yet.
    fn new_page(self: &Arc<Self>, page: u32, shard: usize, charged: bool) -> NonNull<Header> {
        let address: NonNull<Header> = self.supply.lock().address(page).cast();
        // The page's reference.
        let pool = Arc::into_raw(Arc::clone(self)).cast_mut();
        let home = Home {
            pool: NonNull::new(pool).expect("an Arc is not null"),
            page,
            shard: shard as u16,
            charged,
        };
        let state = State {
            free: 0,
            next: address,
            previous: address,
            fresh: 0,
            live: 0,
        };
        // A scan may look at `visible` meanwhile: it is not written.
        // SAFETY: within the page.
        let of_home = unsafe { &raw mut (*address.as_ptr()).home };
        // SAFETY: a free page, private to this function.
        unsafe { of_home.write(home) };
        // SAFETY: within the page.
        let of_state = unsafe { &raw mut (*address.as_ptr()).state };
        // SAFETY: a free page, private to this function.
        unsafe { of_state.write(state) };
        // For `page_of`, which is given an object.
        let _ = address.as_ptr().expose_provenance();
        address
    }

    /// A page without memory.
    fn cold_page(&self) -> u32 {
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
    /// It has no object and is in no ring, and no other thread retires it.
    unsafe fn retire(page: NonNull<Header>) {
        // SAFETY: the page has no other users.
        let Home {
            pool,
            page,
            charged,
            ..
        } = *unsafe { Home::of(page) };
        // SAFETY: the page's reference (invariant 3), which is not used again.
        let pool = unsafe { Arc::from_raw(pool.as_ptr()) };
        let (region, number) = {
            let mut supply = pool.supply.lock();
            if charged && supply.warm.len() < MOST_WARM {
                supply.warm.push(page);
                return;
            }
            supply.region(page)
        };
        // SAFETY: the page is free.
        let discarded = unsafe { region.discard(number..number + 1) }.is_ok();
        if charged && !discarded {
            // The system did not take it back: it keeps its memory, and its charge.
            pool.supply.lock().warm.push(page);
            return;
        }
        pool.supply.lock().put(page);
        if charged {
            pool.charged.fetch_sub(1, Ordering::Relaxed);
            pool.bound.uncharge(PAGE_SIZE as u64);
        } else {
            pool.uncharged.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Nothing is allocated any more: pages without objects go back.
    pub(crate) fn close(&self) {
        for shard in &self.shards {
            let empty = {
                let mut shard = shard.lock();
                shard.closed = true;
                // A page without an object was the only one of its ring, and is the first if others came.
                let empty = shard.first[1]
                    // SAFETY: in the ring.
                    .filter(|&page| unsafe { shard.state(page) }.live == 0)
                    // SAFETY: in the ring.
                    .inspect(|&page| unsafe { shard.unlink(page) });
                shard.free -= empty.map_or(0, |_| usize::from(self.slots));
                empty
            };
            if let Some(page) = empty {
                // SAFETY: it has no object, and is in the ring no more.
                unsafe { Pool::retire(page) };
            }
        }
    }

    /// Whether the bound has hardly any room.
    pub(crate) fn is_short(&self) -> bool {
        self.bound.is_short()
    }

    /// Bytes of the pages that are charged.
    pub(crate) fn bytes(&self) -> u64 {
        self.charged.load(Ordering::Relaxed) * PAGE_SIZE as u64
    }

    /// Objects in pages without a charge.
    pub(crate) fn uncharged(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().uncharged).sum()
    }

    /// Objects that fit into the present pages.
    pub(crate) fn spare(&self) -> u64 {
        let free: usize = self.shards.iter().map(|shard| shard.lock().free).sum();
        free as u64
    }

    /// Slots of a page.
    pub(crate) fn slots(&self) -> usize {
        usize::from(self.slots)
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Pool {
    /// The word of an object in its page, and its bit there.
    fn visible<'a>(object: NonNull<u8>) -> (&'a AtomicU64, u64) {
        let page = Self::page_of(object);
        // SAFETY: there, since there is an object.
        let home = unsafe { Home::of(page) };
        // SAFETY: the page's reference.
        let pool = unsafe { home.pool.as_ref() };
        let slot = (object.addr().get() % PAGE_SIZE - HEADER) / pool.slot_bytes;
        // SAFETY: a page is never unmapped while it has objects.
        (unsafe { &(*page.as_ptr()).visible }, 1 << slot)
    }

    /// Has scans visit an object.
    ///
    /// # Safety
    ///
    /// It is in a slot. It is hidden a grace period before its slot is put back.
    pub(crate) unsafe fn publish(object: NonNull<u8>) {
        let (word, bit) = Self::visible(object);
        // Release pairs with the Acquire in `next_page`: the object is made.
        word.fetch_or(bit, Ordering::Release);
    }

    /// Has scans that begin from now on pass over an object.
    ///
    /// # Safety
    ///
    /// It is in a slot.
    pub(crate) unsafe fn hide(object: NonNull<u8>) {
        let (word, bit) = Self::visible(object);
        // Relaxed: the grace period that follows orders it.
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Pages that have memory: a round of the hand.
    pub(crate) fn round(&self) -> usize {
        let charged = self.charged.load(Ordering::Relaxed);
        (charged + self.uncharged.load(Ordering::Relaxed)) as usize
    }

    /// The published objects of the next page that has memory; `None` if there is no such page. The hand goes round
    /// by address, and pages are taken in that order.
    pub(crate) fn next_page(&self) -> Option<impl Iterator<Item = NonNull<u8>> + use<>> {
        let address = {
            let mut supply = self.supply.lock();
            let page = supply.next()?;
            supply.address(page)
        };
        let page: NonNull<Header> = address.cast();
        // Regions stay mapped as long as the pool, and returned memory reads as zero. Acquire pairs
        // with the Release in `publish`.
        // SAFETY: mapped, and written by atomics alone.
        let mut bits = unsafe { &(*page.as_ptr()).visible }.load(Ordering::Acquire);
        let slot_bytes = self.slot_bytes;
        Some(std::iter::from_fn(move || {
            let slot = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            // SAFETY: within the page.
            Some(unsafe { address.add(HEADER + slot * slot_bytes) })
        }))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Their memory goes with the regions.
        let warm = self.supply.lock().warm.len();
        self.bound.uncharge((warm * PAGE_SIZE) as u64);
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
    /// The mutable part of a page of this shard.
    ///
    /// # Safety
    ///
    /// The page is of this shard, and not free.
    unsafe fn state(&mut self, page: NonNull<Header>) -> &mut State {
        // SAFETY: it exists, and the lock through which `self` was obtained excludes all others.
        unsafe { &mut (*page.as_ptr()).state }
    }

    /// Puts a page into the ring, behind all others.
    ///
    /// # Safety
    ///
    /// It is of this shard, not free, and not in the ring.
    unsafe fn link(&mut self, page: NonNull<Header>) {
        // SAFETY: the caller's contract.
        let charged = unsafe { Home::of(page) }.charged;
        let first = *self.first[usize::from(charged)].get_or_insert(page);
        // SAFETY: in the ring, or `page`.
        let last = std::mem::replace(&mut unsafe { self.state(first) }.previous, page);
        // SAFETY: in the ring, or `page`: a page that is in no ring precedes itself.
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
        // SAFETY: a page of the ring.
        unsafe { self.state(previous) }.next = next;
        // SAFETY: the caller's contract.
        let first = &mut self.first[usize::from(unsafe { Home::of(page) }.charged)];
        if *first == Some(page) {
            *first = (next != page).then_some(next);
        }
    }
}
