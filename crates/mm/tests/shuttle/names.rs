//! Names hold all the room that metadata may have, and a file is written far apart: they give way, and no write is refused,
//! whenever the reclaimer runs.
//!
//! Time stands still, so the reclaimer runs only when it is asked to.

use crate::yielding_store::{Machine, Store, join, read, spawn, write};
use foliocache_mm::{GivenUp, Mm, Shrinker};
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::model::sample;
use foliocache_sync::{Arc, Weak, thread};

/// What is charged and given up at once: some pages of names.
const PIECE: u64 = 16 << 10;

/// Pages this far apart share no index node.
const APART: u64 = 64 << 12;

/// A cache of metadata of which nothing is in use.
struct Names {
    mm: Arc<Mm>,
    held: AtomicU64,
}

impl Names {
    fn new(mm: &Arc<Mm>) -> Arc<Self> {
        let names = Arc::new(Names {
            mm: Arc::clone(mm),
            held: AtomicU64::new(0),
        });
        let weak: Weak<dyn Shrinker> = Arc::downgrade(&names) as Weak<dyn Shrinker>;
        mm.add_shrinker(weak);
        names
    }

    /// Takes all that there is room for.
    fn fill(&self) {
        while self.mm.try_charge_metadata(PIECE) {
            // Relaxed, here and below: a sum, and the model knows no other order.
            self.held.fetch_add(PIECE, Ordering::Relaxed);
        }
    }
}

impl Shrinker for Names {
    fn bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    fn shrink(&self, bytes: u64) -> GivenUp {
        let mut given = 0;
        let give = |held: u64| {
            given = bytes.next_multiple_of(PIECE).min(held);
            Some(held - given)
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let _held = self.held.fetch_update(set, fetch, give);
        thread::yield_now();
        self.mm.uncharge_metadata(given);
        GivenUp {
            bytes: given,
            more: false,
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _given = self.shrink(self.bytes());
    }
}

/// Writes pages far apart, each of which needs an index node, while names take what there is before each.
#[test]
fn a_write_waits_for_names_that_can_give_way() {
    sample(200, || {
        let machine = Machine::new(|_| ());
        let store = Store::new(Vec::new());
        let file = machine.file(&store);
        let names = Names::new(&machine.mm);
        names.fill();
        for page in 0..2 {
            write(&file, page * APART, 1, 1 + page as u8);
            names.fill();
        }
        let walker = {
            let names = Arc::clone(&names);
            thread::spawn(move || {
                for _ in 0..4 {
                    if names.mm.charge_cached_metadata(PIECE, &|| false).is_ok() {
                        names.held.fetch_add(PIECE, Ordering::Relaxed);
                    }
                }
            })
        };
        let writer = spawn(&file, |file| write(file, 2 * APART, 1, 3));
        join([walker, writer]);
        for page in 0..3 {
            assert_eq!(read(&file, page * APART, 1), [1 + page as u8]);
        }
        drop(names);
        machine.end(vec![(file, store)]);
    });
}
