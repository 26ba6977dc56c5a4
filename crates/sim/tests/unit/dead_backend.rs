//! A file system whose store hangs or always fails, beside a healthy one in the same cache.

use std::time::Duration;

use crate::common::{Handle, Healing, MIB, PAGE, PATIENCE, cache, eventually, storage, within};
use foliocache_mm::{BackingDevInfo, Mm};
use foliocache_sim::{Effect, Faults, FaultyBackend, Fill, OpSet, Rule};
use foliocache_sync::Arc;
use foliocache_sys::Errno;

const LIMIT: u64 = 16 * MIB;
const CHUNK: usize = 64 << 10;

struct Side {
    /// First, so that it is dropped before the flusher is waited for.
    _healing: Healing,
    bdi: Arc<BackingDevInfo>,
    faults: Faults,
    backend: Arc<FaultyBackend>,
}

impl Side {
    fn new(mm: &Arc<Mm>, name: &str) -> Self {
        let faults = Faults::new(3);
        Self {
            bdi: storage(mm, name),
            backend: FaultyBackend::new(name, &faults),
            _healing: Healing(faults.clone()),
            faults,
        }
    }

    fn open(&self) -> Handle {
        let size = self.backend.live().size();
        Handle::open(&self.bdi, Arc::clone(&self.backend) as _, size)
    }
}

/// Writes, makes durable and reads again twice the bound, through a watchdog.
fn works(mm: &Arc<Mm>, side: &Side, what: &str) {
    let file = side.open();
    let state = {
        let (mm, faults, what) = (Arc::clone(mm), side.faults.clone(), what.to_owned());
        move || format!("{what}: {:#?}\n{}", mm.stats(), faults.trace_text(10))
    };
    within(PATIENCE, state, move || {
        for pos in (0..2 * LIMIT).step_by(CHUNK) {
            file.write(pos, &Fill(8).bytes(pos, CHUNK));
            if pos % (4 * MIB) == 0 {
                file.fsync().expect("the healthy one");
            }
        }
        file.fsync().expect("the healthy one");
        for pos in (0..2 * LIMIT).step_by(CHUNK) {
            assert!(
                file.read(pos, CHUNK) == Fill(8).bytes(pos, CHUNK),
                "at {pos}"
            );
        }
    });
}

#[test]
fn a_store_that_hangs_stops_only_its_own_writers() {
    let mm = cache(LIMIT);
    let (dead, healthy) = (Side::new(&mm, "dead"), Side::new(&mm, "healthy"));
    dead.faults.add(Rule::new(OpSet::CHANGES, Effect::Hang));
    let file = dead.open();
    let writer = std::thread::spawn(move || {
        for pos in (0..LIMIT).step_by(CHUNK) {
            file.write(pos, &Fill(4).bytes(pos, CHUNK));
        }
        file
    });
    assert!(dead.faults.wait_hung(1, PATIENCE), "writeback began");
    works(&mm, &healthy, "beside a store that hangs");
    assert!(
        !writer.is_finished(),
        "the dead store's writer took the whole bound"
    );
    assert!(mm.usage().total_bytes() <= LIMIT);
    dead.faults.heal();
    let state = {
        let (mm, faults) = (Arc::clone(&mm), dead.faults.clone());
        move || format!("{:#?}\n{}", mm.stats(), faults.trace_text(10))
    };
    let file = within(PATIENCE, state, move || {
        let file = writer.join().expect("no panic");
        file.fsync().expect("well again");
        file
    });
    let durable = dead.backend.durable();
    assert_eq!(durable.size(), LIMIT);
    for pos in (0..LIMIT).step_by(CHUNK) {
        assert!(
            durable.read_vec(pos, CHUNK) == Fill(4).bytes(pos, CHUNK),
            "at {pos}"
        );
        assert!(
            file.read(pos, CHUNK) == Fill(4).bytes(pos, CHUNK),
            "at {pos}"
        );
    }
}

