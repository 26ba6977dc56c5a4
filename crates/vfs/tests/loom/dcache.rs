//! The dentry cache over the interleavings of two threads: looking up against moving, evicting, removing and
//! adding.

use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::model::{explore, unexplored};
use foliocache_sync::{Arc, rcu, thread};
use foliocache_vfs::SlabArc;
use foliocache_vfs::Unbounded;
use foliocache_vfs::dcache::{AliasSlot, DentryCache, DentryInode, DentryRef, Name};

struct Node {
    dir: bool,
    alias: AliasSlot<Node>,
    /// Read by a thread that looks at the inode, written by its destructor: loom sees if the two may meet.
    ino: UnsafeCell<u64>,
}

// SAFETY: the number is written when the inode has no holders left, which the models check.
unsafe impl Send for Node {}
// SAFETY: the number is written when the inode has no holders left, which the models check.
unsafe impl Sync for Node {}

impl Node {
    fn new(ino: u64, dir: bool) -> SlabArc<Self> {
        SlabArc::new(Self {
            dir,
            alias: AliasSlot::default(),
            ino: UnsafeCell::new(ino),
        })
    }

    fn ino(&self) -> u64 {
        // SAFETY: see the impls above.
        self.ino.with(|ino| unsafe { *ino })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SAFETY: the inode has no holders left, which the models check.
        self.ino.with_mut(|ino| unsafe { *ino = 0 });
    }
}

impl DentryInode for Node {
    fn is_dir(&self) -> bool {
        self.dir
    }

    fn alias(&self) -> &AliasSlot<Self> {
        &self.alias
    }
}

struct Setup {
    cache: DentryCache<Node>,
    root: DentryRef<Node>,
}

impl Setup {
    fn new() -> Arc<Self> {
        Self::of(DentryCache::new(2, Arc::new(Unbounded)))
    }

    fn of(cache: DentryCache<Node>) -> Arc<Self> {
        let root = cache.make_root(Node::new(1, true));
        Arc::new(Self { cache, root })
    }

    fn add(&self, dir: &DentryRef<Node>, name: &str, inode: SlabArc<Node>) -> DentryRef<Node> {
        let added = self
            .cache
            .add(dir, &Name::new(name.as_bytes()), Some(inode));
        added.expect("no loop").0
    }

    /// A look-up with a reference. The inode is looked at under it: a model sees no order through an `Arc`.
    fn find(&self, name: &str) -> Option<u64> {
        let found = self.cache.lookup(&self.root, &Name::new(name.as_bytes()))?;
        let rcu = rcu::read_lock();
        found.inode_rcu(&rcu).map(Node::ino)
    }

    /// A look-up under RCU, checked at the end.
    fn find_rcu(&self, dir: &DentryRef<Node>, name: &str) -> Option<u64> {
        let rcu = rcu::read_lock();
        let (dentry, seq) = self
            .cache
            .lookup_rcu(dir, &Name::new(name.as_bytes()), &rcu)?;
        let parent = dentry.parent_rcu(&rcu);
        let ino = dentry.inode_rcu(&rcu).map_or(0, Node::ino);
        if dentry.read_retry(seq) {
            return None;
        }
        assert!(parent.is_some_and(|parent| std::ptr::eq(parent, &**dir)));
        Some(ino)
    }
}

/// Runs both on new threads. Neither runs on the first thread: its actions between a spawn and the next switch of
/// threads are not interleaved by loom.
fn race<A: 'static, B: 'static>(
    t: &Arc<Setup>,
    a: impl FnOnce(&Setup) -> A + 'static,
    b: impl FnOnce(&Setup) -> B + 'static,
) -> (A, B) {
    let (first, second) = (Arc::clone(t), Arc::clone(t));
    let a = thread::spawn(move || a(&first));
    let b = thread::spawn(move || b(&second));
    (a.join().unwrap(), b.join().unwrap())
}

/// Ends the cache; leftovers are detected.
fn finish(setup: Arc<Setup>) {
    let Setup { cache, root } = Arc::into_inner(setup).expect("the threads are done");
    drop(root);
    assert_eq!(cache.close(), 0);
}

/// A file moves from "a" in the root to "b" in a directory, while `look` looks.
fn move_and_look(look: impl Fn(&Setup, &DentryRef<Node>) + Copy + Send + Sync + 'static) {
    // A move takes too many steps: two preemptions would take hours.
    explore(1, 200, move || {
        let t = Setup::new();
        let dir = t.add(&t.root, "d", Node::new(2, true));
        let a = t.add(&t.root, "a", Node::new(3, false));
        let (to, seen) = (dir.clone(), dir.clone());
        let mover = move |t: &Setup| {
            let moved = t.cache.rename(&a, &to, &Name::new(b"b"), false);
            assert!(moved.is_ok());
        };
        race(&t, mover, move |t| look(t, &seen));
        assert_eq!(t.find_rcu(&dir, "b"), Some(3));
        drop(dir);
        finish(t);
    });
}

