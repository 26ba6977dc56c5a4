//! The table of general blocks: which are held, how full they are, and how many the bound permits.
//!
//! # Model
//!
//! ```text
//!            take            opened           isolate             leave
//!  Absent ─────────▶ Coming ────────▶ Open ◀──────────▶ Isolated ───────▶ Leaving ──▶ Absent
//!           (charged,                        unisolate            (wholly  (memory given
//!            not listed)                                           free)    back, uncharged)
//! ```
//!
//! Open blocks are listed by how many frames are free in them, in five classes; allocation begins with
//! the fullest class, so that the others drain. It is plain data under one lock, which this module does not see.
//!
//! # Invariants
//!
//! 1. `held` counts every block that is not absent. It is raised before memory is touched and
//!    lowered after the memory was given back.
//! 2. A block is in the list of its class exactly if it is open.
//! 3. `isolated_free` is the number of free frames in isolated and leaving blocks.
//! 4. Apart from the time after a shrink, `held` ≤ `capacity`.

use super::buddy::{Buddy, InUse};
use super::fixed::FixedBlocks;
use super::owners::Owners;
use super::{BLOCK_FRAMES, MAX_ORDER};

const NONE: u32 = u32::MAX;
const CLASSES: usize = 5;
/// Class of the blocks without a frame in use.
const EMPTY: usize = CLASSES - 1;
/// How many blocks of a class are looked at for a chunk of a larger order.
const ORDER_CANDIDATES: usize = 16;
/// How many blocks of a class are compared when the emptiest is looked for.
const ISOLATE_CANDIDATES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Absent,
    Coming,
    Open,
    Isolated,
    Leaving,
}

#[derive(Debug)]
pub(super) struct Block {
    buddy: Buddy,
    state: State,
    class: u8,
    prev: u32,
    next: u32,
}

