//! [`Limbo`]: what was unpublished and waits for its readers before it is freed.
//!
//! # Model
//!
//! ```text
//!  retire ──▶ filling ──▶ waiting ──▶ freed, outside all locks
//!                  one cookie   grace period over
//! ```
//!
//! Each shard has the two lists. When *waiting* is empty, *filling* becomes *waiting* and takes a cookie,
//! which hence covers all of it. [`Limbo::retire`] only adds, so it may be called under locks and in
//! read sections; [`Limbo::tend`], which the owner calls when it holds nothing, polls once a batch is
//! there, frees what is done, and waits for the readers when too much waits.
//!
//! What is retired stays charged to whatever it is charged to until it is dropped. A limbo that was empty can
//! wake somebody who tends it ([`Limbo::wake_when_retired`]): few items would wait for ever in an idle
//! process otherwise.
//!
//! # Invariants
//!
//! 1. An item leaves only after a grace period that began after it was retired.
//! 2. After a [`Limbo::tend`] its shard holds at most [`MOST`] items. So, with each retirement
//!    followed by a `tend` in its thread, there are never many more than that for each shard.
//!
//! # Locking
//!
//! *Protects*: a shard's lock, a leaf, its lists. Items are dropped without it. *May block*: `tend` and
//! [`Limbo::flush`] wait for readers, and whatever dropping an item does.
//!
//! # Differences from Linux
//!
//! `call_rcu` runs callbacks in threads of its own. Here callers do most of it, and a file system's
//! [reaper](crate::reaper) the rest.

use std::fmt;
use std::task::Waker;

use foliocache_sync::CachePadded;
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::cell::OnceLock;
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::rcu::{self, GpCookie};

/// Shards, a power of two; threads are spread over them.
const SHARDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 8 };
/// Items in a shard at which `tend` polls.
const BATCH: usize = if cfg!(any(loom, shuttle)) { 1 } else { 64 };
/// Items in a shard at which `tend` waits.
const MOST: usize = if cfg!(any(loom, shuttle)) { 2 } else { 512 };

/// What can be retired.
pub(crate) trait LimboItem {
    /// It goes into the limbo.
    fn enter(&self) {}

    /// It is about to be dropped.
    fn leave(&self) {}
}

/// An item in the limbo.
struct Item<T: LimboItem>(T);

impl<T: LimboItem> Drop for Item<T> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

struct Lists<T: LimboItem> {
    filling: Vec<Item<T>>,
    waiting: Vec<Item<T>>,
    /// `Some` exactly if `waiting` is not empty.
    cookie: Option<GpCookie>,
}

struct Shard<T: LimboItem> {
    lists: RankedMutex<Lists<T>>,
    /// Items in both lists. Changed under the lock.
    len: AtomicUsize,
}

/// Things that wait for a grace period.
pub(crate) struct Limbo<T: LimboItem> {
    shards: Box<[CachePadded<Shard<T>>]>,
    waker: OnceLock<Waker>,
}

impl<T: LimboItem> Default for Limbo<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: LimboItem> Shard<T> {
    fn len(&self) -> usize {
        // Relaxed: a hint; the lists are looked at under the lock.
        self.len.load(Ordering::Relaxed)
    }

    /// Moves the lists on without waiting and frees what is done.
    fn advance(&self) {
        let mut done = [const { Vec::new() }; 2];
        {
            let mut lists = self.lists.lock();
            let lists = &mut *lists;
            // Twice: when `waiting` is done, `filling` can begin to wait, and may be done as well.
            for done in &mut done {
                if lists.cookie.is_some_and(rcu::poll) {
                    *done = std::mem::take(&mut lists.waiting);
                    lists.cookie = None;
                }
                if lists.cookie.is_some() || lists.filling.is_empty() {
                    break;
                }
                std::mem::swap(&mut lists.waiting, &mut lists.filling);
                lists.cookie = Some(rcu::start_poll());
            }
            // Relaxed: as in `len`.
            let len = lists.waiting.len() + lists.filling.len();
            self.len.store(len, Ordering::Relaxed);
        }
    }
}

