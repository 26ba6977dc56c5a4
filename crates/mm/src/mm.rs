//! One cache's memory management: its frames, descriptors, queues and dirty limits, and the
//! memory that every operation reserves before it takes a lock.
//!
//! # Model
//!
//! An operation that may add folios calls [`Mm::prepare`] first, holding nothing that writeback or
//! reclaim need. It returns with frames promised, index nodes preloaded and a descriptor in hand;
//! from there to the index nothing can fail for want of memory.
//!
//! # Invariants
//!
//! 1. Nobody waits for memory while holding memory: [`Prepared`] is made whole or not at all.
//!
//! # Locking
//!
//! `mappings` *protects* the list of address spaces. *Order*: before every lock of one mapping but
//! never held across any of them. *May block*: briefly.

use foliocache_sync::atomic::AtomicU64;
use foliocache_sync::background::Panics;
use foliocache_sync::collections::HashMap;
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::wait::WaitTable;
use foliocache_sync::{Arc, Mutex, OnceBox, Weak, rcu};
use foliocache_sys::Errno;
use foliocache_sys::fork::ForkGuard;
use foliocache_sys::memory::PageVec;
use foliocache_xarray::{NodePool, PreloadError};
use std::time::Duration;

use crate::address_space::AddressSpace;
use crate::bdi::{BackingDevInfo, Limiter, Shares, Stalls};
use crate::error::MmError;
use crate::filemap::{Pins, ViewHome};
use crate::folio::FolioPool;
use crate::frames::{BLOCK_FRAMES, FrameKind, FrameUsage, Frames, Reservation};
use crate::holder::OrphanNames;
use crate::nodes::NodeChunks;
use crate::prepared::Prepared;
use crate::pressure::Pressure;
use crate::readahead::ReadaheadBudget;
use crate::reclaim::{Lru, Need, Rounds, Shrinker, Waiter};
use crate::stats::{FileStats, MmStats, PageCounts, read};
use crate::types::{PAGE_SIZE, PageIndex};
use crate::window::{FaultMode, Windows};
use crate::worker::Worker;

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
    /// Who resolves the faults of mapped files.
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

/// Readahead may hold one part in this many of the frames, not yet used.
pub(crate) const READAHEAD_PART: u64 = 8;

/// Times room is made for a charge of metadata before it is refused: others may take what is freed.
const CHARGE_ATTEMPTS: usize = 4;

/// One cache's memory management.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Mm {
    // What a hit reads and nobody writes: one cache line.
    fork: ForkGuard,
    pub(crate) frames: Arc<Frames>,
    pub(crate) nodes: Arc<NodePool>,
    pub(crate) config: MmConfig,
    // What changes.
    pub(crate) folios: Arc<FolioPool>,
    pub(crate) lru: RankedMutex<Lru>,
    pub(crate) waits: WaitTable,
    /// Pages of all files that are not safely on a medium.
    pub(crate) counts: PageCounts,
    /// Pages of memory file systems: neither written back nor evicted.
    pub(crate) nr_unevictable: AtomicU64,
    /// Pages that mappings hold.
    pub(crate) nr_held: AtomicU64,
    /// Those of them that are held for I/O, not of memory file systems. Relaxed: they steer.
    pub(crate) nr_held_for_io: AtomicU64,
    pub(crate) pins: Pins,
    pub(crate) views: Arc<ViewHome>,
    pub(crate) orphan_names: OrphanNames,
    /// What held pages are written from, made by the first: they change meanwhile.
    pub(crate) stable: Mutex<PageVec<u8>>,
    /// File systems that have dirty files, among which the dirty limit is shared.
    pub(crate) nr_dirty_bdis: AtomicU64,
    pub(crate) shares: Shares,
    pub(crate) stalls: Stalls,
    pub(crate) readahead: Arc<ReadaheadBudget>,
    pub(crate) background: Worker,
    pub(crate) rounds: Rounds,
    /// Lets one thread at a time give memory back. Before every lock of memory, held over waits for folios and
    /// for RCU.
    pub(crate) giving_back: Mutex<()>,
    pub(crate) pressure: Pressure,
    pub(crate) direct_reclaims: AtomicU64,
    /// Lines of the log that tell of them.
    pub(crate) direct_reclaims_told: Limiter,
    pub(crate) memory_faults: AtomicU64,
    pub(crate) compacted: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) copied_views: AtomicU64,
    pub(crate) replaced: AtomicU64,
    panics: Arc<Panics>,
    mappings: RankedMutex<Mappings>,
    pub(crate) shrinkers: RankedMutex<Vec<Weak<dyn Shrinker>>>,
    /// Until when caches of metadata need not ask for memory, in coarse milliseconds.
    pub(crate) no_metadata_until: AtomicU64,
    /// Until when the background reclaimer need not look whether caches of metadata hold too much, likewise.
    pub(crate) no_ahead_until: AtomicU64,
    bdis: RankedMutex<Vec<Weak<BackingDevInfo>>>,
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
struct Mappings {
    next_id: u64,
    live: HashMap<u64, Weak<AddressSpace>>,
    /// Activity of the address spaces that are gone.
    retired: FileStats,
}

