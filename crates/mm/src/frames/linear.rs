//! Linear ranges: frames of files that are mapped, one for each page, at places that never change.
//!
//! # Model
//!
//! Behind the general blocks the reserved range goes on with the *linear space*: a sparse memfd, made when the
//! first file is mapped. A file takes runs of it, so that a mapping of the file is one mapping of the memfd: page
//! `i` has frame `base + i`. Its memory comes with the first touch and goes with a punch.
//!
//! ```text
//!   absent ──take: a promised frame──▶ in use ──free──▶ leaving ──punch, after a grace period──▶ absent
//!                                        ▲                 │                   (counted no more)
//!                                        └── take: back ───┘
//! ```
//!
//! Linear frames have a [`Budget`] of their own, made of units of 2 MiB of the limit. A unit moves between it and
//! the general blocks by demand. An unused unit moves at once. Otherwise blocks are emptied for linear frames, and
//! linear frames *owe* a unit to the blocks until enough of them were freed.
//!
//! # Huge frames
//!
//! Where [`Frames::with_huge_frames`] asked for them, and the kernel's pool of huge pages has one as the memfd is made,
//! the memfd is of huge pages. Then a unit is taken and freed as a whole, by one folio. Its huge page is made as it is
//! taken: others may have emptied the pool, and a touch would be SIGBUS. A unit that cannot be had is owed to the blocks,
//! and none comes in its place before the pool has pages. So the smaller one of bound and pool limits linear frames.
//!
//! # Invariants
//!
//! 1. A page of the linear space is touched only by whoever has its folio in the index of its file, from
//!    [`Frames::take_linear`] to [`Frames::free_linear`], and by readers that began before: even a read of an absent
//!    page makes one, which is not counted.
//! 2. A page is punched only if it was leaving since before a grace period and was not taken back since; a thread
//!    that takes it while the punch is under way waits for its end.
//! 3. Leaving frames count as in use.
//! 4. A run of the space is taken by one file until all its frames are absent again.
//! 5. A frame is taken only while the page table with which the direct map has it is charged. That table is given
//!    back once all its frames are absent and nobody is about to take one.
//!
//! # Locking
//!
//! *Protects*: the leaving frames, the free runs, and the state of units. *Order*: leaf. *May block*: no;
//! [`Frames::take_linear`] and [`Frames::charge_tables`] wait for a few system calls of another thread. `punching` is taken before every other lock of memory.
//!
//! # Safety
//!
//! Invariants 1 and 2 are the premise of the punch, invariants 4 and 5 that of giving page tables back.
#![allow(unsafe_code)]

use super::budget::Budget;
use super::huge::HugeFrames;
use super::runs::Runs;
use super::{
    BLOCK_FRAMES, BLOCK_SIZE, FrameKind, FrameNumber, Frames, MAX_ORDER, MIN_LIMIT,
    MIN_LINEAR_LIMIT, Reservation,
};
use crate::paging::SharedMemory;
use crate::types::{PAGE_SHIFT, PAGE_SIZE};
use foliocache_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::{Arc, Condvar, Mutex, rcu};
use foliocache_sys::Errno;
use foliocache_sys::memory::{ReservedRange, free_huge_pages, spare_addresses, total_memory};
use std::collections::BTreeMap;
use std::ops::Range;

mod kinds;
mod tables;

pub(crate) use tables::RangeOwner;
use tables::{RangeUnits, Unit};

/// Address space for mapped files, at least: as many bytes.
const MIN_SPACE: u64 = 4 << 40;

/// Part of the machine's memory that the space for mapped files has, if that is more.
const SPACE_PER_MEMORY: u64 = 64;

/// Frames that 32 bits can number, in units.
const MAX_UNITS: u64 = 1 << (32 - MAX_ORDER);

/// A range has room for a file to grow: twice its size, but not more beyond it than so many units.
const MAX_GROWTH: u32 = ((64 << 30) / BLOCK_SIZE as u64) as u32;

/// Least units of a range: 16 MiB.
const MIN_RANGE: u32 = 8;

/// Bytes that a range takes beside its units.
const RANGE_OVERHEAD: u64 = 128;

