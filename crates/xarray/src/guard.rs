//! [`XaGuard`], the write side of an index: its lock, searching, marks, erasing. Insertion and splitting are
//! in the insert module.
//!
//! # Model
//!
//! A change walks from the head to the node of the entry and keeps the path, since nodes do not
//! know their parents; marks and empty nodes then travel up that path.
//!
//! # Invariants
//!
//! Every method here leaves those of the node module intact.
//!
//! # Locking
//!
//! Nothing is acquired under the xa_lock, and nothing here waits.
//!
//! # Safety
//!
//! The one unsafe operation takes a detached node over for the pool.
#![allow(unsafe_code)]

use foliocache_sync::rank::RankedMutexGuard;

use crate::entry::{Entry, Mark, first_covers};
use crate::find::Extent;
use crate::level::{LEVELS, level_of, node_mask, offset, shift};
use crate::node::{Node, NodeList, OwnedNode, canonical, width};
use crate::xarray::{Head, Slot, XArray};

/// The held xa_lock of an [`XArray`].
///
/// Readers run concurrently and see each change as it is made. The slots of a multi-order entry
/// change one after another, in ascending order.
#[doc(alias = "xa_lock")]
pub struct XaGuard<'a> {
    pub(crate) xa: &'a XArray,
    /// `None` in `drop` only.
    lock: Option<RankedMutexGuard<'a, ()>>,
    /// Nodes that were detached under this guard.
    freed: NodeList,
}

impl XArray {
    /// Takes the xa_lock, for changes. Rank [`XaLock`](foliocache_sync::rank::Rank::XaLock).
    ///
    /// Context: blocks for other writers, which never wait for anything while they hold it. Allocate
    /// before: see [`NodePool::preload`](crate::NodePool::preload).
    #[doc(alias = "xa_lock")]
    #[track_caller]
    pub fn lock(&self) -> XaGuard<'_> {
        XaGuard::new(self, self.lock.lock())
    }
}

impl Drop for XArray {
    fn drop(&mut self) {
        // No other thread has the index, so there is nothing to wait for, and no order of locks to
        // keep.
        if let Some(lock) = self.lock.try_lock() {
            let mut xa = XaGuard::new(self, lock);
            while let Some(found) = xa.find(0, u64::MAX, None) {
                xa.erase_if(found.index, found.entry);
            }
        }
    }
}

impl Drop for XaGuard<'_> {
    fn drop(&mut self) {
        // First the lock: the pool's is not waited for under it.
        self.lock = None;
        self.xa.pool().retire(&mut self.freed);
    }
}

/// Where the entry is that covers some index.
pub(crate) struct Position<'a> {
    /// The nodes on the way, by level; below `level` and above `top` any of them.
    path: [&'a Node; LEVELS],
    /// The level of the head.
    top: usize,
    /// The level of the node that has the entry.
    pub(crate) level: usize,
    /// Its first slot, and how many it has.
    pub(crate) first: usize,
    pub(crate) width: usize,
    pub(crate) entry: Entry,
}

impl<'a> Position<'a> {
    /// The node that has the entry.
    pub(crate) fn node(&self) -> &'a Node {
        self.path[self.level]
    }

    pub(crate) fn order(&self) -> u32 {
        shift(self.level) + self.width.trailing_zeros()
    }

    pub(crate) fn has_mark(&self, mark: Mark) -> bool {
        self.node().marks(mark) >> self.first & 1 != 0
    }

    /// The nodes from that of the entry up to the head, each with the slot that leads to the entry, which
    /// covers `index`.
    fn way(&self, index: u64) -> impl Iterator<Item = (&'a Node, usize)> {
        (self.level..=self.top).map(move |level| match level == self.level {
            true => (self.node(), self.first),
            false => (self.path[level], offset(index, level)),
        })
    }

    /// Sets `mark` on the entry that covers `index`, and on the nodes above it.
    fn set_mark(&self, index: u64, mark: Mark) {
        for (node, slot) in self.way(index) {
            let marks = node.marks(mark);
            if marks >> slot & 1 != 0 {
                return;
            }
            node.set_marks(mark, marks | 1 << slot);
            if foliocache_sync::planted!(mark_not_propagated) {
                return;
            }
        }
    }

    /// Clears `mark` on the entry that covers `index`, and on the nodes above it where no other
    /// entry has it.
    fn clear_mark(&self, index: u64, mark: Mark) {
        for (node, slot) in self.way(index) {
            let marks = node.marks(mark);
            let rest = marks & !(1 << slot);
            if rest == marks {
                return;
            }
            node.set_marks(mark, rest);
            if rest != 0 {
                return;
            }
        }
    }
}

impl<'a> XaGuard<'a> {
    fn new(xa: &'a XArray, lock: RankedMutexGuard<'a, ()>) -> Self {
        Self {
            xa,
            lock: Some(lock),
            freed: NodeList::default(),
        }
    }

