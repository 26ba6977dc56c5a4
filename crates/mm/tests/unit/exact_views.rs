//! Exact views: all of a range wherever folios end, in place or as a copy that counts in the bound; views as tokens of C.

use crate::common::{
    Random, Store, assert_empty, file, pattern, read, storage, stress_scale, write,
};
use foliocache_mm::{
    AddressSpace, BackingDevInfo, BdiKind, Iocb, Mm, PAGE_SIZE, ReadaheadState, SlabArc, View,
    ViewRequest, view_batch,
};
use foliocache_sys::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const PAGE: u64 = PAGE_SIZE as u64;
const MIB: usize = 1 << 20;
/// What a copy is charged besides its bytes.
const OVERHEAD: u64 = 64;

fn exact(file: &SlabArc<AddressSpace>, pos: u64, len: usize) -> Result<Option<View>, Errno> {
    let mut iocb = Iocb::at(pos);
    let view = file.view_exact(&ReadaheadState::new(), &mut iocb, len);
    let moved = if matches!(view, Ok(Some(_))) { len } else { 0 };
    assert_eq!(iocb.pos, pos + moved as u64);
    view
}

fn all(file: &SlabArc<AddressSpace>, pos: u64, len: usize) -> View {
    let view = exact(file, pos, len)
        .expect("a view")
        .expect("enough bytes");
    assert_eq!(view.len(), len);
    view
}

fn copied(mm: &Mm) -> u64 {
    mm.stats().copied_view_bytes
}

fn within_bound(mm: &Mm) {
    let usage = mm.usage();
    assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:?}");
    assert!(copied(mm) <= usage.limit_bytes / 4);
}

#[test]
fn an_exact_view_has_all_of_its_range_and_says_whether_it_is_a_copy() {
    let (mm, bdi) = storage(32);
    let bytes = pattern(1, 0, 3 * MIB + 100);
    let file = file(&bdi, &Store::with(&bytes));
    // Each page is a folio of its own.
    for page in (0..8).rev() {
        read(&file, page * PAGE, 1);
    }
    for (pos, len, copy) in [
        (10, 100, false),
        (0, PAGE_SIZE, false),
        (PAGE - 1, 2, true),
        (5, 8 * PAGE_SIZE - 5, true),
        (0, 3 * MIB + 100, true),
        (3 * MIB as u64, 100, false),
    ] {
        let view = all(&file, pos, len);
        assert_eq!(view.is_copy(), copy, "{len} bytes at {pos}");
        assert!(
            *view == bytes[pos as usize..][..len],
            "{len} bytes at {pos}"
        );
        within_bound(&mm);
    }
    assert!(all(&file, 7, 0).is_empty());
    assert!(all(&file, 1 << 40, 0).is_empty());
    for (pos, len) in [
        (3 * MIB as u64, 101),
        (3 * MIB as u64 + 100, 1),
        (1 << 40, 1),
        (0, usize::MAX),
    ] {
        assert!(exact(&file, pos, len).unwrap().is_none());
    }
    assert_eq!((copied(&mm), mm.stats().views_copied), (0, 3));
    drop(file);
    assert_empty(&mm);
}

#[test]
fn exact_views_count_each_page_as_one_read_does() {
    let (_mm, bdi) = storage(16);
    let bytes = pattern(1, 0, 4 * PAGE_SIZE);
    let counts = |file: &AddressSpace| {
        let stats = file.stats();
        (
            stats.missed_pages,
            stats.hit_pages,
            stats.readahead_used_pages,
        )
    };
    let (viewed, other) = (
        file(&bdi, &Store::with(&bytes)),
        file(&bdi, &Store::with(&bytes)),
    );
    for (pos, len) in [
        (0, 9),
        (100, 2 * PAGE_SIZE),
        (PAGE - 1, 2),
        (0, 4 * PAGE_SIZE),
    ] {
        drop(all(&viewed, pos, len));
        read(&other, pos, len);
        assert_eq!(counts(&viewed), counts(&other), "{len} bytes at {pos}");
    }
}