impl Mm {
    /// A cache bounded by `config.limit` bytes, with its background reclaimer running.
    ///
    /// # Errors
    /// A limit that is too small or exceeds the machine; address space or a thread refused.
    pub fn new(config: MmConfig) -> Result<Arc<Self>, MmError> {
        let frames = Frames::new(config.limit)?.with_huge_frames(config.huge_frames);
        let frames = Arc::new(frames);
        // A file may be as sparse as it likes: nodes may take all of the bound.
        let max_bytes = config.limit.max(foliocache_sys::memory::total_memory());
        let nodes = NodeChunks::new(Arc::clone(&frames), max_bytes)?;
        let nr_frames = frames.capacity();
        let shadow_bytes = Lru::metadata_bytes(nr_frames);
        if !frames.charge_metadata(shadow_bytes) {
            return Err(Errno::ENOMEM.into());
        }
        let (pressure, monitor) = Pressure::new(config.limit, config.external_pressure, &frames)?;
        let folios = Arc::new(FolioPool::new(max_bytes / PAGE_SIZE as u64)?);
        let mm = Arc::new(Self {
            config,
            pressure,
            views: ViewHome::new(&frames, &folios)?,
            orphan_names: OrphanNames::default(),
            folios,
            nodes: Arc::new(NodePool::new(Box::new(nodes))),
            lru: RankedMutex::new(Rank::LruLock, Lru::new(nr_frames)),
            waits: WaitTable::new(),
            counts: PageCounts::default(),
            nr_unevictable: AtomicU64::new(0),
            nr_held: AtomicU64::new(0),
            nr_held_for_io: AtomicU64::new(0),
            pins: Pins::default(),
            stable: Mutex::default(),
            nr_dirty_bdis: AtomicU64::new(0),
            shares: Shares::new(),
            stalls: Stalls::new(),
            readahead: Arc::new(ReadaheadBudget::new(
                nr_frames / READAHEAD_PART,
                Some(Arc::clone(&frames)),
            )),
            background: Worker::default(),
            rounds: Rounds::default(),
            giving_back: Mutex::new(()),
            direct_reclaims: AtomicU64::new(0),
            direct_reclaims_told: Limiter::default(),
            memory_faults: AtomicU64::new(0),
            compacted: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            copied_views: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            panics: Arc::new(Panics::new(|thread, message| {
                tracing::error!(thread, message, "a background thread panicked and goes on");
            })),
            mappings: RankedMutex::new(Rank::Leaf, Mappings::default()),
            shrinkers: RankedMutex::new(Rank::Leaf, Vec::new()),
            no_metadata_until: AtomicU64::new(0),
            no_ahead_until: AtomicU64::new(0),
            bdis: RankedMutex::new(Rank::Leaf, Vec::new()),
            windows: OnceBox::default(),
            making_windows: Mutex::new(()),
            fork: ForkGuard::new()?,
            frames,
        });
        mm.start_background()?;
        if let Some(monitor) = monitor {
            mm.pressure.start(&mm, monitor)?;
        }
        Ok(mm)
    }

    /// `ECHILD` in a process forked from the one that made the cache, whose memory is not there.
    #[inline]
    pub fn check_fork(&self) -> Result<(), Errno> {
        self.fork.check()
    }

    /// What became known of panics in background threads that work for this cache.
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

    /// Charges `bytes` of somebody's metadata to the bound; reclaims a little to make room. Pages give way to it before names
    /// and inodes do: [`Mm::charge_used_metadata`] has it the other way round.
    ///
    /// # Errors
    /// `ENOMEM` when what may be metadata is used up even so. Never waits for I/O.
    pub fn charge_metadata(&self, bytes: u64) -> Result<(), Errno> {
        for _ in 0..CHARGE_ATTEMPTS {
            if self.take_metadata(bytes) {
                return Ok(());
            }
            if self.metadata_may_grow() {
                self.make_room_for_metadata();
            }
            self.nodes.shrink();
        }
        match self.take_metadata(bytes) {
            true => Ok(()),
            false => Err(Errno::ENOMEM),
        }
    }

