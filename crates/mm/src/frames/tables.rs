//! Which page tables of a run of addresses there may be: one for 2 MiB, made by the kernel at the first touch.
//!
//! # Memory ordering
//!
//! Relaxed: what is charged is counted by the one that set the bit.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use std::ops::Range;

/// Bytes of a page table.
pub(crate) const TABLE_BYTES: u64 = 4096;

/// One bit for each unit of 2 MiB.
#[derive(Debug)]
pub(crate) struct Tables(Box<[AtomicU64]>);

impl Tables {
    pub(crate) fn new(units: u32) -> Self {
        let words = units.div_ceil(u64::BITS) as usize;
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    fn bit(&self, unit: u32) -> (&AtomicU64, u64) {
        let word = &self.0[(unit / u64::BITS) as usize];
        (word, 1 << (unit % u64::BITS))
    }

    pub(crate) fn has(&self, unit: u32) -> bool {
        let (word, bit) = self.bit(unit);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// Notes the table of a unit; whether it was not there.
    pub(crate) fn add(&self, unit: u32) -> bool {
        let (word, bit) = self.bit(unit);
        word.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Has `pay` charge the bytes of the tables of `units` that are not there yet, and `back` give back those that
    /// another thread paid at the same time; false as soon as `pay` refuses.
    pub(crate) fn add_all(
        &self,
        units: Range<u32>,
        pay: impl Fn(u64) -> bool,
        back: impl Fn(u64),
    ) -> bool {
        units.filter(|&unit| !self.has(unit)).all(|unit| {
            let paid = pay(TABLE_BYTES);
            if paid && !self.add(unit) {
                back(TABLE_BYTES);
            }
            paid
        })
    }

    pub(crate) fn count(&self) -> u64 {
        let ones = |word: &AtomicU64| u64::from(word.load(Ordering::Relaxed).count_ones());
        self.0.iter().map(ones).sum()
    }
}
