//! [`XaState`], the cursor, and the searches that are made with it.
//!
//! # Model
//!
//! A search looks at the bitmaps of a node for the next candidate, goes down where it is a child,
//! and begins at the head again behind a node that it has been through: one walk for 64 slots.
//!
//! # Invariants
//!
//! 1. A remembered node was reached in the read section, or under the lock, that the view stands
//!    for. It may have been detached since; then it is empty.
//! 2. A search goes forward: each step has a higher index than the one before, or comes after a
//!    slot changed under it.
//!
//! # Memory ordering
//!
//! An extent is read between two loads of the slot. If both show the same word the layout in
//! between is that of the word: a writer stores the layout before the slots when an entry comes,
//! and after them when it goes.

use foliocache_sync::atomic::Ordering;

use crate::entry::{Entry, Mark};
use crate::node::{Node, SLOTS, canonical, node_mask, offset, shift, slot_mask, width};
use crate::xarray::{Slot, SlotRef, View};

/// An entry that a lockless search found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The entry.
    pub entry: Entry,
    /// The first index that it covers.
    pub index: u64,
    /// It covers 2^`order` indices.
    pub order: u32,
    /// The slot that it was loaded from.
    pub slot: SlotRef<'a>,
}

impl Found<'_> {
    /// The last index that the entry covers.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.index + ((1 << self.order) - 1)
    }
}

/// A cursor: it remembers the node that it was in, so that the next index near by costs one load.
///
/// It sees what [`crate::XArray::load`] and [`crate::XArray::find`] see: a remembered node that was
/// detached meanwhile is empty, and an empty slot sends the cursor to the head again.
#[doc(alias = "xa_state")]
#[derive(Clone)]
pub struct XaState<'a> {
    view: View<'a>,
    node: Option<&'a Node>,
    /// Level and lowest index of `node`.
    level: usize,
    base: u64,
    /// `node_mask(level)` and `shift(level)`, at hand.
    mask: u64,
    shift: u32,
}

impl<'a> XaState<'a> {
    /// A cursor that has been nowhere.
    #[inline]
    pub(crate) fn new(view: View<'a>) -> Self {
        Self {
            view,
            node: None,
            level: 0,
            base: 0,
            mask: 0,
            shift: 0,
        }
    }

    /// The remembered node, if it covers `index`.
    #[inline]
    fn near(&self, index: u64) -> Option<(&'a Node, usize)> {
        let node = self.node?;
        (index & !self.mask == self.base).then_some((node, self.level))
    }

    /// The remembered node, if it covers `index` and was in the tree when this search began: a leaf
    /// that is not empty. An old head keeps its child at slot 0 (invariant 5 of the node module),
    /// so that nothing tells one from a node of the tree.
    #[inline]
    fn near_leaf(&self, index: u64) -> Option<(&'a Node, usize)> {
        self.near(index)
            .filter(|(node, level)| *level == 0 && node.present() != 0)
    }

    #[inline]
    fn remember(&mut self, node: &'a Node, level: usize, index: u64) {
        self.node = Some(node);
        self.level = level;
        self.mask = node_mask(level);
        self.base = index & !self.mask;
        self.shift = shift(level);
    }

    /// The head node, if it covers `index`.
    fn top(&self, index: u64) -> Option<(&'a Node, usize)> {
        self.view
            .head()
            .filter(|&(_, level)| index >> shift(level) < SLOTS as u64)
    }

    /// The entry at `index`; as [`crate::XArray::load`].
    #[doc(alias = "xas_load")]
    #[inline]
    pub fn load(&mut self, index: u64) -> Option<Entry> {
        self.load_slot(index).map(|(entry, _)| entry)
    }

    /// The entry at `index` and its slot; as [`crate::XArray::load_slot`].
    #[inline]
    pub fn load_slot(&mut self, index: u64) -> Option<(Entry, SlotRef<'a>)> {
        if let Some((node, _)) = self.near(index) {
            let at = (index >> self.shift) as usize & (SLOTS - 1);
            // Empty may mean detached, and a child that an entry was split: look from the head.
            if let Slot::Entry(entry) = self.view.slot(node, at) {
                return Some((
                    entry,
                    SlotRef {
                        slot: node.slot(at),
                    },
                ));
            }
        }
        self.walk(index)
    }

