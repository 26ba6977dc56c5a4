//! The caller's memory when it cannot be reached: what counts, what is given up, how often it is
//! touched, and that no lock is held while it is brought in.
#![cfg(target_arch = "x86_64")]
#![allow(
    unsafe_code,
    reason = "sources and destinations that are bad on purpose"
)]

use crate::bad_memory::{Memory, PAGE, Watch};
use crate::common::{Store, assert_empty, file, pattern, read, storage, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, IoSegment, Iocb, IovIter, ReadaheadState,
    SlabArc,
};
use foliocache_sys::{Errno, usercopy};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Writes from memory that may be bad.
fn write_from(
    file: &SlabArc<AddressSpace>,
    pos: u64,
    memory: &Memory,
    from: usize,
    len: usize,
) -> Result<usize, Errno> {
    // SAFETY: the handlers are installed by `Watch`, which every test holds.
    let mut iter = unsafe { IovIter::raw_source(memory.at(from), len) };
    file.write(&mut Iocb::at(pos), &mut iter)
}

/// Reads into memory that may be bad.
fn read_into(
    file: &SlabArc<AddressSpace>,
    pos: u64,
    memory: &Memory,
    from: usize,
    len: usize,
) -> Result<usize, Errno> {
    // SAFETY: as in `write_from`.
    let mut iter = unsafe { IovIter::raw_destination(memory.at(from), len) };
    file.read(&ReadaheadState::new(), &mut Iocb::at(pos), &mut iter)
}

/// A file of 20,000 bytes of pattern 1: its cache, and what it holds.
fn old_file(bdi: &Arc<BackingDevInfo>, cached: bool) -> (SlabArc<AddressSpace>, Vec<u8>) {
    let content = pattern(1, 0, 20_000);
    let file = file(bdi, &Store::with(&content));
    if cached {
        read(&file, 0, 20_000);
    }
    (file, content)
}

#[test]
fn a_source_that_ends_in_its_middle_counts_to_there() {
    let (mm, bdi) = storage(8);
    let source = pattern(2, 0, 4 * PAGE);
    let memory = Memory::holding(&source);
    memory.forbid(2 * PAGE);
    let _watch = Watch::pass_all(&memory);
    for cached in [false, true] {
        for pos in [
            0, 1, 100, 4095, 4096, 8192, 9000, 19_990, 20_000, 23_000, 40_960,
        ] {
            for good in [1, 63, 700, 4096, 4097, 8192] {
                for bad in [1, 50, 4096, 8192] {
                    let (file, mut expected) = old_file(&bdi, cached);
                    let what = format!("{good} good, {bad} bad bytes at {pos}, cached: {cached}");
                    let from = 2 * PAGE - good;
                    let n = write_from(&file, pos as u64, &memory, from, good + bad);
                    assert_eq!(n.unwrap(), good, "{what}");
                    let end = (pos + good).max(expected.len());
                    expected.resize(end, 0);
                    expected[pos..pos + good].copy_from_slice(&source[from..from + good]);
                    assert_eq!(file.size(), end as u64, "{what}");
                    assert!(read(&file, 0, end + 100) == expected, "{what}");
                    file.sync().unwrap();
                    assert_eq!(file.size(), end as u64, "{what}");
                }
            }
        }
    }
    assert_empty(&mm);
}

#[test]
fn a_source_that_is_bad_from_its_first_byte_is_efault() {
    let (mm, bdi) = storage(8);
    let memory = Memory::new(3);
    memory.forbid(0);
    let _watch = Watch::pass_all(&memory);
    for cached in [false, true] {
        for pos in [0, 100, 8192, 19_000, 20_000, 30_000] {
            let (file, expected) = old_file(&bdi, cached);
            let resident = file.nr_pages();
            let error = write_from(&file, pos, &memory, 50, 5000).unwrap_err();
            assert_eq!(error, Errno::EFAULT);
            assert_eq!(file.size(), 20_000);
            assert!(read(&file, 0, 50_000) == expected);
            assert!(!file.is_dirty(), "nothing was written");
            assert!(file.nr_pages() >= resident);
        }
    }
    assert_empty(&mm);
}