#[test]
fn a_view_of_what_was_fetched_for_it_is_its_first_use() {
    let (_mm, bdi) = storage(16);
    let file = file(&bdi, &Store::with(&pattern(1, 0, PAGE_SIZE)));
    let handle = ReadaheadState::new();
    let mut iocb = Iocb::at(0);
    file.fetch(&handle, &mut iocb, 10).unwrap();
    file.view(&handle, &mut iocb, 10).unwrap();
    let stats = file.stats();
    assert_eq!(
        (
            stats.missed_pages,
            stats.readahead_used_pages,
            stats.hit_pages
        ),
        (1, 0, 0)
    );
}

#[test]
fn a_call_that_may_not_wait_gets_what_lies_in_one_piece() {
    let (_mm, bdi) = storage(16);
    let bytes = pattern(1, 0, 4 * MIB);
    let file = file(&bdi, &Store::with(&bytes));
    let handle = ReadaheadState::new();
    let nowait = |pos, len| {
        let mut iocb = Iocb {
            nowait: true,
            ..Iocb::at(pos)
        };
        let view = file.view_exact(&handle, &mut iocb, len);
        assert!(iocb.pos == pos || view.is_ok());
        view.map(|view| view.map(|view| view.to_vec()))
    };
    assert_eq!(nowait(0, 9), Err(Errno::EAGAIN), "it is not there");
    read(&file, PAGE, 1);
    read(&file, 0, 1);
    let before = file.stats().hit_pages;
    assert_eq!(nowait(PAGE - 1, 2), Err(Errno::EAGAIN), "in two pieces");
    assert_eq!(nowait(0, 3 * MIB), Err(Errno::EAGAIN), "in no folio");
    assert_eq!(file.stats().hit_pages, before, "nothing was read");
    assert_eq!(nowait(5, 9), Ok(Some(bytes[5..14].to_vec())));
    assert_eq!(nowait(4 * MIB as u64, 1), Ok(None));
}

#[test]
fn a_copied_view_is_charged_until_it_is_dropped() {
    let (mm, bdi) = storage(64);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 8 * MIB)));
    read(&file, 0, 8 * MIB);
    let before = mm.usage().metadata_bytes;
    let views = [MIB, 5 * MIB].map(|len| all(&file, 100, len));
    assert!(views.iter().all(View::is_copy));
    assert_eq!(copied(&mm), 6 * MIB as u64 + 2 * OVERHEAD);
    assert!(mm.usage().metadata_bytes >= before + copied(&mm));
    // One that fails leaves nothing charged.
    assert!(
        exact(&file, 8 * MIB as u64 - 2 * PAGE, 2 * PAGE_SIZE + 1)
            .unwrap()
            .is_none()
    );
    assert_eq!(copied(&mm), 6 * MIB as u64 + 2 * OVERHEAD);
    drop(views);
    assert_eq!(copied(&mm), 0);
    assert!(mm.usage().metadata_bytes < before + MIB as u64);
}

#[test]
fn beyond_a_quarter_of_the_bound_copies_are_refused() {
    let (mm, bdi) = storage(16);
    let bytes = pattern(1, 0, 3 * MIB);
    let file = file(&bdi, &Store::with(&bytes));
    assert_eq!(exact(&file, 0, 3 * MIB).unwrap().unwrap().len(), 3 * MIB);
    let mut views = vec![all(&file, 0, 3 * MIB)];
    let refused = loop {
        match exact(&file, PAGE - 5, 300_000) {
            Ok(view) => views.push(view.unwrap()),
            Err(errno) => break errno,
        }
        within_bound(&mm);
    };
    assert_eq!(refused, Errno::ENOBUFS);
    assert!(copied(&mm) > 3 * MIB as u64);
    // What needs no copy can be had all the while, and reads go on.
    let small = all(&file, 0, 10);
    assert!(!small.is_copy(), "{:?}", mm.stats());
    assert!(read(&file, 0, 3 * MIB) == bytes);
    assert!(*views[0] == bytes);
    views.pop();
    assert!(all(&file, PAGE - 5, 300_000).is_copy());
    drop((views, small, file));
    assert_eq!(copied(&mm), 0);
    assert_empty(&mm);
}

