//! Tests of the inode cache, in one thread and in several.

use super::*;
use foliocache_mm::slab::SlabArc;
use foliocache_sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use foliocache_sync::thread;
use std::convert::Infallible;

/// Counts charges, up to a limit.
#[derive(Default)]
struct Purse {
    charged: AtomicI64,
    limit: i64,
}

impl MetadataBound for Purse {
    fn charge(&self, bytes: u64) -> bool {
        let bytes = bytes as i64;
        let room = |charged: i64| (charged + bytes <= self.limit).then_some(charged + bytes);
        self.charged
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .is_ok()
    }

    fn uncharge(&self, bytes: u64) {
        let before = self.charged.fetch_sub(bytes as i64, Ordering::Relaxed);
        assert!(before >= bytes as i64);
    }
}

struct Inode {
    link: InodeLink<Inode>,
    ino: u64,
    filled: AtomicU64,
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
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Setup {
    cache: InodeCache<Inode>,
    purse: Arc<Purse>,
    live: Arc<AtomicI64>,
}

fn setup(limit: i64) -> Setup {
    let charged = AtomicI64::new(0);
    let purse = Arc::new(Purse { charged, limit });
    Setup {
        cache: InodeCache::new(8, purse.clone()),
        purse,
        live: Arc::default(),
    }
}

impl Setup {
    fn make(&self, ino: u64) -> Result<Inode, Infallible> {
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok(Inode {
            link: InodeLink::default(),
            ino,
            filled: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            live: Arc::clone(&self.live),
        })
    }

    fn find(&self, ino: u64) -> Option<SlabArc<Inode>> {
        self.cache.find(hash_ino(ino), |inode| inode.ino == ino)
    }

    fn iget(&self, ino: u64) -> Iget<'_, Inode> {
        let is_it = |inode: &Inode| inode.ino == ino;
        let Ok(iget) = self.cache.iget(hash_ino(ino), is_it, || self.make(ino));
        iget
    }

    /// The inode, filled by the thread that makes it.
    fn get(&self, ino: u64) -> SlabArc<Inode> {
        Self::fill(self.iget(ino))
    }

    /// Evicts all inodes without holders; returns how many are left.
    fn evict_all(&self) -> usize {
        self.cache.shrink(usize::MAX, judge);
        self.cache.wait_for_limbo();
        self.cache.len()
    }

    fn fill(iget: Iget<'_, Inode>) -> SlabArc<Inode> {
        match iget {
            Iget::Found(inode) => inode,
            Iget::New(new) => {
                new.filled.store(new.ino + 1, Ordering::Relaxed);
                new.unlock()
            }
        }
    }

    /// Gauges back to zero.
    fn end(self) {
        let Setup { cache, purse, live } = self;
        let stats = cache.stats();
        let live_bytes = live.load(Ordering::Relaxed) as u64 * size_of::<Inode>() as u64;
        let most_uncharged = stats.uncharged * size_of::<Inode>() as u64;
        assert!(
            stats.inode_bytes >= live_bytes.saturating_sub(most_uncharged),
            "{stats:?}"
        );
        drop(cache);
        assert_eq!(live.load(Ordering::Relaxed), 0, "inodes");
        assert_eq!(purse.charged.load(Ordering::Relaxed), 0, "bytes");
    }
}

fn judge(inode: &Inode) -> bool {
    !inode.dirty.load(Ordering::Relaxed)
}

#[test]
fn a_miss_makes_one_and_a_hit_finds_it() {
    let s = setup(1 << 20);
    assert!(s.find(1).is_none());
    let first = s.get(1);
    let locks = s.cache.stats().bucket_locks;
    let second = s.get(1);
    assert!(SlabArc::ptr_eq(&first, &second));
    let stats = s.cache.stats();
    assert_eq!(stats.inodes, 1);
    assert_eq!((locks, stats.bucket_locks), (1, 1), "hits take no lock");
    drop((first, second));
    s.end();
}

