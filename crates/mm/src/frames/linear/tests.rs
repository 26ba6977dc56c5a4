//! Tests of linear frames by themselves.
#![allow(unsafe_code)]

use super::tables::NODE_BYTES;
use super::*;
use crate::frames::TABLE_BYTES;
use foliocache_sync::atomic::AtomicBool;
use foliocache_sync::thread;

const MIB: u64 = 1 << 20;

const NOBODY: RangeOwner = RangeOwner { file: 0, first: 0 };

fn frames(mib: u64) -> Frames {
    Frames::new(mib * MIB).expect("a frame space")
}

/// A promise of linear frames, with units of the blocks as far as it takes.
fn promise(frames: &Frames, n: u32) -> Reservation<'_> {
    loop {
        if let Some(promise) = frames.try_reserve(FrameKind::Linear, n) {
            return promise;
        }
        assert!(frames.shift_unit(FrameKind::Linear), "{:?}", frames.usage());
    }
}

/// Takes a chunk whose page table nobody charged.
fn claim_and_take(
    frames: &Frames,
    first: FrameNumber,
    order: u32,
    promise: &mut Reservation<'_>,
) -> bool {
    frames.linear.state.lock().unit(first.0).frames += 1 << order;
    frames.take_linear(first, order, promise).expect("frames")
}

/// Takes a chunk, touches each page of it, and says whether any of it was mapped.
fn take(frames: &Frames, first: FrameNumber, order: u32, value: u8) -> bool {
    let mut promise = promise(frames, 1 << order);
    let mapped = claim_and_take(frames, first, order, &mut promise);
    for n in 0..1 << order {
        set(frames, first.add(n), value);
    }
    mapped
}

fn set(frames: &Frames, frame: FrameNumber, value: u8) {
    // SAFETY: the caller has taken the frame.
    unsafe { frames.addr(frame).write_volatile(value) }
}

fn get(frames: &Frames, frame: FrameNumber) -> u8 {
    // SAFETY: the caller has taken the frame.
    unsafe { frames.addr(frame).read_volatile() }
}

fn linear_in_use(frames: &Frames) -> u64 {
    frames.usage().linear_bytes >> PAGE_SHIFT
}

#[test]
fn frames_are_taken_back_in_part_and_what_is_not_is_punched() {
    let frames = frames(16);
    let range = frames.new_range(100, NOBODY).expect("a range");
    let base = range.base();
    assert_eq!(range.pages() % u64::from(BLOCK_FRAMES), 0);
    assert!(!take(&frames, base, 4, 7));
    assert!(!take(&frames, base.add(16), 2, 8));
    assert_eq!(linear_in_use(&frames), 20);
    // The middle of what was freed as a whole, and of two.
    frames.free_linear(base, 4, true);
    assert_eq!((linear_in_use(&frames), frames.leaving()), (20, 16));
    let mut promised = promise(&frames, 4);
    assert!(
        claim_and_take(&frames, base.add(4), 2, &mut promised),
        "mapped"
    );
    assert_eq!(promised.left(), 4, "they were never given up");
    assert_eq!(get(&frames, base.add(4)), 7);
    assert_eq!((linear_in_use(&frames), frames.leaving()), (20, 12));
    frames.free_linear(base.add(16), 2, false);
    // Frames that were neither freed nor taken are on the promise.
    let mut eight = promise(&frames, 8);
    assert!(!claim_and_take(&frames, base.add(16), 3, &mut eight));
    assert_eq!(eight.left(), 4);
    drop((promised, eight));
    assert_eq!(frames.taken_back(), 8);
    assert_eq!(frames.punch_leaving(), 12);
    assert_eq!((linear_in_use(&frames), frames.leaving()), (12, 0));
    assert_eq!(
        (get(&frames, base.add(4)), get(&frames, base.add(16))),
        (7, 8)
    );
    // A punched page is zero. The touch makes it anew: it has to be taken.
    let mut promised = promise(&frames, 4);
    assert!(!claim_and_take(&frames, base, 2, &mut promised));
    assert_eq!((promised.left(), get(&frames, base)), (0, 0));
    for (first, order) in [(0, 2), (4, 2), (16, 3)] {
        frames.free_linear(base.add(first), order, false);
    }
    assert_eq!(frames.punch_leaving(), 16);
    let usage = frames.usage();
    assert_eq!(
        (usage.in_use_pages, usage.reserved_pages, frames.leaving()),
        (0, 0, 0)
    );
    frames.retire_range(range);
}