/// With every page of the source made accessible by its first fault, each is touched first by the
/// copy: nothing looks at the source before, and nothing faults a second time.
#[test]
fn the_source_is_touched_once() {
    let (_mm, bdi) = storage(8);
    let source = pattern(3, 0, 4 * PAGE);
    let first_touches = |cached: bool, fault_in_first: bool| {
        let (file, _) = old_file(&bdi, cached);
        let memory = Memory::holding(&source);
        memory.forbid(0);
        let watch = Watch::resolve_after(&memory, 0);
        if fault_in_first {
            assert_eq!(usercopy::fault_in_readable(memory.at(0), 4 * PAGE), 0);
        }
        let n = write_from(&file, 100, &memory, 0, 4 * PAGE).unwrap();
        assert_eq!(n, 4 * PAGE);
        assert!(read(&file, 100, 4 * PAGE) == source);
        let faults = watch.faults();
        let pages: Vec<usize> = faults.iter().map(|fault| fault.page / PAGE).collect();
        assert_eq!(pages, [0, 1, 2, 3], "one fault a page, in order");
        faults
    };
    for cached in [false, true] {
        let copied = first_touches(cached, false);
        let faulted_in = first_touches(cached, true);
        for fault in &copied {
            assert!(
                faulted_in.iter().all(|other| other.at != fault.at),
                "the copy does not touch first: {fault:x?}"
            );
        }
    }
}

/// Copies that are tried before the source is faulted in: a write in one cached folio tries the short
/// way first, and the long way then. The first four pages of the file are a folio.
fn tries(cached: bool, pos: u64, len: usize) -> usize {
    let one_folio = pos as usize + len <= 4 * PAGE;
    1 + usize::from(cached && one_folio)
}

/// The copy makes no progress, the fault-in does, and the write goes on.
#[test]
fn a_source_that_becomes_readable_is_written() {
    let (_mm, bdi) = storage(8);
    let source = pattern(4, 0, 3 * PAGE);
    for cached in [false, true] {
        for (pos, len) in [(0, 3 * PAGE), (100, 50), (4000, 200), (19_000, 3 * PAGE)] {
            let (file, mut expected) = old_file(&bdi, cached);
            let memory = Memory::holding(&source);
            memory.forbid(0);
            let tries = tries(cached, pos, len);
            let watch = Watch::resolve_after(&memory, tries);
            assert_eq!(write_from(&file, pos, &memory, 0, len).unwrap(), len);
            let end = pos as usize + len;
            expected.resize(end.max(20_000), 0);
            expected[pos as usize..end].copy_from_slice(&source[..len]);
            assert!(read(&file, 0, 50_000) == expected);
            let faults = watch.faults();
            assert!(faults.len() > tries && faults[..=tries].iter().all(|fault| fault.page == 0));
            assert_ne!(
                faults[0].at, faults[tries].at,
                "the copy, then the fault-in"
            );
        }
    }
}

/// While the source is faulted in, another thread writes the very page, reads it, and waits for
/// all read sections: neither the folio lock nor a read section is held.
#[test]
fn nothing_is_held_while_the_source_is_faulted_in() {
    let (_mm, bdi) = storage(8);
    let source = pattern(5, 0, PAGE);
    for cached in [false, true] {
        for (pos, len) in [(4096, PAGE), (5000, 100)] {
            let (file, mut expected) = old_file(&bdi, cached);
            let memory = Memory::holding(&source);
            memory.forbid(0);
            let tries = tries(cached, pos, len);
            let watch = Watch::gated(&memory, tries);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| write_from(&file, pos, &memory, 0, len));
                watch.wait_for(tries + 1);
                write(&file, 4096, b"beside");
                assert_eq!(read(&file, 4096, 6), b"beside");
                foliocache_sync::rcu::synchronize();
                watch.open();
                assert_eq!(writer.join().unwrap().unwrap(), len);
            });
            expected[4096..4102].copy_from_slice(b"beside");
            let pos = pos as usize;
            expected[pos..pos + len].copy_from_slice(&source[..len]);
            assert!(read(&file, 0, 50_000) == expected);
        }
    }
}

