//! [`XaGuard`], the write side of an index: searching, marks, erasing. Insertion and
//! splitting are in the insert module.
//!
//! # Model
//!
//! A change walks from the head to the node of the entry and keeps the path, since nodes do not
//! know their parents; marks and empty nodes then travel up that path.
//!
//! # Invariants
//!
//! Those of the node module, which every method here leaves intact, also where a callback panics.
//!
//! # Locking
//!
//! *Protects*: everything but the memory of nodes that readers are in. *Order*: rank `XaLock`;
//! nothing is acquired under it. Detached nodes are handed to the pool after the lock is released.
//! *May block*: no.
//!
//! # Safety
//!
//! The one unsafe operation takes a detached node over for the pool.
#![allow(unsafe_code)]

use foliocache_sync::rank::RankedMutexGuard;

use crate::entry::{Entry, Mark};
use crate::node::{
    LEVELS, Node, NodeList, OwnedNode, bits, canonical, node_mask, offset, shift, slot_mask, width,
};
use crate::pool::NodePool;
use crate::xarray::{Slot, View, XArray};

/// The held xa_lock of an [`XArray`].
///
/// Readers go on meanwhile and see each change as it is made. The slots of a multi-order entry
/// change one after another, in ascending order.
#[doc(alias = "xa_lock")]
pub struct XaGuard<'a> {
    pub(crate) xa: &'a XArray,
    // Above `freed`: the lock is released before detached nodes go to the pool.
    _lock: RankedMutexGuard<'a, ()>,
    freed: Freed<'a>,
}

/// Nodes that were detached under this guard; dropping it puts them into the limbo.
struct Freed<'a> {
    pool: &'a NodePool,
    nodes: NodeList,
}

impl Drop for Freed<'_> {
    fn drop(&mut self) {
        self.pool.retire(&mut self.nodes);
    }
}

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
    /// The last index that the entry covers.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.index + ((1 << self.order) - 1)
    }
}

/// The nodes from the head down to some level.
pub(crate) struct Path<'a> {
    nodes: [Option<&'a Node>; LEVELS],
    /// The level of the head.
    top: usize,
}

impl<'a> Path<'a> {
    fn node(&self, level: usize) -> &'a Node {
        self.nodes[level].expect("the walk came through this level")
    }

    /// Sets `mark` on the slots `all` of the node at `level`, and on what is above.
    fn set_mark(&self, index: u64, level: usize, all: u64, mark: Mark) {
        let mut all = all;
        for level in level..=self.top {
            let node = self.node(level);
            let marks = node.marks(mark);
            if marks & all == all {
                return;
            }
            node.set_marks(mark, marks | all);
            if level < self.top {
                all = 1 << offset(index, level + 1);
            }
        }
    }

    /// Clears `mark` on the slots `all` of the node at `level`, and above where nothing else has
    /// it.
    fn clear_mark(&self, index: u64, level: usize, all: u64, mark: Mark) {
        let mut all = all;
        for level in level..=self.top {
            let node = self.node(level);
            let marks = node.marks(mark);
            if marks & all == 0 {
                return;
            }
            node.set_marks(mark, marks & !all);
            if marks & !all != 0 {
                return;
            }
            if level < self.top {
                all = 1 << offset(index, level + 1);
            }
        }
    }
}

/// Where an entry is.
pub(crate) struct Position<'a> {
    pub(crate) path: Path<'a>,
    /// The node that has the entry, and its level.
    pub(crate) node: &'a Node,
    pub(crate) level: usize,
    /// Its first slot, and how many it has.
    pub(crate) first: usize,
    pub(crate) width: usize,
    pub(crate) entry: Entry,
}

impl Position<'_> {
    pub(crate) fn extent(&self, index: u64) -> Extent {
        Extent {
            entry: self.entry,
            index: (index & !node_mask(self.level)) | (self.first as u64) << shift(self.level),
            order: shift(self.level) + self.width.trailing_zeros(),
        }
    }

    /// Gives the first slots `all` of entries in the node each mark that the entry has.
    pub(crate) fn spread_marks(&self, index: u64, all: u64) {
        for mark in Mark::ALL {
            if self.node.marks(mark) >> self.first & 1 != 0 {
                self.path.set_mark(index, self.level, all, mark);
            }
        }
    }
}

impl<'a> XaGuard<'a> {
    pub(crate) fn new(xa: &'a XArray, lock: RankedMutexGuard<'a, ()>) -> Self {
        Self {
            xa,
            _lock: lock,
            freed: Freed {
                pool: xa.pool(),
                nodes: NodeList::new(),
            },
        }
    }

