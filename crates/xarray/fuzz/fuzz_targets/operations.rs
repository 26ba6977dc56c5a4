//! Any bytes as operations on an index, against a `BTreeMap`.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| common::run(bytes));
