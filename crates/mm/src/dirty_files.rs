//! The list of a file system's dirty files.
//!
//! # Model
//!
//! A file is put at the end when it becomes dirty, and goes to the end again when it had its turn. So
//! the list is about in the order in which files became dirty, but for files that are too large for one turn.
//! Turns are numbered, and a file knows its own.
//!
//! # Memory ordering
//!
//! `dirty_turn` against the file's page counts is a Dekker pair, by two SeqCst fences, each the
//! other's partner: a writer counts its page and then looks at the turn; a thread that takes a file
//! off the list clears the turn and then looks at the counts. One of them sees what the other did.

use foliocache_sync::atomic::{AtomicU64, Ordering, fence};
use foliocache_sync::time::monotonic_ns;

use crate::dirty::{DirtyFile, Listed, NOT_DIRTY};
use crate::records::{AddressSpace, BackingDevInfo};
use crate::slab::SlabArc;

impl Listed for AddressSpace {
    fn turn(&self) -> &AtomicU64 {
        &self.dirty_turn
    }
}

impl BackingDevInfo {
    /// Files that have data not yet safely on the medium.
    pub fn dirty_files(&self) -> Vec<SlabArc<AddressSpace>> {
        let files = self.dirty_files.lock();
        let files = files.by_turn.values();
        files.map(|dirty| dirty.file.clone()).collect()
    }

    /// The one whose turn is next.
    pub(crate) fn first_dirty_file(&self) -> Option<SlabArc<AddressSpace>> {
        let files = self.dirty_files.lock();
        let (_, first) = files.by_turn.first_key_value()?;
        Some(first.file.clone())
    }

    /// Puts a file on the list of dirty files, if it is not there.
    pub(crate) fn queue_dirty(&self, mapping: &AddressSpace) {
        // Partner: the fence in `unqueue_if_durable`. Either that sees the page counted before this
        // call, or this sees the turn cleared.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence; the turn changes under the list's lock.
        let is_queued = || mapping.dirty_turn.load(Ordering::Relaxed) != NOT_DIRTY;
        if is_queued() {
            return;
        }
        let (first, wake) = {
            let mut files = self.dirty_files.lock();
            if is_queued() {
                return;
            }
            files.push_back(DirtyFile {
                file: mapping.share(),
                since: monotonic_ns(),
            });
            let first = files.by_turn.len() == 1;
            let mut wake = false;
            if first {
                files.used = true;
                wake = std::mem::take(&mut files.flusher_rests);
                // Nothing else of it is dirty: it begins with the share that it is given next.
                self.share.store(0, Ordering::Relaxed);
                self.mm.shares.nr_dirty.fetch_add(1, Ordering::Relaxed);
            }
            (first, wake)
        };
        if first {
            // Relaxed: at worst it keeps its smallest share for another interval.
            self.mm.shares.due.store(0, Ordering::Relaxed);
        }
        if wake {
            self.flusher.wake();
        }
    }

    /// The next file for the flusher, moved to the end of the list, and since when it is dirty.
    pub(crate) fn next_dirty_file(&self) -> Option<(SlabArc<AddressSpace>, u64)> {
        let mut files = self.dirty_files.lock();
        let (_, dirty) = files.by_turn.pop_first()?;
        let next = (dirty.file.clone(), dirty.since);
        files.push_back(dirty);
        Some(next)
    }

    /// Notes that nothing in the file has been dirty since before `since`.
    pub(crate) fn note_younger(&self, mapping: &AddressSpace, since: u64) {
        let mut files = self.dirty_files.lock();
        // Relaxed: changes under the lock.
        let turn = mapping.dirty_turn.load(Ordering::Relaxed);
        if let Some(dirty) = files.by_turn.get_mut(&turn) {
            dirty.since = dirty.since.max(since);
        }
    }

    /// Whether the flusher needs no time to wake up: no file is dirty, and none became so since it was asked last.
    /// The next one that does wakes it. A log is dirty and durable thousands of times a second.
    pub(crate) fn flusher_may_rest(&self) -> bool {
        let mut files = self.dirty_files.lock();
        let used = std::mem::take(&mut files.used);
        files.flusher_rests = files.by_turn.is_empty() && !used;
        files.flusher_rests
    }

    pub(crate) fn nr_dirty_files(&self) -> usize {
        self.dirty_files.lock().by_turn.len()
    }

    /// Takes a file off the list if it is durable now. The list's reference is dropped without the lock held.
    pub(crate) fn unqueue_if_durable(&self, mapping: &AddressSpace) {
        let mut files = self.dirty_files.lock();
        if mapping.is_dirty() {
            return;
        }
        let turn = mapping.dirty_turn.swap(NOT_DIRTY, Ordering::Relaxed);
        let Some(file) = files.by_turn.remove(&turn) else {
            return;
        };
        if files.by_turn.is_empty() {
            self.mm.shares.nr_dirty.fetch_sub(1, Ordering::Relaxed);
        }
        drop(files);
        // Partner: the fence in `queue_dirty`.
        fence(Ordering::SeqCst);
        // A writer may have dirtied it after the look above and seen the turn still set.
        if mapping.is_dirty() {
            self.queue_dirty(mapping);
        }
        drop(file);
    }
}

impl AddressSpace {
    /// Whether the backing store lacks some pages, or has not made them durable.
    #[inline]
    pub fn has_pages_to_write(&self) -> bool {
        self.counts.not_durable() > 0
    }

    /// Whether data of this file is not yet safely on the medium.
    pub fn is_dirty(&self) -> bool {
        self.has_pages_to_write() || !self.direct.is_durable() || self.has_unnoticed_stores()
    }
}
