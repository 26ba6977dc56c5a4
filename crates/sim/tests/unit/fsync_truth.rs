//! The results of fsync, and the fate of data that could not be written: the rules of
//! `docs/semantics.md` on errors, each through a backend that fails on demand.

use std::time::Duration;

use crate::common::{Handle, Healing, MIB, PAGE, PATIENCE, cache, eventually, storage};
use foliocache_mm::{BackingDevInfo, Mm};
use foliocache_sim::{Effect, Faults, FaultyBackend, Fill, Lost, OpSet, Rule};
use foliocache_sync::Arc;
use foliocache_sys::Errno;

struct Setup {
    mm: Arc<Mm>,
    bdi: Arc<BackingDevInfo>,
    faults: Faults,
    backend: Arc<FaultyBackend>,
    file: Handle,
}

fn setup(limit: u64) -> Setup {
    let mm = cache(limit);
    let bdi = storage(&mm, "faulty");
    let faults = Faults::new(1);
    let backend = FaultyBackend::new("file", &faults);
    let file = Handle::open(&bdi, Arc::clone(&backend) as _, 0);
    Setup {
        mm,
        bdi,
        faults,
        backend,
        file,
    }
}

impl Setup {
    fn fail(&self, on: OpSet, errno: Errno) {
        self.faults.add(Rule::new(on, Effect::Fail(errno)));
    }

    /// Another handle, opened now.
    fn open(&self) -> Handle {
        Handle::of(&self.file.mapping)
    }

    fn expect_on_medium(&self, pos: u64, bytes: &[u8]) {
        let found = self.backend.power_cut(5).read_vec(pos, bytes.len());
        assert!(
            found == bytes,
            "on the medium after a power cut\n{}",
            self.faults.trace_text(30)
        );
    }
}

/// The error number of an fsync.
fn errno(handle: &Handle) -> Option<Errno> {
    handle.fsync().err()
}

const FILL: Fill = Fill(77);

#[test]
fn an_error_is_told_once_to_every_handle_open_at_the_time() {
    for cause in [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT] {
        let s = setup(16 * MIB);
        let other = s.open();
        let data = FILL.bytes(0, 10 * PAGE);
        s.file.write(0, &data);
        s.fail(OpSet::WRITE, cause);
        assert_eq!(errno(&s.file), Some(cause));
        let opened_while_failed = s.open();
        s.faults.heal();
        assert_eq!(errno(&s.file), None, "told already, and it works now");
        s.expect_on_medium(0, &data);
        let opened_after = s.open();
        assert_eq!(errno(&other), Some(cause), "was open when it happened");
        assert_eq!(errno(&other), None, "told once");
        assert_eq!(
            errno(&opened_while_failed),
            Some(cause),
            "the failed folios were there when it was opened"
        );
        assert_eq!(errno(&opened_while_failed), None, "told once");
        assert_eq!(errno(&opened_after), None, "nothing failed in its time");
    }
}

#[test]
fn an_fsync_that_fails_again_says_so_again() {
    let s = setup(16 * MIB);
    s.file.write(0, b"never written anywhere");
    s.fail(OpSet::WRITE, Errno::EIO);
    for _ in 0..5 {
        assert_eq!(
            errno(&s.file),
            Some(Errno::EIO),
            "the data is still not durable"
        );
    }
    let late = s.open();
    assert_eq!(errno(&late), Some(Errno::EIO));
    assert_eq!(s.backend.live().size(), 0);
}

