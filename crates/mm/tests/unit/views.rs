//! Views: which bytes, what keeps them as they were, what memory they take, and when that comes back.

use crate::common::{Store, assert_empty, file, pattern, read, storage, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, FrameKind, IoSegment, Iocb, Mm,
    MmConfig, PAGE_SIZE, PinMode, ReadaheadState, SlabArc, View, VmaAccess,
};
use foliocache_sys::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;
const MIB: usize = 1 << 20;

fn view(file: &SlabArc<AddressSpace>, pos: u64, len: usize) -> View {
    let mut iocb = Iocb::at(pos);
    let view = file
        .view(&ReadaheadState::new(), &mut iocb, len)
        .expect("a view");
    assert_eq!(iocb.pos, pos + view.len() as u64);
    view
}

/// A view of all that is asked for, without a copy.
fn frozen(file: &SlabArc<AddressSpace>, pos: u64, len: usize) -> View {
    let view = view(file, pos, len);
    assert!(view.len() == len && !view.is_copy(), "{view:?}");
    view
}

fn replaced(mm: &Mm) -> u64 {
    mm.stats().folios_replaced
}

fn viewed(mm: &Mm) -> u64 {
    mm.stats().unreclaimable.viewed_pages
}

#[test]
fn a_view_is_what_a_read_returns_up_to_the_end_of_its_folio_and_of_the_file() {
    let (mm, bdi) = storage(8);
    let bytes = pattern(1, 0, 3 * PAGE_SIZE + 100);
    let file = file(&bdi, &Store::with(&bytes));
    // The first one brings it in.
    let (mut at, mut views) = (5, Vec::new());
    loop {
        let next = view(&file, at as u64, MIB);
        if next.is_empty() {
            break;
        }
        assert!(!next.is_copy());
        assert_eq!(*next, bytes[at..at + next.len()]);
        at += next.len();
        views.push(next);
    }
    assert_eq!(at, bytes.len());
    assert_eq!(viewed(&mm), file.stats().resident_pages);
    assert_eq!(mm.stats().views_copied, 0);
    drop((views, file));
    assert_empty(&mm);
    assert_eq!(viewed(&mm), 0);
}

#[test]
fn views_count_as_reads() {
    let (_mm, bdi) = storage(8);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 2 * PAGE_SIZE)));
    drop(view(&file, 0, 10));
    assert_eq!((file.stats().missed_pages, file.stats().hit_pages), (1, 0));
    drop(view(&file, 0, 10));
    drop(view(&file, PAGE, 10));
    assert_eq!((file.stats().missed_pages, file.stats().hit_pages), (1, 2));
    let nowait = Iocb {
        nowait: true,
        ..Iocb::at(0)
    };
    let handle = ReadaheadState::new();
    assert_eq!(
        *file.view(&handle, &mut { nowait }, 9).unwrap(),
        pattern(1, 0, 9)
    );
    file.invalidate(0, u64::MAX);
    let error = file.view(&handle, &mut { nowait }, 9).unwrap_err();
    assert_eq!(error, Errno::EAGAIN, "it is not there");
}

#[test]
fn an_uncached_view_has_what_it_brought_in_alone() {
    let (mm, bdi) = storage(16);
    let bytes = pattern(1, 0, MIB);
    let file = file(&bdi, &Store::with(&bytes));
    let there = frozen(&file, 300 << 10, 100);
    let present = file.stats().resident_pages;
    let handle = ReadaheadState::new();
    let mut iocb = Iocb {
        uncached: true,
        ..Iocb::at(0)
    };
    let mut views = Vec::new();
    while (iocb.pos as usize) < MIB {
        let at = iocb.pos as usize;
        let next = file.view(&handle, &mut iocb, 64 << 10).unwrap();
        assert!(!next.is_copy());
        assert_eq!(*next, bytes[at..at + next.len()]);
        views.push((at, next));
    }
    assert_eq!(file.stats().resident_pages, present, "{:?}", file.stats());
    let uncached = file.stats().uncached;
    assert_eq!(
        uncached.dropped_pages + uncached.kept_present_pages,
        uncached.asked_pages,
        "{uncached:?}"
    );
    assert_eq!(mm.usage().in_use_pages, 256, "each page once");
    for (at, view) in &views {
        assert_eq!(**view, bytes[*at..at + view.len()]);
    }
    drop(views);
    assert_eq!(mm.usage().in_use_pages, present);
    drop(there);
}

