//! Shared by the tests of this crate.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "every test file uses a part of it"
)]

pub mod disk;
pub mod executor;
pub mod stores;

pub use disk::*;

pub const PAGE: usize = 4096;

/// Bytes that differ by position and by `seed`, none of them zero.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| {
            let mixed = (at + seed * 0x9e37_79b9).wrapping_mul(0xff51_afd7_ed55_8ccd);
            (mixed >> 56) as u8 | 1
        })
        .collect()
}
