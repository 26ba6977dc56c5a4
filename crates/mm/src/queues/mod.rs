//! The queues that decide what leaves first: S3-FIFO over folios, with shadow entries.
//!
//! # Model
//!
//! ```text
//!   new folio ─▶ small (a twentieth) ──used again──▶ main ──used──▶ main (again)
//!   refault  ─────────────────── if it is worth it ──▶ │
//!                    │ not used                        │ not used
//!                    ▼                                 ▼
//!                  evicted, remembered               evicted, remembered
//! ```
//!
//! A folio read once passes through *small* and leaves; only a second use, or coming back soon
//! after it left, takes it to *main*. So a scan of any length costs the main queue nothing.
//!
//! Coming back is not enough once main has its share: then a refault is worth it only if the folio
//! that main would lose next was not used since main last came round to it. If it was, it goes round
//! once more and the refault begins in small like any other. In a loop larger than the cache all
//! folios come back alike; without that each would push out one that is about to be used, and hits
//! would be as few as in LRU: none. With it the part that main has stays. A folio that main takes
//! counts as used, since its next use is as far away as that of the others.
//!
//! Folios that uncached operations brought in are in *uncached*, a list that is not aged: they leave with the operation.
//! Reclaim takes leftovers from it (`uncached.rs`).
//!
//! # Invariants
//!
//! 1. A folio is on at most one queue, and `lru_queue` says which.
//! 2. Folios of memory file systems are on none: there is nowhere to evict them to.
//! 3. A queue's length is the sum of the pages of its folios; the order of a folio changes only
//!    with the LRU lock held, or while it is on none.
//!
//! # Locking
//!
//! *Protects*: the queues, the links in the descriptors, the shadow table. *Order*: after
//! `xa_lock`; folio locks are only ever *tried* under it. *May block*: no.
//!
//! # Differences from S3-FIFO
//!
//! There a refault always goes to main, what main takes has yet to be used, small is a tenth, and as
//! many are remembered as main holds. On the traces of `foliocache bench hitratio` that gives a tenth
//! of the hits in a loop.
//!
//! # Memory ordering
//!
//! Links and `lru_queue` are Relaxed: the LRU lock orders them.

mod shadow;

use foliocache_sync::atomic::Ordering;

use crate::folio::{Folio, FolioPool, LockedFolio, Operation, flag};
use crate::types::PageIndex;
use foliocache_sync::wait::WaitTable;
use shadow::ShadowTable;

mod on {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const SMALL: u8 = 1;
    pub(crate) const MAIN: u8 = 2;
    pub(crate) const UNCACHED: u8 = 3;
}

/// The small queue's share of all queued folios: one part in this many.
const SMALL_PART: usize = 20;

/// The least share of small while main has anything to give: one part in this many. Pages that a stream has read
/// stay here for a reader close behind it.
const SMALL_LEAST_PART: usize = 24;

/// Main has its share while small has at most its own and one part in this many of all: small is a
/// little larger than its share between two rounds of reclaim, which takes many at once.
const SLACK_PART: usize = 32;

/// Most folios of uncached operations that are looked at in one go.
const LEFTOVERS: usize = 32;

/// Pages in a row that are passed over in one queue before a scan turns to the other.
const BUSY_RUN: usize = 32;

/// A doubly linked list through the descriptors.
#[derive(Debug)]
struct Queue {
    name: u8,
    head: u32,
    tail: u32,
    len: usize,
}

#[derive(Debug)]
pub(crate) struct Lru {
    small: Queue,
    main: Queue,
    uncached: Queue,
    shadows: ShadowTable,
}

/// An evicted folio, for the shadow table.
#[derive(Debug)]
pub(crate) struct Evicted {
    pub(crate) owner: u64,
    pub(crate) page: PageIndex,
    pub(crate) pages: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Scan<'a> {
    /// Locked, clean folios, already off their queue: the caller evicts them.
    pub(crate) victims: Vec<LockedFolio<'a>>,
    pub(crate) pages: usize,
    /// Pages that were passed over because they are dirty, under writeback or unstable.
    pub(crate) busy: usize,
    pub(crate) scanned: usize,
}

impl Lru {
    pub(crate) fn new(frames: u64) -> Self {
        let shadows = ShadowTable::new(frames);
        let [small, main, uncached] = [on::SMALL, on::MAIN, on::UNCACHED].map(Queue::new);
        Self {
            small,
            main,
            uncached,
            shadows,
        }
    }

    /// The queue that a folio is on.
    fn queue_of(&mut self, folio: &Folio) -> Option<&mut Queue> {
        match folio.lru_queue.load(Ordering::Relaxed) {
            on::SMALL => Some(&mut self.small),
            on::MAIN => Some(&mut self.main),
            on::UNCACHED => Some(&mut self.uncached),
            _ => None,
        }
    }

    pub(crate) fn metadata_bytes(frames: u64) -> u64 {
        ShadowTable::bytes_for(frames)
    }

    pub(crate) fn len(&self) -> usize {
        self.small.len + self.main.len
    }

    /// Pages of uncached operations.
    pub(crate) fn nr_uncached(&self) -> usize {
        self.uncached.len
    }

