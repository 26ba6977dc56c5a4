//! The records of a cache: [`Mm`], one a cache; [`BackingDevInfo`], one a file system; [`AddressSpace`], one a file.
//!
//! # Model
//!
//! ```text
//!   AddressSpace ──▶ BackingDevInfo ──▶ Mm
//!        ▲  dirty files  │               │
//!        └───────────────┴───────────────┘  all files, all file systems
//! ```
//!
//! The three lead to one another, so they are one module. It has no procedure: a record holds the state of each service as that service's
//! own type, and the procedures stand in the modules above.
//!
//! # Memory ordering
//!
//! The size is loaded Acquire; its partner is the Release store in `AddressSpace::set_size`.

use foliocache_sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use foliocache_sync::background::Panics;
use foliocache_sync::collections::HashMap;
use foliocache_sync::durability::Durability;
use foliocache_sync::rank::{LeafMutex, Rank, RankedMutex, RankedRwLock};
use foliocache_sync::wait::WaitTable;
use foliocache_sync::{Arc, Condvar, LazyCounter, Mutex, OnceBox, Weak};
use foliocache_sys::Errno;
use foliocache_sys::fork::ForkGuard;
use foliocache_xarray::{NodePool, XArray};
use std::fmt;
use std::time::Duration;

use crate::counters::{Events, FileCounters, FileStats, PageCounts};
use crate::dirty::{
    Closed, DirtyFiles, FlushState, Groups, Handed, Rewrites, Shares, Space, Stalls, Throttle,
    Told, WritebackState,
};
use crate::errseq::ErrSeq;
use crate::folio::FolioPool;
use crate::frames::{FrameUsage, Frames};
use crate::hints::Appended;
use crate::mapped::{self, FaultMode, Holding};
use crate::ops::AddressSpaceOperations;
use crate::pins::Pins;
use crate::pressure::Pressure;
use crate::queues::Lru;
use crate::readahead::ReadaheadBudget;
use crate::reliance::{AskedFiles, Reliance};
use crate::rounds::Reclaimer;
use crate::slab::{SharedSlab, SlabWeak};
use crate::views::ViewHome;
use crate::worker::Worker;

/// Some pages of a file at some addresses.
pub(crate) type Window = mapped::Window<AddressSpace>;

/// The windows of a cache.
pub(crate) type Windows = mapped::Windows<AddressSpace>;

/// The linear ranges and windows of a file that was mapped.
pub(crate) type LinearFile = mapped::LinearFile<AddressSpace>;

/// How a cache is to be made.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MmConfig {
    /// The bound on all memory of the cache, in bytes.
    pub limit: u64,
    /// Share of the bound that may be dirty before writeback starts, in percent.
    pub dirty_background_percent: u32,
    /// Share of the bound that may be dirty before writers wait, in percent. Half as much again, up to 60, where much
    /// of what was written for want of room is dirtied again.
    pub dirty_percent: u32,
    /// How long data stays dirty before it is written without anybody asking.
    pub dirty_expire: Duration,
    /// Whether the bound gives way while memory is short outside: see
    /// [`PressureStats`](crate::PressureStats). Costs a thread that looks once a second, and more
    /// often under pressure.
    pub external_pressure: bool,
    /// How faults of mapped files are resolved.
    pub fault_mode: FaultMode,
    /// Most bytes that one fault of a mapped file puts into the page tables, at least a page. 2 MiB and more say:
    /// whole folios.
    pub fault_around_bytes: u32,
    /// Whether mapped files are to have huge pages of 2 MiB out of the kernel's pool.
    pub huge_frames: bool,
}

impl MmConfig {
    /// The defaults, under a bound of `limit` bytes.
    pub const fn new(limit: u64) -> Self {
        Self {
            limit,
            dirty_background_percent: 10,
            dirty_percent: 40,
            dirty_expire: Duration::from_secs(5),
            external_pressure: true,
            fault_mode: FaultMode::Thread,
            fault_around_bytes: 2 << 20,
            huge_frames: false,
        }
    }
}

