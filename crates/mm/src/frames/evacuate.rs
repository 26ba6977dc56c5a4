//! Emptying blocks: isolation, the frames to move, and the way out or back into use.
//!
//! # Model
//!
//! ```text
//!  isolate_blocks ─▶ the caller moves or evicts the folios in block_frames ─▶ give_back ─▶ gone
//!                    └────────────────── gives up ──▶ unisolate
//! ```
//!
//! A block is isolated only as far as the promises allow: its free frames leave the available count,
//! unless the cache holds more blocks than its capacity, where they were not in it.
//!
//! Compaction makes blocks whole in the same way and opens them again. It is due when an allocation found no
//! chunk of a larger order though enough frames were free, and left a note of that: a hint, relaxed.
//!
//! # Invariants
//!
//! 1. Nothing is allocated from an isolated block, and frames that are freed into it stay in it.
//! 2. A block's memory is given back when none of its frames is in use and an RCU grace period has
//!    passed since (an optimistic reader may still be copying from a frame freed a moment ago).
//!
//! # Safety
//!
//! The unsafe calls give memory back; invariant 2 is their premise, of frames in bad memory, too.
#![allow(unsafe_code)]

use super::block::{State, Table};
use super::{BLOCK_FRAMES, BLOCK_SIZE, BlockNumber, FrameKind, FrameNumber, Frames, MAX_ORDER};
use foliocache_sync::atomic::Ordering;
use foliocache_sync::collections::HashSet;
use foliocache_sync::rcu;
use foliocache_sys::Errno;

/// Most blocks that share one grace period.
const TRIM_BATCH: usize = 64;

impl Frames {
    /// Isolates up to `want` blocks, about those with the fewest frames in use, but none in `except`.
    ///
    /// Fewer, or none, when so many are not held, or when the promises made need their free frames: then
    /// reclaim first. The caller ends each isolation with [`Frames::give_back`] or
    /// [`Frames::unisolate`]. Does not sleep. Context: no lock of rank `Frames` or inner.
    pub fn isolate_blocks(&self, want: usize, except: &HashSet<BlockNumber>) -> Vec<BlockNumber> {
        self.isolate_emptiest(want, |_, block| !except.contains(&BlockNumber(block)))
    }

    fn isolate_emptiest(&self, want: usize, may: impl Fn(&Table, u32) -> bool) -> Vec<BlockNumber> {
        let mut table = self.table.lock();
        self.magazines.gather(&mut table);
        let mut blocks = table.emptiest(want, |block| may(&table, block));
        let refused = blocks
            .iter()
            .position(|&block| !self.isolate_gathered(&mut table, block));
        self.magazines.reopen(&table);
        blocks.truncate(refused.unwrap_or(blocks.len()));
        blocks.into_iter().map(BlockNumber).collect()
    }

    /// Isolates an open block if the promises allow.
    ///
    /// Context: the table's lock is held, and all magazines are closed and empty.
    pub(super) fn isolate_gathered(&self, table: &mut Table, block: u32) -> bool {
        table.isolate(block);
        let now = table.managed_now();
        let allowed = match u32::try_from(table.managed - now) {
            // Only blocks beyond the capacity give up frames; promised frames must be free elsewhere.
            Ok(0) | Err(_) => {
                let spare = table.surplus_frames() - table.isolated_free as i64;
                self.budget.counts().available + spare.max(0) >= 0
            }
            Ok(less) => self.budget.take(less, true),
        };
        if allowed {
            table.managed = now;
            // Relaxed: see `Frames::isolated`.
            self.isolated.fetch_add(1, Ordering::Relaxed);
        } else {
            table.open(block);
        }
        allowed
    }

    /// The frames of a block that are in use now. For an isolated block none is added to them.
    ///
    /// In a block that is not isolated, free frames in magazines count as in use.
    pub fn block_frames(&self, block: BlockNumber) -> Vec<FrameNumber> {
        let in_use = {
            let table = self.table.lock();
            match table.state(block.0) {
                State::Open | State::Isolated => table.in_use(block.0),
                _ => return Vec::new(),
            }
        };
        (0..BLOCK_FRAMES)
            .filter(|index| in_use[*index as usize / 64] & 1 << (index % 64) != 0)
            .map(|index| FrameNumber(block.0 << MAX_ORDER | index))
            .collect()
    }

    /// Gives back those of the isolated `blocks` of which no frame is in use, and takes them out of the
    /// list; returns how many. The others stay isolated, and in the list. A block whose memory the kernel
    /// does not take leaves the list, too: it is open again.
    ///
    /// Waits for an RCU grace period, so it may block and must not be called in a read section. Lowers
    /// what counts against the bound by 2 MiB a block. Context: no lock of rank `Frames` or inner.
    pub fn give_back(&self, blocks: &mut Vec<BlockNumber>) -> usize {
        let mut leaving = Vec::new();
        {
            let mut table = self.table.lock();
            blocks.retain(|block| {
                let leaves = table.leave(block.0);
                if leaves {
                    leaving.push(block.0);
                }
                !leaves
            });
        }
        self.give_back_leaving(&leaving)
    }

