//! Suites of other programs, in one program.

#[path = "../common/mod.rs"]
mod common;

mod databases;
mod suites;
