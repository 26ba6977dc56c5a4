//! Which page tables of a window there may be: one for 2 MiB, made by the kernel at the first touch.
//!
//! # Memory ordering
//!
//! Relaxed: what is charged is counted by the one that set the bit.

use foliocache_sync::atomic::{AtomicU64, Ordering};

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

    /// Notes that the table of a unit is gone; whether it was there.
    pub(crate) fn remove(&self, unit: u32) -> bool {
        let (word, bit) = self.bit(unit);
        word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// The units from `first` on that have a table.
    pub(crate) fn from(&self, first: u32) -> impl Iterator<Item = u32> {
        let mut word = (first / u64::BITS) as usize;
        let ones = |word: usize| self.0.get(word).map(|word| word.load(Ordering::Relaxed));
        let mut bits = ones(word).unwrap_or(0) & (u64::MAX << (first % u64::BITS));
        std::iter::from_fn(move || {
            while bits == 0 {
                word += 1;
                bits = ones(word)?;
            }
            let unit = word as u32 * u64::BITS + bits.trailing_zeros();
            bits &= bits - 1;
            Some(unit)
        })
    }
}
