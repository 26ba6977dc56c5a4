//! One file: read, write, truncate, punch, fsync, and what the cache holds meanwhile.

use crate::common::{Store, file, pattern, read, storage, write};
use foliocache_mm::{Iocb, IovIter, MappingCharge, PAGE_SIZE, ReadaheadState};
use foliocache_sync::ShardedCounter;
use foliocache_sys::Errno;
use std::io::IoSlice;
use std::sync::atomic::Ordering;

#[test]
fn written_bytes_are_read_back_and_reach_the_store() {
    let (mm, bdi) = storage(8);
    let store = Store::with(b"");
    let file = file(&bdi, &store);
    let cursor = file.sample_wb_err();
    let bytes = pattern(1, 100, 50_000);
    write(&file, 100, &bytes);
    assert_eq!(file.size(), 50_100);
    assert_eq!(read(&file, 100, 60_000), bytes);
    assert_eq!(read(&file, 0, 100), vec![0; 100]);
    file.fsync(&cursor).unwrap();
    assert_eq!(store.content()[100..], bytes);
    assert_eq!(store.flushes.load(Ordering::Relaxed), 1);
    let stats = file.stats();
    assert_eq!(
        (stats.dirty_pages, stats.unstable_pages, stats.failed_pages),
        (0, 0, 0)
    );
    assert_eq!(stats.resident_pages, 13);
    drop(file);
    assert_eq!(
        mm.usage().in_use_pages,
        0,
        "a dropped file leaves nothing behind"
    );
}

#[test]
fn reads_of_folios_in_use_end_with_the_file_and_count_each_page() {
    let (_mm, bdi) = storage(8);
    let bytes = pattern(3, 0, 3 * PAGE_SIZE + 100);
    let file = file(&bdi, &Store::with(b""));
    write(&file, 0, &bytes);
    // The first two reads of a page make it known to be in use.
    for _ in 0..2 {
        assert_eq!(read(&file, 0, bytes.len()), bytes);
    }
    let page = PAGE_SIZE as u64;
    for (pos, len, pages) in [
        (0, PAGE_SIZE, 1),
        (page + 7, 100, 1),
        // Ends with the file, and goes on beyond it.
        (3 * page + 50, 50, 1),
        (3 * page + 50, PAGE_SIZE, 1),
        (page - 1, 2, 2),
        (3 * page + 100, 1, 0),
        (page, 0, 0),
        (u64::MAX, PAGE_SIZE, 0),
    ] {
        let before = file.stats().hit_pages;
        let start = bytes.len().min(pos as usize);
        let end = bytes.len().min(start.saturating_add(len));
        assert_eq!(read(&file, pos, len), bytes[start..end], "{len} at {pos}");
        assert_eq!(file.stats().hit_pages - before, pages, "{len} at {pos}");
    }
}

#[test]
fn overwriting_part_of_a_folio_from_several_buffers_is_one_write() {
    let (_mm, bdi) = storage(8);
    let file = file(&bdi, &Store::with(b""));
    let mut expected = pattern(4, 0, 2 * PAGE_SIZE);
    write(&file, 0, &expected);
    let parts: [&[u8]; 4] = [b"", b"one", b"", b"three"];
    for pos in [10, PAGE_SIZE - 4] {
        let slices = parts.map(IoSlice::new);
        let mut iter = IovIter::sources(&slices);
        assert_eq!(file.write(&mut Iocb::at(pos as u64), &mut iter).unwrap(), 8);
        assert_eq!(iter.remaining(), 0);
        expected[pos..pos + 8].copy_from_slice(b"onethree");
        assert_eq!(read(&file, 0, 2 * PAGE_SIZE), expected);
    }
}

#[test]
fn a_partial_write_of_an_uncached_page_keeps_the_rest() {
    let (_mm, bdi) = storage(8);
    let store = Store::with(&pattern(2, 0, 10_000));
    let file = file(&bdi, &store);
    write(&file, 5000, b"hello");
    let mut expected = pattern(2, 0, 10_000);
    expected[5000..5005].copy_from_slice(b"hello");
    assert_eq!(read(&file, 0, 20_000), expected);
    file.sync().unwrap();
    assert_eq!(store.content(), expected);
}

