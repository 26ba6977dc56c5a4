//! A cache reduced to what readahead sees of it: pages that are there or on their way, a queue of
//! evictions, a device that takes its time.

use std::collections::{BTreeMap, VecDeque};

use super::super::*;

/// A device that is as fast as the reader: a page takes a tick, an I/O `LATENCY` more.
const LATENCY: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    /// Read ahead and not used yet: the first page of its folio, which has so many.
    ahead: Option<(u64, u64)>,
    /// When it is there.
    ready: u64,
    /// Used, not only read.
    used: bool,
    /// Used again since it was looked at for eviction.
    referenced: bool,
}

/// One read from the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Io {
    pub(super) start: u64,
    pub(super) pages: u64,
    /// Largest folio in it.
    pub(super) order: u32,
}

/// The model.
pub(super) struct Model {
    pub(super) budget: Arc<ReadaheadBudget>,
    pub(super) feedback: Arc<ReadaheadFeedback>,
    pub(super) max: u64,
    pub(super) max_order: u32,
    pub(super) background: bool,
    pub(super) now_max: u64,
    pub(super) room: u64,
    pub(super) file_pages: u64,
    /// Pages that fit.
    pub(super) capacity: usize,
    cache: BTreeMap<u64, Page>,
    queue: VecDeque<u64>,
    clock: u64,
    device_free: u64,
    /// Reads that found nothing.
    pub(super) misses: u64,
    /// Reads that found a page on its way and had to wait for it.
    pub(super) waits: u64,
    pub(super) used: u64,
    pub(super) wasted: u64,
    pub(super) ios: Vec<Io>,
    pub(super) most_leased: u64,
}

impl Model {
    pub(super) fn new(file_pages: u64) -> Self {
        Self {
            budget: Arc::new(ReadaheadBudget::new(8192, None)),
            feedback: Arc::new(ReadaheadFeedback::default()),
            max: 1024,
            max_order: 9,
            background: true,
            now_max: WAIT_MAX,
            room: u64::MAX,
            file_pages,
            capacity: 1 << 20,
            cache: BTreeMap::new(),
            queue: VecDeque::new(),
            clock: 0,
            device_free: 0,
            misses: 0,
            waits: 0,
            used: 0,
            wasted: 0,
            ios: Vec::new(),
            most_leased: 0,
        }
    }

    pub(super) fn with_budget(file_pages: u64, cap: u64) -> Self {
        Self {
            budget: Arc::new(ReadaheadBudget::new(cap, None)),
            ..Self::new(file_pages)
        }
    }

    /// Pages read that nobody has asked for so far.
    pub(super) fn unused(&self) -> u64 {
        let left = self.cache.values().filter(|page| page.ahead.is_some());
        self.wasted + left.count() as u64
    }

    pub(super) fn pages_read(&self) -> u64 {
        self.ios.iter().map(|io| io.pages).sum()
    }

    /// Pages of the median read.
    pub(super) fn median_io(&self) -> u64 {
        let mut sizes: Vec<u64> = self.ios.iter().map(|io| io.pages).collect();
        sizes.sort_unstable();
        sizes.get(sizes.len() / 2).copied().unwrap_or(0)
    }

    /// Forgets what is cached, as if somebody had dropped it.
    pub(super) fn drop_pages(&mut self, from: u64, to: u64) {
        let gone: Vec<u64> = self.cache.range(from..to).map(|(&page, _)| page).collect();
        for page in gone {
            self.evict(page);
        }
    }

    fn evict(&mut self, page: u64) {
        if let Some(Page { ahead: Some(_), .. }) = self.cache.remove(&page) {
            self.wasted += 1;
            self.feedback.note_wasted(1);
        }
    }

    /// Reads `pages` pages from `first` on, in one call.
    pub(super) fn read(&mut self, handle: &ReadaheadState, first: u64, pages: u64) {
        let last = (first + pages - 1).min(self.file_pages - 1);
        let mut at = first;
        while at <= last {
            self.clock += 1;
            match self.cache.get(&at).copied() {
                Some(page) => {
                    if page.ready > self.clock {
                        self.waits += 1;
                        self.clock = page.ready;
                    }
                    if let Some((start, pages)) = page.ahead {
                        self.first_use(handle, at, start, pages);
                    }
                    if let Some(page) = self.cache.get_mut(&at) {
                        page.referenced = page.used;
                        page.used = true;
                    }
                    at += 1;
                }
                None => {
                    // Copied while its folio is locked, so even a page that is evicted at once.
                    self.miss(handle, at, last);
                    at += 1;
                }
            }
            self.most_leased = self.most_leased.max(self.budget.leased());
        }
        handle.note_read(PageIndex(first).pos()..PageIndex(last + 1).pos());
    }

