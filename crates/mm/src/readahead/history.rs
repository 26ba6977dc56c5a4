//! The misses that belong to no stream yet, and what can be seen in them.
//!
//! # Model
//!
//! ```text
//!   run going up     … [a, b) [b, c) [c, d)        each begins where an earlier one ended
//!   run going down   [c, d) [b, c) [a, b) …        each ends where an earlier one began
//!   strided          p, p + s, p + 2s, p + 3s      three equal steps, requests of one size
//! ```
//!
//! Requests of a run need not follow each other in time: up to [`CAPACITY`] others may lie between. A run has to
//! be met twice before it counts, unless its requests are so large that one window more is little waste.

use super::ReadaheadBudget;
use super::request::Request;
use super::stream::Shape;

/// Misses remembered.
pub(super) const CAPACITY: usize = 48;

/// Misses searched for equal steps: enough for several strided streams in turns.
const STRIDE_SEARCH: usize = 16;

/// A request of so many pages that continues another is taken for a stream at once.
const LARGE_REQUEST: u64 = 8;

/// Requests so far from a beginning that a first page of the file is taken for one.
const FEW: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Miss {
    request: Request,
    /// Requests of its run before it: positive going up, negative going down.
    run: i8,
}

/// Bytes that a miss takes.
pub(super) const MISS_BYTES: usize = size_of::<Miss>();

#[derive(Debug, Default)]
pub(super) struct History(Vec<Miss>);

impl History {
    /// Whether the handle has missed so rarely that nothing speaks against a stream.
    pub(super) fn is_short(&self) -> bool {
        self.0.len() < FEW
    }

    /// Notes a request, and says what it shows together with earlier ones. `continues`: it is next
    /// to the one before it, which may have hit.
    pub(super) fn recognise(
        &mut self,
        request: Request,
        continues: bool,
        budget: &ReadaheadBudget,
    ) -> Option<Shape> {
        let Request { first, last } = request;
        let (mut same, mut before, mut after) = (None, None, None);
        for (at, miss) in self.0.iter().enumerate() {
            let earlier = miss.request;
            if earlier.last == last && earlier.first < first {
                // The same request goes on behind pages that were there: it shows nothing new.
                return None;
            }
            if earlier == request {
                same = Some(at);
            } else if earlier.last + 1 == first {
                before = Some(at);
            } else if earlier.first == last + 1 {
                after = Some(at);
            }
        }
        let continued = match continues {
            true => before,
            false => before.or(after),
        };
        let run = continued.map(|at| self.0[at].run);
        // An earlier pass over the file says nothing about this one.
        let mut gone = [continued, same];
        gone.sort_unstable();
        for at in gone.into_iter().rev().flatten() {
            self.0.remove(at);
        }
        if before.is_some() || continues {
            let run = run.unwrap_or(0).clamp(0, i8::MAX - 1) + 1;
            self.push(request, run, budget);
            let large = before.is_some() && request.pages() >= LARGE_REQUEST;
            return (run >= 2 || large).then_some(Shape::Forward);
        }
        if let Some(run) = run {
            let run = run.clamp(i8::MIN + 1, 0) - 1;
            self.push(request, run, budget);
            return (run <= -2).then_some(Shape::Backward);
        }
        let stride = self.stride(request);
        self.push(request, 0, budget);
        stride.map(|stride| Shape::Strided {
            base: first,
            stride,
            len: request.pages(),
        })
    }

    /// Notes a request that hit because it was foreseen, for what else may come of it.
    pub(super) fn push_foreseen(&mut self, request: Request, budget: &ReadaheadBudget) {
        self.0.retain(|miss| miss.request != request);
        self.push(request, 0, budget);
    }

    fn push(&mut self, request: Request, run: i8, budget: &ReadaheadBudget) {
        if !budget.grow(&mut self.0, CAPACITY) {
            self.0.remove(0);
        }
        self.0.push(Miss { request, run });
    }

    pub(super) fn uncharge(&self, budget: &ReadaheadBudget) {
        budget.uncharge(&self.0);
    }

    /// The step, if this request and three earlier ones, in order, are the same step apart.
    fn stride(&self, request: Request) -> Option<i64> {
        let pages = request.pages();
        let recent = &self.0[self.0.len().saturating_sub(STRIDE_SEARCH)..];
        let before = |misses: &[Miss], first: i64| {
            misses
                .iter()
                .rposition(|m| m.request.first as i64 == first && m.request.pages() == pages)
        };
        let here = request.first as i64;
        (2..recent.len()).rev().find_map(|at| {
            let there = recent[at].request.first as i64;
            let step = here - there;
            if recent[at].request.pages() != pages || step.unsigned_abs() <= pages {
                return None;
            }
            let second = before(&recent[..at], there - step)?;
            before(&recent[..second], there - 2 * step)?;
            Some(step)
        })
    }
}
