//! The files and the file systems of a cache.
//!
//! # Locking
//!
//! `mappings` *protects* the list of address spaces. *Order*: before every lock of one mapping but
//! never held across any of them. *May block*: briefly.

use foliocache_sync::{Arc, Weak};

use crate::bound::MetadataBound;
use crate::frames::Frames;
use crate::records::{AddressSpace, BackingDevInfo, Mm, Windows};
use crate::slab::{SlabArc, SlabWeak};

/// The account of the pages in which a cache's address spaces lie. Whoever needs one makes room for it first.
pub(crate) struct MappingPages(pub(crate) Arc<Frames>);

impl MetadataBound for MappingPages {
    fn charge(&self, bytes: u64) -> bool {
        self.0.charge_metadata(bytes)
    }

    fn uncharge(&self, bytes: u64) {
        self.0.uncharge_metadata(bytes);
    }
}

impl Mm {
    /// Gives charged metadata back.
    pub fn uncharge_metadata(&self, bytes: u64) {
        self.frames.uncharge_metadata(bytes);
    }

    /// The address spaces there are now.
    pub fn mappings(&self) -> Vec<SlabArc<AddressSpace>> {
        let live = &self.mappings.lock().live;
        live.values().filter_map(SlabWeak::upgrade).collect()
    }

    /// The address space with an id, if there is still one.
    pub(crate) fn mapping(&self, id: u64) -> Option<SlabArc<AddressSpace>> {
        self.mappings
            .lock()
            .live
            .get(&id)
            .and_then(SlabWeak::upgrade)
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
            if bdi.counts.not_durable() > 0 {
                bdi.flusher.wake_for_memory();
            }
        }
    }

    pub(crate) fn next_mapping_id(&self) -> u64 {
        let mut mappings = self.mappings.lock();
        mappings.next_id += 1;
        mappings.next_id
    }

    pub(crate) fn register(&self, mapping: &SlabArc<AddressSpace>) {
        let live = &mut self.mappings.lock().live;
        live.insert(mapping.id(), SlabArc::downgrade(mapping));
    }

    pub(crate) fn unregister(&self, mapping: &AddressSpace) {
        let mut mappings = self.mappings.lock();
        mappings.live.remove(&mapping.id());
        mapping.add_activity(&mut mappings.retired);
    }

    /// The windows of the cache. Context: there is one, or was.
    pub(crate) fn windows(&self) -> &Windows {
        self.windows.get().expect("a file was mapped")
    }
}