/// Most frames that one punch frees, so that nobody waits for it for long.
const PUNCH_FRAMES: u32 = 512;

/// The linear space of a cache.
pub(super) struct Linear {
    pub(super) budget: Budget,
    /// Whether frames are huge. Relaxed: set under the state's lock before the first range is given out.
    pub(super) huge: AtomicBool,
    /// Until when the pool is taken to be empty, in coarse milliseconds. Relaxed: a hint.
    pub(super) pool_empty_until: AtomicU64,
    /// The frames of the space.
    frames: Range<u32>,
    pub(super) state: LeafMutex<State>,
    /// Notified when a punch is over, or the giving back of page tables.
    punched: Condvar,
    /// One thread at a time punches.
    punching: Mutex<()>,
    /// Frames that are leaving. Relaxed: a hint.
    leaving: AtomicU64,
    /// Frames that were taken back, ever. Relaxed: a statistic.
    taken_back: AtomicU64,
    /// Bytes charged for page tables, windows' included. Relaxed: a hint.
    table_bytes: AtomicU64,
}

#[derive(Default)]
pub(super) struct State {
    memory: Option<Arc<SharedMemory>>,
    pub(super) huge: HugeFrames,
    /// Free runs of the space, in units.
    free: Runs,
    /// Frames that are leaving, by the first of each run. No two overlap.
    leaving: BTreeMap<u32, Leaving>,
    /// How often something was freed.
    freed: u64,
    /// Frames that are being punched.
    punching: Range<u32>,
    /// Ranges whose files are gone, each with the number of frees until then.
    retired: Vec<(LinearRange, u64)>,
    /// The ranges, by their first frame.
    ranges: BTreeMap<u32, RangeUnits>,
    /// Where the next search for page tables begins.
    hand: u32,
    /// Units whose page tables are being given back. Nobody has their frames meanwhile.
    dropping: Vec<Range<u32>>,
}

#[derive(Clone, Copy)]
struct Leaving {
    end: u32,
    /// A number that no earlier freeing had.
    number: u64,
    /// Page tables of windows may still have it.
    mapped: bool,
}

/// A run of the linear space that a file has taken, in whole units.
#[derive(Debug)]
pub(crate) struct LinearRange {
    frames: Range<u32>,
    /// The page of the file that has the first frame.
    pub(crate) first: u64,
}

/// Why there is no range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeError {
    /// No run of so many bytes is free; the space has so many in all.
    NoSpace { wanted: u64, space: u64 },
    /// The kernel refused the memory.
    Failed(Errno),
}

impl LinearRange {
    pub(crate) fn base(&self) -> FrameNumber {
        FrameNumber(self.frames.start)
    }

    pub(crate) fn pages(&self) -> u64 {
        self.frames.len() as u64
    }

    /// The page of the file after the last that it has.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.pages()
    }

    /// The part of the file's pages that it has, counted from its own first page.
    pub(crate) fn part(&self, pages: &Range<u64>) -> Range<u64> {
        let within = |page: u64| page.clamp(self.first, self.end()) - self.first;
        within(pages.start)..within(pages.end)
    }

    /// Bytes that it takes by itself.
    pub(crate) fn memory_bytes(&self) -> u64 {
        RANGE_OVERHEAD + (self.pages() >> MAX_ORDER) * size_of::<Unit>() as u64
    }
}

/// Reserves addresses for so many blocks, and for as much linear space behind them as the process can spare; how many
/// units that is.
pub(super) fn reserve(blocks: u32) -> Result<(ReservedRange, u32), Errno> {
    let bytes = (SPACE_PER_MEMORY * total_memory()).max(MIN_SPACE);
    let most = MAX_UNITS.saturating_sub(u64::from(blocks));
    let most = (bytes / BLOCK_SIZE as u64).min(most) as usize;
    let units = spare_addresses(most * BLOCK_SIZE) / BLOCK_SIZE;
    let range = ReservedRange::reserve((blocks as usize + units) * BLOCK_SIZE)?;
    Ok((range, units as u32))
}

