//! The dentry cache under concurrent look-ups of both kinds, adds, removals, renames, exchanges, eviction and
//! invalidation, against a world that holds the truth.
//!
//! The world is a table of names for each directory, behind the directory's lock, as in a file system. Under that
//! lock the cache always agrees with it; without it, the checked result of a walk under RCU is consistent in
//! itself; and at the end nothing is left.

use foliocache_sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use foliocache_sync::{Arc, RwLock, rcu, thread};
use foliocache_vfs::MetadataBound;
use foliocache_vfs::dcache::{AliasSlot, DentryCache, DentryInode, DentryRef, Name};
use foliocache_vfs::{SharedSlab, SlabArc, Unbounded};
use std::collections::HashMap;
use std::ptr;

/// Directories and the names in each.
const DIRS: usize = 6;
const NAMES: u64 = 40;

struct Node {
    /// Tells the class of the names that it may have.
    ino: u64,
    dir: bool,
    alias: AliasSlot<Node>,
    count: Arc<Account>,
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
        self.count.inodes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A bound, and a count of the inodes.
struct Account {
    used: AtomicU64,
    inodes: AtomicI64,
}

impl MetadataBound for Account {
    fn charge(&self, bytes: u64) -> bool {
        // Too little for all names, so that some are evicted to make room.
        let add = |used: u64| Some(used + bytes).filter(|&used| used <= 48 << 10);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    fn uncharge(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

type Table = HashMap<u64, SlabArc<Node>>;
/// A directory, with its lock and its true contents.
type Directory = (DentryRef<Node>, RwLock<Table>);

struct World {
    cache: DentryCache<Node>,
    dirs: Vec<Directory>,
    account: Arc<Account>,
    inodes: SharedSlab<Node>,
    next_ino: AtomicU64,
    stop: AtomicBool,
    renames: AtomicU64,
}

/// Short and long names; a file's number says which names it may have, its class.
fn name(number: u64) -> String {
    match number % 3 {
        0 => format!("n{number}"),
        1 => format!("a name of some length {number}"),
        _ => format!("{number:0>100}"),
    }
}

fn class(number: u64) -> u64 {
    number % 4
}

struct Random(u64);

impl Random {
    /// Number `n` of the test, different with each `FOLIOCACHE_SEED`.
    fn of(n: u64) -> Self {
        let seed = std::env::var("FOLIOCACHE_SEED").map_or(0, |n| n.parse().expect("a number"));
        Self(0x1234_5678_9abc_def1 ^ (n << 40) ^ u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

impl World {
    fn new() -> Self {
        let account = Arc::new(Account {
            used: AtomicU64::new(0),
            inodes: AtomicI64::new(0),
        });
        let bound: Arc<dyn MetadataBound> = Arc::<Account>::clone(&account);
        let cache = DentryCache::new(4, bound);
        let mut world = Self {
            cache,
            dirs: Vec::new(),
            account,
            inodes: SharedSlab::new(Arc::new(Unbounded)),
            next_ino: AtomicU64::new(1),
            stop: AtomicBool::new(false),
            renames: AtomicU64::new(0),
        };
        let mut at = world.cache.make_root(world.inode(0, true));
        for i in 0..DIRS {
            // A chain with branches: 0, 0/d1, 0/d2, 0/d2/d3 and so on.
            let inode = world.inode(0, true);
            let (dir, _) = world
                .cache
                .add(&at, &Name::new(format!("d{i}").as_bytes()), Some(inode))
                .expect("no loop");
            if i % 2 == 0 {
                at = dir.clone();
            }
            world.dirs.push((dir, RwLock::new(HashMap::new())));
        }
        world
    }

    /// An inode whose number is of the class of this name.
    fn inode(&self, number: u64, dir: bool) -> SlabArc<Node> {
        self.account.inodes.fetch_add(1, Ordering::Relaxed);
        let serial = self.next_ino.fetch_add(1, Ordering::Relaxed);
        self.inodes.alloc(Node {
            ino: serial * 4 + class(number),
            dir,
            alias: AliasSlot::default(),
            count: Arc::clone(&self.account),
        })
    }

    /// A file system's look-up on a miss, and the check that the cache agrees with the world.
    fn resolve(&self, dir: usize, table: &Table, number: u64) -> DentryRef<Node> {
        let text = name(number);
        let name = Name::new(text.as_bytes());
        let parent = &self.dirs[dir].0;
        let truth = table.get(&number);
        let found = match self.cache.lookup(parent, &name) {
            Some(found) => found,
            None => {
                let added = self.cache.add(parent, &name, truth.cloned());
                added.expect("no loop").0
            }
        };
        let inode = found.inode();
        assert_eq!(
            inode.as_ref().map(|inode| &raw const **inode),
            truth.map(|inode| &raw const **inode),
            "directory {dir}, name {text}"
        );
        found
    }

    fn shared(&self, random: &mut Random) {
        let dir = random.below(DIRS as u64) as usize;
        let table = self.dirs[dir].1.read();
        let number = random.below(NAMES);
        let found = self.resolve(dir, &table, number);
        assert_eq!(found.name(), name(number).as_bytes());
        assert!(found.parent().expect("not a root").same(&self.dirs[dir].0));
    }

    fn under_rcu(&self, random: &mut Random) {
        let dir = &self.dirs[random.below(DIRS as u64) as usize].0;
        let number = random.below(NAMES);
        let text = name(number);
        let rcu = rcu::read_lock();
        let Some((dentry, seq)) = self
            .cache
            .lookup_rcu(dir, &Name::new(text.as_bytes()), &rcu)
        else {
            return;
        };
        let parent = dentry.parent_rcu(&rcu).map(ptr::from_ref);
        let ino = dentry.inode_rcu(&rcu).map(|inode| inode.ino);
        if dentry.read_retry(seq) {
            return;
        }
        assert_eq!(parent, Some(ptr::from_ref(&**dir)));
        if let Some(ino) = ino {
            assert_eq!(class(ino), class(number), "{text} leads to another's inode");
        }
        if let Some(held) = dentry.try_get(seq, &rcu) {
            drop(rcu);
            drop(held.inode());
        }
    }

    fn create_or_remove(&self, random: &mut Random) {
        let dir = random.below(DIRS as u64) as usize;
        let mut table = self.dirs[dir].1.write();
        let number = random.below(NAMES);
        let dentry = self.resolve(dir, &table, number);
        if table.remove(&number).is_some() {
            self.cache.delete(&dentry);
        } else {
            let inode = self.inode(number, false);
            table.insert(number, inode.clone());
            let name = name(number);
            let name = Name::new(name.as_bytes());
            let made = self.cache.add(&self.dirs[dir].0, &name, Some(inode));
            let (made, _) = made.expect("no loop");
            assert!(!made.same(&dentry));
        }
    }

    fn rename(&self, random: &mut Random) {
        let from = random.below(DIRS as u64) as usize;
        let to = random.below(DIRS as u64) as usize;
        let number = random.below(NAMES);
        // Of the same class.
        let target = (number + 4 * random.below(NAMES / 4)) % NAMES;
        let exchange = random.below(3) == 0;
        if from == to {
            let mut table = self.dirs[from].1.write();
            let dentry = self.resolve(from, &table, number);
            if number == target || !table.contains_key(&number) {
                return;
            }
            if exchange && !table.contains_key(&target) {
                return;
            }
            let moved = self.cache.rename(
                &dentry,
                &self.dirs[to].0,
                &Name::new(name(target).as_bytes()),
                exchange,
            );
            moved.expect("no loop");
            self.renames.fetch_add(1, Ordering::Relaxed);
            let file = table.remove(&number).expect("it is there");
            if let Some(other) = table.insert(target, file)
                && exchange
            {
                table.insert(number, other);
            }
        } else {
            let (low, high) = (from.min(to), from.max(to));
            let mut first = self.dirs[low].1.write();
            let mut second = self.dirs[high].1.write();
            let (source, sink) = if from == low {
                (&mut *first, &mut *second)
            } else {
                (&mut *second, &mut *first)
            };
            let dentry = self.resolve(from, source, number);
            if !source.contains_key(&number) || (exchange && !sink.contains_key(&target)) {
                return;
            }
            let moved = self.cache.rename(
                &dentry,
                &self.dirs[to].0,
                &Name::new(name(target).as_bytes()),
                exchange,
            );
            moved.expect("no loop");
            self.renames.fetch_add(1, Ordering::Relaxed);
            let file = source.remove(&number).expect("it is there");
            if let Some(other) = sink.insert(target, file)
                && exchange
            {
                source.insert(number, other);
            }
        }
    }

    fn forget(&self, random: &mut Random) {
        match random.below(4) {
            0 => {
                let dir = random.below(DIRS as u64) as usize;
                let table = self.dirs[dir].1.read();
                let dentry = self.resolve(dir, &table, random.below(NAMES));
                self.cache.invalidate(&dentry, &|_, _, _| {});
            }
            1 => {
                self.cache
                    .prune(&self.dirs[random.below(DIRS as u64) as usize].0);
            }
            _ => {
                self.cache.shrink(random.below(20) as usize);
            }
        }
    }
}

/// Tells the readers to end.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn stress() {
    let scale: u64 = std::env::var("FOLIOCACHE_STRESS")
        .ok()
        .and_then(|scale| scale.parse().ok())
        .unwrap_or(1);
    let world = World::new();
    let steps: u64 = 6_000 * scale;
    thread::scope(|scope| {
        let readers = [1, 2].map(|n| {
            let world = &world;
            scope.spawn(move || {
                let mut random = Random::of(n);
                let mut n = 0_u64;
                while !world.stop.load(Ordering::Relaxed) || n < 1000 {
                    world.under_rcu(&mut random);
                    n += 1;
                }
            })
        });
        let writers = [3, 4, 5].map(|n| {
            let world = &world;
            scope.spawn(move || {
                let mut random = Random::of(n);
                for _ in 0..steps {
                    match random.below(10) {
                        0..4 => world.shared(&mut random),
                        4..6 => world.create_or_remove(&mut random),
                        6..9 => world.rename(&mut random),
                        _ => world.forget(&mut random),
                    }
                }
            })
        });
        // Also if a writer panics.
        let stop = Stop(&world.stop);
        for writer in writers {
            writer.join().expect("no assertion failed");
        }
        drop(stop);
        for reader in readers {
            reader.join().expect("no assertion failed");
        }
    });
    // All of it once more, in quiet.
    for (dir, (_, table)) in world.dirs.iter().enumerate() {
        for number in 0..NAMES {
            world.resolve(dir, &table.read(), number);
        }
    }
    let stats = world.cache.stats();
    assert!(stats.evicted > 0, "{stats:?}");
    assert!(world.renames.load(Ordering::Relaxed) > 0);
    let World {
        cache,
        dirs,
        account,
        ..
    } = world;
    drop(dirs);
    assert_eq!(cache.close(), 0, "{:?}", cache.stats());
    cache.wait_for_limbo();
    let stats = cache.stats();
    assert_eq!((stats.dentries, stats.negative, stats.limbo), (0, 0, 0));
    drop(cache);
    assert_eq!(account.inodes.load(Ordering::Relaxed), 0);
    assert_eq!(account.used.load(Ordering::Relaxed), 0);
}

#[test]
fn everything_at_once() {
    stress();
}
