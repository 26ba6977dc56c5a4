//! The streams of one handle: a table of them beside the [`History`] of misses that belong to none.
//!
//! Only what is recognised gets a place in the table, so random accesses, however many, push no stream out; a
//! new stream replaces the one that was not used for longest.
//!
//! # Invariants
//!
//! Every lease is of `budget`, and given back when its stream leaves the table.

use foliocache_sync::Arc;

use super::history::{self, History};
use super::request::Request;
use super::stream::{Shape, Stream};
use super::{FIRST_ENTRIES, Limits, MAX_STREAMS, ReadaheadBudget, Window};
use crate::types::PageIndex;
use std::ops::Range;

// The most that a handle takes, as `ReadaheadState` says.
const _: () = assert!(bytes(MAX_STREAMS, history::CAPACITY) <= 6 << 10);

pub(super) const FIRST_BYTES: usize = bytes(FIRST_ENTRIES, FIRST_ENTRIES);

const fn bytes(streams: usize, misses: usize) -> usize {
    size_of::<Streams>() + streams * size_of::<Stream>() + misses * history::MISS_BYTES
}

#[derive(Debug)]
pub(super) struct Streams {
    live: Vec<Stream>,
    history: History,
    /// Where the last one found is in `live`, most likely the next, too.
    recent: usize,
    clock: u64,
    budget: Arc<ReadaheadBudget>,
}

impl Streams {
    pub(super) fn new(budget: &Arc<ReadaheadBudget>) -> Self {
        Self {
            live: Vec::new(),
            history: History::default(),
            recent: 0,
            clock: 0,
            budget: Arc::clone(budget),
        }
    }

    /// Whether the handle was used with this cache.
    pub(super) fn belong_to(&self, budget: &Arc<ReadaheadBudget>) -> bool {
        Arc::ptr_eq(&self.budget, budget)
    }

    /// See [`ReadaheadState::on_miss`](super::ReadaheadState::on_miss). `continues`: the request is
    /// next to the one before it. `eager`: the caller says that it is sequential.
    pub(super) fn on_miss(
        &mut self,
        request: Request,
        continues: bool,
        eager: bool,
        limits: &Limits<'_>,
    ) -> (Window, Option<Window>) {
        let lead = |stream: &Stream| stream.lead_at_miss(request, continues);
        if let Some(stream) = self.find(lead) {
            return stream.on_miss(request, eager, limits);
        }
        let shape = match eager {
            true => Some(Shape::Forward),
            false => self.history.recognise(request, continues, limits.budget),
        };
        let stream = match shape {
            Some(shape) => Stream::new(shape, request),
            None if request.first == 0 && self.history.is_short() => {
                Stream::new(Shape::Forward, request)
            }
            None => {
                self.forget_stale();
                return (limits.asked(request), None);
            }
        };
        self.add(stream).on_miss(request, eager, limits)
    }

    pub(super) fn on_first_use(
        &mut self,
        page: u64,
        continues: bool,
        limits: &Limits<'_>,
    ) -> Vec<Window> {
        let found = self.find(|stream| stream.lead_at_use(page)).is_some();
        if !found && !continues {
            return Vec::new();
        }
        let stream = if found {
            &mut self.live[self.recent]
        } else {
            self.add(Stream::adopted(page))
        };
        let started = stream.on_first_use(page, continues, limits);
        let (request, is_over) = (stream.request_at(page), stream.is_over());
        if let Some(request) = request {
            // Streams that start evenly spaced look strided until they go on.
            self.history.push_foreseen(request, limits.budget);
        }
        if is_over {
            self.live.swap_remove(self.recent).end(&self.budget);
        }
        started
    }

    pub(super) fn left_behind(&mut self, page: u64, limits: &Limits<'_>) -> Range<PageIndex> {
        match self.live.get_mut(self.recent) {
            Some(stream) => stream.left_behind(page, limits),
            None => PageIndex(page)..PageIndex(page),
        }
    }

    pub(super) fn ahead(&self) -> Vec<Range<PageIndex>> {
        self.live.iter().filter_map(Stream::ahead).collect()
    }

    /// The stream that `lead` knows: the last one used, or the one that is least far ahead.
    fn find(&mut self, lead: impl Fn(&Stream) -> Option<u64>) -> Option<&mut Stream> {
        let recent = self.live.get(self.recent);
        if recent.and_then(&lead).is_none() {
            let leads = self.live.iter().enumerate();
            let (_, at) = leads
                .filter_map(|(at, stream)| Some((lead(stream)?, at)))
                .min()?;
            self.recent = at;
        }
        self.clock += 1;
        let stream = &mut self.live[self.recent];
        stream.touched = self.clock;
        Some(stream)
    }

    /// Counts a random miss and drops the streams that it makes too old: the pages near them must
    /// not go on looking like theirs.
    fn forget_stale(&mut self) {
        self.clock += 1;
        let now = self.clock;
        for mut stale in self.live.extract_if(.., |stream| stream.is_stale(now)) {
            stale.end(&self.budget);
        }
    }

    fn add(&mut self, stream: Stream) -> &mut Stream {
        self.clock += 1;
        if self.budget.grow(&mut self.live, MAX_STREAMS) {
            self.recent = self.live.len();
            self.live.push(stream);
        } else {
            let oldest = self.live.iter().enumerate();
            let oldest = oldest.min_by_key(|(_, stream)| stream.touched);
            self.recent = oldest.map_or(0, |(at, _)| at);
            std::mem::replace(&mut self.live[self.recent], stream).end(&self.budget);
        }
        let stream = &mut self.live[self.recent];
        stream.touched = self.clock;
        stream
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for stream in &mut self.live {
            stream.end(&self.budget);
        }
        self.budget.uncharge(&self.live);
        self.history.uncharge(&self.budget);
    }
}
