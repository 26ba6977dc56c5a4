//! A linear range in miniature, for tests of the boundary between files and frames.
//!
//! # Model
//!
//! Page `i` of the file has frame `base + i`, and only the part of the frames that is *present* counts as in use.
//!
//! ```text
//!   absent ──take: a promised frame──▶ present ──free──▶ leaving ──punch, after a grace period──▶ absent
//!                                         ▲                 │                   (counted no more)
//!                                         └── take: back ───┘
//! ```
//!
//! The frames themselves are a block that the range has besides, zeroed where a hole would be punched.

use super::{BLOCK_FRAMES, FrameNumber, Frames, MAX_ORDER, Reservation};
use crate::direct_map;
use crate::mm::Mm;
use crate::ops::{AddressSpaceOperations, IoSegment};
use crate::types::{PAGE_SIZE, PageIndex};
use foliocache_sync::{Arc, Mutex, rcu, thread};
use foliocache_sys::Errno;
use std::collections::BTreeMap;

/// Steps of others between a grace period and the punch.
const LATE: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Present,
    /// With a number that no earlier freeing had.
    Leaving(u64),
}

#[derive(Debug, Default)]
struct Pages {
    /// All that are not absent.
    states: BTreeMap<u32, State>,
    freed: u64,
    taken_back: u64,
}

/// Frames for the first [`BLOCK_FRAMES`] pages of one file.
#[derive(Debug)]
pub struct LinearRange {
    frames: Arc<Frames>,
    base: FrameNumber,
    pages: Mutex<Pages>,
    /// Punch also what was taken back: what happens then is the models' canary.
    pub punch_taken_back: bool,
}

impl LinearRange {
    /// A range without a page. Takes a block.
    pub fn new(mm: &Mm) -> Self {
        let frames = Arc::clone(&mm.frames);
        let base = {
            let mut block = frames.try_reserve(BLOCK_FRAMES).expect("a block is free");
            frames.alloc_order(&mut block, MAX_ORDER)
        };
        Self {
            base: base.expect("a whole block is free"),
            frames,
            pages: Mutex::default(),
            punch_taken_back: false,
        }
    }

    pub(crate) fn take(
        &self,
        page: PageIndex,
        order: u32,
        promised: &mut Reservation<'_>,
    ) -> Option<FrameNumber> {
        let (first, n) = (page.0 as u32, 1 << order);
        let mut pages = self.pages.lock();
        let present = |at| pages.states.get(&at) == Some(&State::Present);
        if (first..first + n).any(present) {
            return None;
        }
        let mut back = 0;
        for at in first..first + n {
            back += u32::from(pages.states.insert(at, State::Present).is_some());
        }
        // What is taken back never stopped counting.
        promised.use_up(&self.frames, n - back);
        self.frames.budget.settle(n - back);
        pages.taken_back += u64::from(back);
        Some(self.base.add(first))
    }

    pub(crate) fn free(&self, frame: FrameNumber, order: u32) {
        let first = frame.0 - self.base.0;
        let mut pages = self.pages.lock();
        pages.freed += 1;
        let leaving = State::Leaving(pages.freed);
        for at in first..first + (1 << order) {
            assert_eq!(pages.states.insert(at, leaving), Some(State::Present));
        }
    }

    /// Punches what has been leaving since before a grace period; how many pages.
    pub fn punch(&self) -> u32 {
        let leaving = |state: &State| matches!(state, State::Leaving(_));
        let mut going = self.pages.lock().states.clone();
        going.retain(|_, state| leaving(state));
        rcu::synchronize();
        // The system call takes its time.
        for _ in 0..LATE {
            thread::yield_now();
        }
        let mut pages = self.pages.lock();
        going.retain(|at, state| {
            let leaves = pages.states.get(at) == Some(state);
            if leaves || self.punch_taken_back {
                direct_map::zero(self.frames.addr(self.base.add(*at)), PAGE_SIZE);
            }
            leaves
        });
        for at in going.keys() {
            pages.states.remove(at);
        }
        self.frames.budget.add(going.len() as u32);
        going.len() as u32
    }

    /// Pages that are present or on their way out, and those that were taken back, ever.
    pub fn counts(&self) -> (usize, u64) {
        let pages = self.pages.lock();
        (pages.states.len(), pages.taken_back)
    }
}

/// A store whose page `i` is full of `fill + i`, and to which nothing can be written.
#[derive(Debug)]
pub struct PatternStore {
    /// What page 0 is full of.
    pub fill: u8,
    /// Where its frames come from, if not from all.
    pub range: Option<Arc<LinearRange>>,
}

