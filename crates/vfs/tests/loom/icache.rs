//! The inode cache over all interleavings: finding against evicting against inserting, failed fillings, and
//! sleepers that must wake.
//!
//! The reference counts are the code's own, so the holders' last stores are read with plain loads.

// Outside the model: a finding of any of its executions.
use std::convert::Infallible;
use std::sync::atomic::AtomicBool as Flag;

use foliocache_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, thread};
use foliocache_vfs::{CachedInode, Iget, InodeCache, InodeLink, SlabArc, Unbounded, hash_ino};

/// The part that outlives an inode.
struct Fate {
    dropped: AtomicBool,
    /// Torn down.
    dead: AtomicBool,
}

struct Inode {
    link: InodeLink<Inode>,
    /// Stored before the inode is unlocked.
    filled: AtomicBool,
    dirty: AtomicBool,
    value: AtomicU64,
    fate: Arc<Fate>,
}

// SAFETY: one link, a part of the inode.
unsafe impl CachedInode for Inode {
    fn link(&self) -> &InodeLink<Self> {
        &self.link
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.fate.dropped.store(true, Relaxed);
    }
}

fn make() -> Result<Inode, Infallible> {
    let [dropped, dead] = [false, false].map(AtomicBool::new);
    Ok(Inode {
        link: InodeLink::default(),
        filled: AtomicBool::new(false),
        dirty: AtomicBool::new(false),
        value: AtomicU64::new(0),
        fate: Arc::new(Fate { dropped, dead }),
    })
}

type Cache = InodeCache<Inode>;

fn cache() -> Arc<Cache> {
    Arc::new(InodeCache::new(1, Arc::new(Unbounded)))
}

fn iget(cache: &Cache) -> Iget<'_, Inode> {
    let Ok(iget) = cache.iget(hash_ino(1), |_| true, make);
    iget
}

fn find(cache: &Cache) -> Option<SlabArc<Inode>> {
    cache.find(hash_ino(1), |_| true)
}

