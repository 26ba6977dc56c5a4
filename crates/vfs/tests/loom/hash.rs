//! The hash over all interleavings: look-ups beside growth, removal and a node that moves to another
//! chain. A table of one bucket wants to grow at its second node, and moves one bucket a call.

use std::ptr::NonNull;

use foliocache_sync::atomic::{AtomicU64, Ordering::Relaxed};
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, rcu, thread};
use foliocache_vfs::Unbounded;
use foliocache_vfs::hash::{HashLink, HashNode, RcuHash};

struct Node {
    link: HashLink<Node>,
    name: u64,
    /// Stored before the node is inserted.
    content: AtomicU64,
}

// SAFETY: one link, a part of the node.
unsafe impl HashNode for Node {
    type Hint = ();

    fn link(&self) -> &HashLink<Self> {
        &self.link
    }
}

struct Table {
    hash: RcuHash<Node>,
    nodes: Box<[Node]>,
}

impl Table {
    /// A table with these nodes, each hashed as its name.
    fn new(buckets: usize, names: &[u64]) -> Arc<Table> {
        let hash = RcuHash::new(buckets, Arc::new(Unbounded));
        let node = |&name: &u64| {
            let link = HashLink::default();
            let content = AtomicU64::new(0);
            Node {
                link,
                name,
                content,
            }
        };
        let nodes: Box<[_]> = names.iter().map(node).collect();
        for node in &*nodes {
            // SAFETY: in no table yet, and the nodes are freed with it.
            unsafe { hash.lock(node.name).insert(NonNull::from(node)) };
        }
        Arc::new(Table { hash, nodes })
    }

    fn has(&self, name: u64) -> bool {
        let rcu = rcu::read_lock();
        let found = self.hash.find(name, |node| node.name == name, &rcu);
        found.is_some()
    }
}

/// Runs both sides of a race, each on a new thread.
fn beside(
    table: &Arc<Table>,
    one: impl FnOnce(&Table) + 'static,
    other: impl FnOnce(&Table) + 'static,
) {
    let (first, second) = (Arc::clone(table), Arc::clone(table));
    let one = thread::spawn(move || one(&first));
    let other = thread::spawn(move || other(&second));
    one.join().unwrap();
    other.join().unwrap();
}

#[test]
fn growth_hides_nothing() {
    explore(2, 300, || {
        let table = Table::new(1, &[0, 1]);
        let grow = |table: &Table| {
            // Starts, and moves the bucket.
            table.hash.tend();
            table.hash.tend();
            assert_eq!(table.hash.buckets(), 2);
        };
        beside(&table, grow, |table| {
            assert!(table.has(0));
            assert!(table.has(1));
            assert!(!table.has(2));
        });
        assert!(table.has(0) && table.has(1));
    });
}

#[test]
fn growth_hides_no_node_from_the_lock_holder() {
    explore(3, 100, || {
        let table = Table::new(1, &[0, 1]);
        let grow = |table: &Table| {
            table.hash.tend();
            table.hash.tend();
        };
        beside(&table, grow, |table| {
            let mut bucket = table.hash.lock(1);
            assert!(bucket.find(|node| node.name == 1).is_some());
            assert!(bucket.remove(&table.nodes[1]));
            assert!(!bucket.remove(&table.nodes[1]));
        });
        assert!(table.has(0) && !table.has(1));
        assert_eq!(table.hash.len(), 1);
    });
}

#[test]
fn two_threads_move_the_buckets() {
    explore(2, 100, || {
        let table = Table::new(2, &[0, 1, 2, 4]);
        table.hash.tend();
        let help = |table: &Table| {
            table.hash.tend();
            table.hash.tend();
        };
        beside(&table, help, |table| {
            table.hash.tend();
            assert!(table.has(4));
        });
        assert_eq!(table.hash.buckets(), 4);
        assert!([0, 1, 2, 4].into_iter().all(|name| table.has(name)));
    });
}

