//! [`Limbo`]: unpublished objects that wait for their readers before they are freed; [`Reaper`]:
//! the thread that frees them.
//!
//! # Model
//!
//! Objects wait in shards, each a [`Retired`]. [`Limbo::retire`] only adds, so it may be called under locks and in read
//! sections. The owner calls [`Limbo::tend`] without locks: it polls once a batch is there, frees objects whose grace
//! period is over, and waits for readers when too many objects wait.
//!
//! A retired object keeps its charge until it is dropped. In an idle process the last ones would wait for ever, and
//! an unlinked file would keep its space. So the first object in an empty limbo wakes the file system's reaper
//! ([`Limbo::wake_when_retired`]), which looks every [`PERIOD`] until the limbo is empty. The first look comes a
//! period after the wake-up: a wake-up and a grace period for each name would cost more than the name.
//!
//! # Invariants
//!
//! 1. An item leaves only after a grace period that began after it was retired.
//! 2. After a [`Limbo::tend`] its shard holds at most [`MOST`] items. So, with each retirement
//!    followed by a `tend` in its thread, there are never many more than that for each shard.
//!
//! # Locking
//!
//! *Protects*: a shard's lock, a leaf, its lists. Items are dropped outside of it. *May block*: `tend` and
//! [`Limbo::flush`] wait for readers, [`Limbo::barrier`] also for other threads that drop items, and all of them
//! for the drop of an item.
//!
//! # Memory ordering
//!
//! The reaper's `stop` is stored with `Release` before the thread is unparked, and loaded with `Acquire`: the
//! owner's earlier actions are over. Unparking is a release too: the thread sees objects that were retired before,
//! and looks again if it was about to sleep.
//!
//! # Differences from Linux
//!
//! `call_rcu` runs callbacks in threads that serve the whole kernel. Here callers do most of the work, and each
//! file system has a reaper, so a store that does not answer delays no other.

use foliocache_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use foliocache_sync::background::{self, Panics};
use foliocache_sync::cell::OnceLock;
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::rcu;
use foliocache_sync::retired::Retired;
use foliocache_sync::time::{Duration, sleep};
use foliocache_sync::{Arc, CachePadded, Condvar, thread};
use foliocache_sys::Errno;

/// Shards, a power of two; threads are spread over them.
const SHARDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 8 };
/// Items in a shard at which `tend` polls.
const BATCH: usize = if cfg!(any(loom, shuttle)) { 1 } else { 64 };
/// Items in a shard at which `tend` waits.
const MOST: usize = if cfg!(any(loom, shuttle)) { 2 } else { 512 };

/// Time between two looks of a reaper: some grace periods of an idle process.
const PERIOD: Duration = Duration::from_millis(1);

struct Lists<T> {
    retired: Retired<Vec<T>>,
    /// The number of the next batch to be freed, and those being freed.
    next: u64,
    freeing: Vec<u64>,
}

struct Shard<T> {
    lists: LeafMutex<Lists<T>>,
    /// A batch was freed.
    freed: Condvar,
    /// Items in both lists. Changed under the lock.
    len: AtomicUsize,
}

/// Things that wait for a grace period.
pub(crate) struct Limbo<T> {
    shards: Box<[CachePadded<Shard<T>>]>,
    reaper: OnceLock<Reaper>,
}

impl<T> Shard<T> {
    fn len(&self) -> usize {
        // Relaxed: a hint; the lists are looked at under the lock.
        self.len.load(Ordering::Relaxed)
    }

    /// Moves the lists on without waiting and frees objects whose grace period is over.
    fn advance(&self) {
        // Ends after `done` is dropped, also by a panic.
        let _batch;
        let mut done = Vec::new();
        {
            let mut lists = self.lists.lock();
            let lists = &mut *lists;
            lists.retired.advance(&mut done);
            // Relaxed: as in `len`.
            self.len.store(lists.retired.len(), Ordering::Relaxed);
            if done.is_empty() {
                return;
            }
            _batch = Batch {
                shard: self,
                number: lists.next,
            };
            lists.freeing.push(lists.next);
            lists.next += 1;
        }
    }

    /// Waits for the batches that other threads are freeing now.
    fn wait_for_batches(&self) {
        let mut lists = self.lists.lock();
        let next = lists.next;
        while lists.freeing.iter().any(|&number| number < next) {
            lists = self.freed.wait_ranked(lists);
        }
    }
}

/// Items that a thread took out of a shard and frees.
struct Batch<'a, T> {
    shard: &'a Shard<T>,
    number: u64,
}

impl<T> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        let mut lists = self.shard.lists.lock();
        lists.freeing.retain(|&number| number != self.number);
        drop(lists);
        self.shard.freed.notify_all();
    }
}