#[test]
fn an_ordinary_view_keeps_what_an_uncached_read_brought_in() {
    let (_mm, bdi) = storage(16);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 64 << 10)));
    let handle = ReadaheadState::new();
    let mut iocb = Iocb {
        uncached: true,
        ..Iocb::at(0)
    };
    // Not to the end of its folio.
    drop(file.view(&handle, &mut iocb, 100).unwrap());
    let before = file.stats().resident_pages;
    drop(frozen(&file, 0, 50));
    file.end_uncached(&handle);
    let stats = file.stats();
    assert!(before > 0 && stats.resident_pages > 0);
    assert_eq!(
        stats.uncached.kept_used_pages, stats.resident_pages,
        "{stats:?}"
    );
}

#[test]
fn a_write_gives_a_viewed_folio_new_frames() {
    let (mm, bdi) = storage(8);
    let bytes = pattern(1, 0, PAGE_SIZE);
    let store = Store::with(&bytes);
    let file = file(&bdi, &store);
    let first = frozen(&file, 0, 100);
    assert_eq!(file.overwrite(10, &[7; 5]), 0, "that is not a hit");
    assert_eq!(replaced(&mm), 0);
    write(&file, 10, &[7; 5]);
    assert_eq!((replaced(&mm), viewed(&mm)), (1, 1));
    let second = frozen(&file, 0, 100);
    write(&file, 10, &[8; 5]);
    // Of the newest nobody has a view.
    write(&file, 10, &[9; 5]);
    assert_eq!((replaced(&mm), viewed(&mm)), (2, 2));
    assert_eq!(*first, bytes[..100]);
    assert_eq!(second[10..15], [7; 5]);
    assert_eq!(read(&file, 10, 5), [9; 5]);
    assert_eq!(mm.usage().in_use_pages, 3);
    // What was dirty still is, and what views have is not written.
    assert_eq!(file.stats().dirty_pages, 1);
    file.sync().unwrap();
    assert_eq!(store.content()[10..15], [9; 5]);
    assert_eq!(file.stats().dirty_pages + file.stats().unstable_pages, 0);
    drop((first, second));
    assert_eq!((mm.usage().in_use_pages, viewed(&mm)), (1, 0));
}

/// A store that holds its writes up.
#[derive(Default)]
struct Slow {
    store: Store,
    gate: RwLock<()>,
    writing: AtomicBool,
}

impl AddressSpaceOperations for Slow {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.store.read_folios(pos, segments)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.writing.store(true, Ordering::SeqCst);
        let _open = self.gate.read().unwrap();
        self.store.writepages(pos, segments)
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
        "a slow store".into()
    }
}

#[test]
fn a_write_of_a_viewed_folio_waits_for_the_write_out_that_has_its_frames() {
    let (_mm, bdi) = storage(8);
    let store = Arc::new(Slow::default());
    let file = AddressSpace::new(&bdi, Arc::clone(&store) as _, 0);
    write(&file, 0, &[1; PAGE_SIZE]);
    let written = AtomicBool::new(false);
    thread::scope(|scope| {
        let closed = store.gate.write().unwrap();
        let sync = scope.spawn(|| file.sync().unwrap());
        while !store.writing.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let before = frozen(&file, 0, 100);
        let writer = scope.spawn(|| {
            write(&file, 0, &[2; 100]);
            written.store(true, Ordering::SeqCst);
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!written.load(Ordering::SeqCst));
        drop(closed);
        sync.join().unwrap();
        writer.join().unwrap();
        assert_eq!(*before, [1; 100]);
    });
    assert_eq!(store.store.content()[..100], [1; 100]);
    file.sync().unwrap();
    assert_eq!(store.store.content()[..101], [&[2; 100][..], &[1]].concat());
}

#[test]
fn an_append_leaves_the_folio_to_the_views_of_what_is_before() {
    let (mm, bdi) = storage(8);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 100)));
    let tail = frozen(&file, 0, 100);
    write(&file, 100, &[1; 50]);
    write(&file, 200, &[2; 50]);
    assert_eq!((replaced(&mm), mm.usage().in_use_pages), (0, 1));
    assert_eq!(*tail, pattern(1, 0, 100));
    assert_eq!(view(&file, 0, 1000)[100..250], read(&file, 100, 150));
    write(&file, 249, &[3; 2]);
    assert_eq!(replaced(&mm), 1, "one byte of it is before the end");
}