/// One cache's memory management.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Mm {
    // Read by every hit, and never written: one cache line.
    pub(crate) fork: ForkGuard,
    pub(crate) frames: Arc<Frames>,
    pub(crate) nodes: Arc<NodePool>,
    pub(crate) config: MmConfig,
    // State that changes.
    pub(crate) folios: Arc<FolioPool>,
    pub(crate) lru: RankedMutex<{ Rank::LruLock as u8 }, Lru>,
    pub(crate) waits: WaitTable,
    /// Pages of all files that are not safely on a medium.
    pub(crate) counts: PageCounts,
    /// Pages of memory file systems: neither written back nor evicted.
    pub(crate) nr_unevictable: AtomicU64,
    pub(crate) holding: Holding,
    pub(crate) pins: Pins,
    pub(crate) views: Arc<ViewHome>,
    /// Names of files that have orphans, or had.
    pub(crate) orphan_names: Mutex<HashMap<u64, String>>,
    pub(crate) shares: Shares,
    pub(crate) stalls: Stalls,
    pub(crate) readahead: Arc<ReadaheadBudget>,
    pub(crate) reclaimer: Reclaimer,
    pub(crate) events: Events,
    pub(crate) pressure: Pressure,
    pub(crate) panics: Arc<Panics>,
    pub(crate) mappings: LeafMutex<Mappings>,
    /// The memory of the address spaces.
    pub(crate) mapping_slab: SharedSlab<AddressSpace>,
    pub(crate) bdis: LeafMutex<Vec<Weak<BackingDevInfo>>>,
    pub(crate) windows: OnceBox<Windows>,
    /// Held while the windows are made ready for the first of them.
    pub(crate) making_windows: Mutex<()>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    use std::mem::offset_of;

    assert!(offset_of!(Mm, fork) == 0 && offset_of!(Mm, folios) == 64);
};

#[derive(Debug, Default)]
pub(crate) struct Mappings {
    pub(crate) next_id: u64,
    pub(crate) live: HashMap<u64, SlabWeak<AddressSpace>>,
    /// Activity of the address spaces that are gone.
    pub(crate) retired: FileStats,
}

impl Mm {
    /// `ECHILD` in a process forked from the one that made the cache, whose memory is not there.
    #[inline]
    pub fn check_fork(&self) -> Result<(), Errno> {
        self.fork.check()
    }

    /// Panics of background threads that work for this cache.
    pub fn panics(&self) -> &Arc<Panics> {
        &self.panics
    }

    /// The frame space.
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Memory against the bound. Costs a few loads.
    pub fn usage(&self) -> FrameUsage {
        self.frames.usage()
    }
}

/// The store of the files of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BdiKind {
    /// A store that pages are read from and written to.
    Storage,
    /// Nothing: the cache is the store. Pages are never written back nor evicted, and may take up
    /// to half of the memory for pages.
    Memory,
}

/// One file system's dirty accounting and flusher.
#[doc(alias = "backing_dev_info")]
#[derive(Debug)]
#[repr(C, align(64))]
pub struct BackingDevInfo {
    // Read by every write hit, and seldom written: one cache line.
    pub(crate) mm: Arc<Mm>,
    pub(crate) name: String,
    pub(crate) kind: BdiKind,
    pub(crate) stopped: AtomicBool,
    /// Room in the store is scarce: writes ask for it.
    pub(crate) scarce: AtomicBool,
    /// The newest error of writing to this file system; 0 when writing works.
    pub(crate) error: AtomicI32,
    /// Bytes that its files are charged for counting hits.
    pub(crate) hit_bytes: AtomicU64,
    /// Part of the dirty limit that is this file system's while others have dirty data too, of
    /// [`dirty::WHOLE`](crate::dirty::WHOLE).
    pub(crate) share: AtomicU64,
    /// Its failed pages are the end of the line.
    pub(crate) counts: PageCounts,
    /// Pages of folios that devices may write, and those that are held for I/O, of a store: dirty all the while.
    pub(crate) stay_dirty: AtomicU64,
    pub(crate) dirty_files: RankedMutex<{ Rank::BdiList as u8 }, DirtyFiles<AddressSpace>>,
    /// Pages that uncached writers want to have written.
    pub(crate) handed: RankedMutex<{ Rank::BdiList as u8 }, Handed<AddressSpace>>,
    /// Closed files that are to be written soon.
    pub(crate) closed: RankedMutex<{ Rank::BdiList as u8 }, Closed<AddressSpace>>,
    /// Files whose pages reclaim wants and handles rely on.
    pub(crate) asked: AskedFiles,
    pub(crate) flusher: Worker,
    /// No listed file is dirty since before this, in nanoseconds of the monotonic clock; the flusher's.
    pub(crate) oldest_dirty: AtomicU64,
    pub(crate) throttle: Throttle,
    pub(crate) rewrites: Rewrites,
    pub(crate) space: Space,
    pub(crate) told: Told,
    /// Sleepers over the limit, and how many: they are woken when pages became durable.
    pub(crate) progress: (Mutex<u32>, Condvar),
}

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    use std::mem::offset_of;

    let counts = offset_of!(BackingDevInfo, counts);
    assert!(offset_of!(BackingDevInfo, mm) == 0 && counts + PageCounts::READ_BYTES == 64);
};

impl BackingDevInfo {
    /// The cache.
    #[inline]
    pub fn mm(&self) -> &Arc<Mm> {
        &self.mm
    }

