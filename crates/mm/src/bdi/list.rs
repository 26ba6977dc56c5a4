//! The list of a file system's dirty files.
//!
//! # Model
//!
//! A file is put at the end when it becomes dirty, and goes to the end again when it had its turn. So
//! the list is about in the order of `dirtied_when`, but for files that are too large for one turn.
//!
//! # Memory ordering
//!
//! `on_dirty_list` against the file's page counts is a Dekker pair, by two SeqCst fences, each the
//! other's partner: who dirties a page counts it and then looks at the flag; who takes a file off
//! clears the flag and then looks at the counts. One of them sees what the other did.

use foliocache_sync::Arc;
use foliocache_sync::atomic::{Ordering, fence};
use foliocache_sys::clock;

use super::BackingDevInfo;
use crate::address_space::AddressSpace;

impl BackingDevInfo {
    /// Files that have data not yet safely on the medium.
    pub fn dirty_files(&self) -> Vec<Arc<AddressSpace>> {
        self.dirty_files.lock().iter().cloned().collect()
    }

    /// Puts a file on the list of dirty files, if it is not there.
    pub(crate) fn queue_dirty(&self, mapping: &Arc<AddressSpace>) {
        // Partner: the fence in `unqueue_if_durable`. Either that sees the page counted before this
        // call, or this sees the flag cleared.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence; the flag changes under the list's lock.
        if mapping.on_dirty_list.load(Ordering::Relaxed) {
            return;
        }
        let first = {
            let mut files = self.dirty_files.lock();
            if mapping.on_dirty_list.swap(true, Ordering::Relaxed) {
                return;
            }
            mapping
                .dirtied_when
                .store(clock::monotonic_ns(), Ordering::Relaxed);
            files.push_back(Arc::clone(mapping));
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

    /// The next file for the flusher, moved to the end of the list.
    pub(crate) fn next_dirty_file(&self) -> Option<Arc<AddressSpace>> {
        let mut files = self.dirty_files.lock();
        let file = files.pop_front()?;
        files.push_back(Arc::clone(&file));
        Some(file)
    }

    pub(crate) fn nr_dirty_files(&self) -> usize {
        self.dirty_files.lock().len()
    }

    /// Takes a file off the list if it is durable now. What was taken off is dropped unlocked.
    pub(crate) fn unqueue_if_durable(&self, mapping: &Arc<AddressSpace>) {
        let mut files = self.dirty_files.lock();
        if mapping.is_dirty() {
            return;
        }
        let Some(at) = files.iter().position(|file| Arc::ptr_eq(file, mapping)) else {
            return;
        };
        mapping.on_dirty_list.store(false, Ordering::Relaxed);
        mapping.dirtied_when.store(0, Ordering::Relaxed);
        let file = files.remove(at);
        if files.is_empty() {
            self.mm.nr_dirty_bdis.fetch_sub(1, Ordering::Relaxed);
        }
        drop(files);
        // Partner: the fence in `queue_dirty`.
        fence(Ordering::SeqCst);
        // A writer may have dirtied it after the look above and seen the flag still set.
        if mapping.is_dirty() {
            self.queue_dirty(mapping);
        }
        drop(file);
    }
}
