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
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::wait::WaitTable;
use foliocache_sync::{Arc, Mutex, OnceBox, Weak, rcu};
use foliocache_sys::Errno;
use foliocache_sys::fork::ForkGuard;
use foliocache_xarray::{NodePool, PreloadError};

use crate::counters::PageCounts;
use crate::dirty::{Limiter, Shares, Stalls};
use crate::error::MmError;
use crate::folio::FolioPool;
use crate::frames::{BLOCK_FRAMES, FrameKind, Frames, Reservation};
use crate::nodes::NodeChunks;
use crate::pins::{OrphanNames, Pins};
use crate::prepared::Prepared;
use crate::pressure::Pressure;
use crate::queues::Lru;
use crate::readahead::READAHEAD_PART;
use crate::readahead::ReadaheadBudget;
use crate::reclaim::{Need, Waiter};
use crate::records::AddressSpace;
use crate::records::BackingDevInfo;
use crate::records::{Mappings, Mm, MmConfig};
use crate::rounds::Rounds;
use crate::types::{PAGE_SIZE, PageIndex};
use crate::views::ViewHome;
use crate::worker::Worker;

/// Times room is made for a charge of metadata before it is refused: others may take what is freed.
const CHARGE_ATTEMPTS: usize = 4;

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
            mm.start_following(monitor)?;
        }
        Ok(mm)
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
