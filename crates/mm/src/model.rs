//! Doors for the model tests: the read-hit protocol, the folio lock, the count of holders, reliance on pages and grants of room, made
//! of the very code that the cache runs. Exists under loom only.
//!
//! # Model
//!
//! [`OnePage`] is an index with one folio at page 0, and three frames of one byte each, which are
//! atomics so that the checker sees stale values. Its removal and its reuse are the steps
//! of `AddressSpace::remove_folio`, and those of a fill for another file.
//!
//! # Memory ordering
//!
//! Bytes of frames are Relaxed: real copies are plain, and are ordered by the protocol or not at all.
//!
//! # Safety
//!
//! [`OnePage`] and [`TwoPages`] are marked shareable: the index and the folios are, and everything
//! else in them is. The index has its nodes from the heap.
#![allow(unsafe_code)]

use foliocache_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use foliocache_sync::wait::WaitTable;
use foliocache_sync::{Arc, rcu};
use foliocache_xarray::{CHUNK_SIZE, ChunkSource, Entry, NodePool, XArray};
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use crate::dirty::Grant;
use crate::folio::{Folio, Identity, flag};
use crate::frames::FrameNumber;
use crate::lookup::{Lookup, find_page};
use crate::owner;
use crate::reliance::Reliance;
use crate::split::split_in_index;
use crate::types::{PAGE_SIZE, PageIndex};

/// The address of the file that the page belongs to, and of another.
const OURS: usize = 64;
const OTHER: usize = 128;

/// The value that a read of a frame past the active ones returns.
pub const OUTSIDE: u64 = u64::MAX;

/// Chunks of nodes from the heap.
struct HeapChunks;

const CHUNK: Layout = match Layout::from_size_align(CHUNK_SIZE, CHUNK_SIZE) {
    Ok(layout) => layout,
    Err(_) => panic!("CHUNK_SIZE is a power of two"),
};

// SAFETY: fresh memory of this layout, which only `release` frees.
unsafe impl ChunkSource for HeapChunks {
    fn grow(&self) -> Option<NonNull<u8>> {
        // SAFETY: the layout's size is not zero.
        NonNull::new(unsafe { alloc(CHUNK) })
    }

    unsafe fn release(&self, chunk: NonNull<u8>) {
        // SAFETY: allocated by `grow` with this layout; the caller's contract.
        unsafe { dealloc(chunk.as_ptr(), CHUNK) };
    }
}

/// Stands for a neighbour, and is not looked at.
fn neighbour() -> Entry {
    Entry::from_ptr(NonNull::<Folio>::dangling())
}

/// Page 0 of a file, its index, and the frames there are.
pub struct OnePage {
    index: XArray,
    folio: Box<Folio>,
    waits: WaitTable,
    frames: [AtomicU64; 3],
    /// As `AddressSpace::holders`.
    holders: AtomicU32,
}

// SAFETY: see the module's header.
unsafe impl Send for OnePage {}
// SAFETY: see the module's header.
unsafe impl Sync for OnePage {}

impl std::fmt::Debug for OnePage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnePage")
    }
}

/// Pages 0 and 1 of a file in one folio, in frames 0 and 1 of one byte each.
pub struct TwoPages {
    index: XArray,
    lower: Box<Folio>,
    upper: Box<Folio>,
    waits: WaitTable,
    /// The active frames.
    frames: Vec<AtomicU64>,
}

// SAFETY: see the module's header.
unsafe impl Send for TwoPages {}
// SAFETY: see the module's header.
unsafe impl Sync for TwoPages {}

impl std::fmt::Debug for TwoPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TwoPages")
    }
}

impl TwoPages {
    /// The two pages, uptodate, holding `bytes`, and `spare` more active frames.
    pub fn new(bytes: [u64; 2], spare: usize) -> Arc<Self> {
        let pool = Arc::new(NodePool::new(Box::new(HeapChunks)));
        let pages = Self {
            index: XArray::new(pool),
            lower: Box::new(Folio::default()),
            upper: Box::new(Folio::default()),
            waits: WaitTable::new(),
            frames: bytes
                .into_iter()
                .chain(vec![0; spare])
                .map(AtomicU64::new)
                .collect(),
        };
        let locked = pages.lower.lock(&pages.waits);
        locked.attach(
            OURS,
            Identity {
                order: 1,
                ..identity(0, 0)
            },
        );
        locked.state.set(flag::UPTODATE);
        drop(locked);
        let mut preload = pages.index.pool().preload(4).expect("a chunk");
        // A neighbour keeps the node.
        for (at, order, entry) in [(0, 1, pages.entries()[0]), (2, 0, neighbour())] {
            pages
                .index
                .lock()
                .insert(at, order, entry, &mut preload)
                .expect("nodes in hand");
        }
        drop(preload);
        Arc::new(pages)
    }

