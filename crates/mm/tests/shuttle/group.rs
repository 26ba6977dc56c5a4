//! Group commit under random schedules: callers that make one page durable at the same time, each with bytes of its own,
//! over a store with a volatile cache whose flush may fail. Whoever is told success has its bytes on the medium.

use crate::yielding_store::{Machine, Store, Volatile, join, spawn, write};
use foliocache_mm::{AddressSpace, AddressSpaceOperations, PAGE_SIZE};
use foliocache_sync::Arc;
use foliocache_sync::model::sample;
use shuttle::rand::{Rng, thread_rng};

/// Bytes of each writer.
const LEN: usize = 100;

/// Four writers, two records each; in half of the runs one flush fails. Each record is durable when its fsync has
/// succeeded, and all of them at the end.
#[test]
fn records_of_a_group_are_durable_when_it_succeeds() {
    const WRITERS: usize = 4;
    sample(1500, || {
        let machine = Machine::new(|_| ());
        let live = Store::new(vec![0; PAGE_SIZE]);
        let fails_after = thread_rng().gen_range(0..8);
        let fails_after = (fails_after < 4).then_some(fails_after);
        let store = Volatile::new(&live, fails_after);
        let ops = Arc::clone(&store) as Arc<dyn AddressSpaceOperations>;
        let file = AddressSpace::new(&machine.bdi, ops, PAGE_SIZE as u64);
        let writers = (0..WRITERS).map(|writer| {
            let (store, cursor) = (Arc::clone(&store), file.sample_wb_err());
            spawn(&file, move |file| {
                for byte in [b'a', b'b'] {
                    write(file, (writer * LEN) as u64, LEN, byte);
                    // The cursor would tell of a failure that the attempt itself does not see.
                    let synced = match writer {
                        0 => file.fsync(&cursor),
                        _ => file.sync(),
                    };
                    if synced.is_ok() {
                        let durable = store.durable.lock();
                        let bytes = &durable[writer * LEN..][..LEN];
                        assert!(bytes.iter().all(|&at| at == byte), "not durable");
                    }
                }
            })
        });
        // All of them before any is waited for.
        join(writers.collect::<Vec<_>>());
        // A failed flush costs each of its members' data another one.
        assert!(*store.flushes.lock() <= 2 * WRITERS as u32 + 1);
        *store.fails_after.lock() = None;
        file.sync().unwrap();
        assert_eq!(store.durable.lock()[..WRITERS * LEN], [b'b'; WRITERS * LEN]);
        machine.end(vec![(file, live)]);
    });
}