#[test]
fn a_copy_for_which_nothing_can_be_reclaimed_is_refused() {
    let (mm, bdi) = storage(16);
    let memory = BackingDevInfo::new(&mm, "memory", BdiKind::Memory).unwrap();
    let bytes = pattern(1, 0, 8 * MIB);
    let in_memory = file(&memory, &Store::with(&[]));
    let stored = file(&bdi, &Store::with(&bytes));
    // Half of the memory, and then views of what is left of the three quarters.
    let mut filled = 0;
    let mut iocb = Iocb::at(0);
    while iocb.pos < 16 << 20 {
        let page = [9; PAGE_SIZE];
        let mut source = foliocache_mm::IovIter::source(&page);
        match in_memory.write(&mut iocb, &mut source) {
            Ok(_) => filled = iocb.pos,
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                break;
            }
        }
    }
    assert!(filled > 4 << 20);
    let handle = ReadaheadState::new();
    let mut views = Vec::new();
    let mut at = Iocb::at(0);
    while at.pos < bytes.len() as u64 {
        let view = stored.view(&handle, &mut at, MIB).unwrap();
        if view.is_copy() {
            break;
        }
        views.push(view);
    }
    let budget = mm.stats().unreclaimable;
    assert!(
        budget.total_pages() * 10 > budget.most_pages * 9,
        "{budget:?}"
    );
    assert_eq!(exact(&stored, 0, 3 * MIB).unwrap_err(), Errno::ENOMEM);
    assert_eq!(copied(&mm), 0);
    within_bound(&mm);
    drop((views, in_memory));
    assert!(*all(&stored, 0, 3 * MIB) == bytes[..3 * MIB]);
}

/// The bound holds at every moment, however many copies are taken and kept; the only errors are the documented ones.
#[test]
fn the_bound_is_kept_however_many_exact_views_are_kept() {
    for mib in [4, 8, 20] {
        let (mm, bdi) = storage(mib);
        let contents = [pattern(1, 0, 3 * MIB), pattern(2, 0, 3 * MIB)];
        let files = contents
            .each_ref()
            .map(|bytes| file(&bdi, &Store::with(bytes)));
        thread::scope(|scope| {
            for who in 0..3 {
                let (mm, files, contents) = (&mm, &files, &contents);
                scope.spawn(move || {
                    let mut random = Random::of(who + 1);
                    let mut kept: Vec<(View, usize, usize)> = Vec::new();
                    let mut refused = 0;
                    for _ in 0..150 * stress_scale() {
                        let of = random.below(2) as usize;
                        let len = match random.below(8) {
                            0 => random.below(2 * MIB as u64),
                            _ => random.below(100_000),
                        } as usize;
                        let pos = random.below((3 * MIB - len) as u64);
                        match exact(&files[of], pos, len) {
                            Ok(view) => kept.push((view.unwrap(), of, pos as usize)),
                            Err(errno) => {
                                assert!(
                                    [Errno::ENOBUFS, Errno::ENOMEM].contains(&errno),
                                    "{errno}"
                                );
                                refused += 1;
                                // Half of what it holds goes.
                                kept.truncate(kept.len() / 2);
                            }
                        }
                        within_bound(mm);
                        let (view, of, at) = match kept.len() {
                            0 => continue,
                            n => &kept[random.below(n as u64) as usize],
                        };
                        assert!(**view == contents[*of][*at..][..view.len()]);
                    }
                    assert!(refused < 150 * stress_scale(), "each was refused");
                });
            }
        });
        assert_eq!(copied(&mm), 0);
        assert_eq!(mm.stats().unreclaimable.viewed_pages, 0);
        drop(files);
        assert_empty(&mm);
    }
}

