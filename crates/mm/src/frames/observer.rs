//! Telling others which blocks are held, so that they can register them with a device.
//!
//! # Model
//!
//! The list of observers and the set of announced blocks change together under one short lock; the
//! observers are called outside of it. A block's `added` and a new observer's introduction each start
//! from what the other left under that lock, so that every pair of block and observer meets once.
//!
//! # Invariants
//!
//! For each observer and block: `added` and `removed` alternate, beginning with `added`, and `removed`
//! begins only after `added` has returned. Calls for different blocks may overlap.
//!
//! # Locking
//!
//! The list's lock has [`Rank::Leaf`] and is held while nobody is called. An observer's introduction is
//! awaited by `removed` alone.

use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::{Arc, Condvar, Weak};
use std::collections::BTreeSet;

/// Told which blocks are held, so that it can register them with a device.
///
/// The calls come with the locks that a caller of the frame space's functions happens to hold, so an
/// observer takes only locks of its own, and neither allocates nor frees frames. It must not panic.
pub trait BlockObserver: Send + Sync {
    /// Block `block` of `len` bytes at `addr` is about to come into use; its memory is there.
    ///
    /// Context: no lock of the frame space is held, but allocations of other threads may wait for the
    /// block. Must not wait for I/O that needs memory.
    fn added(&self, block: u32, addr: *mut u8, len: usize);

    /// Block `block` is about to be given back: no frame of it is in use. Returns once its
    /// registrations are gone and all I/O over it has ended.
    ///
    /// Context: no lock of the frame space is held. May block.
    fn removed(&self, block: u32);
}

struct Entry {
    observer: Weak<dyn BlockObserver>,
    introduced: RankedMutex<bool>,
    woken: Condvar,
}

impl Entry {
    fn wait_introduced(&self) {
        let mut introduced = self.introduced.lock();
        while !*introduced {
            introduced = self.woken.wait_ranked(introduced);
        }
    }
}

#[derive(Default)]
struct List {
    entries: Vec<Arc<Entry>>,
    announced: BTreeSet<u32>,
}

/// The observers of one frame space.
pub(super) struct Observers {
    list: RankedMutex<List>,
}

impl Observers {
    pub(super) fn new() -> Self {
        Self {
            list: RankedMutex::new(Rank::Leaf, List::default()),
        }
    }

    /// Adds an observer and tells it of all announced blocks by `tell`.
    pub(super) fn introduce(
        &self,
        observer: &Arc<dyn BlockObserver>,
        tell: impl Fn(&dyn BlockObserver, u32),
    ) {
        let entry = Arc::new(Entry {
            observer: Arc::downgrade(observer),
            introduced: RankedMutex::new(Rank::Leaf, false),
            woken: Condvar::new(),
        });
        let blocks: Vec<u32> = {
            let mut list = self.list.lock();
            list.entries.push(Arc::clone(&entry));
            list.announced.iter().copied().collect()
        };
        for block in blocks {
            tell(&**observer, block);
        }
        *entry.introduced.lock() = true;
        entry.woken.notify_all();
    }

    /// Announces a block, telling every observer by `tell`.
    pub(super) fn announce(&self, block: u32, tell: impl Fn(&dyn BlockObserver, u32)) {
        let entries = {
            let mut list = self.list.lock();
            list.entries
                .retain(|entry| entry.observer.strong_count() > 0);
            list.announced.insert(block);
            list.entries.clone()
        };
        for observer in entries.iter().filter_map(|entry| entry.observer.upgrade()) {
            tell(&*observer, block);
        }
    }

    /// Tells every observer that a block goes; blocks until all have let go of it.
    pub(super) fn retire(&self, block: u32) {
        let entries = {
            let mut list = self.list.lock();
            list.announced.remove(&block);
            list.entries.clone()
        };
        for entry in entries {
            entry.wait_introduced();
            if let Some(observer) = entry.observer.upgrade() {
                observer.removed(block);
            }
        }
    }
}
