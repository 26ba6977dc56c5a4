//! Many threads and much data, in one program.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod mapping;
mod mm;