/// Node 2 leaves the chain of bucket 0 for that of bucket 1, while a reader is on its way to node 0 behind
/// it.
fn moved_away(table: &Table) {
    let node = &table.nodes[1];
    assert!(table.hash.lock(2).remove(node));
    // SAFETY: just taken out.
    unsafe { table.hash.lock(1).insert(NonNull::from(node)) };
}

#[test]
fn a_reader_on_a_moving_node_finds_its_chain() {
    explore(3, 100, || {
        let table = Table::new(2, &[0, 2]);
        beside(&table, moved_away, |table| assert!(table.has(0)));
    });
}

#[test]
fn removal_and_insertion_beside_a_look_up() {
    explore(3, 40, || {
        let table = Table::new(1, &[0, 1, 2]);
        let remove = |table: &Table| assert!(table.hash.lock(1).remove(&table.nodes[1]));
        beside(&table, remove, |table| {
            assert!(table.has(0));
            assert!(table.has(2));
        });
        assert!(!table.has(1));
    });
}

#[test]
fn a_node_is_met_as_it_was_inserted() {
    explore(3, 20, || {
        let table = Table::new(1, &[0]);
        assert!(table.hash.lock(0).remove(&table.nodes[0]));
        let insert = |table: &Table| {
            let node = &table.nodes[0];
            let mut bucket = table.hash.lock(0);
            // After the lock, whose read section has a fence in a model.
            node.content.store(7, Relaxed);
            // SAFETY: taken out above.
            unsafe { bucket.insert(NonNull::from(node)) };
        };
        beside(&table, insert, |table| {
            let rcu = rcu::read_lock();
            if let Some(node) = table.hash.find(0, |_| true, &rcu) {
                assert_eq!(node.content.load(Relaxed), 7);
            }
        });
    });
}

/// Looks for node 0, and at all other nodes that it meets with that hash, or with none yet.
fn look(table: &Table) -> bool {
    let rcu = rcu::read_lock();
    let see = |node: &Node| {
        assert_eq!(node.content.load(Relaxed), 7, "node {}", node.name);
        node.name == 0
    };
    table.hash.find(0, see, &rcu).is_some()
}

// In the next two, content is stored and the node inserted in one section of the lock: the section begins
// with a fence in a model, which would order it.

#[test]
fn a_reader_past_a_removed_node_sees_nodes_as_they_were_inserted() {
    explore(3, 100, || {
        let table = Table::new(1, &[0, 1]);
        for node in &*table.nodes {
            assert!(table.hash.lock(node.name).remove(node));
        }
        let insert = |table: &Table| {
            let mut bucket = table.hash.lock(0);
            for node in &*table.nodes {
                node.content.store(7, Relaxed);
                // SAFETY: in no table.
                unsafe { bucket.insert(NonNull::from(node)) };
            }
            assert!(bucket.remove(&table.nodes[1]));
        };
        beside(&table, insert, |table| {
            look(table);
        });
        assert!(look(&table));
    });
}

#[test]
fn a_reader_led_to_another_chain_sees_nodes_as_they_were_inserted() {
    explore(3, 100, || {
        let table = Table::new(2, &[0, 1, 2]);
        let [_, new, moving] = &table.nodes[..] else {
            panic!("three nodes");
        };
        // As if it never was in a table: its link says hash 0.
        assert!(table.hash.lock(1).remove(new));
        new.link.forget();
        for node in [&table.nodes[0], moving] {
            node.content.store(7, Relaxed);
        }
        let other = |table: &Table| {
            let [_, new, moving] = &table.nodes[..] else {
                panic!("three nodes");
            };
            assert!(table.hash.lock(2).remove(moving));
            let mut bucket = table.hash.lock(1);
            new.content.store(7, Relaxed);
            for node in [new, moving] {
                // SAFETY: in no table.
                unsafe { bucket.insert(NonNull::from(node)) };
            }
        };
        beside(&table, other, |table| assert!(look(table)));
    });
}
