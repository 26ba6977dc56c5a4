//! One stream: where its reader is, how far ahead it has been read, and what to read next.
//!
//! # Model
//!
//! Three shapes are one state machine over *units*, numbered in the order in which the reader meets
//! them:
//!
//! | shape | unit | its number |
//! |---|---|---|
//! | forward | a page | its index |
//! | backward | a page | its index, counted from the far end |
//! | strided | an element: `len` pages every `stride` pages | which one it is |
//!
//! ```text
//!        tail                      start                 start + size
//!   ─────┬┴────────────────────────┬─────────────────────┬──────────▶ units
//!    used│  read ahead, not used   │   newest window     │ not asked for
//!        └────────── lead ─────────┴─────────────────────┘ = front
//!
//!   lead < async_size: the next window is started
//! ```
//!
//! `async_size` is the size of the newest window, so that the next one is started when the reader
//! enters it; at the largest size it is twice that, so that two whole windows are in flight or
//! ready. It is a folio at least: of each folio only the first use is seen.
//!
//! Only a reader that goes on where it was makes a stream read ahead. A use further on leaves *doubts*: nothing
//! is started until the reader is met where it is expected then, and after [`MAX_DOUBTS`] in a row the stream is
//! over. New ones begin with all doubts but one. So random reads that looked like a stream do not keep it going.
//!
//! # Invariants
//!
//! 1. `tail < front`; both only grow, but for a miss between them, which starts over from there: the pages read ahead
//!    are gone.
//! 2. The lease covers the pages from `tail` to `front`, or has lapsed, or the budget was short.
//! 3. Windows lie inside the file and do not overlap within one call.

use super::budget::Lease;
use super::request::Request;
use super::{FIRST_WINDOW, Limits, MAX_WINDOW, WAIT_MAX, Window};
use crate::types::PageIndex;
use std::ops::Range;

/// Pages that a caller waits for at least, rather than have them read in a second piece.
const NOW_MIN: u64 = 32;

/// Elements of the first window of a strided stream.
const FIRST_ELEMENTS: u64 = 4;

/// Elements of its largest.
const MAX_ELEMENTS: u64 = 32;

/// Uses of a handle for which each unit of a stream's window lets it be remembered.
const USES_A_UNIT: u64 = 16;

/// Uses in a row, not where they were expected, after which there is no stream.
const MAX_DOUBTS: u32 = 3;

/// Pages that a reader leaves behind from one window to the next, at most.
const MAX_LEFT: u64 = 2 * MAX_WINDOW;

/// Windows of pages started by one use, so that one folio's use never costs much.
const MAX_STARTED: usize = 2;

/// Above every page: what backward streams count from.
const FAR_END: u64 = 1 << 52;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Forward,
    Backward,
    Strided {
        base: u64,
        /// Pages from one element to the next; more than `len` either way.
        stride: i64,
        len: u64,
    },
}

impl Shape {
    fn unit(self, page: u64) -> Option<u64> {
        match self {
            Self::Forward => Some(page),
            Self::Backward => FAR_END.checked_sub(page),
            Self::Strided { base, stride, len } => {
                // Counted from the edge that the reader comes to first.
                let distance = if stride > 0 {
                    page.checked_sub(base)?
                } else {
                    (base + len - 1).checked_sub(page)?
                };
                let step = stride.unsigned_abs();
                (distance % step < len).then_some(distance / step)
            }
        }
    }

    /// The page of a request that is nearest to what was read before.
    fn near(self, request: Request) -> u64 {
        match self {
            Self::Backward => request.last,
            _ => request.first,
        }
    }

    fn element(self, unit: u64) -> Option<u64> {
        let Self::Strided { base, stride, .. } = self else {
            return None;
        };
        let distance = i64::try_from(unit).ok()?.checked_mul(stride)?;
        base.checked_add_signed(distance)
    }

