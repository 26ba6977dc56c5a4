//! Frames of a linear range under random schedules: a page is evicted, filled again and punched late.
//!
//! Time stands still here, so progress that only a time-out would make shows itself as a deadlock.
#![cfg(shuttle)]
#![allow(missing_docs)]

use foliocache_mm::{
    AddressSpace, BackingDevInfo, BdiKind, Iocb, IovIter, LinearRange, Mm, MmConfig, PAGE_SIZE,
    PatternStore, ReadaheadState,
};
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::model::sample;
use foliocache_sync::{Arc, thread};
use std::sync::atomic::AtomicU64;

const PAGES: u64 = 6;

/// Two readers of the linear file, one of another file, in fewer frames than either has, and a thread that
/// punches.
fn evict_refill_and_late_punch(punch_taken_back: bool, taken_back: &AtomicU64) {
    let mm = Mm::new(MmConfig::new(8 << 20)).unwrap();
    let bdi = BackingDevInfo::new(&mm, "model", BdiKind::Storage).unwrap();
    let mut range = LinearRange::new(&mm);
    range.punch_taken_back = punch_taken_back;
    let range = Arc::new(range);
    let open = |fill, range| {
        let store = Arc::new(PatternStore { fill, range });
        AddressSpace::new(&bdi, store, PAGES * PAGE_SIZE as u64)
    };
    let linear = open(1, Some(Arc::clone(&range)));
    let general = open(101, None);
    let away = mm
        .frames()
        .try_reserve(mm.usage().available as u32 - 4)
        .unwrap();
    let read_pages = |file: &Arc<AddressSpace>, fill: u8, pages: [u64; 6]| {
        let file = Arc::clone(file);
        thread::spawn(move || {
            // The second read finds what the first brought in.
            for page in pages.into_iter().flat_map(|page| [page, page]) {
                let mut bytes = [0; 16];
                let mut iter = IovIter::destination(&mut bytes);
                let pos = page * PAGE_SIZE as u64;
                let read = file.read(&ReadaheadState::new(), &mut Iocb::at(pos), &mut iter);
                assert_eq!(read, Ok(16));
                assert_eq!(
                    bytes,
                    [fill + page as u8; 16],
                    "a foreign byte in page {page}"
                );
            }
        })
    };
    let done = Arc::new(AtomicBool::new(false));
    let puncher = {
        let (range, done) = (Arc::clone(&range), Arc::clone(&done));
        thread::spawn(move || {
            // Relaxed: only ends the loop.
            while !done.load(Ordering::Relaxed) {
                range.punch();
                thread::yield_now();
            }
        })
    };
    let readers = [
        read_pages(&linear, 1, [0, 1, 2, 0, 1, 3]),
        read_pages(&linear, 1, [1, 0, 4, 1, 0, 5]),
        read_pages(&general, 101, [0, 3, 1, 2, 5, 4]),
    ];
    for reader in readers {
        reader.join().unwrap();
    }
    done.store(true, Ordering::Relaxed);
    puncher.join().unwrap();
    drop((away, linear, general));
    bdi.stop();
    range.punch();
    let (left, back) = range.counts();
    assert_eq!(left, 0, "pages are left in the range");
    taken_back.fetch_add(back, std::sync::atomic::Ordering::Relaxed);
    let usage = mm.usage();
    assert_eq!((usage.in_use, usage.reserved, usage.waiters), (512, 0, 0));
}

#[test]
fn a_frame_that_is_to_be_punched_is_taken_back_by_whoever_fills_its_page_again() {
    static TAKEN_BACK: AtomicU64 = AtomicU64::new(0);
    sample(400, || evict_refill_and_late_punch(false, &TAKEN_BACK));
    // Relaxed: all threads have ended.
    let times = TAKEN_BACK.load(std::sync::atomic::Ordering::Relaxed);
    assert!(times > 20, "{times} frames were taken back");
}

#[test]
#[should_panic(expected = "a foreign byte")]
fn a_punch_that_does_not_look_whether_the_frame_was_taken_back_is_found() {
    static TAKEN_BACK: AtomicU64 = AtomicU64::new(0);
    sample(1000, || evict_refill_and_late_punch(true, &TAKEN_BACK));
}
