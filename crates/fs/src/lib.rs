//! File systems over the cache: memfs and dirfs.
#![deny(unsafe_code)]