    /// The head node and its level.
    pub(crate) fn head_node(&self) -> Option<(&'a Node, usize)> {
        match self.xa.head() {
            Head::Node(node, shift) => Some((node, level_of(shift))),
            _ => None,
        }
    }

    /// The entry in the head, if it covers `index`.
    fn in_head(&self, index: u64) -> Option<Extent> {
        match self.xa.head() {
            Head::Entry(entry, order) => {
                first_covers(order, index).then(|| Extent::first(entry, order))
            }
            _ => None,
        }
    }

    /// The position of the entry that covers `index`, if it is in a node.
    pub(crate) fn walk(&self, index: u64) -> Option<Position<'a>> {
        let xa = self.xa;
        let (mut node, top) = self.head_node()?;
        if index & !node_mask(top) != 0 {
            return None;
        }
        let mut path = [node; LEVELS];
        let mut level = top;
        loop {
            path[level] = node;
            let at = offset(index, level);
            match xa.slot(node, at) {
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
                        top,
                        level,
                        first,
                        width: width(siblings, first),
                        entry,
                    });
                }
            }
        }
    }

    /// The first entry that overlaps `first..=last` and has `mark`, if one is given. It may *begin*
    /// before `first`.
    #[doc(alias = "xas_find_marked")]
    #[must_use]
    pub fn find(&self, first: u64, last: u64, mark: Option<Mark>) -> Option<Extent> {
        self.xa.search(first, last, mark)
    }

    /// Removes `entry`, if it covers `index`: all of it, with its marks, and every node that it
    /// leaves empty. Needs no memory.
    #[doc(alias = "xa_erase")]
    pub fn erase_if(&mut self, index: u64, entry: Entry) -> Option<Extent> {
        if let Some(only) = self.in_head(index) {
            if only.entry != entry {
                return None;
            }
            self.xa.set_head(0);
            self.xa.count(-1);
            return Some(only);
        }
        let position = self.walk(index).filter(|found| found.entry == entry)?;
        for mark in Mark::ALL {
            position.clear_mark(index, mark);
        }
        position.node().clear(position.first, position.width);
        self.xa.count(-1);
        self.prune(index, &position);
        let order = position.order();
        Some(Extent {
            entry,
            index: index & !((1 << order) - 1),
            order,
        })
    }

    /// Puts `new` in the place of the entry that covers `index`: as large, with the same marks. A reader meanwhile
    /// finds the one or the other. Needs no memory.
    ///
    /// # Panics
    ///
    /// If there is no entry.
    #[doc(alias = "xa_store")]
    pub fn replace(&mut self, index: u64, new: Entry) {
        if let Some(only) = self.in_head(index) {
            return self.xa.set_head(new.head_word(only.order));
        }
        let position = self.walk(index).expect("an entry to replace");
        for slot in position.first..position.first + position.width {
            position.node().publish(slot, new.word());
        }
    }

    /// Sets `mark` on the entry that covers `index`, if there is one.
    #[doc(alias = "xa_set_mark")]
    pub fn set_mark(&mut self, index: u64, mark: Mark) {
        if self.in_head(index).is_some() {
            self.xa.set_head_mark(mark, true);
        } else if let Some(position) = self.walk(index) {
            position.set_mark(index, mark);
        }
    }

    /// Clears `mark` on the entry that covers `index`, if there is one.
    #[doc(alias = "xa_clear_mark")]
    pub fn clear_mark(&mut self, index: u64, mark: Mark) {
        if self.in_head(index).is_some() {
            self.xa.set_head_mark(mark, false);
        } else if let Some(position) = self.walk(index) {
            position.clear_mark(index, mark);
        }
    }

    /// Detaches the nodes that became empty on the way to `position`, and heads that have a child at slot 0
    /// alone.
    pub(crate) fn prune(&mut self, index: u64, position: &Position<'a>) {
        let mut level = position.level;
        while position.path[level].present() == 0 {
            let empty = position.path[level];
            if level == position.top {
                self.xa.set_head(0);
                self.free(empty);
                return;
            }
            level += 1;
            // Its marks went with those of the entry.
            position.path[level].clear(offset(index, level), 1);
            self.free(empty);
        }
        let (mut head, mut level) = (position.path[position.top], position.top);
        while level > 0 && head.present() == 1 {
            let Slot::Node(child) = self.xa.slot(head, 0) else {
                return;
            };
            level -= 1;
            self.xa.set_head(child.head_word(level));
            // Slot 0 of the old head stays, for readers that are in it: they find the child there.
            self.free(head);
            head = child;
        }
    }

    /// Hands a node over that was detached just now: nothing in the tree points to it any more.
    fn free(&mut self, node: &Node) {
        // SAFETY: the xa_lock is held; `prune` took the last pointer to the node out of the tree before
        // the call, and does not meet it again.
        self.freed.push(unsafe { OwnedNode::detached(node) });
    }
}
