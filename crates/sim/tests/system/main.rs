//! Tests of the system tier, in one program. They run one at a time.

#[path = "../common/mod.rs"]
mod common;

mod disk;
mod disk_troubles;
mod every_io_fails;
mod failed_pages;
mod failing;
mod power_cut_kernel;
