//! The FUSE front door of foliocache.
#![deny(unsafe_code)]
