//! The operations on a file's cached pages: read, write, fill, truncate.

mod bad_memory;
mod fill;
mod in_place;
mod lookup;
mod nowait;
mod read;
mod split;
mod truncate;
mod write;

#[cfg(loom)]
pub(crate) use lookup::Lookup;
pub use nowait::Fetch;
#[cfg(loom)]
pub(crate) use split::split_in_index;
pub(crate) use write::Appended;
