//! Linear frames under random schedules: a page is evicted, filled again and punched late.
//!
//! Time stands still here, so progress that only a time-out would make shows itself as a deadlock.

use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, FrameKind, IoSegment, Iocb,
    IovIter, Mm, MmConfig, PAGE_SIZE, ReadaheadState, Step, VmaAccess, leave_out,
};
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::model::sample;
use foliocache_sync::{Arc, thread};
use foliocache_sys::Errno;
use std::sync::atomic::AtomicU64;

const PAGES: u64 = 6;

/// A store whose page `i` is full of `1 + i`, and to which nothing can be written.
#[derive(Debug)]
struct PatternStore;

impl AddressSpaceOperations for PatternStore {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let mut at = pos;
        for segment in segments {
            for offset in (0..segment.len()).step_by(PAGE_SIZE) {
                segment.copy_from(offset, &[1 + (at / PAGE_SIZE as u64) as u8; PAGE_SIZE]);
                at += PAGE_SIZE as u64;
            }
            thread::yield_now();
        }
        Ok((at - pos) as usize)
    }

    fn writepages(&self, _: u64, _: &[IoSegment<'_>]) -> Result<usize, Errno> {
        Err(Errno::EIO)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn describe(&self) -> String {
        "a pattern".into()
    }
}

/// Three readers of a mapped file in fewer frames than it has pages, and a thread that evicts and punches.
fn evict_refill_and_late_punch(taken_back: &AtomicU64) {
    let mm = Mm::new(MmConfig::new(16 << 20)).unwrap();
    let bdi = BackingDevInfo::new(&mm, "model", BdiKind::Storage).unwrap();
    let len = PAGES as usize * PAGE_SIZE;
    let file = AddressSpace::new(&bdi, Arc::new(PatternStore), len as u64);
    drop(file.map(0, len, VmaAccess::Read).unwrap());
    let frames = mm.frames();
    let linear = frames.try_reserve(FrameKind::Linear, 508).unwrap();
    let general = frames
        .try_reserve(
            FrameKind::General,
            frames.available(FrameKind::General) as u32,
        )
        .unwrap();
    let read_pages = |pages: [u64; 6]| {
        let file = file.share();
        thread::spawn(move || {
            // The second read finds what the first brought in.
            for page in pages.into_iter().flat_map(|page| [page, page]) {
                let mut bytes = [0; 16];
                let mut iter = IovIter::destination(&mut bytes);
                let pos = page * PAGE_SIZE as u64;
                let read = file.read(&ReadaheadState::new(), &mut Iocb::at(pos), &mut iter);
                assert_eq!(read, Ok(16));
                assert_eq!(bytes, [1 + page as u8; 16], "a foreign byte in page {page}");
            }
        })
    };
    let done = Arc::new(AtomicBool::new(false));
    let puncher = {
        let (mm, done) = (Arc::clone(&mm), Arc::clone(&done));
        thread::spawn(move || {
            // Relaxed: only ends the loop.
            while !done.load(Ordering::Relaxed) {
                mm.shrink(1);
                thread::yield_now();
                mm.punch();
            }
        })
    };
    let readers = [[0, 1, 2, 0, 1, 3], [1, 0, 4, 1, 0, 5], [5, 3, 1, 2, 0, 4]].map(read_pages);
    for reader in readers {
        reader.join().unwrap();
    }
    done.store(true, Ordering::Relaxed);
    puncher.join().unwrap();
    drop((linear, general, file));
    bdi.stop();
    mm.punch();
    taken_back.fetch_add(mm.taken_back(), std::sync::atomic::Ordering::Relaxed);
    let usage = mm.usage();
    assert_eq!(
        (usage.in_use_pages, usage.reserved_pages, usage.waiters),
        (0, 0, 0)
    );
}

#[test]
fn a_frame_that_is_to_be_punched_is_taken_back_by_whoever_fills_its_page_again() {
    static TAKEN_BACK: AtomicU64 = AtomicU64::new(0);
    sample(400, || evict_refill_and_late_punch(&TAKEN_BACK));
    // Relaxed: all threads have ended.
    let times = TAKEN_BACK.load(std::sync::atomic::Ordering::Relaxed);
    assert!(times > 20, "{times} frames were taken back");
}

#[test]
#[should_panic(expected = "a foreign byte")]
fn a_punch_after_its_frames_were_filled_again_is_found() {
    static TAKEN_BACK: AtomicU64 = AtomicU64::new(0);
    leave_out(Step::PunchAtOnce);
    sample(1000, || evict_refill_and_late_punch(&TAKEN_BACK));
}