#[test]
fn failed_data_stays_readable_and_lands_without_being_asked_again() {
    let s = setup(16 * MIB);
    let data = FILL.bytes(0, 100 * PAGE + 123);
    s.file.write(0, &data);
    s.fail(OpSet::WRITE, Errno::ENOSPC);
    assert_eq!(errno(&s.file), Some(Errno::ENOSPC));
    assert!(
        s.file.mapping.stats().failed_pages > 0,
        "{:?}",
        s.file.mapping.stats()
    );
    assert!(s.file.read(0, data.len()) == data);
    s.faults.heal();
    let landed = eventually(PATIENCE, || {
        s.backend.durable().read_vec(0, data.len()) == data
    });
    assert!(
        landed,
        "the flusher tries again\n{}",
        s.faults.trace_text(20)
    );
    let settled = eventually(PATIENCE, || {
        s.file.mapping.stats().failed_pages == 0 && s.bdi.error().is_none()
    });
    assert!(settled, "{:?} {:?}", s.file.mapping.stats(), s.bdi.error());
}

#[test]
fn one_bad_spot_does_not_keep_the_rest_from_the_medium() {
    let s = setup(16 * MIB);
    let data = FILL.bytes(0, 64 * PAGE);
    s.file.write(0, &data);
    let spot = 20 * PAGE..21 * PAGE;
    let bad = spot.start as u64..spot.end as u64;
    s.faults
        .add(Rule::new(OpSet::WRITE, Effect::Fail(Errno::EIO)).range(bad));
    let others_landed = eventually(PATIENCE, || {
        assert_eq!(errno(&s.file), Some(Errno::EIO));
        let found = s.backend.live().read_vec(0, data.len());
        found.len() == data.len()
            && found[..spot.start] == data[..spot.start]
            && found[spot.end..] == data[spot.end..]
    });
    // A write that touches the spot fails as a whole; data merged with it may wait for a retry in
    // smaller pieces, but not for ever.
    assert!(others_landed, "\n{}", s.faults.trace_text(20));
    s.faults.heal();
    assert!((0..3).any(|_| errno(&s.file).is_none()));
    s.expect_on_medium(0, &data);
}

#[test]
fn short_writes_are_finished() {
    for most in [0, 1, 511, 4096, 10_000] {
        let s = setup(16 * MIB);
        let data = FILL.bytes(0, 40 * PAGE + 77);
        s.file.write(0, &data);
        let rule = s
            .faults
            .add(Rule::new(OpSet::WRITE, Effect::ShortTo(most)).times(7));
        let mut failures = 0;
        while let Err(error) = s.file.fsync() {
            failures += 1;
            assert!(failures < 200, "shortened to {most}: {error}");
            assert!(s.file.read(0, data.len()) == data);
        }
        assert!(s.faults.fired(rule).is_some_and(|times| times > 0));
        s.expect_on_medium(0, &data);
    }
}

#[test]
fn a_failed_flush_makes_everything_unflushed_dirty_again() {
    for lost in [Lost::Nothing, Lost::Data, Lost::DataAndLive] {
        let s = setup(16 * MIB);
        let old = Fill(1).bytes(0, 64 * PAGE);
        s.file.write(0, &old);
        s.file.fsync().expect("no fault yet");
        let new = Fill(2).bytes(0, 64 * PAGE);
        s.file.write(0, &new);
        s.faults
            .add(Rule::new(OpSet::FLUSH, Effect::Lose(Errno::EIO, lost)));
        assert_eq!(errno(&s.file), Some(Errno::EIO), "{lost:?}");
        let stats = s.file.mapping.stats();
        assert_eq!(
            stats.dirty_pages + stats.writeback_pages + stats.unstable_pages,
            64,
            "{lost:?}: nothing became clean: {stats:?}"
        );
        assert!(s.file.read(0, new.len()) == new, "{lost:?}");
        s.faults.heal();
        // The flusher may have had its try and its failure between the two calls.
        assert!((0..3).any(|_| errno(&s.file).is_none()), "{lost:?}");
        s.expect_on_medium(0, &new);
        assert!(s.file.read(0, new.len()) == new, "{lost:?}");
    }
}