    fn first_use(&mut self, handle: &ReadaheadState, at: u64, start: u64, pages: u64) {
        for page in start..start + pages {
            if let Some(Page { ahead, .. }) = self.cache.get_mut(&page)
                && ahead.take().is_some()
            {
                self.used += 1;
                self.feedback.note_used(1);
            }
        }
        let (budget, feedback) = (Arc::clone(&self.budget), Arc::clone(&self.feedback));
        let limits = self.limits(&budget, &feedback);
        for window in handle.on_first_use(PageIndex(at), &limits) {
            check(&window, &limits, None);
            self.fill(window, None);
        }
    }

    fn miss(&mut self, handle: &ReadaheadState, at: u64, last: u64) {
        self.misses += 1;
        let (budget, feedback) = (Arc::clone(&self.budget), Arc::clone(&self.feedback));
        let limits = self.limits(&budget, &feedback);
        let asked = PageIndex(at)..PageIndex(last + 1);
        let (now, behind) = handle.on_miss(&asked, &limits);
        check(&now, &limits, Some(at));
        if let Some(behind) = behind {
            check(&behind, &limits, None);
            let apart = behind.start.0 >= now.start.0 + now.pages
                || now.start.0 >= behind.start.0 + behind.pages;
            assert!(apart, "{now:?} overlaps {behind:?}");
        }
        let ready = self.fill(now, Some((at, last)));
        if let Some(behind) = behind {
            self.fill(behind, None);
        }
        self.clock = self.clock.max(ready);
    }

    fn limits<'a>(
        &self,
        budget: &'a Arc<ReadaheadBudget>,
        feedback: &'a ReadaheadFeedback,
    ) -> Limits<'a> {
        Limits {
            max: self.max,
            max_order: self.max_order,
            background: self.background,
            now_max: self.now_max,
            room: self.room,
            file_pages: self.file_pages,
            budget,
            feedback,
        }
    }

    /// Reads what is not there of a window, in folios; when the last of it is there.
    fn fill(&mut self, window: Window, asked: Option<(u64, u64)>) -> u64 {
        let end = window.start.0 + window.pages;
        let mut at = window.start.0;
        let mut io: Option<Io> = None;
        while at < end {
            if self.cache.contains_key(&at) {
                self.ios.extend(io.take());
                at += 1;
                continue;
            }
            let mut order = window.order;
            let fits = |order: u32| {
                let pages = 1 << order;
                at.is_multiple_of(pages)
                    && at + pages <= end
                    && self.cache.range(at..at + pages).next().is_none()
            };
            while !fits(order) {
                order -= 1;
            }
            let pages = 1 << order;
            let io = io.get_or_insert_with(|| {
                self.device_free = self.device_free.max(self.clock) + LATENCY;
                Io {
                    start: at,
                    pages: 0,
                    order,
                }
            });
            io.pages += pages;
            io.order = io.order.max(order);
            self.device_free += pages;
            let own = asked.is_some_and(|(first, last)| at <= last && at + pages > first);
            for page in at..at + pages {
                let state = Page {
                    ahead: (!own).then_some((at, pages)),
                    ready: self.device_free,
                    used: own,
                    referenced: false,
                };
                self.cache.insert(page, state);
                self.queue.push_back(page);
            }
            at += pages;
        }
        self.ios.extend(io);
        while self.cache.len() > self.capacity {
            let Some(page) = self.queue.pop_front() else {
                break;
            };
            let state = self.cache.get_mut(&page);
            if state.is_some_and(|state| std::mem::take(&mut state.referenced)) {
                self.queue.push_back(page);
            } else {
                self.evict(page);
            }
        }
        self.device_free
    }
}

/// The invariants of every window.
fn check(window: &Window, limits: &Limits<'_>, page: Option<u64>) {
    let end = window.start.0 + window.pages;
    assert!(window.pages > 0, "{window:?} is empty");
    assert!(window.order <= limits.max_order);
    if let Some(page) = page {
        assert!(
            window.start.0 <= page && page < end,
            "{page} is not in {window:?}"
        );
        assert!(end <= limits.file_pages.max(page + 1));
    } else {
        assert!(end <= limits.file_pages, "{window:?} is past the end");
    }
    let most = 2 * limits.max.max(FIRST_WINDOW);
    assert!(window.pages <= most, "{window:?} is larger than allowed");
}