#[test]
fn truncate_cuts_and_grows_with_zeros() {
    let (_mm, bdi) = storage(8);
    let store = Store::with(&pattern(3, 0, 20_000));
    let file = file(&bdi, &store);
    assert_eq!(read(&file, 0, 20_000).len(), 20_000);
    write(&file, 9000, b"dirty");
    file.truncate(9_003).unwrap();
    file.truncate(30_000).unwrap();
    let mut expected = pattern(3, 0, 9000);
    expected.extend(b"dir");
    expected.resize(30_000, 0);
    assert_eq!(read(&file, 0, 40_000), expected);
    file.sync().unwrap();
    assert_eq!(store.content(), expected);
}

#[test]
fn punched_holes_read_zeros_in_cache_and_store() {
    let (_mm, bdi) = storage(8);
    for (pos, len) in [
        (100, 50),
        (4096, 4096),
        (5000, 20_000),
        (0, 4097),
        (39_000, 9_999),
    ] {
        let store = Store::with(&pattern(4, 0, 40_000));
        let file = file(&bdi, &store);
        let mut expected = read(&file, 0, 40_000);
        write(&file, 6000, b"dirty");
        expected[6000..6005].copy_from_slice(b"dirty");
        file.punch_hole(pos, len).unwrap();
        let end = ((pos + len) as usize).min(40_000);
        expected[pos as usize..end].fill(0);
        assert_eq!(read(&file, 0, 50_000), expected, "hole of {len} at {pos}");
        file.sync().unwrap();
        assert_eq!(store.content(), expected, "hole of {len} at {pos}");
    }
}

#[test]
fn far_more_data_than_memory() {
    let (mm, bdi) = storage(4);
    let store = Store::with(b"");
    let file = file(&bdi, &store);
    let chunk = 1 << 20;
    for i in 0..32 {
        write(&file, i * chunk, &pattern(5, i * chunk, chunk as usize));
        assert!(mm.usage().total_bytes() <= mm.usage().limit_bytes);
    }
    for i in (0..32).rev() {
        assert!(read(&file, i * chunk, chunk as usize) == pattern(5, i * chunk, chunk as usize));
        assert!(mm.usage().total_bytes() <= mm.usage().limit_bytes);
    }
    file.sync().unwrap();
    assert!(store.content() == pattern(5, 0, 32 << 20));
}

#[test]
fn sequential_reads_are_few_and_large() {
    let (_mm, bdi) = storage(64);
    let store = Store::with(&pattern(6, 0, 8 << 20));
    let file = file(&bdi, &store);
    let ra = ReadaheadState::new();
    let mut bytes = vec![0; PAGE_SIZE];
    for page in 0..2048 {
        let mut iter = foliocache_mm::IovIter::destination(&mut bytes);
        file.read(&ra, &mut Iocb::at(page * PAGE_SIZE as u64), &mut iter)
            .unwrap();
    }
    let reads = store.reads.load(Ordering::Relaxed);
    assert!(reads <= 16, "{reads} reads for 8 MiB");
    let stats = file.stats();
    assert_eq!(
        stats.missed_pages + stats.readahead_first_used_pages,
        2048,
        "no page is used twice"
    );
    assert_eq!(stats.readahead_used_pages, stats.readahead_pages);
}

#[test]
fn metadata_of_a_dense_file_is_small() {
    let (mm, bdi) = storage(256);
    let store = Store::with(b"");
    let file = file(&bdi, &store);
    let page = vec![7; PAGE_SIZE];
    let mut pages = 0;
    // Dense, and dirty pages are written back meanwhile: fill most of the bound.
    while mm.usage().available_pages > 1024 {
        write(&file, pages * PAGE_SIZE as u64, &page);
        pages += 1;
        if pages % 4096 == 0 {
            file.sync().unwrap();
        }
    }
    let per_page = mm.usage().metadata_bytes as f64 / file.nr_pages() as f64;
    assert!(file.nr_pages() > 50_000, "{} pages", file.nr_pages());
    assert!(per_page <= 80.0, "{per_page} bytes of metadata a page");
}

