//! The inode cache over all interleavings: finding against evicting against inserting, failed fillings, and
//! sleepers that must wake.
//!
//! `Arc` is `std`'s in a model, which sees no ordering through it. So what holders leave behind is read
//! here by operations that see the last value (`fetch_or(false)`), as the count's orderings would have them
//! do.
#![cfg(loom)]

// Outside the model: what any execution of it has seen.
use std::convert::Infallible;
use std::sync::atomic::AtomicBool as Flag;

use foliocache_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, rcu, thread};
use foliocache_vfs::{
    CachedInode, Iget, InodeCache, InodeLink, Retired, SlabArc, Unbounded, Verdict,
};

/// What outlives an inode.
struct Fate {
    dropped: AtomicBool,
}

struct Inode {
    link: InodeLink<Inode>,
    /// Stored before the inode is unlocked.
    filled: AtomicBool,
    dirty: AtomicBool,
    value: AtomicU64,
    fate: Arc<Fate>,
    retired: Retired,
    /// Torn down.
    dead: AtomicBool,
}

// SAFETY: one link, a part of the inode.
unsafe impl CachedInode for Inode {
    fn link(&self) -> &InodeLink<Self> {
        &self.link
    }

    fn ino(&self) -> u64 {
        1
    }

    fn retired(&self) -> Option<&Retired> {
        Some(&self.retired)
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.fate.dropped.store(true, Relaxed);
    }
}

fn make() -> Result<Inode, Infallible> {
    let dropped = AtomicBool::new(false);
    Ok(Inode {
        link: InodeLink::new(),
        filled: AtomicBool::new(false),
        dirty: AtomicBool::new(false),
        value: AtomicU64::new(0),
        fate: Arc::new(Fate { dropped }),
        retired: Retired::new(),
        dead: AtomicBool::new(false),
    })
}

type Cache = InodeCache<Inode>;

fn cache() -> Arc<Cache> {
    Arc::new(InodeCache::new(1, Arc::new(Unbounded)))
}

/// The inode of the only number there is.
fn get(cache: &Cache) -> SlabArc<Inode> {
    let Ok(iget) = cache.iget(1, make);
    match iget {
        Iget::Found(inode) => {
            assert!(inode.filled.load(Relaxed), "found before it was filled");
            inode
        }
        Iget::New(new) => {
            new.filled.store(true, Relaxed);
            new.unlock()
        }
    }
}

fn evict(cache: &Cache) -> usize {
    cache.shrink(1, |_| Verdict::Evict, |_| ())
}

fn spawn<R: 'static>(
    cache: &Arc<Cache>,
    f: impl FnOnce(&Cache) -> R + Send + 'static,
) -> thread::JoinHandle<R> {
    let cache = Arc::clone(cache);
    thread::spawn(move || f(&cache))
}

#[test]
fn two_that_miss_make_one() {
    explore(2, 300, || {
        let cache = cache();
        let (one, other) = (spawn(&cache, get), spawn(&cache, get));
        let one = one.join().unwrap();
        assert!(SlabArc::ptr_eq(&one, &other.join().unwrap()));
        assert_eq!(cache.len(), 1);
    });
}

/// Who holds an inode keeps it, and whoever comes later gets the same.
fn find_evict_insert(find: fn(&Cache) -> SlabArc<Inode>) -> bool {
    let cache = cache();
    drop(get(&cache));
    let evictor = spawn(&cache, |cache| {
        evict(cache);
    });
    let finder = spawn(&cache, find);
    let found = finder.join().unwrap();
    evictor.join().unwrap();
    let other = get(&cache);
    SlabArc::ptr_eq(&found, &other)
}

#[test]
fn finding_against_evicting() {
    explore(2, 1000, || assert!(find_evict_insert(get)));
}

