//! DMA pins against what would move, write or take what is pinned.

use crate::common::{Store, assert_empty, file, pattern, read, storage, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, FolioPin, IoSegment,
    LockedAccess, MapError, Mm, MmConfig, PAGE_SIZE, PinError, PinMode, PinnedPart, ReadaheadState,
    SlabArc, VmaAccess,
};
use foliocache_sys::Errno;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;
const MIB: u64 = 1 << 20;

fn try_pin(
    file: &SlabArc<AddressSpace>,
    bytes: Range<u64>,
    mode: PinMode,
) -> Result<FolioPin, PinError> {
    file.pin(&ReadaheadState::new(), bytes, mode)
}

fn pin(file: &SlabArc<AddressSpace>, bytes: Range<u64>, mode: PinMode) -> FolioPin {
    try_pin(file, bytes, mode).expect("a pin")
}

/// What a device would read.
fn device_reads(pin: &FolioPin) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in pin.parts() {
        for at in 0..part.len {
            // SAFETY: the memory of a pin.
            bytes.push(unsafe { part.addr.wrapping_add(at).read_volatile() });
        }
    }
    bytes
}

/// What a device does that fills a pin's memory.
fn device_fills(pin: &FolioPin, byte: u8) {
    assert!(pin.mode().device_writes);
    for part in pin.parts() {
        for at in 0..part.len {
            // SAFETY: the memory of a pin for that, to which no reference exists.
            unsafe { part.addr.wrapping_add(at).write_volatile(byte) };
        }
    }
}

fn parts(pin: &FolioPin) -> Vec<PinnedPart> {
    pin.parts().collect()
}

/// Reads files through the cache until nothing of before is left that can go.
fn push_out(bdi: &Arc<BackingDevInfo>, len: u64) {
    let other = file(bdi, &Store::with(&pattern(9, 0, len as usize)));
    for _ in 0..2 {
        for pos in (0..len).step_by(MIB as usize) {
            read(&other, pos, MIB as usize);
        }
    }
}

/// As a truncate that has to wait less.
fn impatient(mm: &Mm) {
    mm.set_pin_wait(Duration::from_millis(20));
}

#[test]
fn parts_are_the_bytes_of_the_file_in_order() {
    let (mm, bdi) = storage(32);
    let all = pattern(1, 0, 3 << 20);
    let file = file(&bdi, &Store::with(&all));
    for bytes in [
        0..1,
        0..PAGE,
        100..9000,
        PAGE - 1..PAGE + 1,
        5000..2 * MIB + 77,
        0..3 * MIB,
    ] {
        let pin = pin(&file, bytes.clone(), PinMode::READ);
        assert_eq!(pin.range(), bytes);
        assert!(device_reads(&pin) == all[bytes.start as usize..bytes.end as usize]);
        let mut at = bytes.start;
        for part in pin.parts() {
            assert_eq!(part.pos, at);
            at += part.len as u64;
        }
        assert_eq!(at, bytes.end);
    }
    for bytes in [0..0, 7..7, 3 * MIB..3 * MIB + 1, 0..3 * MIB + 1] {
        let refused = try_pin(&file, bytes.clone(), PinMode::READ);
        assert_eq!(
            refused.expect_err("not in the file").errno(),
            Errno::EINVAL,
            "{bytes:?}"
        );
    }
    assert_eq!(mm.stats().unreclaimable.pinned_pages, 0);
    drop(file);
    assert_empty(&mm);
}