/// A folio that was written back and is written to again is dirty in part; after a failed flush all
/// of it is.
#[test]
fn a_failed_flush_makes_all_of_a_folio_dirty_of_which_a_part_was() {
    let s = setup(16 * MIB);
    let mut bytes = Fill(1).bytes(0, 64 * PAGE);
    s.file.write(0, &bytes);
    s.file.mapping.fdatawrite();
    let again = 3 * PAGE..4 * PAGE;
    bytes[again.clone()].copy_from_slice(&Fill(2).bytes(again.start as u64, PAGE));
    s.file.write(again.start as u64, &bytes[again]);
    let lost = Effect::Lose(Errno::EIO, Lost::DataAndLive);
    s.faults.add(Rule::new(OpSet::FLUSH, lost));
    assert_eq!(s.file.mapping.flush_written(), Err(Errno::EIO));
    s.faults.heal();
    // The handle gets the failure, perhaps after the flusher's attempt.
    assert!((0..3).any(|_| errno(&s.file).is_none()));
    s.expect_on_medium(0, &bytes);
}

/// Writes and reads five times the bound of `setup(8 * MIB)` through another, healthy file system.
fn press(mm: &Arc<Mm>) {
    let bdi = storage(mm, "healthy");
    let backend = FaultyBackend::new("other", &Faults::new(2));
    let other = Handle::open(&bdi, Arc::clone(&backend) as _, 0);
    let len = 256 << 10;
    for at in (0..40 * MIB).step_by(len) {
        other.write(at, &Fill(5).bytes(at, len));
    }
    for at in (0..40 * MIB).step_by(len) {
        assert!(
            other.read(at, len) == Fill(5).bytes(at, len),
            "the other file at {at}"
        );
    }
    assert!(other.mapping.stats().evicted_pages > 0);
}

/// Between the end of a write and the end of the flush that follows, only the cache is sure to have
/// the data: memory may be as short as it likes, the folios stay.
#[test]
fn nothing_is_evicted_while_its_flush_is_under_way() {
    let s = setup(8 * MIB);
    let old = Fill(1).bytes(0, 100 * PAGE);
    s.file.write(0, &old);
    s.file.fsync().expect("no fault yet");
    // Out of the cache, so that the next write is the first use: nothing but their state keeps the
    // folios, which stand first in the queue.
    s.file.mapping.invalidate(0, u64::MAX);
    assert_eq!(s.file.mapping.nr_pages(), 0);
    let new = Fill(2).bytes(0, 100 * PAGE);
    s.file.write(0, &new);
    s.faults.add(Rule::new(OpSet::FLUSH, Effect::Hang).times(1));
    let lose = Effect::Lose(Errno::EIO, Lost::DataAndLive);
    s.faults.add(Rule::new(OpSet::FLUSH, lose).times(1));
    std::thread::scope(|scope| {
        let _healing = Healing(s.faults.clone());
        let fsync = scope.spawn(|| errno(&s.file));
        assert!(s.faults.wait_hung(1, PATIENCE));
        let stats = s.file.mapping.stats();
        assert_eq!(
            (stats.unstable_pages, stats.dirty_pages),
            (100, 0),
            "{stats:?}"
        );
        press(&s.mm);
        let stats = s.file.mapping.stats();
        assert_eq!(
            (stats.unstable_pages, stats.evicted_pages),
            (100, 0),
            "{stats:?}"
        );
        s.faults.release(Ok(()));
        assert_eq!(fsync.join().expect("no panic"), Some(Errno::EIO));
    });
    assert!(
        s.backend.live().read_vec(0, old.len()) == old,
        "the store forgot the write"
    );
    assert!(s.file.read(0, new.len()) == new);
    assert!((0..3).any(|_| errno(&s.file).is_none()));
    s.expect_on_medium(0, &new);
}

