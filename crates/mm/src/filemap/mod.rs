//! The operations on a file's cached pages: read, write, truncate, fault, batches, views.

mod append;
mod around;
mod batch;
mod before_write;
mod direct;
mod exact;
mod fault;
mod faults;
mod in_place;
mod nowait;
mod read;
mod truncate;
mod view;
mod write;
mod write_hit;

pub use batch::{Batch, Request, read_batch};
pub use exact::{ViewRequest, view_batch};
pub use nowait::Fetch;

use crate::iov::Stopped;

/// Times that one copy starts over because of bad memory.
const BAD_MEMORY_RETRIES: usize = 4;

/// Whether a copy stopped in the cache's own memory.
#[inline]
fn memory_failed<T>(copied: &Result<T, Stopped>) -> bool {
    matches!(copied, Err(stopped) if !stopped.callers_side)
}