#[test]
fn counters_balance_however_pins_overlap() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 64 << 12)));
    let modes = [
        PinMode::READ,
        PinMode::WRITE,
        PinMode::READ.long_term(),
        PinMode::WRITE.long_term(),
    ];
    let pinned = || {
        (
            file.stats().pinned_pages,
            mm.stats().unreclaimable.pinned_pages,
        )
    };
    // Folios of a page each.
    for page in (0..64).rev() {
        read(&file, page * PAGE, 1);
    }
    let resident = file.stats();
    let mut pins = Vec::new();
    for (at, mode) in modes.into_iter().cycle().take(16).enumerate() {
        let start = at as u64 * PAGE;
        pins.push(pin(&file, start..start + 8 * PAGE, mode));
    }
    assert!(
        pinned().0 >= 23 && pinned().0 == pinned().1,
        "{:?}",
        pinned()
    );
    let ranges = file.pinned();
    assert_eq!(
        ranges
            .iter()
            .map(|range| range.bytes.end - range.bytes.start)
            .sum::<u64>(),
        pinned().0 * PAGE
    );
    assert!(
        ranges
            .iter()
            .any(|range| range.long_pins > 0 && range.device_writes > 0)
    );
    while !pins.is_empty() {
        pins.swap_remove(pins.len() / 2);
    }
    assert_eq!(pinned(), (0, 0));
    assert_eq!(file.pinned(), []);
    file.sync().expect("sync");
    let stats = file.stats();
    assert_eq!(
        (
            stats.dirty_pages,
            stats.writeback_pages,
            stats.unstable_pages
        ),
        (0, 0, 0)
    );
    assert_eq!(stats.folios, resident.folios);
}

#[test]
fn reclaim_and_a_smaller_bound_pass_pinned_folios_by() {
    let (mm, bdi) = storage(64);
    let all = pattern(1, 0, 16 << 20);
    let file = file(&bdi, &Store::with(&all));
    let pins: Vec<_> = (0..16)
        .map(|at| {
            pin(
                &file,
                at * MIB + 3 * PAGE..at * MIB + 5 * PAGE,
                PinMode::READ.long_term(),
            )
        })
        .collect();
    let before: Vec<_> = pins.iter().map(parts).collect();
    push_out(&bdi, 128 << 20);
    let held = file.stats();
    assert_eq!(
        held.resident_pages, held.pinned_pages,
        "everything else went"
    );
    // Blocks are given back, and what can be moved moves.
    mm.set_limit(32 << 20).expect("a smaller bound");
    push_out(&bdi, 64 << 20);
    assert_eq!(pins.iter().map(parts).collect::<Vec<_>>(), before);
    for pin in &pins {
        let Range { start, end } = pin.range();
        assert!(device_reads(pin) == all[start as usize..end as usize]);
    }
    drop(pins);
    push_out(&bdi, 64 << 20);
    assert_eq!(file.stats().resident_pages, 0, "pins are over");
}

/// Pins 256 single pages for long, scattered over a file of 48 MiB that was read in long pieces; in a full cache, or not.
/// Returns how many blocks they keep from being given back.
fn blocks_of_scattered_pins(full: bool) -> usize {
    let (mm, bdi) = storage(64);
    let all = pattern(1, 0, 48 << 20);
    let file = file(&bdi, &Store::with(&all));
    for pos in (0..48 * MIB).step_by(MIB as usize) {
        read(&file, pos, MIB as usize);
    }
    if full {
        push_out(&bdi, 32 << 20);
    }
    let pins: Vec<_> = (0..256)
        .map(|at| {
            let start = at * 48 * PAGE;
            pin(&file, start..start + PAGE, PinMode::READ.long_term())
        })
        .collect();
    assert_eq!(file.stats().pinned_pages, 256, "nothing else");
    let blocks: HashSet<_> = (mm.holders(1000).iter())
        .map(|holder| holder.block.expect("one block"))
        .collect();
    mm.set_limit(24 << 20).expect("a smaller bound");
    let start = Instant::now();
    while mm.usage().total_bytes() > 24 << 20 {
        let usage = mm.usage();
        assert!(start.elapsed() < Duration::from_secs(10), "{usage:?}");
        thread::sleep(Duration::from_millis(1));
    }
    for pin in &pins {
        let Range { start, end } = pin.range();
        assert!(device_reads(pin) == all[start as usize..end as usize]);
    }
    drop((pins, file));
    assert_empty(&mm);
    blocks.len()
}

#[test]
fn long_pins_of_scattered_pages_hold_up_a_shrink_by_few_blocks() {
    let blocks = [false, true].map(blocks_of_scattered_pins);
    println!("{blocks:?} blocks");
    assert!(blocks[0] <= 2 && blocks[1] <= 8, "{blocks:?} blocks");
}