#[test]
fn counting_the_hits_of_a_busy_file_is_charged() {
    let (mm, bdi) = storage(8);
    let store = Store::with(&pattern(4, 0, PAGE_SIZE));
    let file = file(&bdi, &store);
    assert_eq!(read(&file, 0, PAGE_SIZE).len(), PAGE_SIZE);
    let idle = mm.usage().metadata_bytes;
    let cells = ShardedCounter::heap_bytes() as u64;
    for _ in 0..4 * cells {
        read(&file, 0, 10);
    }
    assert_eq!(mm.usage().metadata_bytes, idle + cells);
    assert_eq!(bdi.mapping_bytes(), cells);
    assert_eq!(file.stats().hit_pages, 4 * cells);
    assert_eq!(mm.stats().files.hit_pages, 4 * cells);
    drop(file);
    assert_eq!(
        mm.stats().files.hit_pages,
        4 * cells,
        "of a file that is gone"
    );
    assert!(mm.usage().metadata_bytes <= idle);
    assert_eq!(bdi.mapping_bytes(), 0);
}

#[test]
fn hits_are_counted_without_room_for_cells() {
    let (mm, bdi) = storage(8);
    let file = file(&bdi, &Store::with(&pattern(5, 0, PAGE_SIZE)));
    read(&file, 0, 10);
    let mut taken = 0;
    while mm.frames().try_charge_metadata(64) {
        taken += 64;
    }
    let before = file.stats().hit_pages;
    let reads = 4 * ShardedCounter::heap_bytes() as u64;
    for _ in 0..reads {
        read(&file, 0, 10);
    }
    assert_eq!(file.stats().hit_pages, before + reads);
    assert_eq!(bdi.mapping_bytes(), 0);
    mm.uncharge_metadata(taken);
    for _ in 0..reads {
        read(&file, 0, 10);
    }
    assert!(bdi.mapping_bytes() > 0);
    assert_eq!(file.stats().hit_pages, before + 2 * reads);
}

#[test]
fn a_call_that_does_not_wait_says_how_far_it_got() {
    let (_mm, bdi) = storage(8);
    let bytes = pattern(4, 0, 64 * PAGE_SIZE);
    let file = file(&bdi, &Store::with(&bytes));
    let page = PAGE_SIZE as u64;
    let nowait = |pos| Iocb {
        nowait: true,
        ..Iocb::at(pos)
    };
    write(&file, 0, &bytes[..2 * PAGE_SIZE]);

    let handle = ReadaheadState::new();
    let mut seen = vec![0; 4 * PAGE_SIZE];
    let (mut iocb, mut iter) = (nowait(100), IovIter::destination(&mut seen));
    assert_eq!(file.read(&handle, &mut iocb, &mut iter), Err(Errno::EAGAIN));
    assert_eq!(
        (iocb.pos, iter.remaining()),
        (2 * page, 2 * PAGE_SIZE + 100)
    );
    file.fetch(&handle, &mut iocb, iter.remaining() as u64)
        .unwrap();
    assert!(iocb.fetched > 4 * page);
    let rest = file.read(&handle, &mut iocb, &mut iter);
    assert_eq!((rest, iocb.pos), (Ok(2 * PAGE_SIZE + 100), 4 * page + 100));
    assert_eq!(seen, bytes[100..][..4 * PAGE_SIZE]);

    // The second page is written in part, and its rest would have to be read.
    let change = pattern(5, 0, PAGE_SIZE + 10);
    let (mut iocb, mut iter) = (nowait(60 * page), IovIter::source(&change));
    assert_eq!(file.write(&mut iocb, &mut iter), Err(Errno::EAGAIN));
    assert_eq!((iocb.pos, iter.remaining()), (61 * page, 10));
    iocb.nowait = false;
    assert_eq!(file.write(&mut iocb, &mut iter), Ok(10));
    assert_eq!(read(&file, 60 * page, change.len()), change);

    let mut iocb = Iocb {
        append: true,
        ..nowait(0)
    };
    let mut iter = IovIter::source(&change);
    assert_eq!(file.write(&mut iocb, &mut iter), Ok(change.len()));
    assert_eq!(iocb.pos, 64 * page + change.len() as u64);
    assert_eq!(read(&file, 64 * page, change.len()), change);
}

