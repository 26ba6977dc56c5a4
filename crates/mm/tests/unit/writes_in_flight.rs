//! Dirty pages that lie apart are handed to the store together, which may write them in any order.

use crate::common::{Store, pattern, read, storage, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, Extent, IoSegment, Mm, PAGE_SIZE, SlabArc,
};
use foliocache_sys::Errno;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

const PAGE: u64 = PAGE_SIZE as u64;

/// A step in the middle of the extents that are handed over together.
type Middle = Box<dyn FnMut() + Send>;

/// A store that writes the last extent first.
#[derive(Default)]
struct Together {
    store: Store,
    /// How many extents each call had.
    calls: Mutex<Vec<usize>>,
    /// Pages whose write fails.
    bad: Mutex<HashSet<u64>>,
    /// Pages of each extent that are written at most.
    most: Mutex<Option<usize>>,
    middle: Mutex<Option<Middle>>,
    writing: AtomicBool,
}

impl AddressSpaceOperations for Together {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.store.read_folios(pos, segments)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let bytes: usize = segments.iter().map(IoSegment::len).sum();
        let pages = pos / PAGE..(pos + bytes as u64).div_ceil(PAGE);
        if self
            .bad
            .lock()
            .unwrap()
            .iter()
            .any(|bad| pages.contains(bad))
        {
            return Err(Errno::EIO);
        }
        match *self.most.lock().unwrap() {
            Some(most) if most < segments.len() => self.store.writepages(pos, &segments[..most]),
            _ => self.store.writepages(pos, segments),
        }
    }

    fn write_extents(&self, extents: &mut [Extent<'_>]) {
        self.calls.lock().unwrap().push(extents.len());
        self.writing.store(true, Ordering::SeqCst);
        let half = extents.len() / 2;
        for (nr, extent) in extents.iter_mut().enumerate().rev() {
            if nr == half
                && let Some(middle) = &mut *self.middle.lock().unwrap()
            {
                middle();
            }
            extent.written = Some(self.writepages(extent.pos, extent.segments()));
        }
        self.writing.store(false, Ordering::SeqCst);
    }

    fn flush(&self) -> Result<(), Errno> {
        assert!(!self.writing.load(Ordering::SeqCst), "flushed too early");
        self.store.flush()
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        assert!(
            !self.writing.load(Ordering::SeqCst),
            "cut while it is written"
        );
        self.store.truncate(size)
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.store.punch_hole(pos, len)
    }

    fn describe(&self) -> String {
        "a store that writes together".into()
    }
}

struct Case {
    _mm: Arc<Mm>,
    _bdi: Arc<BackingDevInfo>,
    store: Arc<Together>,
    file: SlabArc<AddressSpace>,
}

/// A file of `pages` zeros.
fn case(pages: u64) -> Case {
    let (mm, bdi) = storage(64);
    let store = Arc::new(Together::default());
    let size = pages * PAGE;
    store.store.bytes.lock().unwrap().resize(size as usize, 0);
    let file = AddressSpace::new(&bdi, store.clone(), size);
    Case {
        _mm: mm,
        _bdi: bdi,
        store,
        file,
    }
}

fn content(page: u64) -> Vec<u8> {
    pattern(7, page * PAGE, PAGE_SIZE)
}

/// Makes every second page dirty.
fn dirty_every_second(case: &Case, pages: u64) {
    for page in (0..pages).step_by(2) {
        write(&case.file, page * PAGE, &content(page));
    }
}

fn assert_stored(case: &Case, pages: u64) {
    let bytes = case.store.store.content();
    for page in 0..pages {
        let at = (page * PAGE) as usize;
        let expected = match page % 2 {
            0 => content(page),
            _ => vec![0; PAGE_SIZE],
        };
        assert!(bytes[at..at + PAGE_SIZE] == expected, "page {page}");
    }
}

#[test]
fn pages_that_lie_apart_are_written_together() {
    let case = case(2_000);
    dirty_every_second(&case, 2_000);
    case.file.sync().unwrap();
    assert_stored(&case, 2_000);
    let calls = case.store.calls.lock().unwrap();
    assert_eq!(calls.iter().sum::<usize>(), 1_000, "{calls:?}");
    assert!(calls.len() <= 1_000 / 100, "{calls:?}");
    assert_eq!(case.file.bytes_not_durable(), 0);
}