/// One request in a small cache may lie in all its blocks, and ends soon.
#[test]
fn a_fault_waits_for_short_pins_that_lie_everywhere() {
    let (mm, bdi) = storage(16);
    let pinned = file(&bdi, &Store::with(&pattern(1, 0, 13 << 20)));
    read(&pinned, 0, 13 << 20);
    let pins: Vec<_> = (0..13 * MIB)
        .step_by(256 << 10)
        .map(|start| try_pin(&pinned, start..start + 10, PinMode::READ).expect("a pin"))
        .collect();
    assert_eq!(pins.len(), 52);
    let mapped = file(&bdi, &Store::with(&pattern(2, 0, 4 << 20)));
    let loader = thread::spawn(move || {
        let vma = mapped.map(0, 4 << 20, VmaAccess::Read).expect("a mapping");
        // SAFETY: inside the mapping.
        unsafe { vma.address().wrapping_add(PAGE as usize).read_volatile() }
    });
    thread::sleep(Duration::from_millis(300));
    assert!(!loader.is_finished(), "it found memory beside the pins");
    drop(pins);
    let byte = loader.join().expect("no panic");
    assert_eq!(byte, pattern(2, PAGE, 1)[0]);
    drop(pinned);
    assert_empty(&mm);
}

#[test]
fn bytes_written_by_a_device_are_written_back() {
    let (mm, bdi) = storage(32);
    let store = Store::with(&pattern(1, 0, 1 << 20));
    let file = file(&bdi, &store);
    {
        let pin = pin(&file, PAGE..3 * PAGE, PinMode::WRITE);
        device_fills(&pin, 7);
    }
    let here = PAGE as usize..3 * PAGE as usize;
    assert!(read(&file, PAGE, here.len()).iter().all(|&byte| byte == 7));
    file.sync().expect("sync");
    assert!(store.content()[here.clone()].iter().all(|&byte| byte == 7));
    assert_eq!(file.stats().dirty_pages, 0);
    let pin = pin(&file, PAGE..3 * PAGE, PinMode::READ);
    file.sync().expect("sync");
    assert_eq!(
        file.stats().dirty_pages,
        0,
        "a device that reads makes nothing dirty"
    );
    drop((pin, file));
    assert_empty(&mm);
}

#[test]
fn a_sync_writes_what_a_device_may_write_and_leaves_it_dirty() {
    let (_mm, bdi) = storage(32);
    let store = Store::with(&pattern(1, 0, 1 << 20));
    let file = file(&bdi, &store);
    let pinned = pin(&file, PAGE..2 * PAGE, PinMode::WRITE.long_term());
    for byte in 1..4 {
        device_fills(&pinned, byte);
        file.sync().expect("sync");
        assert_eq!(store.content()[PAGE as usize], byte);
        assert!(file.stats().dirty_pages > 0);
    }
    device_fills(&pinned, 9);
    drop(pinned);
    file.sync().expect("sync");
    assert_eq!(store.content()[PAGE as usize], 9);
    assert_eq!(file.stats().dirty_pages, 0);
}

/// A store that reads twice what it is given to write, as one does that makes a checksum first.
#[derive(Default)]
struct ReadsTwice {
    /// What happens between the two.
    between: Mutex<Option<Box<dyn Fn() + Send>>>,
    writes: AtomicU64,
    /// Writes whose bytes were others the second time.
    torn: AtomicU64,
}

impl AddressSpaceOperations for ReadsTwice {
    fn read_folios(&self, _pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        for segment in segments {
            segment.copy_from(0, &vec![0; segment.len()]);
        }
        Ok(segments.iter().map(IoSegment::len).sum())
    }