#[test]
fn truncates_and_holes_leave_views_as_they_were() {
    let (mm, bdi) = storage(8);
    let bytes = pattern(1, 0, 4 * PAGE_SIZE);
    for (cut, from, len) in [
        (true, PAGE + 100, u64::MAX),
        (false, PAGE + 100, 50),
        (false, 100, 2 * PAGE),
        (true, 0, u64::MAX),
    ] {
        let store = Store::with(&bytes);
        let file = file(&bdi, &store);
        read(&file, 0, 4 * PAGE_SIZE);
        let views: Vec<_> = (0..4)
            .map(|page| view(&file, page * PAGE, PAGE_SIZE))
            .collect();
        match cut {
            true => file.truncate(from).unwrap(),
            false => file.punch_hole(from, len).unwrap(),
        }
        for (page, view) in views.iter().enumerate() {
            let at = page * PAGE_SIZE;
            assert!(!view.is_copy());
            assert_eq!(
                **view,
                bytes[at..at + view.len()],
                "{from} {len}, page {page}"
            );
        }
        let mut now = store.content();
        assert_eq!(read(&file, 0, 4 * PAGE_SIZE), now);
        if cut {
            file.truncate(4 * PAGE).unwrap();
            now.resize(4 * PAGE_SIZE, 0);
            assert_eq!(read(&file, 0, 4 * PAGE_SIZE), now);
        }
        // The edges of a hole are dirty.
        file.sync().unwrap();
        drop(file);
        assert!(mm.usage().in_use_pages >= 4, "orphans");
        assert_eq!(viewed(&mm), mm.usage().in_use_pages);
        drop(views);
        assert_empty(&mm);
        assert_eq!(viewed(&mm), 0);
    }
}

#[test]
fn a_viewed_folio_is_not_evicted_and_its_orphan_is_freed_with_the_last_view() {
    let (mm, bdi) = storage(8);
    let bytes = pattern(1, 0, PAGE_SIZE);
    let store = Store::with(&bytes);
    let kept = file(&bdi, &store);
    let other = file(&bdi, &Store::with(&pattern(2, 0, 32 * MIB)));
    let views = [frozen(&kept, 0, PAGE_SIZE), frozen(&kept, 7, 9)];
    for at in 0..32 {
        read(&other, at << 20, MIB);
    }
    assert_eq!(kept.invalidate(0, u64::MAX), 0);
    assert_eq!(kept.stats().resident_pages, 1);
    // The store was changed by others: what is cached goes, what is viewed stays.
    store.bytes.lock().unwrap().fill(0xaa);
    kept.backing_changed(PAGE, || true);
    assert_eq!(read(&kept, 0, 4), [0xaa; 4]);
    drop((kept, other));
    assert_eq!(viewed(&mm), 1);
    let [all, some] = views;
    assert_eq!(*all, bytes);
    drop(all);
    assert_eq!(*some, bytes[7..16]);
    assert_eq!(mm.usage().in_use_pages, 1);
    drop(some);
    assert_empty(&mm);
}

#[test]
fn a_large_folio_is_replaced_by_as_large_a_one_or_by_pages() {
    for scattered in [false, true] {
        let (mm, bdi) = storage(32);
        let store = Store::with(&[]);
        let file = file(&bdi, &store);
        let mut bytes = pattern(1, 0, 64 * PAGE_SIZE);
        write(&file, 0, &bytes);
        file.sync().unwrap();
        // One grain is dirty, and one unstable or clean.
        write(&file, 5 * PAGE, &[5; 10]);
        bytes[5 * PAGE_SIZE..][..10].fill(5);
        assert_eq!(file.stats().folios, 1);
        let whole = frozen(&file, 0, 64 * PAGE_SIZE);
        let mut taken = Vec::new();
        if scattered {
            // What is free lies in single pages.
            while let Some(mut one) = mm.frames().try_reserve(FrameKind::General, 1) {
                taken.push(mm.frames().alloc(&mut one));
            }
            taken.sort();
            for page in taken.extract_if(.., |frame| frame.0 % 2 == 1) {
                mm.frames().free(page, 0);
            }
        }
        write(&file, 9 * PAGE, &[9; 10]);
        assert_eq!(*whole, bytes);
        bytes[9 * PAGE_SIZE..][..10].fill(9);
        assert_eq!(read(&file, 0, 64 * PAGE_SIZE), bytes);
        let stats = file.stats();
        assert_eq!(stats.folios, if scattered { 64 } else { 1 });
        assert_eq!(stats.dirty_pages, if scattered { 2 } else { 64 });
        assert_eq!(stats.resident_pages, 64);
        file.sync().unwrap();
        assert_eq!(store.content(), bytes);
        assert_eq!(file.stats().dirty_pages, 0);
        for frame in taken {
            mm.frames().free(frame, 0);
        }
        drop((file, whole));
        assert_empty(&mm);
    }
}

