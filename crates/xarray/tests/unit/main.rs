//! The tests of the unit tier, in one program: it is linked once. What needs a process of its own is a program beside it.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod edges;
mod model;
mod threads;