    fn writepages(&self, _pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let copy = || {
            let bytes = segments.iter().map(|segment| {
                let mut bytes = vec![0; segment.len()];
                segment.copy_to(0, &mut bytes);
                bytes
            });
            bytes.collect::<Vec<_>>().concat()
        };
        let first = copy();
        if let Some(between) = &*self.between.lock().unwrap() {
            between();
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        let torn = u64::from(copy() != first);
        self.torn.fetch_add(torn, Ordering::Relaxed);
        Ok(first.len())
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _size: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn punch_hole(&self, _pos: u64, _len: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn describe(&self) -> String {
        "a store that reads twice".into()
    }
}

fn read_twice(
    bdi: &Arc<BackingDevInfo>,
    between: impl Fn() + Send + 'static,
) -> (SlabArc<AddressSpace>, Arc<ReadsTwice>) {
    let store = Arc::new(ReadsTwice::default());
    *store.between.lock().unwrap() = Some(Box::new(between));
    let ops = Arc::clone(&store) as Arc<dyn AddressSpaceOperations>;
    (AddressSpace::new(bdi, ops, 16 * PAGE), store)
}

#[test]
fn a_store_that_reads_twice_sees_one_version_of_what_a_device_writes() {
    let (_mm, bdi) = storage(32);
    let pinned = Arc::new(Mutex::new(None));
    let device = {
        let pinned = Arc::clone(&pinned);
        move || {
            if let Some(pin) = &*pinned.lock().unwrap() {
                device_fills(pin, device_reads(pin)[0].wrapping_add(1));
            }
        }
    };
    let (file, store) = read_twice(&bdi, device);
    *pinned.lock().unwrap() = Some(pin(&file, 0..9 * PAGE, PinMode::WRITE));
    for _ in 0..3 {
        file.sync().expect("sync");
    }
    assert!(store.writes.load(Ordering::Relaxed) >= 3);
    assert_eq!(store.torn.load(Ordering::Relaxed), 0);
    // It ends without the lock that the store takes.
    let last = pinned.lock().unwrap().take();
    drop(last);
}

#[test]
fn a_device_gets_no_page_that_the_store_is_reading() {
    const PAUSE: Duration = Duration::from_millis(100);
    let (_mm, bdi) = storage(32);
    let (began, begins) = mpsc::channel();
    let (got, is_got) = mpsc::channel();
    let (file, store) = read_twice(&bdi, move || {
        began.send(()).unwrap();
        let _ = is_got.recv_timeout(PAUSE);
    });
    write(&file, 0, &[1; PAGE_SIZE]);
    thread::scope(|scope| {
        let synced = scope.spawn(|| file.sync());
        begins.recv().unwrap();
        let pinned = pin(&file, 0..PAGE, PinMode::WRITE);
        device_fills(&pinned, 2);
        let _ = got.send(());
        synced.join().unwrap().expect("sync");
    });
    assert_eq!(store.torn.load(Ordering::Relaxed), 0);
}

#[test]
fn the_flusher_leaves_what_a_device_may_write_alone() {
    let mut config = MmConfig::new(32 << 20);
    config.dirty_expire = Duration::from_millis(20);
    let mm = Mm::new(config).expect("a cache");
    let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).expect("a device");
    let store = Store::with(&pattern(1, 0, 1 << 20));
    let file = file(&bdi, &store);
    let pinned = pin(&file, 0..PAGE, PinMode::WRITE.long_term());
    device_fills(&pinned, 5);
    write(&file, MIB - PAGE, &[6; PAGE_SIZE]);
    let wait_for = |done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !done() {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{:?}",
                file.stats()
            );
            thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for(&|| store.content()[(MIB - PAGE) as usize] == 6);
    thread::sleep(Duration::from_millis(200));
    assert_ne!(store.content()[0], 5);
    drop(pinned);
    wait_for(&|| store.content()[0] == 5 && file.stats().dirty_pages == 0);
}

#[test]
fn write_pins_beyond_the_dirty_limit_stall_no_writer() {
    let (mm, bdi) = storage(32);
    let pinned = file(&bdi, &Store::with(&pattern(1, 0, 12 << 20)));
    let other = file(&bdi, &Store::with(&[]));
    // More than the dirty limit.
    let pins: Vec<_> = (0..10)
        .map(|at| {
            pin(
                &pinned,
                at * MIB..(at + 1) * MIB,
                PinMode::WRITE.long_term(),
            )
        })
        .collect();
    for at in 0..64 {
        write(&other, at * MIB, &pattern(2, at * MIB, MIB as usize));
    }
    drop(pins);
    bdi.sync();
    let stats = mm.stats();
    assert_eq!(
        (stats.unreclaimable.pinned_pages, stats.files.dirty_pages),
        (0, 0)
    );
}

#[test]
fn pins_beyond_their_share_are_refused_and_name_who_has_it() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 64 << 20)));
    let most = mm.stats().unreclaimable.most_pinned_pages * PAGE;
    let pinned = pin(&file, 0..most - 4 * MIB, PinMode::READ.long_term());
    let refused = try_pin(&file, 32 * MIB..40 * MIB, PinMode::READ).expect_err("too much");
    assert_eq!(refused.errno(), Errno::ENOBUFS);
    let PinError::TooMuch { holders, .. } = &refused else {
        panic!("{refused:?}");
    };
    assert_eq!(holders[0].bytes.start, 0);
    assert!(holders[0].long_pins == 1 && refused.to_string().contains("a store in memory"));
    assert_eq!(
        file.stats().pinned_pages,
        (most - 4 * MIB) / PAGE,
        "the pins of the call that failed are gone"
    );
    // The rest is for reads.
    push_out(&bdi, 64 << 20);
    drop(pinned);
    drop(pin(&file, 32 * MIB..40 * MIB, PinMode::READ));
    assert_eq!(mm.stats().unreclaimable.pinned_pages, 0);
}