    fn entries(&self) -> [Entry; 2] {
        [&self.lower, &self.upper].map(|folio| Entry::from_ptr(NonNull::from(&**folio)))
    }

    fn folio(&self, entry: Entry) -> &Folio {
        match entry == self.entries()[0] {
            true => &self.lower,
            false => &self.upper,
        }
    }

    /// A read hit from page `first` on to the end of its folio; `None` where it would take the lock.
    pub fn read_from(&self, first: u64) -> Option<Vec<u64>> {
        let rcu = rcu::read_lock();
        let found = Lookup::begin(&self.index, PageIndex(first).pos(), &rcu, |entry| {
            self.folio(entry)
        })?;
        let identity = found.identity;
        let before = identity.offset(PageIndex(first).pos()) / PAGE_SIZE;
        let frame = identity.frame.add(before as u32);
        let Some(bytes) = self.copy(frame, (1 << identity.order) - before) else {
            return Some(vec![OUTSIDE]);
        };
        found.validate().then_some(bytes)
    }

    /// The protocol without the look at the version between the frame and the copy.
    pub fn read_broken(&self) -> Option<Vec<u64>> {
        let rcu = rcu::read_lock();
        let (entry, slot) = self.index.load_slot(0, &rcu)?;
        let folio = self.folio(entry);
        let seen = folio.state.load();
        if !slot.holds() || !seen.has(flag::UPTODATE) {
            return None;
        }
        let Some(bytes) = self.copy(folio.frame(), 1 << seen.order()) else {
            return Some(vec![OUTSIDE]);
        };
        folio.state.validate(seen).then_some(bytes)
    }

    /// The bytes of frames in a row; `None` if they are not all active.
    fn copy(&self, first: FrameNumber, frames: usize) -> Option<Vec<u64>> {
        let first = first.0 as usize;
        // Relaxed: see the module's header.
        let byte = |frame: &AtomicU64| frame.load(Ordering::Relaxed);
        let frames = self.frames.get(first..first + frames)?;
        Some(frames.iter().map(byte).collect())
    }

    /// Splits the folio, as `AddressSpace::split_folio` does.
    pub fn split(&self) {
        let lower = self.lower.lock(&self.waits);
        let upper = self.upper.lock(&self.waits);
        upper.attach(OURS, identity(1, 1));
        let mut nodes = self.index.pool().preload(0).expect("none");
        split_in_index(&self.index, &lower, &upper, self.entries()[1], &mut nodes);
        lower.state.halve();
    }

    /// Takes page 1 out, after a split, and gives its frame to somebody who stores `byte` in it.
    pub fn remove_upper_and_reuse_frame(&self, byte: u64) {
        let upper = self.upper.lock(&self.waits);
        let erased = self.index.lock().erase_if(1, self.entries()[1]);
        assert!(erased.is_some(), "one remover");
        let (frame, _) = upper.detach();
        drop(upper);
        // Relaxed: see the module's header.
        self.frames[frame.0 as usize].store(byte, Ordering::Relaxed);
    }

    /// Takes both pages out, and gives their descriptor to another file, for one page in `frame`.
    pub fn remove_both_and_reuse_folio(&self, frame: u32) {
        let locked = self.lower.lock(&self.waits);
        let erased = self.index.lock().erase_if(0, self.entries()[0]);
        assert!(erased.is_some(), "one remover");
        locked.detach();
        drop(locked);
        let locked = self.lower.lock(&self.waits);
        locked.attach(OTHER, identity(7, frame));
        locked.state.set(flag::UPTODATE);
    }