    fn unit_pages(self) -> u64 {
        match self {
            Self::Forward | Self::Backward => 1,
            Self::Strided { len, .. } => len,
        }
    }
}

/// The order of folios for a window of `pages`: four of them, or none that is large.
pub(super) fn order_for(pages: u64, max_order: u32) -> u32 {
    pages.max(1).ilog2().saturating_sub(2).min(max_order)
}

#[doc(alias = "file_ra_state")]
#[derive(Debug)]
pub(super) struct Stream {
    shape: Shape,
    /// The unit that the reader was seen at last.
    tail: u64,
    /// The first unit that was not asked for: where the newest window ends.
    front: u64,
    /// Units of the newest window, as it was meant; a power of two.
    size: u64,
    /// Units of the largest folio read ahead between here and `coarse`, or of the newest window's.
    step: u64,
    /// Where the folios of `step` units end.
    coarse: u64,
    /// The reader goes on here at the latest, if it is a stream's: after the folio it is in.
    next: u64,
    /// Units of a request that goes up while the stream goes down: it is met at its far end.
    backward: u64,
    /// Uses in a row that were not where they were expected.
    doubts: u32,
    begun: u64,
    /// The first page that the reader has left behind and that was not handed out as such.
    left: u64,
    lease: Lease,
    pub(super) touched: u64,
}

impl Stream {
    /// A stream whose first request is `request`, with nothing read ahead.
    pub(super) fn new(shape: Shape, request: Request) -> Self {
        let front = shape.unit(shape.near(request)).unwrap_or(0);
        Self {
            shape,
            tail: front,
            front,
            size: 0,
            step: 1,
            coarse: 0,
            next: front,
            backward: 0,
            doubts: MAX_DOUBTS - 1,
            begun: request.first,
            left: request.first,
            lease: Lease::default(),
            touched: 0,
        }
    }

    /// A forward stream that others read ahead for until `page`, included.
    pub(super) fn adopted(page: u64) -> Self {
        let request = Request {
            first: page,
            last: page,
        };
        Self {
            front: page + 1,
            ..Self::new(Shape::Forward, request)
        }
    }

    /// How far ahead of a request that misses the stream is, or `None` if it is none of the stream's.
    /// `continues`: the request is next to the one before it, whatever was cached between.
    pub(super) fn lead_at_miss(&self, request: Request, continues: bool) -> Option<u64> {
        let unit = self.shape.unit(self.shape.near(request))?;
        let expected = self.tail <= unit && unit <= self.next;
        let ours = expected
            || unit == self.front
            || (continues && self.tail <= unit && unit <= self.front + self.size / 4);
        ours.then(|| self.front.saturating_sub(unit))
    }

    /// How far ahead of the first use of `page` the stream is, or `None` if it is none of its pages.
    pub(super) fn lead_at_use(&self, page: u64) -> Option<u64> {
        let unit = self.shape.unit(page)?;
        let ours = self.tail <= unit && unit < self.front;
        ours.then(|| self.front - unit)
    }

    /// Whether the stream, last used at `touched` of a handle's uses, may be over at `now`: it is
    /// remembered for longer the more it has been worth.
    pub(super) fn is_stale(&self, now: u64) -> bool {
        let uses = match self.doubts {
            0 => USES_A_UNIT,
            _ => USES_A_UNIT / 4,
        };
        now - self.touched > uses * self.size.max(FIRST_WINDOW)
    }

    pub(super) fn is_over(&self) -> bool {
        self.doubts >= MAX_DOUBTS
    }

    /// A range that contains all pages that it has read ahead and that its reader has not left.
    pub(super) fn ahead(&self) -> Option<Range<PageIndex>> {
        let page = |unit| match self.shape {
            Shape::Forward => Some(unit),
            Shape::Backward => FAR_END.checked_sub(unit),
            Shape::Strided { .. } => self.shape.element(unit),
        };
        let (first, last) = (page(self.tail)?, page(self.front.checked_sub(1)?)?);
        let end = first.max(last) + self.shape.unit_pages();
        Some(PageIndex(first.min(last))..PageIndex(end))
    }

