//! The unit tests, linked into one program. A test that needs a separate process is a program
//! beside it.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod append_only;
mod bounds;
mod conformance;
mod dirfs;
mod log;
mod not_watched;
mod unnamed;
mod unopened;
mod walk;
mod watch;
mod watched_logs;