    /// Has a folio that lost its mark, if it did, stay in the cache like one that was just put there.
    pub(crate) fn keep(&mut self, pool: &FolioPool, folio: &Folio) {
        if self.take_uncached(pool, folio) {
            self.small.push(pool, folio);
        }
    }

    /// As [`Lru::keep`], but it is the next that leaves.
    pub(crate) fn keep_cold(&mut self, pool: &FolioPool, folio: &Folio) {
        if self.take_uncached(pool, folio) {
            self.small.push_cold(pool, folio);
        }
    }

    fn take_uncached(&mut self, pool: &FolioPool, folio: &Folio) -> bool {
        let kept = folio.lru_queue.load(Ordering::Relaxed) == on::UNCACHED
            && !folio.state.load().has(flag::DROPBEHIND);
        if kept {
            self.uncached.unlink(pool, folio);
        }
        kept
    }

    /// The oldest folios of uncached operations beyond `most` pages, locked, some of them. They stay in the list.
    pub(crate) fn leftovers<'a>(
        &mut self,
        pool: &'a FolioPool,
        waits: &'a WaitTable,
        most: usize,
    ) -> Vec<LockedFolio<'a>> {
        let mut left = Vec::new();
        let mut excess = self.uncached.len.saturating_sub(most);
        for _ in 0..LEFTOVERS {
            if excess == 0 {
                break;
            }
            let folio = pool.get(self.uncached.tail);
            excess = excess.saturating_sub(folio.nr_pages() as usize);
            self.uncached.unlink(pool, folio);
            self.uncached.push(pool, folio);
            left.extend(folio.try_lock(waits));
        }
        left
    }

    /// Queues a folio that was just put into the index; returns whether it is a refault.
    pub(crate) fn add(
        &mut self,
        pool: &FolioPool,
        folio: &Folio,
        owner: u64,
        page: PageIndex,
    ) -> bool {
        if folio.state.load().has(flag::DROPBEHIND) {
            self.uncached.push(pool, folio);
            return false;
        }
        let frames = self.len() as u64;
        let refault = self.shadows.refault(owner, page, 2 * frames);
        if refault && self.main_would_lose_less(pool) {
            folio.state.set_hint(flag::REFERENCED);
            self.main.push(pool, folio);
        } else {
            self.small.push(pool, folio);
        }
        refault
    }

    /// Whether main has room for a refault, or what it would lose for it was not used since it last
    /// came round. If it was used, it goes round now.
    fn main_would_lose_less(&mut self, pool: &FolioPool) -> bool {
        let all = self.len();
        if self.main.tail == 0 || self.small.len > all / SMALL_PART + all / SLACK_PART {
            return true;
        }
        let last = pool.get(self.main.tail);
        let used =
            last.state.load().has(flag::REFERENCED) && last.state.clear_hint(flag::REFERENCED);
        if used {
            self.main.unlink(pool, last);
            self.main.push(pool, last);
        }
        !used
    }

    /// Queues a folio again that was to be evicted and stays.
    pub(crate) fn put_back(&mut self, pool: &FolioPool, folio: &Folio) {
        self.main.push(pool, folio);
    }

    /// Takes a folio off its queue because it left the index other than by eviction.
    pub(crate) fn remove(&mut self, pool: &FolioPool, folio: &Folio) {
        if let Some(queue) = self.queue_of(folio) {
            queue.unlink(pool, folio);
        }
    }

    pub(crate) fn remove_small(&mut self, pool: &FolioPool, folio: &Folio) -> bool {
        let small = folio.lru_queue.load(Ordering::Relaxed) == on::SMALL;
        if small {
            self.small.unlink(pool, folio);
        }
        small
    }

    /// Queues the upper half of a folio beside the lower, which is being halved: `shrink` makes its
    /// order the smaller one. Both are to be `marked` as an uncached operation's.
    pub(crate) fn split(
        &mut self,
        pool: &FolioPool,
        lower: &Folio,
        upper: &Folio,
        marked: bool,
        shrink: impl FnOnce(),
    ) {
        if !marked {
            // It was used, by whom the list may not know yet.
            self.keep(pool, lower);
        }
        shrink();
        if let Some(queue) = self.queue_of(lower) {
            queue.insert_after(pool, lower, upper);
        }
    }

    /// Queues `parts`, which have the pages of a folio without the mark between them, in its place.
    pub(crate) fn replace<'a>(
        &mut self,
        pool: &FolioPool,
        folio: &Folio,
        parts: impl Iterator<Item = &'a Folio>,
    ) {
        // It was used, by whom the list may not know yet.
        self.keep(pool, folio);
        let Some(queue) = self.queue_of(folio) else {
            return;
        };
        for part in parts {
            queue.insert_after(pool, folio, part);
            queue.len += part.nr_pages() as usize;
        }
        queue.unlink(pool, folio);
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.shadows.evictions()
    }

    pub(crate) fn record_eviction(&mut self, evicted: &Evicted) {
        self.shadows
            .record(evicted.owner, evicted.page, evicted.pages);
    }

    /// Picks folios to evict, of `want` pages or a little more, looking at about `limit` pages.
    pub(crate) fn scan<'a>(
        &mut self,
        pool: &'a FolioPool,
        waits: &'a WaitTable,
        want: usize,
        limit: usize,
        wanted: impl Fn(&LockedFolio<'a>) -> bool,
    ) -> Scan<'a> {
        let mut scan = Scan::default();
        // Folios passed over in small and in main since the other was looked at: a queue of folios that cannot go
        // must not hide the other queue.
        let mut passed = [0, 0];
        // Main lets one used folio go round for each victim. Then small gives one if it has more than its least, or main
        // gives one that was used. To go on would take the mark of use from all of main, and then nothing tells what is
        // worth keeping.
        let mut kept = false;
        let mut looked = 0;
        while scan.pages < want && looked < limit && self.len() > 0 {
            let lens = [self.small.len, self.main.len];
            let done = |passed: [usize; 2]| [0, 1].map(|at| passed[at] >= lens[at].min(BUSY_RUN));
            if done(passed) == [true, true] {
                passed = [0, 0];
            }
            let [small_done, main_done] = done(passed);
            let part = if kept { SMALL_LEAST_PART } else { SMALL_PART };
            let small = match self.small.len > self.len() / part {
                true => !small_done,
                false => main_done,
            };
            let queue = if small {
                &mut self.small
            } else {
                &mut self.main
            };
            let folio = pool.get(queue.tail);
            let pages = folio.nr_pages() as usize;
            scan.scanned += pages;
            // A large folio takes no longer than a small one, and both queues are to be looked at.
            looked += pages.min(BUSY_RUN);
            let referenced = (small || !kept)
                && folio.state.load().has(flag::REFERENCED)
                && folio.state.clear_hint(flag::REFERENCED);
            if referenced {
                kept |= !small;
                queue.unlink(pool, folio);
                if small {
                    // As a refault, and for the same reason.
                    folio.state.set_hint(flag::REFERENCED);
                }
                self.main.push(pool, folio);
                continue;
            }
            match folio.try_lock(waits) {
                Some(locked) if wanted(&locked) && locked.may(Operation::Evict) => {
                    queue.unlink(pool, folio);
                    scan.pages += pages;
                    scan.victims.push(locked);
                    kept = false;
                }
                other => {
                    scan.busy += usize::from(other.as_ref().is_some_and(&wanted)) * pages;
                    passed[usize::from(!small)] += pages;
                    drop(other);
                    queue.unlink(pool, folio);
                    queue.push(pool, folio);
                }
            }
        }
        scan
    }
}