#[test]
fn pins_beyond_their_count_are_refused_and_say_so() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    for mode in [PinMode::READ, PinMode::WRITE.long_term()] {
        let mut pins = Vec::new();
        let refused = loop {
            match try_pin(&file, 0..100, mode) {
                Ok(pin) => pins.push(pin),
                Err(refused) => break refused,
            }
            assert!(pins.len() < 100_000);
        };
        assert_eq!(refused.errno(), Errno::EOVERFLOW);
        assert!(
            refused
                .to_string()
                .contains(&format!("has {} pins", pins.len()))
        );
        pins.pop();
        pins.push(pin(&file, 0..100, mode));
    }
    assert_eq!(mm.stats().unreclaimable.pinned_pages, 0);
}

#[test]
fn pages_both_pinned_and_held_by_a_mapping_count_once() {
    let (mm, bdi) = storage(64);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 24 << 20)));
    let all = 24 * MIB / PAGE;
    let counts = || {
        let now = mm.stats().unreclaimable;
        (now.held_pages, now.pinned_pages, file.stats().pinned_pages)
    };
    let hold = || file.map_locked(0, 24 << 20, LockedAccess::Read);
    let vma = hold().expect("a mapping");
    let budget = mm.stats().unreclaimable;
    assert!(2 * all > budget.most_pages, "twice would be too much");
    let pinned = pin(&file, 0..24 * MIB, PinMode::WRITE.long_term());
    assert_eq!(counts(), (all, 0, all));
    drop(vma);
    assert_eq!(counts(), (0, all, all));
    // What is pinned is held, too.
    let vma = hold().expect("a mapping");
    assert_eq!(counts(), (all, 0, all));
    let part = pin(&file, 0..PAGE, PinMode::READ);
    drop(pinned);
    let pages = file.stats().pinned_pages;
    assert_eq!(counts(), (all, 0, pages));
    drop(vma);
    assert_eq!(counts(), (0, pages, pages));
    drop(part);
    assert_eq!(counts(), (0, 0, 0));
    // A mapping that is refused leaves things as they were.
    let pinned = pin(&file, 0..24 * MIB, PinMode::READ);
    let other = crate::common::file(&bdi, &Store::with(&pattern(1, 0, 24 << 20)));
    let refused = other.map_locked(0, 24 << 20, LockedAccess::Read);
    assert!(matches!(refused, Err(MapError::TooMuchHeld { .. })));
    assert_eq!(counts(), (0, all, all));
    drop((pinned, refused, other));
    file.sync().expect("sync");
    drop(file);
    assert_empty(&mm);
}

