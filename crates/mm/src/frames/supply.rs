//! Where frames come from: magazine, buddy, a new block, the magazines of others.
//!
//! # Model
//!
//! ```text
//!  alloc ─▶ own magazine ─▶ buddies (batch) ─▶ new block ─▶ steal ─▶ gather ─▶ block past the limit
//!            ~all calls                         held < capacity               only after a shrink
//! ```
//!
//! One thread at a time takes a new block, with no lock held while the kernel finds and zeroes its memory.
//! Other threads that need one meanwhile wait for it and look again. That may take milliseconds where a virtual machine has to ask
//! its host for the memory, so the background reclaimer takes [`AHEAD`] blocks before they are needed, as long as there may be
//! more.
//!
//! # Invariants
//!
//! 1. A reservation is kept: `alloc` ends with a frame. Stealing can miss a frame that moves between
//!    magazines, so it is followed by a gathering, after which the buddies hold every free frame. If that
//!    finds none, the promise is older than a shrink that took its blocks away, and is kept with a block
//!    past the limit, which `blocks_forced` counts.
//! 2. A block counts as held before its memory is touched.

use super::block::Table;
use super::{BLOCK_SIZE, FrameKind, FrameNumber, Frames, MAX_ORDER, Reservation};
use foliocache_sync::atomic::Ordering;
use foliocache_sync::rank::RankedMutexGuard;

/// Blocks that are empty, ahead of need, while a cache fills.
const AHEAD: usize = 2;

/// Blocks of a cache that takes some ahead: to a smaller one they are too much.
const AHEAD_FROM: u32 = 24;

type TableGuard<'a> = RankedMutexGuard<'a, Table>;

impl Frames {
    /// Takes one frame of a reservation, order 0. Never fails, and never waits for memory to be freed.
    ///
    /// Makes a system call only when a new block is taken (2 MiB to be zeroed), and may then sleep:
    /// not inside an RCU read section. Panics if the reservation is used up.
    ///
    /// Context: no lock of rank `Frames` or inner.
    #[inline]
    pub fn alloc(&self, reservation: &mut Reservation<'_>) -> FrameNumber {
        reservation.use_up(self, FrameKind::General, 1);
        // The guard is gone before the slow path: it lives as long as this statement.
        let frame = self.magazines.mine().lock().pop();
        let frame = frame.unwrap_or_else(|| self.alloc_slow());
        self.budget.settle(1);
        FrameNumber(frame)
    }

    /// Takes 2^`order` frames, 0 to 9, of a reservation, contiguous and naturally aligned, if there are such.
    ///
    /// The reservation must hold as many (it panics otherwise) and keeps them on failure. May sleep as
    /// [`Frames::alloc`] does; never waits for memory to be freed.
    pub fn alloc_order(
        &self,
        reservation: &mut Reservation<'_>,
        order: u32,
    ) -> Option<FrameNumber> {
        assert!(order <= MAX_ORDER, "no folio has order {order}");
        assert!(
            reservation.left() >= 1 << order,
            "2^{order} frames were not reserved"
        );
        let frame = self.alloc_chunk(reservation, order);
        if frame.is_none() {
            self.note_fragmentation(order);
        }
        frame
    }

    /// Takes 2^`order` frames, 0 to 9, without a reservation for a folio that is moved and frees as many
    /// frames elsewhere, if they are available.
    ///
    /// While blocks are held beyond the limit it goes before those who wait: what is moved out of them
    /// comes back as available at once. That no chunk is there is nothing to compact for.
    pub fn try_alloc_to_move(&self, order: u32) -> Option<FrameNumber> {
        let surplus = {
            let table = self.table.lock();
            table.held > table.capacity
        };
        if !self.budget.reserve(1 << order, surplus) {
            return None;
        }
        self.alloc_chunk(
            &mut Reservation::new(self, FrameKind::General, 1 << order),
            order,
        )
    }

    /// As [`Frames::try_alloc_to_move`], for a folio that has its frames from `frame` on and will be pinned for long: such
    /// folios lie together, so that they keep few blocks from being given back. `None` also where it lies so.
    pub fn try_alloc_for_pins(&self, frame: FrameNumber, order: u32) -> Option<FrameNumber> {
        if self.table.lock().for_pins == Some(frame.0 >> MAX_ORDER)
            || !self.budget.reserve(1 << order, false)
        {
            return None;
        }
        let mut reservation = Reservation::new(self, FrameKind::General, 1 << order);
        self.chunk(&mut reservation, order, |table| table.alloc_for_pins(order))
    }

    fn alloc_chunk(&self, reservation: &mut Reservation<'_>, order: u32) -> Option<FrameNumber> {
        if order == 0 {
            return Some(self.alloc(reservation));
        }
        self.chunk(reservation, order, |table| table.alloc(order))
    }

