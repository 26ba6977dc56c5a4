//! The unit tests, linked into one program. A test that needs a separate process is a program
//! beside it.

#[path = "../common/mod.rs"]
mod common;

mod dead_backend;
mod fsync_truth;
mod limit_under_load;
mod power_cut;
mod power_cut_threads;
mod reference;
mod unreclaimable;
