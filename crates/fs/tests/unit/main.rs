//! The tests of the unit tier, in one program: it is linked once. What needs a process of its own is a program beside it.
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
