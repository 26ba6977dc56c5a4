//! Tests of the hash, in one thread and in several.

use super::*;
use crate::Unbounded;
use foliocache_sync::thread;

struct Node {
    link: HashLink<Node>,
    name: u64,
}

// SAFETY: one link, a part of the node.
unsafe impl HashNode for Node {
    type Hint = ();

    fn link(&self) -> &HashLink<Self> {
        &self.link
    }
}

impl Node {
    fn boxed(name: u64) -> NonNull<Node> {
        let node = Node {
            link: HashLink::default(),
            name,
        };
        NonNull::from(Box::leak(Box::new(node)))
    }
}

fn mix(name: u64) -> u64 {
    let x = name.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ x >> 32
}

fn add(table: &RcuHash<Node>, name: u64) {
    // SAFETY: a new node; freed by `free` at the end.
    unsafe { table.lock(mix(name)).insert(Node::boxed(name)) };
    table.tend();
}

fn has(table: &RcuHash<Node>, name: u64) -> bool {
    let rcu = rcu::read_lock();
    table.find(mix(name), |n| n.name == name, &rcu).is_some()
}

fn free(node: NonNull<Node>) {
    // SAFETY: from `Node::boxed`, and out of the table.
    drop(unsafe { Box::from_raw(node.as_ptr()) });
}

#[test]
fn inserted_nodes_are_found_and_removed_nodes_are_not() {
    let mut table = RcuHash::new(4, Arc::new(Unbounded));
    assert!(!has(&table, 1));
    add(&table, 1);
    add(&table, 5);
    assert!(has(&table, 1));
    let rcu = rcu::read_lock();
    let node = table.find(mix(5), |_| true, &rcu).expect("it was inserted");
    assert!(table.lock(mix(5)).remove(node));
    assert!(!table.lock(mix(5)).remove(node));
    free(NonNull::from(node));
    drop(rcu);
    assert!(!has(&table, 5));
    assert_eq!(table.len(), 1);
    table.drain(free);
    assert!(!has(&table, 1));
}

#[test]
fn it_grows_by_itself_and_loses_nothing() {
    let mut table = RcuHash::new(4, Arc::new(Unbounded));
    for name in 0..20_000 {
        add(&table, name);
        if name % 97 == 0 {
            assert!((0..=name).all(|name| has(&table, name)));
        }
    }
    assert_eq!(table.len(), 20_000);
    assert!(table.buckets() >= 8192, "{} buckets", table.buckets());
    assert!((0..20_000).all(|name| has(&table, name)));
    let mut met = vec![false; 20_000];
    let rcu = rcu::read_lock();
    // As many buckets as there were at the beginning.
    table.scan(0..4, 4, |n| met[n.name as usize] = true, &rcu);
    drop(rcu);
    assert!(met.into_iter().all(|met| met));
    let mut freed = 0;
    table.drain(|node| {
        free(node);
        freed += 1;
    });
    assert_eq!(freed, 20_000);
}

#[test]
fn nodes_come_and_go_while_others_stay() {
    const STAY: u64 = 300;
    let mut table = RcuHash::new(2, Arc::new(Unbounded));
    for name in 0..STAY {
        add(&table, name);
    }
    thread::scope(|scope| {
        for part in 1..3 {
            let table = &table;
            scope.spawn(move || {
                for round in 0..3 {
                    for name in 0..5000 {
                        add(table, part * 1_000_000 + name + round * 5000);
                    }
                    // Half of them go again, after a grace period.
                    let mut gone = Vec::new();
                    for name in (0..5000).step_by(2) {
                        let name = part * 1_000_000 + name + round * 5000;
                        let rcu = rcu::read_lock();
                        let node = table.find(mix(name), |n| n.name == name, &rcu);
                        let node = node.expect("it was inserted");
                        assert!(table.lock(mix(name)).remove(node));
                        gone.push(NonNull::from(node));
                    }
                    rcu::synchronize();
                    gone.into_iter().for_each(free);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..100 {
                assert!((0..STAY).all(|name| has(&table, name)));
            }
        });
    });
    assert_eq!(table.len(), STAY as usize + 2 * 3 * 2500);
    assert!(table.locks_taken() > 0);
    table.drain(free);
}

/// Refuses everything after the first few. Its room, and how often it refused.
struct Full(AtomicU64, AtomicU64);

impl MetadataBound for Full {
    fn charge(&self, bytes: u64) -> bool {
        let room = |left: u64| left.checked_sub(bytes);
        let charged = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        self.1
            .fetch_add(u64::from(charged.is_err()), Ordering::Relaxed);
        charged.is_ok()
    }

    fn uncharge(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Adds some nodes, and finishes the growth under way, whatever readers other tests have.
fn add_all(table: &RcuHash<Node>, names: std::ops::Range<u64>) {
    for name in names {
        add(table, name);
        if name % 50 == 0 {
            rcu::synchronize();
            (0..table.buckets()).for_each(|_| table.tend());
        }
    }
}

#[test]
fn without_room_the_chains_get_longer() {
    let full = Arc::new(Full(AtomicU64::new(1000), AtomicU64::new(0)));
    let mut table = RcuHash::new(4, full.clone());
    add_all(&table, 0..500);
    let small = table.buckets();
    assert!(small < 128, "{small} buckets");
    let refused = full.1.load(Ordering::Relaxed);
    assert!((1..20).contains(&refused), "{refused} refusals");
    assert!((0..500).all(|name| has(&table, name)));
    // There is room again: the table asks for it and gets it.
    full.uncharge(100_000);
    add_all(&table, 500..5000);
    assert!(table.buckets() >= 16 * small);
    assert!((0..5000).all(|name| has(&table, name)));
    table.drain(free);
    drop(table);
    assert_eq!(full.0.load(Ordering::Relaxed), 101_000);
}