impl<T> Limbo<T> {
    /// An empty one.
    pub(crate) fn new() -> Self {
        let shard = || Shard {
            lists: LeafMutex::new(Lists {
                retired: Retired::default(),
                next: 0,
                freeing: Vec::new(),
            }),
            freed: Condvar::new(),
            len: AtomicUsize::new(0),
        };
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::new(shard())).collect(),
            reaper: OnceLock::new(),
        }
    }

    /// `reaper` calls [`advance`](Self::advance) until nothing waits. Counts once.
    pub(crate) fn wake_when_retired(&self, reaper: Reaper) {
        let _ = self.reaper.set(reaper);
    }

    fn shard(&self) -> &Shard<T> {
        &self.shards[foliocache_sync::thread_shard() & (SHARDS - 1)]
    }

    /// Keeps `item`, which no new reader can find, until its readers are gone.
    ///
    /// Context: no lock of rank `Leaf`; may be in a read section. A [`tend`](Self::tend) follows when that
    /// is over.
    pub(crate) fn retire(&self, item: T) {
        let shard = self.shard();
        let mut lists = shard.lists.lock();
        lists.retired.filling().push(item);
        // Relaxed: as in `Shard::len`.
        let len = shard.len.load(Ordering::Relaxed) + 1;
        shard.len.store(len, Ordering::Relaxed);
        drop(lists);
        if len == 1
            && let Some(reaper) = self.reaper.get()
        {
            reaper.wake();
        }
    }

    /// Frees the objects in this thread's shard, if there are enough to be worth it and no reader is left; waits
    /// for the readers if there are too many. One load if there are few.
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
        // Twice: what was retired last gets its cookie only after the first grace period.
        for _ in 0..2 {
            if shard.len() < MOST {
                return;
            }
            rcu::synchronize();
            shard.advance();
        }
    }

    /// Frees all objects that can be freed without waiting; returns how many still wait.
    ///
    /// Context: no lock; drops items.
    pub(crate) fn advance(&self) -> usize {
        for shard in self.shards.iter().filter(|shard| shard.len() > 0) {
            shard.advance();
        }
        self.len()
    }

    /// Frees everything that is retired now, except objects that other threads have begun to free.
    ///
    /// Context: no lock and no read section; **waits** for up to two grace periods, and drops items.
    pub(crate) fn flush(&self) {
        for _ in 0..2 {
            if self.advance() == 0 {
                return;
            }
            rcu::synchronize();
        }
        self.advance();
    }

    /// As [`flush`](Self::flush), and waits for objects that other threads have begun to free: a store that does
    /// not answer them delays the caller too.
    ///
    /// Context: as there, and not from the drop of an item.
    #[doc(alias = "rcu_barrier")]
    pub(crate) fn barrier(&self) {
        self.flush();
        for shard in &self.shards {
            shard.wait_for_batches();
        }
    }

    /// Items that wait, at some moment.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }
}

impl<T> Drop for Limbo<T> {
    /// Waits for the readers, unless this thread is one: then the items are leaked.
    fn drop(&mut self) {
        if self.len() == 0 {
            return;
        }
        if rcu::in_read_section() {
            for shard in &self.shards {
                std::mem::forget(shard.lists.lock().retired.take_all());
            }
            return;
        }
        rcu::synchronize();
    }
}

/// A file system's thread that frees the objects in its limbos. Ends soon after [`Reaper::stop`].
#[derive(Clone)]
pub(crate) struct Reaper {
    thread: thread::Thread,
    stop: Arc<AtomicBool>,
}

impl Reaper {
    /// Starts the thread. It calls `reap`, which frees what it can without waiting and returns how many objects
    /// still wait; with a `period`, it also does so after that time without a wake-up. Objects that a panic kept it
    /// from freeing are retried. Blocks for the drop of an item.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(crate) fn start(
        panics: &Arc<Panics>,
        period: Option<Duration>,
        reap: impl Fn() -> usize + Send + 'static,
    ) -> Result<Reaper, Errno> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            // Acquire pairs with the Release in `stop`.
            while !stopped.load(Ordering::Acquire) {
                match (reap(), period) {
                    (0, Some(period)) => thread::park_timeout(period),
                    (0, None) => thread::park(),
                    _ => {}
                }
                // After a wake-up too: objects that are given up one by one are freed together.
                sleep(PERIOD);
            }
        };
        let handle = background::spawn("foliocache-reap", panics, run).map_err(Errno::from)?;
        let thread = handle.thread().clone();
        Ok(Reaper { thread, stop })
    }

    /// Has the thread look. Takes no lock, so it may be called in a read section.
    pub(crate) fn wake(&self) {
        self.thread.unpark();
    }

    pub(crate) fn stop(&self) {
        // Release pairs with the Acquire in the thread.
        self.stop.store(true, Ordering::Release);
        self.wake();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use foliocache_sync::atomic::AtomicU64;
    use std::sync::mpsc;

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
    fn a_barrier_waits_for_another_threads_frees() {
        /// Announces its drop, and ends it on command.
        struct Slow(mpsc::Sender<()>, mpsc::Receiver<()>, Arc<AtomicBool>);
        impl Drop for Slow {
            fn drop(&mut self) {
                self.0.send(()).expect("the test waits for it");
                let _ = self.1.recv();
                sleep(20 * PERIOD);
                self.2.store(true, Ordering::Relaxed);
            }
        }
        let limbo = Limbo::new();
        let (begun, begins) = mpsc::channel();
        let (end, ends) = mpsc::channel();
        let freed = Arc::new(AtomicBool::new(false));
        limbo.retire(Slow(begun, ends, Arc::clone(&freed)));
        thread::scope(|scope| {
            scope.spawn(|| while limbo.advance() > 0 {});
            begins.recv().expect("the drop begins");
            // That does not wait: the drop has not been allowed to end.
            limbo.flush();
            drop(end);
            limbo.barrier();
            assert!(freed.load(Ordering::Relaxed));
        });
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

    #[test]
    fn the_reaper_outlives_panics_and_counts_them() {
        let panics = Arc::new(Panics::new(|_, _| {}));
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        // The next call finds the objects of a call that panicked.
        let reap = move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => panic!("injected by the test"),
            call => usize::from(call < 5),
        };
        let reaper = Reaper::start(&panics, None, reap).expect("a thread");
        while calls.load(Ordering::Relaxed) < 6 {
            sleep(PERIOD);
        }
        assert_eq!(panics.count(), 2);
        reaper.stop();
    }
}
