//! Results remembered by a number, over the interleavings of changing and remembering threads.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::model::explore;
use foliocache_sync::seqcount::SeqCount;
use foliocache_sync::{Arc, Mutex, rcu, thread};
use foliocache_vfs::Generation;

/// A place that leads to the first of two things, or to the second once the first is gone.
struct World {
    generation: Generation,
    seq: SeqCount,
    lock: Mutex<()>,
    leads_to: AtomicU64,
    /// Read by a thread that is led there, written when it is freed: loom sees if the two may meet.
    first: UnsafeCell<u64>,
}

// SAFETY: `first` is written a grace period after its removal, which the models check.
unsafe impl Send for World {}
// SAFETY: `first` is written a grace period after its removal, which the models check.
unsafe impl Sync for World {}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            generation: Generation::default(),
            seq: SeqCount::new(),
            lock: Mutex::new(()),
            leads_to: AtomicU64::new(1),
            first: UnsafeCell::new(1),
        })
    }

    /// Takes the first away.
    fn change(&self) {
        let _changing = self.generation.begin();
        let mut lock = self.lock.lock();
        let _writing = self.seq.write(&mut lock);
        self.leads_to.store(2, Ordering::Relaxed);
    }

    /// Frees the first: it has no readers any more.
    fn free(&self) {
        rcu::synchronize();
        // SAFETY: see the impls above.
        self.first.with_mut(|first| unsafe { *first = 0 });
    }

    /// Where it leads; `None` if that is being changed.
    fn look(&self) -> Option<u64> {
        let seq = self.seq.try_read_begin()?;
        let to = self.leads_to.load(Ordering::Relaxed);
        (!self.seq.read_retry(seq)).then_some(to)
    }

    /// The target of a remembered way to the first.
    fn visit(&self) -> u64 {
        // SAFETY: see the impls above.
        self.first.with(|first| unsafe { *first })
    }
}

/// A thread follows its memory only while the target exists.
#[test]
fn no_freed_object_is_visited() {
    explore(2, 500, || {
        let world = World::new();
        let remembers = Arc::clone(&world);
        let reader = thread::spawn(move || {
            let mut remembered = None;
            for _ in 0..2 {
                let _rcu = rcu::read_lock();
                match remembered {
                    Some(number) if remembers.generation.is(number) => {
                        assert_eq!(remembers.visit(), 1);
                    }
                    _ => {
                        let number = remembers.generation.to_remember();
                        remembered = number.filter(|_| remembers.look() == Some(1));
                    }
                }
            }
        });
        let changes = Arc::clone(&world);
        let writer = thread::spawn(move || {
            changes.change();
            changes.free();
        });
        reader.join().unwrap();
        writer.join().unwrap();
    });
}

/// Once a thread has seen the change, no thread that it notifies follows its memory to the old
/// state.
#[test]
fn no_remembered_result_outlives_a_seen_change() {
    explore(2, 1000, || {
        let world = World::new();
        let told = Arc::new(AtomicU64::new(0));
        let (remembers, listens) = (Arc::clone(&world), Arc::clone(&told));
        let reader = thread::spawn(move || {
            let number = remembers.generation.to_remember();
            let remembered = number.filter(|_| remembers.look() == Some(1));
            // Notified by the thread that sees it.
            if listens.load(Ordering::Acquire) == 1
                && let Some(number) = remembered
            {
                assert!(!remembers.generation.is(number));
            }
        });
        let changes = Arc::clone(&world);
        let writer = thread::spawn(move || changes.change());
        let sees = thread::spawn(move || {
            if world.look() == Some(2) {
                told.store(1, Ordering::Release);
            }
        });
        reader.join().unwrap();
        writer.join().unwrap();
        sees.join().unwrap();
    });
}