#[test]
fn a_large_folio_that_is_viewed_is_cut_where_the_file_is() {
    let (mm, bdi) = storage(32);
    let store = Store::with(&[]);
    let file = file(&bdi, &store);
    let bytes = pattern(1, 0, 64 * PAGE_SIZE);
    write(&file, 0, &bytes);
    let whole = frozen(&file, 0, 64 * PAGE_SIZE);
    file.punch_hole(10 * PAGE, 2 * PAGE + 7).unwrap();
    file.truncate(20 * PAGE + 3).unwrap();
    assert_eq!(*whole, bytes);
    assert_eq!(
        mm.usage().in_use_pages,
        64 + 19,
        "21 pages, less two of the hole"
    );
    let mut now = bytes[..20 * PAGE_SIZE + 3].to_vec();
    now[10 * PAGE_SIZE..12 * PAGE_SIZE + 7].fill(0);
    assert_eq!(read(&file, 0, 64 * PAGE_SIZE), now);
    file.sync().unwrap();
    assert_eq!(store.content(), now);
}

#[test]
fn beyond_their_share_views_are_copies() {
    let (mm, bdi) = storage(8);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 6 * MIB)));
    let most = mm.stats().unreclaimable.most_viewed_pages;
    let mut views = Vec::new();
    let mut at = 0;
    while at < 6 << 20 {
        let next = view(&file, at, MIB);
        assert_eq!(*next, pattern(1, at, next.len()));
        at += next.len() as u64;
        views.push(next);
    }
    let copies = views.iter().filter(|view| view.is_copy()).count();
    assert!(copies > 0 && viewed(&mm) <= most && viewed(&mm) > most / 2);
    assert_eq!(mm.stats().views_copied, copies as u64);
    let zero_copy = views.len() - copies;
    assert!(zero_copy > 0);
    // There is room for others all the while, and again once they are gone.
    read(&file, 0, 6 * MIB);
    drop(views);
    assert_eq!(viewed(&mm), 0);
    assert!(!view(&file, 0, 10).is_copy());
}

#[test]
fn views_outlive_their_cache() {
    let bytes = pattern(1, 0, MIB);
    let (mm, bdi) = storage(16);
    let file = file(&bdi, &Store::with(&bytes));
    let (first, second) = (view(&file, 0, 100), view(&file, 500 << 10, 100));
    assert!(!first.is_copy() && !second.is_copy());
    drop((file, bdi));
    let gone = Arc::downgrade(&mm);
    drop(mm);
    let start = Instant::now();
    while gone.strong_count() > 0 {
        assert!(start.elapsed() < Duration::from_secs(10));
        thread::yield_now();
    }
    assert_eq!(*first, bytes[..100]);
    drop(first);
    thread::spawn(move || assert_eq!(*second, pattern(1, 500 << 10, 100)))
        .join()
        .unwrap();
}

