//! Shadow entries: recent evictions, so that a refault is known as one (decision 2).
//!
//! # Model
//!
//! A fixed table of 32-bit entries in sets of four, one set chosen by a hash of (mapping, index); two entries
//! for a frame. An entry is 16 bits of tag and 16 bits of the *eviction clock*, which ticks once every
//! `table size / 4096` evictions, counted in pages. The refault distance, evictions between leaving
//! and coming back, is the difference of two clock values; a folio that comes back within
//! twice as many evictions as the cache has frames is a refault: in a cache three times the size it
//! would have been a hit.
//!
//! # Invariants
//!
//! 1. The table never grows with use; a new entry takes the oldest of its set.
//! 2. A false match (1 in 16,384 look-ups) only promotes a folio early.

use crate::types::PageIndex;

const WAYS: usize = 4;

/// Clock ticks that one turn through the table takes.
const TICKS_PER_TURN: u32 = 4096;

#[derive(Debug)]
pub(super) struct ShadowTable {
    sets: Box<[[u32; WAYS]]>,
    evictions: u64,
    /// Binary logarithm of the evictions in one tick of the clock.
    tick_shift: u32,
}

impl ShadowTable {
    pub(super) fn new(frames: u64) -> Self {
        let sets = shadow_sets(frames);
        let entries = (sets * WAYS) as u64;
        Self {
            sets: vec![[0; WAYS]; sets].into_boxed_slice(),
            evictions: 0,
            tick_shift: (entries / u64::from(TICKS_PER_TURN)).max(1).ilog2(),
        }
    }

    pub(super) fn bytes_for(frames: u64) -> u64 {
        (shadow_sets(frames) * size_of::<[u32; WAYS]>()) as u64
    }

    fn place(&self, mapping: u64, index: PageIndex) -> (usize, u32) {
        let hash = mix(mapping ^ mix(index.0));
        // The upper half of a product: even over any number of sets.
        let set = ((u64::from(hash as u32) * self.sets.len() as u64) >> 32) as usize;
        // A tag of zero would look like an empty entry.
        (set, ((hash >> 48) as u32).max(1))
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    fn clock(&self) -> u16 {
        (self.evictions >> self.tick_shift) as u16
    }

    pub(super) fn record(&mut self, mapping: u64, index: PageIndex, pages: u64) {
        self.evictions += pages;
        let clock = self.clock();
        let (set, tag) = self.place(mapping, index);
        let entries = &mut self.sets[set];
        let age = |entry: u32| match entry {
            0 => u32::MAX,
            entry => u32::from(clock.wrapping_sub(entry as u16)),
        };
        let oldest = (0..WAYS).max_by_key(|&way| age(entries[way])).unwrap_or(0);
        entries[oldest] = tag << 16 | u32::from(clock);
    }

    /// Whether the folio left within the last `most` evictions; forgets it.
    pub(super) fn refault(&mut self, mapping: u64, index: PageIndex, most: u64) -> bool {
        let clock = self.clock();
        let (set, tag) = self.place(mapping, index);
        let Some(entry) = self.sets[set].iter_mut().find(|entry| **entry >> 16 == tag) else {
            return false;
        };
        let distance = u64::from(clock.wrapping_sub(*entry as u16)) << self.tick_shift;
        *entry = 0;
        distance <= most
    }
}

fn shadow_sets(frames: u64) -> usize {
    (2 * frames as usize / WAYS).max(16)
}

/// A mixing step with good avalanche (the finaliser of splitmix64).
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refault_is_known_until_the_cache_turned_over() {
        let mut table = ShadowTable::new(1024);
        table.record(7, PageIndex(3), 1);
        assert!(table.refault(7, PageIndex(3), 1024));
        assert!(
            !table.refault(7, PageIndex(3), 1024),
            "an entry serves once"
        );
        table.record(7, PageIndex(3), 1);
        for index in 0..2048 {
            table.record(8, PageIndex(index), 1);
        }
        assert!(!table.refault(7, PageIndex(3), 1024), "too long ago");
    }

    #[test]
    fn false_matches_are_rare() {
        let mut table = ShadowTable::new(4096);
        for index in 0..2048 {
            table.record(1, PageIndex(index), 1);
        }
        let wrong = (0..20_000)
            .filter(|&i| table.refault(2, PageIndex(i), 4096))
            .count();
        assert!(wrong < 40, "{wrong} false matches in 20000");
    }
}