    /// [`XaState::load_slot`] from the head.
    fn walk(&mut self, index: u64) -> Option<(Entry, SlotRef<'a>)> {
        let (mut node, mut level) = self.top(index)?;
        loop {
            let at = offset(index, level);
            match self.view.slot(node, at) {
                Slot::Node(child) => node = child,
                Slot::Entry(entry) => {
                    self.remember(node, level, index);
                    return Some((
                        entry,
                        SlotRef {
                            slot: node.slot(at),
                        },
                    ));
                }
                Slot::Empty => {
                    self.remember(node, level, index);
                    return None;
                }
            }
            level -= 1;
        }
    }

    /// The first entry that overlaps `first..=last` and has `mark`; as [`crate::XArray::find`].
    #[doc(alias = "xas_find")]
    #[doc(alias = "xas_find_marked")]
    pub fn find(&mut self, first: u64, last: u64, mark: Option<Mark>) -> Option<Found<'a>> {
        let mut index = first;
        let mut start = self.near_leaf(first);
        while index <= last {
            let (node, level) = match start.take() {
                Some(near) => near,
                None => self.top(index)?,
            };
            match self.find_below(node, level, index, last, mark) {
                Ok(found) => return found,
                Err(end) => index = end.checked_add(1)?,
            }
        }
        None
    }

    /// Searches from `index` on in the node that covers it, and in the first node below that has a
    /// candidate. `Err(end)`: nothing up to and including `end`, go on behind it.
    fn find_below(
        &mut self,
        mut node: &'a Node,
        mut level: usize,
        mut index: u64,
        last: u64,
        mark: Option<Mark>,
    ) -> Result<Option<Found<'a>>, u64> {
        loop {
            let from = offset(index, level);
            let candidates = node.candidates(mark);
            // The entry that covers `index` may have begun in an earlier slot, where its mark is.
            let first = canonical(node.siblings(), from);
            let at = if candidates >> first & 1 != 0 {
                from
            } else {
                let later = candidates & (u64::MAX << from);
                if later == 0 {
                    return Err(index | node_mask(level));
                }
                later.trailing_zeros() as usize
            };
            if at != from {
                index = (index & !node_mask(level)) | (at as u64) << shift(level);
                if index > last {
                    return Ok(None);
                }
            }
            let entry = match self.view.slot(node, at) {
                Slot::Entry(entry) => entry,
                Slot::Node(child) => {
                    node = child;
                    level -= 1;
                    continue;
                }
                Slot::Empty => {
                    // Erased since, or a hint that came late.
                    let end = index | slot_mask(level);
                    if at == SLOTS - 1 {
                        return Err(end);
                    }
                    index = end + 1;
                    if index > last {
                        return Ok(None);
                    }
                    continue;
                }
            };
            let siblings = node.siblings();
            let slot = node.slot(at);
            // Acquire is not needed: the same word as before, whose first load was Acquire. A later
            // layout would have shown that the word had left (memory ordering of the node module).
            if slot.load(Ordering::Relaxed) != entry.word() {
                continue;
            }
            let first = canonical(siblings, at);
            let order = shift(level) + width(siblings, first).trailing_zeros();
            self.remember(node, level, index);
            let index = (index & !node_mask(level)) | (first as u64) << shift(level);
            return Ok(Some(Found {
                entry,
                index,
                order,
                slot: SlotRef { slot },
            }));
        }
    }
}

impl core::fmt::Debug for XaState<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("XaState")
            .field("base", &self.base)
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

/// Iterator of [`crate::XArray::range`].
#[derive(Clone, Debug)]
pub struct Range<'a> {
    state: XaState<'a>,
    next: Option<u64>,
    last: u64,
    mark: Option<Mark>,
}

impl<'a> Range<'a> {
    /// From `next`, if not `None`, to `last`.
    pub(crate) fn new(
        state: XaState<'a>,
        next: Option<u64>,
        last: u64,
        mark: Option<Mark>,
    ) -> Self {
        Self {
            state,
            next,
            last,
            mark,
        }
    }
}

impl<'a> Iterator for Range<'a> {
    type Item = Found<'a>;

    fn next(&mut self) -> Option<Found<'a>> {
        let next = self.next.take()?;
        let found = self.state.find(next, self.last, self.mark)?;
        self.next = found
            .last()
            .checked_add(1)
            .filter(|&next| next <= self.last);
        Some(found)
    }
}