#[test]
fn nothing_changes_a_copied_view() {
    let (mm, bdi) = storage(8);
    let bytes = pattern(1, 0, 2 * MIB);
    let store = Store::with(&bytes);
    let file = file(&bdi, &store);
    let view = all(&file, 1000, MIB);
    assert!(view.is_copy());
    let address = view.as_ptr();
    let unchanged = |what: &str| {
        assert!(*view == bytes[1000..][..MIB], "after {what}");
        assert_eq!(view.as_ptr(), address);
    };
    write(&file, 2000, &[7; 9000]);
    unchanged("a write");
    assert_eq!(mm.stats().folios_replaced, 0, "nobody makes way for a copy");
    file.punch_hole(100, 50_000).unwrap();
    unchanged("a hole");
    file.truncate(3000).unwrap();
    unchanged("a truncate");
    assert!(exact(&file, 1000, MIB).unwrap().is_none());
    file.sync().unwrap();
    file.invalidate(0, u64::MAX);
    unchanged("an eviction");
    store.bytes.lock().unwrap().fill(0xaa);
    file.backing_changed(3000, || true);
    assert_eq!(read(&file, 2990, 100), [0xaa; 10]);
    unchanged("a change of the store");
    drop(file);
    unchanged("the end of its file");
}

#[test]
fn a_copied_view_outlives_its_cache_and_keeps_no_memory_of_it() {
    let bytes = pattern(1, 0, 3 * MIB);
    let (mm, bdi) = storage(16);
    let file = file(&bdi, &Store::with(&bytes));
    let view = all(&file, 5, 3 * MIB - 5);
    assert!(view.is_copy());
    let gone = Arc::downgrade(&mm);
    let inside = mm.frames().addr(foliocache_mm::FrameNumber(0)) as usize;
    drop((file, bdi, mm));
    let start = std::time::Instant::now();
    while gone.strong_count() > 0 || is_mapped(inside) {
        assert!(start.elapsed().as_secs() < 20, "the frames are still there");
        thread::yield_now();
    }
    assert!(*view == bytes[5..]);
    thread::spawn(move || drop(view)).join().unwrap();
}

/// Whether a mapping of this process begins at an address.
fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .any(|line| line.starts_with(&format!("{address:x}-")))
}