#[test]
fn a_shrink_that_views_hold_up_names_them_and_ends_when_they_go() {
    let (mm, bdi) = storage(64);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 48 * MIB)));
    let mut views = Vec::new();
    for at in (0..48 << 20).step_by(2 * MIB) {
        read(&file, at, 2 * MIB);
        views.push(view(&file, at, 10));
        assert!(!views.last().unwrap().is_copy());
    }
    // Some pages are the views' alone.
    file.truncate(40 << 20).unwrap();
    let pages = viewed(&mm);
    let most = mm.stats().unreclaimable.most_viewed_pages;
    assert!(pages > 0 && pages < most / 2, "{pages} of {most}");
    mm.set_limit(32 << 20).unwrap();
    let holders = mm.holders(100);
    assert_eq!(holders.len(), 24);
    assert!(
        holders
            .iter()
            .all(|holder| holder.views == 1 && holder.block.is_some())
    );
    assert_eq!(holders.iter().filter(|holder| holder.detached).count(), 4);
    let said = holders[0].to_string();
    assert!(
        said.starts_with("a store in memory bytes ") && said.contains("1 views"),
        "{said}"
    );
    assert_eq!(mm.holders(2).len(), 2);
    let over = |mm: &Mm| mm.usage().total_bytes() > mm.usage().limit_bytes;
    assert!(over(&mm), "{:?}", mm.usage());
    for (at, view) in (0..48 << 20).step_by(2 * MIB).zip(&views) {
        assert_eq!(**view, pattern(1, at, 10));
    }
    drop(views);
    let start = Instant::now();
    while over(&mm) {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{:?}",
            mm.usage()
        );
        thread::sleep(Duration::from_millis(1));
    }
    assert!(mm.holders(1).is_empty());
}

#[test]
fn a_file_that_is_mapped_leaves_views_their_frames_and_is_copied_from_then_on() {
    let (mm, bdi) = storage(32);
    let bytes = pattern(1, 0, 3 * PAGE_SIZE);
    let file = file(&bdi, &Store::with(&bytes));
    let before = view(&file, PAGE, 100);
    assert!(!before.is_copy());
    write(&file, 2 * PAGE, &[3; 10]);
    let dirty = view(&file, 2 * PAGE, 100);
    let Ok(vma) = file.map(0, 3 * PAGE_SIZE, VmaAccess::ReadWrite) else {
        return;
    };
    write(&file, PAGE, &[9; 50]);
    assert_eq!(*before, bytes[PAGE_SIZE..PAGE_SIZE + 100]);
    assert_eq!(dirty[..10], [3; 10]);
    let copy = view(&file, PAGE, 100);
    assert!(copy.is_copy());
    assert_eq!(copy[..50], [9; 50]);
    assert_eq!(read(&file, 2 * PAGE, 10), [3; 10]);
    file.sync().unwrap();
    drop((vma, before, dirty, file));
    assert_empty(&mm);
}

#[test]
fn a_file_is_mapped_beside_views_of_pages_all_over_the_memory() {
    let (mm, bdi) = storage(16);
    let viewed = file(&bdi, &Store::with(&pattern(1, 0, 13 * MIB)));
    read(&viewed, 0, 13 * MIB);
    let places = (0..13 << 20).step_by(256 << 10);
    let views: Vec<_> = places.clone().map(|at| view(&viewed, at, 10)).collect();
    assert!(views.iter().any(|view| !view.is_copy()));
    let mapped = file(&bdi, &Store::with(&pattern(2, 0, 4 * MIB)));
    let (done, loaded) = mpsc::channel();
    let loader = thread::spawn(move || {
        let vma = mapped.map(0, 4 * MIB, VmaAccess::Read).expect("a mapping");
        for at in (0..4 * MIB).step_by(PAGE_SIZE) {
            // SAFETY: inside the mapping.
            let byte = unsafe { vma.address().wrapping_add(at).read_volatile() };
            assert_eq!(byte, pattern(2, at as u64, 1)[0]);
        }
        done.send(()).expect("it is waited for");
    });
    assert_eq!(
        loaded.recv_timeout(Duration::from_secs(20)),
        Ok(()),
        "{:?}",
        mm.stats()
    );
    loader.join().expect("no panic");
    for (at, view) in places.zip(&views) {
        assert_eq!(**view, pattern(1, at, 10));
    }
    drop((views, viewed));
    assert_empty(&mm);
}

