//! Fragmentation: chunks of a larger order that are missing though enough frames are free.
//!
//! # Model
//!
//! An allocation that finds no chunk leaves a note of the order. Compaction takes the note, isolates blocks
//! that are in use in part, moves their folios, and opens them again, whole.
//!
//! # Locking
//!
//! The notes are hints, relaxed; the rest is done under the table's lock.

use super::{BLOCK_FRAMES, BlockNumber, Frames};
use foliocache_sync::atomic::Ordering;

impl Frames {
    #[cold]
    pub(super) fn note_fragmentation(&self, order: u32) {
        let hints = &self.hints;
        hints.order_failures.fetch_add(1, Ordering::Relaxed);
        hints.order_wanted.fetch_max(order, Ordering::Relaxed);
    }

    /// Whether a chunk of a larger order was missed since the last [`Frames::take_fragmented`]. One load.
    pub fn is_fragmented(&self) -> bool {
        self.hints.order_wanted.load(Ordering::Relaxed) != 0
    }

    /// Takes the note of a missing chunk; false if there is none, or such chunks are there by now.
    pub fn take_fragmented(&self) -> bool {
        let order = self.hints.order_wanted.swap(0, Ordering::Relaxed);
        if order == 0 {
            return false;
        }
        let table = self.table.lock();
        table.held >= table.capacity && !table.has_order(order)
    }

    /// Isolates about the emptiest block among those of which a frame is in use, to make it whole.
    ///
    /// `None` when there is no block of which frames are free, when the frames that are available
    /// beside `keep` are not enough to move what is in it, or when somebody waits for frames.
    /// The caller ends the isolation with [`Frames::unisolate`]. Does not sleep.
    /// Context: no lock of rank `Frames` or inner.
    pub fn isolate_fragmented(&self, keep: u64) -> Option<BlockNumber> {
        // Its free frames go from the available ones, and so do those that its folios move to.
        if self.has_waiters() || self.available() < keep + u64::from(BLOCK_FRAMES) {
            return None;
        }
        let mut table = self.table.lock();
        self.magazines.gather(&mut table);
        let chosen = table
            .emptiest(1, |block| (1..BLOCK_FRAMES).contains(&table.free_in(block)))
            .pop()
            .filter(|&block| self.isolate_gathered(&mut table, block));
        self.magazines.reopen(&table);
        chosen.map(BlockNumber)
    }
}