impl AddressSpaceOperations for PatternStore {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let mut at = pos;
        for segment in segments {
            for offset in (0..segment.len()).step_by(PAGE_SIZE) {
                let byte = self.fill + (at / PAGE_SIZE as u64) as u8;
                segment.copy_from(offset, &[byte; PAGE_SIZE]);
                at += PAGE_SIZE as u64;
            }
            thread::yield_now();
        }
        Ok((at - pos) as usize)
    }

    fn linear_range(&self) -> Option<&LinearRange> {
        self.range.as_deref()
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{AddressSpace, BackingDevInfo, BdiKind, Iocb, IovIter, MmConfig, ReadaheadState};

    const PAGES: u64 = 64;

    struct World {
        mm: Arc<Mm>,
        range: Arc<LinearRange>,
        linear: Arc<AddressSpace>,
        general: Arc<AddressSpace>,
    }

    impl World {
        fn new() -> Self {
            let mut config = MmConfig::new(8 << 20);
            config.external_pressure = false;
            let mm = Mm::new(config).expect("a cache");
            let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).expect("a file system");
            let range = Arc::new(LinearRange::new(&mm));
            let open = |fill, range| {
                let store = Arc::new(PatternStore { fill, range });
                AddressSpace::new(&bdi, store, PAGES * PAGE_SIZE as u64)
            };
            Self {
                linear: open(1, Some(Arc::clone(&range))),
                general: open(101, None),
                range,
                mm,
            }
        }

        /// A promise of all frames but `left`.
        fn leave(&self, left: u32) -> Reservation<'_> {
            let away = self.mm.frames().available() as u32 - left;
            self.mm.frames().try_reserve(away).expect("it is there")
        }
    }

    fn read_all(file: &Arc<AddressSpace>, fill: u8) {
        for page in 0..PAGES {
            let mut bytes = [0; 16];
            let mut iter = IovIter::destination(&mut bytes);
            let read = file.read(
                &ReadaheadState::new(),
                &mut Iocb::at(page * PAGE_SIZE as u64),
                &mut iter,
            );
            assert_eq!(read.expect("read"), 16);
            assert_eq!(bytes, [fill + page as u8; 16], "page {page}");
        }
    }

    #[test]
    fn a_page_of_a_linear_range_has_its_own_frame_whatever_leaves_and_comes_back() {
        let world = World::new();
        let lies_at_its_place = |page: u64| {
            let locked = world.linear.lock_folio(PageIndex(page)).expect("cached");
            let offset = (page - locked.index().0) as u32;
            assert_eq!(
                locked.frame().add(offset),
                world.range.base.add(page as u32)
            );
        };
        for round in 0..3 {
            read_all(&world.linear, 1);
            (0..PAGES).for_each(lies_at_its_place);
            assert_eq!(world.mm.shrink_lru(PAGES as usize), PAGES as usize);
            assert_eq!(world.range.counts().0, PAGES as usize, "all are leaving");
            if round == 1 {
                assert_eq!(u64::from(world.range.punch()), PAGES);
            }
        }
        assert_eq!(world.range.counts().1, PAGES, "those of the second round");
        assert_eq!(u64::from(world.range.punch()), PAGES);
        let usage = world.mm.usage();
        let block = u64::from(BLOCK_FRAMES);
        assert_eq!((usage.in_use, usage.reserved), (block, 0));
    }

    #[test]
    fn a_frame_that_is_in_use_is_refused_and_the_promise_stays_whole() {
        let world = World::new();
        let mut promised = world.mm.frames().try_reserve(4).expect("free");
        let frame = world.range.take(PageIndex(1), 0, &mut promised);
        assert!(frame.is_some());
        assert_eq!(world.range.take(PageIndex(1), 0, &mut promised), None);
        assert_eq!(world.range.take(PageIndex(0), 1, &mut promised), None);
        assert_eq!(promised.left(), 3);
        world.range.free(world.range.base.add(1), 0);
        assert!(world.range.take(PageIndex(0), 1, &mut promised).is_some());
        assert_eq!(promised.left(), 2, "one page of two was taken back");
    }

    #[test]
    fn one_queue_serves_both_kinds_of_frames() {
        let world = World::new();
        let away = world.leave(8);
        // Frames of the one kind are what readers of the other wait for.
        thread::scope(|scope| {
            let readers = [(&world.general, 101), (&world.linear, 1)]
                .map(|(file, fill)| scope.spawn(move || (0..4).for_each(|_| read_all(file, fill))));
            while !readers.iter().all(|reader| reader.is_finished()) {
                world.range.punch();
                thread::yield_now();
            }
            for reader in readers {
                reader.join().expect("no panic");
            }
        });
        drop(away);
        while world.mm.shrink_lru(2 * PAGES as usize) > 0 {}
        world.range.punch();
        let usage = world.mm.usage();
        let block = u64::from(BLOCK_FRAMES);
        assert_eq!((usage.in_use, usage.reserved), (block, 0));
        assert_eq!(usage.waiters, 0);
    }
}
