//! Making a cache, and its end.

use foliocache_sync::atomic::AtomicU64;
use foliocache_sync::background::Panics;
use foliocache_sync::rank::{LeafMutex, RankedMutex};
use foliocache_sync::wait::WaitTable;
use foliocache_sync::{Arc, Mutex, OnceBox};
use foliocache_sys::Errno;
use foliocache_sys::fork::ForkGuard;
use foliocache_xarray::NodePool;

use crate::counters::{Events, PageCounts};
use crate::dirty::{Shares, Stalls};
use crate::error::MmError;
use crate::folio::FolioPool;
use crate::frames::Frames;
use crate::mapped::Holding;
use crate::nodes::NodeChunks;
use crate::pins::Pins;
use crate::pressure::Pressure;
use crate::queues::Lru;
use crate::readahead::{READAHEAD_PART, ReadaheadBudget};
use crate::records::{Mappings, Mm, MmConfig};
use crate::registry::MappingPages;
use crate::rounds::Reclaimer;
use crate::slab::SharedSlab;
use crate::types::PAGE_SIZE;
use crate::views::ViewHome;

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
            orphan_names: Mutex::default(),
            folios,
            nodes: Arc::new(NodePool::new(Box::new(nodes))),
            lru: RankedMutex::new(Lru::new(nr_frames)),
            waits: WaitTable::new(),
            counts: PageCounts::default(),
            nr_unevictable: AtomicU64::new(0),
            pins: Pins::default(),
            shares: Shares::new(),
            stalls: Stalls::new(),
            readahead: Arc::new(ReadaheadBudget::new(
                nr_frames / READAHEAD_PART,
                Some(Arc::clone(&frames)),
            )),
            reclaimer: Reclaimer::default(),
            events: Events::default(),
            holding: Holding::default(),
            panics: Arc::new(Panics::new(|thread, message| {
                tracing::error!(thread, message, "a background thread panicked and goes on");
            })),
            mappings: LeafMutex::new(Mappings::default()),
            mapping_slab: SharedSlab::new(Arc::new(MappingPages(Arc::clone(&frames)))),
            bdis: LeafMutex::new(Vec::new()),
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
}

impl Drop for Mm {
    fn drop(&mut self) {
        if self.fork.is_child() {
            // The pool would look at its nodes, which are not there in a child.
            std::mem::forget(Arc::clone(&self.nodes));
            return;
        }
        self.pressure.stop();
        self.reclaimer.worker.stop();
        self.pins.revoker.stop();
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