    pub(super) fn end(&mut self, budget: &super::ReadaheadBudget) {
        budget.release(&mut self.lease);
    }

    /// The pages that a forward reader at `page` has left behind since the last call, once the
    /// stream has gone on for longer than its largest window.
    pub(super) fn left_behind(&mut self, page: u64, limits: &Limits<'_>) -> Range<PageIndex> {
        let goes_on = self.shape == Shape::Forward && self.left <= page;
        let from = match goes_on && page - self.begun > limits.max {
            true => self.left.max(page.saturating_sub(MAX_LEFT)),
            false => page,
        };
        if !goes_on {
            self.begun = page;
        }
        self.left = page;
        PageIndex(from)..PageIndex(page)
    }

    /// The use of `page` as a request, where it may be the beginning of something else: the
    /// element of a strided stream, or a page that ends a trial.
    pub(super) fn request_at(&self, page: u64) -> Option<Request> {
        let (first, pages) = match self.shape {
            Shape::Strided { len, .. } => (self.shape.element(self.tail)?, len),
            _ if self.doubts > 0 => (page, 1),
            _ => return None,
        };
        Some(Request {
            first,
            last: first + pages - 1,
        })
    }

    /// A request of the stream misses at its first page: what to read now and what behind it.
    pub(super) fn on_miss(
        &mut self,
        request: Request,
        eager: bool,
        limits: &Limits<'_>,
    ) -> (Window, Option<Window>) {
        let max = self.max_units(limits);
        let Some(near) = self.shape.unit(self.shape.near(request)) else {
            return (limits.asked(request), None);
        };
        let asked = (request.pages() / self.shape.unit_pages()).clamp(1, max);
        self.size = match self.size {
            _ if eager => max,
            0 => self.first_size(asked, max),
            // Where it ended; else the window was lost and is worth no larger one.
            size if near >= self.front => (size * 2).min(max),
            size => size.min(max),
        };
        self.tail = near;
        self.front = near + asked;
        // Asked for by the caller: it is not read ahead, and it is read whatever the budget says.
        let ahead = self.size.min(self.room(limits)).saturating_sub(asked);
        let ahead = self.grant(0, ahead, limits);
        self.backward = match self.shape {
            Shape::Backward => asked - 1,
            _ => 0,
        };
        (self.step, self.coarse) = (self.folio_units(limits), 0);
        self.next = self.after_folio(self.front);
        let windows = match self.shape {
            Shape::Forward => self.miss_forward(request, asked, ahead, limits),
            Shape::Backward => self.miss_backward(request, asked, ahead, limits),
            Shape::Strided { .. } => {
                // A larger request than the stream's may reach into the next element.
                let regular = request.pages() <= self.shape.unit_pages();
                let ready = ahead > 0 && regular && limits.background;
                let behind = ready.then(|| self.next_element(limits));
                let behind = behind.flatten();
                (limits.asked(request), behind)
            }
        };
        if self.at_end(limits) {
            self.settle_at_end(self.front.saturating_sub(near + asked), limits);
        }
        windows
    }