#[test]
fn a_store_whose_reads_hang_stops_only_its_own_readers() {
    let mm = cache(LIMIT);
    let (dead, healthy) = (Side::new(&mm, "dead"), Side::new(&mm, "healthy"));
    let file = dead.open();
    file.write(0, &Fill(4).bytes(0, 8 * CHUNK));
    file.fsync().expect("no fault yet");
    drop(file);
    dead.faults.add(Rule::new(OpSet::READ, Effect::Hang));
    let readers: Vec<_> = (0..4)
        .map(|i| {
            let file = dead.open();
            std::thread::spawn(move || file.read(i * CHUNK as u64, CHUNK))
        })
        .collect();
    assert!(dead.faults.wait_hung(4, PATIENCE), "each of the readers");
    works(&mm, &healthy, "beside a store whose reads hang");
    dead.faults.heal();
    for (i, reader) in readers.into_iter().enumerate() {
        let expected = Fill(4).bytes((i * CHUNK) as u64, CHUNK);
        assert!(reader.join().expect("no panic") == expected);
    }
}

/// Writes until the stored error comes back; returns how many bytes were taken.
fn write_until_refused(file: Handle, mm: &Arc<Mm>, faults: &Faults) -> (Handle, u64, Errno) {
    let state = {
        let (mm, faults) = (Arc::clone(mm), faults.clone());
        move || {
            format!(
                "never refused: {:#?}\n{}",
                mm.stats(),
                faults.trace_text(10)
            )
        }
    };
    within(PATIENCE, state, move || {
        let mut pos = 0;
        loop {
            match file.try_write(pos, &Fill(6).bytes(pos, CHUNK)) {
                Ok(written) => pos += written as u64,
                Err(error) => return (file, pos, error),
            }
            assert!(
                pos <= 64 * LIMIT,
                "writes without end to a store that takes none"
            );
        }
    })
}

#[test]
fn a_store_that_always_fails_gets_its_error_back_past_the_cap() {
    for cause in [Errno::EIO, Errno::ENOSPC] {
        let mm = cache(LIMIT);
        let (dead, healthy) = (Side::new(&mm, "dead"), Side::new(&mm, "healthy"));
        dead.faults
            .add(Rule::new(OpSet::WRITE, Effect::Fail(cause)));
        let (file, taken, errno) = write_until_refused(dead.open(), &mm, &dead.faults);
        assert_eq!(errno, cause);
        assert!(
            taken <= LIMIT / 2,
            "took {taken} bytes of a bound of {LIMIT}"
        );
        works(&mm, &healthy, "beside a store that always fails");
        // All accepted bytes are still there.
        let again = Fill(6).bytes(0, taken as usize);
        assert!(file.read(0, again.len()) == again);

        let error = file.fsync().expect_err("nothing was written");
        assert_eq!(error, cause);
        let before = mm.stats().files.failed_pages;
        assert!(before > 0);
        file.mapping.discard_failed();
        let settled = eventually(Duration::from_secs(20), || {
            mm.stats().files.failed_pages == 0
        });
        assert!(settled, "{:#?}", mm.stats());
        dead.faults.heal();
        let file = dead.open();
        file.write(0, &Fill(7).bytes(0, 10 * PAGE));
        assert!(
            (0..3).any(|_| file.fsync().is_ok()),
            "the file system works again"
        );
    }
}

/// The same while another file system always has dirty data, so that the failing one's share of the
/// dirty limit is half as large: the error must still come.
#[test]
fn a_failing_store_is_refused_also_where_its_share_is_small() {
    let mm = cache(LIMIT);
    let (dead, hung) = (Side::new(&mm, "dead"), Side::new(&mm, "hung"));
    hung.faults.add(Rule::new(OpSet::CHANGES, Effect::Hang));
    let busy = hung.open();
    busy.write(0, b"dirty for ever");
    dead.faults
        .add(Rule::new(OpSet::WRITE, Effect::Fail(Errno::EIO)));
    let (file, _, errno) = write_until_refused(dead.open(), &mm, &dead.faults);
    assert_eq!(errno, Errno::EIO);
    hung.faults.heal();
    file.mapping.discard_failed();
}