#[test]
fn a_block_freed_again_after_parts_were_taken_back_is_punched_whole() {
    let frames = frames(16);
    let range = frames.new_range(512, NOBODY).expect("a range");
    take(&frames, range.base(), 9, 1);
    frames.free_linear(range.base(), 9, false);
    for at in [0, 511, 255, 256, 100] {
        take(&frames, range.base().add(at), 0, 2);
    }
    assert_eq!((linear_in_use(&frames), frames.leaving()), (512, 507));
    for at in [0, 511, 255, 256, 100] {
        frames.free_linear(range.base().add(at), 0, false);
    }
    assert_eq!(frames.punch_leaving(), 512);
    assert_eq!((linear_in_use(&frames), frames.leaving()), (0, 0));
}

#[test]
fn a_punch_under_way_is_waited_for_by_whoever_takes_its_pages() {
    const FRAMES: u32 = 64;
    let frames = frames(16);
    let range = frames
        .new_range(u64::from(FRAMES), NOBODY)
        .expect("a range");
    let (punched, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let puncher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                punched.fetch_add(frames.punch_leaving(), Ordering::Relaxed);
            }
        });
        let users: Vec<_> = (0..2)
            .map(|half| {
                let (frames, punched) = (&frames, &punched);
                let base = range.base().add(half * FRAMES / 2);
                scope.spawn(move || {
                    let mut turn = 0_u32;
                    while punched.load(Ordering::Relaxed) < 2000 || frames.taken_back() < 2000 {
                        let value = turn as u8 | 1;
                        let first = base.add(turn % (FRAMES / 8) * 4);
                        take(frames, first, 2, value);
                        for n in 0..4 {
                            let held = get(frames, first.add(n));
                            assert_eq!(held, value, "a page was punched that was taken");
                        }
                        frames.free_linear(first, 2, false);
                        // For about as long as a grace period takes.
                        for _ in 0..turn % 64 {
                            thread::yield_now();
                        }
                        turn += 1;
                    }
                })
            })
            .collect();
        for user in users {
            user.join().expect("no panic");
        }
        done.store(true, Ordering::Relaxed);
        puncher.join().expect("no panic");
    });
    frames.punch_leaving();
    assert_eq!((linear_in_use(&frames), frames.leaving()), (0, 0));
}

#[test]
fn units_move_to_the_kind_that_is_asked_for_and_back() {
    let frames = frames(16);
    let range = frames.new_range(2048, NOBODY).expect("a range");
    let capacity = frames.capacity();
    assert_eq!(frames.available(FrameKind::Linear), 0);
    let all = frames.available(FrameKind::General);
    let general = frames
        .try_reserve(FrameKind::General, all as u32)
        .expect("all frames");
    assert!(frames.try_reserve(FrameKind::Linear, 1).is_none());
    drop(general);
    let linear = promise(&frames, 1024);
    assert_eq!(frames.available(FrameKind::General), all - 1024);
    assert!(!frames.shift_unit(FrameKind::General), "both are promised");
    drop(linear);
    let general = frames.try_reserve(FrameKind::General, all as u32 - 512);
    assert!(general.is_some(), "a unit comes back, unasked");
    assert!(
        frames.try_reserve(FrameKind::General, 513).is_none(),
        "more than there is"
    );
    drop(general);
    // The blocks keep one.
    while frames.shift_unit(FrameKind::Linear) {}
    assert_eq!(frames.available(FrameKind::General), 512);
    assert_eq!(frames.capacity(), capacity);
    while frames.shift_unit(FrameKind::General) {}
    assert_eq!(
        (frames.available(FrameKind::General), frames.capacity()),
        (all, capacity)
    );
    frames.retire_range(range);
}

