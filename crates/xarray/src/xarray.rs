//! [`XArray`], the index, as its lockless readers see it.
//!
//! # Model
//!
//! See [`crate`] for the shape of the tree. A reader loads the head, which carries the height in
//! its low bits, and then one slot a level; nothing else.
//!
//! # Invariants
//!
//! 1. `head` is zero, the word of a node that covers every index in use, or that of the only entry, which begins at
//!    index 0.
//! 2. A slot is emptied before its node is detached. So a word that is an entry, loaded from any
//!    node that a read section has reached, or from the head, is in the index at the time of the load.
//! 3. `head_marks` are those of an entry in the head. Without one they mean nothing.
//!
//! # Memory ordering
//!
//! `head` and slots: Acquire here, partner of the Release stores in [`XaGuard`](crate::XaGuard); see the node module.
//!
//! # Safety
//!
//! The unsafe operations turn words into references to nodes, inside the read section that an
//! [`RcuReadGuard`] proves, or under the xa_lock. The methods without a proof are for callers
//! within this crate that hold one of them for as long as they use the result.
#![allow(unsafe_code)]

use foliocache_sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::rcu::RcuReadGuard;
use foliocache_sync::{Arc, prefetch};

use crate::entry::{Entry, Mark, first_covers};
use crate::level::{SLOT_BITS, SLOTS, level_for, level_of, node_mask, shift};
use crate::node::{Node, is_node};
use crate::pool::NodePool;

/// A map from `u64` to [`Entry`] with marks and multi-order entries.
///
/// Readers take no lock: they hold an [`RcuReadGuard`]. Writers go through [`XArray::lock`].
///
/// Its memory is nodes of its pool. Dropping the index hands them to the limbo. The entries are only
/// words to it: the caller drops the objects behind them.
#[doc(alias = "xarray")]
#[repr(C)]
pub struct XArray {
    /// The head node, the only entry, or zero (invariant 1).
    head: AtomicUsize,
    pool: Arc<NodePool>,
    /// The xa_lock. The fields that writers change begin with it.
    pub(crate) lock: RankedMutex<{ Rank::XaLock as u8 }, ()>,
    /// Entries; a machine has memory for fewer than 2^32. Written under the lock.
    entries: AtomicU32,
    /// One bit a mark (invariant 3). Written under the lock.
    head_marks: AtomicU8,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(std::mem::offset_of!(XArray, lock) == XArray::READ_BYTES);

/// A decoded slot word.
#[derive(Clone, Copy)]
pub(crate) enum Slot<'a> {
    /// Nothing.
    Empty,
    /// An entry, of which this slot is the first or a later one.
    Entry(Entry),
    /// A child node.
    Node(&'a Node),
}

/// A decoded head.
#[derive(Clone, Copy)]
pub(crate) enum Head<'a> {
    /// Nothing.
    Empty,
    /// The only entry, which begins at index 0, and its order.
    Entry(Entry, u32),
    /// A node, and the shift of its level.
    Node(&'a Node, u32),
}

impl XArray {
    /// Bytes at its beginning that are read by look-ups and seldom written. Writers change the bytes after them.
    /// With the boundary of a cache line between the two, the xa_lock does not cost readers the head.
    pub const READ_BYTES: usize = 16;

    /// An empty index, whose nodes will come from `pool`. Takes no memory yet.
    #[must_use]
    pub fn new(pool: Arc<NodePool>) -> Self {
        Self {
            head: AtomicUsize::new(0),
            pool,
            lock: RankedMutex::new(()),
            entries: AtomicU32::new(0),
            head_marks: AtomicU8::new(0),
        }
    }

    /// The pool of its nodes.
    #[must_use]
    pub fn pool(&self) -> &Arc<NodePool> {
        &self.pool
    }

    /// The entry at `index`, multi-order entries that cover it included.
    ///
    /// Costs one load for the head and a dependent one for each level: one for an only entry at index 0, two for
    /// indices below 64. Never blocks.
    #[doc(alias = "xa_load")]
    #[inline]
    pub fn load(&self, index: u64, rcu: &RcuReadGuard) -> Option<Entry> {
        self.load_slot(index, rcu).map(|(entry, _)| entry)
    }

    /// The entry at `index`, and the slot it was in, which can be looked at again for the price of
    /// one load.
    #[inline]
    pub fn load_slot<'a>(
        &'a self,
        index: u64,
        _rcu: &'a RcuReadGuard,
    ) -> Option<(Entry, SlotRef<'a>)> {
        match self.head() {
            Head::Node(node, shift) if index >> shift < SLOTS as u64 => {
                Descent { node, shift, index }.load_slot()
            }
            Head::Entry(entry, order) if first_covers(order, index) => {
                Some((entry, self.head_slot(entry, order)))
            }
            _ => None,
        }
    }