/// Each took its share when there were fewer to share with; together they must not take all.
#[test]
fn many_stores_that_hang_leave_the_others_room() {
    let mm = cache(LIMIT);
    let dead: Vec<Side> = (0..5)
        .map(|i| Side::new(&mm, &format!("dead {i}")))
        .collect();
    let writers: Vec<_> = dead
        .iter()
        .map(|side| {
            side.faults.add(Rule::new(OpSet::CHANGES, Effect::Hang));
            let file = side.open();
            let writer = std::thread::spawn(move || {
                for pos in (0..LIMIT).step_by(CHUNK) {
                    file.write(pos, &Fill(4).bytes(pos, CHUNK));
                }
                file.fsync().expect("well again");
            });
            assert!(side.faults.wait_hung(1, PATIENCE), "writeback began");
            writer
        })
        .collect();
    works(&mm, &Side::new(&mm, "healthy"), "beside five that hang");
    assert!(mm.usage().total_bytes() <= LIMIT);
    for side in &dead {
        side.faults.heal();
    }
    let state = {
        let mm = Arc::clone(&mm);
        move || format!("{:#?}", mm.stats())
    };
    within(PATIENCE, state, move || {
        for writer in writers {
            writer.join().expect("no panic");
        }
    });
}

/// Each hung operation holds one folio, each in a different block; the other blocks can be given back, and are,
/// though the blocks with a hung folio are the emptiest.
#[test]
fn memory_of_hung_operations_is_skipped_when_blocks_are_given_back() {
    const HUNG: usize = 4;
    let mm = cache(4 * LIMIT);
    let (reads, writes) = (Side::new(&mm, "reads hang"), Side::new(&mm, "writes hang"));
    let healthy = Side::new(&mm, "healthy");
    let filler = healthy.open();
    filler.mapping.truncate(8 * LIMIT).expect("a size");
    let file = reads.open();
    file.write(0, &Fill(4).bytes(0, HUNG * CHUNK));
    file.fsync().expect("no fault yet");
    drop(file);
    reads.faults.add(Rule::new(OpSet::READ, Effect::Hang));
    writes.faults.add(Rule::new(OpSet::CHANGES, Effect::Hang));
    let readers: Vec<_> = (0..HUNG)
        .map(|i| {
            let file = reads.open();
            let reader = std::thread::spawn(move || file.read((i * CHUNK) as u64, CHUNK));
            assert!(reads.faults.wait_hung(i as u64 + 1, PATIENCE), "the reader");
            filler.read(i as u64 * 8 * MIB, 8 << 20);
            reader
        })
        .collect();
    let file = writes.open();
    file.write(0, &Fill(5).bytes(0, CHUNK));
    let writer = std::thread::spawn(move || file.fsync());
    assert!(writes.faults.wait_hung(1, PATIENCE), "the writer");
    // Page by page at random, so that no block becomes free because all its pages are old.
    let pages = 8 * LIMIT / PAGE as u64;
    for number in 0..pages {
        filler.read(number * 40_503 % pages * PAGE as u64, PAGE);
    }

    let limit = LIMIT + LIMIT / 2;
    let state = {
        let mm = Arc::clone(&mm);
        move || format!("{:#?}", mm.usage())
    };
    let shrinks = Arc::clone(&mm);
    let figures = within(PATIENCE, state, move || {
        shrinks.set_limit(limit).expect("a limit in range");
        while shrinks.usage().total_bytes() > limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        shrinks.stats()
    });
    assert!(figures.blocks_skipped > 0, "{figures:#?}");
    works(&mm, &healthy, "beside hung stores, after a shrink");
    assert!(mm.usage().total_bytes() <= limit, "{:#?}", mm.usage());

    reads.faults.heal();
    writes.faults.heal();
    for (i, reader) in readers.into_iter().enumerate() {
        let expected = Fill(4).bytes((i * CHUNK) as u64, CHUNK);
        assert!(reader.join().expect("no panic") == expected);
    }
    writer.join().expect("no panic").expect("well again");
}
