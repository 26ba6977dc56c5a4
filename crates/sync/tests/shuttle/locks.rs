//! Ranked locks, wait tables and RCU together, over many random schedules.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::model::sample;
use foliocache_sync::rank::{self, How, Rank, RankedMutex, RankedRwLock};
use foliocache_sync::wait::{LockBits, WaitTable};
use foliocache_sync::{Arc, Condvar, rcu, thread};

const BITS: LockBits = LockBits {
    locked: 1,
    waiters: 2,
};
const ITERATIONS: usize = 2000;

struct File {
    i_rwsem: RankedRwLock<{ Rank::IRwsem as u8 }, u64>,
    word: AtomicU64,
    content: AtomicU64,
    xa_lock: RankedMutex<{ Rank::XaLock as u8 }, u64>,
    table: WaitTable,
}

impl File {
    fn write(&self) {
        let mut size = self.i_rwsem.write();
        *size += 1;
        self.locked();
    }

    fn read(&self) {
        let _size = self.i_rwsem.read();
        self.locked();
    }

    fn locked(&self) {
        let _token = rank::acquire(Rank::FolioLock, How::Ordered);
        BITS.lock(&self.word, &self.table);
        let before = self.content.load(Ordering::Relaxed);
        *self.xa_lock.lock() += 1;
        self.content.store(before + 1, Ordering::Relaxed);
        BITS.unlock(&self.word, &self.table);
    }
}

#[test]
fn locks_in_order_neither_deadlock_nor_overlap() {
    sample(ITERATIONS, || {
        let file = Arc::new(File {
            i_rwsem: RankedRwLock::new(0),
            word: AtomicU64::new(0),
            content: AtomicU64::new(0),
            xa_lock: RankedMutex::new(0),
            table: WaitTable::new(),
        });
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let file = Arc::clone(&file);
                thread::spawn(move || {
                    for _ in 0..2 {
                        if number % 2 == 0 {
                            file.read()
                        } else {
                            file.write()
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(file.content.load(Ordering::Relaxed), 8);
        assert_eq!(*file.xa_lock.lock(), 8);
        assert_eq!(*file.i_rwsem.read(), 4);
    });
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "lock rank inversion")]
fn an_inversion_is_found_in_any_schedule() {
    shuttle::check_random(
        || {
            let outer = RankedMutex::<{ Rank::XaLock as u8 }, _>::new(());
            let inner = RankedMutex::<{ Rank::LruLock as u8 }, _>::new(());
            let _inner = inner.lock();
            let _outer = outer.lock();
        },
        1,
    );
}

#[test]
fn a_ranked_condvar_hands_over() {
    sample(ITERATIONS, || {
        let lock = RankedMutex::<{ Rank::Budget as u8 }, _>::new(0);
        let state = Arc::new((lock, Condvar::new()));
        let threads: Vec<_> = (0..3)
            .map(|turn| {
                let state = Arc::clone(&state);
                thread::spawn(move || {
                    let mut now = state.0.lock();
                    while *now != turn {
                        now = state.1.wait_ranked(now);
                    }
                    *now += 1;
                    state.1.notify_all();
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*state.0.lock(), 3);
    });
}

#[test]
fn readers_never_see_an_object_after_it_was_given_away() {
    const LIVE: u64 = 1;
    const SPOILT: u64 = 2;
    sample(ITERATIONS / 4, || {
        let objects: Arc<Vec<AtomicU64>> =
            Arc::new([LIVE, SPOILT, SPOILT].map(AtomicU64::new).into());
        let current = Arc::new(AtomicU64::new(0));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (objects, current) = (Arc::clone(&objects), Arc::clone(&current));
                thread::spawn(move || {
                    for _ in 0..3 {
                        let _guard = rcu::read_lock();
                        let found = &objects[current.load(Ordering::Acquire) as usize];
                        assert_eq!(found.load(Ordering::Relaxed), LIVE);
                        assert_eq!(found.load(Ordering::Relaxed), LIVE);
                    }
                })
            })
            .collect();
        for round in 0..4 {
            let next = (round + 1) % 3;
            objects[next].store(LIVE, Ordering::Relaxed);
            current.store(next as u64, Ordering::Release);
            rcu::synchronize();
            objects[round % 3].store(SPOILT, Ordering::Relaxed);
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
}