#[test]
fn views_of_pinned_folios_are_copies_and_a_pin_replaces_a_viewed_folio() {
    let (mm, bdi) = storage(8);
    let bytes = pattern(1, 0, PAGE_SIZE);
    let file = file(&bdi, &Store::with(&bytes));
    let handle = ReadaheadState::new();
    for mode in [PinMode::READ, PinMode::WRITE] {
        let before = frozen(&file, 0, 100);
        let now = before.to_vec();
        let pin = file.pin(&handle, 0..100, mode).unwrap();
        let copy = view(&file, 0, 100);
        assert!(copy.is_copy() && *copy == *before);
        // The program writes to the pinned frames, and the device finds it there.
        let frames = mm.usage().in_use_pages;
        write(&file, 5, &[mode.device_writes as u8 + 1; 9]);
        assert_eq!((mm.usage().in_use_pages, &before[..]), (frames, &now[..]));
        drop(pin);
        assert!(!view(&file, 0, 100).is_copy());
        file.sync().unwrap();
    }
    assert_eq!(replaced(&mm), 2);
}

#[test]
fn files_in_memory_have_views_too_and_holes_are_copies() {
    let mm = Mm::new(MmConfig::new(8 << 20)).unwrap();
    let bdi = BackingDevInfo::new(&mm, "memory", BdiKind::Memory).unwrap();
    let file = file(&bdi, &Store::with(&[]));
    write(&file, PAGE, &[1; PAGE_SIZE]);
    let view = |pos| view(&file, pos, PAGE_SIZE);
    let (hole, page) = (view(0), view(PAGE));
    assert!(hole.is_copy() && !page.is_copy());
    assert_eq!(*hole, [0; PAGE_SIZE]);
    write(&file, PAGE, &[2; 8]);
    assert_eq!(page[..8], [1; 8]);
    assert_eq!(read(&file, PAGE, 8), [2; 8]);
    file.truncate(0).unwrap();
    assert_eq!(page[..8], [1; 8]);
    drop((page, file));
    assert_empty(&mm);
}

/// Writers, readers and syncs of the same pages beside views: a view never changes, and what was written is there in
/// the end.
#[test]
fn views_beside_everything_else_stay_as_they_are() {
    const PAGES: u64 = 96;
    let (mm, bdi) = storage(4);
    let store = Store::with(&vec![0; PAGES as usize * PAGE_SIZE]);
    let file = file(&bdi, &store);
    let other = crate::common::file(&bdi, &Store::with(&pattern(2, 0, 8 * MIB)));
    let stop = AtomicBool::new(false);
    let seconds = match std::env::var("FOLIOCACHE_STRESS") {
        Ok(seconds) => seconds.parse().unwrap(),
        Err(_) => 1,
    };
    thread::scope(|scope| {
        for writer in 0..2_u64 {
            let (file, stop) = (&file, &stop);
            scope.spawn(move || {
                let mut round = writer;
                while !stop.load(Ordering::Relaxed) {
                    round = round.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
                    let page = (round >> 33) % (PAGES / 2) * 2 + writer;
                    let pages = if round % 64 == 0 { 2 } else { 1 };
                    // Each page is of one byte throughout, so that a torn one is seen.
                    let page = if pages == 2 { page / 2 * 2 } else { page };
                    write(
                        file,
                        page * PAGE,
                        &vec![(round >> 20) as u8; pages * PAGE_SIZE],
                    );
                    if round % 1024 == 0 {
                        file.punch_hole(page * PAGE, PAGE).unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut kept: Vec<(View, Vec<u8>)> = Vec::new();
            let mut round = 5_u64;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(3);
                let now = view(&file, (round >> 33) % PAGES * PAGE, PAGE_SIZE);
                let seen = now.to_vec();
                kept.push((now, seen));
                if kept.len() > 40 {
                    let (view, seen) = kept.swap_remove((round >> 7) as usize % 40);
                    assert!(*view == seen, "a view changed");
                }
            }
            assert!(kept.iter().all(|(view, seen)| **view == *seen));
        });
        scope.spawn(|| {
            let mut at = 0;
            while !stop.load(Ordering::Relaxed) {
                read(&other, at % (8 << 20), 64 << 10);
                at += 64 << 10;
                if at % (1 << 20) == 0 {
                    file.sync().unwrap();
                }
            }
        });
        thread::sleep(Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
    });
    assert!(replaced(&mm) > 0);
    assert_eq!(viewed(&mm), 0);
    let now = read(&file, 0, PAGES as usize * PAGE_SIZE);
    file.sync().unwrap();
    assert!(store.content() == now);
    drop((file, other));
    assert_empty(&mm);
}