    /// A write hit: stores `byte` in page `page` under the lock of the folio that holds it.
    pub fn write(&self, page: u64, byte: u64) {
        loop {
            let folio = {
                let rcu = rcu::read_lock();
                let Some(entry) = self.index.load(page, &rcu) else {
                    return;
                };
                self.folio(entry)
            };
            let locked = folio.lock(&self.waits);
            if locked.holds(PageIndex(page)) {
                let frame = u64::from(locked.frame().0) + page - locked.index().0;
                // Relaxed: see the module's header.
                self.frames[frame as usize].store(byte, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// A page at `index`, in frame `frame`.
fn identity(index: u64, frame: u32) -> Identity {
    Identity {
        index: PageIndex(index),
        order: 0,
        frame: FrameNumber(frame),
    }
}

/// The step that a broken reader leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveOut {
    /// The second look at the slot.
    SecondLook,
    /// The fence before the second look at the version.
    Fence,
    /// The second look at the version.
    Validation,
}

impl OnePage {
    /// The page in frame 0, which holds `byte`; uptodate if `uptodate`; `alone` in the index, or with a neighbour.
    pub fn new(byte: u64, uptodate: bool, alone: bool) -> Arc<Self> {
        let pool = Arc::new(NodePool::new(Box::new(HeapChunks)));
        let page = Self {
            index: XArray::new(pool),
            folio: Box::new(Folio::default()),
            waits: WaitTable::new(),
            frames: std::array::from_fn(|_| AtomicU64::new(0)),
            holders: AtomicU32::new(0),
        };
        page.frames[0].store(byte, Ordering::Relaxed);
        let locked = page.folio.lock(&page.waits);
        locked.attach(OURS, identity(0, 0));
        if uptodate {
            locked.state.set(flag::UPTODATE);
        }
        drop(locked);
        let mut preload = page.index.pool().preload(4).expect("a chunk");
        let entries = [(0, page.entry()), (1, neighbour())];
        let entries = if alone { &entries[..1] } else { &entries };
        for &(at, entry) in entries {
            page.index
                .lock()
                .insert(at, 0, entry, &mut preload)
                .expect("nodes in hand");
        }
        drop(preload);
        Arc::new(page)
    }

    fn entry(&self) -> Entry {
        Entry::from_ptr(NonNull::from(&*self.folio))
    }

    fn byte(&self, frame: FrameNumber) -> u64 {
        // Relaxed: see the module's header.
        self.frames[frame.0 as usize].load(Ordering::Relaxed)
    }

    /// A read hit; `None` where it would take the folio lock instead.
    pub fn read(&self) -> Option<u64> {
        let rcu = rcu::read_lock();
        let found = Lookup::begin(&self.index, 0, &rcu, |_| &*self.folio)?;
        let byte = self.byte(found.identity.frame);
        found.validate().then_some(byte)
    }

    /// The protocol with one step left out.
    pub fn read_broken(&self, leave_out: LeaveOut) -> Option<u64> {
        let rcu = rcu::read_lock();
        let (_, slot) = self.index.load_slot(0, &rcu)?;
        let seen = self.folio.state.load();
        if leave_out != LeaveOut::SecondLook && !slot.holds() {
            return None;
        }
        if !seen.has(flag::UPTODATE) {
            return None;
        }
        let byte = self.byte(self.folio.frame());
        let same = match leave_out {
            LeaveOut::Validation => true,
            LeaveOut::Fence => self.folio.state.version_unordered() == seen.version(),
            LeaveOut::SecondLook => self.folio.state.validate(seen),
        };
        same.then_some(byte)
    }

    /// Fills the folio's frame with `byte`; it is uptodate afterwards.
    pub fn fill(&self, byte: u64) {
        let locked = self.folio.lock(&self.waits);
        self.store(locked.frame(), byte);
        locked.state.set(flag::UPTODATE);
    }

    fn store(&self, frame: FrameNumber, byte: u64) {
        // Relaxed: see the module's header.
        self.frames[frame.0 as usize].store(byte, Ordering::Relaxed);
    }

    /// Takes the page out of the file, then gives its frame to somebody who stores `byte` in it.
    pub fn remove_and_reuse_frame(&self, byte: u64) {
        let frame = self.remove();
        self.store(frame, byte);
    }

    /// Takes the page out, then gives its descriptor to another file, for frame 1 with `byte`.
    pub fn remove_and_reuse_folio(&self, byte: u64) {
        self.remove();
        self.attach_elsewhere(FrameNumber(1), byte);
    }

    /// Takes the page out, then gives descriptor and frame to another file, with `byte`.
    pub fn remove_and_reuse_both(&self, byte: u64) {
        let frame = self.remove();
        self.attach_elsewhere(frame, byte);
    }

    /// Takes the page out and brings it in again with the same descriptor, in frame 1, which holds
    /// `left_over` until it is filled with `byte`.
    pub fn remove_and_refill(&self, left_over: u64, byte: u64) {
        self.remove();
        let frame = FrameNumber(1);
        self.store(frame, left_over);
        let locked = self.folio.lock(&self.waits);
        locked.attach(OURS, identity(0, 1));
        let mut nodes = self.index.pool().preload(0).expect("none");
        self.index
            .lock()
            .insert(0, 0, self.entry(), &mut nodes)
            .expect("its neighbour keeps the node, or it needs none");
        self.store(frame, byte);
        locked.state.set(flag::UPTODATE);
    }

    fn remove(&self) -> FrameNumber {
        let locked = self.folio.lock(&self.waits);
        let erased = self.index.lock().erase_if(0, self.entry());
        assert!(erased.is_some(), "one remover");
        let (frame, _) = locked.detach();
        drop(locked);
        frame
    }

    fn attach_elsewhere(&self, frame: FrameNumber, byte: u64) {
        let locked = self.folio.lock(&self.waits);
        locked.attach(
            OTHER,
            Identity {
                frame,
                ..identity(7, 0)
            },
        );
        self.store(frame, byte);
        locked.state.set(flag::UPTODATE);
    }

    /// Moves the folio to frame 2, then gives its old frame to somebody who stores `byte` in it.
    pub fn migrate(&self, byte: u64) {
        let locked = self.folio.lock(&self.waits);
        let to = FrameNumber(2);
        self.store(to, self.byte(locked.frame()));
        let old = locked.migrate(to);
        self.store(old, byte);
    }

    /// Runs `section` under the folio lock.
    pub fn with_lock<R>(&self, section: impl FnOnce() -> R) -> R {
        let _locked = self.folio.lock(&self.waits);
        section()
    }

    /// Reclaim's part: takes the folio out of a file that it does not own, and runs `use_file` while
    /// the count alone keeps the file. Nothing if the folio is out already.
    pub fn evict(&self, use_file: impl FnOnce()) {
        let locked = self.folio.lock(&self.waits);
        if locked.mapping() != OURS {
            return;
        }
        owner::count_up(&self.holders);
        self.index.lock().erase_if(0, self.entry());
        locked.detach();
        drop(locked);
        use_file();
        owner::count_down(&self.holders);
    }

    /// The last owner's part: takes out what is still in the file, and waits until nobody holds it.
    pub fn empty_and_wait(&self) {
        if find_page(&self.index, &(0..1)).is_some() {
            let locked = self.folio.lock(&self.waits);
            if locked.mapping() == OURS {
                self.index.lock().erase_if(0, self.entry());
                locked.detach();
            }
        }
        owner::wait_for_holders(&self.index, &self.holders);
    }
}

/// A file of one page, which reclaim takes out unless somebody relies on it.
#[derive(Default)]
pub struct Relied {
    relied: Reliance,
    holders: AtomicU32,
    gone: AtomicU64,
}

impl Relied {
    /// An opener's part: whether the page is there, and stays.
    pub fn rely(&self) -> bool {
        // Relaxed: as `AddressSpace::nr_pages`.
        self.relied
            .begin(&self.holders, || self.gone.load(Ordering::Relaxed) == 0)
    }

    /// Reclaim's part.
    pub fn evict(&self) {
        owner::count_up(&self.holders);
        if !self.relied.is_begun_for_holder() {
            // Relaxed: as above.
            self.gone.store(1, Ordering::Relaxed);
        }
        owner::count_down(&self.holders);
    }

    /// Whether the page was taken out.
    pub fn is_gone(&self) -> bool {
        // Relaxed: as above.
        self.gone.load(Ordering::Relaxed) != 0
    }
}

/// A store that room is taken from, as `BackingDevInfo::try_reserve_space` takes it where room is scarce.
pub struct Room {
    free: u64,
    grant: Grant,
    reserved: AtomicU64,
    dirty: AtomicU64,
    granted: AtomicU64,
}

impl Room {
    /// With so many bytes.
    pub fn new(free: u64) -> Self {
        Self {
            free,
            grant: Grant::default(),
            reserved: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            granted: AtomicU64::new(0),
        }
    }

    /// A write of so many bytes; whether there was room.
    pub fn write(&self, bytes: u64) -> bool {
        let written = self.is_reserved(bytes);
        if written {
            // Relaxed: ordered by what is reserved.
            self.dirty.fetch_add(bytes, Ordering::Relaxed);
        }
        // Release: as the drop of `ReservedSpace`.
        self.reserved.fetch_sub(bytes, Ordering::Release);
        written
    }

    fn is_reserved(&self, bytes: u64) -> bool {
        // Acquire, twice: as `BackingDevInfo::try_reserve_space`.
        self.reserved.fetch_add(bytes, Ordering::Acquire);
        if self.grant.take(bytes, || 0) {
            // Relaxed: read when all threads have ended.
            self.granted.fetch_add(bytes, Ordering::Relaxed);
            return true;
        }
        let closed = self.grant.close();
        let others = self.reserved.load(Ordering::Acquire) - bytes;
        // Relaxed: ordered by what is reserved.
        let left = self.free - self.dirty.load(Ordering::Relaxed);
        let kept = others + bytes;
        if left < kept {
            return false;
        }
        self.grant.open(closed, (left - kept) / 2, 1);
        true
    }

    /// Bytes that are written, and how many of them were taken from a grant. Once all writers have ended.
    pub fn taken(&self) -> (u64, u64) {
        // Relaxed: as above.
        (
            self.dirty.load(Ordering::Relaxed),
            self.granted.load(Ordering::Relaxed),
        )
    }
}
