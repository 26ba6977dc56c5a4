//! The list of a file system's dirty files.
//!
//! # Model
//!
//! A file is put at the end when it becomes dirty, and goes to the end again when it had its turn. So
//! the list is about in the order in which files became dirty, but for files that are too large for one turn.
//! Each step is O(1): a file knows its [slot](super::ring).
//!
//! # Memory ordering
//!
//! `dirty_slot` against the file's page counts is a Dekker pair, by two SeqCst fences, each the
//! other's partner: who dirties a page counts it and then looks at the slot; who takes a file off
//! clears the slot and then looks at the counts. One of them sees what the other did.

use foliocache_sync::Arc;
use foliocache_sync::atomic::{Ordering, fence};
use foliocache_sys::clock;

use super::BackingDevInfo;
use crate::address_space::AddressSpace;

/// What [`AddressSpace::dirty_slot`] holds while the file is on no list.
pub(crate) const NO_SLOT: u32 = 0;

/// A file on the list.
#[derive(Debug)]
pub(super) struct DirtyFile {
    file: Arc<AddressSpace>,
    /// When the oldest of its data that is not durable became dirty, in nanoseconds of the monotonic clock.
    since: u64,
}

impl BackingDevInfo {
    /// Files that have data not yet safely on the medium.
    pub fn dirty_files(&self) -> Vec<Arc<AddressSpace>> {
        let files = self.dirty_files.lock();
        files.iter().map(|dirty| Arc::clone(&dirty.file)).collect()
    }

    /// Puts a file on the list of dirty files, if it is not there.
    pub(crate) fn queue_dirty(&self, mapping: &Arc<AddressSpace>) {
        // Partner: the fence in `unqueue_if_durable`. Either that sees the page counted before this
        // call, or this sees the slot cleared.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence; the slot changes under the list's lock.
        if mapping.dirty_slot.load(Ordering::Relaxed) != NO_SLOT {
            return;
        }
        let first = {
            let mut files = self.dirty_files.lock();
            if mapping.dirty_slot.load(Ordering::Relaxed) != NO_SLOT {
                return;
            }
            let slot = files.push_back(DirtyFile {
                file: Arc::clone(mapping),
                since: clock::monotonic_ns(),
            });
            mapping.dirty_slot.store(slot, Ordering::Relaxed);
            if files.len() == 1 {
                // Nothing of it is dirty but this: it has what it is given next.
                self.share.store(0, Ordering::Relaxed);
                self.mm.nr_dirty_bdis.fetch_add(1, Ordering::Relaxed);
            }
            files.len() == 1
        };
        if first {
            self.mm.shares.joined();
            self.flusher.wake();
        }
    }

    /// The next file for the flusher, moved to the end of the list, and since when it is dirty.
    pub(crate) fn next_dirty_file(&self) -> Option<(Arc<AddressSpace>, u64)> {
        let mut files = self.dirty_files.lock();
        let dirty = files.rotate()?;
        Some((Arc::clone(&dirty.file), dirty.since))
    }

    /// What is dirty of a file became so at `since` or later.
    pub(crate) fn note_younger(&self, mapping: &AddressSpace, since: u64) {
        let mut files = self.dirty_files.lock();
        // Relaxed: changes under the lock.
        let slot = mapping.dirty_slot.load(Ordering::Relaxed);
        if slot != NO_SLOT {
            let dirty = files.get_mut(slot);
            dirty.since = dirty.since.max(since);
        }
    }

    pub(crate) fn nr_dirty_files(&self) -> usize {
        self.dirty_files.lock().len()
    }

    /// Slots of the list that were looked at, ever.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn list_steps(&self) -> u64 {
        self.dirty_files.lock().steps.get()
    }

    /// Takes a file off the list if it is durable now. What was taken off is dropped unlocked.
    pub(crate) fn unqueue_if_durable(&self, mapping: &Arc<AddressSpace>) {
        let mut files = self.dirty_files.lock();
        if mapping.is_dirty() {
            return;
        }
        let slot = mapping.dirty_slot.swap(NO_SLOT, Ordering::Relaxed);
        if slot == NO_SLOT {
            return;
        }
        let file = files.remove(slot);
        if files.len() == 0 {
            self.mm.nr_dirty_bdis.fetch_sub(1, Ordering::Relaxed);
        }
        drop(files);
        // Partner: the fence in `queue_dirty`.
        fence(Ordering::SeqCst);
        // A writer may have dirtied it after the look above and seen the slot still set.
        if mapping.is_dirty() {
            self.queue_dirty(mapping);
        }
        drop(file);
    }
}