/// The store forgets its writes at every flush; only the cache has them. Reading and writing five times the bound
/// must not evict them.
#[test]
fn data_without_a_confirmed_flush_is_never_evicted() {
    let s = setup(8 * MIB);
    let data = FILL.bytes(0, 100 * PAGE);
    let lose = Effect::Lose(Errno::EIO, Lost::DataAndLive);
    s.faults.add(Rule::new(OpSet::FLUSH, lose));
    s.file.write(0, &data);
    assert_eq!(errno(&s.file), Some(Errno::EIO));

    press(&s.mm);
    let stats = s.file.mapping.stats();
    assert_eq!(
        (stats.resident_pages, stats.evicted_pages),
        (100, 0),
        "{stats:?}"
    );
    assert!(s.file.read(0, data.len()) == data);
    s.faults.heal();
    assert!((0..3).any(|_| errno(&s.file).is_none()));
    s.expect_on_medium(0, &data);
}

#[test]
fn attributes_that_cannot_be_written_fail_the_fsync() {
    let s = setup(16 * MIB);
    s.file.write(0, b"data");
    s.fail(OpSet::WRITE_INODE, Errno::EIO);
    assert_eq!(errno(&s.file), Some(Errno::EIO));
    s.faults.heal();
    assert!((0..3).any(|_| errno(&s.file).is_none()));
    s.expect_on_medium(0, b"data");
}

#[test]
fn a_failed_truncate_or_hole_changes_nothing() {
    let s = setup(16 * MIB);
    let data = FILL.bytes(0, 5 * PAGE);
    s.file.write(0, &data);
    s.fail(OpSet::TRUNCATE | OpSet::PUNCH_HOLE, Errno::EIO);
    for size in [0, 100, 3 * PAGE as u64, 9 * PAGE as u64] {
        let error = s.file.mapping.truncate(size).expect_err("it fails");
        assert_eq!(error, Errno::EIO);
    }
    let error = s
        .file
        .mapping
        .punch_hole(10, 2 * PAGE as u64)
        .expect_err("it fails");
    assert_eq!(error, Errno::EIO);
    assert_eq!(s.file.mapping.size(), data.len() as u64);
    assert!(s.file.read(0, data.len() + 1) == data);
    s.faults.heal();
    assert!((0..3).any(|_| errno(&s.file).is_none()));
    s.expect_on_medium(0, &data);
}

#[test]
fn a_failed_read_leaves_nothing_behind() {
    let s = setup(16 * MIB);
    let data = FILL.bytes(0, 50 * PAGE);
    s.file.write(0, &data);
    s.file.fsync().expect("no fault yet");
    // A separate file over the same store: nothing is cached.
    let cold = Handle::open(&s.bdi, Arc::clone(&s.backend) as _, data.len() as u64);
    let spot = 10 * PAGE as u64..11 * PAGE as u64;
    s.faults
        .add(Rule::new(OpSet::READ, Effect::Fail(Errno::EIO)).range(spot));
    let error = cold.try_read(10 * PAGE as u64, 100).expect_err("it fails");
    assert_eq!(error, Errno::EIO);
    assert!(
        cold.read(0, 5 * PAGE) == data[..5 * PAGE],
        "beside the bad spot"
    );
    // A write of a part of the bad page needs its rest.
    let error = cold
        .try_write(10 * PAGE as u64 + 5, b"x")
        .expect_err("it fails");
    assert_eq!(error, Errno::EIO);
    s.faults.heal();
    assert!(cold.read(0, data.len()) == data);
    assert_eq!(errno(&cold), None, "a failed read is no writeback error");
}

#[test]
fn giving_failed_data_up_is_explicit() {
    let s = setup(16 * MIB);
    let old = Fill(1).bytes(0, 8 * PAGE);
    s.file.write(0, &old);
    s.file.fsync().expect("no fault yet");
    s.fail(OpSet::WRITE, Errno::EIO);
    s.file.write(0, &Fill(2).bytes(0, 8 * PAGE));
    assert_eq!(errno(&s.file), Some(Errno::EIO));
    s.file.mapping.discard_failed();
    let stats = s.file.mapping.stats();
    assert_eq!((stats.failed_pages, stats.dirty_pages), (0, 0), "{stats:?}");
    assert!(
        s.file.read(0, old.len()) == old,
        "the medium's content again"
    );
    s.faults.heal();
    errno(&s.file);
    assert_eq!(errno(&s.file), None);
    s.expect_on_medium(0, &old);
}