    fn head_slot(&self, entry: Entry, order: u32) -> SlotRef<'_> {
        SlotRef {
            slot: &self.head,
            word: entry.head_word(order),
        }
    }

    /// Goes towards the entry at `index` as far as its leaf, and asks the processor for the slot there:
    /// for a caller that looks several up side by side. `None`: there is no entry.
    #[inline]
    pub fn approach<'a>(&'a self, index: u64, _rcu: &'a RcuReadGuard) -> Option<Approach<'a>> {
        match self.head() {
            Head::Node(node, shift) if index >> shift < SLOTS as u64 => {
                let mut at = Descent { node, shift, index };
                while at.shift > 0 {
                    let slot = at.slot();
                    let word = slot.load(Ordering::Acquire);
                    if !at.descend(word) {
                        return Some(Approach { slot, word });
                    }
                }
                let slot = at.slot();
                prefetch(slot);
                Some(Approach { slot, word: 0 })
            }
            Head::Entry(entry, order) if first_covers(order, index) => Some(Approach {
                slot: &self.head,
                word: entry.head_word(order),
            }),
            _ => None,
        }
    }

    /// Asks the processor for the slot of index 0 in the head node, if there is one: for a caller that will look that index up soon.
    #[inline]
    pub fn prefetch_first(&self, _rcu: &RcuReadGuard) {
        if let Head::Node(node, _) = self.head() {
            prefetch(node.slot(0));
        }
    }

    /// How many entries there are; a multi-order entry is one. Without the xa_lock the answer is of
    /// the past.
    pub fn nr_entries(&self) -> u64 {
        // Relaxed: the lock orders it for its holder; for others it is a statistic.
        self.entries.load(Ordering::Relaxed).into()
    }

    /// How many nodes suffice to fill `first..=last` with entries of order 0, if nothing is erased
    /// meanwhile.
    ///
    /// An upper bound, which counts nodes that are there already: about one for every 64 indices,
    /// plus the height.
    pub fn nodes_needed_range(&self, first: u64, last: u64, _rcu: &RcuReadGuard) -> usize {
        let lowest = level_for(last);
        // An entry in the head takes a node when another comes, or when it is split. One may be there by then.
        let (height, unfolded) = match self.head() {
            Head::Empty => (lowest, first == 0),
            Head::Entry(_, order) => (level_of(order), true),
            Head::Node(_, shift) => (level_of(shift), first == 0),
        };
        let top = lowest.max(height);
        // One path a level, and on every level a node more for each boundary that the range
        // crosses.
        let path: u64 = (0..=top)
            .map(|level| {
                let span = (last & !node_mask(level)) - (first & !node_mask(level));
                span.checked_shr(shift(level) + SLOT_BITS).unwrap_or(0) + 1
            })
            .sum();
        // A taller tree: its old head hangs below new nodes.
        path as usize + (top - height) + usize::from(unfolded)
    }

    /// The decoded head.
    #[inline]
    pub(crate) fn head(&self) -> Head<'_> {
        let head = self.head.load(Ordering::Acquire);
        if let Some((entry, order)) = Entry::from_head(head) {
            return Head::Entry(entry, order);
        }
        // SAFETY: loaded from the head of an index, and no entry, in the caller's read section or under its lock.
        let node = unsafe { Node::from_head(head) };
        node.map_or(Head::Empty, |(node, shift)| Head::Node(node, shift))
    }

    /// Whether the entry in the head has `mark`. Relaxed: a hint without the xa_lock, as the marks of a node are.
    pub(crate) fn has_head_mark(&self, mark: Mark) -> bool {
        self.head_marks.load(Ordering::Relaxed) >> mark as u8 & 1 != 0
    }

    /// Marks the entry in the head, or takes the mark from it. The caller holds the xa_lock.
    pub(crate) fn set_head_mark(&self, mark: Mark, marked: bool) {
        // Relaxed: as in `has_head_mark`; a load and a store, since the lock admits one writer.
        let others = self.head_marks.load(Ordering::Relaxed) & !(1 << mark as u8);
        let marks = others | u8::from(marked) << mark as u8;
        self.head_marks.store(marks, Ordering::Relaxed);
    }

    /// Slot `offset` of `node`, decoded. The caller reached the node from the head.
    #[inline]
    pub(crate) fn slot<'a>(&'a self, node: &'a Node, offset: usize) -> Slot<'a> {
        let word = node.load(offset);
        if is_node(word) {
            // SAFETY: `word` points to a node, and was loaded from a slot of a node of this index,
            // in the caller's read section or under its lock.
            return Slot::Node(unsafe { Node::from_word(word) });
        }
        Entry::from_word(word).map_or(Slot::Empty, Slot::Entry)
    }

    /// Sets the head. The caller holds the xa_lock. Release, partner of the Acquire loads of `head`
    /// here.
    pub(crate) fn set_head(&self, word: usize) {
        self.head.store(word, Ordering::Release);
    }

    /// Counts an entry more or less. The caller holds the xa_lock.
    pub(crate) fn count(&self, delta: i32) {
        // Relaxed: as in `nr_entries`; a load and a store, since the lock admits one writer.
        let entries = self
            .entries
            .load(Ordering::Relaxed)
            .wrapping_add_signed(delta);
        self.entries.store(entries, Ordering::Relaxed);
    }
}