#[test]
fn truncate_and_punch_are_busy_under_a_long_pin_at_once() {
    let (mm, bdi) = storage(32);
    let all = pattern(1, 0, 1 << 20);
    let store = Store::with(&all);
    let file = file(&bdi, &store);
    // How long each would wait for a short pin.
    let wait = Duration::from_secs(3);
    mm.set_pin_wait(wait);
    for mode in [PinMode::READ, PinMode::WRITE] {
        let pinned = pin(&file, 10 * PAGE..11 * PAGE, mode.long_term());
        let start = Instant::now();
        assert_eq!(file.truncate(0), Err(Errno::EBUSY));
        assert_eq!(file.punch_hole(10 * PAGE, 1), Err(Errno::EBUSY));
        assert!(start.elapsed() < wait);
        assert_eq!(file.size(), MIB);
        assert!(device_reads(&pinned) == all[10 * PAGE as usize..11 * PAGE as usize]);
        // What is not cut off is in nobody's way, nor is growth.
        file.truncate(2 * MIB).expect("larger");
        file.truncate(MIB).expect("as large");
    }
    file.truncate(0).expect("nobody has it");
}

#[test]
fn truncate_waits_for_short_pins_while_new_ones_are_refused() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    mm.set_pin_wait(Duration::from_secs(30));
    let pinned = pin(&file, 200 * PAGE..201 * PAGE, PinMode::WRITE);
    let refused = || try_pin(&file, 200 * PAGE..201 * PAGE, PinMode::READ).map(drop);
    thread::scope(|scope| {
        let truncate = scope.spawn(|| file.truncate(100 * PAGE));
        let start = Instant::now();
        while refused().is_ok() {
            assert!(start.elapsed() < Duration::from_secs(10));
            thread::yield_now();
        }
        assert_eq!(refused().expect_err("barred").errno(), Errno::EAGAIN);
        // Others use the file, also those that take its lock.
        write(&file, 0, b"beside it");
        write(&file, file.size(), b"at the end");
        drop(pin(&file, 0..PAGE, PinMode::WRITE));
        file.sync().expect("sync");
        assert!(!truncate.is_finished());
        drop(pinned);
        truncate.join().expect("no panic").expect("the pin is gone");
    });
    assert_eq!(file.size(), 100 * PAGE);
    drop(pin(&file, 0..100 * PAGE, PinMode::READ));
}

#[test]
fn truncate_gives_up_where_a_short_pin_lasts() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    impatient(&mm);
    let pinned = pin(&file, 0..PAGE, PinMode::READ);
    assert_eq!(file.truncate(0), Err(Errno::EBUSY));
    assert_eq!(file.punch_hole(0, PAGE), Err(Errno::EBUSY));
    let named = &file.pinned()[0];
    assert_eq!(
        (named.short_pins, named.long_pins, named.device_writes),
        (1, 0, 0)
    );
    assert!(named.to_string().contains("a store in memory"), "{named}");
    drop(pin(&file, 0..PAGE, PinMode::READ));
    drop(pinned);
    file.punch_hole(0, PAGE).expect("nobody has it");
    file.truncate(0).expect("nobody has it");
}