#[test]
fn canary_a_finder_without_a_pin_has_an_inode_that_is_gone() {
    static TWO: Flag = Flag::new(false);
    explore(2, 1000, || {
        let find = |cache: &Cache| cache.find_unpinned(1).unwrap_or_else(|| get(cache));
        if !find_evict_insert(find) {
            TWO.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    assert!(
        TWO.load(std::sync::atomic::Ordering::Relaxed),
        "the model above would miss two inodes of one identity"
    );
}

#[test]
fn finding_against_evicting_against_inserting() {
    explore(1, 10000, || {
        let cache = cache();
        drop(get(&cache));
        let evictor = spawn(&cache, |cache| {
            evict(cache);
        });
        let (one, other) = (spawn(&cache, get), spawn(&cache, get));
        let (one, other) = (one.join().unwrap(), other.join().unwrap());
        evictor.join().unwrap();
        assert!(SlabArc::ptr_eq(&one, &other));
    });
}

/// What upstream lost: a finder that goes to sleep for an inode that is already torn down. Here all that
/// find come back; a sleeper whom nobody wakes is a deadlock, which the model reports.
#[test]
fn a_finder_of_what_is_torn_down_comes_back() {
    explore(2, 400, || {
        let cache = cache();
        let held = get(&cache);
        let remover = spawn(&cache, move |cache| {
            assert!(cache.remove(&held));
        });
        let find = |cache: &Cache| cache.find(foliocache_vfs::hash_ino(1), |_| true);
        let finder = spawn(&cache, move |cache| {
            if let Some(inode) = find(cache) {
                assert!(inode.filled.load(Relaxed));
            }
        });
        finder.join().unwrap();
        remover.join().unwrap();
        assert!(find(&cache).is_none());
    });
}

/// The maker gives up while another waits for it: that one is woken, and makes its own.
#[test]
fn a_failed_filling_wakes_who_waits() {
    explore(2, 4000, || {
        let cache = cache();
        let maker = spawn(&cache, |cache| {
            let Ok(iget) = cache.iget(1, make);
            drop(iget);
        });
        let finder = spawn(&cache, get);
        let found = finder.join().unwrap();
        maker.join().unwrap();
        assert!(!found.link.is_gone());
        assert!(SlabArc::ptr_eq(&found, &get(&cache)));
        assert_eq!(cache.len(), 1);
    });
}

#[test]
fn what_is_dirty_is_written_before_it_goes() {
    explore(2, 1000, || {
        let cache = cache();
        let store = Arc::new(AtomicU64::new(0));
        drop(get(&cache));
        let evictor = {
            let store = Arc::clone(&store);
            spawn(&cache, move |cache| {
                let judge = |inode: &Inode| match inode.dirty.fetch_or(false, Relaxed) {
                    true => Verdict::WriteFirst,
                    false => Verdict::Evict,
                };
                cache.shrink(1, judge, |inode| {
                    if inode.dirty.swap(false, Relaxed) {
                        store.store(inode.value.fetch_or(0, Relaxed), Relaxed);
                    }
                });
            })
        };
        let writer = spawn(&cache, |cache| {
            let inode = get(cache);
            inode.value.store(7, Relaxed);
            inode.dirty.store(true, Relaxed);
        });
        writer.join().unwrap();
        evictor.join().unwrap();
        let hash = foliocache_vfs::hash_ino(1);
        match cache.find(hash, |_| true) {
            Some(inode) => assert_eq!(inode.value.load(Relaxed), 7),
            None => assert_eq!(store.load(Relaxed), 7, "a write is lost"),
        }
    });
}

#[test]
fn nothing_is_freed_under_a_reader() {
    explore(2, 400, || {
        let cache = cache();
        drop(get(&cache));
        let evictor = spawn(&cache, |cache| {
            evict(cache);
            cache.reap();
            cache.reap();
        });
        let reader = spawn(&cache, |cache| {
            let rcu = rcu::read_lock();
            if let Some(inode) = cache.find_rcu(foliocache_vfs::hash_ino(1), |_| true, &rcu) {
                let fate = Arc::clone(&inode.fate);
                assert!(inode.filled.load(Relaxed));
                assert!(!fate.dropped.fetch_or(false, Relaxed), "freed too early");
            }
        });
        reader.join().unwrap();
        evictor.join().unwrap();
    });
}

/// A file loses its name, and who has removed it tears it down if nobody else has it. A finder that came first may
/// have it.
fn find_remove_tear_down(is_last: fn(&SlabArc<Inode>) -> bool, torn_down: &'static Flag) -> bool {
    let cache = cache();
    let held = get(&cache);
    let remover = spawn(&cache, move |cache| {
        assert!(cache.remove(&held));
        if is_last(&held) {
            held.dead.store(true, Relaxed);
            torn_down.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let finder = spawn(&cache, |cache| {
        cache.find(foliocache_vfs::hash_ino(1), |_| true)
    });
    remover.join().unwrap();
    let found = finder.join().unwrap();
    found.is_none_or(|inode| !inode.dead.load(Relaxed))
}

#[test]
fn nothing_is_torn_down_that_a_finder_has() {
    static TORN_DOWN: Flag = Flag::new(false);
    explore(2, 400, || {
        let is_last =
            |inode: &SlabArc<Inode>| inode.retired.is_last(inode, || inode.link.is_pinned());
        assert!(find_remove_tear_down(is_last, &TORN_DOWN));
    });
    let torn_down = TORN_DOWN.load(std::sync::atomic::Ordering::Relaxed);
    assert!(torn_down, "no execution tears anything down");
}

#[test]
fn canary_without_a_look_at_the_references_a_finder_has_what_is_torn_down() {
    static WRONG: Flag = Flag::new(false);
    static TORN_DOWN: Flag = Flag::new(false);
    explore(2, 400, || {
        if !find_remove_tear_down(|_| true, &TORN_DOWN) {
            WRONG.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let wrong = WRONG.load(std::sync::atomic::Ordering::Relaxed);
    assert!(wrong, "the model above would miss it");
}
