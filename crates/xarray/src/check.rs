//! A walk over the whole index that asserts the invariants of the node module, in debug builds
//! only.

use crate::entry::Mark;
use crate::guard::XaGuard;
use crate::node::{Node, SLOTS, canonical, width};
use crate::xarray::Slot;

impl<'a> XaGuard<'a> {
    /// Panics if the index is not as its invariants say. For tests: costs a visit of every slot.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        let (mut entries, mut nodes) = (0, 0);
        if let Some((head, level)) = self.view().head() {
            self.check_node(head, level, &mut entries, &mut nodes);
            let only_child =
                head.present() == 1 && matches!(self.view().slot(head, 0), Slot::Node(_));
            assert!(
                level == 0 || !only_child,
                "a head with slot 0 alone should have shrunk"
            );
        }
        assert_eq!(entries, self.xa.nr_entries(), "entries");
        assert_eq!(nodes, self.xa.nr_nodes(), "nodes");
    }

    fn check_node(&self, node: &'a Node, level: usize, entries: &mut u64, nodes: &mut u64) {
        *nodes += 1;
        let (present, siblings) = (node.present(), node.siblings());
        assert_ne!(present, 0, "an empty node at level {level}");
        assert_eq!(
            siblings & (1 | !present),
            0,
            "siblings {siblings:#x} of {present:#x}"
        );
        for mark in Mark::ALL {
            assert_eq!(
                node.marks(mark) & (siblings | !present),
                0,
                "{mark:?} on an empty or a later slot"
            );
        }
        for at in 0..SLOTS {
            let slot = self.view().slot(node, at);
            assert_eq!(
                present >> at & 1 != 0,
                !matches!(slot, Slot::Empty),
                "present bit {at}"
            );
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
                    *entries += u64::from(first == at);
                }
                Slot::Node(child) => {
                    assert!(level > 0, "a child below a leaf");
                    assert_eq!(siblings >> at & 1, 0, "a child in a later slot");
                    for mark in Mark::ALL {
                        assert_eq!(
                            node.marks(mark) >> at & 1 != 0,
                            child.marks(mark) != 0,
                            "{mark:?} of the child at {at}"
                        );
                    }
                    self.check_node(child, level - 1, entries, nodes);
                }
            }
        }
    }
}
