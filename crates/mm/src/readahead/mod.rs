//! Readahead: how much to read beyond the request, and when.
//!
//! # Model
//!
//! Each handle tells apart the streams that read through it. A miss that belongs to none is read as
//! it was asked for, and remembered; misses that fit together become a stream ([`history`]). A
//! stream has windows that double, and the next is started while the reader is still in the one
//! before ([`stream`]). The pages that all streams of a cache have read ahead and not used are
//! bounded ([`budget`]).
//!
//! ```text
//!   miss ─▶ of a stream? ─yes─▶ its window, larger each time ─▶ (read now, start behind it)
//!              │ no
//!              └─▶ fits earlier misses? ─yes─▶ a new stream: 16 pages, or twice the request
//!                        └─ no: random ─▶ the request, and no more
//!
//!   first use of what was read ahead ─▶ lead < async_size? ─▶ start the next window
//! ```
//!
//! Windows are shorter when memory is short, when little of what was read ahead of this file was used, and
//! when many streams share the budget. The order of the folios follows the window; windows end where the next
//! one's folios can begin.
//!
//! The memory of a handle's streams is taken at its first miss and grows with the streams that it tells apart, to 6
//! KiB at most. The opener of the handle charges the first part. Growth is charged here; where the bound has no room
//! for it, fewer streams are told apart.
//!
//! # Invariants
//!
//! 1. A window lies in the file, but for the page that missed, which is always in it.
//! 2. An ordinary hit comes nowhere near: neither lock nor streams.
//!
//! # Locking
//!
//! A handle's streams have a lock of [`Rank::Readahead`], taken on a miss and on the first use of a
//! folio that was read ahead. Inside it: the budget's. *May block*: for a bounded number of steps.
//!
//! # Memory ordering
//!
//! All Relaxed: `passes`, `access` and `uncached` are hints. `passes` is not stored to for a hit on a folio that is known to be
//! in use (`AddressSpace::read_in_use`): threads that share a handle and read what is hot write nothing that the others read.
//!
//! # Differences from Linux
//!
//! Linux has one window per open file and finds other streams by looking at what is cached. Here
//! several windows are kept, backward and strided streams are known, and there is a budget.

mod budget;
mod history;
mod passes;
mod request;
mod stream;
mod streams;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub(crate) use budget::{READAHEAD_PART, ReadaheadBudget, ReadaheadFeedback};

use foliocache_sync::atomic::{AtomicBool, AtomicU8, Ordering};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::{Arc, OnceBox};

use crate::types::PageIndex;
use passes::Passes;
use request::Request;
use std::ops::Range;
use streams::Streams;

/// Pages of the first window of a stream, and of the smallest that is worth reading: 64 KiB.
const FIRST_WINDOW: u64 = 16;

/// Streams that one handle tells apart.
const MAX_STREAMS: usize = 32;

/// Entries of a table that is made.
const FIRST_ENTRIES: usize = 4;

/// Pages of the largest window: 4 MiB, of which two may be on their way.
pub(crate) const MAX_WINDOW: u64 = 1024;

/// Pages of the largest window of a store that makes its caller wait: 1 MiB.
pub(crate) const WAIT_MAX: u64 = 256;

/// Pages of the largest window of a store whose reads are copies: 128 KiB.
pub(crate) const COPY_MAX: u64 = 32;

/// A caller's advice about its accesses through one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Access {
    /// Nothing: the cache finds out.
    Normal,
    /// From front to back: windows start large.
    Sequential,
    /// Anywhere: no readahead.
    Random,
}

/// The limits of readahead now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    /// Pages of the largest window.
    pub(crate) max: u64,
    /// The largest folio's order.
    pub(crate) max_order: u32,
    /// Pages in the file.
    pub(crate) file_pages: u64,
    /// Whether the store reads in the background. Where it does not, reading ahead of need saves no time: each window
    /// is read when it is missed, and no more than `now_max` pages.
    pub(crate) background: bool,
    pub(crate) now_max: u64,
    /// Pages that can be had at once, where evicting frees none at once; else no limit. Windows are cut to it, and a stream
    /// goes on where its window ended.
    pub(crate) room: u64,
    /// The cache's budget.
    pub(crate) budget: &'a Arc<ReadaheadBudget>,
    /// How much of the readahead of this file was used.
    pub(crate) feedback: &'a ReadaheadFeedback,
}

impl Limits<'_> {
    /// The largest window for this file, in pages, at least one.
    fn max_window(&self) -> u64 {
        let max = match self.background {
            true => self.max,
            false => self.max.min(self.now_max),
        };
        self.feedback.scale(max).max(1)
    }

    /// The request and no more; as much of it as a window may hold and the file has.
    fn asked(&self, request: Request) -> Window {
        let within = self.file_pages.saturating_sub(request.first).max(1);
        let pages = request.pages().min(self.max.max(1)).min(within);
        let order = stream::order_for(pages, self.max_order);
        Window::new(request.first, pages, order)
    }
}

/// Pages to read in one go. Those that are in the cache already stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: PageIndex,
    /// Never 0.
    pub(crate) pages: u64,
    /// The order of folios to use where they fit in the window and are aligned, at most.
    pub(crate) order: u32,
}

impl Window {
    /// A range that is wanted whole, in folios as large as may be.
    pub(crate) fn whole(start: PageIndex, pages: u64, max_order: u32) -> Self {
        Self::new(start.0, pages, pages.max(1).ilog2().min(max_order))
    }

    pub(crate) fn new(start: u64, pages: u64, order: u32) -> Self {
        let start = PageIndex(start);
        Self {
            start,
            pages,
            order,
        }
    }
}

