//! The sequence counter over all interleavings: a reader accepts only the data of one writer.

use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::model::explore;
use foliocache_sync::seqcount::SeqCount;
use foliocache_sync::{Arc, Mutex, thread};

struct Pair {
    lock: Mutex<()>,
    seq: SeqCount,
    first: AtomicUsize,
    second: AtomicUsize,
}

impl Pair {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            lock: Mutex::new(()),
            seq: SeqCount::new(),
            first: AtomicUsize::new(0),
            second: AtomicUsize::new(0),
        })
    }

    fn write(&self, value: usize) {
        let mut guard = self.lock.lock();
        let _section = self.seq.write(&mut guard);
        // Relaxed: the counter orders them, which the model checks.
        self.first.store(value, Ordering::Relaxed);
        self.second.store(value, Ordering::Relaxed);
    }

    fn load(&self) -> (usize, usize) {
        // Relaxed: the counter orders them, which the model checks.
        let second = self.second.load(Ordering::Relaxed);
        (self.first.load(Ordering::Relaxed), second)
    }
}

#[test]
fn an_accepted_read_is_not_torn() {
    explore(3, 1000, || {
        let pair = Pair::new();
        let other = Arc::clone(&pair);
        let writer = thread::spawn(move || {
            other.write(1);
            other.write(2);
        });
        let reader = thread::spawn(move || {
            if let Some(start) = pair.seq.try_read_begin() {
                let (first, second) = pair.load();
                if !pair.seq.read_retry(start) {
                    assert_eq!(first, second);
                    assert_eq!(start as usize, 2 * first);
                }
            }
        });
        reader.join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_waits_for_the_writer_to_leave() {
    explore(3, 100, || {
        let pair = Pair::new();
        let other = Arc::clone(&pair);
        let writer = thread::spawn(move || other.write(1));
        let reads = Arc::clone(&pair);
        let reader = thread::spawn(move || {
            let start = reads.seq.read_begin();
            let (first, second) = reads.load();
            if !reads.seq.read_retry(start) {
                assert_eq!(first, second);
            }
        });
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(pair.load(), (1, 1));
    });
}