/// All blocks, and the figures that change only under the table's lock.
#[derive(Debug, Default)]
pub(super) struct Table {
    blocks: Vec<Block>,
    /// Numbers below `blocks.len()` that are absent.
    absent: Vec<u32>,
    heads: [u32; CLASSES],
    pub(super) held: u32,
    /// Most blocks that may be held, with the metadata of now.
    pub(super) capacity: u32,
    /// Units of 2 MiB of the limit that linear ranges have.
    pub(super) linear: u32,
    /// Of them those that the blocks get once enough linear frames were freed: their frames are no longer
    /// available.
    pub(super) linear_owed: u32,
    /// The sum of capacity and linear units if metadata kept to its floor.
    pub(super) target: u32,
    /// Largest `target` ever: so far the range is active, so long is the table charged for.
    pub(super) active: u32,
    pub(super) limit: u64,
    pub(super) isolated_free: u64,
    /// Frames that the budget's counts are made of: [`Table::managed_now`] when they were last brought
    /// in line.
    #[doc(alias = "managed_pages")]
    pub(super) managed: i64,
    pub(super) growing: bool,
    /// Where frames for long pins were last taken.
    pub(super) for_pins: Option<u32>,
    /// Blocks taken past the limit, ever.
    pub(super) forced: u64,
    /// Metadata that was refused: the next block given back makes room for it.
    pub(super) metadata_wanted: u64,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            heads: [NONE; CLASSES],
            ..Self::default()
        }
    }

    /// Bytes that the table, the numbers of the frames' owners and the counts of fixed folios take for each block it can
    /// ever hold.
    pub(super) const BYTES_PER_BLOCK: u64 = (size_of::<Block>()
        + size_of::<u32>()
        + Owners::BYTES_PER_BLOCK
        + FixedBlocks::BYTES_PER_BLOCK) as u64;

    pub(super) fn reserve(&mut self, active: u32) {
        self.active = self.active.max(active);
        let more = (self.active as usize).saturating_sub(self.blocks.len());
        self.blocks.reserve_exact(more);
        let more = (self.active as usize).saturating_sub(self.absent.len());
        self.absent.reserve_exact(more);
    }

    /// Units of 2 MiB that frames may have.
    pub(super) fn units(&self) -> u32 {
        self.capacity + self.linear
    }

    /// Frames of linear ranges that may be available, reserved or in use.
    pub(super) fn managed_linear(&self) -> i64 {
        i64::from(self.linear - self.linear_owed) * i64::from(BLOCK_FRAMES)
    }

    pub(super) fn surplus_frames(&self) -> i64 {
        i64::from(self.held.saturating_sub(self.capacity)) * i64::from(BLOCK_FRAMES)
    }

    /// Frames that may be available, reserved or in use: all frames of the capacity, less the
    /// free frames of isolated blocks as far as the blocks beyond the capacity do not make up for them.
    pub(super) fn managed_now(&self) -> i64 {
        let penalty = (self.isolated_free as i64 - self.surplus_frames()).max(0);
        i64::from(self.capacity) * i64::from(BLOCK_FRAMES) - penalty
    }

    pub(super) fn state(&self, number: u32) -> State {
        self.blocks
            .get(number as usize)
            .map_or(State::Absent, |block| block.state)
    }

    pub(super) fn free_in(&self, number: u32) -> u32 {
        self.blocks[number as usize].buddy.free_frames()
    }

    pub(super) fn in_use(&self, number: u32) -> InUse {
        self.blocks[number as usize].buddy.in_use()
    }

    /// Takes the number of an absent block and counts it as held; the caller then opens it.
    pub(super) fn take(&mut self) -> u32 {
        let number = self.absent.pop().unwrap_or(self.blocks.len() as u32);
        assert!(
            number < self.active,
            "block {number} lies beyond the active range"
        );
        let block = Block {
            buddy: Buddy::new(),
            state: State::Coming,
            class: EMPTY as u8,
            prev: NONE,
            next: NONE,
        };
        match self.blocks.get_mut(number as usize) {
            Some(absent) => *absent = block,
            None => self.blocks.push(block),
        }
        self.held += 1;
        number
    }

    pub(super) fn open(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        match block.state {
            State::Coming => {}
            State::Isolated => self.isolated_free -= u64::from(block.buddy.free_frames()),
            state => panic!("block {number} cannot be opened, it is {state:?}"),
        }
        block.state = State::Open;
        self.link(number);
    }

    pub(super) fn isolate(&mut self, number: u32) {
        assert_eq!(self.state(number), State::Open);
        self.unlink(number);
        let block = &mut self.blocks[number as usize];
        block.state = State::Isolated;
        self.isolated_free += u64::from(block.buddy.free_frames());
    }

    /// Marks an isolated block without a frame in use as leaving; false if it is no such block.
    pub(super) fn leave(&mut self, number: u32) -> bool {
        if self.state(number) != State::Isolated || self.free_in(number) < BLOCK_FRAMES {
            return false;
        }
        self.blocks[number as usize].state = State::Leaving;
        true
    }

    /// Turns a leaving block, whose memory the kernel would not take, back into an isolated one.
    pub(super) fn stay(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        assert_eq!(block.state, State::Leaving);
        block.state = State::Isolated;
    }

    /// Stops counting a leaving block, whose memory was given back.
    pub(super) fn gone(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        assert_eq!(block.state, State::Leaving);
        block.state = State::Absent;
        self.absent.push(number);
        self.held -= 1;
        self.isolated_free -= u64::from(BLOCK_FRAMES);
    }

    /// Allocates a chunk of `order` from the open blocks; the first frame's number.
    pub(super) fn alloc(&mut self, order: u32) -> Option<u32> {
        let number = if order == 0 {
            *self.heads[1..].iter().find(|&&head| head != NONE)?
        } else {
            self.find_order(order)?
        };
        self.alloc_in(number, order)
    }

    fn alloc_in(&mut self, number: u32, order: u32) -> Option<u32> {
        let index = self.blocks[number as usize].buddy.alloc(order)?;
        self.relink(number);
        Some(number << MAX_ORDER | index)
    }

    /// As [`Table::alloc`], for what will be pinned for long: from the block of the last such chunk, or from about the
    /// emptiest.
    pub(super) fn alloc_for_pins(&mut self, order: u32) -> Option<u32> {
        let fits = |number: u32| self.blocks[number as usize].buddy.has_order(order);
        let last = self
            .for_pins
            .filter(|&last| self.state(last) == State::Open && fits(last));
        let number = last.or_else(|| self.emptiest(1, fits).pop())?;
        self.for_pins = Some(number);
        self.alloc_in(number, order)
    }

    /// Frees a chunk; true if its block is isolated.
    pub(super) fn free(&mut self, frame: u32, order: u32) -> bool {
        let number = frame >> MAX_ORDER;
        let state = self.state(number);
        assert!(
            matches!(state, State::Open | State::Isolated),
            "frame {frame} was freed, but its block is {state:?}"
        );
        let block = &mut self.blocks[number as usize];
        block.buddy.free(frame & (BLOCK_FRAMES - 1), order);
        if state == State::Isolated {
            self.isolated_free += 1 << order;
            return true;
        }
        self.relink(number);
        false
    }

    pub(super) fn empty(&self) -> Option<u32> {
        Some(self.heads[EMPTY]).filter(|&head| head != NONE)
    }

    pub(super) fn has_fewer_empty(&self, than: usize) -> bool {
        self.list(EMPTY).take(than).count() < than
    }

    /// About the `want` emptiest open blocks of those that `may` be chosen, the emptiest first.
    pub(super) fn emptiest(&self, want: usize, may: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut chosen = Vec::new();
        for class in (0..CLASSES).rev() {
            let left = want - chosen.len();
            let mut candidates: Vec<u32> = self
                .list(class)
                .filter(|&number| may(number))
                .take(left.max(ISOLATE_CANDIDATES))
                .collect();
            candidates.sort_by_key(|&number| std::cmp::Reverse(self.free_in(number)));
            chosen.extend(candidates.into_iter().take(left));
            if chosen.len() == want {
                break;
            }
        }
        chosen
    }

    /// Whether a chunk of `order` could be allocated without taking a block.
    pub(super) fn has_order(&self, order: u32) -> bool {
        self.find_order(order).is_some()
    }

    fn find_order(&self, order: u32) -> Option<u32> {
        (1..CLASSES).find_map(|class| {
            self.list(class)
                .take(ORDER_CANDIDATES)
                .find(|&number| self.blocks[number as usize].buddy.has_order(order))
        })
    }

    fn list(&self, class: usize) -> impl Iterator<Item = u32> + '_ {
        let some = |number: u32| Some(number).filter(|&number| number != NONE);
        std::iter::successors(some(self.heads[class]), move |&number| {
            some(self.blocks[number as usize].next)
        })
    }

    fn class_of(free: u32) -> usize {
        match free {
            0 => 0,
            1..64 => 1,
            64..192 => 2,
            192..BLOCK_FRAMES => 3,
            _ => EMPTY,
        }
    }

    /// Puts an open block into the list of its class, if that has changed.
    fn relink(&mut self, number: u32) {
        let block = &self.blocks[number as usize];
        if usize::from(block.class) != Self::class_of(block.buddy.free_frames()) {
            self.unlink(number);
            self.link(number);
        }
    }

    fn link(&mut self, number: u32) {
        let class = Self::class_of(self.free_in(number));
        let head = std::mem::replace(&mut self.heads[class], number);
        let block = &mut self.blocks[number as usize];
        block.class = class as u8;
        block.prev = NONE;
        block.next = head;
        if head != NONE {
            self.blocks[head as usize].prev = number;
        }
    }

    fn unlink(&mut self, number: u32) {
        let &Block {
            class, prev, next, ..
        } = &self.blocks[number as usize];
        if prev == NONE {
            self.heads[usize::from(class)] = next;
        } else {
            self.blocks[prev as usize].next = next;
        }
        if next != NONE {
            self.blocks[next as usize].prev = prev;
        }
    }
}