#[test]
fn nothing_is_held_while_a_destination_is_faulted_in() {
    let (_mm, bdi) = storage(8);
    for cached in [false, true] {
        let (file, expected) = old_file(&bdi, cached);
        let memory = Memory::new(2);
        memory.forbid(0);
        let watch = Watch::gated(&memory, 1);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read_into(&file, 4096, &memory, 0, 2 * PAGE));
            watch.wait_for(2);
            write(&file, 4200, b"beside");
            file.sync().unwrap();
            foliocache_sync::rcu::synchronize();
            file.truncate(20_000).unwrap();
            watch.open();
            assert_eq!(reader.join().unwrap().unwrap(), 2 * PAGE);
        });
        memory.allow(0);
        let bytes = memory.bytes();
        assert!(bytes[..104] == expected[4096..4200]);
        assert_eq!(&bytes[104..110], b"beside", "read after the fault-in");
        assert!(bytes[110..] == expected[4206..4096 + 2 * PAGE]);
    }
}

/// A store that does something to the caller's memory when it is first read from: in the middle of
/// a write, with the folio locked.
struct Hooked {
    store: Arc<Store>,
    hook: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl AddressSpaceOperations for Hooked {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        if let Some(hook) = self.hook.lock().unwrap().take() {
            hook();
        }
        self.store.read_folios(pos, segments)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
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
        "a store with a hook".into()
    }
}

/// Writes two pages and a bit from page 1's offset 100 on, with `change` made to the source when
/// page 3 is read in, the first page that is written in part and not cached. Returns the bytes.
fn change_in_the_middle(memory: Arc<Memory>, change: fn(&Memory)) -> usize {
    let (_mm, bdi) = storage(8);
    let store = Store::with(&pattern(1, 0, 20_000));
    let hooked = Arc::new(Hooked {
        store: Arc::clone(&store),
        hook: Mutex::new(None),
    });
    let file = AddressSpace::new(&bdi, hooked.clone(), 20_000);
    read(&file, 4096, 1);
    let source = Arc::clone(&memory);
    *hooked.hook.lock().unwrap() = Some(Box::new(move || change(&source)));
    let n = write_from(&file, 4096, &memory, 0, 2 * PAGE + 100).unwrap();
    assert!(hooked.hook.lock().unwrap().is_none(), "the hook ran");
    let mut expected = pattern(1, 0, 20_000);
    expected[4096..4096 + n].copy_from_slice(&pattern(6, 0, n));
    assert!(read(&file, 0, 30_000) == expected, "{n} bytes");
    file.sync().unwrap();
    assert!(store.content() == expected);
    n
}

#[test]
fn a_source_that_vanishes_in_the_middle_counts_to_there() {
    let memory = Arc::new(Memory::holding(&pattern(6, 0, 3 * PAGE)));
    let _watch = Watch::pass_all(&memory);
    let n = change_in_the_middle(Arc::clone(&memory), |memory| memory.unmap(2 * PAGE));
    assert_eq!(n, 2 * PAGE);
}

#[test]
fn a_source_that_appears_in_the_middle_is_written() {
    let memory = Arc::new(Memory::holding(&pattern(6, 0, 3 * PAGE)));
    memory.forbid(2 * PAGE);
    let watch = Watch::pass_all(&memory);
    let n = change_in_the_middle(Arc::clone(&memory), |memory| memory.allow(0));
    assert_eq!(n, 2 * PAGE + 100);
    assert!(watch.faults().is_empty(), "nobody looked before");
}

/// Each byte that was copied before the fault counts, though a second try could not read it again.
#[test]
fn a_source_that_goes_away_when_its_end_faults() {
    let (_mm, bdi) = storage(8);
    let source = pattern(7, 0, 2 * PAGE);
    for good in [1, 100, 700, PAGE] {
        for fault in 0..4 {
            let (file, mut expected) = old_file(&bdi, true);
            let memory = Memory::holding(&source);
            memory.forbid(PAGE);
            let _watch = Watch::forbid_at(&memory, fault);
            let from = PAGE - good;
            let n = write_from(&file, 50, &memory, from, 2 * good).unwrap_or(0);
            assert!(n == good || fault < 3 && n < good, "{n} of {good}");
            expected[50..50 + n].copy_from_slice(&source[from..from + n]);
            assert!(read(&file, 0, 30_000) == expected, "{n} of {good} counted");
        }
    }
}