impl Linear {
    pub(super) fn new(blocks: u32, units: u32) -> Self {
        let frames = blocks << MAX_ORDER..(blocks + units) << MAX_ORDER;
        let state = State {
            free: Runs::new(blocks..blocks + units),
            ..State::default()
        };
        Self {
            budget: Budget::default(),
            huge: AtomicBool::new(false),
            pool_empty_until: AtomicU64::new(0),
            frames,
            state: LeafMutex::new(state),
            punched: Condvar::new(),
            punching: Mutex::new(()),
            leaving: AtomicU64::new(0),
            taken_back: AtomicU64::new(0),
            table_bytes: AtomicU64::new(0),
        }
    }

    /// Whether there ever was a range.
    pub(super) fn is_used(&self) -> bool {
        self.state.lock().memory.is_some()
    }

    /// Where frames are in the memfd, in bytes.
    fn bytes(&self, frames: &Range<u32>) -> Range<u64> {
        let at = |frame: u32| u64::from(frame - self.frames.start) << PAGE_SHIFT;
        at(frames.start)..at(frames.end)
    }
}

impl State {
    /// Takes the next run of neighbours that have been leaving since before `number`, from `at` on.
    fn take_leaving(&mut self, at: u32, number: u64) -> Option<(Range<u32>, bool)> {
        let old = |leaving: &Leaving| leaving.number <= number;
        let (&start, _) = self.leaving.range(at..).find(|(_, leaving)| old(leaving))?;
        let (mut run, mut mapped) = (start..start, false);
        while run.len() < PUNCH_FRAMES as usize
            && let Some(leaving) = self.leaving.get(&run.end).copied().filter(old)
        {
            self.leaving.remove(&run.end);
            run.end = leaving.end;
            mapped |= leaving.mapped;
        }
        Some((run, mapped))
    }

    fn add_leaving(&mut self, frames: Range<u32>, mapped: bool) {
        self.freed += 1;
        let leaving = Leaving {
            end: frames.end,
            number: self.freed,
            mapped,
        };
        self.leaving.insert(frames.start, leaving);
    }
}

impl Frames {
    /// Makes the memory of all ranges.
    fn new_memory(&self, state: &mut State) -> Result<SharedMemory, Errno> {
        let frames = &self.linear.frames;
        let part = frames.start as usize * PAGE_SIZE..frames.end as usize * PAGE_SIZE;
        if state.huge == HugeFrames::Wanted {
            // SAFETY: no frame of the linear space was handed out yet; `take_linear` allocates.
            let memory = || unsafe { SharedMemory::over(&self.range, part.clone(), true) };
            state.huge = match (free_huge_pages() > 0).then(memory) {
                Some(Ok(memory)) => {
                    state.huge = HugeFrames::On;
                    self.linear.huge.store(true, Ordering::Relaxed);
                    return Ok(memory);
                }
                Some(Err(errno)) => HugeFrames::Refused(errno),
                None => HugeFrames::PoolEmpty,
            };
            tracing::warn!(reason = %state.huge, "mapped files have no huge pages");
        }
        // SAFETY: no frame of the linear space was handed out yet.
        unsafe { SharedMemory::over(&self.range, part, false) }
    }

    /// Takes a run of the linear space for `pages` pages of a file, and as many again where there is room, or as
    /// many as is sensible. The first call makes the memfd.
    ///
    /// # Errors
    /// See [`RangeError`].
    pub(crate) fn new_range(
        &self,
        pages: u64,
        owner: RangeOwner,
    ) -> Result<LinearRange, RangeError> {
        let linear = &self.linear;
        let space = linear.frames.len() as u64;
        let no_space = RangeError::NoSpace {
            wanted: pages << PAGE_SHIFT,
            space: space << PAGE_SHIFT,
        };
        if pages > space {
            return Err(no_space);
        }
        let units = pages.div_ceil(u64::from(BLOCK_FRAMES)).max(1) as u32;
        let roomy = (units + units.min(MAX_GROWTH)).max(MIN_RANGE);
        let mut state = linear.state.lock();
        if state.memory.is_none() {
            let memory = self.new_memory(&mut state).map_err(RangeError::Failed)?;
            state.memory = Some(Arc::new(memory));
        }
        let mut take = |units| state.free.take(units);
        let run = take(roomy).or_else(|| take(units)).ok_or(no_space)?;
        let units = vec![Unit::default(); run.len()].into();
        let frames = run.start << MAX_ORDER..run.end << MAX_ORDER;
        let range = RangeUnits { owner, units };
        state.ranges.insert(frames.start, range);
        let first = owner.first;
        Ok(LinearRange { frames, first })
    }

