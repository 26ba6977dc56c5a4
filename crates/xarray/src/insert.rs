//! Insertion and splitting: the changes that need nodes.
//!
//! # Model
//!
//! New nodes are put together bottom up, out of sight, and one Release store makes them visible: to
//! a reader the insertion of an entry of one slot happens at once, however many levels it adds.
//!
//! # Locking
//!
//! All here runs under the xa_lock, with nodes that were taken before it.

use crate::entry::{Entry, Mark};
use crate::guard::{Extent, Position, XaGuard, slot_base};
use crate::node::{MAX_ORDER, Node, OwnedNode, SLOT_BITS, SLOTS, bits, level_for, offset, shift};
use crate::pool::Preload;
use crate::xarray::Slot;

/// Why [`XaGuard::insert`] did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InsertError {
    /// The first entry that is in the way.
    Occupied(Extent),
    /// The preload is too small: drop the guard, refill, and try again.
    NeedNodes {
        /// Nodes missing.
        short: usize,
    },
}

impl core::fmt::Display for InsertError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Occupied(extent) => write!(f, "index {} is taken", extent.index),
            Self::NeedNodes { short } => write!(f, "the preload lacks {short} nodes"),
        }
    }
}

impl core::error::Error for InsertError {}

/// Why [`XaGuard::split`] did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitError {
    /// There is no entry at the index.
    Vacant,
    /// The preload is too small: drop the guard, refill, and try again.
    NeedNodes {
        /// Nodes missing.
        short: usize,
    },
}

impl core::fmt::Display for SplitError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Vacant => f.write_str("no entry to split"),
            Self::NeedNodes { short } => write!(f, "the preload lacks {short} nodes"),
        }
    }
}

impl core::error::Error for SplitError {}