    /// A page that readahead brought in is used for the first time: what to start now. `continues`
    /// as for a miss.
    pub(super) fn on_first_use(
        &mut self,
        page: u64,
        continues: bool,
        limits: &Limits<'_>,
    ) -> Vec<Window> {
        let Some(unit) = self.shape.unit(page) else {
            return Vec::new();
        };
        // Others may have used what lies between, if the reader itself goes on.
        let doubts = match unit <= self.next || continues {
            true => 0,
            false => self.doubts + 1,
        };
        self.tail = unit;
        self.front = self.front.max(unit + 1);
        self.next = self.after_folio(unit + 1);
        self.doubts = doubts;
        if doubts > 0 || !limits.background {
            return Vec::new();
        }
        let mut started = Vec::new();
        let (max, mut room) = (self.max_units(limits), self.room(limits));
        while started.len() < MAX_STARTED {
            let lead = self.front - unit - 1;
            if self.at_end(limits) {
                self.settle_at_end(lead, limits);
                break;
            }
            if lead >= self.async_size(max).max(self.step) {
                break;
            }
            if room < FIRST_WINDOW {
                // A miss takes what there is.
                break;
            }
            self.size = match self.size {
                0 => self.first_size(1, max),
                size => (size * 2).min(max),
            };
            let granted = self.grant(lead, self.size.min(room), limits);
            room -= granted;
            let folio = self.folio_units(limits);
            if folio >= self.step || unit >= self.coarse {
                (self.step, self.coarse) = (folio, self.front + granted);
            }
            if let Shape::Strided { .. } = self.shape {
                started.extend((0..granted).map_while(|_| self.next_element(limits)));
                break;
            }
            match self.next_window(granted, limits) {
                Some(window) => started.push(window),
                None => break,
            }
        }
        started
    }

    /// Units that have to lie ahead of the reader for nothing to be started.
    fn async_size(&self, max: u64) -> u64 {
        if self.size >= max {
            2 * self.size.min(max)
        } else {
            self.size
        }
    }

    fn max_units(&self, limits: &Limits<'_>) -> u64 {
        let pages = limits.max_window();
        match self.shape {
            Shape::Forward | Shape::Backward => pages,
            Shape::Strided { len, .. } => (pages / len).clamp(1, MAX_ELEMENTS),
        }
    }

    fn first_size(&self, asked: u64, max: u64) -> u64 {
        let first = match self.shape {
            Shape::Forward | Shape::Backward => FIRST_WINDOW.max(2 * asked.next_power_of_two()),
            Shape::Strided { .. } => FIRST_ELEMENTS,
        };
        first.min(max)
    }

    /// Renews the lease for `keep` units and asks for `want` more; the window becomes what the
    /// budget grants. Returns the units granted.
    fn grant(&mut self, keep: u64, want: u64, limits: &Limits<'_>) -> u64 {
        let pages = self.shape.unit_pages();
        let granted = limits
            .budget
            .renew(&mut self.lease, keep * pages, want * pages)
            / pages;
        if granted < want {
            let first = self.first_size(1, self.size);
            self.size = (granted + 1).next_power_of_two().div_ceil(2).max(first);
        }
        granted
    }

    /// Units that there is memory for now.
    fn room(&self, limits: &Limits<'_>) -> u64 {
        limits.room / self.shape.unit_pages()
    }

    /// Whether everything the stream could come to has been asked for.
    fn at_end(&self, limits: &Limits<'_>) -> bool {
        match self.shape {
            Shape::Forward => self.front >= limits.file_pages,
            Shape::Backward => self.front > FAR_END,
            Shape::Strided { len, .. } => self
                .shape
                .element(self.front)
                .is_none_or(|first| first + len > limits.file_pages),
        }
    }

    /// Nothing will be read ahead any more: keeps only what lies ahead, and nothing of the last folio, whose end is
    /// not reported.
    fn settle_at_end(&mut self, lead: u64, limits: &Limits<'_>) {
        let lead = lead * self.shape.unit_pages();
        if lead < (1 << limits.max_order).max(FIRST_WINDOW) {
            limits.budget.release(&mut self.lease);
        } else {
            limits.budget.renew(&mut self.lease, lead, 0);
        }
    }

    fn order(&self, limits: &Limits<'_>) -> u32 {
        order_for(self.size, limits.max_order)
    }

    /// The end of the folio that holds the unit before `unit`, or is met after it.
    fn after_folio(&self, unit: u64) -> u64 {
        match self.shape {
            Shape::Backward => (unit - 1).next_multiple_of(self.step) + 1 + self.backward,
            _ => unit.next_multiple_of(self.step),
        }
    }