    /// Gives a run back that nothing was charged for. Does not block.
    pub(crate) fn abandon_range(&self, range: LinearRange) {
        let mut state = self.linear.state.lock();
        state.ranges.remove(&range.frames.start);
        let run = range.frames.start >> MAX_ORDER..range.frames.end >> MAX_ORDER;
        state.free.give_back(run);
    }

    /// Gives a run back once all its frames have left, which were freed before, and what is charged for it. Does not
    /// block.
    pub(crate) fn retire_range(&self, range: LinearRange) {
        let mut state = self.linear.state.lock();
        let freed = state.freed;
        state.retired.push((range, freed));
    }

    /// Least limit, in bytes: more once there are linear ranges, so that each kind of frames can have some.
    pub(crate) fn least_limit(&self) -> u64 {
        match self.linear.is_used() {
            true => MIN_LINEAR_LIMIT,
            false => MIN_LIMIT,
        }
    }

    /// The memory of all linear ranges, and where frames are in it, in bytes. `None` before the first range.
    pub(crate) fn linear_memory(
        &self,
        frames: Range<FrameNumber>,
    ) -> Option<(Arc<SharedMemory>, Range<u64>)> {
        let memory = self.linear.state.lock().memory.clone()?;
        Some((memory, self.linear.bytes(&(frames.start.0..frames.end.0))))
    }

    #[inline]
    pub(crate) fn is_linear(&self, frame: FrameNumber) -> bool {
        frame.0 >= self.linear.frames.start
    }

    /// Takes the 2^`order` frames from `frame` on that were claimed, of a folio that has just come into its file's
    /// index: those that were leaving back, the others on the promise. Whether page tables of windows may still have
    /// some.
    ///
    /// Context: the folio is locked and its frames untouched yet. Waits for a punch of them that is under way.
    ///
    /// # Errors
    /// Of huge frames, those of [`SharedMemory::allocate`]; nothing was taken then.
    pub(crate) fn take_linear(
        &self,
        frame: FrameNumber,
        order: u32,
        promised: &mut Reservation<'_>,
    ) -> Result<bool, Errno> {
        let linear = &self.linear;
        let (first, end) = (frame.0, frame.0 + (1 << order));
        let (mut back, mut mapped) = (0, false);
        let memory = {
            let mut state = linear.state.lock();
            while state.punching.start < end
                && first < state.punching.end
                && !foliocache_sync::planted!(refilled_under_a_punch)
            {
                state = linear.punched.wait_ranked(state);
            }
            while let Some((&start, &leaving)) = state.leaving.range(..end).next_back()
                && leaving.end > first
            {
                state.leaving.remove(&start);
                if start < first {
                    let before = Leaving {
                        end: first,
                        ..leaving
                    };
                    state.leaving.insert(start, before);
                }
                if leaving.end > end {
                    state.leaving.insert(end, leaving);
                }
                let again = start.max(first)..leaving.end.min(end);
                back += again.len() as u32;
                mapped |= leaving.mapped;
                // The claim has counted them once more.
                state.uncount(again);
            }
            state.memory.as_ref().filter(|_| self.is_huge()).cloned()
        };
        // Frames that are taken back never stopped counting.
        let n = end - first - back;
        if let Some(memory) = memory.filter(|_| n > 0) {
            debug_assert_eq!(n, BLOCK_FRAMES, "a unit is one folio's");
            memory.allocate(linear.bytes(&(first..end)))?;
        }
        promised.use_up(self, FrameKind::Linear, n);
        linear.budget.settle(n);
        if back > 0 {
            let (leaving, taken_back) = (&linear.leaving, &linear.taken_back);
            leaving.fetch_sub(back.into(), Ordering::Relaxed);
            taken_back.fetch_add(back.into(), Ordering::Relaxed);
        }
        Ok(mapped)
    }

