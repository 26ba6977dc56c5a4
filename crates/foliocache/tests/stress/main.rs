//! Many threads and much data, in one program.

#[path = "../common/mod.rs"]
mod common;

mod async_calls;
mod versions;
