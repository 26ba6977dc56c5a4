//! Tests of the system tier, in one program. They run one at a time.

#[path = "../common/mod.rs"]
#[macro_use]
mod common;

mod create;
mod kernel_cache;
mod lookups;
mod memfs;
mod memory;
mod news;
mod privileges;
mod prune;
mod uncached;
mod unlinked;
mod waiting;
