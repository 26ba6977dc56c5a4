//! A walk over the whole index that asserts the invariants of the node module, for tests.

use crate::XaGuard;
use crate::entry::Mark;
use crate::level::SLOTS;
use crate::node::{Node, canonical, width};
use crate::xarray::{Head, Slot};

impl XaGuard<'_> {
    /// Panics if the index is not as its invariants say; returns how many nodes it has. For tests: costs
    /// a visit of every slot.
    #[doc(hidden)]
    pub fn assert_invariants(&self) -> usize {
        let Some((head, level)) = self.head_node() else {
            let entries = u64::from(matches!(self.xa.head(), Head::Entry(..)));
            assert_eq!(entries, self.xa.nr_entries(), "entries");
            return 0;
        };
        let only_child = head.present() == 1 && matches!(self.xa.slot(head, 0), Slot::Node(_));
        assert!(
            level == 0 || !only_child,
            "a head with slot 0 alone should have shrunk"
        );
        let (entries, nodes) = self.check_node(head, level);
        assert_eq!(entries, self.xa.nr_entries(), "entries");
        nodes
    }

    /// The entries and the nodes from `node` down.
    fn check_node(&self, node: &Node, level: usize) -> (u64, usize) {
        let (mut entries, mut nodes) = (0, 1);
        let (present, siblings) = (node.present(), node.siblings());
        assert_ne!(present, 0, "an empty node at level {level}");
        assert_eq!(
            siblings & (1 | !present),
            0,
            "siblings {siblings:#x} of {present:#x}"
        );
        for mark in Mark::ALL {
            let wrong = node.marks(mark) & (siblings | !present);
            assert_eq!(wrong, 0, "{mark:?} on an empty or a later slot");
        }
        for at in 0..SLOTS {
            let slot = self.xa.slot(node, at);
            let empty = matches!(slot, Slot::Empty);
            assert_ne!(present >> at & 1 != 0, empty, "present bit {at}");
            match slot {
                Slot::Empty => {}
                Slot::Entry(_) => {
                    let first = canonical(siblings, at);
                    let width = width(siblings, first);
                    assert!(
                        width.is_power_of_two() && first.is_multiple_of(width),
                        "{first} + {width}"
                    );
                    assert_eq!(node.load(at), node.load(first), "slots of one entry differ");
                    entries += u64::from(first == at);
                }
                Slot::Node(child) => {
                    assert!(level > 0, "a child below a leaf");
                    assert_eq!(siblings >> at & 1, 0, "a child in a later slot");
                    for mark in Mark::ALL {
                        let marked = node.marks(mark) >> at & 1 != 0;
                        assert_eq!(
                            marked,
                            child.marks(mark) != 0,
                            "{mark:?} of the child at {at}"
                        );
                    }
                    let below = self.check_node(child, level - 1);
                    entries += below.0;
                    nodes += below.1;
                }
            }
        }
        (entries, nodes)
    }
}