#[test]
fn a_first_mapping_waits_for_pins_and_says_who_has_them() {
    let (mm, bdi) = storage(64);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 1 << 20)));
    impatient(&mm);
    for mode in [PinMode::READ, PinMode::WRITE.long_term()] {
        let pinned = pin(&file, 3 * PAGE..4 * PAGE, mode);
        let before = parts(&pinned);
        match file.map(0, 1 << 20, VmaAccess::ReadWrite) {
            Err(MapError::Busy { holder }) => assert!(holder.contains("-term pins"), "{holder}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(parts(&pinned), before);
    }
    let vma = file
        .map(0, 1 << 20, VmaAccess::ReadWrite)
        .expect("a mapping");
    // Frames of mapped files do not move: pins work there, too.
    let pinned = pin(&file, 0..MIB, PinMode::WRITE.long_term());
    device_fills(&pinned, 3);
    // SAFETY: inside the mapping.
    assert_eq!(unsafe { vma.address().read_volatile() }, 3);
    push_out(&bdi, 128 << 20);
    assert!(device_reads(&pinned).iter().all(|&byte| byte == 3));
    assert_eq!(file.punch_hole(0, PAGE), Err(Errno::EBUSY));
    let again = file
        .map(0, 1 << 20, VmaAccess::Read)
        .expect("nothing has to move");
    drop((pinned, vma, again));
    file.truncate(0).expect("nobody has it");
}

#[test]
fn a_pinned_folio_is_filled_again_in_place_when_others_change_the_file() {
    let (_mm, bdi) = storage(32);
    let store = Store::with(&pattern(1, 0, 1 << 20));
    let file = file(&bdi, &store);
    read(&file, 0, 1 << 20);
    let pinned = pin(&file, 5 * PAGE..8 * PAGE, PinMode::READ.long_term());
    let before = parts(&pinned);
    let after = pattern(7, 0, 6 * PAGE_SIZE + 77);
    *store.bytes.lock().unwrap() = after.clone();
    file.backing_changed(after.len() as u64, || true);
    assert_eq!(parts(&pinned), before);
    let mut expected = after[5 * PAGE_SIZE..].to_vec();
    expected.resize(3 * PAGE_SIZE, 0);
    assert!(device_reads(&pinned) == expected);
    assert!(read(&file, 0, 1 << 20) == after);
    drop(pinned);
    file.truncate(MIB).expect("larger");
    assert!(
        read(&file, after.len() as u64, 1 << 20)
            .iter()
            .all(|&byte| byte == 0)
    );
}

#[test]
fn discarded_dirty_pages_keep_their_pins() {
    let (mm, bdi) = storage(32);
    let store = Store::with(&pattern(1, 0, 1 << 20));
    let file = file(&bdi, &store);
    let pinned = pin(&file, 0..2 * PAGE, PinMode::WRITE.long_term());
    let before = parts(&pinned);
    device_fills(&pinned, 3);
    file.discard_dirty();
    assert_eq!(parts(&pinned), before);
    assert!(read(&file, 0, PAGE_SIZE) == pattern(1, 0, PAGE_SIZE));
    let stats = file.stats();
    assert_eq!(
        (stats.dirty_pages, stats.unstable_pages, stats.failed_pages),
        (0, 0, 0)
    );
    // The file goes, and what is pinned stays until the pin ends.
    drop(file);
    push_out(&bdi, 64 << 20);
    device_fills(&pinned, 4);
    assert!(device_reads(&pinned).iter().all(|&byte| byte == 4));
    drop(pinned);
    assert_empty(&mm);
}

#[test]
fn memory_files_can_be_pinned_holes_too() {
    let mm = Mm::new(MmConfig::new(32 << 20)).expect("a cache");
    let bdi = BackingDevInfo::new(&mm, "memory", BdiKind::Memory).expect("a device");
    let file = file(&bdi, &Store::with(&[]));
    file.truncate(MIB).expect("larger");
    let pinned = pin(&file, 0..MIB, PinMode::WRITE.long_term());
    device_fills(&pinned, 3);
    assert!(read(&file, 0, 1 << 20).iter().all(|&byte| byte == 3));
    let now = mm.stats().unreclaimable;
    assert_eq!(
        (now.pinned_pages, now.memory_pages),
        (0, 256),
        "they are counted once"
    );
    assert_eq!(file.truncate(0), Err(Errno::EBUSY));
    drop(pinned);
    file.truncate(0).expect("nobody has it");
    assert_eq!(file.stats().resident_pages, 0);
}

#[test]
fn pins_that_are_over_keep_nothing() {
    let (_mm, bdi) = storage(32);
    let store = Store::with(&pattern(1, 0, 64 << 20));
    let file = file(&bdi, &store);
    read(&file, 0, 1 << 20);
    let reads = store.reads.load(Ordering::Relaxed);
    for _ in 0..1000 {
        drop(pin(&file, 0..PAGE, PinMode::READ));
    }
    assert_eq!(store.reads.load(Ordering::Relaxed), reads);
    push_out(&bdi, 64 << 20);
    assert_eq!(file.stats().resident_pages, 0);
}
