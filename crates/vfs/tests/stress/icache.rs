//! Threads on one inode cache: nothing that was written is lost, no two inodes of one identity, and
//! every gauge back to zero. `FOLIOCACHE_STRESS` multiplies the rounds.

use std::convert::Infallible;

use foliocache_mm::{Mm, MmConfig};
use foliocache_sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use foliocache_sync::{Arc, thread};
use foliocache_vfs::{
    CachedInode, Iget, InodeCache, InodeLink, MetadataBound, Unbounded, hash_ino,
};

fn scale() -> u64 {
    std::env::var("FOLIOCACHE_STRESS").map_or(1, |scale| scale.parse().expect("a number"))
}

struct Inode {
    link: InodeLink<Inode>,
    ino: u64,
    value: AtomicU64,
    dirty: AtomicBool,
    live: Arc<AtomicI64>,
}

// SAFETY: one link, a part of the inode.
unsafe impl CachedInode for Inode {
    fn link(&self) -> &InodeLink<Self> {
        &self.link
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Relaxed);
    }
}

fn make(ino: u64, live: &Arc<AtomicI64>) -> Result<Inode, Infallible> {
    live.fetch_add(1, Relaxed);
    Ok(Inode {
        link: InodeLink::default(),
        ino,
        value: AtomicU64::new(0),
        dirty: AtomicBool::new(false),
        live: Arc::clone(live),
    })
}

fn get<'a>(cache: &'a InodeCache<Inode>, ino: u64, live: &Arc<AtomicI64>) -> Iget<'a, Inode> {
    let Ok(iget) = cache.iget(hash_ino(ino), |i| i.ino == ino, || make(ino, live));
    iget
}

/// Evicts all inodes without holders; returns how many are left.
fn evict_all(cache: &InodeCache<Inode>, judge: impl Fn(&Inode) -> bool) -> usize {
    cache.shrink(usize::MAX, &judge);
    cache.wait_for_limbo();
    cache.len()
}

/// Writers of different files, makers that fail, removers and evictors, all over a few identities. The next inode
/// of an identity starts with the last write of the previous one, or else a write was lost.
#[test]
fn no_write_is_lost() {
    const INOS: u64 = 60;
    let cache = InodeCache::<Inode>::new(8, Arc::new(Unbounded));
    let live = Arc::default();
    let rounds = 20_000 * scale();
    let store: Vec<AtomicU64> = (0..INOS).map(|_| AtomicU64::new(0)).collect();
    let expected: Vec<AtomicU64> = (0..INOS).map(|_| AtomicU64::new(0)).collect();
    let hits = AtomicU64::new(0);
    // The inode has no holders meanwhile.
    let judge = |inode: &Inode| {
        if inode.dirty.load(Relaxed) {
            inode.dirty.store(false, Relaxed);
            store[inode.ino as usize].store(inode.value.load(Relaxed), Relaxed);
        }
        true
    };
    thread::scope(|scope| {
        let writer = |part| {
            let (cache, live, store, expected, judge) = (&cache, &live, &store, &expected, &judge);
            let hits = &hits;
            scope.spawn(move || {
                let mut x = part + 1;
                for round in 0..rounds {
                    // However the threads are scheduled, something is evicted.
                    if round % 64 == 0 {
                        cache.shrink(10, judge);
                    }
                    x = hash_ino(x);
                    let ino = x % INOS;
                    let inode = match get(cache, ino, live) {
                        Iget::New(new) if x >> 40 & 3 == 0 => {
                            drop(new);
                            continue;
                        }
                        Iget::New(new) => {
                            new.value.store(store[ino as usize].load(Relaxed), Relaxed);
                            new.unlock()
                        }
                        Iget::Found(inode) => {
                            hits.fetch_add(1, Relaxed);
                            inode
                        }
                    };
                    // Each thread writes separate files.
                    if ino % 2 == part {
                        let last = expected[ino as usize].load(Relaxed);
                        assert_eq!(inode.value.load(Relaxed), last, "a write was lost");
                        expected[ino as usize].store(last + 1, Relaxed);
                        inode.value.store(last + 1, Relaxed);
                        inode.dirty.store(true, Relaxed);
                    }
                }
            })
        };
        let writers = [writer(0), writer(1)];
        while !writers.iter().all(|writer| writer.is_finished()) {
            cache.shrink(10, judge);
        }
    });
    let stats = cache.stats();
    assert!(stats.evicted > 0 && hits.into_inner() > 0, "{stats:?}");
    assert_eq!(evict_all(&cache, judge), 0);
    assert_eq!(live.load(Relaxed), 0);
    for (stored, expected) in store.iter().zip(&expected) {
        assert_eq!(stored.load(Relaxed), expected.load(Relaxed));
    }
}

/// Walks over many more files than are kept, each new inode moving the hand, beside lookups of some that
/// stay since they are found often, and removals. All of it against a real bound, which is whole again at
/// the end.
#[test]
fn a_walk_keeps_few_and_gives_everything_back() {
    const STAY: u64 = 64;
    let mm = Mm::new(MmConfig::new(16 << 20)).expect("it is set up");
    let metadata = || mm.usage().metadata_bytes;
    let before = metadata();
    let live = Arc::default();
    let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
    let bound: Arc<dyn MetadataBound> = mm.clone();
    let cache = InodeCache::<Inode>::new(64, bound);
    let get = |ino| match get(&cache, ino, &live) {
        Iget::Found(inode) => {
            hits.fetch_add(1, Relaxed);
            inode
        }
        Iget::New(new) => {
            misses.fetch_add(1, Relaxed);
            new.unlock()
        }
    };
    let files = 50_000 * scale();
    thread::scope(|scope| {
        for part in 1..3 {
            let (cache, get) = (&cache, &get);
            scope.spawn(move || {
                for file in 0..files {
                    let inode = get(part << 40 | file);
                    if file % 100 == 0 {
                        assert!(cache.remove(&inode) || inode.link.is_gone());
                    }
                    drop(inode);
                    assert_eq!(get(file % STAY).ino, file % STAY);
                    if cache.len() > 2000 {
                        cache.shrink(4, |_| true);
                    }
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(stats.inodes < 10_000, "{stats:?}");
    assert!(misses.into_inner() >= 2 * files);
    assert!(hits.into_inner() > files);
    assert_eq!(evict_all(&cache, |_| true), 0);
    let stats = cache.stats();
    assert_eq!((stats.uncharged, stats.limbo), (0, 0));
    // A few pages stay warm.
    assert!(stats.inode_bytes <= 32 * 4096, "{stats:?}");
    assert_eq!(live.load(Relaxed), 0);
    drop(cache);
    assert_eq!(metadata(), before, "bytes of metadata");
}
