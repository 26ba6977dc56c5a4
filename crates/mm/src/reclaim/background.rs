//! The background reclaimer: a thread that keeps free frames above the low watermark, gives back what
//! is held beyond the limit, and moves folios together when larger chunks are missing.

use foliocache_sync::Arc;
use foliocache_sync::time::{Duration, Instant};
use foliocache_sys::Errno;

use super::compact;
use crate::mm::Mm;

/// Frames evicted before the thread looks at the watermarks again.
const BATCH: usize = 128;

/// How often the thread looks at the limit and the node pool unasked.
const PERIOD: Duration = Duration::from_secs(1);

/// How often it tries to give back what is held beyond the limit: data is being written meanwhile.
const EXCESS_PERIOD: Duration = Duration::from_millis(20);

impl Mm {
    pub(crate) fn start_background(self: &Arc<Self>) -> Result<(), Errno> {
        let (name, mut next_compaction) = ("foliocache-reclaim", None);
        self.background
            .start(name, Some(PERIOD), self.panics(), self, move |mm, _| {
                Some(mm.balance(&mut next_compaction))
            })
    }

    /// One round of the background reclaimer; returns how long it may sleep unasked.
    fn balance(&self, next_compaction: &mut Option<Instant>) -> Duration {
        self.nodes.advance();
        let period = match self.give_back_excess(self.giving_back.try_lock()) {
            0 => PERIOD,
            _ => EXCESS_PERIOD,
        };
        let nodes = self.nodes.stats();
        if self.frames.below_high(0) && nodes.free > nodes.nodes / 2 {
            // Files that were sparse or large are gone: what their indexes had serves as frames.
            self.nodes.shrink();
        }
        if self.frames.below_high(0) {
            self.shrink_caches(u64::MAX);
        }
        self.make_room_ahead();
        while self.frames.below_high(self.spare_for_compaction()) {
            if self.shrink_lru(BATCH) == 0 {
                // Nothing clean: writeback has been asked for and will make some.
                break;
            }
        }
        self.compact(next_compaction);
        match self.frames.is_fragmented() {
            true => period.min(compact::PAUSE),
            false => period,
        }
    }
}
