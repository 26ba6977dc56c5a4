//! The page cache as a library: files cached under a hard memory bound.
#![deny(unsafe_code)]