#[test]
fn a_reader_sees_the_new_place_or_none() {
    move_and_look(|t, dir| assert!(matches!(t.find_rcu(dir, "b"), None | Some(3))));
}

#[test]
fn a_reader_never_sees_half_a_move() {
    // The name that it had in the directory that it has.
    move_and_look(|t, dir| assert_eq!(t.find_rcu(dir, "a"), None));
}

#[test]
fn a_name_that_is_always_there_is_always_found() {
    // Switches only where one waits: the look-up starts over beside a move, which multiplies its steps. The
    // stress test has the rest.
    explore(0, 8, || {
        let t = Setup::new();
        let a = t.add(&t.root, "a", Node::new(2, false));
        drop(t.add(&t.root, "b", Node::new(3, false)));
        let mover = move |t: &Setup| {
            let moved = t.cache.rename(&a, &t.root, &Name::new(b"b"), true);
            assert!(moved.is_ok());
        };
        race(&t, mover, |t| assert!(matches!(t.find("b"), Some(2 | 3))));
        assert_eq!(t.find("a"), Some(3));
        finish(t);
    });
}

/// `change` moves "a", while another thread looks it up under the lock of the hash's stripe.
fn move_beside_a_look_up_under_the_lock(
    change: impl Fn(&Setup, &DentryRef<Node>) + Copy + Send + Sync + 'static,
) {
    explore(1, 150, move || {
        let cache = DentryCache::searched_under_lock(2, Arc::new(Unbounded));
        let t = unexplored(|| Setup::of(cache));
        // The first makes the table grow, so that the second comes into the larger one.
        let a = unexplored(|| {
            drop(t.add(&t.root, "b", Node::new(3, false)));
            t.add(&t.root, "a", Node::new(2, false))
        });
        race(
            &t,
            move |t| change(t, &a),
            |t| assert!(matches!(t.find("a"), None | Some(2 | 3))),
        );
        finish(t);
    });
}

#[test]
fn a_rename_beside_a_look_up_under_the_lock_ends() {
    move_beside_a_look_up_under_the_lock(|t, a| {
        let renamed = t.cache.rename(a, &t.root, &Name::new(b"c"), false);
        assert!(renamed.is_ok());
    });
}

#[test]
fn an_exchange_beside_a_look_up_under_the_lock_ends() {
    move_beside_a_look_up_under_the_lock(|t, a| {
        let exchanged = t.cache.rename(a, &t.root, &Name::new(b"b"), true);
        assert!(exchanged.is_ok());
    });
}

#[test]
fn a_dentry_that_was_found_is_not_evicted() {
    explore(2, 1000, || {
        let t = Setup::new();
        drop(t.add(&t.root, "a", Node::new(2, false)));
        let look = |t: &Setup| {
            let found = t.cache.lookup(&t.root, &Name::new(b"a"));
            if let Some(found) = &found {
                let rcu = rcu::read_lock();
                assert_eq!(found.inode_rcu(&rcu).map(Node::ino), Some(2));
            }
            found
        };
        let (evicted, found) = race(&t, |t| t.cache.shrink(1), look);
        assert_eq!(evicted, usize::from(found.is_none()));
        drop(found);
        finish(t);
    });
}

#[test]
fn a_removed_inode_outlives_its_readers() {
    explore(2, 150, || {
        let t = Setup::new();
        let a = t.add(&t.root, "a", Node::new(2, false));
        let remover = move |t: &Setup| {
            t.cache.delete(&a);
            t.cache.reap();
        };
        race(&t, remover, |t| {
            assert!(matches!(t.find_rcu(&t.root, "a"), None | Some(0 | 2)));
        });
        assert_eq!(t.find("a"), None);
        finish(t);
    });
}

#[test]
fn two_adds_give_one_dentry() {
    explore(2, 500, || {
        let t = Setup::new();
        let inode = Node::new(2, false);
        let same = inode.clone();
        let add = |inode| |t: &Setup| t.add(&t.root, "a", inode);
        let (one, other) = race(&t, add(inode), add(same));
        assert!(one.same(&other));
        drop((one, other));
        assert_eq!(t.cache.stats().dentries, 2);
        finish(t);
    });
}

#[test]
fn a_directory_is_joined_once() {
    explore(2, 400, || {
        let t = Setup::new();
        let inode = Node::new(2, true);
        let same = inode.clone();
        let add = |name, inode| move |t: &Setup| t.add(&t.root, name, inode);
        let (one, other) = race(&t, add("a", inode), add("b", same));
        assert!(one.same(&other));
        assert!(t.find("a").is_some() != t.find("b").is_some());
        drop((one, other));
        finish(t);
    });
}