#[test]
fn a_unit_that_is_owed_moves_as_soon_as_enough_frames_are_free_whoever_frees_them() {
    let frames = frames(8);
    let range = frames.new_range(1024, NOBODY).expect("a range");
    let before = frames.available(FrameKind::General);
    // Promised frames come back without a punch.
    let promised = promise(&frames, 512);
    frames.owe_unit();
    assert_eq!(frames.deficit(), 512);
    assert!(frames.try_reserve(FrameKind::Linear, 1).is_none());
    drop(promised);
    assert_eq!(frames.punch_leaving(), 0);
    frames.owe_unit();
    while frames.shift_unit(FrameKind::General) {}
    assert_eq!(
        (frames.available(FrameKind::General), frames.deficit()),
        (before, 0)
    );
    // Used frames do when they are punched.
    take(&frames, range.base(), 9, 1);
    frames.owe_unit();
    frames.owe_unit();
    assert_eq!(frames.deficit(), 512);
    frames.free_linear(range.base(), 9, false);
    assert_eq!(frames.punch_leaving(), 512);
    assert_eq!(
        (frames.available(FrameKind::General), frames.deficit()),
        (before, 0)
    );
}

#[test]
fn a_shrink_of_the_limit_takes_linear_units_and_the_bound_holds_when_frames_were_freed() {
    let frames = frames(32);
    let range = frames.new_range(4096, NOBODY).expect("a range");
    let base = range.base();
    for chunk in 0..12 {
        take(&frames, base.add(chunk * 512), 9, 1);
    }
    frames.owe_unit();
    frames.set_limit(16 * MIB).expect("a limit");
    assert!(frames.excess() > 0 && frames.deficit() > 0);
    assert!(frames.try_reserve(FrameKind::Linear, 1).is_none());
    let mut held = 12;
    while frames.excess() > 0 {
        held -= 1;
        frames.free_linear(base.add(held * 512), 9, false);
        frames.punch_leaving();
    }
    let usage = frames.usage();
    assert!(usage.total_bytes() <= 16 * MIB, "{usage:?}");
    assert!(held >= 4, "{held} of 12 are left");
    frames.set_limit(32 * MIB).expect("a limit");
    drop(promise(&frames, 512 * (12 - held)));
    while held > 0 {
        held -= 1;
        frames.free_linear(base.add(held * 512), 9, false);
    }
    frames.punch_leaving();
    let all = frames.capacity();
    while frames.shift_unit(FrameKind::General) {}
    assert_eq!(
        (
            frames.available(FrameKind::General),
            frames.usage().in_use_pages
        ),
        (all, 0)
    );
}

#[test]
fn a_retired_range_gives_its_run_and_its_page_tables_back_once_it_is_empty() {
    let frames = frames(16);
    let metadata = frames.usage().metadata_bytes;
    let range = frames.new_range(3000, NOBODY).expect("a range");
    let base = range.base();
    let pay = |bytes| frames.charge_metadata(bytes);
    assert!(frames.charge_tables(&range, 0..1, pay));
    assert!(frames.charge_tables(&range, 0..1025, pay), "two more");
    // All of two units, and a page of the third.
    assert_eq!(
        frames.usage().metadata_bytes,
        metadata + 3 * TABLE_BYTES + 17 * NODE_BYTES
    );
    assert!(frames.charge_metadata(range.memory_bytes()));
    assert!(!frames.charge_tables(&range, 0..3000, |_| false));
    take(&frames, base, 0, 9);
    take(&frames, base.add(1024), 0, 9);
    frames.free_linear(base, 0, false);
    frames.free_linear(base.add(1024), 0, false);
    frames.retire_range(range);
    let other = frames.new_range(3000, NOBODY).expect("another");
    assert_ne!(other.base(), base, "frames are leaving");
    assert_eq!(frames.punch_leaving(), 2);
    assert_eq!(frames.usage().metadata_bytes, metadata);
    let again = frames.new_range(3000, NOBODY).expect("the first once more");
    assert_eq!(again.base(), base);
    let mut promised = promise(&frames, 1);
    assert!(!claim_and_take(&frames, base, 0, &mut promised));
    assert_eq!(get(&frames, base), 0);
    frames.free_linear(base, 0, false);
    assert_eq!(frames.punch_leaving(), 1);
}