/// On the way from the head to the entry at an index, from [`XArray::approach`]: two words, of which a caller keeps many.
#[derive(Clone, Copy)]
pub struct Approach<'a> {
    /// The slot of the index in its leaf, or the head that has the only entry.
    slot: &'a AtomicUsize,
    /// The word that was in it; zero where it was not looked at, or was empty.
    word: usize,
}

impl<'a> Approach<'a> {
    /// As [`XArray::load_slot`] of its index; an entry that was on the way is as it was found there.
    #[inline]
    pub fn load_slot(self) -> Option<(Entry, SlotRef<'a>)> {
        let Self { slot, word } = self;
        let word = match word {
            0 => slot.load(Ordering::Acquire),
            word => word,
        };
        // A slot above the leaves was empty on the way; if it is a child node by now there was no entry then.
        if is_node(word) {
            return None;
        }
        Entry::of_word(word).map(|entry| (entry, SlotRef { slot, word }))
    }
}

/// At a node, on the way down to an index.
#[derive(Clone, Copy)]
struct Descent<'a> {
    /// In the index, or detached from it in the read section that lasts for `'a`.
    node: &'a Node,
    shift: u32,
    index: u64,
}

impl<'a> Descent<'a> {
    #[inline]
    fn load_slot(mut self) -> Option<(Entry, SlotRef<'a>)> {
        loop {
            let slot = self.slot();
            let word = slot.load(Ordering::Acquire);
            if !self.descend(word) {
                return Entry::from_word(word).map(|entry| (entry, SlotRef { slot, word }));
            }
        }
    }

    #[inline]
    fn slot(&self) -> &'a AtomicUsize {
        self.node.slot((self.index >> self.shift) as usize)
    }

    /// Goes down a level if `word`, which was loaded from the slot, points to a child node; whether it does.
    #[inline]
    fn descend(&mut self, word: usize) -> bool {
        let child = is_node(word);
        if child {
            // SAFETY: `word` points to a node, and was loaded from a slot of this index in the same
            // read section.
            self.node = unsafe { Node::from_word(word) };
            self.shift -= SLOT_BITS;
        }
        child
    }
}

/// The slot that an entry was loaded from.
///
/// It proves this: if the slot still [`holds`](Self::holds) the entry, then the entry was in the index, at the
/// index it was loaded for, *at the time of that load*, whatever happened to the tree in between. A
/// slot is emptied before its node is detached, a detached node gets no entries, and no node is reused while the read section lasts, so there is no need to walk the tree again.
/// "At the time of" is meant as far as this thread has synchronised: a load that comes after an
/// Acquire load of something that the remover stored with Release, after removing the entry, does
/// not find it. It does not prove that the entry was never gone in between: it may have been
/// erased and stored again.
///
/// If the slot does not hold it any more the index may still have it: [`XaGuard::halve`](crate::XaGuard::halve) can make the
/// slot a child node, and the first entry beside an only one has that move from the head into a node. Start again from
/// the top then.
#[derive(Clone, Copy, Debug)]
pub struct SlotRef<'a> {
    slot: &'a AtomicUsize,
    /// The word that was in it. In the head it includes the order.
    word: usize,
}

impl SlotRef<'_> {
    /// Whether the entry that was loaded from the slot is in it now. Acquire: loads after it are not made before it.
    #[doc(alias = "xas_reload")]
    #[inline]
    #[must_use]
    pub fn holds(&self) -> bool {
        self.slot.load(Ordering::Acquire) == self.word
    }
}
