//! Where the flushes of a file stand. `writeback/flush.rs` says what the numbers mean.

use foliocache_sys::Errno;
use foliocache_xarray::Mark;

/// The marks of unstable folios, by the lowest bit of their generation.
pub(crate) const UNSTABLE: [Mark; 2] = [Mark::UnstableEven, Mark::UnstableOdd];

/// The part of a file's flushes that `wb_lock` protects.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    /// Flushes that have begun: the generation of writes that end now. Wraps; nobody waits for as
    /// many flushes as that takes.
    pub(crate) begun: u32,
    /// Flushes that failed. Wraps: what counts is whether it changed.
    pub(crate) failures: u32,
}

#[derive(Debug, Default)]
pub(crate) struct FlushState {
    /// The number of the last flush that succeeded.
    pub(crate) done: u32,
    pub(crate) failures: u32,
    pub(crate) error: Option<Errno>,
}

/// The flush that a caller whose writes have ended waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    /// A flush of this number or a later one has to succeed.
    pub(crate) flush: u32,
    /// And none may fail any more: there were so many failures.
    pub(crate) failures: u32,
}

impl Generations {
    /// For writes that have ended.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket {
            flush: self.begun.wrapping_add(1),
            failures: self.failures,
        }
    }

    /// The mark of what is written now, and that of the generation before.
    pub(crate) fn marks(&self) -> (Mark, Mark) {
        let now = (self.begun & 1) as usize;
        (UNSTABLE[now], UNSTABLE[1 - now])
    }
}