    /// The file system's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the cache itself is the store.
    #[inline]
    pub fn is_memory(&self) -> bool {
        self.kind == BdiKind::Memory
    }
}

/// The cached pages of one file.
#[doc(alias = "address_space")]
#[repr(C, align(64))]
pub struct AddressSpace {
    // Read by every hit, and seldom written: one cache line.
    /// That of `bdi`, one load nearer.
    pub(crate) mm: Arc<Mm>,
    /// Pages that reads found in the cache.
    pub(crate) hits: LazyCounter,
    pub(crate) bdi: Arc<BackingDevInfo>,
    pub(crate) size: AtomicU64,
    /// Its head is the end of the line.
    pub(crate) index: XArray,
    // Changed as pages come, go and become dirty.
    /// The numbers of the first page's descriptor, above, and frame; zero for none (`start.rs`).
    pub(crate) start: AtomicU64,
    pub(crate) nr_pages: AtomicU64,
    pub(crate) wb_err: ErrSeq,
    pub(crate) counts: PageCounts,
    pub(crate) direct: Durability,
    pub(crate) appended: Appended,
    /// Pages of folios with pins; see `pin.rs`.
    pub(crate) nr_pinned: AtomicU64,
    // Used neither by a hit nor by a `stat`.
    pub(crate) ops: Arc<dyn AddressSpaceOperations>,
    pub(crate) id: u64,
    pub(crate) i_rwsem: RankedRwLock<{ Rank::IRwsem as u8 }, ()>,
    pub(crate) invalidate_lock: RankedRwLock<{ Rank::InvalidateLock as u8 }, ()>,
    pub(crate) flush_lock: RankedMutex<{ Rank::FlushLock as u8 }, FlushState>,
    /// Callers that make the file durable together, of a file that was made durable.
    pub(crate) groups: OnceBox<Groups>,
    /// How many wait for `wb_lock` to make the file durable.
    pub(crate) awaited: AtomicU32,
    pub(crate) wb_lock: RankedMutex<{ Rank::WritebackLock as u8 }, WritebackState>,
    pub(crate) counters: FileCounters,
    /// The file's turn in its device's list of dirty files, or [`NOT_DIRTY`](crate::dirty::NOT_DIRTY); changed under that list's lock.
    pub(crate) dirty_turn: AtomicU64,
    /// How often [`Mm::drop_behind`] was called for the file; wraps.
    pub(crate) drops_behind: AtomicU8,
    /// Bytes are about to be zeroed, with `i_rwsem` held exclusive: a view is a copy.
    pub(crate) refuses_views: AtomicBool,
    /// Whether handles have nothing but the pages.
    pub(crate) relied: Reliance,
    /// Threads that hold writers off; see `held_off.rs`.
    pub(crate) held_off: AtomicU8,
    /// Threads that take folios out without owning the address space; see [`crate::owner`].
    pub(crate) holders: AtomicU32,
    /// Until when the writers have waited for the pages that they dirtied; see `bdi`.
    pub(crate) dirty_paid_until: AtomicU64,
    /// State of [`Mm::drop_behind`] for the file: the page up to which it dropped last, and the number of evictions
    /// until which it assumes that a reader is close behind.
    pub(crate) dropped_to: AtomicU64,
    pub(crate) followed_until: AtomicU64,
    /// The linear ranges and windows, if the file was mapped.
    pub(crate) linear: OnceBox<LinearFile>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    use std::mem::offset_of;

    assert!(offset_of!(AddressSpace, mm) == 0);
    assert!(offset_of!(AddressSpace, index) + XArray::READ_BYTES == 64);
    // Opening the file reads no further than the second line, where the failed pages are counted.
    assert!(offset_of!(AddressSpace, counts) + PageCounts::READ_BYTES <= 128);
    assert!(size_of::<AddressSpace>() == 512);
};

impl fmt::Debug for AddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSpace")
            .field("file", &self.ops.describe())
            .field("size", &self.size())
            .field("resident", &self.nr_pages())
            .finish_non_exhaustive()
    }
}

impl AddressSpace {
    /// A number no other address space of the cache ever has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The file as its file system names it in messages.
    pub fn name(&self) -> String {
        self.ops.describe()
    }

    /// The cache's memory management.
    #[inline]
    pub fn mm(&self) -> &Arc<Mm> {
        &self.mm
    }

    /// The file system's accounting and flusher.
    #[inline]
    pub fn bdi(&self) -> &Arc<BackingDevInfo> {
        &self.bdi
    }

    /// The file's size, in bytes. Takes no lock.
    #[inline]
    #[doc(alias = "i_size_read")]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Pages in the cache.
    pub fn nr_pages(&self) -> u64 {
        self.nr_pages.load(Ordering::Relaxed)
    }
}
