//! A store is looked at before what is dirty is written to it, under random schedules: a write without a look hides what others wrote.

use crate::yielding_store::{Machine, Store, join, spawn, write};
use foliocache_mm::{AddressSpace, AddressSpaceOperations, Extent, IoSegment, PAGE_SIZE};
use foliocache_sync::model::sample_runs;
use foliocache_sync::{Arc, Mutex};
use foliocache_sys::Errno;

/// A store that is not written to unless it was looked at in the same pass. Passes come one at a time.
struct Looked {
    store: Arc<Store>,
    is_looked_at: Mutex<bool>,
}

impl Looked {
    fn writes(&self) {
        let is_looked_at = std::mem::take(&mut *self.is_looked_at.lock());
        assert!(is_looked_at, "others may have written since the last look");
    }
}

impl AddressSpaceOperations for Looked {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.store.read_folios(pos, segments)
    }

    fn look_before_writeback(&self) -> bool {
        *self.is_looked_at.lock() = true;
        false
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.writes();
        self.store.writepages(pos, segments)
    }

    fn write_extents(&self, extents: &mut [Extent<'_>]) {
        self.writes();
        self.store.write_extents(extents);
    }

    fn flush(&self) -> Result<(), Errno> {
        self.store.flush()
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.store.truncate(size)
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.store.punch_hole(pos, len)
    }

    fn describe(&self) -> String {
        "a store that is looked at".into()
    }
}

/// Each writer writes its page out and makes it durable, beside passes that find it dirty or only not durable.
#[test]
fn the_store_is_looked_at_before_each_write_to_it() {
    sample_runs(4000, || {
        let machine = Machine::new(|_| {});
        let store = Store::new(vec![b'a'; 2 * PAGE_SIZE]);
        let ops = Arc::new(Looked {
            store: Arc::clone(&store),
            is_looked_at: Mutex::new(false),
        });
        let file = AddressSpace::new(&machine.bdi, ops, 2 * PAGE_SIZE as u64);
        let writers = [0, 1].map(|page| {
            spawn(&file, move |file| {
                write(file, page * PAGE_SIZE as u64, PAGE_SIZE, b'b');
                file.write_and_wait().unwrap();
                file.sync().unwrap();
            })
        });
        let passes = spawn(&file, |file| file.sync().unwrap());
        join(writers.into_iter().chain([passes]));
        assert!(store.content().iter().all(|&byte| byte == b'b'));
        machine.end(vec![(file, store)]);
    });
}