/// fsync promises the size too, even if no page is left that would carry it: the last pages were
/// punched, or evicted, or the store lost the change of it.
#[test]
fn the_size_is_durable_without_the_pages_that_grew_it() {
    let page = PAGE as u64;
    let expect = |s: &Setup, size: u64| {
        assert!((0..3).any(|_| errno(&s.file).is_none()));
        assert_eq!(
            s.backend.power_cut(1).size(),
            size,
            "\n{}",
            s.faults.trace_text(20)
        );
    };

    let s = setup(16 * MIB);
    s.file.write(0, &FILL.bytes(0, 5 * PAGE));
    s.file
        .mapping
        .punch_hole(3 * page, 2 * page)
        .expect("punch");
    expect(&s, 5 * page);

    let s = setup(16 * MIB);
    s.file.write(0, &FILL.bytes(0, PAGE));
    s.file.fsync().expect("no fault yet");
    s.file
        .write(3 * page, &FILL.bytes(3 * page, 3 * PAGE + 100));
    s.fail(OpSet::WRITE, Errno::EIO);
    assert_eq!(errno(&s.file), Some(Errno::EIO));
    s.file.mapping.discard_failed();
    s.faults.heal();
    assert_eq!(s.file.mapping.size(), 6 * page + 100);
    expect(&s, 6 * page + 100);

    for size in [page, 9 * page + 1] {
        let s = setup(16 * MIB);
        s.file.write(0, &FILL.bytes(0, 4 * PAGE));
        s.file.fsync().expect("no fault yet");
        s.file.mapping.truncate(size).expect("truncate");
        s.faults
            .add(Rule::new(OpSet::FLUSH, Effect::Lose(Errno::EIO, Lost::Everything)).times(1));
        assert_eq!(errno(&s.file), Some(Errno::EIO));
        expect(&s, size);
    }
}

/// The stored error of a file system is the failed file's, whatever its neighbours achieve.
#[test]
fn success_of_another_file_does_not_hide_a_failure() {
    let s = setup(16 * MIB);
    s.fail(OpSet::WRITE, Errno::ENOSPC);
    s.file.write(0, &FILL.bytes(0, 10 * PAGE));
    assert_eq!(errno(&s.file), Some(Errno::ENOSPC));
    let healthy = FaultyBackend::new("healthy", &Faults::new(2));
    let other = Handle::open(&s.bdi, Arc::clone(&healthy) as _, 0);
    other.write(0, &FILL.bytes(0, 10 * PAGE));
    assert_eq!(errno(&other), None);
    assert_eq!(s.bdi.error(), Some(Errno::ENOSPC));
    s.faults.heal();
    assert_eq!(errno(&s.file), None);
    assert_eq!(s.bdi.error(), None);
}

/// An fsync waits for a write that is under way, and one that began before newer data came does not
/// promise that.
#[test]
fn an_fsync_covers_all_earlier_writes() {
    let s = setup(16 * MIB);
    s.file.write(0, &FILL.bytes(0, 4 * PAGE));
    s.faults.add(Rule::new(OpSet::WRITE, Effect::Hang).times(1));
    std::thread::scope(|scope| {
        let _healing = Healing(s.faults.clone());
        let first = scope.spawn(|| errno(&s.file));
        assert!(s.faults.wait_hung(1, PATIENCE));
        let second = s.open();
        let second = scope.spawn(move || errno(&second));
        std::thread::sleep(Duration::from_millis(50));
        assert!(
            !first.is_finished() && !second.is_finished(),
            "the write is not done"
        );
        assert_eq!(s.backend.durable().size(), 0);
        s.faults.heal();
        assert_eq!(first.join().expect("no panic"), None);
        assert_eq!(second.join().expect("no panic"), None);
    });
    s.expect_on_medium(0, &FILL.bytes(0, 4 * PAGE));
}
