//! The background reclaimer: a thread that keeps free frames above the low watermark, takes blocks ahead while a cache fills, gives
//! back blocks beyond the limit, and compacts: moves folios together when larger chunks are missing.
//!
//! # Model
//!
//! ```text
//!   a chunk was missing ─▶ room for a block's folios? ─▶ isolate the emptiest ─▶ move ─▶ open it, whole
//!                            no: not now
//! ```
//!
//! Nothing is evicted for compaction, but while chunks are missing the reclaimer keeps a block more free, in
//! caches that can spare one. Where callers wait for memory it does not compact: they would pay for it.
//!
//! # Invariants
//!
//! 1. A pass of compaction takes a bounded part of the time (a [`PART`]th), however large the cache.
//! 2. It moves a folio or leaves it alone, and never drops one.
//! 3. A block that a folio could not be moved out of is left alone as long as there are others: it would be the emptiest each time.

use foliocache_sync::Arc;
use foliocache_sync::collections::HashSet;
use foliocache_sync::time::{Duration, Instant, coarse_monotonic_ms};
use foliocache_sys::Errno;

use super::MAX_TURNS;
use crate::counters::bump;
use crate::frames::{BLOCK_FRAMES, BlockNumber, FrameKind};
use crate::records::Mm;
use crate::shrinker::GivenUp;

/// Frames evicted before the thread looks at the watermarks again.
const BATCH: usize = 128;

/// How often the thread looks at the limit and the node pool unasked.
const PERIOD: Duration = Duration::from_secs(1);

/// How often it tries to give back blocks beyond the limit: data is being written meanwhile.
const EXCESS_PERIOD: Duration = Duration::from_millis(20);

/// Least time between two passes of compaction.
const PAUSE: Duration = Duration::from_millis(100);

/// The part of the time that passes may take.
const PART: u32 = 20;

/// The part of a cache's blocks that one pass makes whole, at least one.
const SHARE: u64 = 64;

/// Blocks that a cache has at least before one is kept free for compaction.
const SPARE_FROM: u64 = 24;

/// The state of compaction between two rounds of the thread.
#[derive(Default)]
struct Compaction {
    /// Not before this.
    next: Option<Instant>,
    /// Invariant 3.
    left_alone: HashSet<BlockNumber>,
}

impl Mm {
    pub(crate) fn start_background(self: &Arc<Self>) -> Result<(), Errno> {
        let (name, mut compaction) = ("foliocache-reclaim", Compaction::default());
        self.reclaimer
            .worker
            .start(name, Some(PERIOD), self.panics(), self, move |mm, _| {
                Some(mm.balance(&mut compaction))
            })
    }

    /// One round of the background reclaimer; returns how long it may sleep unasked.
    fn balance(&self, compaction: &mut Compaction) -> Duration {
        self.give_up_metadata();
        self.frames.grow_ahead();
        let now = coarse_monotonic_ms();
        self.bdis().iter().for_each(|bdi| {
            bdi.tell_hung(now);
        });
        if let Some(windows) = self.windows.get() {
            windows.end_old_poison();
        }
        let period = match self.give_back_excess(self.reclaimer.giving_back.try_lock()) {
            0 => PERIOD,
            _ => EXCESS_PERIOD,
        };
        // Callers evict pages themselves, and do not wait for this (invariant 3 of `waiting`).
        while self.frames.below_high(self.spare_for_compaction())
            && !self.reclaimer.rounds.are_awaited()
        {
            if self.balance_kinds() {
                continue;
            }
            let all = MAX_TURNS * self.lru.lock().len().max(BATCH);
            let evicted = self.shrink_lru_ahead(BATCH, all);
            if self.frames.leaving() > 0 {
                self.frames.punch_leaving();
            }
            if evicted == 0 {
                // Nothing clean: writeback has been asked for and will make some.
                break;
            }
        }
        self.frames.punch_leaving();
        self.compact(compaction);
        match self.frames.is_fragmented() {
            true => period.min(PAUSE),
            false => period,
        }
    }

    /// The part of a round that callers wait for: memory that only the background reclaimer gives up.
    fn give_up_metadata(&self) {
        let round = self.reclaimer.rounds.begin();
        self.nodes.advance();
        let nodes = self.nodes.stats();
        if self.frames.below_high(0) && nodes.free > nodes.nodes / 2 {
            // Files that were sparse or large are gone: what their indexes had serves as frames.
            self.nodes.shrink();
        }
        let given = match round.is_awaited {
            true => self.make_room_for_waiters(),
            false => GivenUp::default(),
        };
        if self.frames.below_high(0) {
            self.shrink_caches(u64::MAX);
        }
        self.make_room_ahead();
        round.end(given);
    }

    /// Gives frames of the kind that lacks some a unit of the other, if that can spare one.
    fn balance_kinds(&self) -> bool {
        if self.frames.lacks(FrameKind::General) {
            return self.frames.can_spare(FrameKind::Linear)
                && self.frames.shift_unit(FrameKind::General);
        }
        // Of huge frames it lacks none: they are not made ahead.
        if !self.frames.lacks(FrameKind::Linear) || !self.frames.can_spare(FrameKind::General) {
            return false;
        }
        self.frames.shift_unit(FrameKind::Linear)
            || (self.evacuate_blocks(1) > 0 && self.frames.shift_unit(FrameKind::Linear))
    }

    /// Frames that are to be available beside the usual so that a block can be made whole.
    fn spare_for_compaction(&self) -> u64 {
        let blocks = self.frames.capacity() / u64::from(BLOCK_FRAMES);
        match self.frames.is_fragmented() && blocks >= SPARE_FROM {
            true => u64::from(BLOCK_FRAMES),
            false => 0,
        }
    }

    /// Makes some blocks whole if chunks are missing and it is time.
    ///
    /// Context: the background reclaimer. Tries folio locks; does not sleep but for a block's lock.
    fn compact(&self, compaction: &mut Compaction) {
        let start = Instant::now();
        if !self.frames.is_fragmented() || compaction.next.is_some_and(|next| start < next) {
            return;
        }
        if self.frames.take_fragmented() {
            let blocks = (self.frames.capacity() / u64::from(BLOCK_FRAMES) / SHARE).max(1);
            let whole = self.compact_blocks(blocks as usize, &mut compaction.left_alone);
            bump(&self.events.compacted, whole);
        }
        compaction.next = start.checked_add(PAUSE.max(start.elapsed() * PART));
    }

    fn compact_blocks(&self, want: usize, left_alone: &mut HashSet<BlockNumber>) -> u64 {
        // The frames that the blocks chosen so far need come on top.
        let (mut blocks, mut used) = (Vec::new(), 0);
        while blocks.len() < want
            && let Some(block) = self.frames.isolate_fragmented(used, left_alone)
        {
            used += self.frames.block_frames(block).len() as u64;
            blocks.push(block);
        }
        for &block in &blocks {
            for locked in self.folios_in(block) {
                // Invariant 2: a folio that cannot be moved stays.
                self.migrate(&locked);
            }
        }
        let mut whole = 0;
        if blocks.is_empty() {
            left_alone.clear();
        }
        for block in blocks {
            match self.frames.block_frames(block).is_empty() {
                true => whole += 1,
                false => _ = left_alone.insert(block),
            }
            self.frames.unisolate(block);
        }
        whole
    }
}
