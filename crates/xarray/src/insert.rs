//! Insertion and splitting: the changes that need nodes.
//!
//! # Model
//!
//! New nodes below the head are put together bottom up, out of sight, and one Release store makes them
//! visible: to a reader the insertion of an entry of one slot happens at once, however many levels it
//! adds.
//!
//! # Locking
//!
//! All here runs under the xa_lock, with nodes that were taken before it.

use crate::entry::{Entry, Mark, first_covers};
use crate::guard::XaGuard;
use crate::level::{MAX_ORDER, SLOT_BITS, SLOTS, level_for, level_of, offset};
use crate::node::bits;
use crate::pool::Preload;
use crate::xarray::{Head, Slot};

/// Why [`XaGuard::insert`] did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertError {
    /// There is an entry in the way.
    Occupied,
    /// The preload is too small: drop the guard, take a larger one, and try again.
    NeedNodes,
}

/// How many nodes suffice for [`XaGuard::halve`] with an entry of `order`: one, if it is in the head, and one more, if an
/// entry of the half cannot stand in the same node.
#[must_use]
pub fn nodes_to_halve(order: u32) -> usize {
    1 + usize::from(order.is_multiple_of(SLOT_BITS))
}

/// Whether `n` nodes are at hand.
fn covers(pre: &Preload<'_>, n: usize) -> Result<(), InsertError> {
    match pre.len() < n {
        true => Err(InsertError::NeedNodes),
        false => Ok(()),
    }
}

impl XaGuard<'_> {
    /// Inserts an entry that covers the 2^`order` indices from `index` on. It has no marks.
    ///
    /// Takes the nodes that it needs from `pre`, for which [`crate::XArray::nodes_needed_range`] is the estimate;
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
        let xa = self.xa;
        let target = level_of(order);
        let width = 1 << (order % SLOT_BITS);
        let lowest = level_for(index).max(target);
        match xa.head() {
            Head::Empty if index == 0 => {
                for mark in Mark::ALL {
                    xa.set_head_mark(mark, false);
                }
                xa.set_head(entry.head_word(order));
                xa.count(1);
                return Ok(());
            }
            Head::Entry(_, of_only) if first_covers(of_only, index) => {
                return Err(InsertError::Occupied);
            }
            Head::Entry(only, of_only) => {
                let top = level_of(of_only);
                // Its node, those above that, and those from the top down.
                covers(
                    pre,
                    1 + lowest.saturating_sub(top) + lowest.max(top) - target,
                )?;
                self.unfold(only, of_only, pre);
            }
            _ => {}
        }

        // Levels from `low` on have no head yet.
        let top = self.head_node().map(|(_, top)| top);
        let low = top.map_or(lowest, |top| top + 1);
        if low <= lowest {
            // A tree that the entry would be above of is in its way: no tree is empty.
            if top.is_some() && offset(index, lowest) == 0 {
                return Err(InsertError::Occupied);
            }
            covers(pre, lowest + 1 - low + lowest - target)?;
            (low..=lowest).for_each(|level| self.grow(level, pre));
        }
        let (mut node, mut level) = self.head_node().expect("the tree covers the index");
        while level > target {
            match xa.slot(node, offset(index, level)) {
                Slot::Empty => break,
                Slot::Entry(_) => return Err(InsertError::Occupied),
                Slot::Node(child) => node = child,
            }
            level -= 1;
        }
        if level == target {
            if node.present() & bits(offset(index, target), width) != 0 {
                return Err(InsertError::Occupied);
            }
            node.fill(offset(index, target), width, entry.word());
        } else {
            covers(pre, level - target)?;
            let mut below = pre.take();
            below
                .node()
                .fill(offset(index, target), width, entry.word());
            for level in target + 1..level {
                let above = pre.take();
                above
                    .node()
                    .fill(offset(index, level), 1, below.into_word());
                below = above;
            }
            node.fill(offset(index, level), 1, below.into_word());
        }
        xa.count(1);
        Ok(())
    }

    /// Moves the entry in the head, of `order`, into a node. A reader meanwhile finds it in the one or the other.
    fn unfold(&mut self, entry: Entry, order: u32, pre: &mut Preload<'_>) {
        let new = pre.take();
        let node = new.node();
        node.fill(0, 1 << (order % SLOT_BITS), entry.word());
        for mark in Mark::ALL {
            node.set_marks(mark, u64::from(self.xa.has_head_mark(mark)));
        }
        let head = node.head_word(level_of(order));
        new.into_word();
        self.xa.set_head(head);
    }

    /// Makes a new node the head, at `level`. The old head, if there is one, is below its slot 0.
    fn grow(&mut self, level: usize, pre: &mut Preload<'_>) {
        let new = pre.take();
        if let Some((old, _)) = self.head_node() {
            new.node().fill(0, 1, old.word());
            for mark in Mark::ALL {
                let marked = old.marks(mark) != 0;
                new.node().set_marks(mark, u64::from(marked));
            }
        }
        self.xa.set_head(new.node().head_word(level));
        new.into_word();
    }

    /// Splits the entry that covers `index` in two: the lower half stays, the upper half becomes `upper`
    /// with the same marks. A reader meanwhile finds the old entry or the new.
    ///
    /// # Panics
    ///
    /// If there is no entry, or one of order 0, or if `pre` is of another pool or has fewer nodes than
    /// [`nodes_to_halve`].
    #[doc(alias = "xas_split")]
    pub fn halve(&mut self, index: u64, upper: Entry, pre: &mut Preload<'_>) {
        assert!(pre.is_of(self.xa.pool()), "the preload is of another pool");
        if let Head::Entry(only, order) = self.xa.head() {
            self.unfold(only, order, pre);
        }
        let position = self.walk(index).expect("an entry to split");
        assert!(position.order() > 0, "an entry of order 0 has no halves");
        let (node, first) = (position.node(), position.first);
        let marks = Mark::ALL.into_iter().filter(|&mark| {
            position.has_mark(mark) && !foliocache_sync::planted!(half_without_marks)
        });
        if position.width > 1 {
            let half = position.width / 2;
            let middle = first + half;
            // Marks first, then the layout: a mark on a later slot of an entry finds that entry.
            for mark in marks {
                node.set_marks(mark, node.marks(mark) | 1 << middle);
            }
            node.set_siblings(node.siblings() & !(1 << middle));
            for slot in middle..middle + half {
                node.publish(slot, upper.word());
            }
        } else {
            let child = pre.take();
            let half = SLOTS / 2;
            child.node().fill(0, half, position.entry.word());
            child.node().fill(half, half, upper.word());
            for mark in marks {
                child.node().set_marks(mark, 1 | 1 << half);
            }
            node.publish(first, child.into_word());
            // It may be the only child of the head.
            self.prune(index, &position);
        }
        self.xa.count(1);
    }
}
