//! Any bytes as operations on an index, against a `BTreeMap`.

#[path = "../../../xarray/tests/common/mod.rs"]
mod common;

pub(crate) fn run(bytes: &[u8]) {
    common::run_with(bytes, false);
    if super::canary() {
        super::plant("index");
        common::run_with(bytes, true);
    }
}
