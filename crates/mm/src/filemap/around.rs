//! The pages that a fault maps: of its own folio, and for a load of cached folios around it.
//!
//! # Model
//!
//! ```text
//!             wanted ┌──────────────────────────────────────────┐
//!   folios    ░░│░░░░│▓▓▓▓│ not cached │▓▓▓│  the fault's  │▓▓▓│ read ahead │
//!   runs             └────┘            └─────────────────────┘
//! ```
//!
//! From its own folio a load looks up and down, over what is not cached, up to a folio that is locked, was read ahead or will
//! be dropped: a use of that has to be seen.
//!
//! # Locking
//!
//! The lock of the fault's folio is held. Those of all others are tried, in any order, and held until their pages are mapped.

use std::ops::Range;

use crate::folio::{LockedFolio, flag};
use crate::mapped::Stream;
use crate::records::{AddressSpace, Mm};
use crate::types::{PAGE_SIZE, PageIndex};

/// Pages that are not cached and that a look in one direction passes, at most: a block's.
const HOLES: u64 = 16;

/// The pages that a fault maps, and their folios.
pub(super) struct Around<'a> {
    /// Pages that are uptodate, in ascending order, of the fault's own folio and `others`.
    pub(super) runs: Vec<Range<u64>>,
    /// All locked.
    pub(super) others: Vec<LockedFolio<'a>>,
}

impl Around<'_> {
    /// Pages of one folio.
    pub(super) fn one(run: Range<u64>) -> Self {
        Self {
            runs: vec![run],
            others: Vec::new(),
        }
    }

    /// The pages in a row that a page is one of.
    pub(super) fn run_of(&self, page: PageIndex) -> Option<Range<u64>> {
        let has = |run: &&Range<u64>| run.contains(&page.0);
        self.runs.iter().find(has).cloned()
    }

    fn join_runs(&mut self) {
        self.runs.sort_unstable_by_key(|run| run.start);
        self.runs.dedup_by(|next, run| {
            let joins = next.start <= run.end;
            if joins {
                run.end = run.end.max(next.end);
            }
            joins
        });
    }
}

/// A page that was looked at.
enum Found {
    Nothing,
    /// A folio, of these pages.
    Folio(Range<u64>),
    /// A folio that is to be left alone.
    Left,
}

impl AddressSpace {
    /// The pages that a fault at `page` of a locked folio maps, as far as they lie `within`.
    pub(super) fn around<'a>(
        &'a self,
        locked: &LockedFolio<'_>,
        page: PageIndex,
        write: bool,
        stream: &Stream<'_>,
        within: &Range<u64>,
    ) -> Around<'a> {
        let part = |pages: Range<u64>| pages.start.max(within.start)..pages.end.min(within.end);
        let wanted = part(stream.pages());
        let own = self.uptodate_around(locked, page, &wanted);
        let mut around = Around {
            runs: Vec::from_iter((!own.is_empty()).then_some(own)),
            others: Vec::new(),
        };
        if write || around.runs.is_empty() {
            return around;
        }
        self.look_up(locked.end().0..wanted.end, None, &mut around);
        self.look_down(wanted.start..locked.index().0, &mut around);
        for place in stream.places() {
            self.look_up(part(place), Some(locked), &mut around);
        }
        around.join_runs();
        around
    }

    /// `locked` is the fault's folio where these may be pages of that one, or of those that were taken last.
    fn look_up<'a>(
        &'a self,
        pages: Range<u64>,
        locked: Option<&LockedFolio<'_>>,
        around: &mut Around<'a>,
    ) {
        let (mut at, mut holes) = (pages.start, 0);
        while at < pages.end && holes < HOLES {
            match self.take_at(PageIndex(at), &pages, locked, around) {
                Found::Nothing => (at, holes) = (at + 1, holes + 1),
                Found::Folio(folio) => at = folio.end,
                Found::Left => return,
            }
        }
    }

    fn look_down<'a>(&'a self, pages: Range<u64>, around: &mut Around<'a>) {
        let (mut at, mut holes) = (pages.end, 0);
        while pages.start < at && holes < HOLES {
            match self.take_at(PageIndex(at - 1), &pages, None, around) {
                Found::Nothing => (at, holes) = (at - 1, holes + 1),
                Found::Folio(folio) => at = folio.start,
                Found::Left => return,
            }
        }
    }

    /// Locks the folio at a page, and adds its pages in the row of that one, as far as they are among `pages`.
    fn take_at<'a>(
        &'a self,
        page: PageIndex,
        pages: &Range<u64>,
        locked: Option<&LockedFolio<'_>>,
        around: &mut Around<'a>,
    ) -> Found {
        let last = around.others.iter().rev().take(HOLES as usize);
        let mut held = locked.into_iter().chain(last.filter(|_| locked.is_some()));
        if let Some(held) = held.find(|folio| folio.holds(page)) {
            let run = self.uptodate_around(held, page, pages);
            let folio = held.pages();
            around.runs.extend((!run.is_empty()).then_some(run));
            return Found::Folio(folio);
        }
        let Some(folio) = self.folio_at(page) else {
            return Found::Nothing;
        };
        let mm: &Mm = self.mm();
        let other = folio.try_lock(&mm.waits);
        let Some(other) = other.filter(|other| self.has_at(other, page)) else {
            return Found::Left;
        };
        // A use of a folio that was read ahead, or that is to be dropped, has to be seen.
        if (other.state.load()).has_any(flag::READAHEAD | flag::DROPBEHIND) {
            return Found::Left;
        }
        let run = self.uptodate_around(&other, page, pages);
        let folio = other.pages();
        if !run.is_empty() {
            around.runs.push(run);
            around.others.push(other);
        }
        Found::Folio(folio)
    }

    /// Pages of a locked folio in a row around `page`, one of them, that are uptodate and among `pages`.
    fn uptodate_around(
        &self,
        locked: &LockedFolio<'_>,
        page: PageIndex,
        pages: &Range<u64>,
    ) -> Range<u64> {
        let (_, after) = self.readable(locked, page.pos());
        if after == 0 || !pages.contains(&page.0) {
            return page.0..page.0;
        }
        let before = self.readable_before(locked, page.pos());
        let start = page.0 - (before / PAGE_SIZE) as u64;
        let end = page.0 + (after / PAGE_SIZE) as u64;
        start.max(pages.start)..end.min(pages.end)
    }
}