/// Where the new entry goes.
enum InsertPoint<'a> {
    /// There is no tree.
    Empty,
    /// The head, at this level, does not cover the index.
    Above(&'a Node, usize),
    /// An empty slot of the node at this level, which is above the entry's.
    Below(&'a Node, usize),
    /// The node of the entry's level.
    Here(&'a Node),
}

impl<'a> XaGuard<'a> {
    /// Inserts an entry that covers the 2^`order` indices from `index` on. It has no marks.
    ///
    /// Takes what it needs from `pre`, for which [`crate::XArray::nodes_needed_range`] is the estimate;
    /// never allocates.
    ///
    /// # Errors
    ///
    /// [`InsertError::Occupied`] if any of these indices has an entry, else
    /// [`InsertError::NeedNodes`] if `pre` is too small. Nothing has changed then.
    ///
    /// # Panics
    ///
    /// If `order` exceeds [`MAX_ORDER`], `index` is not a multiple of 2^`order`, or `pre` is of
    /// another pool.
    #[doc(alias = "xa_insert")]
    pub fn insert(
        &mut self,
        index: u64,
        order: u32,
        entry: Entry,
        pre: &mut Preload<'_>,
    ) -> Result<(), InsertError> {
        assert!(order <= MAX_ORDER, "order {order} exceeds {MAX_ORDER}");
        assert!(
            index & ((1 << order) - 1) == 0,
            "index {index} is not aligned to order {order}"
        );
        assert!(pre.is_of(self.xa.pool()), "the preload is of another pool");
        let last = index + ((1 << order) - 1);
        let target = (order / SLOT_BITS) as usize;
        let width = 1 << (order % SLOT_BITS);
        let lowest = level_for(index).max(target);

        let Some(place) = self.insert_point(index, lowest, target, width) else {
            let taken = self
                .find(index, last, None)
                .expect("an entry is in the way");
            return Err(InsertError::Occupied(taken));
        };
        let need = match place {
            InsertPoint::Empty => lowest - target + 1,
            InsertPoint::Above(_, level) => (lowest - level) + (lowest - target),
            InsertPoint::Below(_, level) => level - target,
            InsertPoint::Here(_) => 0,
        };
        if pre.len() < need {
            return Err(InsertError::NeedNodes {
                short: need - pre.len(),
            });
        }

        match place {
            InsertPoint::Here(node) => node.fill(offset(index, target), width, entry.word()),
            InsertPoint::Below(node, level) => {
                let chain = chain(index, target, width, entry, level - 1, pre);
                node.fill(offset(index, level), 1, chain.into_word());
            }
            InsertPoint::Empty => {
                let chain = chain(index, target, width, entry, lowest, pre);
                let head = chain.node().head_word(lowest);
                chain.into_word();
                self.xa.set_head(head);
            }
            InsertPoint::Above(old, level) => {
                let mut spine = old.word();
                for above in level + 1..=lowest {
                    let node = pre.take();
                    node.node().fill(0, 1, spine);
                    for mark in Mark::ALL {
                        // The old head's marks tell for every level of the spine.
                        node.node().set_marks(mark, u64::from(old.marks(mark) != 0));
                    }
                    if above == lowest {
                        if lowest == target {
                            node.node().fill(offset(index, target), width, entry.word());
                        } else {
                            let chain = chain(index, target, width, entry, lowest - 1, pre);
                            node.node()
                                .fill(offset(index, lowest), 1, chain.into_word());
                        }
                        self.xa.set_head(node.node().head_word(lowest));
                    }
                    spine = node.into_word();
                }
            }
        }
        self.xa.account(1, need as i64);
        Ok(())
    }

    /// Replaces the entry that covers `index` by entries of `to_order`, each with all its marks;
    /// returns it.
    ///
    /// `entry_for` is called in ascending order with the first index of each part. If it panics,
    /// the parts that it was not called for keep the old entry, at some order in between, and
    /// nodes that were being filled are lost to the pool while it lives. A reader meanwhile finds
    /// the old entry or the new. `to_order` may be the entry's own, which makes this a replacement.
    ///
    /// # Errors
    ///
    /// [`SplitError`], if there is no entry or `pre` is too small ([`crate::split_nodes_needed`]);
    /// nothing has changed.
    ///
    /// # Panics
    ///
    /// If `to_order` exceeds the entry's order, or `pre` is of another pool.
    #[doc(alias = "xas_split")]
    pub fn split(
        &mut self,
        index: u64,
        to_order: u32,
        pre: &mut Preload<'_>,
        mut entry_for: impl FnMut(u64) -> Entry,
    ) -> Result<Extent, SplitError> {
        assert!(pre.is_of(self.xa.pool()), "the preload is of another pool");
        let position = self.walk(index).ok_or(SplitError::Vacant)?;
        let whole = position.extent(index);
        assert!(
            to_order <= whole.order,
            "splitting order {} to {to_order}",
            whole.order
        );
        let need = crate::split_nodes_needed(whole.order, to_order);
        if pre.len() < need {
            return Err(SplitError::NeedNodes {
                short: need - pre.len(),
            });
        }
        let target = (to_order / SLOT_BITS) as usize;
        // Within the node first, as far as that goes.
        let width = if target == position.level {
            1 << (to_order % SLOT_BITS)
        } else {
            1
        };
        self.divide(index, &position, width);
        for at in (position.first..position.first + position.width).step_by(width) {
            let start = whole.index + ((at - position.first) as u64) * (1 << shift(position.level));
            if target == position.level {
                let entry = entry_for(start);
                for at in at..at + width {
                    position.node.publish(at, entry.word());
                }
            } else {
                let marks = Mark::ALL.map(|mark| position.node.marks(mark) >> at & 1 != 0);
                let (subtree, entries) = subtree(
                    start,
                    position.level - 1,
                    to_order,
                    &marks,
                    pre,
                    &mut entry_for,
                );
                position.node.publish(at, subtree.into_word());
                self.xa
                    .account(entries - 1, split_below(position.level, target));
            }
        }
        Ok(whole)
    }

    /// Finds the place for an entry at slot `index` of level `target`; `None` if something is in
    /// the way.
    fn insert_point(
        &self,
        index: u64,
        lowest: usize,
        target: usize,
        width: usize,
    ) -> Option<InsertPoint<'a>> {
        let view = self.view();
        let Some((mut node, mut level)) = view.head() else {
            return Some(InsertPoint::Empty);
        };
        if level < lowest {
            // A tree that the entry would be above of is in its way: no tree is empty.
            let covers_old = offset(index, lowest) == 0;
            return (!covers_old).then_some(InsertPoint::Above(node, level));
        }
        while level > target {
            match view.slot(node, offset(index, level)) {
                Slot::Empty => return Some(InsertPoint::Below(node, level)),
                Slot::Entry(_) => return None,
                Slot::Node(child) => node = child,
            }
            level -= 1;
        }
        let free = node.present() & bits(offset(index, target), width) == 0;
        free.then_some(InsertPoint::Here(node))
    }

    /// Makes `width` slots an entry each of the entry at `position`, with its marks. Marks first, then
    /// the layout: a mark on a later slot of an entry finds that entry.
    fn divide(&mut self, index: u64, position: &Position<'a>, width: usize) {
        if width == position.width {
            return;
        }
        let mut firsts = 0;
        for at in (position.first..position.first + position.width).step_by(width) {
            firsts |= bits(at, 1);
        }
        position.spread_marks(index, firsts);
        position
            .node
            .set_siblings(position.node.siblings() & !firsts);
        self.xa.account((position.width / width) as i64 - 1, 0);
    }
}

/// How many nodes replace one slot at `level` when it is split to entries at level `target`.
fn split_below(level: usize, target: usize) -> i64 {
    crate::split_nodes_needed(shift(level), shift(target)) as i64
}

/// New nodes from `target`, where `entry` is, up to `top`.
fn chain(
    index: u64,
    target: usize,
    width: usize,
    entry: Entry,
    top: usize,
    pre: &mut Preload<'_>,
) -> OwnedNode {
    let mut node = pre.take();
    node.node().fill(offset(index, target), width, entry.word());
    for level in target + 1..=top {
        let above = pre.take();
        above.node().fill(offset(index, level), 1, node.into_word());
        node = above;
    }
    node
}

/// A new node at `level` for the indices from `start` on, full of entries of `order`, and how many
/// they are.
fn subtree(
    start: u64,
    level: usize,
    order: u32,
    marks: &[bool; Mark::ALL.len()],
    pre: &mut Preload<'_>,
    entry_for: &mut impl FnMut(u64) -> Entry,
) -> (OwnedNode, i64) {
    let node = pre.take();
    let target = (order / SLOT_BITS) as usize;
    let width = if level == target {
        1 << (order % SLOT_BITS)
    } else {
        1
    };
    let mut entries = 0;
    let mut firsts = 0;
    for at in (0..SLOTS).step_by(width) {
        let start = slot_base(start, level + 1) + ((at as u64) << shift(level));
        let word = if level == target {
            entries += 1;
            entry_for(start).word()
        } else {
            let (child, below) = subtree(start, level - 1, order, marks, pre, entry_for);
            entries += below;
            child.into_word()
        };
        node.node().fill(at, width, word);
        firsts |= bits(at, 1);
    }
    for (mark, &set) in Mark::ALL.into_iter().zip(marks) {
        if set {
            node.node().set_marks(mark, firsts);
        }
    }
    (node, entries)
}
