//! The unit tests, linked into one program. A test that needs a separate process is a program
//! beside it.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod edges;
mod model;
mod threads;