    fn folio_units(&self, limits: &Limits<'_>) -> u64 {
        match self.shape {
            Shape::Forward | Shape::Backward => 1 << self.order(limits),
            Shape::Strided { .. } => 1,
        }
    }

    /// Where a window of up to `units` pages from the front on ends so that the next begins
    /// aligned to its own folios.
    fn aligned_end(&self, units: u64, limits: &Limits<'_>) -> u64 {
        let max = self.max_units(limits);
        let next = order_for((self.size * 2).min(max), limits.max_order);
        let end = self.front + units;
        // Folios of a backward stream end a page after a multiple of their size: page 0 is `FAR_END`.
        let bias = u64::from(self.shape == Shape::Backward);
        let aligned = (((end - bias) >> next) << next) + bias;
        if aligned > self.front + units / 2 {
            aligned
        } else {
            end
        }
    }

    fn next_window(&mut self, granted: u64, limits: &Limits<'_>) -> Option<Window> {
        if granted == 0 {
            return None;
        }
        let (from, order) = (self.front, self.order(limits));
        self.front = self.aligned_end(granted, limits);
        self.front = match self.shape {
            Shape::Forward => self.front.min(limits.file_pages),
            _ => self.front.min(FAR_END + 1),
        };
        let start = match self.shape {
            Shape::Forward => from,
            _ => FAR_END + 1 - self.front,
        };
        (self.front > from).then(|| Window::new(start, self.front - from, order))
    }

    /// The next element of a strided stream, if it lies in the file.
    fn next_element(&mut self, limits: &Limits<'_>) -> Option<Window> {
        if self.at_end(limits) {
            return None;
        }
        let start = self.shape.element(self.front)?;
        self.front += 1;
        let pages = self.shape.unit_pages().min(limits.max_window());
        let order = order_for(pages, limits.max_order);
        Some(Window::new(start, pages, order))
    }

    /// Splits `[first, end)` where the caller need not wait for all of it.
    fn miss_forward(
        &mut self,
        request: Request,
        asked: u64,
        ahead: u64,
        limits: &Limits<'_>,
    ) -> (Window, Option<Window>) {
        let first = request.first;
        if ahead > 0 {
            self.front = first;
            self.front = self.aligned_end(asked + ahead, limits).max(first + asked);
        }
        self.front = self.front.min(limits.file_pages.max(first + 1));
        let pages = self.front - first;
        let wait = asked.clamp(NOW_MIN.min(pages), WAIT_MAX);
        let order = order_for(wait.max(FIRST_WINDOW.min(self.size)), limits.max_order);
        let split = (first + wait).next_multiple_of(1 << order);
        let now = |pages, order| Window::new(first, pages, order);
        if !limits.background {
            // Read at once and used at once: no folio is in flight beside another.
            return (now(pages, pages.ilog2().min(limits.max_order)), None);
        }
        if split + FIRST_WINDOW > self.front {
            return (now(pages, order_for(pages, limits.max_order)), None);
        }
        let behind = Window::new(split, self.front - split, self.order(limits));
        (now(split - first, order), Some(behind))
    }

    /// The request, with the pages before it; those far before it behind it in time.
    fn miss_backward(
        &mut self,
        request: Request,
        asked: u64,
        ahead: u64,
        limits: &Limits<'_>,
    ) -> (Window, Option<Window>) {
        if request.pages() > asked {
            // Larger than any window: its own first page would not be in one that ends at its last.
            self.front = FAR_END + 1 - request.first;
            self.tail = self.front - 1;
            return (limits.asked(request), None);
        }
        let before = self.next_window(ahead, limits);
        let now = limits.asked(request);
        match before {
            Some(window) if window.pages + asked <= NOW_MIN || !limits.background => {
                let pages = window.pages + asked;
                (Window { pages, ..window }, None)
            }
            behind => (now, behind),
        }
    }
}