impl<T: LimboItem> Limbo<T> {
    /// An empty one.
    #[must_use]
    pub(crate) fn new() -> Self {
        let shard = || Shard {
            lists: RankedMutex::new(
                Rank::Leaf,
                Lists {
                    filling: Vec::new(),
                    waiting: Vec::new(),
                    cookie: None,
                },
            ),
            len: AtomicUsize::new(0),
        };
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::new(shard())).collect(),
            waker: OnceLock::new(),
        }
    }

    /// Whoever `waker` wakes calls [`advance`](Self::advance) until nothing waits. It is woken under no lock of this
    /// limbo's. Counts once.
    pub(crate) fn wake_when_retired(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    fn shard(&self) -> &Shard<T> {
        &self.shards[foliocache_sync::thread_shard() & (SHARDS - 1)]
    }

    /// Keeps `item`, which no new reader can find, until those who may have found it are gone.
    ///
    /// Context: no lock of rank `Leaf`; may be in a read section. A [`tend`](Self::tend) follows when that
    /// is over.
    pub(crate) fn retire(&self, item: T) {
        let shard = self.shard();
        item.enter();
        let mut lists = shard.lists.lock();
        lists.filling.push(Item(item));
        // Relaxed: as in `Shard::len`.
        let len = shard.len.load(Ordering::Relaxed) + 1;
        shard.len.store(len, Ordering::Relaxed);
        drop(lists);
        if len == 1
            && let Some(waker) = self.waker.get()
        {
            waker.wake_by_ref();
        }
    }

    /// Frees what this thread's shard holds, if there is enough to be worth it and no reader is left; waits
    /// for the readers if there is too much. One load if there is little.
    ///
    /// Context: no lock and no read section; waits for readers now and then, and drops items.
    #[inline]
    pub(crate) fn tend(&self) {
        let shard = self.shard();
        if shard.len() >= BATCH {
            self.tend_slow(shard);
        }
    }

    #[cold]
    fn tend_slow(&self, shard: &Shard<T>) {
        shard.advance();
        // Twice: what was filling has no cookie before the first grace period is over.
        for _ in 0..2 {
            if shard.len() < MOST {
                return;
            }
            rcu::synchronize();
            shard.advance();
        }
    }

    /// Frees what can be freed in all shards without waiting.
    ///
    /// Context: no lock; drops items.
    pub(crate) fn advance(&self) {
        for shard in self.shards.iter().filter(|shard| shard.len() > 0) {
            shard.advance();
        }
    }

    /// Waits until all that is retired now is freed.
    ///
    /// Context: no lock and no read section; **waits** for up to two grace periods, and drops items.
    pub(crate) fn flush(&self) {
        for _ in 0..3 {
            if self.len() == 0 {
                return;
            }
            self.advance();
            if self.len() > 0 {
                rcu::synchronize();
            }
        }
        self.advance();
    }

    /// Items that wait, at some moment.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }
}

impl<T: LimboItem> Drop for Limbo<T> {
    /// Waits for the readers, unless this thread is one: then the items are leaked.
    fn drop(&mut self) {
        if self.len() == 0 {
            return;
        }
        if rcu::in_read_section() {
            for shard in &self.shards {
                let mut lists = shard.lists.lock();
                let lists = &mut *lists;
                std::mem::forget(std::mem::take(&mut lists.filling));
                std::mem::forget(std::mem::take(&mut lists.waiting));
            }
            return;
        }
        rcu::synchronize();
    }
}

impl<T: LimboItem> fmt::Debug for Limbo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limbo").field("len", &self.len()).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use foliocache_sync::{Arc, thread};

    impl LimboItem for Arc<()> {}

    #[test]
    fn nothing_is_freed_before_its_readers_are_gone() {
        let limbo = Limbo::new();
        let item = Arc::new(());
        let rcu = rcu::read_lock();
        for _ in 0..3 * BATCH {
            limbo.retire(Arc::clone(&item));
        }
        limbo.advance();
        limbo.advance();
        assert_eq!(Arc::strong_count(&item), 3 * BATCH + 1);
        drop(rcu);
        limbo.flush();
        assert_eq!((limbo.len(), Arc::strong_count(&item)), (0, 1));
    }

    #[test]
    fn it_is_bounded_with_readers_about() {
        let limbo = Limbo::new();
        let item = Arc::new(());
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        {
                            let _rcu = rcu::read_lock();
                            limbo.retire(Arc::clone(&item));
                        }
                        limbo.tend();
                        assert!(limbo.len() <= 2 * MOST);
                    }
                });
            }
        });
        drop(limbo);
        assert_eq!(Arc::strong_count(&item), 1);
    }
}