/// The readahead state of one handle.
///
/// Takes up to 6 KiB from the first miss on, of which the caller charges [`ReadaheadState::FIRST_BYTES`].
#[doc(alias = "file_ra_state")]
#[derive(Debug, Default)]
pub struct ReadaheadState {
    /// None before the first read that is no hit on a folio known to be in use.
    passes: OnceBox<Passes>,
    access: AtomicU8,
    /// Whether it was ever used for uncached reads.
    uncached: AtomicBool,
    /// None before the first miss.
    streams: RankedMutex<{ Rank::Readahead as u8 }, Option<Box<Streams>>>,
}

impl ReadaheadState {
    /// Bytes that the first miss takes.
    pub const FIRST_BYTES: usize = size_of::<Passes>() + streams::FIRST_BYTES;

    /// The state of a handle that has read nothing.
    pub fn new() -> Self {
        const { assert!(Access::Normal as u8 == 0) };
        Self::default()
    }

    /// Takes the caller's word for how it will read. No system call, no memory.
    #[doc(alias = "fadvise")]
    pub fn advise(&self, access: Access) {
        self.access.store(access as u8, Ordering::Relaxed);
    }

    /// Byte after the last read, 0 before the first.
    #[inline]
    fn last_end(&self) -> u64 {
        self.passes.get().map_or(0, Passes::last_end)
    }

    /// Whether a read at `pos` goes on where the last one ended.
    #[inline]
    pub(crate) fn continues(&self, pos: u64) -> bool {
        self.last_end() == pos
    }

    /// Whether a read of `bytes` of the folio that has the bytes `folio` goes on with a pass over it.
    #[inline]
    pub(crate) fn goes_on(&self, folio: &Range<u64>, bytes: &Range<u64>) -> bool {
        let passes = self.passes.get();
        passes.is_some_and(|passes| passes.goes_on(folio, bytes))
    }

    /// Notes a read of `bytes`, once for a whole call.
    #[inline]
    pub(crate) fn note_read(&self, bytes: Range<u64>) {
        if self.last_end() != bytes.end {
            self.passes.get_or_init(Passes::default).note(&bytes);
        }
    }

    /// A miss at the first page of `asked`: what to read now, which contains that page, and what to start reading before
    /// waiting for that.
    ///
    /// The caller marks folios that begin after `asked`, and all of the second window, as read
    /// ahead, and reports the first use of each ([`Self::on_first_use`]).
    ///
    /// Context, of this and what follows: takes [`Rank::Readahead`]; does not sleep.
    pub(crate) fn on_miss(
        &self,
        asked: &Range<PageIndex>,
        limits: &Limits<'_>,
    ) -> (Window, Option<Window>) {
        let request = Request {
            first: asked.start.0,
            last: asked.end.0 - 1,
        };
        let access = self.access.load(Ordering::Relaxed);
        if access == Access::Random as u8 {
            return (limits.asked(request), None);
        }
        self.with_streams(limits, |streams| {
            streams
                .get_or_insert_with(|| Box::new(Streams::new(limits.budget)))
                .on_miss(
                    request,
                    self.continues_with(asked.start),
                    access == Access::Sequential as u8,
                    limits,
                )
        })
    }

    /// Runs something with the streams, which start over if the handle is used with another cache than before.
    fn with_streams<R>(
        &self,
        limits: &Limits<'_>,
        run: impl FnOnce(&mut Option<Box<Streams>>) -> R,
    ) -> R {
        let mut streams = self.streams.lock();
        let of_another = streams.take_if(|streams| !streams.belong_to(limits.budget));
        let done = run(&mut streams);
        drop(streams);
        // Their tables are uncharged, which may take a lock that comes before this one.
        drop(of_another);
        done
    }

    /// The first use of a folio that readahead brought in, at `page`: what to start reading in the
    /// background. Allocates only if there is something to start.
    pub(crate) fn on_first_use(&self, page: PageIndex, limits: &Limits<'_>) -> Vec<Window> {
        let access = self.access.load(Ordering::Relaxed);
        if access == Access::Random as u8 {
            return Vec::new();
        }
        let sequential = self.continues_with(page);
        self.with_streams(limits, |streams| match streams {
            Some(streams) => streams.on_first_use(page.0, sequential, limits),
            // Another handle reads ahead of this one.
            None if !sequential => Vec::new(),
            none => none
                .insert(Box::new(Streams::new(limits.budget)))
                .on_first_use(page.0, sequential, limits),
        })
    }

    /// The pages that the forward stream of the last miss or first use, at `page`, has left behind
    /// since the last call; none of a stream that is new, and none without a stream.
    pub(crate) fn left_behind(&self, page: PageIndex, limits: &Limits<'_>) -> Range<PageIndex> {
        match &mut *self.streams.lock() {
            Some(streams) => streams.left_behind(page.0, limits),
            None => page..page,
        }
    }

    /// Notes an uncached read.
    pub(crate) fn note_uncached(&self) {
        if !self.has_read_uncached() {
            self.uncached.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_read_uncached(&self) -> bool {
        self.uncached.load(Ordering::Relaxed)
    }

    /// Ends its streams; returns ranges that contain all pages that they read ahead and did not
    /// reach.
    pub(crate) fn end(&self) -> Vec<Range<PageIndex>> {
        let streams = self.streams.lock().take();
        streams.map_or(Vec::new(), |streams| streams.ahead())
    }

    /// Whether `page` is next to where the last read ended.
    fn continues_with(&self, page: PageIndex) -> bool {
        let prev_end = self.last_end();
        prev_end > 0 && page.0 == PageIndex::of(prev_end - 1).0 + 1
    }
}
