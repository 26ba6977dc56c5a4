//! Tests of the system tier, in one program. They run one at a time.

#[path = "../common/mod.rs"]
mod common;

mod failing_disk;
mod hung_store;
mod memory_of_names;
