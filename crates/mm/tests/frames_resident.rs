//! Memory that the frame space gives back is memory that the process no longer has.
//!
//! One test alone in its process, since it measures the process.
#![cfg(not(any(loom, shuttle)))]

use foliocache_mm::{BLOCK_FRAMES, BLOCK_SIZE, FrameKind, FrameNumber, Frames};
use foliocache_sys::Errno;
use foliocache_sys::memory::Resident;
use std::collections::HashSet;

const MIB: u64 = 1 << 20;

fn process_anon_bytes() -> Result<u64, Errno> {
    Ok(Resident::of_process()?.anonymous)
}

#[test]
fn a_shrink_gives_whole_blocks_back() {
    let frames = Frames::new(80 * MIB).unwrap();
    let start = process_anon_bytes().unwrap();
    let capacity = frames.capacity() as u32;
    let mut reservation = frames.try_reserve(FrameKind::General, capacity).unwrap();
    assert!(
        process_anon_bytes().unwrap() < start + MIB,
        "a promise takes no memory"
    );
    let mut owned: HashSet<FrameNumber> = (0..capacity)
        .map(|_| frames.alloc(&mut reservation))
        .collect();
    let blocks = u64::from(capacity) / 512;
    let full = process_anon_bytes().unwrap();
    let held = blocks * BLOCK_SIZE as u64;
    assert!(full - start >= held && full - start < held + 2 * MIB);

    // Every third frame stays, scattered over all blocks: nothing is wholly free.
    let mut gone = Vec::new();
    owned.retain(|&frame| {
        let stays = frame.0.is_multiple_of(3);
        if !stays {
            gone.push(frame);
        }
        stays
    });
    gone.into_iter().for_each(|frame| frames.free(frame, 0));
    frames.set_limit(40 * MIB).unwrap();
    assert!(frames.excess() >= 35 * MIB);

    // Evacuate: what lies in an isolated block moves to another.
    while frames.excess() > 0 {
        let mut blocks = frames.isolate_blocks(1, &HashSet::new());
        let block = *blocks.first().expect("enough is free elsewhere");
        for frame in frames.block_frames(block) {
            assert!(owned.remove(&frame));
            let mut one = frames
                .try_reserve(FrameKind::General, 1)
                .expect("a third of 80 fits in 40");
            let moved = frames.alloc(&mut one);
            assert_ne!(moved.0 / BLOCK_FRAMES, block.0);
            assert!(owned.insert(moved));
            frames.free(frame, 0);
        }
        assert_eq!(frames.give_back(&mut blocks), 1);
    }
    let usage = frames.usage();
    assert!(usage.total_bytes() <= usage.limit_bytes);
    assert_eq!(usage.in_use_pages, owned.len() as u64);
    assert_eq!(usage.blocks_forced, 0);
    let shrunk = process_anon_bytes().unwrap();
    assert!(
        shrunk <= start + usage.held_bytes + 2 * MIB,
        "{} MiB are resident, {} are held",
        (shrunk - start) / MIB,
        usage.held_bytes / MIB
    );

    owned.into_iter().for_each(|frame| frames.free(frame, 0));
    frames.trim(true);
    assert_eq!(frames.usage().blocks_held, 0);
    assert!(process_anon_bytes().unwrap() < start + 2 * MIB);
}
