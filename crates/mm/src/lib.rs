//! The page cache itself: frames, folios, address spaces, read, write, writeback and reclaim.
#![deny(unsafe_code)]