#[test]
fn an_error_in_the_middle_leaves_its_pages_alone_dirty() {
    let case = case(200);
    dirty_every_second(&case, 200);
    case.store.bad.lock().unwrap().extend([40, 100, 102, 198]);
    assert_eq!(case.file.sync(), Err(Errno::EIO));
    let failed = case.file.failed_ranges();
    let page = |page: u64| page * PAGE..(page + 1) * PAGE;
    assert_eq!(failed, [page(40), page(100), page(102), page(198)]);
    assert_eq!(case.file.writeback_error(), Some(Errno::EIO));
    case.store.bad.lock().unwrap().clear();
    case.file.sync().unwrap();
    assert_stored(&case, 200);
    assert_eq!(case.file.failed_ranges(), []);
    assert_eq!(case.file.bytes_not_durable(), 0);
}

#[test]
fn what_a_short_count_leaves_out_is_written_again() {
    let case = case(300);
    // Runs of two pages, whose frames may lie apart, and a page between.
    let pages: Vec<u64> = (0..300).filter(|page| page % 3 < 2).collect();
    for &page in pages.iter().rev() {
        write(&case.file, page * PAGE, &content(page));
    }
    *case.store.most.lock().unwrap() = Some(1);
    case.file.sync().unwrap();
    let bytes = case.store.store.content();
    for page in pages {
        let at = (page * PAGE) as usize;
        assert!(bytes[at..at + PAGE_SIZE] == content(page), "page {page}");
    }
    assert_eq!(case.file.bytes_not_durable(), 0);
}

#[test]
fn a_page_that_is_stored_to_while_it_is_written_is_written_again() {
    let case = case(200);
    dirty_every_second(&case, 200);
    let file = SlabArc::downgrade(&case.file);
    let first = content(0);
    *case.store.middle.lock().unwrap() = Some(Box::new(move || {
        let file = file.upgrade().expect("it is being written");
        // One that the store has written, and one that it has not.
        for page in [10, 190] {
            write(&file, page * PAGE, &vec![b'n'; PAGE_SIZE]);
        }
        assert_eq!(read(&file, 0, PAGE_SIZE), first);
    }));
    case.file.sync().unwrap();
    *case.store.middle.lock().unwrap() = None;
    assert!(
        case.file.bytes_not_durable() > 0,
        "what was stored is not durable"
    );
    case.file.sync().unwrap();
    let bytes = case.store.store.content();
    for page in [10, 190] {
        let at = (page * PAGE) as usize;
        assert!(bytes[at..at + PAGE_SIZE].iter().all(|&byte| byte == b'n'));
    }
    assert_eq!(case.file.bytes_not_durable(), 0);
}

#[test]
fn a_truncate_waits_for_all_writes_that_are_in_flight() {
    let case = case(200);
    dirty_every_second(&case, 200);
    let state = Arc::new((Mutex::new(false), Condvar::new()));
    let begun = state.clone();
    *case.store.middle.lock().unwrap() = Some(Box::new(move || {
        *begun.0.lock().unwrap() = true;
        begun.1.notify_all();
        // The other thread is to get as far as it can; the store says if that is too far.
        thread::sleep(std::time::Duration::from_millis(20));
    }));
    thread::scope(|scope| {
        let syncs = scope.spawn(|| case.file.sync());
        let mut is_writing = state.0.lock().unwrap();
        while !*is_writing {
            is_writing = state.1.wait(is_writing).unwrap();
        }
        drop(is_writing);
        case.file.truncate(50 * PAGE).unwrap();
        syncs.join().unwrap().unwrap();
    });
    case.file.sync().unwrap();
    assert_eq!(case.store.store.content().len() as u64, 50 * PAGE);
    assert_stored(&case, 50);
}

#[test]
fn a_panic_in_the_middle_leaves_all_dirty() {
    let case = case(200);
    dirty_every_second(&case, 200);
    *case.store.middle.lock().unwrap() = Some(Box::new(|| panic!("injected by the test")));
    let sync = catch_unwind(AssertUnwindSafe(|| case.file.sync()));
    assert!(sync.is_err());
    assert_eq!(case.file.failed_ranges().len(), 100);
    case.store.middle.clear_poison();
    case.store.writing.store(false, Ordering::SeqCst);
    *case.store.middle.lock().unwrap() = None;
    case.file.sync().unwrap();
    assert_stored(&case, 200);
}