#[test]
fn a_miss_takes_one_lock() {
    let s = setup(1 << 20);
    for ino in 0..100 {
        s.get(ino);
    }
    assert_eq!(s.cache.stats().bucket_locks, 100);
    s.end();
}

#[test]
fn a_failed_filling_leaves_nothing() {
    let s = setup(1 << 20);
    let Iget::New(new) = s.iget(1) else {
        panic!("it is new");
    };
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| s.get(1))).collect();
        while s.cache.stats().waits < 3 {
            thread::yield_now();
        }
        drop(new);
        let got: Vec<_> = waiters.into_iter().map(|w| w.join().unwrap()).collect();
        assert!(got.iter().all(|inode| SlabArc::ptr_eq(inode, &got[0])));
        assert_eq!(got[0].filled.load(Ordering::Relaxed), 2);
    });
    assert_eq!(s.cache.len(), 1);
    let failed: Result<Iget<'_, Inode>, &str> = s.cache.iget(2, |_| false, || Err("no room"));
    assert_eq!(failed.err(), Some("no room"));
    assert_eq!(s.cache.len(), 1);
    s.end();
}

#[test]
fn the_hand_spares_inodes_held_found_or_wanted() {
    let s = setup(1 << 20);
    let held = s.get(1);
    s.get(2);
    s.get(3).dirty.store(true, Ordering::Relaxed);
    s.get(4);
    s.get(4);
    // 2 is evicted, 3 is wanted; 4 was found since.
    let round = |s: &Setup| s.cache.shrink(1, judge);
    assert_eq!(round(&s), 1);
    assert_eq!(round(&s), 1, "the second round takes 4");
    assert_eq!(round(&s), 0);
    assert_eq!(s.cache.len(), 2);
    assert!(s.find(2).is_none());
    s.get(3).dirty.store(false, Ordering::Relaxed);
    assert!(!s.cache.evict(held.clone(), judge), "held twice");
    assert!(s.cache.evict(held, judge));
    assert_eq!(s.cache.shrink(1000, |_| false), 0);
    assert_eq!(s.evict_all(), 0);
    assert_eq!(s.live.load(Ordering::Relaxed), 0);
    assert_eq!(s.cache.stats().evicted, 4);
    s.end();
}

#[test]
fn a_removed_inode_is_not_found_and_lives_as_long_as_its_holders() {
    let s = setup(1 << 20);
    let old = s.get(1);
    assert!(s.cache.remove(&old));
    assert!(!s.cache.remove(&old));
    assert!(old.link.is_gone());
    assert!(s.find(1).is_none());
    let new = s.get(1);
    assert!(!SlabArc::ptr_eq(&old, &new));
    s.cache.limbo.flush();
    assert_eq!(s.live.load(Ordering::Relaxed), 2);
    drop(old);
    assert_eq!(s.live.load(Ordering::Relaxed), 1);
    drop(new);
    s.end();
}

#[test]
fn a_bound_without_room_is_counted() {
    let s = setup(100_000);
    let held: Vec<_> = (0..2000).map(|ino| s.get(ino)).collect();
    let stats = s.cache.stats();
    assert!(stats.uncharged > 0 && stats.uncharged < 2000, "{stats:?}");
    assert!((0..2000).all(|ino| s.find(ino).is_some()));
    drop(held);
    assert_eq!(s.evict_all(), 0);
    assert_eq!(s.cache.stats().uncharged, 0);
    s.end();
}

#[test]
fn an_identity_of_the_callers_own() {
    let s = setup(1 << 20);
    // All in one chain.
    for ino in 0..50 {
        let test = |inode: &Inode| inode.ino == ino;
        let Ok(iget) = s.cache.iget(7, test, || s.make(ino));
        Setup::fill(iget);
        let Ok(again) = s.cache.iget(7, test, || s.make(ino));
        assert!(matches!(again, Iget::Found(inode) if inode.ino == ino));
    }
    assert_eq!(s.cache.all().len(), 50);
    s.end();
}
