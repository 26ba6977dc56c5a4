//! Searching: the first entry in a range, with a mark or without.
//!
//! # Model
//!
//! A search looks at the bitmaps of a node for the next candidate, goes down where it is a child,
//! and begins at the head again behind a node that it has been through: one walk for 64 slots.
//!
//! # Invariants
//!
//! A search goes forward: each step has a higher index than the one before, or comes after a slot
//! changed under it.
//!
//! # Memory ordering
//!
//! An extent is read between two loads of the slot. If both show the same word the layout in
//! between is that of the word: a writer stores the layout before the slots when an entry comes,
//! and after them when it goes.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::rcu::RcuReadGuard;

use crate::entry::{Entry, Mark, first_covers};
use crate::level::{SLOTS, level_of, node_mask, offset, shift, slot_mask};
use crate::node::{Node, canonical, width};
use crate::xarray::{Head, Slot, XArray};

/// An entry and the indices that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The entry.
    pub entry: Entry,
    /// The first index that it covers.
    pub index: u64,
    /// It covers 2^`order` indices.
    pub order: u32,
}

impl Extent {
    /// That of an entry at index 0.
    pub(crate) fn first(entry: Entry, order: u32) -> Self {
        Self {
            entry,
            index: 0,
            order,
        }
    }

    /// The last index that the entry covers.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.index + ((1 << self.order) - 1)
    }
}

impl XArray {
    /// The first entry that overlaps `first..=last` and has `mark`, if one is given. It may *begin*
    /// before `first`.
    ///
    /// An entry that is in the index, with the mark, from before the call until after it is never
    /// missed. An entry that is being changed at the same time may be found with its old or its new
    /// extent, and with a mark that it no longer has: look again under the xa_lock before relying on it.
    #[doc(alias = "xa_find")]
    pub fn find(
        &self,
        first: u64,
        last: u64,
        mark: Option<Mark>,
        _rcu: &RcuReadGuard,
    ) -> Option<Extent> {
        self.search(first, last, mark)
    }

    /// As [`XArray::find`], in a read section or under the xa_lock.
    pub(crate) fn search(&self, first: u64, last: u64, mark: Option<Mark>) -> Option<Extent> {
        let mut index = first;
        while index <= last {
            let (node, level) = match self.head() {
                Head::Node(node, shift) if index >> shift < SLOTS as u64 => (node, level_of(shift)),
                Head::Entry(entry, order) if first_covers(order, index) => {
                    let wanted = mark.is_none_or(|mark| self.has_head_mark(mark));
                    return wanted.then_some(Extent::first(entry, order));
                }
                _ => return None,
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
    fn find_below<'a>(
        &'a self,
        mut node: &'a Node,
        mut level: usize,
        mut index: u64,
        last: u64,
        mark: Option<Mark>,
    ) -> Result<Option<Extent>, u64> {
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
            let entry = match self.slot(node, at) {
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
            // Acquire is not needed: the same word as before, whose first load was Acquire. A later
            // layout would have shown that the word had left (memory ordering of the node module).
            if node.slot(at).load(Ordering::Relaxed) != entry.word() {
                continue;
            }
            let first = canonical(siblings, at);
            let order = shift(level) + width(siblings, first).trailing_zeros();
            let index = (index & !node_mask(level)) | (first as u64) << shift(level);
            return Ok(Some(Extent {
                entry,
                index,
                order,
            }));
        }
    }
}