#[test]
fn an_append_that_does_not_wait_is_whole_or_not_begun() {
    let (_mm, bdi) = storage(8);
    let file = file(&bdi, &Store::with(&[7; 10]));
    let append = |len: usize| {
        let (bytes, size) = (pattern(len as u8, 0, len), file.size());
        let mut iocb = Iocb {
            nowait: true,
            append: true,
            ..Iocb::at(0)
        };
        let mut iter = IovIter::source(&bytes);
        let done = file.write(&mut iocb, &mut iter);
        match done {
            Ok(n) => {
                assert_eq!((n, iocb.pos), (len, size + len as u64));
                assert_eq!(read(&file, size, len), bytes);
            }
            Err(_) => assert_eq!((iter.remaining(), file.size()), (len, size)),
        }
        done
    };
    // The page at the end is not cached, and its rest would have to be read.
    assert_eq!(append(5), Err(Errno::EAGAIN));
    read(&file, 0, 10);
    assert_eq!(append(5), Ok(5));
    // Into pages that are not there, and to their end.
    assert_eq!(append(3 * PAGE_SIZE), Ok(3 * PAGE_SIZE));
    assert_eq!(append(PAGE_SIZE - 15), Ok(PAGE_SIZE - 15));
    assert_eq!(append(PAGE_SIZE), Ok(PAGE_SIZE));
    // More than is set aside at once.
    assert_eq!(append(1 << 20), Err(Errno::EAGAIN));
    // No more may be dirty some time, and memory ends: never in the middle of an append.
    // The flusher may be in the way of an early one.
    let (mut whole, mut refused) = (0, 0);
    while whole < 20 || refused == 0 {
        assert!(whole + refused < 5000, "{whole} whole, {refused} refused");
        match append(30_000 + whole) {
            Ok(_) => whole += 1,
            Err(error) => {
                assert_eq!(error, Errno::EAGAIN);
                refused += 1;
            }
        }
    }
}

#[test]
fn what_is_left_to_do_falls_with_each_write_and_each_flush() {
    let (_mm, bdi) = storage(8);
    let store = Store::with(&[]);
    let file = file(&bdi, &store);
    write(&file, 0, &pattern(1, 0, 10 * PAGE_SIZE));
    assert_eq!(bdi.steps_left(), 20);
    file.fdatawrite();
    assert_eq!((bdi.steps_left(), bdi.nr_not_durable()), (10, 10));
    file.sync().expect("sync");
    assert_eq!(bdi.steps_left(), 0);
}

/// Freed memory of an address space stays charged as long as its page has others, and is the system's after the last.
#[test]
fn address_spaces_are_charged_by_the_page() {
    let (mm, bdi) = storage(64);
    let store = Store::with(&[]);
    let charged = || mm.usage().metadata_bytes;
    let make = |_| {
        let charge = bdi.charge_mapping().unwrap();
        let file = charge.make(store.clone(), 0);
        (charge, file)
    };
    let (files, page) = (2_000, PAGE_SIZE as u64);
    let before = charged();
    let mut made: Vec<_> = (0..files).map(make).collect();
    let full = charged() - before;
    assert!(full >= files * MappingCharge::memory_bytes() as u64);
    assert_eq!(mm.mappings().len() as u64, files);
    // Few of each page stay: what the heap had goes, and no page does.
    let mut at = 0;
    made.retain(|_| {
        at += 1;
        at % 3 == 0
    });
    assert!(
        charged() - before > full / 2,
        "{} of {full}",
        charged() - before
    );
    drop(made);
    assert!(
        charged() - before <= 20 * page,
        "{} bytes",
        charged() - before
    );
    assert_eq!(bdi.mapping_bytes(), 0);
}
