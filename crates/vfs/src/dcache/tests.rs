//! Tests of every operation, in one thread.

use super::*;
use crate::Unbounded;
use crate::bound::MetadataBound;
use crate::slab::{SharedSlab, SlabArc};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicI64, AtomicU64, Ordering};
use foliocache_sync::rcu;
use foliocache_sys::Errno;

impl<I: DentryInode> DentryRef<I> {
    /// The names from the root to here.
    fn path(&self) -> Vec<u8> {
        let rcu = rcu::read_lock();
        let mut above = Vec::new();
        let mut at: &Dentry<I> = self;
        while let Some(parent) = at.parent_rcu(&rcu) {
            above.push(at);
            at = parent;
        }
        let mut path = Vec::new();
        for dentry in above.iter().rev() {
            path.push(b'/');
            dentry.append_name(&mut path);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }
}

struct Node {
    ino: u64,
    dir: bool,
    alias: AliasSlot<Node>,
    world: Arc<World>,
}

impl DentryInode for Node {
    fn is_dir(&self) -> bool {
        self.dir
    }

    fn alias(&self) -> &AliasSlot<Self> {
        &self.alias
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.world.inodes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A bound with a limit, and a count of the inodes.
struct World {
    used: AtomicU64,
    limit: AtomicU64,
    inodes: AtomicI64,
}

impl MetadataBound for World {
    fn charge(&self, bytes: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let add = |used: u64| Some(used + bytes).filter(|&used| used <= limit);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    fn uncharge(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "more given back than taken");
    }
}

struct Setup {
    cache: DentryCache<Node>,
    inodes: SharedSlab<Node>,
    world: Arc<World>,
}

type Ref = DentryRef<Node>;

impl Setup {
    fn new() -> Self {
        let world = Arc::new(World {
            used: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            inodes: AtomicI64::new(0),
        });
        let bound: Arc<dyn MetadataBound> = Arc::<World>::clone(&world);
        let cache = DentryCache::new(16, bound);
        let inodes = SharedSlab::new(Arc::new(Unbounded));
        Self {
            cache,
            inodes,
            world,
        }
    }

    fn inode(&self, ino: u64, dir: bool) -> SlabArc<Node> {
        self.world.inodes.fetch_add(1, Ordering::Relaxed);
        self.inodes.alloc(Node {
            ino,
            dir,
            alias: AliasSlot::default(),
            world: Arc::clone(&self.world),
        })
    }

    fn root(&self) -> Ref {
        self.cache.make_root(self.inode(1, true))
    }

    fn add(&self, parent: &Ref, name: &str, inode: Option<SlabArc<Node>>) -> Ref {
        let added = self.cache.add(parent, &Name::new(name.as_bytes()), inode);
        added.expect("no loop").0
    }

    fn file(&self, parent: &Ref, name: &str, ino: u64) -> Ref {
        self.add(parent, name, Some(self.inode(ino, false)))
    }

    fn dir(&self, parent: &Ref, name: &str, ino: u64) -> Ref {
        self.add(parent, name, Some(self.inode(ino, true)))
    }

    /// The inode's number, or 0 for a negative dentry, as both forms of look-up find it.
    fn find(&self, parent: &Ref, name: &str) -> Option<u64> {
        let name = Name::new(name.as_bytes());
        let found = self.cache.lookup(parent, &name);
        let number = |inode: Option<&Node>| inode.map_or(0, |inode| inode.ino);
        let ino = found.map(|found| number(found.inode().as_deref()));
        let rcu = rcu::read_lock();
        let under_rcu = self.cache.lookup_rcu(parent, &name, &rcu);
        let under_rcu = under_rcu.map(|(dentry, seq)| {
            let ino = number(dentry.inode_rcu(&rcu));
            assert!(std::ptr::eq(
                dentry.parent_rcu(&rcu).expect("not a root"),
                &**parent
            ));
            assert!(!dentry.read_retry(seq));
            ino
        });
        assert_eq!(ino, under_rcu);
        ino
    }

    fn rename(&self, from: &Ref, to: &Ref, name: &str, exchange: bool) {
        let renamed = self
            .cache
            .rename(from, to, &Name::new(name.as_bytes()), exchange);
        renamed.expect("no loop");
    }

    /// Ends the cache and looks for what was left behind.
    fn finish(self) {
        assert_eq!(self.cache.close(), 0, "{:?}", self.cache.stats());
        self.cache.wait_for_limbo();
        let stats = self.cache.stats();
        assert_eq!((stats.negative, stats.limbo), (0, 0));
        let world = self.world;
        drop(self.cache);
        assert_eq!(world.inodes.load(Ordering::Relaxed), 0);
        assert_eq!(world.used.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn names_are_found_in_their_directory() {
    let t = Setup::new();
    let root = t.root();
    let a = t.dir(&root, "a", 2);
    let b = t.dir(&root, "b", 3);
    t.file(&a, "x", 4);
    t.file(&b, "x", 5);
    t.add(&b, "y", None);
    assert_eq!(t.find(&root, "a"), Some(2));
    assert_eq!(t.find(&a, "x"), Some(4));
    assert_eq!(t.find(&b, "x"), Some(5));
    assert_eq!(t.find(&b, "y"), Some(0));
    assert_eq!(t.find(&a, "y"), None);
    assert_eq!(t.find(&root, "x"), None);
    let x = t.cache.lookup(&b, &Name::new(b"x")).expect("it is there");
    assert_eq!(x.path(), b"/b/x");
    assert_eq!(x.name(), b"x");
    assert!(x.parent().expect("not a root").same(&b));
    assert_eq!(root.path(), b"/");
    assert!(root.parent().is_none() && root.name().is_empty());
    let stats = t.cache.stats();
    assert_eq!((stats.dentries, stats.negative), (6, 1));
    x.believe(77);
    assert_eq!(x.believed_until(), 77);
    drop((x, a, b, root));
    t.finish();
}

#[test]
fn names_of_every_length() {
    let t = Setup::new();
    let root = t.root();
    let text: String = (0..255).map(|i| char::from(b'a' + i % 26)).collect();
    for len in 1..=255 {
        let file = t.file(&root, &text[..len], 1000 + len as u64);
        assert_eq!(file.name(), &text.as_bytes()[..len]);
    }
    for len in 1..=255 {
        assert_eq!(t.find(&root, &text[..len]), Some(1000 + len as u64));
    }
    // A name of each length becomes one of another.
    for len in 1..=127 {
        let from = Name::new(&text.as_bytes()[..len]);
        let from = t.cache.lookup(&root, &from).expect("it is there");
        t.rename(&from, &root, &text[..255 - len], true);
    }
    for len in 1..=127 {
        assert_eq!(t.find(&root, &text[..255 - len]), Some(1000 + len as u64));
        assert_eq!(t.find(&root, &text[..len]), Some(1255 - len as u64));
    }
    drop(root);
    t.finish();
}

#[test]
fn the_newest_answer_counts() {
    let t = Setup::new();
    let root = t.root();
    let inode = t.inode(2, false);
    let first = t.add(&root, "x", Some(inode.clone()));
    let again = t.add(&root, "x", Some(inode));
    assert!(first.same(&again));
    assert_eq!(t.cache.stats().dentries, 2);
    let missing = t.add(&root, "y", None);
    assert!(missing.same(&t.add(&root, "y", None)));

    let second = t.file(&root, "x", 3);
    assert!(!first.same(&second));
    assert_eq!(t.find(&root, "x"), Some(3));
    assert!(!first.is_hashed());
    assert_eq!(first.inode().expect("still usable").ino, 2);
    assert_eq!(first.path(), b"/x");
    t.add(&root, "x", None);
    assert_eq!(t.find(&root, "x"), Some(0));
    t.file(&root, "y", 4);
    assert_eq!(t.find(&root, "y"), Some(4));
    assert!(missing.is_negative() && !missing.is_hashed());
    drop((first, again, second, missing, root));
    t.finish();
}

#[test]
fn positive_and_negative() {
    let t = Setup::new();
    let root = t.root();
    let x = t.add(&root, "x", None);
    assert!(x.is_negative());
    drop(x);
    let x = t.add(&root, "x", Some(t.inode(2, false)));
    assert!(!x.is_negative());
    assert_eq!(t.find(&root, "x"), Some(2));
    assert_eq!(t.cache.stats().negative, 0);
    // It has no other holder: it becomes negative.
    t.cache.delete(&x);
    assert!(x.is_negative() && x.is_hashed());
    assert_eq!(t.find(&root, "x"), Some(0));
    t.cache.wait_for_limbo();
    assert_eq!(t.world.inodes.load(Ordering::Relaxed), 1);
    // It has another holder: it keeps its inode and is found no more.
    drop(x);
    let x = t.add(&root, "x", Some(t.inode(3, false)));
    let open = x.clone();
    t.cache.delete(&x);
    assert_eq!(t.find(&root, "x"), None);
    assert_eq!(open.inode().expect("it is open").ino, 3);
    drop(x);
    t.cache.wait_for_limbo();
    assert_eq!(t.world.inodes.load(Ordering::Relaxed), 2);
    drop(open);
    t.cache.wait_for_limbo();
    assert_eq!(t.world.inodes.load(Ordering::Relaxed), 1);
    // A directory with nothing but negative names in it.
    let d = t.dir(&root, "d", 4);
    t.add(&d, "1", None);
    t.add(&d, "2", None);
    t.cache.delete(&d);
    assert!(d.is_negative());
    assert_eq!(t.cache.stats().dentries, 2);
    // The answer that another thread entered meanwhile counts.
    let inode = t.inode(5, false);
    t.add(&root, "z", Some(inode.clone()));
    let z = t
        .cache
        .lookup(&root, &Name::new(b"z"))
        .expect("it is there");
    let same = t.add(&root, "z", Some(inode));
    assert!(same.same(&z));
    let other = t.add(&root, "z", Some(t.inode(6, false)));
    assert!(!other.same(&z));
    assert_eq!(t.find(&root, "z"), Some(6));
    drop((d, z, same, other, root));
    t.finish();
}

#[test]
fn renames() {
    let t = Setup::new();
    let root = t.root();
    let a = t.dir(&root, "a", 2);
    let b = t.dir(&a, "b", 3);
    let x = t.file(&b, "x", 4);
    let (before, after) = (a.count(), root.count());
    t.rename(&b, &root, "c", false);
    assert_eq!((a.count(), root.count()), (before - 1, after + 1));
    assert_eq!(t.find(&a, "b"), None);
    assert_eq!(t.find(&root, "c"), Some(3));
    assert_eq!(t.find(&b, "x"), Some(4));
    assert_eq!(x.path(), b"/c/x");
    // Onto a name that exists and has a holder.
    let y = t.file(&root, "y", 5);
    t.rename(&x, &root, "y", false);
    assert_eq!(t.find(&root, "y"), Some(4));
    assert_eq!(t.find(&b, "x"), None);
    assert!(!y.is_hashed());
    assert_eq!(y.inode().expect("still usable").ino, 5);
    // Onto itself, and onto a directory that negative names keep.
    t.rename(&x, &root, "y", false);
    assert_eq!(t.find(&root, "y"), Some(4));
    let e = t.dir(&root, "e", 6);
    t.add(&e, "1", None);
    drop(e);
    let dentries = t.cache.stats().dentries;
    t.rename(&b, &root, "e", false);
    assert_eq!(t.find(&root, "e"), Some(3));
    assert_eq!(t.cache.stats().dentries, dentries - 2);
    // Not below itself, nor onto what is above it; and no root.
    let name = Name::new(b"z");
    assert_eq!(t.cache.rename(&b, &b, &name, false), Err(Errno::ELOOP));
    let deep = t.dir(&b, "deep", 7);
    let rename =
        |from, to, name: &str| t.cache.rename(from, to, &Name::new(name.as_bytes()), false);
    assert_eq!(rename(&b, &deep, "z"), Err(Errno::ELOOP));
    assert_eq!(rename(&deep, &root, "e"), Err(Errno::ELOOP));
    assert_eq!(rename(&root, &a, "z"), Err(Errno::ELOOP));
    assert_eq!(t.find(&b, "deep"), Some(7));
    drop((a, b, x, y, deep, root));
    t.finish();
}

#[test]
fn exchanges() {
    let t = Setup::new();
    let root = t.root();
    let long = "a name so long that it does not fit into the dentry, whatever its layout is like";
    let a = t.dir(&root, "a", 2);
    let b = t.dir(&root, "b", 3);
    let x = t.file(&a, "x", 4);
    let y = t.file(&b, long, 5);
    let counts = (a.count(), b.count());
    t.rename(&x, &b, long, true);
    assert_eq!(t.find(&b, long), Some(4));
    assert_eq!(t.find(&a, "x"), Some(5));
    assert_eq!((a.count(), b.count()), counts);
    assert_eq!(y.path(), b"/a/x");
    // In one directory, and with what is not cached.
    t.file(&a, "z", 6);
    t.rename(&y, &a, "z", true);
    assert_eq!((t.find(&a, "x"), t.find(&a, "z")), (Some(6), Some(5)));
    t.rename(&y, &a, "w", true);
    assert_eq!((t.find(&a, "z"), t.find(&a, "w")), (None, Some(5)));
    let c = t.dir(&a, "c", 7);
    let above = t.cache.rename(&c, &root, &Name::new(b"a"), true);
    assert_eq!(above, Err(Errno::ELOOP));
    t.rename(&c, &root, "b", true);
    assert_eq!(x.path(), [b"/a/c/", long.as_bytes()].concat());
    drop((a, b, c, x, y, root));
    t.finish();
}

#[test]
fn a_directory_has_one_dentry() {
    let t = Setup::new();
    let root = t.root();
    let d = t.dir(&root, "d", 2);
    let x = t.file(&d, "x", 3);
    let inode = d.inode().expect("a directory");
    // It turns up elsewhere.
    let e = t.dir(&root, "e", 4);
    let moved = t.add(&e, "moved", Some(inode.clone()));
    assert!(moved.same(&d));
    assert_eq!(t.find(&root, "d"), None);
    assert_eq!(t.find(&e, "moved"), Some(2));
    assert_eq!(x.path(), b"/e/moved/x");
    // It cannot be below itself.
    let add = |dir, inode| t.cache.add(dir, &Name::new(b"loop"), inode).err();
    assert_eq!(add(&d, d.inode()), Some(Errno::ELOOP));
    assert_eq!(add(&d, e.inode()), Some(Errno::ELOOP));
    assert_eq!(add(&d, root.inode()), Some(Errno::ELOOP));
    // Unhashed while in use, and found again.
    t.cache.invalidate(&d, &|_, _, _| {});
    assert_eq!(t.find(&e, "moved"), None);
    assert!(t.add(&e, "moved", Some(inode.clone())).same(&d));
    assert_eq!(t.find(&e, "moved"), Some(2));
    // Made here, found elsewhere first.
    let new = t.inode(5, true);
    let elsewhere = t.add(&root, "elsewhere", Some(new.clone()));
    let here = t.add(&root, "here", None);
    let made = t.add(&root, "here", Some(new));
    assert!(made.same(&elsewhere) && !here.is_hashed());
    assert_eq!(t.find(&root, "here"), Some(5));
    assert_eq!(t.find(&root, "elsewhere"), None);
    // Evicted, and made anew.
    drop((d, moved, x));
    t.cache.evict_all();
    assert_eq!(t.find(&e, "moved"), None);
    drop(t.add(&root, "new", Some(inode)));
    assert_eq!(t.find(&root, "new"), Some(2));
    drop((e, elsewhere, here, made, root));
    t.finish();
}

#[test]
fn invalidated_things_are_found_no_more() {
    let t = Setup::new();
    let root = t.root();
    let a = t.dir(&root, "a", 2);
    let b = t.dir(&a, "b", 3);
    let x = t.file(&b, "x", 4);
    for i in 0..100 {
        t.file(&b, &format!("f{i}"), 100 + i);
        let dir = t.dir(&a, &format!("d{i}"), 200 + i);
        t.add(&dir, "missing", None);
    }
    t.cache.invalidate(&a, &|_, _, _| {});
    assert_eq!(t.find(&root, "a"), None);
    assert_eq!(t.find(&a, "b"), None);
    assert_eq!(t.find(&b, "x"), None);
    assert_eq!(x.inode().expect("usable").ino, 4);
    assert_eq!(x.path(), b"/a/b/x");
    assert_eq!(t.cache.stats().dentries, 4);
    drop((a, b));
    assert_eq!(t.cache.stats().dentries, 4);
    drop(x);
    assert_eq!(t.cache.stats().dentries, 1);
    drop(root);
    t.finish();
}

#[test]
fn the_hand_gives_a_second_chance() {
    let t = Setup::new();
    let root = t.root();
    let d = t.dir(&root, "d", 2);
    let held = t.file(&d, "held", 3);
    for i in 0..500 {
        t.file(&d, &format!("f{i}"), 100 + i);
    }
    for i in 0..100 {
        assert_eq!(t.find(&d, &format!("f{i}")), Some(100 + i));
    }
    // Three of four go in one round of the hand; those that were used are not among them, but for a few that would
    // keep a page which holds hardly anything else.
    let evicted = t.cache.shrink(380);
    assert!((380..=420).contains(&evicted), "{evicted}");
    let found = |i: &u64| t.find(&d, &format!("f{i}")) == Some(100 + i);
    let left = (0..100).filter(found).count();
    assert!(left >= 95, "{left} of 100 that were used");
    assert_eq!(t.cache.stats().evicted, evicted as u64);
    // The rest goes, but what is held and what is above it.
    while t.cache.shrink(1000) > 0 {}
    assert_eq!(t.cache.stats().dentries, 3);
    drop(d);
    assert_eq!(t.cache.shrink(1000), 0);
    t.cache.wait_for_limbo();
    assert_eq!(t.world.inodes.load(Ordering::Relaxed), 3);
    drop(held);
    assert_eq!(t.cache.prune(&root), 2);
    drop(root);
    t.finish();
}

#[test]
fn readers_notice_changes() {
    let t = Setup::new();
    let root = t.root();
    let x = t.file(&root, "x", 2);
    let y = t.file(&root, "y", 3);
    {
        let rcu = rcu::read_lock();
        let look = |name: &str| t.cache.lookup_rcu(&root, &Name::new(name.as_bytes()), &rcu);
        let (dentry, seq) = look("x").expect("it is there");
        let inode = dentry.inode_rcu(&rcu).expect("positive");
        assert!(dentry.try_get(seq, &rcu).expect("unchanged").same(&x));
        // Changes that need no memory do not wait for us.
        t.cache.delete(&x);
        assert!(dentry.read_retry(seq));
        assert!(dentry.try_get(seq, &rcu).is_none());
        // The borrowed dentries are valid to the end of the section.
        assert_eq!(inode.ino, 2);
        assert!(t.cache.reap() > 0);
        let (dentry, _) = look("x").expect("it is negative");
        assert!(dentry.inode_rcu(&rcu).is_none());
        let (dentry, seq) = look("y").expect("it is there");
        t.rename(&y, &root, "z", false);
        assert!(dentry.read_retry(seq));
        assert!(look("y").is_none());
        let seq = dentry.read_begin();
        t.cache.invalidate(&y, &|_, _, _| {});
        assert!(dentry.read_retry(seq));
        assert!(dentry.inode().is_some());
        drop(y);
        assert!(dentry.try_get(dentry.read_begin(), &rcu).is_none(), "dead");
        assert_eq!(dentry.inode_rcu(&rcu).expect("not freed").ino, 3);
    }
    t.cache.wait_for_limbo();
    assert_eq!(t.world.inodes.load(Ordering::Relaxed), 1);
    drop((x, root));
    t.finish();
}

#[test]
fn deep_trees() {
    const DEPTH: u64 = 50_000;
    let t = Setup::new();
    let root = t.root();
    let chain = |top: Ref| {
        let mut at = top;
        for i in 0..DEPTH {
            at = t.dir(&at, "d", 10 + i);
        }
        at
    };
    let deepest = chain(root.clone());
    assert_eq!(deepest.path().len() as u64, 2 * DEPTH);
    // Each holds the one above: nothing can go.
    assert_eq!(t.cache.shrink(10), 0);
    let d = t.cache.lookup(&root, &Name::new(b"d")).expect("there");
    t.cache.invalidate(&d, &|_, _, _| {});
    drop(d);
    assert_eq!(t.cache.stats().dentries, DEPTH + 1);
    drop(deepest);
    assert_eq!(t.cache.stats().dentries, 1);
    drop(chain(root.clone()));
    assert_eq!(t.cache.prune(&root) as u64, DEPTH);
    drop(chain(root));
    t.finish();
}

#[test]
fn no_room() {
    let t = Setup::new();
    let root = t.root();
    // As much as there is: the page of the root has room for 20 dentries more.
    let limit = t.world.used.load(Ordering::Relaxed);
    t.world.limit.store(limit, Ordering::Relaxed);
    for i in 0..1000 {
        t.file(&root, &format!("f{i}"), 100 + i);
    }
    assert_eq!(t.find(&root, "f999"), Some(1099));
    assert_eq!(t.cache.stats().one_offs, 0);
    assert!(t.cache.stats().dentries <= 21);
    // Everything is in use: what comes now is not kept.
    let held: Vec<_> = (0..30)
        .map(|i| t.file(&root, &format!("h{i}"), i))
        .collect();
    assert!(t.cache.stats().one_offs >= 10);
    let one_off = held.last().expect("thirty");
    assert!(!one_off.is_hashed());
    assert_eq!(one_off.path(), b"/h29");
    assert_eq!(t.find(&root, "h29"), None);
    // It is renamed and removed like any other; what was cached by its name goes too.
    t.world.limit.store(u64::MAX, Ordering::Relaxed);
    t.file(&root, "h29", 29);
    t.rename(one_off, &root, "r29", false);
    assert_eq!((t.find(&root, "h29"), t.find(&root, "r29")), (None, None));
    t.file(&root, "r29", 29);
    t.cache.delete(one_off);
    assert_eq!(t.find(&root, "r29"), None);
    drop((held, root));
    t.finish();
}

/// Everything is held, so nothing that is refused can be kept, however often it is tried. The table must not be gone
/// over for each.
#[test]
fn a_refused_name_costs_a_bounded_number_of_steps() {
    for names in [1_000, 8_000] {
        let t = Setup::new();
        let root = t.root();
        let mut held: Vec<_> = (0..names)
            .map(|i| t.file(&root, &format!("f{i}"), 100 + i))
            .collect();
        t.world.limit.store(0, Ordering::Relaxed);
        // The last page has room left.
        while t.cache.stats().one_offs == 0 {
            held.push(t.file(&root, &format!("g{}", held.len()), 1));
        }
        let refused = |i: u64| {
            let before = t.cache.stats();
            drop(t.file(&root, &format!("r{i}"), i));
            let after = t.cache.stats();
            assert_eq!(after.one_offs, before.one_offs + 1);
            after.scanned - before.scanned
        };
        let steps: Vec<u64> = (0..1000).map(refused).collect();
        let most = steps.iter().max().expect("a thousand");
        assert!(*most <= 64, "{names} names: {most} pages for one");
        // Nothing was found all the way round, so hardly any more work is spent.
        let late: u64 = steps[500..].iter().sum();
        assert!(late <= 4 * 500, "{names} names: {late} pages for 500");
        // A dentry without references is found, and makes room.
        let limit = t.world.used.load(Ordering::Relaxed);
        t.world.limit.store(limit, Ordering::Relaxed);
        held.truncate(held.len() / 2);
        let one_offs = t.cache.stats().one_offs;
        for i in 0..1000 {
            drop(t.file(&root, &format!("n{i}"), i));
        }
        let kept = 1000 - (t.cache.stats().one_offs - one_offs);
        assert!(kept > 900, "{names} names: {kept} of 1000 kept");
        drop((held, root));
        t.finish();
    }
}

#[test]
fn references_outlive_the_cache() {
    let t = Setup::new();
    let root = t.root();
    let x = t.file(&t.dir(&root, "d", 2), "x", 3);
    let world = t.world;
    drop(t.cache);
    drop(root);
    assert_eq!(x.path(), b"/d/x");
    assert_eq!(x.inode().expect("it is held").ino, 3);
    drop(x);
    assert_eq!(world.inodes.load(Ordering::Relaxed), 0);
    assert_eq!(world.used.load(Ordering::Relaxed), 0);
}
