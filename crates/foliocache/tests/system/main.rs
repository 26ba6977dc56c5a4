//! Tests of the system tier, in one program. They run one at a time.

#[path = "../common/mod.rs"]
mod common;

mod coarse_times;
mod exit;
mod many_mappings;
mod mapped_memory;
mod pins;
mod power_cut;