/// Another thread takes the source's second page away and gives it back all the time.
#[test]
fn a_source_that_flickers() {
    let (_mm, bdi) = storage(8);
    let source = pattern(7, 0, 2 * PAGE);
    let memory = Memory::holding(&source);
    // Faults are too many to be listed: watch a piece of memory that is never touched.
    let other = Memory::new(1);
    let _watch = Watch::pass_all(&other);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(relaxed) {
                memory.forbid(PAGE);
                std::thread::yield_now();
                memory.allow(PAGE);
                std::thread::yield_now();
            }
        });
        let start = Instant::now();
        let (mut whole, mut part, mut round) = (0, 0, 0);
        // Many of each, or what two seconds bring, or one of each if that takes longer.
        let wanted = || match start.elapsed().as_secs() {
            0..2 => 500,
            2..60 => 1,
            _ => 0,
        };
        while whole.min(part) < wanted() {
            let (file, mut expected) = old_file(&bdi, round % 2 == 0);
            let n = write_from(&file, 50 + round % 7, &memory, 0, 2 * PAGE).unwrap();
            assert!((PAGE..=2 * PAGE).contains(&n), "{n}");
            let at = 50 + round as usize % 7;
            expected[at..at + n].copy_from_slice(&source[..n]);
            assert!(read(&file, 0, 30_000) == expected);
            whole += u32::from(n == 2 * PAGE);
            part += u32::from(n < 2 * PAGE);
            round += 1;
        }
        stop.store(true, relaxed);
        assert!(whole > 0 && part > 0, "{whole} whole, {part} in part");
    });
}

#[test]
fn a_destination_that_ends_in_its_middle_counts_to_there() {
    let (mm, bdi) = storage(8);
    let memory = Memory::new(4);
    memory.forbid(2 * PAGE);
    let _watch = Watch::pass_all(&memory);
    for cached in [false, true] {
        for pos in [0, 1, 100, 4095, 4096, 9000] {
            for good in [1, 63, 700, 4096, 4097, 8192] {
                let (file, expected) = old_file(&bdi, cached);
                let from = 2 * PAGE - good;
                let n = read_into(&file, pos as u64, &memory, from, good + 500);
                assert_eq!(n.unwrap(), good, "{good} good bytes at {pos}");
                // SAFETY: the first two pages are readable and nobody writes them now.
                let bytes = unsafe { std::slice::from_raw_parts(memory.at(from), good) };
                assert!(bytes == &expected[pos..pos + good]);
                let error = read_into(&file, pos as u64, &memory, 2 * PAGE, 100).unwrap_err();
                assert_eq!(error, Errno::EFAULT);
                // Where there is nothing to read, nothing is touched.
                assert_eq!(read_into(&file, 20_000, &memory, 2 * PAGE, 100).unwrap(), 0);
            }
        }
    }
    assert_empty(&mm);
}

#[test]
fn a_null_source_and_one_beyond_all_memory() {
    let (_mm, bdi) = storage(8);
    let other = Memory::new(1);
    let _watch = Watch::pass_all(&other);
    let (file, expected) = old_file(&bdi, true);
    for address in [0, 16, 0x8000_0000_0000, usize::MAX - 5000] {
        let nowhere = std::ptr::without_provenance_mut(address);
        // SAFETY: the handlers are installed.
        let mut source = unsafe { IovIter::raw_source(nowhere, 4000) };
        let error = file.write(&mut Iocb::at(100), &mut source).unwrap_err();
        assert_eq!(error, Errno::EFAULT);
        // SAFETY: as above.
        let mut destination = unsafe { IovIter::raw_destination(nowhere, 4000) };
        let error = file
            .read(&ReadaheadState::new(), &mut Iocb::at(100), &mut destination)
            .unwrap_err();
        assert_eq!(error, Errno::EFAULT);
    }
    assert!(read(&file, 0, 30_000) == expected);
}