impl Queue {
    fn new(name: u8) -> Self {
        Self {
            name,
            head: 0,
            tail: 0,
            len: 0,
        }
    }

    fn push(&mut self, pool: &FolioPool, folio: &Folio) {
        let id = pool.id(folio);
        debug_assert_eq!(folio.lru_queue.load(Ordering::Relaxed), on::NONE);
        folio.lru_queue.store(self.name, Ordering::Relaxed);
        folio.lru_prev.store(0, Ordering::Relaxed);
        folio.lru_next.store(self.head, Ordering::Relaxed);
        match self.head {
            0 => self.tail = id,
            head => pool.get(head).lru_prev.store(id, Ordering::Relaxed),
        }
        self.head = id;
        self.len += folio.nr_pages() as usize;
    }

    /// Puts `folio` where the next one is taken from.
    fn push_cold(&mut self, pool: &FolioPool, folio: &Folio) {
        match self.tail {
            0 => self.push(pool, folio),
            tail => {
                self.insert_after(pool, pool.get(tail), folio);
                self.len += folio.nr_pages() as usize;
            }
        }
    }

    /// Puts `folio` behind `neighbour`: the length is the caller's.
    fn insert_after(&mut self, pool: &FolioPool, neighbour: &Folio, folio: &Folio) {
        let (id, before) = (pool.id(folio), pool.id(neighbour));
        debug_assert_eq!(folio.lru_queue.load(Ordering::Relaxed), on::NONE);
        let next = neighbour.lru_next.load(Ordering::Relaxed);
        folio.lru_queue.store(self.name, Ordering::Relaxed);
        folio.lru_prev.store(before, Ordering::Relaxed);
        folio.lru_next.store(next, Ordering::Relaxed);
        neighbour.lru_next.store(id, Ordering::Relaxed);
        match next {
            0 => self.tail = id,
            next => pool.get(next).lru_prev.store(id, Ordering::Relaxed),
        }
    }

    fn unlink(&mut self, pool: &FolioPool, folio: &Folio) {
        let prev = folio.lru_prev.load(Ordering::Relaxed);
        let next = folio.lru_next.load(Ordering::Relaxed);
        match prev {
            0 => self.head = next,
            prev => pool.get(prev).lru_next.store(next, Ordering::Relaxed),
        }
        match next {
            0 => self.tail = prev,
            next => pool.get(next).lru_prev.store(prev, Ordering::Relaxed),
        }
        folio.lru_queue.store(on::NONE, Ordering::Relaxed);
        self.len -= folio.nr_pages() as usize;
    }
}
