//! The page cache itself: frames, folios, address spaces, read, write, writeback and reclaim.
#![deny(unsafe_code)]

pub mod frames;
mod ops;
mod types;

pub use ops::{AddressSpaceOperations, IoSegment};
pub use types::{MAX_FILE_SIZE, PAGE_SHIFT, PAGE_SIZE, PageIndex, offset_in_page, pages_for};