    /// Charges metadata that is neither a descriptor nor an index node, if there is room for it now.
    pub(crate) fn take_metadata(&self, bytes: u64) -> bool {
        self.frames.try_charge_metadata(bytes)
            || (self.metadata_may_grow() && self.frames.charge_metadata(bytes))
    }

    /// Gives charged metadata back.
    pub fn uncharge_metadata(&self, bytes: u64) {
        self.frames.uncharge_metadata(bytes);
    }

    /// All figures of the cache. Takes every file's counters together: not for a hot path.
    pub fn stats(&self) -> MmStats {
        let (mut files, known_files) = {
            let mappings = self.mappings.lock();
            (mappings.retired, mappings.live.len() as u64)
        };
        for mapping in self.mappings() {
            mapping.add_stats(&mut files);
        }
        MmStats {
            memory: self.usage(),
            unreclaimable: self.unreclaimable(),
            files,
            known_files,
            readahead_leased_pages: self.readahead.leased(),
            direct_reclaims: read(&self.direct_reclaims),
            memory_faults: read(&self.memory_faults),
            blocks_compacted: read(&self.compacted),
            blocks_skipped: read(&self.skipped),
            views_copied: read(&self.copied_views),
            copied_view_bytes: self.views.copied_bytes(),
            folios_replaced: read(&self.replaced),
            give_back_failures: self.frames.give_back_failures(),
            background_panics: self.panics.count(),
            pressure: self.pressure.stats(),
            throttle: self.stalls.stats(),
        }
    }

    /// The address spaces there are now.
    pub fn mappings(&self) -> Vec<Arc<AddressSpace>> {
        self.mappings
            .lock()
            .live
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    pub(crate) fn add_bdi(&self, bdi: &Arc<BackingDevInfo>) {
        let mut bdis = self.bdis.lock();
        bdis.retain(|bdi| bdi.strong_count() > 0);
        bdis.push(Arc::downgrade(bdi));
    }

    pub(crate) fn bdis(&self) -> Vec<Arc<BackingDevInfo>> {
        self.bdis.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Asks every flusher to write and to flush early, because memory is short.
    pub(crate) fn request_writeback(&self) {
        for bdi in self.bdis() {
            if bdi.nr_not_durable() > 0 {
                bdi.flusher.wake_for_memory();
            }
        }
    }

    pub(crate) fn next_mapping_id(&self) -> u64 {
        let mut mappings = self.mappings.lock();
        mappings.next_id += 1;
        mappings.next_id
    }

    pub(crate) fn register(&self, mapping: &Arc<AddressSpace>) {
        self.mappings
            .lock()
            .live
            .insert(mapping.id(), Arc::downgrade(mapping));
    }

    /// The address space with an id, if there is still one.
    pub(crate) fn mapping(&self, id: u64) -> Option<Arc<AddressSpace>> {
        self.mappings.lock().live.get(&id).and_then(Weak::upgrade)
    }

    pub(crate) fn unregister(&self, mapping: &AddressSpace) {
        let mut mappings = self.mappings.lock();
        mappings.live.remove(&mapping.id());
        mapping.add_activity(&mut mappings.retired);
    }

    /// Reserves what adding folios at `first..=last` of `mapping` needs; of huge frames, the first.
    ///
    /// Context: may block for reclaim and writeback; no lock that those need, no RCU read section.
    ///
    /// # Errors
    /// `ENOSPC` when a memory file system would pass its share. `ENOMEM` when nothing at all can be
    /// reclaimed.
    pub(crate) fn prepare<'a>(
        &'a self,
        mapping: &AddressSpace,
        first: PageIndex,
        last: PageIndex,
    ) -> Result<Prepared<'a>, Errno> {
        let (first, last) = match mapping.huge_unit(first) {
            Some(first) => (first, first.add(u64::from(BLOCK_FRAMES) - 1)),
            None => (first, last),
        };
        self.wait_for_memory_share(mapping, (last.0 - first.0 + 1) as u32)?;
        self.prepare_to_replace(mapping, first, last)
    }

