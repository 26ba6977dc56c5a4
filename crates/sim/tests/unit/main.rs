//! The tests of the unit tier, in one program: it is linked once. What needs a process of its own is a program beside it.

#[path = "../common/mod.rs"]
mod common;

mod dead_backend;
mod fsync_truth;
mod limit_under_load;
mod power_cut;
mod power_cut_threads;
mod reference;
mod unreclaimable;
