//! Tests of the system tier, in one program. They run one at a time.

#[path = "../common/mod.rs"]
mod common;

mod append_only;
mod close;
mod handles;
mod limits;
mod mount;
mod operations;
mod operator;
mod pjdfstest;
mod power_cut_mount;
mod pressure;
mod programs;
mod replaced;
mod signals;
mod status;
mod submounts;
mod two_writers;
mod untold;
mod versions;
mod written_first;
