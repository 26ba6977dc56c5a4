//! The list of a file system's dirty files: what it holds, and the turns. `dirty_files.rs` says how files come and go.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;

use crate::slab::SlabArc;

/// [`Listed::turn`] of a file that is on no list.
pub(crate) const NOT_DIRTY: u64 = 0;

/// A file that can be on the list.
pub(crate) trait Listed {
    /// Its turn, or [`NOT_DIRTY`].
    fn turn(&self) -> &AtomicU64;
}

#[derive(Debug)]
pub(crate) struct DirtyFile<F> {
    pub(crate) file: SlabArc<F>,
    /// When the oldest of its data that is not durable became dirty, in nanoseconds of the monotonic clock.
    pub(crate) since: u64,
}

#[derive(Debug)]
pub(crate) struct DirtyFiles<F> {
    pub(crate) by_turn: BTreeMap<u64, DirtyFile<F>>,
    pub(crate) last: u64,
    /// A file was put on the empty list since the flusher's last round.
    pub(crate) used: bool,
    /// The flusher sleeps until it is woken, without a time.
    pub(crate) flusher_rests: bool,
}

impl<F: Listed> DirtyFiles<F> {
    /// Empty, before the flusher is started.
    pub(crate) fn new() -> Self {
        Self {
            by_turn: BTreeMap::new(),
            last: 0,
            used: false,
            flusher_rests: true,
        }
    }

    pub(crate) fn push_back(&mut self, dirty: DirtyFile<F>) {
        self.last += 1;
        // Relaxed: changes under the list's lock; see the module for who looks without it.
        dirty.file.turn().store(self.last, Ordering::Relaxed);
        self.by_turn.insert(self.last, dirty);
    }
}