    /// Frees frames that [`Frames::take_linear`] took, or a part of them; page tables of windows may still have
    /// them, if so `mapped`. They count until they are punched. Does not block.
    ///
    /// Context: as the folio leaves the index, under `xa_lock`, so that no other one takes them before; its version
    /// has grown.
    pub(crate) fn free_linear(&self, frame: FrameNumber, order: u32, mapped: bool) {
        let linear = &self.linear;
        let mut state = linear.state.lock();
        state.add_leaving(frame.0..frame.0 + (1 << order), mapped);
        linear.leaving.fetch_add(1 << order, Ordering::Relaxed);
    }

    /// Frames that were taken back before they were punched, ever.
    #[cfg(any(test, shuttle))]
    pub(crate) fn taken_back(&self) -> u64 {
        self.linear.taken_back.load(Ordering::Relaxed)
    }

    /// Frames that were freed and not punched yet. One load.
    pub(crate) fn leaving(&self) -> u64 {
        self.linear.leaving.load(Ordering::Relaxed)
    }

    /// Punches frames that have been leaving since before a grace period, and gives runs back that are empty; how
    /// many frames became available.
    ///
    /// Context: waits for a grace period and for other callers; makes a system call for each run of neighbours.
    pub(crate) fn punch_leaving(&self) -> u64 {
        let linear = &self.linear;
        let _alone = linear.punching.lock();
        let (memory, number) = {
            let state = linear.state.lock();
            match &state.memory {
                Some(memory) if !(state.leaving.is_empty() && state.retired.is_empty()) => {
                    (Arc::clone(memory), state.freed)
                }
                _ => return 0,
            }
        };
        rcu::synchronize();
        let (mut at, mut gone) = (linear.frames.start, 0);
        loop {
            let (run, mapped) = {
                let mut state = linear.state.lock();
                let Some((run, mapped)) = state.take_leaving(at, number) else {
                    break;
                };
                state.punching = run.clone();
                (run, mapped)
            };
            at = run.end;
            // SAFETY: invariant 2.
            let punched = unsafe { memory.punch(linear.bytes(&run)) };
            {
                let mut state = linear.state.lock();
                state.punching = 0..0;
                match punched {
                    Ok(()) => state.uncount(run.clone()),
                    Err(_) => state.add_leaving(run.clone(), mapped),
                }
                linear.punched.notify_all();
            }
            if let Err(error) = punched {
                self.note_give_back_failure(error);
                continue;
            }
            gone += run.len() as u64;
            let len = run.len() as u32;
            linear.leaving.fetch_sub(len.into(), Ordering::Relaxed);
            linear.budget.add(len);
        }
        self.release_retired(&memory, number);
        self.settle_owed();
        gone
    }

    /// Gives back the ranges that were retired by `number` and are empty by now, with their page tables.
    fn release_retired(&self, memory: &SharedMemory, number: u64) {
        let linear = &self.linear;
        let empty = {
            let mut state = linear.state.lock();
            let (empty, not_yet): (Vec<_>, _) = std::mem::take(&mut state.retired)
                .into_iter()
                .partition(|(range, freed)| {
                    let left = state.leaving.range(range.frames.clone()).next();
                    left.is_none() && *freed <= number
                });
            state.retired = not_yet;
            empty
        };
        for (range, _) in empty {
            let units = linear.state.lock().ranges.remove(&range.frames.start);
            let units = units.expect("it is there until now").units;
            let charged: u64 = units.iter().map(|unit| unit.bytes()).sum();
            if charged > 0 {
                // SAFETY: invariant 4.
                let dropped =
                    unsafe { memory.drop_page_tables(&self.range, linear.bytes(&range.frames)) };
                if let Err(error) = dropped {
                    // The run may not be mapped any more. It is never used again.
                    self.note_give_back_failure(error);
                    continue;
                }
                self.uncharge_tables(charged);
            }
            self.uncharge_metadata(range.memory_bytes());
            let run = range.frames.start >> MAX_ORDER..range.frames.end >> MAX_ORDER;
            linear.state.lock().free.give_back(run);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