    pub(crate) fn view(&self) -> View<'a> {
        self.xa.view()
    }

    /// The position of the entry that covers `index`.
    pub(crate) fn walk(&self, index: u64) -> Option<Position<'a>> {
        let view = self.view();
        let (mut node, top) = view.head()?;
        if index & !node_mask(top) != 0 {
            return None;
        }
        let mut path = Path {
            nodes: [None; LEVELS],
            top,
        };
        let mut level = top;
        loop {
            path.nodes[level] = Some(node);
            let at = offset(index, level);
            match view.slot(node, at) {
                Slot::Node(child) => {
                    node = child;
                    level -= 1;
                }
                Slot::Empty => return None,
                Slot::Entry(entry) => {
                    let siblings = node.siblings();
                    let first = canonical(siblings, at);
                    return Some(Position {
                        path,
                        node,
                        level,
                        first,
                        width: width(siblings, first),
                        entry,
                    });
                }
            }
        }
    }

    /// The first entry that overlaps `first..=last` and has `mark`, if one is asked for. It may
    /// *begin* before `first`.
    #[doc(alias = "xas_find_marked")]
    #[must_use]
    pub fn find(&self, first: u64, last: u64, mark: Option<Mark>) -> Option<Extent> {
        let found = self.view().find(first, last, mark)?;
        Some(Extent {
            entry: found.entry,
            index: found.index,
            order: found.order,
        })
    }

    /// Removes the whole entry that covers `index`, with its marks, and every node that it leaves
    /// empty. Needs no memory.
    #[doc(alias = "xa_erase")]
    pub fn erase(&mut self, index: u64) -> Option<Extent> {
        let position = self.walk(index)?;
        self.remove(index, &position);
        Some(position.extent(index))
    }

    /// As [`XaGuard::erase`], but only if the entry is `entry`.
    pub fn erase_if(&mut self, index: u64, entry: Entry) -> Option<Extent> {
        let position = self
            .walk(index)
            .filter(|position| position.entry == entry)?;
        self.remove(index, &position);
        Some(position.extent(index))
    }

    /// Removes every entry.
    #[doc(alias = "xa_destroy")]
    pub fn clear(&mut self) {
        if let Some((node, _)) = self.view().head() {
            self.empty(node);
            self.xa.set_head(0);
            self.free(node);
        }
        self.xa.account(-(self.xa.nr_entries() as i64), 0);
    }

    /// Sets `mark` on the entry that covers `index`. Whether it was clear; `false` too if there is
    /// no entry.
    #[doc(alias = "xa_set_mark")]
    pub fn set_mark(&mut self, index: u64, mark: Mark) -> bool {
        let Some(position) = self.walk(index) else {
            return false;
        };
        let was_clear = position.node.marks(mark) >> position.first & 1 == 0;
        if was_clear {
            position
                .path
                .set_mark(index, position.level, 1 << position.first, mark);
        }
        was_clear
    }

    /// Clears `mark` on the entry that covers `index`. Whether it was set.
    #[doc(alias = "xa_clear_mark")]
    pub fn clear_mark(&mut self, index: u64, mark: Mark) -> bool {
        let Some(position) = self.walk(index) else {
            return false;
        };
        let was_set = position.node.marks(mark) >> position.first & 1 != 0;
        if was_set {
            position
                .path
                .clear_mark(index, position.level, 1 << position.first, mark);
        }
        was_set
    }

    /// How many entries there are; a multi-order entry is one.
    #[must_use]
    pub fn nr_entries(&self) -> u64 {
        self.xa.nr_entries()
    }

    /// Removes the entry at `position`, which covers `index`.
    fn remove(&mut self, index: u64, position: &Position<'a>) {
        for mark in Mark::ALL {
            position
                .path
                .clear_mark(index, position.level, 1 << position.first, mark);
        }
        position.node.clear(position.first, position.width);
        self.xa.account(-1, 0);
        self.prune(index, position);
    }

    /// Detaches what became empty on the way to `position`, and heads that have a child at slot 0
    /// alone.
    fn prune(&mut self, index: u64, position: &Position<'a>) {
        let mut level = position.level;
        while position.path.node(level).present() == 0 {
            let empty = position.path.node(level);
            if level == position.path.top {
                self.xa.set_head(0);
                self.free(empty);
                return;
            }
            level += 1;
            // Its marks went with those of the entry.
            position.path.node(level).clear(offset(index, level), 1);
            self.free(empty);
        }
        let (mut head, mut level) = (position.path.node(position.path.top), position.path.top);
        while level > 0 && head.present() == 1 {
            let Slot::Node(child) = self.view().slot(head, 0) else {
                return;
            };
            level -= 1;
            self.xa.set_head(child.head_word(level));
            // Slot 0 of the old head stays, for readers that are in it: they find the child there.
            self.free(head);
            head = child;
        }
    }

    /// Empties a node that is in the tree, and detaches all that is below it.
    fn empty(&mut self, node: &'a Node) {
        let mut present = node.present();
        while present != 0 {
            let at = present.trailing_zeros() as usize;
            if let Slot::Node(child) = self.view().slot(node, at) {
                self.empty(child);
                node.clear(at, 1);
                self.free(child);
                present &= !bits(at, 1);
            } else {
                let width = width(node.siblings(), at);
                node.clear(at, width);
                present &= !bits(at, width);
            }
        }
        for mark in Mark::ALL {
            node.set_marks(mark, 0);
        }
    }

    /// Hands a node over that was detached just now: nothing in the tree points to it any more.
    fn free(&mut self, node: &Node) {
        // SAFETY: the xa_lock is held; the callers are `prune` and `clear`/`empty`, which took the
        // last pointer to the node out of the tree before the call, and do not meet it again.
        self.freed.nodes.push(unsafe { OwnedNode::detached(node) });
        self.xa.account(0, -1);
    }
}

impl core::fmt::Debug for XaGuard<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("XaGuard").field(self.xa).finish()
    }
}

/// The lowest index in the slot at `level` that covers `index`.
pub(crate) fn slot_base(index: u64, level: usize) -> u64 {
    index & !slot_mask(level)
}