/// The inode of the only number there is.
fn get(cache: &Cache) -> SlabArc<Inode> {
    match iget(cache) {
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
    cache.shrink(1, |_| true)
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
    explore(2, 250, || {
        let cache = cache();
        let (one, other) = (spawn(&cache, get), spawn(&cache, get));
        let one = one.join().unwrap();
        assert!(SlabArc::ptr_eq(&one, &other.join().unwrap()));
        assert_eq!(cache.len(), 1);
    });
}

/// The holder of an inode keeps it, and a later finder gets the same one.
#[test]
fn finding_against_evicting() {
    explore(2, 900, || {
        let cache = cache();
        drop(get(&cache));
        let evictor = spawn(&cache, |cache| {
            evict(cache);
        });
        let finder = spawn(&cache, get);
        let found = finder.join().unwrap();
        evictor.join().unwrap();
        let other = get(&cache);
        assert!(SlabArc::ptr_eq(&found, &other));
    });
}

#[test]
fn finding_against_evicting_against_inserting() {
    explore(1, 2000, || {
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

/// The wake-up that upstream lost: a finder goes to sleep for an inode that is already torn down. Here all finders
/// return; a sleeper without a wake-up is a deadlock, which the model reports.
#[test]
fn a_finder_of_a_torn_down_inode_returns() {
    explore(2, 400, || {
        let cache = cache();
        let held = get(&cache);
        let remover = spawn(&cache, move |cache| {
            assert!(cache.remove(&held));
        });
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
fn a_failed_filling_wakes_its_waiters() {
    explore(2, 1200, || {
        let cache = cache();
        let maker = spawn(&cache, |cache| {
            drop(iget(cache));
        });
        let finder = spawn(&cache, get);
        let found = finder.join().unwrap();
        maker.join().unwrap();
        assert!(!found.link.is_gone());
        assert!(SlabArc::ptr_eq(&found, &get(&cache)));
        assert_eq!(cache.len(), 1);
    });
}

/// The judge sees all actions of the inode's former holders, and the inode has none meanwhile.
#[test]
fn a_dirty_inode_is_not_evicted() {
    static EVICTED: Flag = Flag::new(false);
    explore(2, 1000, || {
        let cache = cache();
        drop(get(&cache));
        let evictor = spawn(&cache, |cache| {
            let judge = |inode: &Inode| {
                let dirty = inode.dirty.load(Relaxed);
                assert!(!dirty || inode.value.load(Relaxed) == 7);
                !dirty
            };
            if cache.shrink(1, judge) > 0 {
                EVICTED.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        });
        let writer = spawn(&cache, |cache| {
            let inode = get(cache);
            inode.value.store(7, Relaxed);
            inode.dirty.store(true, Relaxed);
        });
        writer.join().unwrap();
        evictor.join().unwrap();
        let inode = find(&cache).expect("a write is lost");
        assert_eq!(inode.value.load(Relaxed), 7);
    });
    let evicted = EVICTED.load(std::sync::atomic::Ordering::Relaxed);
    assert!(evicted, "no execution evicts anything");
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
            let looks = |inode: &Inode| {
                assert!(!inode.fate.dropped.load(Relaxed), "freed too early");
                true
            };
            if let Some(inode) = cache.find(hash_ino(1), looks) {
                assert!(inode.filled.load(Relaxed));
            }
        });
        reader.join().unwrap();
        evictor.join().unwrap();
    });
}

/// A file loses its name, and the thread that removed it tears it down if there is no other holder. A finder that
/// came first may hold it.
fn find_remove_tear_down(tear_down: fn(SlabArc<Inode>), torn_down: &'static Flag) -> bool {
    let cache = cache();
    let held = get(&cache);
    let fate = Arc::clone(&held.fate);
    let remover = spawn(&cache, move |cache| {
        assert!(cache.remove(&held));
        tear_down(held);
    });
    let finder = spawn(&cache, |cache| {
        let found = find(cache)?;
        // A load from a torn down inode may return an old value: an exchange reads the latest.
        let dead = found.fate.dead.fetch_or(false, Relaxed);
        Some((found, dead))
    });
    remover.join().unwrap();
    let found = finder.join().unwrap();
    if fate.dead.load(Relaxed) {
        torn_down.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    found.is_none_or(|(found, dead)| !dead && !found.fate.dead.load(Relaxed))
}

#[test]
fn nothing_is_torn_down_that_a_finder_has() {
    static TORN_DOWN: Flag = Flag::new(false);
    explore(2, 400, || {
        let put = |inode: SlabArc<Inode>| inode.put(|inode| inode.fate.dead.store(true, Relaxed));
        assert!(find_remove_tear_down(put, &TORN_DOWN));
    });
    let torn_down = TORN_DOWN.load(std::sync::atomic::Ordering::Relaxed);
    assert!(torn_down, "no execution tears anything down");
}

/// Of the two threads that drop the last references exactly one tears down.
#[test]
fn of_two_that_drop_the_last_references_one_tears_down() {
    explore(2, 10, || {
        let cache = cache();
        let held = get(&cache);
        assert!(cache.remove(&held));
        let torn_down = Arc::new(AtomicU64::new(0));
        let threads = [held.clone(), held].map(|held| {
            let torn_down = Arc::clone(&torn_down);
            thread::spawn(move || {
                held.put(|_| {
                    torn_down.fetch_add(1, Relaxed);
                });
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(torn_down.load(Relaxed), 1);
    });
}

#[test]
fn canary_without_a_check_of_references_a_finder_holds_a_torn_down_inode() {
    static WRONG: Flag = Flag::new(false);
    static TORN_DOWN: Flag = Flag::new(false);
    explore(2, 400, || {
        let kill = |inode: SlabArc<Inode>| inode.fate.dead.store(true, Relaxed);
        if !find_remove_tear_down(kill, &TORN_DOWN) {
            WRONG.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let wrong = WRONG.load(std::sync::atomic::Ordering::Relaxed);
    assert!(wrong, "the model above would miss it");
}