    /// Gives 2^`order` frames back, the first of which is `frame`: what was allocated as a chunk, or
    /// any naturally aligned part of one. Does not sleep, makes no system call.
    ///
    /// Context: no lock of rank `Frames` or inner; the frames' former users are done with them, apart
    /// from optimistic readers that check afterwards.
    #[inline]
    pub fn free(&self, frame: FrameNumber, order: u32) {
        if order == 0 {
            let mut magazine = self.magazines.mine().lock();
            // Relaxed: see `Frames::isolated`.
            let isolated = self.isolated.load(Ordering::Relaxed);
            if isolated == 0 && magazine.push(frame.0) {
                drop(magazine);
                self.budget.add(1);
                return;
            }
        }
        self.free_slow(frame.0, order);
    }

    #[cold]
    fn free_slow(&self, frame: u32, order: u32) {
        let mut table = self.table.lock();
        if order == 0 {
            self.unload(&mut table);
        }
        if table.free(frame, order) {
            self.account(&mut table, 1 << order);
        } else {
            drop(table);
            self.budget.add(1 << order);
        }
    }

    #[cold]
    fn alloc_slow(&self) -> u32 {
        let mut table = self.table.lock();
        loop {
            if let Some(frame) = self.refill(&mut table) {
                self.look_ahead(&table);
                return frame;
            }
            if table.growing {
                table = self.grown.wait_ranked(table);
                continue;
            }
            if table.held < table.capacity {
                table = self.grow(table);
                continue;
            }
            if let Some(frame) = self.magazines.steal(&table) {
                return frame;
            }
            self.magazines.gather(&mut table);
            let frame = table.alloc(0);
            self.magazines.reopen(&table);
            if let Some(frame) = frame {
                return frame;
            }
            // Invariant 1.
            table.forced += 1;
            table = self.grow(table);
        }
    }

    /// Takes a chunk of frames of a reservation, which `alloc` finds.
    fn chunk(
        &self,
        reservation: &mut Reservation<'_>,
        order: u32,
        alloc: impl Fn(&mut Table) -> Option<u32>,
    ) -> Option<FrameNumber> {
        let mut table = self.table.lock();
        loop {
            if let Some(frame) = alloc(&mut table) {
                self.look_ahead(&table);
                reservation.use_up(self, FrameKind::General, 1 << order);
                self.budget.settle(1 << order);
                return Some(FrameNumber(frame));
            }
            if table.growing {
                table = self.grown.wait_ranked(table);
            } else if table.held < table.capacity {
                table = self.grow(table);
            } else {
                return None;
            }
        }
    }

    fn needs_block(table: &Table) -> bool {
        table.capacity >= AHEAD_FROM
            && table.held < table.capacity
            && !table.growing
            && table.has_fewer_empty(AHEAD)
    }

    fn look_ahead(&self, table: &Table) {
        if Frames::needs_block(table) {
            // Relaxed: a hint, see `Hints`.
            self.hints.block_wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Whether [`Frames::grow_ahead`] should be called. One load.
    #[inline]
    pub(crate) fn block_wanted(&self) -> bool {
        // Relaxed: as above.
        self.hints.block_wanted.load(Ordering::Relaxed)
    }

    /// Takes blocks ahead of need, if they were wanted. May sleep as [`Frames::alloc`] does.
    pub(crate) fn grow_ahead(&self) {
        // Relaxed: as above.
        if !self.hints.block_wanted.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut table = self.table.lock();
        while Frames::needs_block(&table) {
            table = self.grow(table);
        }
    }

    /// Takes one more block. The lock is dropped meanwhile.
    fn grow<'a>(&'a self, mut table: TableGuard<'a>) -> TableGuard<'a> {
        table.growing = true;
        let block = table.take();
        self.account(&mut table, 0);
        drop(table);

        let coming = Coming {
            frames: self,
            block,
        };
        let start = block as usize * BLOCK_SIZE;
        if let Err(error) = self.range.populate(start..start + BLOCK_SIZE) {
            // The block is usable all the same: each page comes with its first touch.
            tracing::warn!(block, %error, "a block of frames could not be populated");
        }
        drop(coming);
        self.table.lock()
    }

    /// Brings the available count in line with the table after a change of capacity, of blocks held, or
    /// of free frames in isolated blocks; `freed` frames went out of use besides.
    ///
    /// Context: the table's lock is held; takes the lock of those who wait.
    pub(super) fn account(&self, table: &mut Table, freed: u32) {
        let now = table.managed_now();
        let change = now - table.managed + i64::from(freed);
        table.managed = now;
        match u32::try_from(change) {
            Ok(0) => {}
            Ok(more) => self.budget.add(more),
            Err(_) => self.budget.remove(change.unsigned_abs()),
        }
    }
}

/// A block whose memory the kernel is finding. Dropped, also by a panic, it opens the block and wakes those who wait
/// for it.
struct Coming<'a> {
    frames: &'a Frames,
    block: u32,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let mut table = self.frames.table.lock();
        table.open(self.block);
        table.growing = false;
        self.frames.grown.notify_all();
    }
}
