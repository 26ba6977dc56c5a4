//! One write and one flush for a group, its errors, panics of the store, gathering.

use super::*;
use crate::iocb::Iocb;
use crate::iov::IovIter;
use crate::ops::{AddressSpaceOperations, IoSegment};
use crate::records::{AddressSpace, BackingDevInfo, BdiKind, Mm, MmConfig};
use crate::slab::SlabArc;
use crate::types::PAGE_SIZE;
use foliocache_sync::atomic::{AtomicU32, Ordering};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

const PAGE: u64 = PAGE_SIZE as u64;

/// A store that keeps nothing, and whose flushes end as the test says.
struct Gated {
    writes: AtomicU32,
    flushes: AtomicU32,
    ends: Mutex<Receiver<Result<(), Errno>>>,
}

impl AddressSpaceOperations for Gated {
    fn read_folios(&self, _: u64, _: &[IoSegment<'_>]) -> Result<usize, Errno> {
        Ok(0)
    }

    fn writepages(&self, _: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Ok(segments.iter().map(IoSegment::len).sum())
    }

    fn flush(&self) -> Result<(), Errno> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        // A sender that is gone lets every flush succeed.
        let end = self.ends.lock().recv().unwrap_or(Ok(()));
        assert!(end != Err(Errno::EFAULT), "the test has it panic");
        end
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn describe(&self) -> String {
        "a store whose flushes are gated".into()
    }
}

/// A file whose flusher does not run.
struct Bed {
    file: SlabArc<AddressSpace>,
    store: Arc<Gated>,
    _bdi: Arc<BackingDevInfo>,
}

type Sync = JoinHandle<Result<(), Errno>>;

impl Bed {
    fn new() -> (Bed, Sender<Result<(), Errno>>) {
        let mut config = MmConfig::new(64 << 20);
        config.external_pressure = false;
        let mm = Mm::new(config).unwrap();
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).unwrap();
        bdi.stop();
        let (end, ends) = channel();
        let store = Arc::new(Gated {
            writes: AtomicU32::new(0),
            flushes: AtomicU32::new(0),
            ends: Mutex::new(ends),
        });
        let file = AddressSpace::new(&bdi, Arc::clone(&store) as Arc<_>, 8 * PAGE);
        let bed = Bed {
            file,
            store,
            _bdi: bdi,
        };
        (bed, end)
    }

    fn counts(&self) -> (u32, u32) {
        let load = |count: &AtomicU32| count.load(Ordering::Relaxed);
        (load(&self.store.writes), load(&self.store.flushes))
    }

    fn write(&self, pages: Range<u64>) {
        let bytes = vec![9; (pages.end - pages.start) as usize * PAGE_SIZE];
        let mut at = Iocb::at(pages.start * PAGE);
        let done = self.file.write(&mut at, &mut IovIter::source(&bytes));
        assert_eq!(done.unwrap(), bytes.len());
    }

    /// Dirties a page and syncs the file, without a handle's cursor: the attempt alone tells.
    fn sync(&self, page: u64) -> Sync {
        self.write(page..page + 1);
        let file = self.file.share();
        std::thread::spawn(move || file.sync())
    }