    /// As [`Mm::prepare`], for folios in the place of others at `first..=last`: what the views keep counts in their share,
    /// not in that of a memory file system.
    ///
    /// Context as [`Mm::prepare`].
    ///
    /// # Errors
    /// `ENOMEM` when nothing at all can be reclaimed.
    pub(crate) fn prepare_to_replace<'a>(
        &'a self,
        mapping: &AddressSpace,
        first: PageIndex,
        last: PageIndex,
    ) -> Result<Prepared<'a>, Errno> {
        let wanted = (last.0 - first.0 + 1) as u32;
        let kind = mapping.frame_kind(first);
        if kind == FrameKind::Linear {
            self.wait_for_metadata(|| mapping.charge_tables(first.0..last.0 + 1))?;
        }
        let mut waiter = self.waiter(Need::Metadata);
        loop {
            let frames = self.reserve_frames(kind, wanted)?;
            let short = match self.complete(mapping, first, last, frames) {
                Ok(prepared) => return Ok(prepared),
                Err(short) => short,
            };
            match short {
                Short::Nodes(PreloadError::WouldBlock) => {
                    self.nodes.wait_for_limbo();
                    continue;
                }
                Short::Nodes(_) => {}
                // Descriptors can have what index nodes do not use.
                Short::Descriptors => _ = self.nodes.shrink(),
            }
            self.make_more_metadata(&mut waiter)?;
        }
    }

    /// Makes room for metadata until `take` has what it needs.
    ///
    /// # Errors
    /// `ENOMEM` when nothing at all can be reclaimed.
    pub(crate) fn wait_for_metadata(&self, take: impl Fn() -> bool) -> Result<(), Errno> {
        let mut waiter = self.waiter(Need::Metadata);
        while !take() {
            self.make_more_metadata(&mut waiter)?;
        }
        Ok(())
    }

    fn make_more_metadata(&self, waiter: &mut Waiter<'_>) -> Result<(), Errno> {
        match () {
            () if self.make_room_for_metadata() => waiter.evicted(),
            () if self.anything_reclaimable() => waiter.held_up(),
            () => waiter.refused()?,
        }
        Ok(())
    }

    /// As [`Mm::prepare`] with what is free or can be evicted now; else nothing.
    ///
    /// Context: takes the LRU lock and `xa_lock`s; does not sleep.
    pub(crate) fn try_prepare<'a>(
        &'a self,
        mapping: &AddressSpace,
        first: PageIndex,
        last: PageIndex,
    ) -> Option<Prepared<'a>> {
        let pages = mapping.whole(first..last.add(1));
        let (first, last) = (pages.start, PageIndex(pages.end.0 - 1));
        let wanted = (last.0 - first.0 + 1) as u32;
        self.check_memory_share(mapping, wanted).ok()?;
        self.try_prepare_to_replace(mapping, first, last)
    }

    /// As [`Mm::prepare_to_replace`] with what is free or can be evicted now; else nothing.
    ///
    /// Context: as [`Mm::try_prepare`].
    pub(crate) fn try_prepare_to_replace<'a>(
        &'a self,
        mapping: &AddressSpace,
        first: PageIndex,
        last: PageIndex,
    ) -> Option<Prepared<'a>> {
        let wanted = (last.0 - first.0 + 1) as u32;
        let kind = mapping.frame_kind(first);
        if kind == FrameKind::Linear && !mapping.charge_tables(first.0..last.0 + 1) {
            return None;
        }
        let frames = self.try_reserve_frames(kind, wanted)?;
        self.complete(mapping, first, last, frames).ok()
    }

    /// Adds index nodes and a descriptor to promised frames, or gives all back (invariant 1).
    fn complete<'a>(
        &'a self,
        mapping: &AddressSpace,
        first: PageIndex,
        last: PageIndex,
        frames: Reservation<'a>,
    ) -> Result<Prepared<'a>, Short> {
        let needed = {
            let rcu = rcu::read_lock();
            mapping.index.nodes_needed_range(first.0, last.0, &rcu)
        };
        let nodes = self.nodes.preload(needed).map_err(Short::Nodes)?;
        let folio = self.folios.alloc(&self.frames).ok_or(Short::Descriptors)?;
        Ok(Prepared::new(self, frames, nodes, folio))
    }
}

/// What was missing beside frames.
enum Short {
    Nodes(PreloadError),
    Descriptors,
}

impl Drop for Mm {
    fn drop(&mut self) {
        if self.fork.is_child() {
            // The pool would look at its nodes, which are not there in a child.
            std::mem::forget(Arc::clone(&self.nodes));
            return;
        }
        self.pressure.stop();
        self.background.stop();
        if let Some(windows) = self.windows.get() {
            windows.stop();
        }
        if self.views.end() > 0 {
            // No more than the views need.
            self.frames.trim(true);
            self.log_holders("views outlive their cache, which leaves them its memory");
        }
    }
}