    /// Ends an isolation: the block is allocatable again, and waiters may get its free frames.
    ///
    /// Panics when the block is not isolated.
    pub fn unisolate(&self, block: BlockNumber) {
        let mut table = self.table.lock();
        assert_eq!(table.state(block.0), State::Isolated);
        self.reopen_isolated(&mut table, block.0);
    }

    fn reopen_isolated(&self, table: &mut Table, block: u32) {
        table.open(block);
        self.isolated.fetch_sub(1, Ordering::Relaxed);
        self.account(table, 0);
    }

    /// Gives wholly free blocks back: all of them, or without `all` only as many as lie beyond the limit.
    /// Returns how many.
    ///
    /// Frees keep blocks, since an emptied block is soon needed again. Blocks as [`Frames::give_back`] does.
    pub fn trim(&self, all: bool) -> usize {
        let mut given = 0;
        loop {
            let mut leaving = Vec::with_capacity(TRIM_BATCH);
            {
                let mut table = self.table.lock();
                self.magazines.gather(&mut table);
                let mut excess = if all {
                    u64::MAX
                } else {
                    self.excess_now(&table)
                };
                while leaving.len() < TRIM_BATCH && excess > 0 {
                    let Some(block) = table.empty() else { break };
                    if !self.isolate_gathered(&mut table, block) {
                        break;
                    }
                    table.leave(block);
                    leaving.push(block);
                    excess = excess.saturating_sub(BLOCK_SIZE as u64);
                }
                self.magazines.reopen(&table);
            }
            let gone = self.give_back_leaving(&leaving);
            given += gone;
            if gone < TRIM_BATCH {
                return given;
            }
        }
    }

    /// Gives leaving blocks back; how many the kernel took.
    fn give_back_leaving(&self, blocks: &[u32]) -> usize {
        if blocks.is_empty() {
            return 0;
        }
        rcu::synchronize();
        let mut gone = 0;
        for &block in blocks {
            let start = block as usize * BLOCK_SIZE;
            // SAFETY: invariant 2: the block is leaving, so no frame of it is in use or can come into
            // use, and readers that saw its frames in use are gone.
            let given = unsafe { self.range.give_back(start..start + BLOCK_SIZE) };
            match given {
                Ok(()) => {
                    let mut table = self.table.lock();
                    table.gone(block);
                    self.isolated.fetch_sub(1, Ordering::Relaxed);
                    self.account(&mut table, 0);
                    self.serve_metadata(&mut table);
                    gone += 1;
                }
                Err(error) => {
                    self.note_give_back_failure(error);
                    let mut table = self.table.lock();
                    table.stay(block);
                    self.reopen_isolated(&mut table, block);
                }
            }
        }
        gone
    }

    /// Frees 2^`order` frames, the first of which is `frame`, with new memory in place of theirs, which
    /// cannot be accessed any more. Where the kernel refuses they stay in use for ever.
    ///
    /// Context: no folio has the frames since before the call, and no I/O is under way to them. Waits
    /// for a grace period; no lock of rank `Frames` or inner.
    pub(crate) fn free_bad(&self, frame: FrameNumber, order: u32) -> Result<(), Errno> {
        rcu::synchronize();
        let start = (frame.0 as usize) << crate::PAGE_SHIFT;
        let range = start..start + (crate::PAGE_SIZE << order);
        // SAFETY: the frames are the caller's, so nobody else copies or does I/O to or from them, and
        // readers that saw them in a folio are gone.
        unsafe { self.range.give_back(range.clone()) }?;
        // The pages may have become inaccessible for another reason than bad memory.
        self.range.activate(range.clone(), false)?;
        if let Err(error) = self.range.populate(range) {
            // The frames are usable all the same: each page comes with its first touch.
            tracing::warn!(%error, "new memory for frames could not be populated");
        }
        self.free(frame, order);
        Ok(())
    }

    /// Counts memory that the kernel did not take back; says so in the log the first time, since it is
    /// tried again and again.
    pub(crate) fn note_give_back_failure(&self, error: Errno) {
        // Relaxed: a statistic.
        let before = self
            .hints
            .give_back_failures
            .fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            tracing::warn!(%error, "the kernel does not take memory back: it stays in use");
        }
    }

    pub(crate) fn give_back_failures(&self) -> u64 {
        // Relaxed: a statistic.
        self.hints.give_back_failures.load(Ordering::Relaxed)
    }

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
    /// beside `keep` are not enough to move its folios, or when a caller waits for frames.
    /// The caller ends the isolation with [`Frames::unisolate`]. Does not sleep.
    /// Context: no lock of rank `Frames` or inner.
    pub fn isolate_fragmented(
        &self,
        keep: u64,
        except: &HashSet<BlockNumber>,
    ) -> Option<BlockNumber> {
        // Its free frames go from the available ones, and so do those that its folios move to.
        if self.has_waiters() || self.available(FrameKind::General) < keep + u64::from(BLOCK_FRAMES)
        {
            return None;
        }
        let used_in_part = |table: &Table, block| {
            (1..BLOCK_FRAMES).contains(&table.free_in(block))
                && !except.contains(&BlockNumber(block))
        };
        self.isolate_emptiest(1, used_in_part).pop()
    }
}