    fn wait_until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is(self) {
            assert!(start.elapsed() < Duration::from_secs(60), "no {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn groups(&self) -> &Groups {
        self.file.groups.get_or_init(Groups::default)
    }

    fn members(&self) -> u32 {
        self.groups().state.lock().members
    }

    /// A flush runs, and a group of four waits for it.
    fn with_a_group() -> (Bed, Sender<Result<(), Errno>>, Sync, Vec<Sync>) {
        let (bed, end) = Bed::new();
        let first = bed.sync(0);
        bed.wait_until("first flush", |bed| bed.counts() == (1, 1));
        let members = (1..=4).map(|page| bed.sync(page)).collect();
        bed.wait_until("group", |bed| bed.members() == 4);
        assert_eq!(bed.counts(), (1, 1), "the group waits for the flush");
        (bed, end, first, members)
    }
}

#[test]
fn fsyncs_that_wait_share_one_write_and_one_flush() {
    let (bed, end, first, members) = Bed::with_a_group();
    end.send(Ok(())).unwrap();
    first.join().unwrap().unwrap();
    bed.wait_until("second flush", |bed| bed.counts().1 == 2);
    let waits = |member: &Sync| !member.is_finished();
    assert!(members.iter().all(waits), "nobody returns before the flush");
    end.send(Ok(())).unwrap();
    for member in members {
        member.join().unwrap().unwrap();
    }
    // The pages of the group are neighbours.
    assert_eq!(bed.counts(), (2, 2));
    assert!(!bed.file.is_dirty());
}

/// A large folio counts as dirty whole when one of its pages is.
#[test]
fn records_in_a_large_folio_share_one_write_and_one_flush() {
    let (bed, end) = Bed::new();
    bed.write(0..2 * MOST_PAGES);
    for record in 0..2 {
        end.send(Ok(())).unwrap();
        bed.sync(record).join().unwrap().unwrap();
    }
    let (writes, flushes) = bed.counts();
    let first = bed.sync(0);
    let running = (writes + 1, flushes + 1);
    bed.wait_until("flush", |bed| bed.counts() == running);
    // On both sides of the border of two folios, and neighbours.
    let members: Vec<_> = (62..=65).map(|page| bed.sync(page)).collect();
    assert!(bed.file.stats().dirty_pages > MOST_PAGES);
    bed.wait_until("group", |bed| bed.members() == 4);
    assert_eq!(bed.counts(), running);
    drop(end);
    for member in members.into_iter().chain([first]) {
        member.join().unwrap().unwrap();
    }
    assert_eq!(bed.counts(), (writes + 2, flushes + 2));
}

#[test]
fn error_of_a_group_is_told_to_each_member_and_to_nobody_else() {
    let (bed, end, first, members) = Bed::with_a_group();
    end.send(Ok(())).unwrap();
    first.join().unwrap().unwrap();
    end.send(Err(Errno::ENOSPC)).unwrap();
    for member in members {
        assert_eq!(member.join().unwrap().unwrap_err(), Errno::ENOSPC);
    }
    assert_eq!(bed.file.stats().failed_pages, 4, "they stay dirty");
    drop(end);
    bed.sync(5).join().unwrap().unwrap();
    assert!(!bed.file.is_dirty());
}

#[test]
fn a_panic_of_the_store_is_an_error_of_its_group_and_the_next_one_goes_on() {
    let (bed, end, first, members) = Bed::with_a_group();
    end.send(Ok(())).unwrap();
    first.join().unwrap().unwrap();
    bed.wait_until("second flush", |bed| bed.counts().1 == 2);
    let late = bed.sync(5);
    bed.wait_until("third group", |bed| bed.members() == 1);
    end.send(Err(Errno::EFAULT)).unwrap();
    drop(end);
    let ends: Vec<_> = members.into_iter().map(Sync::join).collect();
    assert_eq!(ends.iter().filter(|end| end.is_err()).count(), 1, "a panic");
    for told in ends.into_iter().flatten() {
        assert_eq!(told, Err(Errno::EIO));
    }
    late.join().unwrap().unwrap();
    assert!(!bed.file.is_dirty());
}

#[test]
fn a_lone_leader_does_not_gather_and_a_vain_gather_is_not_repeated() {
    let (bed, end) = Bed::new();
    drop(end);
    let expected = || bed.groups().state.lock().expected;
    for page in 0..3 {
        bed.sync(page).join().unwrap().unwrap();
        assert_eq!(expected(), 1);
    }
    bed.groups().state.lock().expected = 4;
    bed.sync(3).join().unwrap().unwrap();
    assert_eq!(expected(), 1);
}

/// Two callers in turn, each of which takes longer than the window between two records: each group has one member, and
/// the next has come by its end.
#[test]
fn leaders_gather_less_often_after_they_gathered_in_vain() {
    let groups = Groups::default();
    let mut gathered = 0;
    for _ in 0..1000 {
        groups.state.lock().expected = 2;
        let may = groups.state.lock().skip == 0;
        gathered += u32::from(may);
        groups.run(|| Ok(())).unwrap();
    }
    assert!(gathered < 20, "{gathered} of 1,000 groups gathered");
    // Company comes back: a group that is complete does not count as vain.
    groups.state.lock().skip = 0;
    for _ in 0..3 {
        let mut state = groups.state.lock();
        (state.expected, state.members) = (2, 1);
        drop(state);
        groups.run(|| Ok(())).unwrap();
        assert_eq!(groups.state.lock().skip, 0);
    }
}
