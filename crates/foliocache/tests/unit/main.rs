//! The unit tests, linked into one program. A test that needs a separate process is a program
//! beside it.

#[path = "../common/mod.rs"]
mod common;

mod async_appends;
mod async_directories;
mod async_dropped;
mod async_files;
mod bad_memory;
mod caches;
mod closed;
mod crash_safe_log;
mod exact_views;
mod exit;
mod file_locks;
mod files;
mod locks_beside_writers;
mod mapping;
mod names;
mod outside;
mod pins;
mod porting;
mod replaced;
mod scans;
mod scattered;
mod single_files;
mod space;
mod std_like;
mod tokio_files;
mod trees;
mod two_writers;
mod uncached;
mod uncached_walks;
mod unwritten;
mod views;
mod written_first;