#[test]
fn an_exact_view_beside_truncates_is_whole_or_says_that_the_file_is_shorter() {
    const SIZE: usize = 300_000;
    let (mm, bdi) = storage(8);
    let bytes = pattern(1, 0, SIZE);
    let file = file(&bdi, &Store::with(&bytes));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::of(1);
            while !stop.load(Ordering::Relaxed) {
                file.truncate(random.below(SIZE as u64)).unwrap();
                write(&file, 0, &bytes);
            }
        });
        let mut random = Random::of(2);
        let (mut whole, mut short) = (0, 0);
        let start = std::time::Instant::now();
        while whole < 200 || short < 20 {
            assert!(start.elapsed().as_secs() < 60, "{whole} {short}");
            let len = 1 + random.below(SIZE as u64 - 1) as usize;
            let pos = random.below((SIZE - len) as u64);
            match exact(&file, pos, len).unwrap() {
                None => short += 1,
                Some(view) => {
                    assert_eq!(view.len(), len);
                    let there = &bytes[pos as usize..][..len];
                    let (seen, now) = (view.to_vec(), view);
                    thread::yield_now();
                    assert!(*now == *seen, "a view changed");
                    assert!(
                        now.iter()
                            .zip(there)
                            .all(|(seen, byte)| seen == byte || *seen == 0),
                        "bytes that never were there"
                    );
                    whole += 1;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(file);
    assert_empty(&mm);
    assert_eq!(copied(&mm), 0);
}

#[test]
fn each_view_of_a_batch_ends_as_a_single_one_does() {
    let (mm, bdi) = storage(32);
    let contents = [pattern(1, 0, MIB), pattern(2, 0, 3 * MIB)];
    let files = contents
        .each_ref()
        .map(|bytes| file(&bdi, &Store::with(bytes)));
    let handle = ReadaheadState::new();
    let mut random = Random::of(5);
    let mut places: Vec<(usize, u64, usize)> = (0..150)
        .map(|_| {
            let of = random.below(2) as usize;
            (
                of,
                random.below(contents[of].len() as u64),
                random.below(20_000) as usize,
            )
        })
        .collect();
    places.push((1, 3, 3 * MIB - 3));
    places.push((0, MIB as u64, 1));
    let mut requests: Vec<_> = places
        .iter()
        .map(|&(of, pos, len)| ViewRequest::new(&files[of], &handle, Iocb::at(pos), len))
        .collect();
    assert_eq!(requests[0].result().unwrap_err(), Errno::EAGAIN);
    requests[1].fail(Errno::EBADF);
    view_batch(&mut requests);
    within_bound(&mm);
    assert_eq!(
        requests[1].result().unwrap_err(),
        Errno::EBADF,
        "it had one before"
    );
    for (at, (&(of, pos, len), request)) in places.iter().zip(requests).enumerate() {
        if at == 1 {
            continue;
        }
        let there = contents[of].get(pos as usize..pos as usize + len);
        let view = request.into_result().unwrap();
        assert_eq!(view.as_deref(), there, "{len} bytes at {pos}");
    }
}

#[test]
fn a_batch_of_views_beyond_the_share_has_some_and_says_which_were_refused() {
    let (mm, bdi) = storage(8);
    let bytes = pattern(1, 0, 6 * MIB);
    let file = file(&bdi, &Store::with(&bytes));
    let handle = ReadaheadState::new();
    let mut requests: Vec<_> = (0..90)
        .map(|i| ViewRequest::new(&file, &handle, Iocb::at(i * 65_536), 65_537))
        .collect();
    view_batch(&mut requests);
    within_bound(&mm);
    let (mut taken, mut refused) = (0, 0);
    for (i, request) in requests.iter().enumerate() {
        match request.result() {
            Ok(view) => {
                assert!(**view.unwrap() == bytes[i * 65_536..][..65_537]);
                taken += 1;
            }
            Err(errno) => {
                assert!([Errno::ENOBUFS, Errno::ENOMEM].contains(&errno));
                refused += 1;
            }
        }
    }
    assert!(taken > 10 && refused > 10, "{taken} {refused}");
    drop(requests);
    assert!(read(&file, 0, 6 * MIB) == bytes);
    assert_eq!(copied(&mm), 0);
}

#[test]
fn a_token_keeps_its_view_where_it_is_and_counted() {
    let (mm, bdi) = storage(16);
    let bytes = pattern(1, 0, 3 * MIB);
    let file = file(&bdi, &Store::with(&bytes));
    let viewed = |mm: &Mm| mm.stats().unreclaimable.viewed_pages;
    let in_place = all(&file, 7, 100);
    let copy = all(&file, 7, 3 * MIB - 7);
    assert!(!in_place.is_copy() && copy.is_copy());
    let (at, pages, charged) = (in_place.as_ptr(), viewed(&mm), copied(&mm));
    let raw = [in_place, copy].map(View::into_raw);
    assert_eq!((raw[0].address, raw[0].len), (at, 100));
    assert_eq!((viewed(&mm), copied(&mm)), (pages, charged));
    assert!(pages > 0 && charged > 0);
    assert_eq!(mm.holders(10).len(), 1, "a token that is lost can be found");
    let again = all(&file, 7, 100).into_raw();
    assert!(again.address == raw[0].address && again.token != raw[0].token);
    // The bytes stay, whatever becomes of the file.
    write(&file, 0, &[1; 200]);
    file.truncate(0).unwrap();
    for (raw, len) in raw.iter().zip([100, 3 * MIB - 7]) {
        // SAFETY: the token was not given back yet.
        let seen = unsafe { std::slice::from_raw_parts(raw.address, raw.len) };
        assert!(*seen == bytes[7..7 + len]);
    }
    for raw in [raw[0], raw[1], again] {
        let token = raw.token.as_ptr() as usize;
        let taken_back = thread::spawn(move || {
            let token = std::ptr::NonNull::new(token as *mut _).unwrap();
            // SAFETY: it is from `into_raw`, and given back once.
            let view = unsafe { View::from_raw(token) };
            view.len()
        });
        assert_eq!(taken_back.join().unwrap(), raw.len);
    }
    assert_eq!((viewed(&mm), copied(&mm)), (0, 0));
    drop(file);
    assert_empty(&mm);
}
