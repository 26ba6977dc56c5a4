//! The models that shuttle runs, in one program.
#![cfg(shuttle)]

#[path = "../common/mod.rs"]
mod common;

mod dirfs;
mod file_locks;
