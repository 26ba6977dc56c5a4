//! The operations on a file's cached pages: read, write, fill, truncate.

mod fill;
mod lookup;
mod read;
mod truncate;
mod write;

#[doc(hidden)]
pub use write::FaultIn;
