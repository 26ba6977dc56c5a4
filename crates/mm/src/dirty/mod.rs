//! The state of dirty data: of a file, of a file system, and of the cache.
//!
//! # Model
//!
//! State and arithmetic alone. This module knows no file and no file system: its lists are of any type that is [`Listed`], and
//! times and sizes are given to it as numbers. What is done with the state is in `bdi` (limits, throttling, the list of dirty files) and
//! `writeback` (passes, flushes, the flusher).

mod flushes;
mod group;
mod law;
mod limits;
mod list;
mod meter;
mod pass;
mod queued;
mod rewrites;
mod space;
mod stalls;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod throttle;
mod told;

pub(crate) use flushes::{FlushState, Ticket, UNSTABLE};
pub(crate) use group::Groups;
pub(crate) use law::{Limits, SECOND};
pub(crate) use limits::{Shares, WHOLE, slew, target};
pub(crate) use list::{DirtyFile, DirtyFiles, Listed, NOT_DIRTY};
pub(crate) use pass::WritebackState;
pub(crate) use queued::{Closed, ClosedFile, Handed, HandedFile};
pub(crate) use rewrites::Rewrites;
#[cfg(loom)]
pub(crate) use space::Grant;
pub(crate) use space::{GRANT_TIME, Space, UNASKED, UnaskedWrite, says_full};
pub(crate) use stalls::Stalls;
pub use stalls::ThrottleStats;
pub(crate) use throttle::{LONGEST_BATCH, SHORTEST_TURN, Throttle, flush_due, turn};
pub(crate) use told::{Limiter, Told, shown};