#[test]
fn page_tables_without_frames_are_given_back_and_those_with_the_fewest_are_found() {
    let frames = frames(16);
    let (before, owner) = (
        frames.usage().metadata_bytes,
        RangeOwner {
            file: 7,
            first: 4096,
        },
    );
    let range = frames.new_range(4096, owner).expect("a range");
    let base = range.base();
    assert!(
        !frames.claim_linear(base, 0),
        "its page table is not charged"
    );
    let pay = |bytes| frames.charge_metadata(bytes);
    assert!(frames.charge_tables(&range, 0..2048, pay));
    let used = [(0, 3), (512, 0), (1024, 1)];
    for (first, order) in used {
        assert!(frames.claim_linear(base.add(first), order));
        let mut promised = promise(&frames, 1 << order);
        frames
            .take_linear(base.add(first), order, &mut promised)
            .unwrap();
        set(&frames, base.add(first), 1);
    }
    // One that is only claimed keeps its table, too.
    assert!(frames.claim_linear(base.add(1536), 2));
    assert_eq!(frames.drop_idle_tables(10), 0);
    frames.unclaim_linear(base.add(1536), 2);
    assert_eq!(frames.drop_idle_tables(10), 1);
    assert!(!frames.claim_linear(base.add(1536), 2));
    assert_eq!(frames.table_bytes(), 3 * (TABLE_BYTES + 8 * NODE_BYTES));
    let sparse = frames.sparse_units(2);
    let pages = |first: u64| (owner, 4096 + first..4096 + first + 512);
    assert_eq!(sparse, [pages(512), pages(1024)]);
    // Frames that are leaving need their table until the punch; those that are taken back, longer.
    frames.free_linear(base, 3, false);
    frames.free_linear(base.add(1024), 1, false);
    assert_eq!(frames.drop_idle_tables(10), 0);
    assert!(frames.claim_linear(base.add(4), 2));
    frames
        .take_linear(base.add(4), 2, &mut promise(&frames, 4))
        .unwrap();
    assert_eq!(frames.punch_leaving(), 6);
    assert_eq!(frames.drop_idle_tables(10), 1);
    frames.free_linear(base.add(4), 2, false);
    frames.free_linear(base.add(512), 0, false);
    assert_eq!(frames.punch_leaving(), 5);
    assert_eq!(frames.drop_idle_tables(1), 1);
    assert_eq!(frames.drop_idle_tables(1), 1);
    assert_eq!(
        (frames.table_bytes(), frames.usage().metadata_bytes),
        (0, before)
    );
}

#[test]
fn metadata_takes_a_linear_unit_that_is_free_but_leaves_one_to_each_kind() {
    let frames = frames(16);
    let range = frames.new_range(2048, NOBODY).expect("a range");
    drop(promise(&frames, 1024));
    let general = frames
        .try_reserve(
            FrameKind::General,
            frames.available(FrameKind::General) as u32,
        )
        .expect("all");
    let linear = frames.capacity() - u64::from(general.left());
    assert!(linear >= 1024);
    let mut charged = 0;
    while frames.charge_metadata(64 << 10) {
        charged += 64 << 10;
    }
    assert!(charged >= 2 * MIB, "{charged} bytes");
    drop(general);
    while frames.charge_metadata(64 << 10) {
        charged += 64 << 10;
    }
    // Of each kind some can be had still.
    let linear = promise(&frames, 512);
    drop(
        frames
            .try_reserve(FrameKind::General, 512)
            .expect("a block"),
    );
    drop(linear);
    let usage = frames.usage();
    assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:?}");
    frames.uncharge_metadata(charged);
    frames.retire_range(range);
}

#[test]
fn a_range_has_room_for_the_file_to_grow() {
    let frames = frames(16);
    let units =
        |pages| frames.new_range(pages, NOBODY).expect("a range").pages() / u64::from(BLOCK_FRAMES);
    assert_eq!(
        (units(1), units(4 * 512), units(10_000 * 512)),
        (8, 8, 20_000)
    );
    assert_eq!(units(100_000 * 512), 132_768, "64 GiB more");
}

#[test]
fn a_range_larger_than_the_space_is_refused_with_both_sizes() {
    let frames = frames(16);
    let space = u64::from(frames.linear.frames.end - frames.linear.frames.start);
    let error = frames.new_range(space + 1, NOBODY).expect_err("too large");
    let wanted = (space + 1) << PAGE_SHIFT;
    let space = space << PAGE_SHIFT;
    assert_eq!(error, RangeError::NoSpace { wanted, space });
}
